"""Networks, learners and sequences for captured learners, and what holds one against its eager twin."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

from snnlearn import ALIF, LI, LIF, ETBlock, ETConv2d, ETLinear, ETRecurrent, OnlineLearner, Readout
from snnlearn.engine import SequenceResult
from snnlearn.engine.capture import TapeCapture
from snnlearn.engine.graphed import GraphedLearner
from snnlearn.rules import RULES

STEPS, BATCH, INPUTS, UNITS, CLASSES = 6, 4, 6, 7, 3
EXACT = 1e-12
Build = Callable[[], nn.Module]


def leaky() -> nn.Module:
    return ETBlock(ETLinear(UNITS, CLASSES), LI(decay=0.75))


def static() -> nn.Module:
    return Readout(nn.Linear(UNITS, CLASSES))


def linear(readout: Build = leaky, **options: Any) -> nn.Sequential:
    first = ALIF(decay=0.75, threshold=0.3, initial_membrane=0.1, **options)
    return nn.Sequential(
        ETBlock(ETLinear(INPUTS, UNITS), first), ETBlock(ETLinear(UNITS, UNITS), LIF(threshold=0.3)), readout()
    )


def recurrent() -> nn.Sequential:
    return nn.Sequential(ETBlock(ETRecurrent(INPUTS, UNITS), ALIF(threshold=0.3)), leaky())


def convolutional() -> nn.Sequential:
    convolution = ETConv2d(1, UNITS, (2, 3))
    with torch.no_grad():
        convolution.weight.mul_(2.0)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), ETBlock(convolution, LIF(threshold=0.3)), nn.Flatten(), leaky())


def with_statistics() -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm1d(INPUTS), nn.Dropout(0.2), *linear(static))


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return SGD(net.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-3, nesterov=True)


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return Adam(net.parameters(), lr=0.05, weight_decay=1e-3, fused=True)


def adamw(net: nn.Module) -> torch.optim.Optimizer:
    return AdamW(net.parameters(), lr=0.05, amsgrad=True, fused=True)


def learner_of(make: Build, rule: str, optimizer: Any = sgd, **options: Any) -> OnlineLearner:
    torch.manual_seed(0)
    net = make().double()
    return OnlineLearner(net, RULES[rule](), F.cross_entropy, optimizer(net), **options)


def data(sequences: int, steps: int = STEPS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = (torch.rand(sequences, steps, BATCH, INPUTS, generator=generator) < 0.5).double()
    return x, torch.randint(CLASSES, (sequences, BATCH), generator=generator)


def graphed(learner: OnlineLearner) -> GraphedLearner:
    x, y = data(1)
    return GraphedLearner(learner, torch.rand_like(x[0]), y[0] * 0, TapeCapture())


def both(
    make: Build, rule: str, optimizer: Any = sgd, scheduler: Any = None, **options: Any
) -> tuple[OnlineLearner, OnlineLearner]:
    """Learn three sequences, the second of which goes on with the first, eagerly and replayed; return both learners."""
    x, y = data(3)
    learners, results = [], []
    for replays in (False, True):
        learner = learner_of(make, rule, optimizer, **options)
        runner: Any = graphed(learner) if replays else learner
        schedule = None if scheduler is None else scheduler(learner.optimizer)
        torch.manual_seed(5)
        found = []
        for n in range(3):
            found.append(runner.learn(x[n], y[n], keep_state=n == 1))
            if schedule is not None:
                schedule.step()
        learners.append(learner)
        results.append(found)
    for mine, theirs in zip(*results, strict=True):
        assert_same_result(mine, theirs)
    eager, replayed = learners
    assert all(0.02 < rate < 0.8 for rate in results[0][0].firing_rates.values()), results[0][0].firing_rates
    before = learner_of(make, rule, optimizer, **options).net.state_dict()
    after, other = eager.net.state_dict(), replayed.net.state_dict()
    assert max(float((after[name] - before[name]).abs().max()) for name in after) > 1e-2  # control: it learned
    for name, value in after.items():
        torch.testing.assert_close(other[name], value, rtol=EXACT, atol=EXACT, msg=lambda m, n=name: f"{n}: {m}")
    return eager, replayed


def assert_same_result(mine: SequenceResult, theirs: SequenceResult) -> None:
    assert theirs.loss == pytest.approx(mine.loss, rel=EXACT)
    assert theirs.gradient_norm == pytest.approx(mine.gradient_norm, rel=1e-10)
    assert (theirs.accuracy, theirs.accuracy_last) == (mine.accuracy, mine.accuracy_last)
    assert (theirs.updates, theirs.steps, theirs.batch_size) == (mine.updates, mine.steps, mine.batch_size)
    assert (theirs.firing_rates, theirs.decisions) == (mine.firing_rates, mine.decisions)
    torch.testing.assert_close(theirs.output, mine.output, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(theirs.last_output, mine.last_output, rtol=EXACT, atol=EXACT)


NETS: dict[str, Build] = {"eprop": recurrent, "otpe": lambda: linear(static)}
CAPTURED = [
    *("sltt", "ottt", "ndot", "s_tllr", "drtrl", "ostl", "hypr", "es_drtrl", "otpe", "approximate_otpe", "eprop"),
    *("superspike", "dfa", "feedback_alignment"),
]
