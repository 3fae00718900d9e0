"""Arguments that make a part each time they are called: a class such as `LIF`, or a function without arguments."""

from torch import nn


def check_factory(name: str, factory: object, example: str) -> None:
    """Raise TypeError unless the argument `name` can be called to make a new part; `example` is one that can.

    >>> check_factory("neuron", nn.Identity, "LIF")
    """
    if isinstance(factory, nn.Module):
        made = type(factory).__name__
        raise TypeError(
            f"{name} is one {made} object: several blocks would share it and mix their states, so it takes what makes "
            f"a new one at each call; write {name}=lambda: {made}(...), or {name}={example}"
        )
    if not callable(factory):
        raise TypeError(
            f"{name}={factory!r}: it takes what makes a new one at each call, a class or a function without "
            f"arguments; write {name}={example}"
        )


__all__ = ["check_factory"]
