"""HLOP: the subspace is found, projecting a gradient is projecting the trace, and the first task stays learned."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles.networks import error, lively, online_gradients
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    HLOP,
    LI,
    LIF,
    OTTT,
    SLTT,
    ETBlock,
    ETConv1d,
    ETConv2d,
    ETLinear,
    ETRecurrent,
    OnlineLearner,
    Readout,
    WeightStandardizedETConv2d,
    attach,
    reset,
)
from snnlearn.functional.hebbian import hebbian_step, orthonormal_rows, remove_subspace

FEATURES, HIDDEN, BATCH, STEPS = 12, 24, 4, 3


def principal(x: Tensor, components: int) -> Tensor:
    """The leading right singular vectors of x [N, D], uncentred."""
    return torch.linalg.svd(x, full_matrices=False)[2][:components]


def overlap(a: Tensor, b: Tensor) -> float:
    """Smallest cosine of the angles between two subspaces given by orthonormal rows."""
    return float(torch.linalg.svdvals(a @ b.T).min())


def samples(count: int = 400, inputs: int = 10) -> Tensor:
    """Inputs with three strong directions and seven weak ones."""
    scales = torch.tensor([3.0, 2.5, 2.0] + [0.2] * (inputs - 3), dtype=torch.float64)
    basis = orthonormal_rows(torch.randn(inputs, inputs, dtype=torch.float64))
    return torch.randn(count, inputs, dtype=torch.float64) * scales @ basis


def test_hebbian_learning_finds_the_principal_subspace() -> None:
    x = samples()
    rows = orthonormal_rows(torch.randn(3, 10, dtype=torch.float64))
    before = overlap(rows, principal(x, 3))
    for _ in range(10):
        for part in x.split(50):
            rows = hebbian_step(rows, part, rate=0.5)
    torch.testing.assert_close(rows @ rows.T, torch.eye(3, dtype=torch.float64), atol=0.02, rtol=0)
    assert overlap(orthonormal_rows(rows), principal(x, 3)) > 0.999
    assert before < 0.9
    assert overlap(orthonormal_rows(rows), principal(x, 6)[3:]) < 0.1


def test_the_numbers_of_one_step_and_its_size_has_no_unit() -> None:
    """H = (0.5, 0), x = (2, 0): y = 1, x - y H = (1.5, 0), dH = 1.5 / 4."""
    rows, x = torch.tensor([[0.5, 0.0]]), torch.tensor([[2.0, 0.0]])
    assert hebbian_step(rows, x, 0.4).tolist() == [[pytest.approx(0.65), 0.0]]
    torch.testing.assert_close(hebbian_step(rows, 1000 * x, 0.4), hebbian_step(rows, x, 0.4))
    assert torch.equal(hebbian_step(rows, 0 * x, 0.4), rows)


def test_a_second_task_adds_what_is_new() -> None:
    block = ETBlock(ETLinear(10, 2, bias=False), LI()).double()
    first, second = samples(), samples()
    hlop = HLOP(block, components=3)
    for x in (first, second):
        with hlop.watching():
            for part in x.split(40) * 20:
                reset(block)
                block(part)
    rows = hlop.kept[""]
    torch.testing.assert_close(rows @ rows.T, torch.eye(6, dtype=torch.float64), atol=1e-12, rtol=0)
    assert overlap(rows[:3], principal(first, 3)) > 0.999
    left = principal(remove_subspace(second, rows[:3]), 3)
    assert overlap(rows[3:], left) > 0.99
    assert block.connection.trace is None
    assert not block._forward_pre_hooks


def test_projecting_the_gradient_is_projecting_the_trace() -> None:
    """The trace of the projected inputs, the value unchanged: the same gradient. Without the projection another."""
    x = torch.rand(6, BATCH, FEATURES, dtype=torch.float64)
    y = torch.randint(3, (BATCH,))
    net = nn.Sequential(ETBlock(ETLinear(FEATURES, 3, bias=False), LI())).double()
    rows = orthonormal_rows(torch.randn(4, FEATURES, dtype=torch.float64))
    plain = online_gradients(net, OTTT(), x, y)["0.connection.weight"]
    hlop = HLOP(net, components=4)
    hlop.load_state_dict({"0": rows})
    hlop.project_gradients()
    projected = net[0].connection.weight.grad.clone()
    net[0].connection.traced_input = lambda x_t: remove_subspace(x_t, rows)
    assert error(online_gradients(net, OTTT(), x, y)["0.connection.weight"], projected) < 1e-12
    assert error(plain, projected) > 0.1
    assert float((projected @ rows.T).abs().max()) < 1e-12


def test_guarding_plain_descent_is_projecting_gradients() -> None:
    net = nn.Sequential(ETBlock(ETLinear(FEATURES, 3), LI())).double()
    hlop = HLOP(net, components=2)
    with hlop.watching():
        net(torch.rand(BATCH, FEATURES, dtype=torch.float64))
    ends = []
    for guarded in (True, False):
        twin = copy.deepcopy(net)
        keeper = HLOP(twin, components=2)
        keeper.load_state_dict(hlop.state_dict())
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        twin(torch.full((BATCH, FEATURES), 0.5, dtype=torch.float64)).square().sum().backward()
        if guarded:
            with keeper.guard(optimizer):
                optimizer.step()
        else:
            keeper.project_gradients()
            optimizer.step()
        ends.append(torch.cat([p.detach().flatten() for p in twin.parameters()]))
    assert error(ends[0], ends[1]) < 1e-14
    before = torch.cat([p.detach().flatten() for p in net.parameters()])
    assert error(before, ends[0]) > 1e-3


MAKERS: list[Any] = [
    pytest.param(lambda: (ETLinear(18, 5), (18,)), id="linear"),
    pytest.param(lambda: (ETConv2d(2, 5, 3, padding=1), (2, 3, 3)), id="conv2d"),
    pytest.param(lambda: (ETConv2d(2, 5, (2, 3), stride=2, padding="valid", dilation=1), (2, 5, 5)), id="conv2d-odd"),
    pytest.param(lambda: (ETConv2d(2, 5, 3, padding=1, padding_mode="circular", bias=False), (2, 4, 4)), id="circular"),
    pytest.param(lambda: (ETConv1d(4, 5, 3, padding=2, dilation=2), (4, 5)), id="conv1d"),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_answers_to_what_is_kept_stay(make: Callable[[], Any], optimizer: Any) -> None:
    """Whatever the optimizer: the rows of the old inputs span a space that the change of the weights never enters."""
    layer, shape = make()
    net = nn.Sequential(ETBlock(layer, LI())).double()
    old = torch.rand(1, *shape, dtype=torch.float64)
    hlop = HLOP(net, components=1)
    rows = hlop.layers["0"].rows(old)
    rank = int(torch.linalg.matrix_rank(rows))
    assert rank < hlop.layers["0"].inputs
    hlop.load_state_dict({"0": principal(rows, rank)})
    ends = {}
    for guarded in (True, False):
        twin = copy.deepcopy(net)
        keeper = HLOP(twin, components=1)
        keeper.load_state_dict(hlop.state_dict() if guarded else {"0": rows[:0]})
        steps = optimizer(twin.parameters(), lr=0.05, weight_decay=0.1)
        before, new = layer_value(twin, old), torch.rand(3, *shape, dtype=torch.float64)
        moved = layer_value(twin, new)
        with keeper.guard(steps):
            for _ in range(3):
                steps.zero_grad()
                reset(twin)
                twin(new).square().sum().backward()
                steps.step()
        ends[guarded] = error(layer_value(twin, old), before)
        assert error(layer_value(twin, new), moved) > 1e-3
    assert ends[True] < 1e-12
    assert ends[False] > 1e-3


def layer_value(net: nn.Sequential, x: Tensor) -> Tensor:
    reset(net)
    with torch.no_grad():
        value: Tensor = net[0].connection(x)
    return value


def task(offset: int, seed: int) -> tuple[Tensor, Tensor]:
    """Four patterns in four classes on seven of twelve inputs; tasks at 0 and 5 share two of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.zeros(STEPS, BATCH, FEATURES, dtype=torch.float64)
    x[:, :, offset : offset + 7] = torch.rand(BATCH, 7, generator=generator, dtype=torch.float64)
    return x, torch.randperm(BATCH, generator=generator)


