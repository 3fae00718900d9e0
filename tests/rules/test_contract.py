"""What every rule on every kind of network has to keep: the batch, resets, one step, phases, shared weights, mixing."""

from __future__ import annotations

import copy

import pytest
import torch
from contract import (
    BATCH,
    KINDS,
    POINTS,
    STEPS,
    assert_equal,
    attached,
    block_of,
    hidden_blocks,
    input_for,
    is_online,
    is_spatial,
    net_for,
    passed,
    points,
    points_on_nets,
    rewards,
    takes,
    targets,
    taught,
)
from nets import assert_alive, furthest
from torch import Tensor, nn

from snnlearn import (
    LI,
    LIF,
    SLTT,
    ETBlock,
    ETLinear,
    LearningRule,
    RuleChoiceError,
    SignalError,
    attach,
    bptt_gradients,
    reset,
)
from snnlearn.engine.recorder import record_phases
from snnlearn.nn.phases import Phase
from snnlearn.rules import CHOICES, RULES

pytestmark = pytest.mark.usefixtures("quick")

BATCH_BY_DESIGN = {
    "contrastive": "the loss of a block compares the samples of a batch, and one alone is refused",
    "noise": "the estimate of do/ds is taken over the batch, and each sample draws its own noise",
    "rate": "the mean rate that is held near its target is the batch's",
}
"""Why the gradient of a batch is not the mean of its samples' under some rules."""


def of_the_batch(rule: LearningRule) -> str | None:
    return BATCH_BY_DESIGN.get("rate" if rule.rate is not None else rule.signal)


def mean(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([part[name] for part in parts]).mean(0) for name in parts[0]}


def sample(values: Tensor, number: int) -> Tensor:
    """One sample of a sequence [T, B, ...]."""
    return values[:, number : number + 1]


def test_every_choice_on_every_axis_is_met() -> None:
    """A choice that no point below takes would go untested without anyone noticing."""
    assert set(RULES) <= {name for names in POINTS for name in names.split(" = ")}
    for axis, choices in CHOICES.items():
        assert {getattr(rule, axis) for rule in POINTS.values()} == set(choices), axis


@points()
@pytest.mark.parametrize("kind", KINDS)
def test_networks_are_taken_or_refused(rule: LearningRule, kind: str) -> None:
    """Who takes which kind of network is what the tests below go by, and the networks fire."""
    net = net_for(rule, kind)
    if takes(rule, kind):
        report = rule.attach(net)
        assert {row.parameter for row in report} == {name for name, _ in net.named_parameters()}
        attach(net, SLTT())
        assert_alive(net, input_for(kind))
        return
    with pytest.raises((RuleChoiceError, RuntimeError), match=r"attach|write signal"):
        taught(attached(rule, kind), input_for(kind), targets())


@points_on_nets()
def test_a_batch_is_the_mean_of_its_samples(rule: LearningRule, kind: str) -> None:
    net, x, y = attached(rule, kind), input_for(kind), targets()
    singles = []
    if rule.signal == "contrastive":
        with pytest.raises(SignalError, match="at least 2"):
            taught(net, sample(x, 0), y[:1], rewards()[:1])
        return
    for b in range(BATCH):
        one = copy.deepcopy(net)
        singles.append(taught(one, sample(x, b), y[b : b + 1], rewards()[b : b + 1]))
    whole = taught(net, x, y)
    if of_the_batch(rule) is None:
        assert_equal(whole, mean(singles))
    else:
        assert furthest(whole, mean(singles)) > 1e-5
    assert furthest(whole, mean(singles[1:])) > 1e-5


@points_on_nets()
def test_reset_forgets_a_sequence(rule: LearningRule, kind: str) -> None:
    """What a sequence teaches is the same first and after another one; without a reset in between it is not."""
    x, y = input_for(kind), targets()
    net, other = attached(rule, kind), attached(rule, kind)
    if rule.signal == "noise":  # its estimate and its stream of noise outlive a sequence, as weights do
        passed(other, x.flip(0))
        reset(other)
    passed(net, x.flip(0))
    on = copy.deepcopy(net)
    reset(net)
    found = taught(net, x, y)
    assert_equal(found, taught(other, x, y))
    assert furthest(found, taught(on, x, y)) > 1e-5


@points_on_nets()
def test_a_reset_row_is_afresh(rule: LearningRule, kind: str) -> None:
    """All rows reset are a reset; some rows reset are as if these sequences alone began."""
    x, y, begun = input_for(kind), targets(), STEPS // 2
    net = attached(rule, kind)
    apart = [copy.deepcopy(net) for _ in range(BATCH)]
    passed(net, x[:begun])
    whole, rows, none = copy.deepcopy(net), copy.deepcopy(net), copy.deepcopy(net)
    reset(whole)
    reset(rows, torch.ones(BATCH, dtype=torch.bool))
    afresh = taught(whole, x[begun:], y)
    assert_equal(taught(rows, x[begun:], y), afresh)
    assert furthest(taught(none, x[begun:], y), afresh) > 1e-5
    if of_the_batch(rule) is not None or not rule.online:  # a copy of a graph that goes on is cut, and so differs
        return
    mask = torch.arange(BATCH) % 2 == 0
    reset(net, mask)
    singles = []
    for b, one in enumerate(apart):
        passed(one, [] if mask[b] else sample(x[:begun], b))
        singles.append(taught(one, sample(x[begun:], b), y[b : b + 1], rewards()[b : b + 1]))
    assert_equal(taught(net, x[begun:], y), mean(singles))


