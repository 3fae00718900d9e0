"""Normalisation inside a block: gain and bias against BPTT, running statistics, and the life of their trace."""

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from oracles.networks import error, labels, online_gradients, oracle, problem, sequence
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    DRTRL,
    LIF,
    OTTT,
    SLTT,
    CubaLIF,
    ETBlock,
    ETConv1d,
    ETConv2d,
    ETConv3d,
    ETLinear,
    Neuron,
    OnlineLearner,
    Readout,
    StaleTraceError,
    attach,
    bptt_gradients,
    reset,
)
from snnlearn.functional import FixedTrace, et_affine
from snnlearn.nn import Connection, NormTrace

EXACT = 1e-12
pytestmark = pytest.mark.usefixtures("unchecked")


class Doubled(nn.BatchNorm1d):
    """A subclass whose forward a trace cannot know."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def network(connection: Connection, norm: nn.Module, flat: int, neuron: Callable[[], Neuron] = LIF) -> nn.Module:
    """A normalised block, a block with memory above it, and a static readout."""
    for name, parameter in norm.named_parameters():  # so that the neurons fire whatever the scale of the weights
        nn.init.uniform_(parameter, *((0.0, 0.3) if name == "bias" else (0.6, 1.2)))
    layers: list[tuple[str, nn.Module]] = [("first", ETBlock(connection, neuron(), norm)), ("flatten", nn.Flatten())]
    layers += [("second", ETBlock(ETLinear(flat, 8), LIF(decay=0.6))), ("readout", Readout(nn.Linear(8, 3)))]
    return nn.Sequential(OrderedDict(layers)).double()


def maps() -> Connection:
    return ETConv2d(2, 4, 3, bias=False)


def lines() -> Connection:
    return ETConv1d(2, 4, 3, bias=False)


def two_leaks() -> CubaLIF:
    return CubaLIF(decay=0.5, decay_synapse=0.2)


Case = tuple[Callable[[], nn.Module], tuple[int, ...]]
CASES: dict[str, Case] = {
    "batch 1d": (lambda: network(ETLinear(7, 9, bias=False), nn.BatchNorm1d(9), 9), (7,)),
    "batch 1d, cumulative": (lambda: network(ETLinear(7, 9, bias=False), nn.BatchNorm1d(9, momentum=None), 9), (7,)),
    "batch 1d of maps": (lambda: network(lines(), nn.BatchNorm1d(4), 16), (2, 6)),
    "batch 2d": (lambda: network(maps(), nn.BatchNorm2d(4), 24), (2, 5, 4)),
    "batch 2d, two traces": (
        lambda: network(
            ETConv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), 24, lambda: CubaLIF(decay=0.7, decay_synapse=0.4)
        ),
        (2, 5, 4),
    ),
    "batch 3d": (lambda: network(ETConv3d(2, 4, 2, bias=False), nn.BatchNorm3d(4), 32), (2, 3, 3, 3)),
    "group": (lambda: network(maps(), nn.GroupNorm(2, 4), 24), (2, 5, 4)),
    "layer": (lambda: network(ETLinear(7, 9, bias=False), nn.LayerNorm(9), 9), (7,)),
    "layer of maps, no bias": (
        lambda: network(lines(), nn.LayerNorm((4, 4), bias=False), 16),
        (2, 6),
    ),
    "root mean square": (lambda: network(ETLinear(7, 9, bias=False), nn.RMSNorm(9), 9), (7,)),
}


def norm_names(net: nn.Module) -> list[str]:
    return [f"first.norm.{name}" for name, _ in net.first.norm.named_parameters()]


@pytest.mark.parametrize("name", CASES)
def test_gain_and_bias_are_exact_by_statistics_of_the_step(name: str) -> None:
    build, shape = CASES[name]
    net, x, y = problem(build(), sequence(*shape))
    mine, true = online_gradients(net, OTTT(), x, y), oracle(net, x, y, ["second"])
    spatial, cut_all = online_gradients(net, SLTT(), x, y), oracle(net, x, y, "all")
    report = attach(net, OTTT())
    for parameter in norm_names(net):
        assert error(mine[parameter], true[parameter]) < EXACT, parameter
        assert error(spatial[parameter], cut_all[parameter]) < EXACT, parameter
        assert error(spatial[parameter], true[parameter]) > 1e-2, parameter
        assert report[parameter].exact
        assert report[parameter].yardstick == report["first.connection.weight"].yardstick
    for parameter in ("second.connection.weight", "second.connection.bias", "readout.connection.weight"):
        assert error(mine[parameter], oracle(net, x, y)[parameter]) < EXACT, parameter
    assert error(mine["first.connection.weight"], true["first.connection.weight"]) > 1e-2
    assert not report["first.connection.weight"].exact


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("batch")])
def test_everything_is_exact_by_frozen_statistics(name: str) -> None:
    build, shape = CASES[name]
    net, x, y = problem(build(), sequence(*shape))
    net.first.norm.eval()
    report = attach(net, OTTT())
    mine, true = online_gradients(net, OTTT(), x, y), oracle(net, x, y, ["second"])
    for parameter in (p for p in mine if p.startswith("first")):
        assert error(mine[parameter], true[parameter]) < EXACT, parameter
        assert report[parameter].exact, parameter
    assert "stays in eval()" in report["first.connection.weight"].why
    net.eval()
    assert not attach(net, OTTT())["first.connection.weight"].exact, "a network in eval() says nothing about training"


@pytest.mark.parametrize("how", ["hard", "soft"])
def test_the_neurons_own_caveats_stay(how: str) -> None:
    net = network(ETLinear(7, 9, bias=False), nn.BatchNorm1d(9), 9, lambda: LIF(reset=how, detach_reset=how == "soft"))
    net, x, y = problem(net, sequence(7))
    mine, true, report = online_gradients(net, OTTT(), x, y), oracle(net, x, y, ["second"]), attach(net, OTTT())
    for parameter in norm_names(net):
        assert (error(mine[parameter], true[parameter]) < EXACT) == report[parameter].exact == (how == "soft")


@pytest.mark.parametrize("name", CASES)
def test_values_and_running_statistics_are_the_modules_own(name: str) -> None:
    build, shape = CASES[name]
    net, x, _ = problem(build(), sequence(*shape))
    twin = copy.deepcopy(net)
    attach(net, OTTT())
    attach(twin, SLTT())
    assert isinstance(net.first.norm_trace, NormTrace)
    assert twin.first.norm_trace is None
    for mode in (True, False):
        for each in (net, twin):
            each.first.norm.train(mode)
        for x_t in x:
            torch.testing.assert_close(net(x_t), twin(x_t), rtol=0, atol=1e-12)
        for (key, mine), (_, true) in zip(net.first.norm.named_buffers(), twin.first.norm.named_buffers(), strict=True):
            torch.testing.assert_close(mine, true, rtol=0, atol=1e-12, msg=key)
        reset(net)
        reset(twin)
    assert set(net.state_dict()) == set(build().state_dict())


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(9, affine=False), nn.Identity(), Doubled(9), nn.InstanceNorm1d(9, affine=True)], ids=str
)
def test_other_modules_stay_as_they_were(norm: nn.Module) -> None:
    """No trace, this step's share, and a report that says so."""
    net = nn.Sequential(
        ETBlock(ETConv1d(2, 9, 1, bias=False), LIF(), norm), nn.Flatten(), Readout(nn.Linear(9 * 4, 3))
    ).double()
    net, x, y = problem(net, sequence(2, 4))
    mine, spatial = online_gradients(net, OTTT(), x, y), oracle(net, x, y, "all")
    report = attach(net, OTTT())
    assert net[0].norm_trace is None
    for name in (name for name in mine if ".norm." in name):
        assert not report[name].exact
        assert error(mine[name], spatial[name]) < EXACT
    assert report["0.connection.weight"].exact == isinstance(norm, nn.Identity)


