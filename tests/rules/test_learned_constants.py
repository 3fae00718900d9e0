"""Learned constants: D-RTRL against BPTT, BPTT against finite differences, and numbers by hand; float64."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from oracles.networks import error, online_gradients, oracle, problem, scaled, sequence
from test_finite_differences import finite_difference
from torch import Tensor, nn

from snnlearn import (
    ALIF,
    DRTRL,
    IF,
    LI,
    LIF,
    ArcTan,
    CubaLIF,
    ETBlock,
    ETLinear,
    Neuron,
    Readout,
    bptt_gradients,
    reset,
)
from snnlearn.functional import RESETS
from snnlearn.functional.synaptic import advance_eligibility, read_eligibility

EXACT = 1e-12
UNITS = 6
CONSTANTS: dict[Any, dict[str, float]] = {
    LIF: {"decay": 0.7, "threshold": 0.8, "initial_membrane": 0.3},
    CubaLIF: {"decay": 0.7, "decay_synapse": 0.4, "threshold": 0.8, "initial_membrane": 0.3},
    ALIF: {
        "decay": 0.7,
        "decay_adaptation": 0.9,
        "adaptation": 0.3,
        "threshold": 0.8,
        "initial_membrane": 0.3,
    },
    IF: {"threshold": 0.8, "initial_membrane": 0.3},
}
RESETTING = list(itertools.product(RESETS, (True, False)))


def neuron(kind: Any, per_unit: bool, learn: tuple[str, ...], units: int = UNITS, **options: Any) -> Any:
    """A neuron that learns the named constants."""
    values: dict[str, Any] = dict(CONSTANTS[kind])
    for name in learn if per_unit else ():
        values[name] = values[name] * torch.linspace(0.9, 1.08, units, dtype=torch.float64)
    return kind(**values, learn=learn, **options).double()


def one_layer(built: Neuron) -> nn.Sequential:
    """A hidden block and a static readout."""
    return scaled(nn.Sequential(ETBlock(ETLinear(5, UNITS), built), Readout(nn.Linear(UNITS, 3))))  # type: ignore[return-value]


@pytest.mark.parametrize(("how", "detach"), RESETTING)
@pytest.mark.parametrize("per_unit", [False, True])
@pytest.mark.parametrize("kind", CONSTANTS)
def test_drtrl_of_every_constant_is_bptt(kind: Any, per_unit: bool, how: str, detach: bool) -> None:
    built = neuron(kind, per_unit, tuple(CONSTANTS[kind]), reset=how, detach_reset=detach)
    net, x, y = problem(one_layer(built), sequence(5))
    report = DRTRL().attach(net)
    mine, true = online_gradients(net, DRTRL(), x, y), oracle(net, x, y)
    cut = oracle(net, x, y, cut="all")
    keys = {f"0.neuron.{parameter}": constant for parameter, constant in built.learned.items()}
    assert keys.keys() <= mine.keys()
    for key, constant in keys.items():
        assert report[key].exact
        assert mine[key].numel() == (UNITS if per_unit else 1)
        assert error(mine[key], true[key]) < EXACT, key
        if constant != "threshold" or how == "soft":  # else nothing need remember a threshold
            assert error(cut[key], true[key]) > 1e-2, key  # control: the past matters
    assert error(mine["0.connection.weight"], true["0.connection.weight"]) < EXACT


@pytest.mark.parametrize("per_unit", [False, True])
def test_drtrl_of_a_leaky_readout_is_bptt(per_unit: bool) -> None:
    decay = torch.tensor([0.6, 0.7, 0.8], dtype=torch.float64) if per_unit else 0.7
    net = nn.Sequential(
        ETBlock(ETLinear(5, UNITS), LIF()), ETBlock(ETLinear(UNITS, 3), LI(decay=decay, learn=["decay"]))
    )
    net, x, y = problem(scaled(net), sequence(5))
    mine, true = online_gradients(net, DRTRL(), x, y), oracle(net, x, y)
    assert error(mine["1.neuron.decay_logit"], true["1.neuron.decay_logit"]) < EXACT
    cut = oracle(net, x, y, cut="all")
    assert error(cut["1.neuron.decay_logit"], true["1.neuron.decay_logit"]) > 1e-2


def eligibility_gradients(built: Neuron, y: Tensor, signal: Tensor) -> dict[str, Tensor]:
    """The recurrence of `functional.synaptic` for the neuron's own parameters, from input and dL/ds [T, B, O]."""
    reset(built)
    names = [name for name, _ in built.named_parameters()]
    kept = built.initial_derivatives(y[0])
    total = {name: torch.zeros_like(p) for name, p in built.named_parameters()}
    with torch.no_grad():
        for y_t, signal_t in zip(y, signal, strict=True):
            step = built.advance_linearised(y_t)
            direct = step.parameters
            for name, before, now in zip(names, kept, direct, strict=True):
                by = read_eligibility(before.unsqueeze(-1), step.jacobian.spike_state, now.spike.unsqueeze(-1))
                total[name] += (signal_t * by.squeeze(-1)).sum_to_size(total[name].shape)
            kept = tuple(
                advance_eligibility(before.unsqueeze(-1), step.jacobian.transition, now.state.unsqueeze(-1)).squeeze(-1)
                for before, now in zip(kept, direct, strict=True)
            )
    return total


