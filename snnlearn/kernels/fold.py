"""Twin of `roll_eligibility` in `snnlearn.functional.chunk_roll`: one pass over the eligibility."""

import torch
from torch import Tensor

from snnlearn.functional.chunk import Parts
from snnlearn.functional.chunk_roll import empty_eligibility
from snnlearn.kernels.language import FP_FUSION, constexpr, jit, tl, triton
from snnlearn.kernels.layout import FLUSH, flushed

TILE = 32
STEPS = 16
MOST_HIDDEN = 2


@jit
def roll_kernel(  # type: ignore[no-untyped-def]
    first_at, second_at, product_at, weights_at, x_at, steps, rows, units, inputs,
    first_row, first_unit, second_row, second_unit, limit,
    HIDDEN: constexpr, EMPTY: constexpr, FIRST_MOVES: constexpr, SECOND_MOVES: constexpr,
    TILE: constexpr, STEPS: constexpr,
):  # fmt: skip
    """Move one tile [units, inputs] of one row's eligibility through the steps of a chunk, written in place."""
    row = tl.program_id(0).to(tl.int64)
    unit, input = tl.program_id(1) * TILE + tl.arange(0, TILE), tl.program_id(2) * TILE + tl.arange(0, TILE)
    here_unit, here_input = unit < units, input < inputs
    inside = here_unit[:, None] & here_input[None, :]
    each = rows * units  # of one hidden value at one step
    first_new = tl.zeros((TILE, TILE), dtype=tl.float32)
    second_new = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, steps, STEPS):
        step = start + tl.arange(0, STEPS)
        there = step < steps
        x_here = step[:, None].to(tl.int64) * rows * inputs + row * inputs + input[None, :]
        x = tl.load(x_at + x_here, mask=there[:, None] & here_input[None, :], other=0.0).to(tl.float32)
        left_here = weights_at + step[None, :].to(tl.int64) * each + row * units + unit[:, None]
        known = here_unit[:, None] & there[None, :]
        left = tl.load(left_here, mask=known, other=0.0).to(tl.float32)
        first_new += tl.dot(left, x, input_precision="ieee")
        if HIDDEN == 2:
            left = tl.load(left_here + steps.to(tl.int64) * each, mask=known, other=0.0).to(tl.float32)
            second_new += tl.dot(left, x, input_precision="ieee")
    first_at += row * first_row + unit[:, None].to(tl.int64) * first_unit + input[None, :]
    second_at += row * second_row + unit[:, None].to(tl.int64) * second_unit + input[None, :]
    if not EMPTY:
        product_at += row * units + unit
        first = tl.load(first_at, mask=inside, other=0.0)
        first_new += tl.load(product_at, mask=here_unit, other=0.0)[:, None] * first
        if HIDDEN == 2:
            second = tl.load(second_at, mask=inside, other=0.0)
            first_new += tl.load(product_at + each, mask=here_unit, other=0.0)[:, None] * second
            second_new += tl.load(product_at + 2 * each, mask=here_unit, other=0.0)[:, None] * first
            second_new += tl.load(product_at + 3 * each, mask=here_unit, other=0.0)[:, None] * second
    if FIRST_MOVES:
        tl.store(first_at, flushed(first_new, limit), mask=inside)
    if HIDDEN == 2 and SECOND_MOVES:
        tl.store(second_at, flushed(second_new, limit), mask=inside)


def roll_eligibility(
    eligibility: Parts | None, product: Tensor, weights: Tensor, x: Tensor, room: Tensor | None = None
) -> Parts:
    """Return what `snnlearn.functional.chunk_roll.roll_eligibility` does, in float32."""
    hidden, steps, units = weights.shape[0], weights.shape[1], weights.shape[-1]
    inputs, rows = x.shape[-1], x[0, ..., 0].numel()
    parts = eligibility
    if parts is None:
        like = weights.new_empty(0, dtype=torch.float32)
        parts = empty_eligibility(hidden, weights.shape[2:], inputs, like, room)
    moves = [part.shape[-2] == units for part in parts]
    pitches = [pitch for part in (parts[0], parts[-1]) for pitch in _pitches(part, units)]
    grid = (rows, triton.cdiv(units, TILE), triton.cdiv(inputs, TILE))
    roll_kernel[grid](
        parts[0], parts[-1], product.contiguous(), weights.contiguous(), x.contiguous(),
        steps, rows, units, inputs, *pitches, FLUSH,
        hidden, eligibility is None, moves[0], moves[-1], TILE, STEPS, enable_fp_fusion=FP_FUSION,
    )  # fmt: skip
    return parts


def _pitches(part: Tensor, units: int) -> tuple[int, int]:
    """Return how far apart the samples and the units of a part [..., O, I] are; 0 where all units share one row."""
    return part.stride(-3), part.stride(-2) if part.shape[-2] == units else 0


def _lies_in_rows(part: Tensor) -> bool:
    """Return whether the numbers of a row lie side by side and the samples one behind the other."""
    strides, sizes = part.stride()[:-2], part.shape[:-2]
    samples = all(strides[i] == strides[i + 1] * sizes[i + 1] for i in range(len(sizes) - 1))
    return samples and (part.stride(-1) == 1 or part.shape[-1] == 1)


def _obstacle(
    eligibility: Parts | None, product: Tensor, weights: Tensor, x: Tensor, room: Tensor | None = None
) -> str:
    if len(weights) > MOST_HIDDEN:
        return f"{len(weights)} hidden values, those of the filter among them: the kernel has up to {MOST_HIDDEN}"
    for part in () if eligibility is None else eligibility:
        if part.dtype != torch.float32:
            return f"an eligibility in {part.dtype}: the kernels keep it in float32"
        if not _lies_in_rows(part):
            return "an eligibility whose rows do not lie one behind the other: it is written in place"
    return "" if x.numel() and weights.numel() else "there is nothing to fold"


OBSTACLES = {"roll_eligibility": _obstacle}
"""Why the twin here cannot run on its arguments, as a function of them; nothing where it can."""

__all__ = ["OBSTACLES", "roll_eligibility"]
