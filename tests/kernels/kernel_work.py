"""Small learners of which each runs by other kernels."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import ALIF, LI, LIF, CubaLIF, ETBlock, ETLinear, OnlineLearner, Readout
from snnlearn.rules import DRTRL, OTTT, EProp

RULES: dict[str, tuple[Any, Any, int]] = {
    "ottt by single steps": (OTTT, LIF, 1),
    "ottt": (OTTT, LIF, 4),
    "d_rtrl": (DRTRL, ALIF, 3),
    "e_prop": (EProp, LIF, 3),
    "e_prop behind a hard reset": (EProp, partial(LIF, reset="hard"), 3),
    "cuba": (DRTRL, CubaLIF, 3),
}


def learned(name: str) -> list[Tensor]:
    """The updates, which are the gradients, and the loss of a sequence of 8 steps, in whose middle a row restarts."""
    rule, neuron, chunk = RULES[name]
    torch.manual_seed(0)
    net = nn.Sequential(
        ETBlock(ETLinear(6, 7), neuron(threshold=0.3)),
        *([] if rule is EProp else [ETBlock(ETLinear(7, 7), neuron(threshold=0.3))]),
        ETBlock(ETLinear(7, 3), LI(decay=0.8)) if rule is EProp else Readout(nn.Linear(7, 3)),
    )
    learner = OnlineLearner(net, rule(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=1.0), chunk=chunk)
    before = [p.detach().clone() for p in net.parameters()]
    x, labels = (torch.rand(8, 4, 6) < 0.5).float(), torch.randint(3, (8, 4))
    restarts = torch.zeros(8, 4, dtype=torch.bool)
    restarts[4, 1] = True
    result = learner.learn(x, labels, per_step_target=True, restarts=restarts)
    assert all(0.02 < rate < 0.8 for rate in result.firing_rates.values()), result.firing_rates
    after = [p.detach() for p in net.parameters()]
    return [*map(torch.sub, before, after), torch.tensor(result.loss)]
