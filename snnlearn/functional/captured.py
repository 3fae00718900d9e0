"""Whether what runs is being captured, to be replayed without Python: nothing may then depend on a number."""

from collections.abc import Iterator
from contextlib import contextmanager

# One value for the process and not per thread: backward of CUDA tensors runs in a thread of its own.
_depth = [0]


@contextmanager
def capturing() -> Iterator[None]:
    """Say that what runs within is captured.

    >>> with capturing():
    ...     is_captured()
    True
    """
    _depth[0] += 1
    try:
        yield
    finally:
        _depth[0] -= 1


def is_captured() -> bool:
    """Return whether what runs is being captured.

    >>> is_captured()
    False
    """
    return _depth[0] > 0


__all__ = ["capturing", "is_captured"]