@points_on_nets()
def test_one_step_is_backpropagation(rule: LearningRule, kind: str) -> None:
    """With one step there is no time: a spatial signal gives autograd's gradient, any other in the readout alone."""
    net, x, y = attached(rule, kind), input_for(kind)[:1], targets()
    true = bptt_gradients(net_for(rule, kind), x, y)
    readout = str(len(net) - 1)
    found = {name: gradient for name, gradient in taught(net, x, y).items() if name in true}
    if is_spatial(rule):
        assert_equal(found, true)
        return
    assert furthest({n: g for n, g in true.items() if block_of(n) != readout}, found) > 1e-5
    if rule.signal != "noise":  # which changes what the readout sees
        own = {name: gradient for name, gradient in true.items() if block_of(name) == readout}
        assert_equal({name: found[name] for name in own}, own)


@points_on_nets(is_online)
def test_phases_come_in_order(rule: LearningRule, kind: str) -> None:
    """Each block goes forward and takes in its trace, then back from the last: its neuron, then its connection."""
    net = attached(rule, kind)
    blocks = {name: module for name, module in net.named_modules() if isinstance(module, ETBlock)}
    with record_phases(net) as events:
        taught(net, input_for(kind)[:2], targets())
    expected = []
    for step in range(2):
        for name, block in blocks.items():
            expected.append((name, step, Phase.FORWARD))
            expected += [(name, step, Phase.TRACE_UPDATE)] if block.connection.trace is not None else []
        for name in reversed(blocks):
            expected += [(name, step, Phase.NEURON_BACKWARD), (name, step, Phase.ET_BACKWARD)]
    assert [(event.block, event.step, event.phase) for event in events] == expected


def square(rule: LearningRule) -> nn.Sequential:
    """Blocks of five units each, whose weights fit each other."""
    torch.manual_seed(1)
    blocks = [ETBlock(ETLinear(5, 5), LIF(tau=3.0)) for _ in range(hidden_blocks(rule))]
    net = nn.Sequential(*blocks, ETBlock(ETLinear(5, 5), LI())).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2.5)
    return net


@points()
def test_blocks_that_share_a_weight_both_learn_it(rule: LearningRule) -> None:
    """The gradient of the shared weight is the sum of what either would learn alone."""
    apart, x, y = square(rule), (torch.rand(STEPS, BATCH, 5) < 0.5).double(), targets()
    with torch.no_grad():
        apart[1].connection.weight.copy_(apart[0].connection.weight)
    assert_alive(apart, x)
    rule.attach(apart)
    tied = copy.deepcopy(apart)
    tied[1].connection.weight = tied[0].connection.weight
    alone, together = taught(apart, x, y), taught(tied, x, y)
    parts = [alone.pop(f"{number}.connection.weight") for number in (0, 1)]
    assert_equal(together, {**alone, "0.connection.weight": parts[0] + parts[1]})
    assert min(float(part.norm()) for part in parts) > 1e-4


@points(is_online)
def test_a_readout_may_learn_by_another_rule(rule: LearningRule) -> None:
    """SLTT on the readout leaves the hidden blocks to their rule; the report of a part names the part's rows."""
    x, y = input_for(), targets()
    alone, net, cut = attached(rule), attached(rule), attached(rule)
    attach(cut, SLTT())
    readout = str(len(net) - 1)
    report = attach(net[-1], SLTT())
    assert {row.parameter for row in report} == {"connection.weight", "connection.bias"}
    assert {row.trace for row in report} == {"none"}
    own, mixed, sltt = taught(alone, x, y), taught(net, x, y), taught(cut, x, y)
    hidden = {name: gradient for name, gradient in own.items() if block_of(name) != readout}
    output = {name: gradient for name, gradient in sltt.items() if block_of(name) == readout}
    if rule.signal == "alignment":  # whose matrix the readout has lost
        assert furthest(hidden, mixed) > 1e-5
    else:
        assert_equal({name: mixed[name] for name in hidden}, hidden)
    if rule.signal != "noise":  # which changes what the readout sees
        assert_equal({name: mixed[name] for name in output}, output)
    if rule.transition != "none":
        assert furthest(output, own) > 1e-5


def relays_as_it_is(rule: LearningRule) -> bool:
    """Whether a block in the middle hands down what SLTT would, and hands up what its successor needs."""
    plain = rule.relay == "instantaneous" and rule.signal != "alignment" and rule.rate is None
    return rule.online and plain and rule.transition != "ratio" and hidden_blocks(rule) == 2


@points(relays_as_it_is)
def test_a_hidden_block_may_learn_by_another_rule(rule: LearningRule) -> None:
    """SLTT in the middle: the block below keeps its rule, the middle has SLTT's gradient, from above by backprop."""
    x, y = input_for(), targets()
    alone, net, cut = attached(rule), attached(rule), attached(rule)
    attach(cut, SLTT())
    part = attach(net[1], SLTT())
    assert {row.trace for row in part} == {"none"}
    own, mixed, sltt = taught(alone, x, y), taught(net, x, y), taught(cut, x, y)
    if rule.signal == "noise":  # the middle block adds none any more, so the output differs
        assert furthest(own, mixed) > 1e-5
        return
    below = {name: gradient for name, gradient in own.items() if block_of(name) == "0" and name in mixed}
    assert_equal({name: mixed[name] for name in below}, below)
    middle = {name: gradient for name, gradient in sltt.items() if block_of(name) == "1"}
    assert_equal({name: mixed[name] for name in middle}, middle)
    if rule.transition != "none":
        assert furthest(middle, own) > 1e-5
