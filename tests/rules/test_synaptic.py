"""D-RTRL against BPTT (O6, O7): every reset, neuron and parameter, float64, with controls that must differ."""

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from oracles.networks import error, mlp, online_gradients, oracle, problem, scaled, sequence
from test_custom_neuron import FiringOnMixture, Resetting, ResonateAndFire
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    ALIF,
    DRTRL,
    IF,
    LI,
    LIF,
    OTTT,
    CubaLIF,
    ETBlock,
    ETConv2d,
    ETLinear,
    LearningRule,
    Neuron,
    OnlineLearner,
    Readout,
    RuleChoiceError,
    StaleTraceError,
    attach,
    record_phases,
    reset,
)
from snnlearn.functional import RESETS

pytestmark = pytest.mark.usefixtures("unchecked")
EXACT = 1e-12
CASES = list(itertools.product(RESETS, (True, False)))


class Learned(Neuron):
    """A decay for the layer and a threshold per unit, both learned; the reset is seen by the gradient."""

    state_names = ("v",)

    def __init__(self, units: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.tensor(0.7))
        self.threshold = nn.Parameter(torch.linspace(0.8, 1.2, units))

    def step(self, y: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        v = self.decay * state[0] + y
        spike = self.spike(v - self.threshold)
        return spike, (v - self.threshold * spike,)


def assert_exact(net: nn.Sequential, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Each block's parameters against BPTT with the later blocks cut; return the gradients."""
    report = DRTRL().attach(net)
    assert all(row.exact for row in report)
    mine = online_gradients(net, DRTRL(), x, y)
    blocks = [str(i) for i, block in enumerate(net) if isinstance(block, ETBlock)]
    assert mine.keys() == dict(net.named_parameters()).keys()
    for name, gradient in mine.items():
        true = oracle(net, x, y, cut=[b for b in blocks if b > name[0]])
        assert error(gradient, true[name]) < EXACT, name
    return mine


@pytest.mark.parametrize(("how", "detach"), CASES)
@pytest.mark.parametrize("kind", [LIF, CubaLIF, ALIF, IF])
def test_o6_o7_every_neuron_and_reset(kind, how: str, detach: bool) -> None:  # type: ignore[no-untyped-def]
    net, x, y = problem(mlp(lambda: kind(reset=how, detach_reset=detach)), sequence(7))
    mine = assert_exact(net, x, y)
    full = oracle(net, x, y)
    assert error(mine["1.connection.weight"], full["1.connection.weight"]) < EXACT  # the last one with memory
    assert error(mine["0.connection.weight"], full["0.connection.weight"]) > 1e-3  # control: the first is cut
    if kind is ALIF or how == "hard" or (how == "soft" and not detach):
        factored = online_gradients(net, OTTT(), x, y)
        assert (
            error(factored["1.connection.weight"], full["1.connection.weight"]) > 1e-3
        )  # control: one decay is not it


@pytest.mark.parametrize("kind", [ResonateAndFire, Resetting, FiringOnMixture])
def test_a_neuron_never_seen_before(kind: Callable[[], Neuron]) -> None:
    assert_exact(*problem(mlp(kind), sequence(7)))


def test_constants_per_unit() -> None:
    net, x, y = problem(mlp(lambda: LIF(decay=torch.linspace(0.3, 0.9, 9)), sizes=(7, 9)), sequence(7))
    mine = assert_exact(net, x, y)
    factored = online_gradients(net, OTTT(), x, y)
    assert error(factored["0.connection.weight"], mine["0.connection.weight"]) > 1e-2


def test_parameters_of_the_neuron() -> None:
    blocks = [ETBlock(ETLinear(7, 9), Learned(9)), ETBlock(ETLinear(9, 8, bias=False), Learned(8))]
    net = scaled(nn.Sequential(*blocks, Readout(nn.Linear(8, 3))))
    net, x, y = problem(net, sequence(7))
    mine = assert_exact(net, x, y)
    assert {"0.neuron.decay", "0.neuron.threshold", "1.neuron.decay"} <= mine.keys()
    this_step = oracle(net, x, y, cut="all")
    assert error(this_step["1.neuron.decay"], mine["1.neuron.decay"]) > 1e-2  # control: the past matters


def test_a_leaky_readout_is_exact_too() -> None:
    net = scaled(nn.Sequential(ETBlock(ETLinear(7, 9), LIF(reset="hard")), ETBlock(ETLinear(9, 3), LI(tau=4.0))))
    assert_exact(*problem(net, sequence(7)))


def test_a_single_step_is_bptt() -> None:
    net, x, y = problem(mlp(lambda: ALIF(reset="hard")), sequence(7, steps=1))
    true = oracle(net, x, y)
    for name, gradient in online_gradients(net, DRTRL(), x, y).items():
        assert error(gradient, true[name]) < EXACT, name


def test_further_leading_dimensions() -> None:
    """[B, S, I]: one neuron per place and unit, weights shared by the places."""
    net, x, y = problem(mlp(lambda: LIF(reset="hard"), sizes=(4, 9)), sequence(6, 4))
    mine = online_gradients(net, DRTRL(), x, y, loss=lambda out, y: F.cross_entropy(out.mean(1), y))
    true = oracle(net, x, y, loss=lambda out, y: F.cross_entropy(out.mean(1), y))
    for name, gradient in mine.items():
        assert error(gradient, true[name]) < EXACT, name


def test_the_learner_and_rows_and_restarts() -> None:
    """A learner's update is the plain loop's; a reset row is a row afresh; two sequences are two runs."""
    net, x, y = problem(mlp(lambda: LIF(reset="hard")), sequence(7))
    mine = online_gradients(net, DRTRL(), x, y)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    learner = OnlineLearner(net, DRTRL(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=1.0))
    result = learner.learn(x, y)
    assert result.trace_norms["1"] > 0
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(before[name] - parameter.detach(), mine[name], rtol=1e-10, atol=1e-12)
    fresh = copy.deepcopy(net)
    rows = torch.tensor([True, False, False, False, False])
    attach(net, DRTRL())
    attach(fresh, DRTRL())
    for x_t in x[:3]:
        net(x_t)
    reset(net, rows)
    for x_t in x[3:6]:
        F.cross_entropy(net(x_t)[:1], y[:1]).backward()
        F.cross_entropy(fresh(x_t[:1]), y[:1]).backward()
        for (name, a), b in zip(net.named_parameters(), fresh.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, msg=name)


def test_the_clock() -> None:
    net, x, y = problem(mlp(lambda: LIF()), sequence(7))
    attach(net, DRTRL())
    first = F.cross_entropy(net(x[0]), y)
    F.cross_entropy(net(x[1]), y).backward()
    with pytest.raises(StaleTraceError, match="expected the trace at tick"):
        first.backward()
    reset(net)
    with torch.no_grad():
        net(x[0])
    with pytest.raises(StaleTraceError, match="moved 1 step"):
        net(x[1])
    reset(net)
    net.eval()
    with pytest.raises(StaleTraceError, match=r"made in eval\(\)"):
        F.cross_entropy(net(x[0]), y).backward()
    net.train()
    reset(net)
    net.zero_grad()
    loss = F.cross_entropy(net(x[0]), y)
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    loss.backward()
    for gradient, parameter in zip(once, net.parameters(), strict=True):
        assert torch.equal(gradient, parameter.grad)  # type: ignore[arg-type]


def test_the_phases_in_order() -> None:
    net, x, y = problem(mlp(lambda: LIF()), sequence(7))
    attach(net, DRTRL())
    with record_phases(net) as events:
        for x_t in x[:2]:
            F.cross_entropy(net(x_t), y).backward()
    order = [(event.block, event.phase.name) for event in events[: len(events) // 2]]
    forward, backward = ("FORWARD", "TRACE_UPDATE"), ("NEURON_BACKWARD", "ET_BACKWARD")
    assert order == [("0", p) for p in forward] + [("1", p) for p in forward] + [
        (block, p) for block in ("1", "0") for p in backward
    ]


def conv_net() -> nn.Module:
    return nn.Sequential(ETBlock(ETConv2d(1, 2, 3), LIF()), nn.Flatten(), ETBlock(ETLinear(8, 3), LI()))


def normed() -> nn.Module:
    return ETBlock(ETLinear(4, 3), LIF(), norm=nn.LayerNorm(3))


def odd_parameter() -> nn.Module:
    return ETBlock(ETLinear(4, 3), Learned(2))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (conv_net, "attach OTTT\\(\\) to that block"),
        (normed, "move it before the block"),
        (odd_parameter, "'threshold' in the block has shape \\[2\\]"),
    ],
)
def test_what_has_no_trace_per_synapse_is_refused(build: Callable[[], nn.Module], words: str) -> None:
    net = build()
    with pytest.raises(RuleChoiceError, match=words):
        attach(net, DRTRL())


@pytest.mark.parametrize(
    ("transition", "storage", "words"),
    [("leak", "synaptic", "write storage='pre', or transition='local'"), ("local", "pre", "write storage='synaptic'")],
)
def test_illegal_points(transition: str, storage: str, words: str) -> None:
    with pytest.raises(RuleChoiceError, match=words):
        LearningRule(transition=transition, storage=storage)
