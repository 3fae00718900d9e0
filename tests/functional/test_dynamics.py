"""One step of every neuron: hand numbers, analytic against forward-mode Jacobians, and the constant part."""

import itertools

import pytest
import torch
from torch import Tensor

from snnlearn import ALIF, IF, LI, LIF, CubaLIF, Neuron, Sigmoid
from snnlearn.functional import RESETS, jacobian_of

RESET_CASES = [{"reset": r, "detach_reset": d} for r, d in itertools.product(RESETS, (True, False))]
FACTORIES = [
    *[(f"IF-{c}", lambda c=c: IF(**c)) for c in RESET_CASES],
    *[(f"LIF-{c}", lambda c=c: LIF(decay=0.7, surrogate=Sigmoid(2.0), **c)) for c in RESET_CASES],
    *[(f"CubaLIF-{c}", lambda c=c: CubaLIF(decay=0.7, decay_synapse=0.4, **c)) for c in RESET_CASES],
    *[(f"ALIF-{c}", lambda c=c: ALIF(decay=0.7, decay_adaptation=0.9, adaptation=0.3, **c)) for c in RESET_CASES],
    ("LI", lambda: LI(decay=0.7)),
    ("LIF per unit", lambda: LIF(decay=torch.linspace(0.3, 0.9, 5, dtype=torch.float64))),
]


def random_point(neuron: Neuron) -> tuple[Tensor, tuple[Tensor, ...]]:
    y = 1.5 * torch.randn(4, 5, dtype=torch.float64)
    return y, tuple(torch.randn(4, 5, dtype=torch.float64) for _ in neuron.state_names)


@pytest.mark.parametrize("factory", [f for _, f in FACTORIES], ids=[n for n, _ in FACTORIES])
def test_analytic_jacobian_equals_forward_mode(factory) -> None:  # type: ignore[no-untyped-def]
    neuron = factory()
    y, state = random_point(neuron)
    spikes = neuron.step(y, state)[0]
    if neuron.spiking:
        assert 0.02 < float(spikes.mean()) < 0.8
    analytic, automatic = neuron.jacobian(y, state), jacobian_of(neuron.step, y, state)
    for name in analytic._fields:
        mine, theirs = getattr(analytic, name), getattr(automatic, name)
        assert mine.shape == theirs.shape, name
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-12, msg=name)
    assert not torch.allclose(analytic.spike_input, 1.1 * automatic.spike_input)


@pytest.mark.parametrize("factory", [f for _, f in FACTORIES], ids=[n for n, _ in FACTORIES])
def test_forward_mode_jacobian_equals_backward_mode(factory) -> None:  # type: ignore[no-untyped-def]
    """The two modes of autograd agree, so neither direction of the spike is wrong alone."""
    neuron = factory()
    y, state = random_point(neuron)
    inputs = [t.clone().requires_grad_() for t in (y, *state)]
    spike, after = neuron.step(inputs[0], tuple(inputs[1:]))
    jacobian = jacobian_of(neuron.step, y, state)
    for i, h in enumerate(after):
        rows = torch.autograd.grad(h.sum(), inputs, retain_graph=True, materialize_grads=True, allow_unused=True)
        torch.testing.assert_close(rows[0], jacobian.drive[i])
        for j, row in enumerate(rows[1:]):
            torch.testing.assert_close(row, jacobian.transition[i, j])
    rows = torch.autograd.grad(spike.sum(), inputs, materialize_grads=True, allow_unused=True)
    torch.testing.assert_close(rows[0], jacobian.spike_input)
    for j, row in enumerate(rows[1:]):
        torch.testing.assert_close(row, jacobian.spike_state[j])