def test_attaching_again_takes_it_away() -> None:
    net = network(ETLinear(7, 9, bias=False), nn.BatchNorm1d(9), 9)
    attach(net, OTTT())
    assert isinstance(net.first.norm_trace, NormTrace)
    attach(net, DRTRL())  # one step, norm included
    assert net.first.norm_trace is None
    attach(net, OTTT())
    assert isinstance(net.first.norm_trace, NormTrace)
    attach(net, SLTT())
    assert net.first.norm_trace is None


def test_the_trace_by_hand() -> None:
    """Layer normalisation of (1, 3) is (-1, 1); decay 0.5 gives traces of 1, 1.5, 1.75."""
    block = ETBlock(ETLinear(2, 2, bias=False), LIF(decay=0.5), nn.LayerNorm(2, eps=0.0)).double()
    attach(block, OTTT())
    with torch.no_grad():
        block.connection.weight.copy_(torch.eye(2))
    for expected in (1.0, 1.5, 1.75):
        block(torch.tensor([[1.0, 3.0]]).double())
        torch.testing.assert_close(block.norm_trace.values[0], torch.tensor([[-expected, expected]]).double())
        assert block.norm_trace.bias_values == (expected,)


# Clock, reset, copies, moves, memory.


@pytest.fixture
def net() -> nn.Module:
    built, _, _ = problem(network(ETLinear(7, 9, bias=False), nn.BatchNorm1d(9), 9), sequence(7))
    built.first.connection.requires_grad_(False)  # so that only the trace of the norm can complain
    attach(built, OTTT())
    return built


