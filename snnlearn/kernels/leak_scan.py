"""Twins of `scan_leak` and `roll_leak_trace` in `snnlearn.functional.chunk`: scans under a constant transition."""

import functools

import torch
from torch import Tensor

from snnlearn.functional.chunk import Restarts
from snnlearn.functional.dynamics import LeakTransition
from snnlearn.kernels.language import FP_FUSION, constexpr, jit, tl, triton
from snnlearn.kernels.layout import FLUSH, block_of, by_row, flushed, kept_dtype, marked, marks, padded

BLOCK = 256
MOST_HIDDEN = 4


@jit
def leak_numbers(leak_at, HIDDEN: constexpr, PADDED: constexpr):  # type: ignore[no-untyped-def]
    """Return the places of the hidden values, which of them there are, and transition, drive and readout of a leak."""
    side = tl.arange(0, PADDED)
    real = side < HIDDEN
    square = side[:, None] * HIDDEN + side[None, :]
    transition = tl.load(leak_at + square, mask=real[:, None] & real[None, :], other=0.0)
    drive = tl.load(leak_at + HIDDEN * HIDDEN + side, mask=real, other=0.0)
    readout = tl.load(leak_at + HIDDEN * HIDDEN + HIDDEN + side, mask=real, other=0.0)
    return side, real, transition, drive, readout


@jit
def scan_leak_kernel(  # type: ignore[no-untyped-def]
    signals_at, leak_at, restarts_at, received_at, entering_at, steps, rows, units,
    signals_step, signals_row, signals_unit, limit,
    HIDDEN: constexpr, PADDED: constexpr, RESTARTS: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """Take a block of units from the last step to the first."""
    total = rows * units
    element, row, unit, inside = block_of(total, units, BLOCK)
    side, real, transition, drive, readout = leak_numbers(leak_at, HIDDEN, PADDED)
    last = (steps - 1).to(tl.int64)
    signals_at += last * signals_step + row * signals_row + unit * signals_unit
    received_at += last * total
    restarts_at += last * rows
    after = tl.zeros((PADDED, BLOCK), dtype=tl.float32)
    for _ in range(steps):
        signal = tl.load(signals_at, mask=inside, other=0.0).to(tl.float32)
        gathered = after + readout[:, None] * signal[None, :]
        tl.store(received_at + element, tl.sum(drive[:, None] * gathered, axis=0), mask=inside)
        after = flushed(tl.sum(transition[:, :, None] * gathered[:, None, :], axis=0), limit)
        if RESTARTS:
            after = tl.where(marked(restarts_at, row, inside)[None, :], 0.0, after)
        signals_at -= signals_step
        received_at -= total
        restarts_at -= rows
    at = side[:, None].to(tl.int64) * total + element[None, :]
    tl.store(entering_at + at, after, mask=real[:, None] & inside[None, :])


def scan_leak(signals: Tensor, leak: LeakTransition, restarts: Restarts = None) -> tuple[Tensor, Tensor]:
    """Return what `snnlearn.functional.chunk.scan_leak` does, summed and returned in float32."""
    hidden, dtype = len(leak.drive), kept_dtype(signals.dtype)
    received = torch.empty(signals.shape, dtype=dtype, device=signals.device)
    entering = torch.empty((hidden, *signals.shape[1:]), dtype=dtype, device=signals.device)
    seen = by_row(signals)
    rows, units = seen.shape[1:]
    scan_leak_kernel[(triton.cdiv(rows * units, BLOCK),)](
        seen, _numbers(leak, signals.device), marks(restarts, received), received, entering,
        len(signals), rows, units, *seen.stride(), FLUSH,
        hidden, padded(hidden), restarts is not None, BLOCK, enable_fp_fusion=FP_FUSION,
    )  # fmt: skip
    return received, entering


@jit
def roll_leak_kernel(  # type: ignore[no-untyped-def]
    x_at, traces_at, leak_at, restarts_at, rolled_at, steps, rows, units, x_step, x_row, x_unit, limit,
    HIDDEN: constexpr, PADDED: constexpr, TRACES: constexpr, RESTARTS: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """Take the traces of a block of inputs from the first step to the last."""
    total = rows * units
    element, row, unit, inside = block_of(total, units, BLOCK)
    side, real, transition, drive, _ = leak_numbers(leak_at, HIDDEN, PADDED)
    x_at += row * x_row + unit * x_unit
    at = side[:, None].to(tl.int64) * total + element[None, :]
    trace = tl.zeros((PADDED, BLOCK), dtype=tl.float32)
    if TRACES:
        trace += tl.load(traces_at + at, mask=real[:, None] & inside[None, :], other=0.0)
    for _ in range(steps):
        if RESTARTS:
            trace = tl.where(marked(restarts_at, row, inside)[None, :], 0.0, trace)
        x = tl.load(x_at, mask=inside, other=0.0).to(tl.float32)
        carried = tl.sum(tl.trans(transition)[:, :, None] * trace[:, None, :], axis=0)
        trace = carried + drive[:, None] * x[None, :]
        x_at += x_step
        restarts_at += rows
    tl.store(rolled_at + at, flushed(trace, limit), mask=real[:, None] & inside[None, :])


def roll_leak_trace(traces: Tensor | None, x: Tensor, leak: LeakTransition, restarts: Restarts = None) -> Tensor:
    """Return what `snnlearn.functional.chunk.roll_leak_trace` does, summed and returned in float32."""
    hidden = len(leak.drive)
    rolled = torch.empty((hidden, *x.shape[1:]), dtype=kept_dtype(x.dtype), device=x.device)
    seen = by_row(x)
    rows, units = seen.shape[1:]
    roll_leak_kernel[(triton.cdiv(rows * units, BLOCK),)](
        seen, rolled if traces is None else traces.contiguous(), _numbers(leak, x.device), marks(restarts, rolled),
        rolled, len(x), rows, units, *seen.stride(), FLUSH,
        hidden, padded(hidden), traces is not None, restarts is not None, BLOCK, enable_fp_fusion=FP_FUSION,
    )  # fmt: skip
    return rolled


@functools.lru_cache(maxsize=256)
def _numbers(leak: LeakTransition, device: torch.device) -> Tensor:
    """Return the numbers of a leak on the device: transition row by row, drive, readout."""
    numbers = [value for row in leak.transition for value in row]
    return torch.tensor([*numbers, *leak.drive, *leak.readout], dtype=torch.float32, device=device)


def _too_many(leak: LeakTransition) -> str:
    hidden = len(leak.drive)
    return f"{hidden} hidden values: the kernel has up to {MOST_HIDDEN}" if hidden > MOST_HIDDEN else ""


def _scan_obstacle(signals: Tensor, leak: LeakTransition, restarts: Restarts = None) -> str:
    return _too_many(leak) if signals.numel() else "there is nothing to scan"


def _roll_obstacle(traces: Tensor | None, x: Tensor, leak: LeakTransition, restarts: Restarts = None) -> str:
    return _too_many(leak) if x.numel() else "there is nothing to scan"


OBSTACLES = {"roll_leak_trace": _roll_obstacle, "scan_leak": _scan_obstacle}
"""Why each twin here cannot run on its arguments, as a function of them; nothing where it can."""

__all__ = ["OBSTACLES", "roll_leak_trace", "scan_leak"]
