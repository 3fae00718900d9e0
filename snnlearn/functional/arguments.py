"""What counts as a number among arguments: checked before a comparison of torch or Python meets something else."""

import math
import numbers


def is_number(value: object) -> bool:
    """Return whether `value` is one finite real number; a bool, a string, None, NaN and a tensor are none.

    >>> is_number(0.5), is_number(True), is_number("0.5"), is_number(float("nan"))
    (True, False, False, False)
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: object, least: int) -> bool:
    """Return whether `value` is a whole number (a Python or NumPy integer, no bool) of at least `least`.

    >>> is_whole(1, 1), is_whole(1.0, 1), is_whole(True, 1), is_whole(0, 1)
    (True, False, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least


__all__ = ["is_number", "is_whole"]
