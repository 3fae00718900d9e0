"""A captured learner has the numbers of the eager one: replayed without Python, from buffers that stay in place."""

import math
from typing import Any

import pytest
import torch
from graphed_work import (
    CAPTURED,
    EXACT,
    NETS,
    adam,
    adamw,
    assert_same_result,
    both,
    convolutional,
    data,
    graphed,
    learner_of,
    linear,
    recurrent,
    sgd,
    static,
    with_statistics,
)
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import OnlineLearner
from snnlearn.engine import NonFiniteError
from snnlearn.engine.capture import CaptureError, Tape, TapeCapture
from snnlearn.engine.graphed import GraphedLearner
from snnlearn.functional import device_numbers
from snnlearn.functional.chunk import leak_powers
from snnlearn.rules import RULES

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize("rule", CAPTURED)
def test_every_rule_has_the_numbers_of_eager_learning(rule: str) -> None:
    if rule in ("ostl", "hypr"):
        result = graphed(learner_of(linear, rule)).learn(*(part[0] for part in data(1)))
        assert result.updates == 1  # the numbers of D-RTRL under other names
        return
    both(NETS.get(rule, linear), rule, chunk=3, update=3)
    if rule in ("ottt", "drtrl"):
        both(NETS.get(rule, linear), rule)


@pytest.mark.parametrize("optimizer", [sgd, adam, adamw])
def test_optimizers(optimizer: Any) -> None:
    both(linear, "ottt", optimizer, chunk=2, update=2, clip_norm=0.5)


def test_layers() -> None:
    both(convolutional, "ottt", chunk=3)
    both(recurrent, "drtrl", chunk=3)
    both(with_statistics, "sltt", chunk=1, update=2)
    both(lambda: linear(learn=("decay", "threshold")), "drtrl", chunk=3)


def test_a_learning_rate_that_changes() -> None:
    def halved(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    eager, _ = both(linear, "ottt", adam, scheduler=halved)
    steady, _ = both(linear, "ottt", adam)
    moved = [
        float((a - b).detach().abs().max())
        for a, b in zip(eager.net.parameters(), steady.net.parameters(), strict=True)
    ]
    assert max(moved) > 1e-3  # control: the schedule matters


def test_eager_learning_before_between_and_after() -> None:
    x, y = data(5)
    learners = [learner_of(linear, "drtrl", sgd, chunk=3) for _ in range(2)]
    for learner in learners:
        learner.learn(x[0], y[0])  # the optimizer has a state by now
    replayed = graphed(learners[1])
    for n, runner in ((1, replayed), (2, learners[1]), (3, replayed)):
        assert_same_result(learners[0].learn(x[n], y[n]), runner.learn(x[n], y[n]))
        shown = [learner.evaluate(x[4], y[4]).loss for learner in learners]  # it leaves the running state alone
        assert shown[0] == pytest.approx(shown[1], rel=EXACT)
    assert_same_result(learners[0].learn(x[4], y[4], keep_state=True), learners[1].learn(x[4], y[4], keep_state=True))
    assert_same_result(learners[0].learn(x[0], y[0], keep_state=True), replayed.learn(x[0], y[0], keep_state=True))
    for a, b in zip(learners[0].net.parameters(), learners[1].net.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=EXACT, atol=EXACT)
        assert b.grad is None


def test_sequences_of_other_lengths() -> None:
    learner, other = learner_of(linear, "drtrl", chunk=3), learner_of(linear, "drtrl", chunk=3)
    replayed = graphed(other)
    for steps in (3, 12, 6):
        x, y = data(1, steps)
        assert_same_result(learner.learn(x[0], y[0]), replayed.learn(x[0], y[0]))
    x, y = data(1, 7)
    with pytest.raises(CaptureError, match=r"x has 7 steps: graphs run 3 at once"):
        replayed.learn(x[0], y[0])


@pytest.mark.parametrize("rule", ["eprop", "otpe", "superspike"])
def test_a_learner_that_never_ran_is_captured(rule: str) -> None:
    """What is made once per device, from Python's numbers, is made before."""
    leak_powers.cache_clear()
    device_numbers._made.cache_clear()
    assert graphed(learner_of(NETS.get(rule, linear), rule, chunk=3)).learn(*(part[0] for part in data(1))).updates == 1


def test_capturing_changes_nothing() -> None:
    learner = learner_of(with_statistics, "sltt", adam)
    x, y = data(1)
    learner.learn(x[0], y[0])
    held = [*learner.net.state_dict().values(), *(v for s in learner.optimizer.state.values() for v in s.values())]
    before, random = [value.clone() for value in held], torch.get_rng_state()
    GraphedLearner(learner, x[0], y[0], TapeCapture())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(a, b) for a, b in zip(held, before, strict=True))
    assert all(parameter.grad is None for parameter in learner.net.parameters())


class Counting(nn.Module):
    """Scale by how often it was called: what only Python knows."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1.0 + 0.1 * (self.calls % 3))


def test_replaying_runs_no_python() -> None:
    """Negative control: a replay that ran the function again would give this network's own numbers."""
    with pytest.raises(AssertionError):
        both(lambda: nn.Sequential(Counting(), *linear()), "ottt")


def test_a_tape_is_the_operations_alone() -> None:
    x, y, calls = torch.arange(3.0), torch.zeros(3), []
    with Tape() as tape:
        calls.append(1)
        y.add_((x * 2).view(3)[:2].sum().unsqueeze_(0))
    x.mul_(10)
    tape.replay()
    assert calls == [1]
    assert y.tolist() == [2.0 + 20.0] * 3


def test_a_step_that_fails_changes_no_weight() -> None:
    learner = learner_of(linear, "ottt", adam, chunk=3)
    replayed, (x, y) = graphed(learner), data(2)
    replayed.learn(x[0], y[0])
    before = [parameter.clone() for parameter in learner.net.parameters()]
    broken = x[1].clone()
    broken[4, 1, 2] = math.nan
    with pytest.raises(NonFiniteError, match="1 non-finite value"):
        replayed.learn(broken, y[1])
    with torch.no_grad():
        learner.net[2].connection.bias[0] = math.inf
    with pytest.raises(NonFiniteError, match="it changes no weight"):
        replayed.learn(x[1], y[1])
    with torch.no_grad():
        learner.net[2].connection.bias[0] = before[-1][0]
    assert all(torch.equal(a, b) for a, b in zip(before, learner.net.parameters(), strict=True))
    other = learner_of(linear, "ottt", adam, chunk=3)
    other.learn(x[0], y[0])
    assert_same_result(other.learn(x[1], y[1]), replayed.learn(x[1], y[1]))  # nothing of the failures is left


def test_autocast_is_captured() -> None:
    results = []
    for replays in (False, True):
        torch.manual_seed(0)
        net = linear(static)
        learner = OnlineLearner(net, RULES["ottt"](), F.cross_entropy, sgd(net), chunk=3, update=3)
        x, y = data(3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            runner: Any = GraphedLearner(learner, x[0].float(), y[0], TapeCapture()) if replays else learner
            results.append([runner.learn(x[n].float(), y[n]).loss for n in range(3)])
    assert results[0] == pytest.approx(results[1], rel=1e-6)
    assert results[0][0] != results[0][2]
    with pytest.raises(CaptureError, match="autocast is another"):
        runner.learn(x[0].float(), y[0])
