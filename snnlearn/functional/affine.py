"""The affine end of a normalisation, y = gain * z + bias, with gradients that are read from an eligibility trace.

z is the normalised value of the step. Gain and bias are weights of one input each: z, and a constant one. Behind them
stands a neuron with a constant leak, so with d = dL/dy

    dL/dgain = sum d e      e the trace of z      dL/dbias = sum d c      c the trace of a constant one
    dL/dz = gain * d

with the sums over samples and over the places that share a gain. z depends on neither, so both are exact whether the
statistics of the normalisation are frozen or those of the step.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.eligibility import TraceSource, refuse_second_order


class AffineEligibility(torch.autograd.Function):
    """y = gain * z + bias with the gradients of the trace; see the module's equations."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, gain: Tensor, bias: Tensor | None, source: TraceSource) -> Tensor:
        """Return the affine value in z's dtype; keep the gain and the tick to find the trace at, but not z."""
        ctx.save_for_backward(gain)
        ctx.source, ctx.tick, ctx.bias = source, source.expect(), None if bias is None else (bias.dtype, bias.shape)
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
        if need_gain or need_bias:
            trace, one = ctx.source.read(ctx.tick)
            if need_gain:
                grad_gain = (trace * d).sum_to_size(gain.shape).to(gain.dtype)
            if need_bias:
                dtype, shape = ctx.bias
                aligned = one.reshape(-1, *(1,) * (d.dim() - 1)) if isinstance(one, Tensor) else one
                grad_bias = (d if aligned is None else d * aligned).sum_to_size(shape).to(dtype)
        return grad_z, grad_gain, grad_bias, None


def et_affine(
    z: Float[Tensor, "batch *units"],
    source: TraceSource,
    gain: Float[Tensor, "..."],
    bias: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "batch *units"]:
    """Return gain * z + bias whose gradients for gain and bias are read from the trace of z in `source`.

    `z` [B, *units] the normalised value; `gain` and `bias` in a shape that broadcasts over z, such as [C, 1, 1].
    Differentiable once.

    >>> from snnlearn.functional import FixedTrace
    >>> gain, z = torch.ones(2, requires_grad=True), torch.ones(1, 2)
    >>> et_affine(z, FixedTrace(3 * z), gain).sum().backward()
    >>> gain.grad
    tensor([3., 3.])
    """
    return AffineEligibility.apply(z, gain, bias, source)  # type: ignore[no-any-return]


__all__ = ["AffineEligibility", "et_affine"]