def test_wrong_orders_raise(net: nn.Module) -> None:
    x = sequence(7)
    late = net.first(x[0])
    net.first(x[1])
    with pytest.raises(StaleTraceError, match=r"^first: .*stepped again"):
        late.sum().backward()
    late = net.first(x[2])
    reset(net)
    with pytest.raises(StaleTraceError):
        late.sum().backward()
    net.first(x[0])
    with torch.no_grad():
        net.first(x[1])
    with pytest.raises(StaleTraceError, match=r"under no_grad"):
        net.first(x[2])
    reset(net)
    net.eval()
    with pytest.raises(StaleTraceError, match=r"eval\(\)"):
        net.first(x[0]).sum().backward()
    assert net.first.norm_trace.values is None
    value = et_affine(x[0], FixedTrace(x[0]), gain := torch.ones(7, dtype=torch.float64, requires_grad=True))
    with pytest.raises(RuntimeError, match="create_graph=True reached a normalisation"):
        torch.autograd.grad(value.sum(), gain, create_graph=True)


def test_a_hook_on_the_norm_is_refused_not_skipped(net: nn.Module) -> None:
    handle = net.first.norm.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match=r"^first: the BatchNorm1d has a hook.*hook the ETBlock"):
        net(sequence(7)[0])
    handle.remove()
    reset(net)
    net(sequence(7)[0]).sum().backward()


def test_a_frozen_norm_reads_no_trace_and_lets_the_gradient_pass(net: nn.Module) -> None:
    net.first.connection.requires_grad_(True)
    net.first.norm.requires_grad_(False)
    net(sequence(7)[0]).sum().backward()
    assert net.first.norm.weight.grad is None
    assert float(net.first.connection.weight.grad.norm()) > 0


