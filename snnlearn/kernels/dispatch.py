"""Which path runs: a function of `snnlearn.functional`, the reference, or a faster twin of it; and why.

`run(reference, *arguments)` calls one of three:

    reference   the function itself
    triton      its Triton twin, on CUDA devices (on the CPU under Triton's interpreter alone, for tests)
    compiled    the function itself through torch.compile, on the CPU: seconds per shape, so only where it is chosen

Left to itself (`auto`) it takes the twin where the tensors are on a CUDA device and the twin can do what is asked, and
the reference otherwise, on the CPU always. A choice made with `use`, or for a whole process by the environment variable
SNNLEARN_KERNELS, is kept to: what cannot run as chosen raises KernelUnavailableError with the reason. The choice
`reference` switches every kernel off. The logger `snnlearn.kernels` says what runs and why, once per function and
reason, at level INFO.

A twin has the name and the signature of its reference and lies in the module that `TWINS` gives. This module alone
imports those, when a twin is asked for, so each of them can be deleted.
"""

import functools
import importlib
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

import torch
from torch import Tensor

log = logging.getLogger("snnlearn.kernels")

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

PATHS = ("auto", "reference", "triton", "compiled")
"""What `use` and SNNLEARN_KERNELS take."""

TWINS = {
    "alif_scan": "neuron_scan",
    "cuba_lif_scan": "neuron_scan",
    "cut_gradient": "neuron_scan",
    "lif_scan": "neuron_scan",
    "roll_eligibility": "fold",
    "roll_leak_trace": "leak_scan",
    "scan_chunk": "gated_scan",
    "scan_leak": "leak_scan",
    "spike_gate": "neuron_scan",
}
"""The module of `snnlearn.kernels` in which the twin of each function lies."""

COMPILED = ("alif_scan", "cuba_lif_scan", "cut_gradient", "lif_scan", "spike_gate")
"""Functions that `compiled` compiles. It leaves the others as they are: products of matrices, and scans of two or three
operations a step, which took longer compiled."""

KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.bool)


class KernelUnavailableError(RuntimeError):
    """A path was chosen that cannot run what is asked."""


class Choice(NamedTuple):
    """A path, whether it is kept to, and how a user writes a choice, `{}` or `{!r}` in place of the path.

    >>> Choice("triton", True, "use({!r})").words, Choice("triton", True, "use({!r})").words_for("auto")
    ("use('triton')", "use('auto')")
    """

    path: str
    strict: bool
    form: str

    @property
    def words(self) -> str:
        """What the user wrote."""
        return self.words_for(self.path)

    def words_for(self, path: str) -> str:
        """Return what to write for another path."""
        return self.form.format(path)

    def checked(self) -> "Choice":
        """Return this choice; raise ValueError for a path that there is not."""
        if self.path not in PATHS:
            raise ValueError(f"{self.words}: choose one of {', '.join(PATHS)}; write {self.words_for('auto')}")
        return self


ENVIRONMENT = "SNNLEARN_KERNELS={}"
"""The form of the choice that the environment makes."""

# One value for the process and not per thread: backward of CUDA tensors runs in a thread of its own. What the
# environment says is checked where it is used, so that an import does not fail and a script can say what is wrong.
_chosen = [Choice(os.environ.get("SNNLEARN_KERNELS") or "auto", True, ENVIRONMENT)]
_said: set[tuple[str, str, str]] = set()


def choice_in_use() -> Choice:
    """Return the choice in effect, as it was made: the environment may name a path that there is not.

    >>> with use("reference"):
    ...     choice_in_use().words
    "use('reference')"
    """
    return _chosen[0]


def path_in_use() -> str:
    """Return the path in effect: auto, reference, triton or compiled; raise ValueError for another in the environment.

    >>> with use("reference"):
    ...     path_in_use()
    'reference'
    """
    return _chosen[0].checked().path


@contextmanager
def use(path: str, *, strict: bool = True) -> Iterator[None]:
    """Choose the path, one of PATHS, for the whole process while the context lasts.

    What cannot run as chosen raises KernelUnavailableError; with `strict=False` the reference runs instead, and the log
    says why. Raises ValueError for another name.

    >>> with use("reference"):
    ...     path_in_use()
    'reference'
    """
    before, _chosen[0] = _chosen[0], Choice(path, strict, "use({!r})").checked()
    try:
        yield
    finally:
        _chosen[0] = before


