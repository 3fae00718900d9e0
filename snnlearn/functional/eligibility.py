"""The primitive of online learning: a layer whose weight gradient is read from an eligibility trace.

The value of y = W x + b is that of the plain layer. Backward, with d = dL/dy and the trace e of x,

    dL/dW = d e^T    "... o, ... i -> o i"        dL/dx = d W    "... o, o i -> ... i"
    dL/db = d c      "... o, ... -> o"            c is the trace of a constant one (or one, if untraced)

so that no step of the past is needed. The leading dimensions `...` are free: batch, or time and batch.
"""

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.precision import LowPrecision, in_products, outside_autocast, remembers_autocast
from snnlearn.functional.weighted_map import Convolution, Dense, rows_of

BiasTrace = Tensor | float | None
"""The trace of a constant one: per sample, one number for all of them, or None for 1."""


@runtime_checkable
class TraceSource(Protocol):
    """What backward reads a trace from: a buffer that is advanced in place between forward and backward."""

    def expect(self) -> int:
        """Return the tick at which backward must find the source."""
        ...

    def read(self, tick: int) -> tuple[Tensor, BiasTrace]:
        """Return (trace, trace of a constant one) or raise when the source is not at `tick`."""
        ...

    def gather(self, d: Tensor, trace: Tensor, weight: Tensor) -> bool:
        """Take d^T trace (rows [N, O] and [N, I]) into a sum for `weight` and return True, or return False."""
        ...


class FixedTrace:
    """A trace given as plain tensors, for a user who advances it out of place.

    `trace` [..., inputs]; `bias_trace` [...] or None for a bias that counts this step alone. Reading raises
    RuntimeError when the tensor was written in place after the forward, since the gradient would be wrong.

    >>> FixedTrace(torch.ones(2, 3)).read(0)[0].shape
    torch.Size([2, 3])
    """

    def __init__(self, trace: Float[Tensor, "..."], bias_trace: Float[Tensor, "..."] | None = None) -> None:
        self.trace, self.bias_trace = trace.detach(), None if bias_trace is None else bias_trace.detach()

    def expect(self) -> int:
        """Return the version of the tensor at forward."""
        return self.trace._version

    def read(self, tick: int) -> tuple[Tensor, BiasTrace]:
        """Return the tensors if the trace still has the version it had at forward."""
        if self.trace._version != tick:
            raise RuntimeError(
                f"the eligibility trace was written in place after the forward that used it (version "
                f"{self.trace._version}, expected {tick}); the gradient would belong to another step. Pass "
                f"a new tensor each step (trace = decay * trace + x), or hand a TraceBuffer to et_linear"
            )
        return self.trace, self.bias_trace

    def gather(self, d: Tensor, trace: Tensor, weight: Tensor) -> bool:
        """Return False: a fixed trace gathers nothing."""
        return False


class LinearEligibility(torch.autograd.Function):
    """y = x W^T + b with the weight gradient of the trace; see the module's equations."""

    @staticmethod
    @remembers_autocast
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, source: TraceSource) -> Tensor:
        """Return the plain layer's value; keep the weight, and the tick to find the trace at, but not x."""
        ctx.save_for_backward(weight)
        ctx.source, ctx.tick, ctx.x_dtype = source, source.expect(), x.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return in_products(Dense(), ctx.product_dtype).value(x, weight, bias)

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients for x, weight and bias; raise when asked for a graph of them."""
        refuse_second_order("a layer with an eligibility trace")
        (weight,) = ctx.saved_tensors
        return *linear_gradients(ctx, d, weight), None


def linear_gradients(ctx: Any, d: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return dL/dx, dL/dW and dL/db of x W^T + b for d = dL/dy [..., O], each None where nobody asks.

    `ctx` that of a Function whose first inputs are x, weight and bias, with `source`, `tick`, `x_dtype`,
    `bias_dtype` and `product_dtype` noted at forward. dL/dW is None too when the source gathers it itself.
    """
    need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
    products = in_products(Dense(), ctx.product_dtype)
    trace, bias_trace = ctx.source.read(ctx.tick) if need_weight or need_bias else (d, None)
    grad_x = grad_weight = grad_bias = None
    if need_weight:
        wide = torch.promote_types(d.dtype, trace.dtype)
        d_rows, trace_rows = rows_of(d.to(wide)), rows_of(trace.to(wide))
        if ctx.product_dtype is not None or not ctx.source.gather(d_rows, trace_rows, weight):
            grad_weight = products.weight_gradient(d_rows, trace_rows, weight).to(weight.dtype)
    if need_bias:
        grad_bias = bias_gradient(d, bias_trace).to(ctx.bias_dtype)
    if need_x:
        grad_x = products.input_gradient(d, weight, d.shape).to(ctx.x_dtype)
    return grad_x, grad_weight, grad_bias


