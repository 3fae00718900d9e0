"""Truncated BPTT: each window is BPTT of its own, whatever its length, on sequences and on streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from nets import assert_alive, assert_same, furthest, labels, learner_of, live_input, live_net
from oracles.networks import labels as random_labels
from oracles.networks import lively, scaled
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    ALIF,
    BPTT,
    LIF,
    SLTT,
    ETBlock,
    ETConv2d,
    ETLinear,
    ETRecurrent,
    OnlineLearner,
    Readout,
    RuleChoiceError,
    SequenceLoss,
    TruncatedBPTT,
    attach,
    bptt_gradients,
    fidelity,
)
from snnlearn.engine.yardsticks import Problem, Yardsticks
from snnlearn.rules import LearningRule
from snnlearn.rules.yardsticks import CUT_WINDOWS

STEPS = 7
Gradients = dict[str, Tensor]


def dense() -> nn.Module:
    return scaled(nn.Sequential(ETBlock(ETLinear(6, 8), LIF()), ETBlock(ETLinear(8, 3), ALIF())))


def recurrent() -> nn.Module:
    return scaled(nn.Sequential(ETBlock(ETRecurrent(6, 8), LIF(detach_reset=False)), Readout(nn.Linear(8, 3))), 1.5)


def convolutional() -> nn.Module:
    block = ETBlock(ETConv2d(1, 3, 3, padding=1), LIF(reset="hard"))
    return scaled(nn.Sequential(nn.Unflatten(1, (1, 2, 3)), block, nn.Flatten(), Readout(nn.Linear(18, 3))))


NETS = pytest.mark.parametrize("make", [dense, recurrent, convolutional])


def learned(net: nn.Module, rule: LearningRule, x: Any, y: Any, loss: Any = F.cross_entropy) -> Gradients:
    learner, optimizer = learner_of(net, rule, loss)
    result = learner.learn(x, y)
    assert all(0.02 < rate < 0.8 for rate in result.firing_rates.values()), result.firing_rates
    (found,) = optimizer.seen
    return found


def by_windows(net: nn.Module, window: int, x: Tensor, y: Tensor) -> Gradients:
    """One graph over the whole sequence whose seams are cut by hand, and one backward through it."""
    attach(net, BPTT())
    total = torch.zeros((), dtype=x.dtype)
    for step, x_t in enumerate(x):
        if step % window == 0:
            for module in net.modules():
                if getattr(module, "state", None) is not None:
                    module.state = tuple(value.detach() for value in module.state)  # type: ignore[union-attr, operator]
                if getattr(module, "spikes", None) is not None:
                    module.spikes = module.spikes.detach()  # type: ignore[union-attr, operator]
        total = total + F.cross_entropy(net(x_t), y)
    names, parameters = zip(*net.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(total / len(x), parameters), strict=True))


@NETS
@pytest.mark.parametrize("window", [2, 3, 4, 6])
def test_a_window_is_cut_from_the_one_before(make: Callable[[], nn.Module], window: int) -> None:
    """Windows that do and do not divide the sequence; one that is a step longer or shorter is another gradient."""
    x, y = live_input(STEPS, 4), random_labels(batch=4)
    net = lively(make(), x)
    found = learned(net, TruncatedBPTT(window), x, y)
    assert_same(found, by_windows(net, window, x, y), 1e-12)
    assert furthest(found, by_windows(net, window + 1, x, y)) > 1e-6
    assert furthest(found, by_windows(net, window - 1, x, y)) > 1e-6


@NETS
@pytest.mark.parametrize("readout", ["step", "running_mean"])
def test_the_whole_sequence_is_bptt_and_one_step_is_sltt(make: Callable[[], nn.Module], readout: str) -> None:
    x, y, loss = live_input(STEPS, 4), random_labels(batch=4), SequenceLoss(readout=readout)
    net = lively(make(), x)
    whole = bptt_gradients(net, x, y, loss)
    for window in (STEPS, STEPS + 5):
        assert_same(learned(net, TruncatedBPTT(window), x, y, loss), whole, 1e-12)
    assert_same(learned(net, TruncatedBPTT(1), x, y, loss), learned(net, SLTT(), x, y, loss), 1e-12)
    assert furthest(learned(net, TruncatedBPTT(3), x, y, loss), whole) > 1e-6


def test_a_late_loss_reaches_back_to_the_start_of_its_window() -> None:
    """The last two of seven steps count: window 4 gives them steps 5 to 7, window 5 steps 6 and 7."""
    x, y = live_input(STEPS, 4), labels(4)
    net = live_net()
    assert_alive(net, x)
    loss = SequenceLoss(last_steps=2)
    early = learned(net, TruncatedBPTT(4), x, y, loss)
    targets = [None] * 5 + [y, y]
    learner, optimizer = learner_of(net, TruncatedBPTT(4))
    learner.learn(x, targets, per_step_target=True)
    assert_same(optimizer.seen[0], early, 1e-12)
    assert furthest(early, learned(net, TruncatedBPTT(5), x, y, loss)) > 1e-6


def test_updates_come_where_windows_end() -> None:
    """update=4 with windows of 2: seven steps give updates of 4 and 3 steps, each the mean over its own."""
    x, y = live_input(STEPS, 4), labels(4)
    net = live_net()
    learner, optimizer = learner_of(net, TruncatedBPTT(2), update=4)
    assert learner.learn(x, y).updates == 2
    summed = {name: (4 * optimizer.seen[0][name] + 3 * optimizer.seen[1][name]) / 7 for name in optimizer.seen[0]}
    assert_same(summed, by_windows(net, 2, x, y), 1e-12)
    moving, _ = learner_of(net, TruncatedBPTT(2), lr=0.1, update=2)
    assert moving.learn(x, y).updates == 4


def test_an_update_inside_a_window_is_refused() -> None:
    with pytest.raises(RuleChoiceError, match=r"update=3 with TBPTT and window=2.*update=2, or update='sequence'"):
        learner_of(live_net(), TruncatedBPTT(2), update=3)


def test_a_stream_learns_at_the_end_of_every_window() -> None:
    x, y = live_input(6, 4), labels(4)
    net = live_net()
    learner, optimizer = learner_of(net, TruncatedBPTT(3))
    seen = []
    for x_t in x:
        learner.step(x_t, y)
        seen.append(len(optimizer.seen))
    assert seen == [0, 0, 1, 1, 1, 2]
    summed = {name: (optimizer.seen[0][name] + optimizer.seen[1][name]) / 2 for name in optimizer.seen[0]}
    assert_same(summed, by_windows(net, 3, x, y), 1e-12)


def test_a_stream_that_ends_within_a_window_loses_nothing() -> None:
    """`update_now` and `reset` walk back through the steps that wait."""
    x, y = live_input(2, 4), labels(4)
    net = live_net()
    expected = bptt_gradients(net, x, y)
    for end in ("update_now", "reset"):
        learner, optimizer = learner_of(net, TruncatedBPTT(3))
        for x_t in x:
            learner.step(x_t, y)
        getattr(learner, end)()
        if end == "reset":
            assert optimizer.seen == []
            assert learner.update_now()
        assert_same(optimizer.seen[0], expected, 1e-12)


def test_a_failed_step_leaves_nothing_of_its_window() -> None:
    x, y = live_input(5, 4), labels(4)
    net = live_net()
    learner, optimizer = learner_of(net, TruncatedBPTT(4))
    expected = learner.learn(x, y).loss
    learner.reset()
    learner.step(x[0], y)
    with pytest.raises(ArithmeticError):
        learner.step(x[1] * float("nan"), y)
    optimizer.seen.clear()
    assert learner.learn(x, y).loss == expected
    assert_same(optimizer.seen[0], by_windows(net, 4, x, y), 1e-12)


def test_a_continued_sequence_begins_a_new_window() -> None:
    x, y = live_input(6, 4), labels(4)
    net = live_net()
    learner, optimizer = learner_of(net, TruncatedBPTT(3))
    learner.learn(x[:3], y)
    learner.learn(x[3:], y, keep_state=True)
    summed = {name: (optimizer.seen[0][name] + optimizer.seen[1][name]) / 2 for name in optimizer.seen[0]}
    assert_same(summed, by_windows(net, 3, x, y), 1e-12)


@pytest.mark.parametrize("window", [0, -1, 1.5, True])
def test_an_illegal_window_is_told(window: Any, unchecked: None) -> None:
    with pytest.raises(RuleChoiceError, match="at least 1; write window=10"):
        TruncatedBPTT(window)


def test_a_window_needs_a_graph_through_time() -> None:
    with pytest.raises(RuleChoiceError, match=r"window=3 with transition='leak'.*window=None"):
        LearningRule(window=3)


def test_plain_bptt_still_sees_no_stream() -> None:
    net = live_net()
    learner = OnlineLearner(net, BPTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(RuleChoiceError, match=r"TruncatedBPTT\(\)"):
        learner.step(live_input(1, 2)[0], labels(2))


def test_the_report_names_the_yardstick_of_windows() -> None:
    row = attach(live_net(), TruncatedBPTT(3))["hidden.connection.weight"]
    assert row.exact
    assert row.yardstick == "BPTT with every temporal edge between windows cut"
    assert attach(live_net(), BPTT())["hidden.connection.weight"].yardstick == "BPTT"


@NETS
@pytest.mark.parametrize("readout", ["step", "running_mean"])
def test_fidelity_checks_the_claim_of_windows(make: Callable[[], nn.Module], readout: str) -> None:
    """The claim holds for the rule's own window; the gradient of another is not it, so the check can fail."""
    x, y, loss = live_input(STEPS, 4), random_labels(batch=4), SequenceLoss(readout=readout)
    net = lively(make(), x)
    report = fidelity(net, (x, y), [TruncatedBPTT(3), TruncatedBPTT(4)], loss, lengths=[STEPS])
    assert {row.claim for row in report.rows} == {"holds"}
    if readout == "step":
        assert_same(bptt_gradients(net, x, y, window=3), by_windows(net, 3, x, y), 1e-12)
    assert furthest(*(bptt_gradients(net, x, y, loss, window=window) for window in (3, 4))) > 1e-6
    yardsticks = Yardsticks(Problem(net, (x, y), loss, False, None))
    assert yardsticks.named(report.rows[0].parameter, CUT_WINDOWS, False) is None  # of no window nothing is known


@pytest.mark.parametrize("window", [0, 1.5, True, "3"])
def test_a_window_of_the_yardstick_is_a_number_of_steps(window: Any, unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"window=.*a whole number of steps from 1"):
        bptt_gradients(live_net(), live_input(2, 2), labels(2), window=window)