@pytest.mark.parametrize(("how", "detach"), RESETTING)
@pytest.mark.parametrize("per_unit", [False, True])
@pytest.mark.parametrize("kind", [*CONSTANTS, LI])
def test_an_eligibility_that_starts_at_the_initial_derivative_is_bptt(
    kind: Any, per_unit: bool, how: str, detach: bool
) -> None:
    if kind is LI:
        start = torch.linspace(0.1, 0.5, UNITS, dtype=torch.float64) if per_unit else 0.3
        built: Any = LI(decay=0.7, initial_membrane=start, learn=["decay", "initial_membrane"]).double()
    else:
        built = neuron(kind, per_unit, tuple(CONSTANTS[kind]), reset=how, detach_reset=detach)
    y, signal = torch.rand(8, 4, UNITS, dtype=torch.float64), torch.randn(8, 4, UNITS, dtype=torch.float64)
    mine = eligibility_gradients(built, y, signal)
    reset(built)
    spikes = torch.stack([built(y_t) for y_t in y])
    assert 0.02 < float(spikes.detach().mean()) < 3
    true = torch.autograd.grad((spikes * signal).sum(), list(built.parameters()))
    for (name, gradient), expected in zip(mine.items(), true, strict=True):
        assert float(expected.norm()) > 1e-3, name
        assert error(gradient, expected) < EXACT, name


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("how", RESETS)
@pytest.mark.parametrize("per_unit", [False, True])
@pytest.mark.parametrize("kind", CONSTANTS)
def test_bptt_of_every_constant_is_the_finite_difference(kind: Any, per_unit: bool, how: str) -> None:
    built = neuron(kind, per_unit, tuple(CONSTANTS[kind]), reset=how, detach_reset=False, surrogate=ArcTan().smoothed())
    net, x, y = one_layer(built), sequence(5, steps=5, batch=2), torch.tensor([0, 2])
    gradients = bptt_gradients(net, x, y)
    for name, p in built.named_parameters():
        true = finite_difference(net, p, x, y)
        assert float(true.norm()) > 1e-6, name
        assert error(gradients[f"0.neuron.{name}"], true) < 1e-6, name
    cut = bptt_gradients(net, x, y, cut="all")
    name = "0.neuron.initial_membrane"
    assert error(cut[name], gradients[name]) > 1e-2  # control


def test_bptt_of_a_leaky_readout_is_the_finite_difference() -> None:
    start = [0.1, 0.2, 0.4]  # one for all would shift every class alike, which a cross-entropy does not see
    built = LI(decay=0.7, initial_membrane=start, learn=["decay", "initial_membrane"]).double()
    net = scaled(nn.Sequential(ETBlock(ETLinear(5, 3), built)))
    x, y = sequence(5, steps=5, batch=2), torch.tensor([0, 2])
    gradients = bptt_gradients(net, x, y)
    for name, p in built.named_parameters():
        assert error(gradients[f"0.neuron.{name}"], finite_difference(net, p, x, y)) < 1e-6, name


# By hand: decay 0.5, threshold 1.


def by_hand(how: str, inputs: list[float], membranes: list[float]) -> tuple[float, list[float]]:
    """The derivative of sum_t s_t by the threshold, and psi at each membrane before the reset."""
    built: Any = LIF(decay=0.5, reset=how, learn=("threshold",)).double()
    with torch.no_grad():
        built.threshold_inverse_softplus.fill_(math.log(math.e - 1))  # threshold 1 in double precision
    spikes = torch.stack([built(torch.full((1, 1), y, dtype=torch.float64)) for y in inputs])
    assert spikes.flatten().tolist() == [float(v >= 1) for v in membranes]
    (gradient,) = torch.autograd.grad(spikes.sum(), list(built.parameters()))
    slope = 1 - math.exp(-1)  # of the softplus where it is 1
    return float(gradient) / slope, [1 / (1 + (math.pi * (v - 1)) ** 2) for v in membranes]


def test_threshold_without_a_reset_by_hand() -> None:
    """G11: dL/dthreshold = -sum_t psi_t."""
    found, psi = by_hand("none", [0.7, 0.7, 0.1, 0.4], [0.7, 1.05, 0.625, 0.7125])
    assert found == pytest.approx(-sum(psi), rel=1e-12)


def test_threshold_that_a_detached_soft_reset_subtracts_by_hand() -> None:
    """The spike of step 2 takes a threshold off, of which step 3 sees a half and step 4 a quarter: it counts."""
    found, psi = by_hand("soft", [0.7, 0.7, 0.1, 0.7], [0.7, 1.05, 0.125, 0.7625])
    assert found == pytest.approx(-sum(psi) - 0.5 * psi[2] - 0.25 * psi[3], rel=1e-12)
    assert abs(found + sum(psi)) > 0.05  # control: without the subtraction's share it is another number
