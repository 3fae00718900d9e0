"""Checks of a rule's own arguments, which speak of them by the names that the caller wrote."""

from collections.abc import Sequence
from typing import cast

from snnlearn.functional.arguments import is_number, is_whole
from snnlearn.rules.legality import RuleChoiceError


def check_number(name: str, value: object, example: str) -> float:
    """Return a finite number as a float; raise RuleChoiceError for anything else.

    >>> check_number("causal", 1, "1.0")
    1.0
    """
    if not is_number(value):
        raise RuleChoiceError(f"{name}={value!r}: a finite number; write {name}={example}")
    return float(cast(float, value))


def check_share(name: str, value: object, example: str, below_one: bool = False) -> None:
    """Raise RuleChoiceError unless a number lies in 0 .. 1, or below 1 where it must not reach it; None passes.

    >>> check_share("kappa", 0.9, "0.9", below_one=True)
    """
    if value is None:
        return
    number = check_number(name, value, example)
    if not (0 <= number < 1 or (number == 1 and not below_one)):
        allowed = "in 0 .. 1, below 1" if below_one else "in 0 .. 1"
        raise RuleChoiceError(f"{name}={value!r}: it lies {allowed}; write {name}={example}")


def check_steps(name: str, value: object) -> None:
    """Raise RuleChoiceError unless a number of steps is whole and at least 1; None passes.

    >>> check_steps("steps", 2)
    """
    if value is not None and not is_whole(value, 1):
        raise RuleChoiceError(f"{name}={value!r}: a whole number of steps from 1; write {name}=5")


def check_flag(name: str, value: object) -> None:
    """Raise RuleChoiceError unless `value` is True or False: any other word would count as true.

    >>> check_flag("square", False)
    """
    if not isinstance(value, bool):
        raise RuleChoiceError(f"{name}={value!r}: True or False; write {name}=True")


def check_one_of(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise RuleChoiceError unless `value` is one of `choices`.

    >>> check_one_of("loss", "mse", ("mse",))
    """
    if value not in choices:
        raise RuleChoiceError(f"{name}={value!r}: choose one of {', '.join(choices)}; write {name}={choices[0]!r}")


__all__ = ["check_flag", "check_number", "check_one_of", "check_share", "check_steps"]
