"""Products in low precision, everything that remembers in float32.

Inside `torch.autocast` the matrix products and convolutions of a layer with a trace take operands in the dtype of
autocast, bfloat16 or float16, and sum in float32; their results are float32 again, and so is all the rest: hidden
values, Jacobians, traces, signals. A trace in bfloat16 would stick: with decay 0.99 a constant one accumulates to 100,
but once the trace is 64 its neighbour in bfloat16 is 0.5 away, and 0.99 * 64 + 1 rounds back to 64.

What rounding is left is that of the operands, a relative 2^-9 (bfloat16) or 2^-12 (float16), and once that of the
product's result. Spikes are exact operands; so are counts up to 256 in bfloat16 and 2,048 in float16, larger ones are
rounded as the weights are. The trace takes them in exactly either way.

float16 ends at 65504 and loses digits below 6e-5. So in the products of a backward each operand is divided by a power
of two, its own, before it is rounded, and the result is multiplied by it in float32: exact, and without a loss scale
that would have to be found and kept. What is too large for float16 in a forward is infinite, and is met as such.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.weighted_map import Convolution, Dense, WeightedMap

LARGEST_SUM = 15
"""Binary digits of the largest sum that float16 holds, of operands up to 1."""


def product_dtype(x: Tensor) -> torch.dtype | None:
    """Return the dtype that autocast gives to the operands of products with x; None outside autocast, and for float64.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     product_dtype(torch.ones(1)), product_dtype(torch.ones(1, dtype=torch.float64))
    (torch.bfloat16, None)
    """
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) and x.dtype != torch.float64 else None


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context without autocast on `device`.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16), full_precision(torch.device("cpu")):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.float32
    """
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def widened(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return x in at least float32 where products are in `dtype`; as it is where that is None.

    >>> widened(torch.ones(1, dtype=torch.bfloat16), torch.bfloat16).dtype
    torch.float32
    """
    narrow = dtype is not None and x.dtype in (torch.bfloat16, torch.float16)
    return x.float() if narrow else x


def remembers_autocast(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the forward of a Function of (x, weight, ...): note `ctx.product_dtype`, and run without autocast."""

    @functools.wraps(forward)
    def run(ctx: Any, x: Tensor, weight: Tensor, *rest: Any) -> Any:
        ctx.product_dtype = product_dtype(x) if weight.dtype != torch.float64 else None
        with full_precision(x.device):
            return forward(ctx, x, weight, *rest)

    return run


def outside_autocast(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the backward of a Function: run without autocast, wherever `backward()` was called."""

    @functools.wraps(backward)
    def run(ctx: Any, signal: Tensor) -> Any:
        with full_precision(signal.device):
            return backward(ctx, signal)

    return run


def lowered(values: Float[Tensor, "..."], dtype: torch.dtype, terms: int = 1) -> tuple[Tensor, Tensor | None]:
    """Return `values` as an operand in `dtype`, and what the product has to be multiplied by, None for 1.

    In float16 the operand is at most 1, and at most as large as lets a sum of `terms` of them be held.

    >>> lowered(torch.tensor([0.0, 3e5]), torch.float16)
    (tensor([0.0000, 0.5723], dtype=torch.float16), tensor(524288.))
    >>> lowered(torch.ones(1), torch.bfloat16)
    (tensor([1.], dtype=torch.bfloat16), None)
    """
    if dtype != torch.float16 or values.numel() == 0:
        return values.to(dtype), None
    room = max(0, (terms - 1).bit_length() - LARGEST_SUM)
    _, exponent = torch.frexp(values.abs().amax())
    scale = torch.ldexp(torch.ones_like(exponent, dtype=values.dtype), exponent + room)
    return (values / scale).to(dtype), scale


def _rescaled(product: Tensor, *scales: Tensor | None) -> Tensor:
    """Return a product in float32, times what its operands were divided by."""
    product = product.float()
    for scale in scales:
        product = product if scale is None else product * scale
    return product


class LowPrecision(NamedTuple):
    """A product or convolution whose operands are rounded to `dtype`; results are float32.

    >>> LowPrecision(Dense(), torch.bfloat16).value(torch.ones(1, 2), torch.full((1, 2), 1.001), None)
    tensor([[2.]])
    """

    exact: Dense | Convolution
    dtype: torch.dtype

    def value(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return W * x + b, the bias added in full precision."""
        y = self.exact.value(x.to(self.dtype), weight.to(self.dtype), None).float()
        if bias is None:
            return y
        places = (1,) * (y.dim() - 2) if isinstance(self.exact, Convolution) else ()
        return y.add_(bias.reshape(-1, *places))

    def weight_gradient(self, d: Tensor, trace: Tensor, weight: Tensor) -> Tensor:
        """Return the sum over samples and places of d (x) trace."""
        low_d, by_d = lowered(d, self.dtype, d.numel() // self.units_last(d).shape[-1])
        low_trace, by_trace = lowered(trace, self.dtype)
        return _rescaled(self.exact.weight_gradient(low_d, low_trace, weight), by_d, by_trace)

    def input_gradient(self, d: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        """Return W^T * d."""
        low_d, by_d = lowered(d, self.dtype, weight.numel() // min(weight.shape[:2]))
        low_weight, by_weight = lowered(weight, self.dtype)
        return _rescaled(self.exact.input_gradient(low_d, low_weight, shape), by_d, by_weight)

    def units_last(self, d: Tensor) -> Tensor:
        """Return d with the dimension that a bias belongs to moved to the end."""
        return self.exact.units_last(d)


def in_products(exact: WeightedMap, dtype: torch.dtype | None) -> WeightedMap:
    """Return `exact` with operands in `dtype`; itself for None, and for other maps than a product or a convolution.

    >>> in_products(Dense(), None), in_products(Dense(), torch.float16).dtype
    (Dense(), torch.float16)
    """
    if dtype is not None and type(exact) in (Dense, Convolution):
        return LowPrecision(exact, dtype)  # type: ignore[arg-type]
    return exact


__all__ = [
    "LowPrecision",
    "full_precision",
    "in_products",
    "lowered",
    "outside_autocast",
    "product_dtype",
    "remembers_autocast",
    "widened",
]
