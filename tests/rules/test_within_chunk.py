"""Convolutions under rules per synapse: exact where one chunk is the sequence, else refused, or truncated aloud."""

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    ALIF,
    DRTRL,
    LI,
    LIF,
    CubaLIF,
    EProp,
    ETBlock,
    ETConv1d,
    ETConv2d,
    ETConv3d,
    ETConvTranspose2d,
    ETLinear,
    OnlineLearner,
    fidelity,
    reset,
)
from snnlearn.engine import bptt_gradients
from snnlearn.engine.fidelity_report import HOLDS
from snnlearn.nn import StaleTraceError
from snnlearn.nn.chunk import Chunk, in_chunk
from snnlearn.rules import OTPE, LearningRule, RuleChoiceError, SuperSpike

STEPS, BATCH, CLASSES = 6, 3, 3
LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "1d": (lambda: ETConv1d(2, 3, 3, stride=2, padding=1), (2, 8)),
    "2d": (lambda: ETConv2d(2, 4, 3, padding="same", padding_mode="circular", groups=2), (2, 4, 3)),
    "3d": (lambda: ETConv3d(1, 2, 2, bias=False), (1, 3, 3, 2)),
    "transposed": (lambda: ETConvTranspose2d(2, 3, 2, stride=2, dilation=2), (2, 2, 2)),
}
NEURONS = {
    "lif": lambda: LIF(decay=0.7, threshold=0.4),
    "hard": lambda: LIF(decay=0.7, threshold=0.4, reset="hard", detach_reset=False),
    "cuba": lambda: CubaLIF(threshold=0.4),
    "alif": lambda: ALIF(decay=0.7, threshold=0.4, learn=("decay", "adaptation")),
}


def net_of(layer: str, neuron: str, deep: bool = False) -> nn.Sequential:
    """A convolution, in the middle another, and a leaky readout, in float64."""
    torch.manual_seed(3)
    make, shape = LAYERS[layer]
    first = ETBlock(make(), NEURONS[neuron]())
    channels, *places = first.connection(torch.zeros(1, *shape)).shape[1:]
    kinds = {1: ETConv1d, 2: ETConv2d, 3: ETConv3d}
    middle = [ETBlock(kinds[len(places)](channels, channels, 1), NEURONS[neuron]())] if deep else []
    units = channels * int(torch.tensor(places).prod())
    net = nn.Sequential(first, *middle, nn.Flatten(), ETBlock(ETLinear(units, CLASSES), LI(decay=0.8))).double()
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, ETBlock):
                module.connection.weight.mul_(6.0 if layer == "transposed" else 2.0)
    return net