def bias_gradient(
    d: Float[Tensor, "*units"], bias_trace: Float[Tensor, "..."] | float | None
) -> Float[Tensor, " outputs"]:
    """Return the sum of d [..., O] weighted by the trace of one: a number, or a tensor that broadcasts over d's.

    >>> bias_gradient(torch.ones(2, 3), torch.tensor([1.0, 2.0])), bias_gradient(torch.ones(2, 3), 1.5)
    (tensor([3., 3., 3.]), tensor([3., 3., 3.]))
    """
    rows = rows_of(d)
    if bias_trace is None:
        return rows.sum(0)
    if not isinstance(bias_trace, Tensor):
        return rows.sum(0).mul_(bias_trace)
    aligned = bias_trace.reshape(bias_trace.shape + (1,) * (d.dim() - 1 - bias_trace.dim()))
    wide = torch.promote_types(d.dtype, bias_trace.dtype)
    return aligned.to(wide).expand(d.shape[:-1]).reshape(-1) @ rows.to(wide)


def refuse_second_order(what: str) -> None:
    """Raise RuntimeError inside a backward that was asked for a graph of itself, which `what` cannot give.

    >>> with torch.no_grad():
    ...     refuse_second_order("a layer with an eligibility trace")
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"create_graph=True reached {what}: its backward reads what an online rule keeps, which has no graph to "
            f"differentiate again, so second-order gradients would be silently wrong; leave create_graph out, or "
            f"attach BPTT()"
        )


class ConvEligibility(torch.autograd.Function):
    """A convolution, transposed or not, with the weight gradient of the trace, which has the input map's shape."""

    @staticmethod
    @remembers_autocast
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, source: TraceSource, convolution: Convolution
    ) -> Tensor:
        """Return the plain convolution's value; keep the weight, the geometry, and the tick of the trace."""
        ctx.save_for_backward(weight)
        ctx.source, ctx.tick, ctx.convolution = source, source.expect(), convolution
        ctx.x_dtype, ctx.x_shape = x.dtype, x.shape
        ctx.bias_dtype = None if bias is None else bias.dtype
        return in_products(convolution, ctx.product_dtype).value(x, weight, bias)

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients for x, weight and bias; raise when asked for a graph of them."""
        refuse_second_order("a layer with an eligibility trace")
        (weight,) = ctx.saved_tensors
        return *convolution_gradients(ctx, d, weight), None, None


def convolution_gradients(ctx: Any, d: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return dL/dx, dL/dW and dL/db of a convolution for d = dL/dy [B, O, ...], each None where nobody asks.

    `ctx` as for `linear_gradients`, with `convolution` and `x_shape` noted too.
    """
    need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
    if need_weight or need_bias:
        trace, bias_trace = ctx.source.read(ctx.tick)
    else:
        trace, bias_trace = d.new_zeros(()).expand(ctx.x_shape), None
    d = d.to(torch.promote_types(d.dtype, trace.dtype))
    products = in_products(ctx.convolution, ctx.product_dtype)
    grad_x = grad_weight = None
    if isinstance(products, LowPrecision):
        grad_x = products.input_gradient(d, weight, ctx.x_shape) if need_x else None
        grad_weight = products.weight_gradient(d, trace, weight) if need_weight else None
    else:
        grad_x, grad_weight = ctx.convolution.gradients(d, trace.to(d.dtype), weight, (need_x, need_weight))
    grad_bias = bias_gradient(ctx.convolution.units_last(d), bias_trace).to(ctx.bias_dtype) if need_bias else None
    return (
        None if grad_x is None else grad_x.to(ctx.x_dtype),
        None if grad_weight is None else grad_weight.to(weight.dtype),
        grad_bias,
    )


def et_linear(
    x: Float[Tensor, "*leading inputs"],
    et: Float[Tensor, "..."] | TraceSource,
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None = None,
    bias_trace: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*leading outputs"]:
    """Return x W^T + b whose weight gradient is read from the eligibility trace instead of from x.

    `x` [..., I] what enters the weights; `et` the trace of x *including this step*, a tensor [..., I] or a
    `TraceBuffer`, which may be advanced in place between this call and backward; `weight` [O, I]; `bias` [O];
    `bias_trace` [...], the trace of a constant one, when `et` is a tensor: without it the bias learns from
    this step alone. Differentiable once. Raises ValueError when a tensor trace is not shaped like x.

    >>> x, weight = torch.ones(1, 2), torch.zeros(1, 2, requires_grad=True)
    >>> et_linear(x, 3 * x, weight).sum().backward()
    >>> weight.grad
    tensor([[3., 3.]])
    """
    if isinstance(et, Tensor):
        if et.shape != x.shape:
            raise ValueError(
                f"et has shape {list(et.shape)}, x has {list(x.shape)}: the trace of x has the shape of x, "
                f"since it holds one number per input; write et = decay * et + x"
            )
        source: TraceSource = FixedTrace(et, bias_trace)
    elif bias_trace is not None:
        raise ValueError("bias_trace was given beside a TraceBuffer, which has its own; leave bias_trace out")
    else:
        source = et
    return LinearEligibility.apply(x, weight, bias, source)  # type: ignore[no-any-return]


__all__ = [
    "BiasTrace",
    "ConvEligibility",
    "FixedTrace",
    "LinearEligibility",
    "TraceSource",
    "bias_gradient",
    "convolution_gradients",
    "et_linear",
    "linear_gradients",
    "refuse_second_order",
]
