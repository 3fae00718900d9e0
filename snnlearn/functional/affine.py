"""The affine end of a normalisation, y = gain * z + bias, with gradients that are read from an eligibility trace.

z is the normalised value of the step. Gain and bias are weights of one input each: z, and a constant one. Behind them
stands a neuron with a constant leak, so with d = dL/dy

    dL/dgain = sum d e      e the trace of z      dL/dbias = sum d c      c the trace of a constant one
    dL/dz = gain * d

and in a chunk of steps, time folded into the batch, the traces are never formed (`snnlearn.functional.chunk`): d is
scanned backwards to what meets z, and to what meets the traces that entered, so that there are more products,

with the sums over samples and over the places that share a gain. z depends on neither, so both are exact whether the
statistics of the normalisation are frozen or those of the step.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.eligibility import BiasTrace, TraceSource, refuse_second_order

Met = Callable[[int, Tensor], Iterable[tuple[Tensor, Tensor, BiasTrace]]]
"""Gives, for a tick and d, what is summed: a share of d, the trace of z that it meets, and the trace of one."""


class AffineEligibility(torch.autograd.Function):
    """y = gain * z + bias with the gradients of the trace; see the module's equations."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, gain: Tensor, bias: Tensor | None, source: TraceSource, met: "Met | None"
    ) -> Tensor:
        """Return the affine value in z's dtype; keep the gain and the tick to find the trace at, but not z."""
        ctx.save_for_backward(gain)
        ctx.met = met or (lambda tick, d: [(d, *source.read(tick))])
        ctx.tick, ctx.bias = source.expect(), None if bias is None else (bias.dtype, bias.shape)
        scaled = gain * z
        return (scaled if bias is None else scaled + bias).to(z.dtype)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients for z, gain and bias; raise when asked for a graph of them."""
        refuse_second_order("a normalisation with an eligibility trace")
        (gain,) = ctx.saved_tensors
        need_z, need_gain, need_bias = ctx.needs_input_grad[:3]
        grad_z = (gain * d).to(d.dtype) if need_z else None
        grad_gain = grad_bias = None
        for d_met, trace, one in ctx.met(ctx.tick, d) if need_gain or need_bias else ():
            if need_gain:
                share = (trace * d_met).sum_to_size(gain.shape).to(gain.dtype)
                grad_gain = share if grad_gain is None else grad_gain + share
            if need_bias:
                dtype, shape = ctx.bias
                aligned = one.reshape(-1, *(1,) * (d.dim() - 1)) if isinstance(one, Tensor) else one
                share = (d_met if aligned is None else d_met * aligned).sum_to_size(shape).to(dtype)
                grad_bias = share if grad_bias is None else grad_bias + share
        return grad_z, grad_gain, grad_bias, None, None


def et_affine(
    z: Float[Tensor, "batch *units"],
    source: TraceSource,
    gain: Float[Tensor, "..."],
    bias: Float[Tensor, "..."] | None = None,
    met: Met | None = None,
) -> Float[Tensor, "batch *units"]:
    """Return gain * z + bias whose gradients for gain and bias are read from the trace of z in `source`.

    `z` [B, *units] the normalised value; `gain` and `bias` in a shape that broadcasts over z, such as [C, 1, 1]; `met`
    for a chunk of steps, whose gradient is a sum of several products, None for the one with the trace in `source`.
    Differentiable once.

    >>> from snnlearn.functional import FixedTrace
    >>> gain, z = torch.ones(2, requires_grad=True), torch.ones(1, 2)
    >>> et_affine(z, FixedTrace(3 * z), gain).sum().backward()
    >>> gain.grad
    tensor([3., 3.])
    """
    return AffineEligibility.apply(z, gain, bias, source, met)  # type: ignore[no-any-return]


__all__ = ["AffineEligibility", "Met", "et_affine"]