@pytest.mark.parametrize("factory", [f for _, f in FACTORIES], ids=[n for n, _ in FACTORIES])
def test_stated_caveats_agree_with_the_jacobian(factory) -> None:  # type: ignore[no-untyped-def]
    """A neuron claims an exact factored trace exactly when its Jacobian is its constant part at every state."""
    neuron = factory()
    y, state = random_point(neuron)
    jacobian = neuron.jacobian(y, state)
    leak = neuron.leak_transition()
    # Fold the constant part to the same question: does d(spike)/d(y now) times the trace equal the true chain?
    hidden = len(leak.drive)
    constant = (
        hidden == len(neuron.state_names)
        and all(
            torch.allclose(jacobian.transition[i, j], torch.tensor(leak.transition[i][j], dtype=torch.float64))
            for i in range(hidden)
            for j in range(hidden)
        )
        and all(
            torch.allclose(jacobian.drive[i], torch.tensor(leak.drive[i], dtype=torch.float64)) for i in range(hidden)
        )
    )
    assert constant == (neuron.leak_caveats() == [])


@pytest.mark.parametrize(
    "neuron",
    [LIF(decay=0.7), LIF(decay=0.7, reset="none"), CubaLIF(decay=0.7, decay_synapse=0.4), LI(decay=0.7), IF()],
    ids=repr,
)
def test_derived_constant_part_equals_the_built_in_one(neuron: Neuron) -> None:
    """What the base class finds by probing is what the built-in neuron states."""
    derived, stated = Neuron.leak_transition(neuron), neuron.leak_transition()
    for mine, theirs in zip(derived, stated, strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), atol=1e-7, rtol=0)
    assert Neuron.leak_caveats(neuron) == []
    assert Neuron.leak_caveats(LIF(reset="hard")) != []


def test_soft_and_hard_reset_at_the_published_step() -> None:
    """decay 0.8, input 0.21: first spike at step 14 with v = 1.0038205 (float64)."""
    for reset, after in (("soft", 0.0038205), ("hard", 0.0)):
        neuron = LIF(decay=0.8, reset=reset)
        y = torch.full((1, 1), 0.21, dtype=torch.float64)
        spikes = [float(neuron(y)) for _ in range(14)]
        assert spikes == [0.0] * 13 + [1.0]
        assert neuron.state is not None
        assert float(neuron.state[0]) == pytest.approx(after, abs=1e-7)
        neuron(y)
        assert float(neuron.state[0]) == pytest.approx(0.8 * after + 0.21, abs=1e-7)


def test_current_based_neuron_by_hand() -> None:
    neuron = CubaLIF(decay=0.5, decay_synapse=0.25, threshold=1.0)
    inputs, spikes, states = [1.2, 0.0, 0.8], [], []
    for value in inputs:
        spikes.append(float(neuron(torch.full((1, 1), value, dtype=torch.float64))))
        states.append([float(s) for s in neuron.state or ()])
    # i: 1.2, 0.3, 0.875; v before reset: 1.2, 0.5*0.2+0.3=0.4, 0.2+0.875=1.075
    assert spikes == [1.0, 0.0, 1.0]
    assert states[0] == pytest.approx([1.2, 0.2])
    assert states[1] == pytest.approx([0.3, 0.4])
    assert states[2] == pytest.approx([0.875, 0.075])


def test_adaptive_neuron_by_hand() -> None:
    neuron = ALIF(decay=0.5, decay_adaptation=0.5, adaptation=0.4)
    spikes, states = [], []
    for value in (1.1, 1.3, 1.1):
        spikes.append(float(neuron(torch.full((1, 1), value, dtype=torch.float64))))
        states.append([float(s) for s in neuron.state or ()])
    # step 2: v = 0.05 + 1.3 = 1.35 below 1 + 0.4*1; step 3: v = 0.675 + 1.1 = 1.775 above 1 + 0.4*0.5
    assert spikes == [1.0, 0.0, 1.0]
    assert states[0] == pytest.approx([0.1, 1.0])
    assert states[1] == pytest.approx([1.35, 0.5])
    assert states[2] == pytest.approx([0.775, 1.25])


def test_unreachable_spike_is_refused() -> None:
    class Late(Neuron):
        state_names = ("v",)

        def step(self, y: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
            return self.spike(state[0] - 1.0), (0.5 * state[0] + y,)

    with pytest.raises(ValueError, match="does not reach the spike within one step"):
        Late().leak_transition()
