"""A table of weights that integer indices look up: the matrix product of their one-hot rows, never computed as one.

For indices i [...] and a table W [V, O],

    y = W[i]                       which is one_hot(i) W
    dL/dW = e^T d                  e the trace of one_hot(i) [..., V], d = dL/dy [..., O]

An index has no gradient. With the table transposed it is the matrix product that `Dense` describes.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from snnlearn.functional.eligibility import TraceSource, refuse_second_order
from snnlearn.functional.weighted_map import Dense, rows_of


class Lookup(Dense):
    """The matrix product y = x W^T of one-hot x [..., V] and a transposed table W [O, V], by lookup.

    Its two gradients are those of `Dense`, since a trace of one-hot rows is no longer one-hot.

    >>> Lookup().value(torch.tensor([[0.0, 1.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]), None)
    tensor([[4., 6.]])
    """

    def value(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the columns of W that x [..., V] picks, plus b."""
        picked = F.embedding(x.argmax(-1), weight.T)
        return picked if bias is None else picked + bias


class LookupEligibility(torch.autograd.Function):
    """y = W[i] with the weight gradient of the trace of one_hot(i); see the module's equations."""

    @staticmethod
    def forward(ctx: Any, indices: Tensor, weight: Tensor, source: TraceSource, fixed_row: int | None) -> Tensor:
        """Return the rows of the table; keep the tick to find the trace at, and nothing else."""
        ctx.source, ctx.tick, ctx.fixed_row, ctx.dtype = source, source.expect(), fixed_row, weight.dtype
        return F.embedding(indices, weight)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the table, zero in `fixed_row`; raise when asked for a graph of it."""
        refuse_second_order("an embedding with an eligibility trace")
        if not ctx.needs_input_grad[1]:
            return None, None, None, None
        trace, _ = ctx.source.read(ctx.tick)
        wide = torch.promote_types(d.dtype, trace.dtype)
        gradient = rows_of(trace.to(wide)).T @ rows_of(d.to(wide))
        if ctx.fixed_row is not None:
            gradient[ctx.fixed_row] = 0
        return None, gradient.to(ctx.dtype), None, None


def et_embedding(
    indices: Int[Tensor, "*leading"],
    source: TraceSource,
    weight: Float[Tensor, "rows outputs"],
    fixed_row: int | None = None,
) -> Float[Tensor, "*leading outputs"]:
    """Return W[i] whose gradient is read from the trace of one_hot(i) [..., V] in `source`.

    `indices` i [...], integers from 0 to V - 1; `weight` W [V, O]; `fixed_row` the row that learns nothing.
    Differentiable once, in W. Raises IndexError for an index outside the table.

    >>> from snnlearn.functional import FixedTrace
    >>> table = torch.zeros(2, 1, requires_grad=True)
    >>> et_embedding(torch.tensor([1]), FixedTrace(torch.tensor([[0.5, 1.0]])), table).sum().backward()
    >>> table.grad
    tensor([[0.5000],
            [1.0000]])
    """
    return LookupEligibility.apply(indices, weight, source, fixed_row)  # type: ignore[no-any-return]


__all__ = ["Lookup", "LookupEligibility", "et_embedding"]
