"""Chunks in a loop of one's own: the numbers of the learner, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    DECOLLE,
    DRTRL,
    ETLP,
    LI,
    LIF,
    OSTTP,
    OTTT,
    SLTT,
    Chunk,
    EProp,
    ETBlock,
    ETLinear,
    ETRecurrent,
    LearningRule,
    OnlineLearner,
    Readout,
    RuleChoiceError,
    StaleTraceError,
    StateShapeError,
    TimeConstantDropout,
    TracesPropagation,
    in_chunk,
    reset,
    show_target,
)

STEPS, BATCH, K = 7, 4, 3


def net_of(*between: nn.Module, last: Callable[[], nn.Module] | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    readout = last() if last is not None else ETBlock(ETLinear(9, 3), LI(decay=0.7))
    block = ETBlock(ETRecurrent(6, 9), LIF(decay=0.8, threshold=0.3))
    return nn.Sequential(block, *between, readout).double()


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (torch.rand(STEPS, BATCH, 6, generator=generator) < 0.5).double(), torch.arange(BATCH) % 3


class Recorder(torch.optim.SGD):
    """Keep the gradient of the one update."""

    seen: tuple[Tensor, ...] = ()

    def step(self, closure: Any = None) -> None:
        held = self.param_groups[0]["params"]
        self.seen = tuple(torch.zeros(1) if p.grad is None else p.grad.clone() for p in held)


def by_learner(net: nn.Module, rule: LearningRule, x: Tensor, y: Tensor, chunk: int, **options: Any) -> list[Tensor]:
    learner = OnlineLearner(net, rule, F.cross_entropy, Recorder(net.parameters(), lr=0.0), chunk=chunk)
    result = learner.learn(x, y, **options)
    assert 0.02 < result.firing_rates["0"] < 0.8
    return list(learner.optimizer.seen)


def by_loop(net: nn.Module, rule: LearningRule, x: Tensor, y: Tensor, restarts: Tensor | None = None) -> list[Tensor]:
    """The loop that the module's text shows; signals that are no function of the loss are divided afterwards."""
    parameters = list(net.parameters())
    rule.attach(net, chunk=K)
    for t in range(0, STEPS, K):
        steps = x[t : t + K]
        if rule.signal in ("target", "local_readout", "contrastive"):
            show_target(net, y.repeat(len(steps)))
        with in_chunk(net, Chunk(len(steps), None if restarts is None else restarts[t : t + K])):
            output = net(steps.flatten(0, 1))
        (F.cross_entropy(output, y.repeat(len(steps))) * len(steps)).backward()
    reset(net)
    return [torch.zeros(1) if p.grad is None else p.grad / STEPS for p in parameters]


def static() -> nn.Module:
    return Readout(nn.Linear(9, 3))


