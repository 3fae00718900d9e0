"""Twin of `scan_chunk` in `snnlearn.functional.chunk`: the reverse scan under the neuron's own Jacobian."""

import torch
from torch import Tensor

from snnlearn.functional.chunk import Restarts
from snnlearn.functional.dynamics import Jacobian
from snnlearn.kernels.language import FP_FUSION, constexpr, jit, tl, triton
from snnlearn.kernels.layout import FLUSH, block_of, by_row, flushed, kept_dtype, marked, marks, padded

BLOCK = 256
MOST_HIDDEN = 4


@jit
def scan_chunk_kernel(  # type: ignore[no-untyped-def]
    signals_at, transition_at, drive_at, state_at, input_at, restarts_at, received_at, entering_at,
    steps, rows, units, signals_step, signals_row, signals_unit, limit,
    HIDDEN: constexpr, PADDED: constexpr, RESTARTS: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """Take a block of units from the last step to the first."""
    total = rows * units
    element, row, unit, inside = block_of(total, units, BLOCK)
    side = tl.arange(0, PADDED)
    real = side < HIDDEN
    last = (steps - 1).to(tl.int64)
    each = last * total + total  # the elements of one hidden value, over all steps
    at = side[:, None] * each + element[None, :]
    here = real[:, None] & inside[None, :]
    square = (side[:, None] * HIDDEN + side[None, :])[:, :, None] * each + element[None, None, :]
    everywhere = (real[:, None] & real[None, :])[:, :, None] & inside[None, None, :]
    signals_at += last * signals_step + row * signals_row + unit * signals_unit
    restarts_at += last * rows
    before = last * total
    after = tl.zeros((PADDED, BLOCK), dtype=tl.float32)
    for _ in range(steps):
        signal = tl.load(signals_at, mask=inside, other=0.0).to(tl.float32)
        drive = tl.load(drive_at + before + at, mask=here, other=0.0).to(tl.float32)
        direct = tl.load(input_at + before + element, mask=inside, other=0.0).to(tl.float32)
        tl.store(received_at + before + element, direct * signal + tl.sum(drive * after, axis=0), mask=inside)
        transition = tl.load(transition_at + before + square, mask=everywhere, other=0.0).to(tl.float32)
        state = tl.load(state_at + before + at, mask=here, other=0.0).to(tl.float32)
        carried = tl.sum(transition * after[:, None, :], axis=0)
        after = flushed(carried + state * signal[None, :], limit)
        if RESTARTS:
            after = tl.where(marked(restarts_at, row, inside)[None, :], 0.0, after)
        signals_at -= signals_step
        restarts_at -= rows
        before -= total
    tl.store(entering_at + side[:, None].to(tl.int64) * total + element[None, :], after, mask=here)


def scan_chunk(jacobian: Jacobian, signals: Tensor, restarts: Restarts = None) -> tuple[Tensor, Tensor]:
    """Return what `snnlearn.functional.chunk.scan_chunk` does, summed and returned in float32."""
    transition, drive, spike_state, spike_input = (value.contiguous() for value in jacobian)
    hidden, steps = drive.shape[:2]
    if steps != len(signals):
        raise ValueError(f"{steps} Jacobians for {len(signals)} signals: a chunk has one of each per step")
    received = torch.empty(signals.shape, dtype=kept_dtype(signals.dtype), device=signals.device)
    entering = torch.empty((hidden, *signals.shape[1:]), dtype=received.dtype, device=signals.device)
    seen = by_row(signals)
    rows, units = seen.shape[1:]
    scan_chunk_kernel[(triton.cdiv(rows * units, BLOCK),)](
        seen, transition, drive, spike_state, spike_input, marks(restarts, received), received, entering,
        steps, rows, units, *seen.stride(), FLUSH,
        hidden, padded(hidden), restarts is not None, BLOCK, enable_fp_fusion=FP_FUSION,
    )  # fmt: skip
    return received, entering


def _obstacle(jacobian: Jacobian, signals: Tensor, restarts: Restarts = None) -> str:
    hidden = len(jacobian.drive)
    if hidden > MOST_HIDDEN:
        return f"{hidden} hidden values: the kernel has up to {MOST_HIDDEN}"
    if jacobian.spike_input.shape != signals.shape:
        return f"signals {list(signals.shape)} for a Jacobian at {list(jacobian.spike_input.shape)}"
    return "" if signals.numel() else "there is nothing to scan"


OBSTACLES = {"scan_chunk": _obstacle}
"""Why the twin here cannot run on its arguments, as a function of them; nothing where it can."""

__all__ = ["OBSTACLES", "scan_chunk"]
