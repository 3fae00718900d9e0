"""The norms of traces are found when they are read, and never of another step than the result's own."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from snnlearn import DRTRL, LI, LIF, EProp, ETBlock, ETLinear, LearningRule, OnlineLearner, StaleTraceError, reset
from snnlearn.engine import SequenceResult

Run = Callable[[], SequenceResult]


def learner_for(rule: LearningRule, chunk: int) -> tuple[OnlineLearner, Run]:
    torch.manual_seed(0)
    net = nn.Sequential(ETBlock(ETLinear(5, 6), LIF(decay=0.7, threshold=0.3)), ETBlock(ETLinear(6, 2), LI())).double()
    x = torch.rand(4, 3, 5, dtype=torch.float64)
    learner = OnlineLearner(net, rule, F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.0), chunk=chunk)
    return learner, lambda: learner.learn(x, torch.tensor([0, 1, 0]))


@pytest.mark.parametrize("rule", [DRTRL(), EProp(kappa=0.8)])
@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_a_copy_taken_before_the_reading_changes_nothing(rule: LearningRule, chunk: int) -> None:
    learner, run = learner_for(rule, chunk)
    result = run()
    trace = learner.net[0].connection.trace
    read = copy.deepcopy(trace).norm(), copy.copy(trace).norm()  # both take a kept chunk in
    _, textbook = learner_for(rule, 1)
    true = dict(textbook().trace_norms)
    assert 0 < true["0"] != true["1"] > 0
    assert dict(result.trace_norms) == pytest.approx(true, rel=1e-12)
    assert read == pytest.approx((true["0"],) * 2, rel=1e-12)


def test_a_norm_of_another_step_is_refused() -> None:
    learner, run = learner_for(DRTRL(), 3)
    read, unread = run(), None
    kept = dict(read.trace_norms)
    unread = run()
    assert dict(read.trace_norms) == kept  # found once, kept for good
    assert "not read yet" in repr(unread.trace_norms)
    reset(learner.net)
    assert list(unread.trace_norms) == ["0", "1"]
    with pytest.raises(StaleTraceError, match=r"write norms = dict\(result.trace_norms\) before"):
        unread.trace_norms["0"]
    with pytest.raises(KeyError, match="nowhere"):
        read.trace_norms["nowhere"]
    assert copy.deepcopy(read.trace_norms) == kept
