"""Steps at which only some samples have a label: rules that learn from the target leave the others out."""

from collections.abc import Callable

import pytest
import torch
from oracles.networks import problem, scaled, sequence
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    DECOLLE,
    ELL,
    ETLP,
    LI,
    LIF,
    OSTTP,
    TESS,
    ETBlock,
    ETLinear,
    LearningRule,
    TracesPropagation,
    attach,
    reset,
    show_target,
)
from snnlearn.functional.signals import as_values, local_loss, project_target

MISSING = -100


def gradients(net: nn.Module, rule: LearningRule, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    attach(net, rule)
    net.zero_grad(set_to_none=True)
    show_target(net, y)
    for x_t in x:
        F.cross_entropy(net(x_t), y).backward()
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("make", [OSTTP, lambda: ETLP(steps=1), DECOLLE, ELL, TESS, TracesPropagation])
def test_a_sample_without_a_label_is_as_if_it_were_not_there(make: Callable[[], LearningRule]) -> None:
    net = scaled(nn.Sequential(ETBlock(ETLinear(7, 9), LIF()), ETBlock(ETLinear(9, 3), LI())))
    net, x, _ = problem(net, sequence(7))
    y = torch.tensor([0, 2, MISSING, 1, MISSING])
    mine = gradients(net, make(), x, y)
    reset(net)
    there = torch.tensor([0, 1, 3])
    alone = gradients(net, make(), x[:, there], y[there])
    for name, gradient in mine.items():
        assert float(gradient.norm()) > 1e-9, name
        torch.testing.assert_close(gradient, alone[name], msg=name)
    wrong = gradients(net, make(), x, torch.tensor([0, 2, 0, 1, 0]))
    assert float((wrong["0.connection.weight"] - mine["0.connection.weight"]).norm()) > 1e-6  # control


def test_numbers_by_hand() -> None:
    y = torch.tensor([1, MISSING])
    values = as_values(y, 2, torch.float32)
    assert values.tolist() == [[0.0, 1.0], [0.0, 0.0]]
    feedback = torch.tensor([[1.0, 2.0]])
    assert project_target(values, feedback, samples=1).tolist() == [[-2.0], [0.0]]
    output = torch.tensor([[0.0, 0.0], [9.0, 9.0]])
    assert float(local_loss(output, y, "mse")) == 0.5
    assert float(local_loss(output, torch.tensor([MISSING, MISSING]), "cross_entropy")) == 0.0
    with pytest.raises(ValueError, match="labels run from 0 to 5 and the network has 2 outputs"):
        as_values(torch.tensor([0, 5]), 2, torch.float32)
