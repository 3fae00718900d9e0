"""Triton where it is installed; without it, names under which the modules of kernels still import."""

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

FOUND = importlib.util.find_spec("triton") is not None
"""Whether Triton is installed."""

triton: Any = importlib.import_module("triton") if FOUND else None
tl: Any = importlib.import_module("triton.language") if FOUND else None

if TYPE_CHECKING:
    constexpr: TypeAlias = Any
else:
    constexpr = tl.constexpr if FOUND else Any

FP_FUSION = False
"""What kernels are launched with: products and sums fuse where `tl.fma` says so, as in the references, nowhere else."""


def jit(kernel: Callable[..., Any]) -> Any:
    """Return the kernel compiled at its first launch; without Triton, as it is.

    Triton reads the source of what it is given, so a checker around the function is taken off. The number of steps is
    no reason to compile again: a last, shorter chunk runs the same code.

    >>> callable(jit(len)) if not FOUND else True
    True
    """
    if not FOUND:
        return kernel
    kernel = inspect.unwrap(kernel)
    return triton.jit(
        kernel, do_not_specialize=[name for name in inspect.signature(kernel).parameters if name == "steps"]
    )


__all__ = ["FOUND", "FP_FUSION", "constexpr", "jit", "tl", "triton"]
