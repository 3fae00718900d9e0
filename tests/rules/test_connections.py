"""Every kind of connection against BPTT with the right edges cut, float64, each with a control that must differ."""

from collections import OrderedDict
from collections.abc import Callable

import pytest
from oracles.networks import error, online_gradients, oracle, problem, sequence
from torch import nn

from snnlearn import (
    LIF,
    OTTT,
    SLTT,
    CubaLIF,
    ETBlock,
    ETConv1d,
    ETConv2d,
    ETConv3d,
    ETConvTranspose1d,
    ETConvTranspose2d,
    ETConvTranspose3d,
    Readout,
    WeightStandardizedETConv2d,
    WeightStandardizedETLinear,
    attach,
)
from snnlearn.nn import Connection

EXACT = 1e-12
pytestmark = pytest.mark.usefixtures("unchecked")


def leaky() -> LIF:
    return LIF(decay=0.7)


def two_blocks(first: Connection, second: Connection, flat: int) -> nn.Module:
    layers: list[tuple[str, nn.Module]] = [
        ("first", ETBlock(first, leaky())),
        ("second", ETBlock(second, CubaLIF(decay=0.6, decay_synapse=0.4))),
        ("flatten", nn.Flatten()),
        ("readout", Readout(nn.Linear(flat, 3))),
    ]
    return nn.Sequential(OrderedDict(layers)).double()


def standardised() -> nn.Module:
    net = two_blocks(WeightStandardizedETLinear(7, 9), WeightStandardizedETLinear(9, 8), 8)
    for block in (net.first, net.second):
        nn.init.uniform_(block.connection.gain, 0.8, 1.6)
    return net


Case = tuple[Callable[[], nn.Module], tuple[int, ...]]
CASES: dict[str, Case] = {
    "conv 3d": (lambda: two_blocks(ETConv3d(2, 3, 2, padding=1), ETConv3d(3, 2, 3, stride=2), 2 * 4), (2, 3, 4, 4)),
    "conv 3d, groups, circular": (
        lambda: two_blocks(
            ETConv3d(2, 4, 2, groups=2, padding=1, padding_mode="circular"), ETConv3d(4, 4, 2, groups=4, bias=False), 32
        ),
        (2, 2, 2, 2),
    ),
    "conv 1d, groups": (lambda: two_blocks(ETConv1d(4, 6, 3, groups=2), ETConv1d(6, 6, 2, groups=6), 6 * 5), (4, 8)),
    "conv 2d, depthwise": (
        lambda: two_blocks(ETConv2d(3, 6, 3, groups=3, padding="same"), ETConv2d(6, 3, 1, stride=2), 3 * 4),
        (3, 4, 4),
    ),
    "transposed 1d": (
        lambda: two_blocks(
            ETConvTranspose1d(2, 4, 3, stride=2, padding=1, output_padding=1), ETConvTranspose1d(4, 3, 2), 3 * 11
        ),
        (2, 5),
    ),
    "transposed 2d, groups": (
        lambda: two_blocks(
            ETConvTranspose2d(2, 4, (2, 3), stride=(2, 1), groups=2, output_padding=(1, 0)),
            ETConvTranspose2d(4, 4, 2, groups=4, padding=1, bias=False),
            4 * 6 * 4,
        ),
        (2, 3, 3),
    ),
    "transposed 3d": (
        lambda: two_blocks(
            ETConvTranspose3d(2, 4, 2, dilation=(1, 2, 1)),
            ETConvTranspose3d(4, 2, 2, stride=2, padding=1, output_padding=1, groups=2),
            2 * 5 * 7 * 5,
        ),
        (2, 2, 2, 2),
    ),
    "standardised linear": (standardised, (7,)),
    "standardised convolution": (
        lambda: two_blocks(
            WeightStandardizedETConv2d(2, 4, 3, padding=1), WeightStandardizedETConv2d(4, 4, 3, groups=2), 16
        ),
        (2, 4, 4),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_factored_rules(name: str) -> None:
    """O1, O2 and O3 for weights, biases and gains."""
    build, shape = CASES[name]
    net, x, y = problem(build(), sequence(*shape))
    spatial, all_cut = online_gradients(net, SLTT(), x, y), oracle(net, x, y, "all")
    mine, full, above_cut = online_gradients(net, OTTT(), x, y), oracle(net, x, y), oracle(net, x, y, ["second"])
    assert set(mine) == {parameter for parameter, _ in net.named_parameters()}
    report = attach(net, OTTT())
    for parameter in mine:
        true = above_cut if parameter.startswith("first") else full
        assert error(mine[parameter], true[parameter]) < EXACT, parameter
        assert error(spatial[parameter], all_cut[parameter]) < EXACT, parameter
        assert report[parameter].exact, parameter
    for parameter in (p for p in mine if p.startswith("second")):
        assert error(spatial[parameter], full[parameter]) > 1e-2, parameter
    assert error(mine["first.connection.weight"], full["first.connection.weight"]) > 1e-3
