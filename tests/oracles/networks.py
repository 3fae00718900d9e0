"""Networks and sequences for the oracle tests, tuned so that every neuron layer fires."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import SLTT, ETBlock, ETLinear, LearningRule, Neuron, Readout, attach, bptt_gradients, reset
from snnlearn.engine.sequence import Meter

STEPS, BATCH = 10, 5
NeuronFactory = Callable[[], Neuron]


def mlp(neuron: NeuronFactory, sizes: tuple[int, ...] = (7, 9, 8), classes: int = 3) -> nn.Sequential:
    """Hidden blocks named 0, 1, ... and a static readout."""
    blocks: list[nn.Module] = [ETBlock(ETLinear(i, o), neuron()) for i, o in pairwise(sizes)]
    return scaled(nn.Sequential(*blocks, Readout(nn.Linear(sizes[-1], classes))))


def scaled(net: nn.Module, gain: float = 2.5) -> nn.Module:
    """Make the network float64 and drive it hard enough to fire."""
    net = net.double()
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name.endswith("weight") and p.dim() > 1:
                p.mul_(gain)
            if name.endswith("bias"):
                p.uniform_(0.0, 0.3)
    return net


def lively(net: nn.Module, x: Tensor) -> nn.Module:
    """Scale each block's weights until its neurons fire at a middling rate on x, first block first."""
    attach(net, SLTT())
    blocks = {name or "block": m for name, m in net.named_modules() if isinstance(m, ETBlock) and m.neuron.spiking}
    for name, block in blocks.items():
        for _ in range(60):
            reset(net)
            with torch.no_grad(), Meter(net) as meter:
                for x_t in x:
                    net(x_t)
            rate = meter.firing_rates()[name]
            if 0.08 < rate < 0.45:
                break
            with torch.no_grad():
                for p in block.connection.parameters():
                    p.mul_(1.25 if rate <= 0.08 else 0.85)
    reset(net)
    return net


def problem(net: nn.Module, x: Tensor, classes: int = 3) -> tuple[Any, Tensor, Tensor]:
    """A network that fires on x, x itself, and random labels."""
    return lively(net, x), x, labels(classes, x.shape[1])


def sequence(*shape: int, steps: int = STEPS, batch: int = BATCH) -> Tensor:
    """Random input [T, B, *shape], a third of it silent."""
    x = torch.rand(steps, batch, *shape, dtype=torch.float64)
    return torch.where(torch.rand_like(x) < 0.33, torch.zeros_like(x), x)


def labels(classes: int = 3, batch: int = BATCH) -> Tensor:
    """Random labels [B]."""
    return torch.randint(classes, (batch,))


def online_gradients(
    net: nn.Module, rule: LearningRule, x: Tensor, y: Any, loss: Callable[..., Tensor] = F.cross_entropy
) -> dict[str, Tensor]:
    """The rule's gradient of the mean step loss, by a plain loop: no learner, one backward per step."""
    rule.attach(net)
    net.zero_grad(set_to_none=True)
    with Meter(net) as meter:
        for x_t in x:
            output = net(x_t)
            (loss(output, y) / len(x)).backward()
    for name, rate in meter.firing_rates().items():
        assert 0.02 < rate < 0.8, f"{name} fires at {rate:.3f}: the comparison would be empty"
    gradients = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
    assert all(float(g.norm()) > 1e-12 for g in gradients.values()), "a zero gradient proves nothing"
    return gradients


def oracle(
    net: nn.Module, x: Tensor, y: Any, cut: Any = (), loss: Callable[..., Tensor] = F.cross_entropy
) -> dict[str, Tensor]:
    """Autograd's gradient with temporal edges cut."""
    return bptt_gradients(net, x, y, loss=loss, cut=cut)


def error(mine: Tensor, true: Tensor) -> float:
    """Relative error."""
    return float((mine - true).norm() / true.norm())