def test_two_tasks_one_after_the_other(unchecked: None) -> None:
    """With the projection the second is learned and the first stays; without it the first is forgotten."""
    first, second = task(0, 1), task(5, 2)
    net = nn.Sequential(ETBlock(ETLinear(FEATURES, HIDDEN), LIF()), ETBlock(ETLinear(HIDDEN, BATCH), LI())).double()
    lively(net, first[0])

    def fit(x: Tensor, y: Tensor) -> None:
        learner = OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.Adam(net.parameters(), lr=0.02))
        with hlop.guard(learner.optimizer):
            for _ in range(40):
                result = learner.learn(x, y)
        assert result.accuracy == 1.0
        assert 0.02 < result.firing_rates["0"] < 0.8

    def outputs(x: Tensor) -> Tensor:
        reset(net)
        with torch.no_grad():
            return torch.stack([net(x_t) for x_t in x])

    hlop = HLOP(net, components={"0": 5, "1": 12})
    fit(*first)
    learned, kept = outputs(first[0]), copy.deepcopy(net.state_dict())
    with hlop.watching():
        for _ in range(80):
            outputs(first[0])
    drift = {}
    for protected in (True, False):
        net.load_state_dict(kept)
        if not protected:
            hlop = HLOP(net, components=1)
        fit(*second)
        drift[protected] = error(outputs(first[0]), learned)
    assert drift[False] > 0.3
    assert drift[True] < 0.1 * drift[False], drift


def test_what_cannot_be_kept_is_told() -> None:
    grouped = ETBlock(ETConv2d(2, 2, 3, groups=2), LIF())
    for block in (grouped, ETBlock(WeightStandardizedETConv2d(2, 2, 3), LIF()), ETBlock(ETRecurrent(2, 2), LIF())):
        with pytest.raises(ValueError, match="give components by name, without this layer"):
            HLOP(nn.Sequential(block), components=1)
    net = nn.Sequential(grouped, nn.Flatten(), Readout(nn.Linear(8, 2)))
    assert list(HLOP(net, {"2": 3}).kept) == ["2"]
    with pytest.raises(ValueError, match=r"names \['1'\].*are \['0', '2'\]"):
        HLOP(net, {"1": 3})
    with pytest.raises(ValueError, match=r"rate=0\.5"):
        HLOP(net, {"2": 3}, rate=2.0)
    with pytest.raises(ValueError, match="9 inputs, bias included"), HLOP(net, {"2": 10}).watching():
        pass
    with pytest.raises(ValueError, match="saved from another network"):
        HLOP(net, {"2": 3}).load_state_dict({"2": torch.zeros(1, 3)})


def test_a_failed_run_keeps_nothing(unchecked: None) -> None:
    net = ETBlock(ETLinear(3, 2), LI())
    attach(net, SLTT())
    hlop = HLOP(net, components=1)
    with pytest.raises(RuntimeError, match=r"size of tensor|must match|mat1 and mat2|shapes"), hlop.watching():
        net(torch.ones(1, 5))
    assert len(hlop.kept[""]) == 0
    assert not net._forward_pre_hooks
