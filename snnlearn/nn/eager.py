"""Keep stateful steps out of compiled graphs: torch.compile runs them as they are."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=nn.Module)

_undecided: list[Callable[[], None]] = []
"""What is left to tell the compiler about the functions under `run_eagerly`."""


def run_eagerly(reason: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator under which torch.compile leaves a method as it is, and says `reason` if it may not.

    State that is written in place between forward and backward has no meaning inside a compiled graph, where
    backward is traced together with forward. The rest of a network compiles around such a step;
    `fullgraph=True` raises torch's error with the reason. For methods of an `EagerModule`, which tells the compiler.

    Outside a compilation the function is called directly, which costs a tenth of torch's own wrapper.

    >>> run_eagerly("it adds")(lambda a, b: a + b)(1, b=2)
    3
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        compiled = [function]  # a list, since the compiler reads it only after it was told

        def tell() -> None:
            compiled[0] = torch.compiler.disable(function, reason=reason)

        _undecided.append(tell)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return compiled[0](*args, **kwargs) if torch.compiler.is_compiling() else function(*args, **kwargs)

        return call

    return decorate


class EagerModule(nn.Module):
    """Base of the modules with methods under `run_eagerly`.

    `torch.compiler.disable` loads the compiler, which takes seconds (any optimizer loads it too), so it is called where
    the first module is made, built or unpickled, and not by an import.

    >>> type(EagerModule()).__name__
    'EagerModule'
    """

    def __new__(cls: type[M], *_arguments: Any, **_named: Any) -> M:
        """Make the module, and tell the compiler what it is to leave alone."""
        while _undecided:
            _undecided.pop()()
        return nn.Module.__new__(cls)


__all__ = ["EagerModule", "run_eagerly"]
