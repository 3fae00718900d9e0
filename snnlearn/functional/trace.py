"""Eligibility traces in step form, and the flush that keeps subnormal numbers out of them.

Two recurrences are easy to confuse and differ by a factor: the trace decay*a + x, used everywhere here,
and the moving average decay*a + (1 - decay)*x, which is (1 - decay) times it and is not used.
"""

import functools
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.device_numbers import numbers_like
from snnlearn.functional.dynamics import LeakTransition

FLUSH_BELOW = 1e-30
"""Magnitude under which a state or trace is zero: far below any use, far above float32's subnormals."""


@functools.cache
def flush_threshold(dtype: torch.dtype) -> float:
    """Return the magnitude under which numbers of `dtype` are flushed: FLUSH_BELOW or the smallest normal.

    >>> flush_threshold(torch.float32)
    1e-30
    """
    return max(FLUSH_BELOW, torch.finfo(dtype).tiny)


def flush_subnormals_(values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Set every element below `flush_threshold` to zero, in place and outside autograd; NaN stays NaN.

    >>> flush_subnormals_(torch.tensor([1e-39, 1.0]))
    tensor([0., 1.])
    """
    with torch.no_grad():
        return torch.hardshrink(values, flush_threshold(values.dtype), out=values)


class Flush(torch.autograd.Function):
    """Flush subnormal numbers out of place; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        """Return values with tiny elements set to zero."""
        return torch.hardshrink(values, flush_threshold(values.dtype))

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        """Return grad_output."""
        return grad_output


def flush_subnormals(values: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
    """Return `values` with every element below `flush_threshold` set to zero, with an identity gradient.

    >>> flush_subnormals(torch.tensor([1e-39, 1.0]))
    tensor([0., 1.])
    """
    if values.requires_grad and torch.is_grad_enabled():
        return Flush.apply(values)  # type: ignore[no-any-return]
    return torch.hardshrink(values, flush_threshold(values.dtype))


def decay_trace(trace: Float[Tensor, "*inputs"], x: Float[Tensor, "*inputs"], decay: float) -> Float[Tensor, "*inputs"]:
    """Return decay * trace + x, the trace after the step that saw x; both [*inputs].

    >>> decay_trace(torch.ones(1), torch.ones(1), 0.5)
    tensor([1.5000])
    """
    return torch.add(x, trace, alpha=decay)


def advance_leak_trace_(
    traces: Float[Tensor, "hidden *inputs"], x: Float[Tensor, "*inputs"], leak: LeakTransition
) -> Float[Tensor, "hidden *inputs"]:
    """Advance the K traces of `leak` by one step in place: e <- transition @ e + drive * x, flushed.

    `traces` [K, *inputs] is overwritten and returned; `x` [*inputs]. Outside autograd.

    >>> from snnlearn.functional.lif import lif_leak_transition
    >>> advance_leak_trace_(torch.ones(1, 2), torch.tensor([1.0, 0.0]), lif_leak_transition(0.5))
    tensor([[1.5000, 0.5000]])
    """
    with torch.no_grad():
        if leak.drive == (1.0,):
            trace = traces[0]
            torch.add(x, trace, alpha=leak.transition[0][0], out=trace)
        else:
            before = [traces[j].clone() for j in range(traces.shape[0])]
            for row, row_drive, target in zip(leak.transition, leak.drive, traces.unbind(), strict=True):
                torch.mul(x, row_drive, out=target)
                for weight, value in zip(row, before, strict=True):
                    if weight:
                        target.add_(value, alpha=weight)
        return flush_subnormals_(traces)


def advance_leak_trace_of_one(traces: tuple[float, ...], leak: LeakTransition) -> tuple[float, ...]:
    """Return the K traces of a constant one after one more step, as plain numbers: e <- transition @ e + drive.

    >>> from snnlearn.functional.lif import lif_leak_transition
    >>> advance_leak_trace_of_one((1.0,), lif_leak_transition(0.5))
    (1.5,)
    """
    return tuple(
        drive + sum(weight * value for weight, value in zip(row, traces, strict=True))
        for row, drive in zip(leak.transition, leak.drive, strict=True)
    )


def read_leak_trace(traces: Float[Tensor, "hidden *inputs"], leak: LeakTransition) -> Float[Tensor, "*inputs"]:
    """Return the trace that meets dL/dy: readout @ e; `traces` [K, *inputs].

    A view of one trace when the readout picks one, so nothing is copied for the built-in neurons.

    >>> from snnlearn.functional.cuba_lif import cuba_lif_leak_transition
    >>> read_leak_trace(torch.tensor([[1.0], [3.0]]), cuba_lif_leak_transition(0.5, 0.5))
    tensor([3.])
    """
    if leak.readout == (1.0,):
        return traces[0]
    picked = [k for k, weight in enumerate(leak.readout) if weight]
    if len(picked) == 1 and leak.readout[picked[0]] == 1.0:
        return traces[picked[0]]
    return torch.einsum("k,k...->...", numbers_like(leak.readout, traces), traces)


__all__ = [
    "FLUSH_BELOW",
    "Flush",
    "advance_leak_trace_",
    "advance_leak_trace_of_one",
    "decay_trace",
    "flush_subnormals",
    "flush_subnormals_",
    "flush_threshold",
    "read_leak_trace",
]
