"""One step of a neuron whose past is a constant: what an online rule differentiates, in one autograd node.

With the state cut from the graph, the only path from the spike back to the input of the step is

    dL/dy = psi(u) * dL/ds        u = membrane - threshold, and du/dy = 1

so the step needs no graph of its own: u is kept, and nothing else. The values come from the neuron's own step
function, which stays the one home of its equations. `LinearCutStep` joins a linear connection to it and `ConvCutStep` a
convolution, so that a whole block is one node; their equations are those of `CutStep` and of
`snnlearn.functional.eligibility`. The y of such a node is nobody else's, so the neuron may write over it.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.eligibility import (
    TraceSource,
    convolution_gradients,
    linear_gradients,
    refuse_second_order,
)
from snnlearn.functional.precision import in_products, outside_autocast, remembers_autocast, widened
from snnlearn.functional.surrogates import SURROGATES, Surrogate
from snnlearn.functional.weighted_map import Convolution, Dense
from snnlearn.kernels import dispatch

CutAdvance = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Advances a neuron by its input y outside autograd, keeps the new state, and returns (spike, u)."""


@runtime_checkable
class TraceToAdvance(TraceSource, Protocol):
    """A trace that also takes in the step's input, in place."""

    def advance_(self, x: Tensor) -> None:
        """Take x into the trace and tick."""
        ...


class Firing:
    """Spikes of a surrogate without its derivative, and the u that they came from.

    >>> from snnlearn.functional import ArcTan
    >>> firing = Firing(ArcTan()); firing(torch.tensor([0.5])), firing.u
    (tensor([1.]), tensor([0.5000]))
    """

    def __init__(self, surrogate: Surrogate) -> None:
        self.surrogate = surrogate
        self.u: Tensor | None = None

    def __call__(self, u: Tensor) -> Tensor:
        """Return the spikes of u = membrane - threshold and keep u; legal once."""
        assert self.u is None, "the step fired twice: a cut step calls its spike function once"
        self.u = u
        return self.surrogate.fire(u)


OWN_MEMORY = frozenset(SURROGATES.values())
"""Surrogates, these very classes, whose derivative is a tensor that nobody else holds."""


def cut_gradient(
    signals: Float[Tensor, "*units"], u: Float[Tensor, "*units"], surrogate: Surrogate
) -> Float[Tensor, "*units"]:
    """Return dL/dy = psi(u) dL/ds [*units] for the signals dL/ds and the u of each spike.

    >>> from snnlearn.functional import ArcTan
    >>> cut_gradient(torch.full((1,), 3.0), torch.zeros(1), ArcTan())
    tensor([3.])
    """
    psi = surrogate.derivative(u)
    if type(surrogate) in OWN_MEMORY and signals.dtype == psi.dtype and not torch.is_grad_enabled():
        return psi.mul_(signals)  # a new large map takes longer than the product
    return signals * psi


def spike_gate(u: Float[Tensor, "*units"], surrogate: Surrogate) -> Float[Tensor, "*units"]:
    """Return ds/dy = psi(u) [*units] where du/dy = 1.

    >>> from snnlearn.functional import ArcTan
    >>> spike_gate(torch.zeros(1), ArcTan())
    tensor([1.])
    """
    return surrogate.derivative(u)


class CutStep(torch.autograd.Function):
    """Advance a neuron outside the graph; backward is the surrogate's derivative alone."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, advance: CutAdvance, surrogate: Surrogate) -> Tensor:
        """Return the spikes; keep u."""
        spike, u = advance(y)
        ctx.surrogate = surrogate
        ctx.save_for_backward(u)
        return spike

    @staticmethod
    def backward(ctx: Any, grad_spike: Tensor) -> tuple[Tensor, None, None]:
        """Return psi(u) * dL/ds; raise when asked for a graph of it."""
        refuse_second_order("a neuron whose past is cut from the graph")
        (u,) = ctx.saved_tensors
        return dispatch.run(cut_gradient, grad_spike, u, ctx.surrogate), None, None


class LinearCutStep(torch.autograd.Function):
    """A linear connection, the neuron behind it and the update of its trace as one node."""

    @staticmethod
    @remembers_autocast
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        source: TraceToAdvance,
        advance: CutAdvance,
        surrogate: Surrogate,
    ) -> Tensor:
        """Return the spikes of x W^T + b, and advance the trace by x; keep the weight, u and the tick, but not x."""
        ctx.source, ctx.tick, ctx.surrogate, ctx.x_dtype = source, source.expect(), surrogate, x.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        y = in_products(Dense(), ctx.product_dtype).value(x, weight, bias)
        ctx.y_dtype = y.dtype
        spike, u = advance(y)
        ctx.save_for_backward(weight, u)
        source.advance_(widened(x, ctx.product_dtype))
        return spike

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, grad_spike: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients for x, weight and bias from d = psi(u) * dL/ds; raise when asked for a graph of them."""
        refuse_second_order("a layer with an eligibility trace")
        weight, u = ctx.saved_tensors
        d = dispatch.run(cut_gradient, grad_spike, u, ctx.surrogate).to(ctx.y_dtype)
        return *linear_gradients(ctx, d, weight), None, None, None


class ConvCutStep(torch.autograd.Function):
    """A convolution, the neuron behind it and the update of its trace as one node."""

    @staticmethod
    @remembers_autocast
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        source: TraceToAdvance,
        convolution: Convolution,
        advance: CutAdvance,
        surrogate: Surrogate,
    ) -> Tensor:
        """Return the spikes of the convolution, and advance the trace by x; keep the weight, u and the tick, not x."""
        ctx.source, ctx.tick, ctx.surrogate, ctx.convolution = source, source.expect(), surrogate, convolution
        ctx.x_dtype, ctx.x_shape = x.dtype, x.shape
        ctx.bias_dtype = None if bias is None else bias.dtype
        y = in_products(convolution, ctx.product_dtype).value(x, weight, bias)
        ctx.y_dtype = y.dtype
        spike, u = advance(y)
        ctx.save_for_backward(weight, u)
        source.advance_(widened(x, ctx.product_dtype))
        return spike

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, grad_spike: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients for x, weight and bias from d = psi(u) * dL/ds; raise when asked for a graph of them."""
        refuse_second_order("a layer with an eligibility trace")
        weight, u = ctx.saved_tensors
        d = dispatch.run(cut_gradient, grad_spike, u, ctx.surrogate).to(ctx.y_dtype)
        return *convolution_gradients(ctx, d, weight), None, None, None, None


def cut_step(advance: CutAdvance, y: Float[Tensor, "*units"], surrogate: Surrogate) -> Float[Tensor, "*units"]:
    """Return the spikes of a step with the past a constant: dL/dy = psi(u) dL/ds.

    `y` input [*units]; `advance(y)` returns (spike, u), both [*units], with du/dy = 1, and keeps the new state itself;
    `surrogate` gives psi. Equal to autograd's through the step when the state is detached before and after.
    Differentiable once: create_graph=True raises RuntimeError.

    >>> from snnlearn.functional import ArcTan
    >>> y = torch.ones(1, requires_grad=True)
    >>> spike = cut_step(lambda y: ((y >= 1).float(), y - 1.0), y, ArcTan())
    >>> spike.sum().backward(); spike.detach(), y.grad
    (tensor([1.]), tensor([1.]))
    """
    return CutStep.apply(y, advance, surrogate)  # type: ignore[no-any-return]


__all__ = [
    "ConvCutStep",
    "CutAdvance",
    "CutStep",
    "Firing",
    "LinearCutStep",
    "TraceToAdvance",
    "cut_gradient",
    "cut_step",
    "spike_gate",
]