def run(reference: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Return reference(*arguments), computed by the path in use; see the module.

    Raises KernelUnavailableError where a path was chosen that cannot run, ValueError for a function without a twin and
    for a word in SNNLEARN_KERNELS that is no path.

    >>> from snnlearn.functional import ArcTan
    >>> from snnlearn.functional.cut_step import cut_gradient
    >>> run(cut_gradient, torch.ones(1), torch.zeros(1), ArcTan())
    tensor([1.])
    """
    name = reference.__name__
    if name not in TWINS:
        raise ValueError(f"run({name}): it has no twin; call it directly, or one of {', '.join(TWINS)}")
    path, reason = _decide(name, arguments)
    if (name, path, reason) not in _said:
        _said.add((name, path, reason))
        log.info("%s runs as %s: %s", name, path, reason)
    if path == "reference":
        return reference(*arguments)
    if path == "compiled":
        result: Result = _module("compiled").run(reference, *arguments)
        return result
    twin: Callable[[*Arguments], Result] = getattr(_module(TWINS[name]), name)
    return twin(*arguments)


def _decide(name: str, arguments: tuple[object, ...]) -> tuple[str, str]:
    """Return the path that these arguments take, and why."""
    choice = _chosen[0]
    path = choice.path
    if path == "reference":
        return path, f"chosen with {choice.words}"
    if path == "auto":
        if not any(value.is_cuda for value in _tensors(arguments)):
            return "reference", "the tensors are on the CPU"
        reason = why_not(name, *arguments)
        return ("reference", reason) if reason else ("triton", "the tensors are on a CUDA device")
    words = choice.checked().words
    if path == "compiled" and name not in COMPILED:
        return "reference", f"chosen with {words}, and compiling gains nothing here"
    reason = (why_not if path == "triton" else why_not_compiled)(name, *arguments)
    if reason and choice.strict:
        raise KernelUnavailableError(
            f"{name} was to run as {path}, by {words}, and cannot: {reason}; "
            f"{choice.words_for('auto')} runs the reference there"
        )
    return ("reference", reason) if reason else (path, f"chosen with {words}")


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
    if not _is_installed(home):
        return f"{home} is not installed"
    if not _is_installed("triton"):
        return "triton is not installed; it comes with torch for CUDA on Linux"
    if not all(value.is_cuda for value in tensors) and not _interpreting():
        return "the tensors are on the CPU, where Triton runs only under its interpreter (TRITON_INTERPRET=1)"
    obstacle: str = _module(TWINS[name]).OBSTACLES[name](*arguments)
    return obstacle


def why_not_compiled(name: str, *arguments: object) -> str:
    """Return why the function `name` cannot be compiled for these arguments, or nothing where it can.

    The first call asks torch for a C++ compiler and tries it, which takes seconds.

    >>> from snnlearn.functional import ArcTan
    >>> why_not_compiled("spike_gate", torch.ones(1, requires_grad=True), ArcTan())
    'a tensor requires grad: the kernels have no derivative of their own'
    """
    for value in _tensors(arguments):
        if value.layout != torch.strided:
            return f"{value.layout}: what is compiled takes dense tensors"
        if not value.is_cpu:
            return f"the tensors are on {value.device}: torch.compile is used on the CPU alone, Triton elsewhere"
        if value.requires_grad and torch.is_grad_enabled():
            return "a tensor requires grad: the kernels have no derivative of their own"
    if not _is_installed("snnlearn.kernels.compiled"):
        return "snnlearn.kernels.compiled is not installed"
    obstacle: str = _module("compiled").obstacle(name, *arguments)
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


@functools.cache
def _is_installed(module: str) -> bool:
    """Return whether there is such a module; looking for it takes longer than a small kernel."""
    return importlib.util.find_spec(module) is not None


def _module(name: str) -> Any:
    return importlib.import_module(f"snnlearn.kernels.{name}")


def _interpreting() -> bool:
    """Return whether Triton runs its kernels in Python, as TRITON_INTERPRET=1 asks it to."""
    return bool(importlib.import_module("triton").knobs.runtime.interpret)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)


__all__ = [
    "COMPILED",
    "ENVIRONMENT",
    "KERNEL_DTYPES",
    "PATHS",
    "TWINS",
    "Choice",
    "KernelUnavailableError",
    "choice_in_use",
    "path_in_use",
    "run",
    "use",
    "why_not",
    "why_not_compiled",
]