def data(layer: str, steps: int = STEPS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(steps, BATCH, *LAYERS[layer][1], generator=generator, dtype=torch.float64)
    return (x < 0.5).double(), torch.arange(BATCH) % CLASSES


class Recorder(torch.optim.SGD):
    """Keep the gradient of the one update."""

    seen: tuple[Tensor | None, ...] = ()

    def step(self, closure: Any = None) -> None:
        self.seen = tuple(p.grad.clone() if p.grad is not None else None for p in self.param_groups[0]["params"])


def learned(
    net: nn.Module, rule: LearningRule, x: Tensor, y: Any, chunk: int | str, **options: Any
) -> dict[str, Tensor]:
    """The gradient of one sequence, and a look at whether the network fires."""
    net = copy.deepcopy(net)
    learner = OnlineLearner(net, rule, F.cross_entropy, Recorder(net.parameters(), lr=0.0), chunk=chunk)
    result = learner.learn(x, y, **options)
    assert all(0.02 < rate < 0.8 for rate in result.firing_rates.values()), result.firing_rates
    named = [name for name, _ in net.named_parameters()]
    return {n: g for n, g in zip(named, learner.optimizer.seen, strict=True) if g is not None}


def far(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / one.norm())


@pytest.mark.parametrize(
    ("layer", "neuron"), [("1d", "hard"), ("2d", "alif"), ("2d", "cuba"), ("3d", "lif"), ("transposed", "alif")]
)
def test_one_chunk_is_backpropagation_through_time_within_the_layer(layer: str, neuron: str) -> None:
    net, (x, y) = net_of(layer, neuron, deep=True), data(layer)
    later = {"0": ["1", "3"], "1": ["3"], "3": []}
    found = learned(net, DRTRL(), x, y, STEPS)
    assert learned(net, DRTRL(), x, y, STEPS + 4).keys() == found.keys()
    for block, cut in later.items():
        truth = bptt_gradients(net, x, y, cut=cut)
        own = [name for name in truth if name.startswith(f"{block}.")]
        for name in own:
            assert float(truth[name].norm()) > 1e-8
            assert far(truth[name], found[name]) < 1e-12, name
    spatial = bptt_gradients(net, x, y, cut="all")
    assert far(spatial["0.connection.weight"], found["0.connection.weight"]) > 1e-3  # control: the past counts


@pytest.mark.parametrize("rule", [OTPE(), EProp(broadcast="random", kappa=0.6), SuperSpike(), EProp(kappa=0.8)])
def test_filters_meet_the_eligibility_of_each_place(rule: LearningRule) -> None:
    """A convolution of one place is a linear layer, whose trace is kept: the same numbers, filters and all."""
    torch.manual_seed(0)
    wide = ETBlock(ETConv2d(2, 5, (2, 3)), LIF(decay=0.7, threshold=0.3))
    plain = ETBlock(ETLinear(12, 5), LIF(decay=0.7, threshold=0.3))
    readout = ETBlock(ETLinear(5, CLASSES), LI(decay=0.8))
    with torch.no_grad():
        wide.connection.weight.mul_(3.0)
        plain.connection.weight.copy_(wide.connection.weight.flatten(1))
        plain.connection.bias.copy_(wide.connection.bias)
    x = (torch.rand(STEPS, BATCH, 12, dtype=torch.float64) < 0.5).double()
    y = torch.arange(BATCH) % CLASSES
    if rule.signal == "symmetric":
        rule = EProp(broadcast="spatial", kappa=0.8)
    dense = learned(nn.Sequential(plain, copy.deepcopy(readout)).double(), rule, x, y, 1)
    maps = nn.Sequential(nn.Unflatten(1, (2, 2, 3)), wide, nn.Flatten(), readout).double()
    found = learned(maps, rule, x, y, STEPS)
    assert float(dense["0.connection.weight"].norm()) > 1e-6
    assert far(dense["0.connection.weight"], found["1.connection.weight"].flatten(1)) < 1e-12
    assert far(dense["0.connection.bias"], found["1.connection.bias"]) < 1e-12


def test_rows_may_restart_and_steps_may_have_no_target() -> None:
    net, (x, y) = net_of("2d", "alif"), data("2d")
    restarts = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    restarts[3, 0] = restarts[0, 1] = restarts[5, 2] = True
    found = learned(net, DRTRL(), x, y, STEPS, restarts=restarts)
    parts = [learned(net, DRTRL(), x[a:b, :1], y[:1], STEPS) for a, b in ((0, 3), (3, STEPS))]
    alone = learned(net, DRTRL(), x[:, 1:2], y[1:2], STEPS)
    late = [learned(net, DRTRL(), x[a:b, 2:], y[2:], STEPS) for a, b in ((0, 5), (5, STEPS))]
    for name, gradient in found.items():
        by_row = (3 * parts[0][name] + 3 * parts[1][name]) / 6 + alone[name] + (5 * late[0][name] + late[1][name]) / 6
        assert far(gradient, by_row / 3) < 1e-12, name
    targets = [None, y, None, None, y, y]
    some = learned(net, DRTRL(), x, targets, STEPS, per_step_target=True)
    truth = bptt_gradients(net, x, targets, cut=["2"], per_step_target=True)
    assert far(truth["0.connection.weight"], some["0.connection.weight"]) < 1e-12


def test_what_is_dropped_is_reported_and_measured() -> None:
    net, (x, y) = net_of("2d", "lif"), data("2d")
    rule = DRTRL(truncate_trace=True)
    exact = learned(net, DRTRL(), x, y, STEPS)["0.connection.weight"]
    assert far(exact, learned(net, rule, x, y, STEPS)["0.connection.weight"]) < 1e-12
    by_length = [far(exact, learned(net, rule, x, y, chunk)["0.connection.weight"]) for chunk in (1, 2, 3)]
    assert all(1e-3 < error < 1 for error in by_length), by_length
    report = rule.attach(copy.deepcopy(net))
    assert not report["0.connection.weight"].exact
    assert "truncate_trace=True" in report["0.connection.weight"].why
    assert report["2.connection.weight"].exact
    two = fidelity(net, (x, y), [rule], lengths=[STEPS], chunk=2)
    assert 0 < two.row(rule.name, "0.connection.weight").agreement.cosine < 1 - 1e-6
    whole = fidelity(net, (x, y), [DRTRL()], lengths=[3, STEPS], chunk=STEPS)  # strict: a claim that fails raises
    assert whole.row("D-RTRL", "0.connection.weight").claim == HOLDS


def weights(net: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def learner_of(net: nn.Module, rule: LearningRule | None = None, **options: Any) -> OnlineLearner:
    return OnlineLearner(net, rule or DRTRL(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1), **options)


def test_more_than_a_chunk_is_refused_before_a_weight_changes() -> None:
    net, (x, y) = net_of("2d", "lif"), data("2d")
    with pytest.raises(RuleChoiceError, match=r"OnlineLearner\(\.\.\., chunk=T\).*truncate_trace=True.*OTTT\(\)"):
        learner_of(net)
    learner, before = learner_of(net, chunk=3, update=3), weights(net)
    for many in (x, list(x), (x_t for x_t in x)):
        with pytest.raises(RuleChoiceError, match=r"chunk=3, and '0' has weights .*truncate_trace=True"):
            learner.learn(many, y)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    learner.learn(x[:3], y)
    learner.learn(x[:2], y)
    moved = weights(net)
    with pytest.raises(StaleTraceError, match=r"go on from others.*call reset\(net\)"):
        learner.learn(x[3:], y, keep_state=True)
    assert all(torch.equal(a, b) for a, b in zip(moved, net.parameters(), strict=True))
    restart = torch.zeros(3, BATCH, dtype=torch.bool)
    restart[0] = True
    learner.learn(x[:3], y)
    learner.learn(x[:3], y, keep_state=True, restarts=restart)
    restart[0, 1] = False
    with pytest.raises(StaleTraceError):
        learner.learn(x[:3], y, keep_state=True, restarts=restart)


def test_a_stream_ends_after_its_first_step() -> None:
    net, (x, y) = net_of("2d", "lif"), data("2d")
    learner = learner_of(net, chunk=4)
    learner.step(x[0], y)
    moved = weights(net)
    with pytest.raises(StaleTraceError, match="these steps go on from others"):
        learner.step(x[1], y)
    assert all(torch.equal(a, b) for a, b in zip(moved, net.parameters(), strict=True))
    learner.step(x[0], y)
    learner.reset()
    learner.step(x[1], y)
    learner.learn(x[:4], y)
    assert learner.predict(x).steps == STEPS  # nothing is learned, so nothing is refused
    assert "0" not in learner.learn(x[:4], y).trace_norms


def test_auto_takes_the_whole_sequence() -> None:
    net, (x, y) = net_of("2d", "lif"), data("2d")
    learner = learner_of(net, chunk="auto")
    learner.learn(x[:4], y)
    assert learner.chunk == 4
    learner.learn(x, y)  # a longer one
    assert learner.chunk == STEPS
    with pytest.raises(RuleChoiceError, match="whose length nobody knows"):
        learner.learn((x_t for x_t in x), y)
    found = learned(net, DRTRL(), x, y, "auto")
    assert far(bptt_gradients(net, x, y, cut=["2"])["0.connection.weight"], found["0.connection.weight"]) < 1e-12


def test_auto_with_updates_on_the_way(caplog: pytest.LogCaptureFixture) -> None:
    """What may be cut is cut where the updates are, whatever the length; what may not is refused, with what goes."""
    caplog.set_level(logging.INFO, "snnlearn.engine")
    (x, y), nets = data("2d"), [net_of("2d", "lif") for _ in range(3)]
    rule, reference = DRTRL(truncate_trace=True), learner_of(nets[0], DRTRL(truncate_trace=True), chunk=2, update=2)
    reference.learn(x, y)
    for net, steps in zip(nets[1:], (x, (x_t for x_t in x)), strict=True):
        learner = learner_of(net, rule, chunk="auto", update=2)
        assert learner.learn(steps, y).updates == 3
        assert learner.chunk == 2
        assert all(torch.equal(a, b) for a, b in zip(nets[0].parameters(), net.parameters(), strict=True))
    exact = learner_of(net_of("2d", "lif"), chunk="auto", update=4)
    with pytest.raises(RuleChoiceError, match=r"update=4 met a sequence of 6 steps.*'0'.*update='sequence', or give"):
        exact.learn(x, y)
    caplog.clear()
    for _ in range(2):
        exact.learn(x[:3], y)  # it ends before the update is due
    assert exact.chunk == 4
    assert [line for line in caplog.messages if line.startswith("chunk=")] == [
        "chunk=4: the whole sequence of 3 steps, since the trace of '0' is kept within one chunk alone"
    ]
    with pytest.raises(RuleChoiceError, match="chunk=T for sequences of up to T steps, or less, to drop more"):
        learner_of(net_of("2d", "lif"), rule, chunk="auto").learn((x_t for x_t in x), y)


def test_a_loop_of_ones_own_and_a_copy() -> None:
    net, (x, y) = net_of("2d", "lif"), data("2d")
    with pytest.raises(RuleChoiceError, match=r"attach\(net, rule, chunk=T\)"):
        DRTRL().attach(net)
    report = DRTRL().attach(net, chunk=STEPS)
    assert report["0.connection.weight"].exact
    assert report["0.connection.weight"].trace == "within a chunk"
    net = copy.deepcopy(net)
    truth = bptt_gradients(net, x, y, cut=["2"])["0.connection.weight"]
    for _ in range(2):
        net.zero_grad()
        reset(net)
        chunk = Chunk(STEPS)
        with in_chunk(net, chunk):
            output = net(x.flatten(0, 1))
        F.cross_entropy(output, y.repeat(STEPS)).backward()
        assert far(truth, net[0].connection.weight.grad) < 1e-12
    with in_chunk(net, chunk), pytest.raises(StaleTraceError, match="go on from others"):
        net(x.flatten(0, 1))


def test_truncation_is_a_choice_of_rules_per_synapse() -> None:
    with pytest.raises(RuleChoiceError, match="write storage='synaptic'"):
        LearningRule(truncate_trace=True)
    with pytest.raises(RuleChoiceError, match="truncate_trace"):
        LearningRule(transition="none", storage="none", truncate_trace=True)
    linear = nn.Sequential(ETBlock(ETLinear(4, 3), LIF()))
    assert DRTRL(truncate_trace=True).attach(linear)["0.connection.weight"].exact
