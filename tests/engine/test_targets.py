"""Targets of steps: labels that some sequences lack, the steps that accuracy is judged on, regression."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from snnlearn import LI, OTTT, ETBlock, ETLinear, OnlineLearner, SequenceLoss
from snnlearn.engine.sequence import Meter
from snnlearn.functional import MISSING_LABEL, mean_squared_error, step_loss

NONE = MISSING_LABEL


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_a_missing_label_counts_in_no_mean(weight: float) -> None:
    """The loss, and so the gradient, is that of the rows with a label; negative control: another label moves it."""
    output = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([2, NONE, 0, NONE])
    some = step_loss(output, target, weight)
    alone = step_loss(output[::2], target[::2], weight)
    assert some.item() == pytest.approx(alone.item(), rel=1e-12)
    (gradient,) = torch.autograd.grad(some, output)
    assert bool((gradient[1::2] == 0).all())
    assert bool((gradient[::2] != 0).any())
    assert step_loss(output, torch.tensor([2, 1, 0, NONE]), weight).item() != pytest.approx(alone.item())
    with pytest.raises(ValueError, match="labels run from -1 to 2"):
        step_loss(output, torch.tensor([2, -1, 0, NONE]), weight)


def metered(outputs: list[list[int]], targets: list[object], counted: list[bool], per_step: bool) -> Meter:
    """A meter that saw these answers (one-hot, B = 2) with a loss of 1 at every counted step."""
    with Meter(nn.Linear(1, 1), per_step) as meter:
        meter.batch_size = 2
        for answer, target, count in zip(outputs, targets, counted, strict=True):
            meter.add(F.one_hot(torch.tensor(answer), 3).float(), target, torch.tensor(1.0) if count else None)
    return meter


def test_labels_of_steps_are_counted_one_by_one() -> None:
    """By hand: of the five labels three are met; the mean over steps of the steps' shares would be 2/3."""
    targets = [torch.tensor([0, NONE]), torch.tensor([1, 2]), torch.tensor([1, 2])]
    result = metered([[0, 0], [1, 0], [0, 2]], list(targets), [True] * 3, per_step=True).result()
    assert (result.accuracy, result.decisions) == (pytest.approx(3 / 5), 5)


def test_accuracy_is_judged_on_the_steps_that_count() -> None:
    """Two early steps say class 0, the last one class 1: which of them count decides who is right."""
    label = torch.tensor([1, 0])
    answers = [[0, 0], [0, 0], [1, 0]]
    cases = {(True, True, True): 0.5, (False, False, True): 1.0, (True, False, False): 0.5, (False, False, False): 0.5}
    for counted, accuracy in cases.items():
        result = metered(answers, [label] * 3, list(counted), per_step=False).result()
        assert (result.accuracy, result.decisions) == (accuracy, 2), counted
        assert result.output.tolist() == [[pytest.approx(2 / 3), pytest.approx(1 / 3), 0], [1, 0, 0]]
    alternating = metered([[1, 0], [0, 0], [1, 0]], [label] * 3, [True, False, True], per_step=False)
    assert alternating.decided.tolist() == [[0, 2, 0], [2, 0, 0]]


def test_regression_by_hand() -> None:
    """A readout that doubles its input (leak 0.5 of the steps before): loss and gradient, step by step."""
    net = ETBlock(ETLinear(1, 1, bias=False), LI(decay=0.5)).double()
    with torch.no_grad():
        net.connection.weight.fill_(2.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    learner = OnlineLearner(net, OTTT(), SequenceLoss("squared_error"), optimizer)
    x = torch.tensor([[[1.0]], [[1.0]]], dtype=torch.float64)
    y = [torch.tensor([[3.0]], dtype=torch.float64), torch.tensor([[1.0]], dtype=torch.float64)]
    scale = float(learner.predict(x[:1]).last_output) / 2  # what a LI makes of its first input
    outputs = [2 * scale, 3 * scale]
    result = learner.learn(x, y, per_step_target=True)
    assert result.loss == pytest.approx(((outputs[0] - 3) ** 2 + (outputs[1] - 1) ** 2) / 2)
    assert (result.accuracy, result.decisions) == (None, 0)
    gradient = (2 * (outputs[0] - 3) * scale + 2 * (outputs[1] - 1) * 1.5 * scale) / 2
    assert net.connection.weight.item() == pytest.approx(2.0 - gradient)


def test_regression_refuses_labels_and_other_shapes() -> None:
    with pytest.raises(ValueError, match="for labels write criterion='mse'"):
        mean_squared_error(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"outputs \[2, 3\] and targets \[2, 1\]"):
        SequenceLoss("squared_error")(torch.zeros(2, 3), torch.zeros(2, 1))