def gradient_of(net: nn.Module) -> Tensor:
    gradient: Tensor = net.first.norm.weight.grad.clone()
    net.zero_grad()
    return gradient


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])  # noqa: S301
def test_copies_go_on_alone(copier: Callable[[nn.Module], nn.Module], net: nn.Module) -> None:
    x = sequence(7)
    net(x[0]).sum().backward()
    net.zero_grad()
    twin = copier(net)
    before = net.first.norm_trace.values.clone()
    twin(x[1]).sum().backward()
    assert torch.equal(net.first.norm_trace.values, before)
    net(x[1]).sum().backward()
    assert torch.equal(gradient_of(twin), gradient_of(net))


def test_two_runs_with_a_reset_are_two_runs_and_rows_start_afresh(net: nn.Module) -> None:
    x = sequence(7)

    def run() -> Tensor:
        for x_t in x:
            net(x_t).square().sum().backward()
        return gradient_of(net)

    first = run()
    assert not torch.equal(run(), first)
    reset(net)
    assert torch.equal(run(), first)
    kept = net.first.norm_trace.values.clone()
    reset(net, torch.tensor([True, False, False, False, False]))
    assert not net.first.norm_trace.values[:, 0].any()
    assert torch.equal(net.first.norm_trace.values[:, 1:], kept[:, 1:])
    assert net.first.norm_trace.bias_values[0, 0] == 0
    net(x[0]).square().sum().backward()


def test_rows_that_start_afresh_count_from_there() -> None:
    """Row 0 is reset after two steps: its share is that of a sequence that begins there (frozen statistics)."""
    net, x, _ = problem(network(ETLinear(7, 9, bias=False), nn.BatchNorm1d(9).eval(), 9), sequence(7, steps=4))
    net.first.norm.eval()
    attach(net, OTTT())
    alone: dict[str, Tensor] = {}
    for name, steps, rows in (("start", x[2:], [0]), ("rest", x, [1, 2, 3, 4]), ("before", x[:2], [0])):
        net.zero_grad()
        reset(net)
        for x_t in steps:
            net(x_t[rows]).square().sum().backward()
        alone[name] = torch.cat([net.first.norm.weight.grad, net.first.norm.bias.grad])
    net.zero_grad()
    reset(net)
    for step, x_t in enumerate(x):
        if step == 2:
            reset(net, torch.tensor([True, False, False, False, False]))
        net(x_t).square().sum().backward()
    together = torch.cat([net.first.norm.weight.grad, net.first.norm.bias.grad])
    torch.testing.assert_close(together, alone["start"] + alone["rest"] + alone["before"], rtol=0, atol=1e-11)


def test_a_move_keeps_the_trace_and_a_pending_backward_raises(net: nn.Module) -> None:
    x = sequence(7)
    net(x[0]).sum().backward()
    net.zero_grad()
    kept = net.first.norm_trace.values.float()
    late = net.first(x[1])
    net.float()
    assert net.first.norm_trace.values.dtype == torch.float32
    assert not torch.equal(net.first.norm_trace.values, kept)  # one more step is in it
    with pytest.raises(StaleTraceError):
        late.sum().backward()
    reset(net)
    assert net(x[0].float()).dtype == torch.float32


def test_the_trace_is_as_large_as_one_value_at_any_time(net: nn.Module) -> None:
    for x_t in sequence(7, steps=40):
        net(x_t).sum().backward()
        assert net.first.norm_trace.values.shape == (1, 5, 9)
        assert not net.first.norm_trace.values.requires_grad


def test_the_oracle_and_the_learner_leave_each_other_alone(net: nn.Module) -> None:
    x, y = sequence(7), labels()
    net(x[0]).sum().backward()
    before = (net.first.norm_trace.values.clone(), net.first.norm_trace.tick)
    bptt_gradients(net, x, y)
    assert torch.equal(net.first.norm_trace.values, before[0])
    assert net.first.norm_trace.tick == before[1]
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1))
    gain = net.first.norm.weight.detach().clone()
    assert learner.learn(x, y).updates == 1
    learner.evaluate(x, y)
    assert learner.learn(x, y, keep_state=True).updates == 1
    assert not torch.equal(gain, net.first.norm.weight)
