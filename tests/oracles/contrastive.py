"""Small networks under traces propagation, and a plain loop that learns them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from nets import show
from torch import Tensor, nn
from torch.nn import functional as F

from oracles.networks import problem, scaled, sequence
from snnlearn import LI, LIF, ETBlock, ETLinear, LearningRule, TracesPropagation, attach
from snnlearn.engine.sequence import Meter

EXACT = 1e-12
SIZES, CLASSES = (7, 9, 8), 3
RULE = TracesPropagation(decay=0.8, temperature=2.0, seed=3)
HIDDEN = ("0.connection.weight", "0.connection.bias", "1.connection.weight", "1.connection.bias", "0.signal.projection")


def network(sizes: Sequence[int] = SIZES) -> nn.Sequential:
    blocks = [ETBlock(ETLinear(i, o), LIF()) for i, o in pairwise(sizes)]
    return scaled(nn.Sequential(*blocks, ETBlock(ETLinear(sizes[-1], CLASSES), LI(tau=4.0))))  # type: ignore[return-value]


def prepared(rule: LearningRule = RULE) -> tuple[Any, Tensor, Tensor]:
    net, x, y = problem(network(), sequence(7))
    attach(net, rule)
    with torch.no_grad():
        net[0].signal.projection.mul_(2.0)
    return net, x, y


def learn(net: nn.Module, x: Tensor, y: Tensor | None) -> dict[str, Tensor]:
    """Learn by a plain loop from the present state; return the sum of the steps' gradients."""
    net.zero_grad(set_to_none=True)
    show(net, y)
    with Meter(net) as meter:
        for x_t in x:
            output = net(x_t)
            F.cross_entropy(output, torch.zeros(len(output), dtype=torch.long) if y is None else y).backward()
    for name, rate in meter.firing_rates().items():
        assert 0.02 < rate < 0.8, f"{name} fires at {rate:.3f}: the comparison would be empty"
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
