"""Memory does not grow with the length of the sequence; BPTT's does."""

from collections.abc import Iterator

import pytest
import torch
from oracles.allocation import peak_bytes
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    BPTT,
    LI,
    LIF,
    OTTT,
    SLTT,
    ETBlock,
    ETLinear,
    LearningRule,
    OnlineLearner,
    SequenceLoss,
    TruncatedBPTT,
)

pytestmark = pytest.mark.usefixtures("unchecked")
BATCH, INPUTS, HIDDEN, WARM_UP = 128, 2000, 16, 120


def stream(steps: int) -> Iterator[Tensor]:
    """Steps handed out one by one; a few frames in turn, so that the input takes no memory with T."""
    generator = torch.Generator().manual_seed(0)
    frames = [torch.rand(BATCH, INPUTS, generator=generator) for _ in range(4)]
    for step in range(steps):
        yield frames[step % 4]


def peak_of(rule: LearningRule, steps: int) -> int:
    torch.manual_seed(0)
    net = nn.Sequential(ETBlock(ETLinear(INPUTS, HIDDEN), LIF()), ETBlock(ETLinear(HIDDEN, 10), LI()))
    loss = SequenceLoss(readout="running_mean")
    learner = OnlineLearner(net, rule, loss, torch.optim.Adam(net.parameters()), update="sequence")
    labels = torch.arange(BATCH) % 10
    learner.learn(stream(2), labels)  # gradients and optimizer state exist from here on
    if rule.online or rule.window is not None:
        learner.learn(stream(WARM_UP), labels)  # and the caches of allocator and interpreter from here
    result = None

    def run() -> None:
        nonlocal result
        result = learner.learn(stream(steps), labels)

    peak = peak_bytes(net, run)
    assert result is not None
    assert result.steps == steps
    assert 0.02 < result.firing_rates["0"] < 0.8
    return peak


@pytest.mark.parametrize("rule", [OTTT(), SLTT()], ids=["ottt", "sltt"])
def test_online_rules_hold_as_much_at_four_thousand_steps_as_at_ten(rule: LearningRule) -> None:
    lengths = (10, 1_000, 4_000) if rule.name == "OTTT" else (10, 1_000)
    peaks = {steps: peak_of(rule, steps) for steps in lengths}
    assert max(peaks.values()) < 1.02 * min(peaks.values()), peaks


def test_bptt_grows_with_the_sequence() -> None:
    """It keeps at least the membrane of every hidden unit at every step; an online rule keeps none."""
    kept = 300 * BATCH * HIDDEN * 4
    growth = {rule.name: peak_of(rule, 310) - peak_of(rule, 10) for rule in (BPTT(), OTTT())}
    assert growth["BPTT"] > kept, growth
    assert growth["OTTT"] < 0.1 * kept, growth


def test_truncated_bptt_grows_with_its_window_alone() -> None:
    """Four times the steps take no more; ten times the window keeps the membranes of ten times as many."""
    peaks = {(window, steps): peak_of(TruncatedBPTT(window), steps) for window, steps in ((5, 50), (5, 200), (50, 200))}
    assert peaks[5, 200] < 1.02 * peaks[5, 50], peaks
    assert peaks[50, 200] - peaks[5, 200] > 45 * BATCH * HIDDEN * 4, peaks


def test_per_step_updates_hold_no_more() -> None:
    """The trap of a history kept for an optimizer that steps every time."""
    torch.manual_seed(0)
    net = nn.Sequential(ETBlock(ETLinear(INPUTS, HIDDEN), LIF()), ETBlock(ETLinear(HIDDEN, 10), LI()))
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=1e-3), update=1)
    labels = torch.arange(BATCH) % 10
    learner.learn(stream(WARM_UP), labels)  # allocator and interpreter have their caches from here on
    peaks = [peak_bytes(net, lambda n=n: learner.learn(stream(n), labels)) for n in (10, 200)]
    assert max(peaks) < 1.02 * min(peaks), peaks
