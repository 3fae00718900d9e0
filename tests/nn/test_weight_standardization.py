"""Standardised linear weights: by hand, with a fan-in of one, and where the trace is the input."""

from __future__ import annotations

import copy

import pytest
import torch
from nets import assert_same, gradients
from oracles.networks import error, mlp, online_gradients, oracle, problem, sequence
from torch import nn
from torch.nn import functional as F

from snnlearn import DRTRL, LIF, OTTT, ETBlock, WeightStandardizedETConv2d, WeightStandardizedETLinear, attach
from snnlearn.functional import standardize_weight


def test_a_fan_in_of_one_is_refused() -> None:
    """G20."""
    with pytest.raises(ValueError, match=r"ETLinear\(1, 4\) has a fan-in of 1.*no variance.*use ETLinear"):
        WeightStandardizedETLinear(1, 4)
    with pytest.raises(ValueError, match=r"WeightStandardizedETConv2d\(4, 4, 1, groups=4\) has a fan-in of 1"):
        WeightStandardizedETConv2d(4, 4, 1, groups=4)
    assert bool(WeightStandardizedETLinear(2, 4)(torch.ones(3, 2)).isfinite().all())


@pytest.mark.parametrize("use_gain", [True, False])
def test_by_hand(use_gain: bool, device: torch.device) -> None:
    layer = WeightStandardizedETLinear(5, 4, eps=1e-3, use_gain=use_gain, device=device, dtype=torch.float64)
    assert ("gain" in layer.state_dict()) == use_gain
    if layer.gain is not None:
        nn.init.constant_(layer.gain, 1.5)
    weight = layer.weight.detach()
    centred = weight - weight.mean(1, keepdim=True)
    expected = centred / (centred.square().sum(1, keepdim=True) / 4 * 5 + 1e-3).sqrt() * (1.5 if use_gain else 1.0)
    torch.testing.assert_close(layer.effective_weight().detach(), expected, rtol=0, atol=1e-13)
    x = torch.randn(2, 3, 5, device=device, dtype=torch.float64)
    torch.testing.assert_close(layer(x), F.linear(x, expected, layer.bias))
    nn.init.constant_(layer.weight, 0.7)  # rows without any variance
    assert not layer.effective_weight().any()


def test_gradcheck() -> None:
    weight, gain = torch.randn(3, 2, 2, dtype=torch.float64), torch.rand(3, dtype=torch.float64) + 0.5
    assert torch.autograd.gradcheck(standardize_weight, (weight.requires_grad_(), gain.requires_grad_()))


def test_gradient_is_autograds_where_the_trace_is_the_input(device: torch.device) -> None:
    layer = WeightStandardizedETLinear(5, 4, device=device, dtype=torch.float64)
    plain = copy.deepcopy(layer)
    attach(ETBlock(layer, LIF()), OTTT())
    x = torch.randn(6, 5, device=device, dtype=torch.float64)
    output, expected = layer(x), plain(x)
    layer.advance_trace(x)
    output.square().sum().backward()
    expected.square().sum().backward()
    assert set(gradients(layer)) == {"weight", "bias", "gain"}
    assert_same(gradients(layer), gradients(plain), 1e-11)


@pytest.mark.usefixtures("unchecked")
def test_per_synapse_rules_take_it() -> None:
    """The eligibility is that of the standardised weights; one step of autograd takes it to W and gain."""
    net = mlp(lambda: LIF(reset="hard"))
    net[1] = ETBlock(WeightStandardizedETLinear(9, 8), LIF(reset="hard")).double()
    net, x, y = problem(net, sequence(7))
    mine, full = online_gradients(net, DRTRL(), x, y), oracle(net, x, y)
    for name in ("weight", "gain", "bias"):
        assert error(mine[f"1.connection.{name}"], full[f"1.connection.{name}"]) < 1e-12, name
    factored = online_gradients(net, OTTT(), x, y)
    assert error(factored["1.connection.gain"], full["1.connection.gain"]) > 1e-2  # the reset is hard
