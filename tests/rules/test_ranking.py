"""How close each rule comes to BPTT in the first layer of a deep net: the order holds for every seed."""

from collections.abc import Callable

import pytest
import torch
from oracles.networks import lively, online_gradients, scaled
from torch import Tensor, nn

from snnlearn import (
    LIF,
    OTPE,
    OTTT,
    SLTT,
    ApproximateOTPE,
    ETBlock,
    ETConv2d,
    ETLinear,
    ETRecurrent,
    FastSigmoid,
    LearningRule,
    Readout,
    bptt_gradients,
)
from snnlearn.nn.connection import Connection

STEPS, BATCH, SEEDS = 12, 16, 20


WIDE = FastSigmoid(slope=2.0)


def blocks(decay: float, first: Connection, second: Connection) -> list[nn.Module]:
    return [ETBlock(connection, LIF(decay=decay, surrogate=WIDE)) for connection in (first, second)]


def linear(decay: float) -> nn.Sequential:
    return nn.Sequential(*blocks(decay, ETLinear(10, 12), ETLinear(12, 12)), Readout(nn.Linear(12, 3)))


def recurrent(decay: float) -> nn.Sequential:
    return nn.Sequential(*blocks(decay, ETRecurrent(10, 12), ETLinear(12, 12)), Readout(nn.Linear(12, 3)))


def convolutional(decay: float) -> nn.Sequential:
    layers = blocks(decay, ETConv2d(1, 3, 3), ETConv2d(3, 4, 3))
    return nn.Sequential(*layers, nn.Flatten(), Readout(nn.Linear(16, 3)))


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0))


def cosines(
    build: Callable[[float], nn.Module], shape: tuple[int, ...], decay: float, rules: list[LearningRule]
) -> Tensor:
    """[seeds, rules]: cosine of the first block's weight gradient with BPTT's, recurrent spikes cut."""
    found = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        net, y = scaled(build(decay), gain=2.0), torch.randint(3, (BATCH,))
        x = (torch.rand(STEPS, BATCH, *shape, dtype=torch.float64) < 0.4).double()
        if len(shape) > 1:
            lively(net, x)  # with so few inputs per unit, chance would leave some layers silent
        true = bptt_gradients(net, x, y, cut_recurrent=True)["0.connection.weight"]
        assert float(true.norm()) > 1e-6
        found.append([cosine(online_gradients(net, rule, x, y)["0.connection.weight"], true) for rule in rules])
    return torch.tensor(found)


def assert_ranked(found: Tensor, seeds: int) -> None:
    """Each rule is closer than the one before it, in the mean and for at least so many of the seeds."""
    assert bool((found.mean(0).diff() > 0).all()), found.mean(0)
    assert int((found.diff(dim=1) > 0).sum(0).min()) >= seeds, found


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("build", "decay"), [(linear, 0.5), (linear, 0.7), (linear, 0.9), (recurrent, 0.7)])
def test_sltt_ottt_approximate_otpe_otpe(build: Callable[[float], nn.Module], decay: float) -> None:
    found = cosines(build, (10,), decay, [SLTT(), OTTT(), ApproximateOTPE(), OTPE()])
    assert_ranked(found, SEEDS - 1)
    torch.testing.assert_close(found[:, 3], torch.ones(SEEDS), rtol=0, atol=1e-6)
    with pytest.raises(AssertionError):
        assert_ranked(found[:, [1, 0, 2, 3]], SEEDS - 1)  # control


@pytest.mark.usefixtures("unchecked")
def test_convolutions_without_the_rule_per_synapse() -> None:
    assert_ranked(cosines(convolutional, (1, 6, 6), 0.7, [SLTT(), OTTT(), ApproximateOTPE()]), 16)
