"""What torch compiles for the CPU: the references themselves, fused; one compiled function per kind of arguments.

The scan of a neuron is compiled step by step, since the code of K steps takes K times as long to compile and is no
faster. Compiling takes seconds, which only a longer training wins back, so nothing is compiled unless it is chosen.
Each kind (shapes, strides, dtypes, and the values of what is no tensor) has a code object of its own, because torch
keeps a few versions per code object and falls back silently beyond; there are up to `MOST` kinds in a process.
"""

import functools
import logging
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snnlearn.functional.chunk import Restarts
from snnlearn.functional.dynamics import State
from snnlearn.functional.neuron_scan import NeuronConstants

log = logging.getLogger("snnlearn.kernels")

MOST = 64
"""How many functions are compiled in one process."""

SCANS = ("alif_scan", "cuba_lif_scan", "lif_scan")
"""Scans of neurons, which go step by step."""

_functions: dict[Any, Callable[..., Any]] = {}


def run(reference: Callable[..., Any], *arguments: Any) -> Any:
    """Return reference(*arguments) by the function compiled for such arguments, compiled now if there is none yet."""
    arguments = _detached(arguments)
    with torch.no_grad():
        if reference.__name__ in SCANS:
            return _by_steps(reference, *arguments)
        return _compiled(reference, reference.__name__, arguments)(*arguments)


def obstacle(name: str, *arguments: Any) -> str:
    """Return why `name` cannot be compiled for these arguments, or nothing where it can."""
    kind = _kind(_given_to_step(*arguments[:3]) if name in SCANS else arguments)
    if len(_functions) >= MOST and (name, kind) not in _functions:
        return f"{MOST} functions are compiled in this process, and these arguments would be one more"
    return compiler_missing()


@functools.cache
def compiler_missing() -> str:
    """Return why torch cannot compile for the CPU on this machine, or nothing where it can; compiles one line to see.

    >>> isinstance(compiler_missing(), str)
    True
    """
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
        torch.compile(lambda value: value + 1.0, dynamic=False)(torch.zeros(2))
    except (exc.InvalidCxxCompiler, exc.CppCompileError, exc.InductorError, OSError, ImportError) as reason:
        return f"torch.compile finds no C++ compiler that works ({str(reason).strip().splitlines()[0]})"
    return ""


def _detached(value: Any) -> Any:
    """Return a value, or a tuple of values, whose tensors are detached."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, NeuronConstants):
        return NeuronConstants(*map(_detached, value))
    return tuple(map(_detached, value)) if isinstance(value, tuple) else value


def _by_steps(
    reference: Callable[..., Any],
    y: Tensor,
    state: State,
    constants: NeuronConstants,
    restarts: Restarts = None,
    entering: State | None = None,
) -> tuple[Tensor, Tensor, State]:
    """Run the scan of a neuron, a compiled step at a time; steps where rows restart are rare and run as written."""
    given = _given_to_step(y, state, constants)
    dtype = torch.promote_types(y.dtype, state[0].dtype)
    spikes, u = torch.empty_like(y, dtype=dtype), torch.empty_like(y, dtype=dtype)
    begin = [False] * len(y) if restarts is None else restarts.any(1).tolist()
    step = None
    for t in range(len(y)):
        one = slice(t, t + 1)
        if restarts is not None and begin[t]:
            kept = None if entering is None else tuple(value[one] for value in entering)
            spikes[one], u[one], state = reference(y[one], state, constants, restarts[one], kept)
            continue
        for value, before in zip(entering or (), state, strict=entering is not None):
            value[t] = before
        step = step or _compiled(_one_step, reference.__name__, given)
        state = step(reference, spikes[one], u[one], y[one], state, given[2])
    return spikes, u, state


def _one_step(
    scan: Callable[..., Any], spikes: Tensor, u: Tensor, y: Tensor, state: State, constants: NeuronConstants
) -> State:
    """Write the spikes and u of one step and return the state after it."""
    fired, found, after = scan(y, state, constants)
    spikes.copy_(fired)
    u.copy_(found)
    return tuple(after)


def _given_to_step(y: Tensor, state: State, constants: NeuronConstants) -> tuple[Any, ...]:
    """Return the arguments of a scan that its step depends on: of a step without restarts, no initial membrane."""
    return y[:1], state, constants._replace(initial_membrane=0.0)


def _compiled(function: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """Return the function that is compiled for such arguments, which compiles at its first call."""
    key = name, _kind(arguments)
    found = _functions.get(key)
    if found is None:
        found = _functions[key] = _timed(
            torch.compile(_copied(function), dynamic=False, fullgraph=True), name, arguments
        )
    return found


def _timed(function: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Callable[..., Any]:
    shapes = ", ".join(str(list(value.shape)) for value in arguments if isinstance(value, Tensor))
    waiting = [True]

    def call(*given: Any) -> Any:
        if not waiting:
            return function(*given)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")
            result = function(*given)
        waiting.clear()
        log.info("%s compiled for %s in %.1f s", name, shapes, time.perf_counter() - start)
        return result

    return call


def _copied(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a code object of its own."""
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace(co_name=f"{function.__name__}_{len(_functions)}")
    return types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)


def _kind(value: Any) -> Any:
    """Return what a compiled function is made for: hashable, and equal for arguments of one kind."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    return tuple(map(_kind, value)) if isinstance(value, tuple | list) else (type(value), value)


__all__ = ["MOST", "SCANS", "compiler_missing", "obstacle", "run"]
