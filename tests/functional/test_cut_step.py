"""A step whose past is a constant, as one autograd node, against autograd's own path through the same step."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from snnlearn import ALIF, IF, LIF, ArcTan, CubaLIF
from snnlearn.functional import SURROGATES, Surrogate, cut_step
from snnlearn.functional.cut_step import Firing
from snnlearn.nn import FiringNeuron

Build = Callable[[str, bool, Surrogate], FiringNeuron]
NEURONS: dict[str, Build] = {
    "IF": lambda reset, detach, surrogate: IF(reset=reset, detach_reset=detach, surrogate=surrogate),
    "LIF": lambda reset, detach, surrogate: LIF(tau=3.0, reset=reset, detach_reset=detach, surrogate=surrogate),
    "ALIF": lambda reset, detach, surrogate: ALIF(tau=3.0, reset=reset, detach_reset=detach, surrogate=surrogate),
    "CubaLIF": lambda reset, detach, surrogate: CubaLIF(tau=3.0, reset=reset, detach_reset=detach, surrogate=surrogate),
}
EVERY_NEURON = pytest.mark.parametrize("build", NEURONS.values(), ids=NEURONS)


def run(neuron: FiringNeuron, inputs: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Step along inputs [T, B, U]; return spikes, dL/dy of L = sum(weights * spikes), and the final state."""
    y = inputs.clone().requires_grad_()
    spikes = torch.stack([neuron(y_t) for y_t in y])
    (spikes * weights).sum().backward()
    assert y.grad is not None
    assert neuron.state is not None
    return spikes.detach(), y.grad, list(neuron.state)


@EVERY_NEURON
@pytest.mark.parametrize("reset", ["soft", "hard", "none"])
@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_one_node_equals_autograd_through_the_step(build: Build, reset: str, detach: bool, surrogate: str) -> None:
    """The other path: a subclass inherits the step but not `unit_drive`, so autograd walks through it."""
    neuron = build(reset, detach, SURROGATES[surrogate]())
    plain = build(reset, detach, SURROGATES[surrogate]())
    plain.__class__ = type("Walked", (type(plain),), {})
    neuron.carry_graph = plain.carry_graph = False
    assert neuron.cuts_its_past
    assert not plain.cuts_its_past
    inputs, weights = torch.rand(6, 3, 8, dtype=torch.float64), torch.randn(6, 3, 8, dtype=torch.float64)
    spikes, gradient, state = run(neuron, inputs, weights)
    other_spikes, other_gradient, other_state = run(plain, inputs, weights)
    assert 0.02 < float(spikes.mean()) < 0.8
    assert bool(gradient.any())
    torch.testing.assert_close(spikes, other_spikes, rtol=0, atol=0)
    torch.testing.assert_close(gradient, other_gradient, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(state, other_state, rtol=0, atol=0)
    carried = build(reset, detach, SURROGATES[surrogate]())
    assert not carried.cuts_its_past  # negative control: with the graph carried on, the past counts too
    _, through_time, _ = run(carried, inputs, weights)
    assert float((through_time - gradient).norm() / gradient.norm()) > 1e-2


def test_a_subclass_that_changes_the_step_is_walked_through() -> None:
    """Its du/dy is 3, which the node could not know."""

    class Loud(LIF):
        def step(self, y: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
            return super().step(3 * y, state)

    neuron = Loud()
    neuron.carry_graph = False
    y = torch.full((1, 1), 0.2, requires_grad=True)
    neuron(y).sum().backward()
    right = 3 * ArcTan().derivative(torch.tensor([[3 * 0.2 - 1.0]]))
    torch.testing.assert_close(y.grad, right)


@EVERY_NEURON
def test_gradcheck_of_the_smoothed_step(build: Build) -> None:
    y = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    neuron = build("soft", True, ArcTan().smoothed())

    def spikes(y: Tensor) -> Tensor:
        neuron.reset()
        neuron.state = tuple(torch.full_like(y, 0.3) for _ in neuron.state_names)
        return cut_step(neuron.advance_cut, y, neuron.surrogate)

    assert torch.autograd.gradcheck(spikes, (y,))


def test_a_graph_of_the_gradient_is_refused() -> None:
    neuron = LIF()
    neuron.carry_graph = False
    y = torch.ones(1, 2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"create_graph=True reached a neuron .* attach BPTT\(\)"):
        torch.autograd.grad(neuron(y).sum(), y, create_graph=True)


def test_a_step_that_fires_twice_is_refused() -> None:
    firing = Firing(ArcTan())
    firing(torch.ones(1))
    with pytest.raises(AssertionError, match="fired twice"):
        firing(torch.ones(1))
