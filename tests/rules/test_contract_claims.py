"""What every rule claims and does: its report holds, single precision suffices, learners agree, and it learns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import pytest
import torch
from contract import (
    CLASSES,
    POINTS,
    STEPS,
    assert_equal,
    attached,
    block_of,
    every_step,
    hidden_blocks,
    input_for,
    is_spatial,
    learned,
    net_for,
    passed,
    points,
    points_on_nets,
    rewards,
    show,
    targets,
    taught,
)
from nets import furthest, learner_of
from torch import Tensor
from torch.nn import functional as F

from snnlearn import ALIF, LIF, CubaLIF, LearningRule, Neuron, OnlineLearner, RuleChoiceError, fidelity
from snnlearn.engine import FidelityReport
from snnlearn.engine.agreement import BOUNDS, compare
from snnlearn.engine.fidelity_report import APPROXIMATE, EMPTY, HOLDS, UNCHECKED

pytestmark = pytest.mark.usefixtures("quick")

SEED = 3

NEURONS: dict[str, Callable[[], Neuron]] = {
    "LIF": LIF,
    "LIF hard attached": functools.partial(LIF, reset="hard", detach_reset=False),
    "LIF learned": functools.partial(LIF, learn=("decay", "threshold")),
    "ALIF": ALIF,
    "CubaLIF": CubaLIF,
}

LATE = [None] * (STEPS - 2) + [targets()] * 2
"""Targets at the last two steps alone."""


def claims(rule: LearningRule) -> bool:
    """Whether the rule may claim anything of a hidden block: not where something stands for dL/ds."""
    return is_spatial(rule)


@functools.cache
def measured(neuron: str, kind: str, hidden: int, late: bool = False) -> FidelityReport:
    """The fidelity of every rule for a network with so many hidden blocks, so that a yardstick is computed once.

    Rules that claim nothing of hidden blocks are measured with one neuron: their claims are of the readout alone.
    """
    rules = [
        dataclasses.replace(rule, title=name)
        for name, rule in POINTS.items()
        if hidden_blocks(rule) == hidden and (claims(rule) or (neuron == "LIF" and not late))
    ]
    net = net_for(rules[0], kind, NEURONS[neuron])
    batch = (input_for(kind), LATE if late else targets())
    torch.manual_seed(SEED)  # so that some of the steps that rules draw have a loss
    return fidelity(net, batch, rules, per_step_target=late, lengths=[STEPS], strict=False)


def assert_claims_hold(rule: LearningRule, report: FidelityReport) -> None:
    name = next(name for name, point in POINTS.items() if point == rule)
    if name not in report.rules:
        assert rule.signal == "reward" or rule.transition == "ratio"
        assert any(note.startswith(f"{name} was not measured: ") for note in report.notes)
        return
    rows = [row for row in report if row.rule == name]
    assert {row.claim for row in rows} <= {HOLDS, APPROXIMATE, EMPTY, UNCHECKED}
    assert max(row.agreement.norm for row in rows) > 0
    for row in rows:
        if row.claim == UNCHECKED:  # a window longer than the sequence is all of it
            assert rule.window is not None
            assert rule.window > STEPS
            assert row.agreement.error is not None
            assert row.agreement.error < BOUNDS[torch.float64]


CASES = [("LIF", "linear"), *((neuron, "recurrent") for neuron in NEURONS)]


@points()
@pytest.mark.parametrize(("neuron", "kind"), CASES)
def test_claims_of_the_report_hold(rule: LearningRule, neuron: str, kind: str) -> None:
    if claims(rule) or neuron == "LIF":
        assert_claims_hold(rule, measured(neuron, kind, hidden_blocks(rule)))


@points()
def test_a_loss_at_the_last_steps_finds_the_trace(rule: LearningRule) -> None:
    """What is claimed holds where only the end has a loss, and every rule learns from it."""
    if claims(rule) and rule.learn_on == "all":
        assert_claims_hold(rule, measured("LIF", "recurrent", hidden_blocks(rule), late=True))
    net, x, y = attached(rule, "recurrent"), input_for("recurrent"), targets()
    passed(net, x[:-2])
    late = taught(net, x[-2:], y)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in late.values())
    assert min(float(gradient.norm()) for name, gradient in late.items() if name.endswith("weight")) > 1e-8


def test_claims_say_something() -> None:
    """What the yardsticks cut makes a difference here: SLTT's claims hold and are far from BPTT."""
    held = [row for row in measured("LIF", "recurrent", 2) if row.claim == HOLDS]
    assert {row.rule for row in held} > {"sltt", "ottt", "otpe = local, above", "bptt"}
    assert max(row.agreement.error or 0.0 for row in held if row.rule == "sltt") > 1e-2
    assert any(row.claim == APPROXIMATE for row in measured("LIF hard attached", "recurrent", 2))


