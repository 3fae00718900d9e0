"""Keep stateful steps out of compiled graphs: torch.compile runs them as they are."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R")


def run_eagerly(reason: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator under which torch.compile leaves a function as it is, and says `reason` if it may not.

    State that is written in place between forward and backward has no meaning inside a compiled graph, where
    backward is traced together with forward. The rest of a network compiles around such a step;
    `fullgraph=True` raises torch's error with the reason.

    Outside a compilation the function is called directly, which costs a tenth of torch's own wrapper.

    >>> run_eagerly("it adds")(lambda a, b: a + b)(1, b=2)
    3
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        disabled = cast(Callable[P, R], torch.compiler.disable(function, reason=reason))

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return disabled(*args, **kwargs) if torch.compiler.is_compiling() else function(*args, **kwargs)

        return call

    return decorate


__all__ = ["run_eagerly"]
