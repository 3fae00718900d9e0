"""A built-in neuron runs a chunk by its own scan; one whose step was changed goes step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from snnlearn import ALIF, IF, LI, LIF, CubaLIF, Neuron
from snnlearn.functional.dynamics import SpikeFunction, State
from snnlearn.nn import chunk
from snnlearn.nn.chunk import Chunk, scan_cut, scan_neuron
from snnlearn.nn.lif import FiringNeuron

STEPS, BATCH, UNITS = 6, 3, 5
BUILT_IN: list[Callable[[], FiringNeuron]] = [
    lambda: LIF(decay=torch.linspace(0.4, 0.9, UNITS), initial_membrane=0.1),
    lambda: IF(reset="none", threshold=2.0),
    lambda: ALIF(reset="hard", initial_membrane=torch.linspace(0.0, 0.3, UNITS)),
    lambda: CubaLIF(detach_reset=False),
    lambda: ALIF(learn=("decay", "threshold", "initial_membrane")),
]


class Halved(LIF):
    """A LIF that takes half of its input, and says that its steps may be cut."""

    unit_drive: ClassVar[bool] = True

    def step_with(self, y: Tensor, state: State, spike_function: SpikeFunction) -> tuple[Tensor, State]:
        return super().step_with(0.5 * y, state, spike_function)


def drive() -> tuple[Tensor, Chunk]:
    restarts = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    restarts[2, 1] = restarts[4, 0] = True
    return 1.4 * torch.rand(STEPS, BATCH, UNITS, dtype=torch.float64), Chunk(STEPS, restarts)


@pytest.mark.parametrize("make", BUILT_IN)
@pytest.mark.parametrize("running", [False, True])
def test_a_scan_is_the_neuron_stepped(
    make: Callable[[], FiringNeuron], running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (y, spans), by_scan, by_steps = drive(), make(), make()
    assert by_scan.has_scan
    if running:
        for neuron in (by_scan, by_steps):
            neuron.carry_graph = False
            neuron(0.3 * y[0])
    with torch.no_grad():
        found, u = scan_cut(by_scan, y.clone(), spans)
        again = scan_neuron(by_scan, y.clone(), spans)
        monkeypatch.setattr(chunk, "_scans", lambda neuron: False)
        expected, expected_u = scan_cut(by_steps, y.clone(), spans)
        expected_again = scan_neuron(by_steps, y.clone(), spans)
    assert 0.02 < float(expected.spikes.mean()) < 0.8
    assert found.entering == ()  # where no Jacobian is asked for, nothing of the states is kept
    assert len(again.entering) == len(by_scan.state_names)
    assert by_scan.state is not None
    assert by_steps.state is not None
    theirs = (expected.spikes, expected_u, expected_again.spikes, *expected_again.entering, *by_steps.state)
    for ours, other in zip((found.spikes, u, again.spikes, *again.entering, *by_scan.state), theirs, strict=True):
        assert torch.equal(ours, other)


def test_a_changed_step_is_not_passed_over() -> None:
    y, spans = drive()
    halved, whole = Halved(), LIF()
    halved.carry_graph = whole.carry_graph = False
    assert halved.cuts_its_past
    assert not halved.has_scan
    with torch.no_grad():
        found, u = scan_cut(halved, y, spans)
        expected, expected_u = scan_cut(LIF(), 0.5 * y, spans)
        assert torch.equal(u, expected_u)
        assert torch.equal(found.spikes, expected.spikes)
        assert not torch.equal(u, scan_cut(whole, y, spans)[1])
    patched = LIF()
    assert patched.has_scan
    patched.step = lambda y, state: (y, state)  # type: ignore[method-assign]
    assert not patched.has_scan


def test_a_neuron_without_a_scan_says_so() -> None:
    others: list[Neuron] = [LI()]
    assert not any(getattr(neuron, "has_scan", False) for neuron in others)
    assert not FiringNeuron().has_scan
    with pytest.raises(TypeError, match="FiringNeuron has no scan; step it with step_with"):
        FiringNeuron().scan(torch.zeros(1, 1, 1), (torch.zeros(1, 1),), None, None)
