"""Which path runs: a function of `snnlearn.functional`, the reference, or its Triton twin; and why.

`run(reference, *arguments)` calls one of the two. Left to itself (`auto`) it takes the twin where the tensors are on a
CUDA device and the twin can do what is asked, and the reference otherwise, on the CPU always. A choice made with `use`
is kept to: what cannot run as chosen raises KernelUnavailableError with the reason. The logger `snnlearn.kernels` says
what runs and why, once per function and reason, at level INFO.

A twin has the name and the signature of its reference and lies in the module that `TWINS` gives. This module alone
imports those, when a twin is asked for, so each of them can be deleted.
"""

import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, TypeVarTuple

import torch
from torch import Tensor

log = logging.getLogger("snnlearn.kernels")

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

PATHS = ("auto", "reference", "triton")
"""What `use` takes."""

TWINS = {
    "alif_scan": "neuron_scan",
    "cuba_lif_scan": "neuron_scan",
    "cut_gradient": "neuron_scan",
    "lif_scan": "neuron_scan",
    "roll_eligibility": "fold",
    "roll_leak_trace": "leak_scan",
    "scan_chunk": "gated_scan",
    "scan_leak": "leak_scan",
}
"""The module of `snnlearn.kernels` in which the twin of each function lies."""

KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.bool)

# One value for the process and not per thread: backward of CUDA tensors runs in a thread of its own.
_chosen = ["auto"]
_said: set[tuple[str, str, str]] = set()


class KernelUnavailableError(RuntimeError):
    """A path was chosen that cannot run what is asked."""


def path_in_use() -> str:
    """Return the choice in effect: auto, reference or triton.

    >>> path_in_use()
    'auto'
    """
    return _chosen[0]


@contextmanager
def use(path: str) -> Iterator[None]:
    """Choose the path, auto, reference or triton, for the whole process while the context lasts.

    Raises ValueError for another name.

    >>> with use("reference"):
    ...     path_in_use()
    'reference'
    """
    if path not in PATHS:
        raise ValueError(f"use({path!r}): choose one of {', '.join(PATHS)}; write use('auto')")
    before, _chosen[0] = _chosen[0], path
    try:
        yield
    finally:
        _chosen[0] = before


def run(reference: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Return reference(*arguments), computed by the reference or by its twin; see the module.

    Raises KernelUnavailableError where the twin was chosen and cannot run, ValueError for a function without a twin.

    >>> from snnlearn.functional import ArcTan
    >>> from snnlearn.functional.neuron_scan import cut_gradient
    >>> run(cut_gradient, torch.ones(1), torch.zeros(1), ArcTan())
    tensor([1.])
    """
    name, chosen = reference.__name__, _chosen[0]
    if name not in TWINS:
        raise ValueError(f"run({name}): it has no twin; call it directly, or one of {', '.join(TWINS)}")
    reason = "chosen with use('reference')" if chosen == "reference" else why_not(name, *arguments)
    if chosen == "triton" and reason:
        raise KernelUnavailableError(
            f"{name} was to run as a Triton kernel, by use('triton'), and cannot: {reason}; "
            f"use('auto') runs the reference there"
        )
    if not reason and chosen == "auto" and not _on_cuda(arguments):
        reason = "the tensors are on the CPU"
    _say(name, "reference" if reason else "triton", reason or _why(chosen))
    if reason:
        return reference(*arguments)
    twin: Callable[[*Arguments], Result] = getattr(_module(name), name)
    return twin(*arguments)


def why_not(name: str, *arguments: object) -> str:
    """Return why the twin of the function `name` cannot run on these arguments, or nothing where it can.

    >>> why_not("cut_gradient", torch.ones(1, dtype=torch.float64))
    'torch.float64: the kernels take float32, bfloat16 and float16, and keep states and traces in float32'
    """
    tensors = list(_tensors(arguments))
    reason = _wrong_tensors(tensors)
    if reason:
        return reason
    home = f"snnlearn.kernels.{TWINS[name]}"
    if importlib.util.find_spec(home) is None:
        return f"{home} is not installed"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; it comes with torch for CUDA on Linux"
    if not all(value.is_cuda for value in tensors) and not _interpreting():
        return "the tensors are on the CPU, where Triton runs only under its interpreter (TRITON_INTERPRET=1)"
    obstacle: str = _module(name).OBSTACLES[name](*arguments)
    return obstacle


def _wrong_tensors(tensors: list[Tensor]) -> str:
    for value in tensors:
        if value.layout != torch.strided:
            return f"{value.layout}: the kernels take dense tensors"
        if value.dtype not in KERNEL_DTYPES:
            return (
                f"{value.dtype}: the kernels take float32, bfloat16 and float16, and keep states and traces in float32"
            )
        if value.requires_grad and torch.is_grad_enabled():
            return "a tensor requires grad: the kernels have no derivative of their own"
        if value.numel() >= 2**31:
            return f"{value.numel()} elements: the kernels count up to 2^31"
    places = {value.device for value in tensors}
    if len(places) > 1:
        return f"tensors on {' and '.join(sorted(map(str, places)))}: the kernels take those of one device"
    return ""


def _module(name: str) -> Any:
    return importlib.import_module(f"snnlearn.kernels.{TWINS[name]}")


def _interpreting() -> bool:
    """Return whether Triton runs its kernels in Python, as TRITON_INTERPRET=1 asks it to."""
    return bool(importlib.import_module("triton").knobs.runtime.interpret)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)


def _on_cuda(arguments: tuple[object, ...]) -> bool:
    return any(value.is_cuda for value in _tensors(arguments))


def _why(chosen: str) -> str:
    return "chosen with use('triton')" if chosen == "triton" else "the tensors are on a CUDA device"


def _say(name: str, path: str, reason: str) -> None:
    """Log the decision, the first time it is taken for this reason."""
    if (name, path, reason) not in _said:
        _said.add((name, path, reason))
        log.info("%s runs as %s: %s", name, path, reason)


__all__ = ["KERNEL_DTYPES", "PATHS", "TWINS", "KernelUnavailableError", "path_in_use", "run", "use", "why_not"]
