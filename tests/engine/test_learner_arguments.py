"""What a learner is given at learn(): wrong kinds are refused by name, and nothing is taken for something else."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    DRTRL,
    LI,
    LIF,
    OTTT,
    TESS,
    ETBlock,
    ETConv2d,
    ETLinear,
    ETRecurrent,
    OnlineLearner,
    TracesPropagation,
)
from snnlearn.rules import LearningRule, RuleChoiceError

X, Y = torch.ones(3, 2, 4), torch.tensor([0, 1])


def learner_of(loss: Any = F.cross_entropy, norm: nn.Module | None = None, rule: Any = None) -> OnlineLearner:
    net = nn.Sequential(ETBlock(ETLinear(4, 3), LIF(), norm), ETBlock(ETLinear(3, 2), LI()))
    return OnlineLearner(net, rule or OTTT(), loss, torch.optim.SGD(net.parameters(), lr=0.1))


@pytest.mark.parametrize("call", ["learn", "evaluate"])
@pytest.mark.parametrize("flag", ["no", None, 1])
def test_a_flag_is_true_or_false(call: str, flag: Any, unchecked: None) -> None:
    with pytest.raises(TypeError, match=r"per_step_target=.*True where y has a target for every step"):
        getattr(learner_of(), call)(X, Y, per_step_target=flag)


def test_flags_of_rules(unchecked: None) -> None:
    for make in (lambda: TESS(square="no"), lambda: TracesPropagation(trained=None)):  # type: ignore[arg-type]
        with pytest.raises(RuleChoiceError, match="True or False"):
            make()
    with pytest.raises(RuleChoiceError, match=r"contrast='x': it takes Contrast\(...\)"):
        LearningRule(transition="none", storage="none", signal="contrastive", contrast="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["learn", "evaluate", "predict"])
def test_no_sequence(call: str, unchecked: None) -> None:
    with pytest.raises(TypeError, match=r"the sequence x is a NoneType: it takes a tensor \[T, B, ...\]"):
        getattr(learner_of(), call)(*((None,) if call == "predict" else (None, Y)))


def of_each(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")


def as_number(output: Tensor, target: Tensor) -> float:
    return F.cross_entropy(output, target).item()


def detached(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target).detach()


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (of_each, TypeError, r"the loss of a step is \[2\]: it is one number"),
        (as_number, TypeError, "the loss of a step is float: it is one number as a tensor"),
        (detached, RuntimeError, "the loss has no graph"),
    ],
)
def test_a_loss_is_one_number_with_a_graph(loss: Any, error: type[Exception], message: str, unchecked: None) -> None:
    with pytest.raises(error, match=message):
        learner_of(loss).learn(X, Y)


def test_a_sequence_without_a_target_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert learner_of().learn(X, torch.full((2,), -100)).updates == 0
    assert "a sequence without a single target was met; it changes no weight" in caplog.text
    caplog.clear()
    assert learner_of().learn(X, Y).updates == 1
    assert not caplog.text


def test_a_norm_that_thaws_makes_the_report_untrue_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    norm = nn.BatchNorm1d(3).eval()
    learner = learner_of(norm=norm, rule=DRTRL())
    learner.learn(X, Y)
    assert "was frozen" not in caplog.text
    learner.net.train()
    learner.learn(torch.rand(3, 2, 4), Y)
    assert "0.norm was frozen when the rule was attached" in caplog.text


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_without_a_number_are_refused() -> None:
    for connection in (ETLinear(0, 3), ETConv2d(1, 0, 3)):
        with pytest.raises(ValueError, match="holds no number"):
            ETBlock(connection, LIF())


def test_the_diagonal_of_a_recurrent_layer_is_zero() -> None:
    assert bool((ETRecurrent(3, 4).recurrent_weight.diag() == 0).all())
    assert bool((ETRecurrent(3, 4, self_connections=True).recurrent_weight.diag() != 0).all())
