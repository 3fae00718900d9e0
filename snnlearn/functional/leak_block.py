"""A constant transition over several steps as one matrix product, forwards and backwards in time.

The leak e_t = T e_{t-1} + g y_t with a_t = o . e_t (`snnlearn.functional.dynamics.LeakTransition`) is linear in the
inputs and in what enters, so n steps of it are one matrix, and going back through them is its transpose:

    [ a   ]   [ C  R ] [ y   ]        C_ts = o . T^(t-s) g for s <= t, 0 above         R_t = o . T^(t+1)
    [ e_n ] = [ S  P ] [ e_0 ]        S_s  = T^(n-1-s) g                               P   = T^n

A matrix is small (16 steps: 17 x 17 for one hidden value) and meets all rows at once, where a step at a time makes
three passes over each: 20 against 37 us a step for 64 x 256 numbers and 7 against 40 for 64 x 20, but 140 against 114
for 128 x 512, where a block of steps no longer fits the cache (one core of an EPYC).
"""

import functools
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.dynamics import LeakTransition
from snnlearn.functional.trace import flush_subnormals_, flush_threshold

STEPS = 16
"""Steps per product: more of them cost more than they save."""

LARGEST = 2**17
"""Bytes of a step up to which a product of steps is faster than one step at a time."""


def pays_as_block(y: Float[Tensor, "steps *units"]) -> bool:
    """Say whether `run_leak` is the faster way through y: on the CPU, where a step is small.

    >>> pays_as_block(torch.zeros(2, 64, 256)), pays_as_block(torch.zeros(2, 128, 512))
    (True, False)
    """
    return y.device.type == "cpu" and len(y) > 1 and y[0].numel() * y.element_size() <= LARGEST


@functools.lru_cache(maxsize=256)
def leak_block(leak: LeakTransition, steps: int, dtype: torch.dtype) -> Float[Tensor, "numbers numbers"]:
    """Return the matrix of n steps, computed in float64, subnormal entries zero; shared, so never written to.

    >>> from snnlearn.functional.lif import lif_leak_transition
    >>> leak_block(lif_leak_transition(0.5), 2, torch.float64)
    tensor([[1.0000, 0.0000, 0.5000],
            [0.5000, 1.0000, 0.2500],
            [0.5000, 1.0000, 0.2500]], dtype=torch.float64)
    """
    with torch.inference_mode(False):
        matrix = torch.tensor(leak.transition, dtype=torch.float64)
        drive = torch.tensor(leak.drive, dtype=torch.float64)
        readout = torch.tensor(leak.readout, dtype=torch.float64)
        powers = [torch.eye(len(drive), dtype=torch.float64)]
        for _ in range(steps):
            powers.append(powers[-1] @ matrix)
        whole = torch.zeros((steps + len(drive), steps + len(drive)), dtype=torch.float64)
        for t in range(steps):
            for s in range(t + 1):
                whole[t, s] = readout @ powers[t - s] @ drive
            whole[t, steps:] = readout @ powers[t + 1]
            whole[steps:, t] = powers[steps - 1 - t] @ drive
        whole[steps:, steps:] = powers[steps]
        whole[whole.abs() < flush_threshold(dtype)] = 0
        return whole.to(dtype)


def run_leak(
    y: Float[Tensor, "steps *units"],
    leak: LeakTransition,
    entering: Float[Tensor, "hidden *units"] | None = None,
    backwards: bool = False,
) -> tuple[Float[Tensor, "steps *units"], Float[Tensor, "hidden *units"]]:
    """Return (a [K, *units], e_K [H, *units]) of the leak over y, from e_0 or zero; the module has the equations.

    `backwards` goes through the transpose, from the last step to the first: for d_t = dL/da_t and dL/de_K it gives
    dL/dy_t and dL/de_0. Results are flushed (`snnlearn.functional.trace`) and laid out in memory as y is.

    >>> from snnlearn.functional.lif import lif_leak_transition
    >>> run_leak(torch.ones(2, 1), lif_leak_transition(0.5))
    (tensor([[1.0000],
            [1.5000]]), tensor([[1.5000]]))
    """
    y = y if _is_dense(y) else y.contiguous()
    hidden, size, step = len(leak.drive), y[0].numel(), y.stride()[1:]
    state = y.new_zeros((hidden, size))
    if entering is not None:
        state.as_strided((hidden, *y.shape[1:]), (size, *step)).copy_(entering)
    found = torch.empty_like(y)
    flat, into = (values.as_strided((len(y), size), (size, 1)) for values in (y, found))
    for begin, end in _blocks(len(y), backwards):
        whole = leak_block(leak, end - begin, y.dtype)
        of_steps, of_state = (whole.T if backwards else whole).split([end - begin, hidden], 1)
        here = torch.mm(of_steps, flat[begin:end]).addmm_(of_state, state)
        flush_subnormals_(here)
        into[begin:end], state = here.split([end - begin, hidden])
    return found, state.as_strided((hidden, *y.shape[1:]), (size, *step), state.storage_offset())


def _is_dense(y: Tensor) -> bool:
    """Say whether the numbers of each step fill a stretch of memory, one step behind the other."""
    filled = 1
    for stride, size in sorted(zip(y.stride()[1:], y.shape[1:], strict=True)):
        if size > 1 and stride != filled:
            return False
        filled *= size
    return len(y) == 1 or y.stride(0) == filled


def _blocks(steps: int, backwards: bool) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the blocks of a chunk, the last first when going `backwards`."""
    begins = range(0, steps, STEPS)
    for begin in reversed(begins) if backwards else begins:
        yield begin, min(begin + STEPS, steps)


__all__ = ["leak_block", "pays_as_block", "run_leak"]
