"""The references of the neuron scans: the numbers of the neuron stepped by its module, and of autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from snnlearn import ALIF, LIF, ArcTan, CubaLIF, Sigmoid
from snnlearn.functional.cut_step import cut_gradient
from snnlearn.functional.dynamics import RESETS
from snnlearn.functional.neuron_scan import NeuronConstants, alif_scan, cuba_lif_scan, lif_scan
from snnlearn.nn.lif import FiringNeuron

STEPS, BATCH, UNITS = 6, 3, 5
Build = Callable[..., FiringNeuron]


def per_unit(low: float, high: float) -> Tensor:
    return torch.linspace(low, high, UNITS, dtype=torch.float64)


CONSTANTS: dict[str, tuple[Build, dict[str, tuple[float, tuple[float, float]]]]] = {
    "lif": (LIF, {"decay": (0.6, (0.3, 0.9))}),
    "alif": (
        ALIF,
        {"decay": (0.6, (0.3, 0.9)), "decay_adaptation": (0.9, (0.5, 0.95)), "adaptation": (0.2, (0.1, 0.4))},
    ),
    "cuba_lif": (
        CubaLIF,
        {"decay": (0.6, (0.3, 0.9)), "decay_synapse": (0.4, (0.2, 0.7))},
    ),
}
SCANS: dict[str, Callable[..., Any]] = {"lif": lif_scan, "alif": alif_scan, "cuba_lif": cuba_lif_scan}


def stepped(neuron: FiringNeuron, y: Tensor, restarts: Tensor | None) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """What the module does, one `advance_cut` after the other."""
    spikes, u = [], []
    for t, y_t in enumerate(y):
        if restarts is not None and bool(restarts[t].any()):
            neuron.reset(restarts[t])
        spike, u_t = neuron.advance_cut(y_t)
        spikes.append(spike)
        u.append(u_t)
    assert neuron.state is not None
    return torch.stack(spikes), torch.stack(u), neuron.state


@pytest.mark.parametrize("restarting", [False, True])
@pytest.mark.parametrize("per", ["number", "unit"])
@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("name", SCANS)
def test_a_scan_is_the_module_stepped(name: str, reset: str, per: str, restarting: bool) -> None:
    build, table = CONSTANTS[name]
    named = {key: one if per == "number" else per_unit(*ends) for key, (one, ends) in table.items()}
    threshold = 0.8 if per == "number" else per_unit(0.6, 1.1)
    neuron = build(**named, threshold=threshold, reset=reset, initial_membrane=0.1)
    y = torch.rand(STEPS, BATCH, UNITS, dtype=torch.float64)
    restarts = torch.rand(STEPS, BATCH) < 0.3 if restarting else None
    state = neuron.state_for(y[0])
    kept = [value.clone() for value in state]
    expected = stepped(neuron, y, restarts)
    held = {key: getattr(neuron, key) for key in named}
    constants = NeuronConstants(
        threshold=neuron.threshold, reset=reset, surrogate=neuron.surrogate, initial_membrane=0.1, **held
    )
    entering = tuple(torch.full((STEPS, *value.shape), torch.nan, dtype=value.dtype) for value in state)
    found = SCANS[name](y, state, constants, restarts, entering)
    for t in range(STEPS):
        _, one, _ = SCANS[name](y[t : t + 1], tuple(value[t] for value in entering), constants)
        assert torch.equal(one[0], found[1][t])
    assert 0.02 < float(expected[0].mean()) < 0.8
    for ours, theirs in zip((*found[:2], *found[2]), (*expected[:2], *expected[2]), strict=True):
        assert torch.equal(ours, theirs)
    assert all(torch.equal(value, before) for value, before in zip(state, kept, strict=True))
    if restarting:
        unbroken = SCANS[name](y, state, constants)
        assert not torch.equal(unbroken[1], found[1])


def test_the_state_of_a_scan_is_flushed() -> None:
    quiet = torch.zeros(200, 1, 1)
    *_, (v,) = lif_scan(quiet, (torch.ones(1, 1),), NeuronConstants(0.5, 2.0, "soft", ArcTan()))
    assert v.item() == 0
    assert 0.5**200 > 0  # float64 would have kept it, and float32 a subnormal number after 140 steps


def test_inputs_of_low_precision_meet_a_state_in_float32() -> None:
    y = torch.full((300, 1), 0.01).bfloat16()
    constants = NeuronConstants(0.99, 2.0, "soft", ArcTan())
    spikes, u, (v,) = lif_scan(y, (torch.zeros(1),), constants)
    assert {spikes.dtype, u.dtype, v.dtype} == {torch.float32}
    exact = float(y[0]) * (1 - 0.99**300) / (1 - 0.99)
    assert v.item() == pytest.approx(exact, rel=1e-5)
    *_, (stuck,) = lif_scan(y, (torch.zeros(1).bfloat16(),), constants)
    assert stuck.item() < 0.9 * exact


def test_the_gradient_of_a_scan_is_that_of_the_cut_step() -> None:
    y = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    signal = torch.randn(4, 3, dtype=torch.float64)
    neuron = LIF(threshold=0.7, surrogate=Sigmoid())
    (neuron(y) * signal).sum().backward()
    _, u, _ = lif_scan(y[None], (torch.zeros_like(y),), NeuronConstants(0.5, 0.7, "soft", Sigmoid()))
    assert y.grad is not None
    assert float(y.grad.abs().min()) > 0
    torch.testing.assert_close(cut_gradient(signal, u[0], Sigmoid()), y.grad)


def test_an_unknown_reset_is_refused() -> None:
    with pytest.raises(ValueError, match="choose one of soft, hard, none"):
        lif_scan(torch.zeros(1, 1), (torch.zeros(1),), NeuronConstants(0.5, 1.0, "weak", ArcTan()))