@points_on_nets()
def test_single_precision(rule: LearningRule, kind: str) -> None:
    """Float32 learns what float64 does, up to the stated bound, and no better than float32 can."""
    net, x, y = attached(rule, kind), input_for(kind), targets()
    single = attached(rule, kind).float()
    wide = taught(net, x, y)
    narrow = taught(single, x.float(), y, rewards().float())
    errors = [compare(narrow[name].double(), wide[name]).error for name in wide]
    assert {gradient.dtype for gradient in narrow.values()} == {torch.float32}
    assert 1e-9 < max(error for error in errors if error is not None) < BOUNDS[torch.float32]


@points()
def test_learners_agree_on_every_schedule_of_updates(rule: LearningRule) -> None:
    """With frozen weights, updates after k steps share out what one at the end would gather, and so does a loop."""
    x, y, rule = input_for(), targets(), every_step(rule)
    whole = learned(net_for(rule), rule, x, y)
    assert_equal({n: g / STEPS for n, g in taught(attached(rule), x, y).items()}, whole)
    for update in (1, 2):
        if not rule.online:
            with pytest.raises(RuleChoiceError, match="update="):
                learner_of(net_for(rule), rule, update=update)
            continue
        learner, recorder = learner_of(net_for(rule), rule, update=update)
        show(learner.net, targets())
        learner.learn(x, y)
        sizes = [update] * (STEPS // update) + [STEPS % update] * (STEPS % update > 0)
        shares = zip(recorder.seen, sizes, strict=True)
        parts = [{name: g * size / STEPS for name, g in seen.items()} for seen, size in shares]
        assert_equal({name: torch.stack([part[name] for part in parts]).sum(0) for name in whole}, whole)
        assert furthest(recorder.seen[0], recorder.seen[1]) > 1e-5


@points(lambda rule: rule.online or rule.window is not None)
def test_a_stream_learns_where_it_has_a_target(rule: LearningRule) -> None:
    """A stream's updates are those of a sequence with the same gaps, and steps without a target change nothing."""
    x, y = input_for(), targets()
    gaps = [y if step % 2 else None for step in range(STEPS)]
    if rule.learn_on in ("last", "random"):
        with pytest.raises(RuleChoiceError, match="length"):
            learner_of(net_for(rule), rule)[0].step(x[0], y)
        return
    rule = every_step(rule)
    learner, recorder = learner_of(net_for(rule), rule)
    show(learner.net, targets())
    for x_t, y_t in zip(x, gaps, strict=True):
        before = len(recorder.seen)
        reward = rewards() if rule.signal == "reward" and y_t is not None else None
        learner.step(x_t, y_t, reward)
        if rule.online:
            assert len(recorder.seen) - before == (y_t is not None)
    learner.update_now()
    seen = {name: torch.stack([g[name] for g in recorder.seen]).mean(0) for name in recorder.seen[0]}
    whole = learned(net_for(rule), rule, x, gaps, per_step_target=True)
    assert_equal(seen, whole)
    assert furthest(whole, learned(net_for(rule), rule, x, y)) > 1e-5


def separable(batch: int = 12) -> tuple[Tensor, Tensor]:
    """Spikes [3, B, 6] on the two inputs of the label, and a few anywhere."""
    y = torch.arange(batch) % CLASSES
    own = F.one_hot(y, CLASSES).repeat_interleave(2, dim=1).double()
    return (torch.rand(3, batch, 6) < 0.8 * own + 0.1).double(), y


@points()
def test_it_learns(rule: LearningRule) -> None:
    """The loss falls; a spatial signal does it through the hidden blocks alone, behind a readout that is frozen.

    A reward that does not follow from what the network does teaches the hidden blocks nothing, so there it is zero and
    the readout learns. A random step in ten is too few for so short a test, so there every step learns.
    """
    torch.manual_seed(2)
    if rule.learn_on == "poisson":
        rule = every_step(rule)
    net, (x, y) = net_for(rule), separable()
    start = {name: p.detach().clone() for name, p in net.named_parameters() if block_of(name) != str(len(net) - 1)}
    learner = OnlineLearner(net, rule, F.cross_entropy, torch.optim.Adam(net.parameters(), lr=0.05))
    show(net, y, torch.zeros(()))
    if is_spatial(rule):
        net[-1].requires_grad_(False)
    losses = [learner.learn(x, y).loss for _ in range(25)]
    assert losses[-1] < 0.85 * losses[0]
    moved = furthest(start, {name: p.detach() for name, p in net.named_parameters()})
    assert (moved > 1e-3) == (rule.signal != "reward")
