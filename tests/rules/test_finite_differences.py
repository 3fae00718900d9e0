"""BPTT against finite differences, with the spike replaced by its smooth primitive."""

import pytest
import torch
from oracles.networks import error, mlp, sequence
from torch import nn
from torch.nn import functional as F

from snnlearn import (
    ALIF,
    LI,
    LIF,
    ArcTan,
    CubaLIF,
    ETBlock,
    ETConv2d,
    ETLinear,
    Gaussian,
    Neuron,
    Readout,
    Sigmoid,
    Surrogate,
    WeightStandardizedETConv2d,
    bptt_gradients,
    reset,
)

pytestmark = pytest.mark.usefixtures("unchecked")
KINDS = {
    "LIF soft": lambda s: LIF(decay=0.7, detach_reset=False, surrogate=s),
    "LIF hard": lambda s: LIF(decay=0.7, reset="hard", detach_reset=False, surrogate=s),
    "CubaLIF": lambda s: CubaLIF(decay=0.7, decay_synapse=0.4, detach_reset=False, surrogate=s),
    "ALIF": lambda s: ALIF(decay=0.7, decay_adaptation=0.9, adaptation=0.3, detach_reset=False, surrogate=s),
}


def sequence_loss(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    reset(net)
    with torch.no_grad():
        loss = sum(float(F.cross_entropy(net(x_t), y)) for x_t in x) / len(x)
    reset(net)
    return loss


def finite_difference(
    net: nn.Module, p: nn.Parameter, x: torch.Tensor, y: torch.Tensor, h: float = 1e-6
) -> torch.Tensor:
    """Central differences along every coordinate of p."""
    gradient = torch.zeros_like(p)
    for index in range(p.numel()):
        flat = p.data.view(-1)
        kept = float(flat[index])
        values = []
        for sign in (1, -1):
            flat[index] = kept + sign * h
            values.append(sequence_loss(net, x, y))
        flat[index] = kept
        gradient.view(-1)[index] = (values[0] - values[1]) / (2 * h)
    return gradient


@pytest.mark.parametrize("surrogate", [ArcTan(), Sigmoid(), Gaussian()], ids=["arctan", "sigmoid", "gaussian"])
@pytest.mark.parametrize("kind", KINDS)
def test_bptt_equals_finite_differences_on_a_smoothed_net(kind: str, surrogate: Surrogate) -> None:
    def neuron() -> Neuron:
        return KINDS[kind](surrogate.smoothed())

    net, x, y = mlp(neuron, sizes=(3, 4, 4)), sequence(3, steps=5, batch=2), torch.tensor([0, 2])
    gradients = bptt_gradients(net, x, y)
    for name, p in net.named_parameters():
        true = finite_difference(net, p, x, y)
        assert float(true.norm()) > 1e-6, name
        assert error(gradients[name], true) < 1e-6, name
    cut = bptt_gradients(net, x, y, cut="all")
    assert error(cut["0.connection.weight"], gradients["0.connection.weight"]) > 1e-2


def test_a_detached_reset_is_what_finite_differences_do_not_see() -> None:
    """Control: with the reset taken as constant, the gradient is off, and by how much shows."""
    net = mlp(lambda: LIF(decay=0.7, detach_reset=True, surrogate=ArcTan().smoothed()), sizes=(3, 4, 4))
    x, y = sequence(3, steps=5, batch=2), torch.tensor([0, 2])
    p = dict(net.named_parameters())["0.connection.weight"]
    assert error(bptt_gradients(net, x, y)["0.connection.weight"], finite_difference(net, p, x, y)) > 1e-2


def test_convolution_weight_standardisation_and_leaky_readout() -> None:
    smooth = ArcTan().smoothed()
    net = nn.Sequential(
        ETBlock(WeightStandardizedETConv2d(1, 2, 3, padding=1), LIF(detach_reset=False, surrogate=smooth)),
        nn.AvgPool2d(2),
        ETBlock(ETConv2d(2, 2, 2), LIF(detach_reset=False, surrogate=smooth)),
        nn.Flatten(),
        Readout(nn.Linear(2, 3)),
    ).double()
    net[4] = ETBlock(ETLinear(2, 3), LI(tau=3.0)).double()
    x, y = sequence(1, 4, 4, steps=4, batch=2), torch.tensor([0, 2])
    gradients = bptt_gradients(net, x, y)
    for name, p in net.named_parameters():
        assert error(gradients[name], finite_difference(net, p, x, y)) < 1e-6, name
