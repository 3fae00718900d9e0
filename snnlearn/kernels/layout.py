"""How the kernels see their tensors: steps, rows and units, each with a stride; flushing; constants per unit."""

import torch
from torch import Tensor

from snnlearn.functional.chunk import Restarts
from snnlearn.functional.dynamics import PerUnit
from snnlearn.functional.trace import flush_threshold
from snnlearn.kernels.language import constexpr, jit, tl

FLUSH = flush_threshold(torch.float32)


def kept_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which a kernel keeps and returns what it sums: float32.

    >>> kept_dtype(torch.bfloat16)
    torch.float32
    """
    return torch.promote_types(dtype, torch.float32)


def by_row(values: Tensor) -> Tensor:
    """Return values [K, *units] as [K, B, U], a view where the strides allow it; without a batch, B is 1.

    >>> by_row(torch.zeros(2, 3, 4, 5)).shape, by_row(torch.zeros(2, 3)).shape
    (torch.Size([2, 3, 20]), torch.Size([2, 1, 3]))
    """
    if values.dim() == 1:
        return values.reshape(-1, 1, 1)
    return values.unsqueeze(1) if values.dim() == 2 else values.flatten(2)


def per_element(constant: PerUnit, like: Tensor) -> PerUnit:
    """Return a constant as it is, or a tensor as one float32 number per element of `like` [*units].

    >>> per_element(0.5, torch.zeros(2)), per_element(torch.ones(1), torch.zeros(2))
    (0.5, tensor([1., 1.]))
    """
    if not isinstance(constant, Tensor):
        return float(constant)
    return constant.to(like.device, torch.float32).expand(like.shape).contiguous()


def marks(restarts: Restarts, like: Tensor) -> Tensor:
    """Return the marks of rows that restart [K, B] as one byte each, beside `like`; without any, `like` in their place.

    >>> marks(torch.tensor([[True, False]]), torch.zeros(1))
    tensor([[1, 0]], dtype=torch.uint8)
    """
    return like if restarts is None else restarts.to(like.device, torch.uint8).contiguous()


def padded(hidden: int) -> int:
    """Return the power of two from `hidden` up, which the side of a tile must be.

    >>> padded(3)
    4
    """
    return 1 << (hidden - 1).bit_length()


@jit
def block_of(total, units, BLOCK: constexpr):  # type: ignore[no-untyped-def]
    """Return the elements of this program among all rows and units, the row and unit of each, and which there are."""
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    return element, (element // units).to(tl.int64), (element % units).to(tl.int64), element < total


@jit
def marked(restarts_at, row, inside):  # type: ignore[no-untyped-def]
    """Return which elements lie in a row that restarts at the step `restarts_at` points to."""
    return tl.load(restarts_at + row, mask=inside, other=0) != 0


@jit
def flushed(values, limit):  # type: ignore[no-untyped-def]
    """Return values with those of magnitude up to `limit` set to zero; NaN stays NaN."""
    return tl.where(tl.abs(values) <= limit, 0.0, values)


@jit
def constant_of(constant, element, inside, IS_TENSOR: constexpr):  # type: ignore[no-untyped-def]
    """Return a number as it is, or the one of each element."""
    if IS_TENSOR:  # noqa: SIM108 -- Triton takes a branch by a constant, where the other need not make sense
        value = tl.load(constant + element, mask=inside, other=0.0)
    else:
        value = constant
    return value


__all__ = [
    "FLUSH",
    "block_of",
    "by_row",
    "constant_of",
    "flushed",
    "kept_dtype",
    "marked",
    "marks",
    "padded",
    "per_element",
]