@pytest.mark.parametrize(
    ("rule", "last"),
    [
        (OTTT(), None),
        (DRTRL(), None),
        (SLTT(), None),
        (EProp(broadcast="random", rate=0.1), None),
        (OSTTP(), None),
        (DECOLLE(), static),
        (TracesPropagation(decay=0.8), None),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_loop_has_the_numbers_of_the_learner(rule: LearningRule, last: Any) -> None:
    x, y = data()
    one = by_learner(net_of(last=last), rule, x, y, 1)
    own = by_loop(net_of(last=last), rule, x, y)
    assert min(len(one), len(own)) > 3
    for mine, theirs in zip(own, one, strict=False):  # a signal's own parameters are in a group behind
        assert float((mine - theirs).norm()) <= 1e-12 * max(float(theirs.norm()), 1e-3)
    assert float(one[0].norm()) > 1e-6
    other = by_loop(net_of(last=last), rule, x.flip(0), y)
    assert float((other[0] - one[0]).norm()) > 1e-6  # control: the order of the steps matters


def test_rows_restart_in_a_loop_too() -> None:
    x, y = data()
    restarts = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    restarts[2, 0] = restarts[4, 3] = True
    one = by_learner(net_of(), DRTRL(), x, y, 1, restarts=restarts)
    for mine, theirs in zip(by_loop(net_of(), DRTRL(), x, y, restarts), one, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


def test_a_forgotten_context_is_noticed_once_there_is_a_state() -> None:
    x, _ = data()
    net = net_of()
    OTTT().attach(net)
    with in_chunk(net, Chunk(K)):
        net(x[:K].flatten(0, 1)).sum().backward()
    with pytest.raises(StateShapeError, match=r"within a sequence both stay the same"):
        net(x[K : 2 * K].flatten(0, 1))
    plain = nn.Sequential(ETBlock(ETLinear(6, 3), LIF())).double()
    OTTT().attach(plain)
    plain(x[0]).sum().backward()
    with pytest.raises(StateShapeError, match=r"inside in_chunk\(net, Chunk\(K\)\)"):
        plain(x[:K].flatten(0, 1))


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("between", [(), (LIF(),)], ids=["blocks", "a neuron alone"])
def test_a_chunk_that_does_not_fit_the_rows_is_told_so(steps: int, between: tuple[nn.Module, ...]) -> None:
    x, _ = data()
    net = between[0] if between else net_of()
    with in_chunk(net, Chunk(4)), torch.no_grad():
        net(x[:4].flatten(0, 1))
    told = rf"a chunk of {steps} steps met \[12, 6\], {12 // steps} rows a step, .* before has 4: .* K may not fit"
    with pytest.raises(StateShapeError, match=told), in_chunk(net, Chunk(steps)), torch.no_grad():
        net(x[4:7].flatten(0, 1))
    with in_chunk(net, Chunk(3)), torch.no_grad():
        assert net(x[4:7].flatten(0, 1)).shape[0] == 12


@pytest.mark.parametrize("steps", [0, -1, 2.5, "3", None, True])
def test_what_is_no_number_of_steps_is_refused(steps: Any) -> None:
    with (
        pytest.raises(ValueError, match=rf"Chunk\({steps!r}\): .* from 1; write Chunk\(16\)"),
        in_chunk(net_of(), Chunk(steps)),
    ):
        pass


def test_backward_comes_once_for_each_chunk_and_before_the_next() -> None:
    x, _ = data()
    net = net_of()
    DRTRL().attach(net)
    with in_chunk(net, Chunk(K)):
        early = net(x[:K].flatten(0, 1))
        late = net(x[K : 2 * K].flatten(0, 1))
    late.sum().backward()
    with pytest.raises(RuntimeError, match="a second time"):
        late.sum().backward()
    with pytest.raises(StaleTraceError, match="stepped again"):
        early.sum().backward()


def test_what_is_no_chunk(unchecked: None) -> None:
    x, _ = data()
    net = net_of()
    OTTT().attach(net)
    with (
        pytest.raises(StateShapeError, match=r"a chunk of 5 steps met \[12, 6\].*flatten\(0, 1\)"),
        in_chunk(net, Chunk(5)),
    ):
        net(x[:3].flatten(0, 1))
    reset(net)
    for steps in (0, 1.5, True):
        with pytest.raises(ValueError, match=r"from 1; write Chunk\(16\)"), in_chunk(net, Chunk(steps)):  # type: ignore[arg-type]
            pass
    with pytest.raises(TypeError, match=r"write in_chunk\(net, Chunk\(16\)\)"), in_chunk(net, 3):  # type: ignore[arg-type]
        pass
    with pytest.raises(ValueError, match="boolean mask"), in_chunk(net, Chunk(2, torch.zeros(3, 4) > 0)):
        pass
    with in_chunk(net, Chunk(2)), pytest.raises(RuntimeError, match="inside in_chunk"), in_chunk(net, Chunk(2)):
        pass
    with pytest.raises(RuleChoiceError, match="TimeConstantDropout"), in_chunk(net_of(nn.Dropout()), Chunk(2)):
        pass
    with pytest.raises(RuleChoiceError, match="statistics"), in_chunk(net_of(nn.BatchNorm1d(9)), Chunk(2)):
        pass
    assert all(vars(module).get("chunk") is None for module in net.modules())


@pytest.mark.parametrize("chunk", [2, K, STEPS])
def test_random_numbers_are_those_of_single_steps(chunk: int) -> None:
    """Two masks that last a sequence, rows that restart, and a teacher that fires at random: draw for draw."""
    x, y = data()
    restarts = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    restarts[1, 0] = restarts[2, 1] = restarts[4, 3] = restarts[4, 0] = True

    def learned(length: int, seed: int = 5) -> tuple[list[Tensor], Tensor]:
        torch.manual_seed(0)
        layers = [ETBlock(ETLinear(6, 9), LIF(decay=0.8, threshold=0.3)), TimeConstantDropout(0.3)]
        net = nn.Sequential(TimeConstantDropout(0.3), *layers, ETBlock(ETLinear(9, 3), LI(decay=0.7))).double()
        learner = OnlineLearner(
            net, ETLP(steps=2), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1), chunk=length
        )
        torch.manual_seed(seed)
        for _ in range(2):
            learner.learn(x, y, restarts=restarts)
        return [p.detach().clone() for p in net.parameters()], torch.get_rng_state()

    (one, after), (many, also), (other, _) = learned(1), learned(chunk), learned(1, seed=6)
    torch.testing.assert_close(many, one, rtol=1e-12, atol=1e-14)
    assert torch.equal(after, also)
    assert float((one[0] - other[0]).norm()) > 1e-4  # control: the numbers drawn matter


def test_rows_that_restart_draw_anew() -> None:
    dropout = TimeConstantDropout(0.5)
    ones = torch.ones(3, 200)
    masks = [dropout(ones)]
    for _ in range(3):
        dropout.reset(torch.tensor([True, False, False]))
        masks.append(dropout(ones))
    rows = torch.stack([mask[0] for mask in masks])
    assert len(torch.unique(rows, dim=0)) == 4
    assert 0.35 < float((rows > 0).float().mean()) < 0.65
    assert all(torch.equal(mask[1:], masks[0][1:]) for mask in masks)


@pytest.mark.parametrize("rule", [OTTT(), DRTRL(), EProp(kappa=0.5)], ids=lambda rule: rule.name)
@pytest.mark.parametrize("when", ["before its backward", "before the next chunk"])
def test_an_input_that_is_written_to_too_early_raises(rule: LearningRule, when: str) -> None:
    net, (x, _) = net_of(), data()
    buffer = x[:K].clone()
    rule.attach(net, chunk=K)
    with in_chunk(net, Chunk(K)):
        loss = net(buffer.flatten(0, 1)).square().sum()
        if when == "before its backward":
            buffer.copy_(x[K : 2 * K])
            with pytest.raises(StaleTraceError, match=r"changed in place .* x\.clone\(\)"):
                loss.backward()
            return
        loss.backward()
        buffer.copy_(x[K : 2 * K])
        if rule.name == "OTTT":  # its trace had taken the chunk in
            assert net(buffer.flatten(0, 1)).isfinite().all()
            return
        with pytest.raises(StaleTraceError, match=r"changed in place .* x\.clone\(\)"):
            net(buffer.flatten(0, 1))


@pytest.mark.parametrize("rule", [DRTRL(), EProp(kappa=0.5)], ids=lambda rule: rule.name)
def test_an_input_that_is_handed_over_as_a_copy_may_be_written_to(rule: LearningRule) -> None:
    found = []
    for reuses in (False, True):
        net, (x, y) = net_of(), data()
        rule.attach(net, chunk=K)
        buffer = torch.zeros_like(x[:K])
        for begin in (0, K):
            steps = buffer.copy_(x[begin : begin + K]).clone() if reuses else x[begin : begin + K]
            with in_chunk(net, Chunk(K)):
                F.cross_entropy(net(steps.flatten(0, 1)), y.repeat(K)).backward()
        found.append([parameter.grad for parameter in net.parameters()])
    assert all(float(gradient.norm()) > 0 for gradient in found[0])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
