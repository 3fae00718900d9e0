"""One knob, declared once: its type, its range and its meaning, for checking and for `--help` alike."""

import dataclasses
import math
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

__all__ = ["IllegalValue", "Knob", "convert", "knob", "legal"]

Number = int | float


class IllegalValue(ValueError):
    """Raised when a value is outside what a knob allows."""


@dataclass(frozen=True, kw_only=True)
class Knob:
    """Hold what a knob means and which numbers it takes.

    `help` is one phrase, `unit` the unit of its number, `at_least`, `above`, `at_most`, `below` its range
    (of every element, where the knob is a list).
    """

    help: str
    unit: str = ""
    at_least: Number | None = None
    above: Number | None = None
    at_most: Number | None = None
    below: Number | None = None

    def range(self) -> str:
        """Write the range in words, such as `> 1, <= 5`; empty where any number will do."""
        bounds = ((">=", self.at_least), (">", self.above), ("<=", self.at_most), ("<", self.below))
        return ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)

    def admits(self, number: Number) -> bool:
        """Say whether `number` is finite and inside the range."""
        return (
            math.isfinite(number)
            and (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )


def knob(
    help: str,
    *,
    unit: str = "",
    at_least: Number | None = None,
    above: Number | None = None,
    at_most: Number | None = None,
    below: Number | None = None,
) -> Any:
    """Declare a knob as a dataclass field; its value comes from the YAML files, never from here.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Leak:
    ...     tau: float = knob("membrane time constant", unit="steps", above=1)
    >>> dataclasses.fields(Leak)[0].metadata["knob"].range()
    '> 1'
    """
    declared = Knob(help=help, unit=unit, at_least=at_least, above=above, at_most=at_most, below=below)
    return dataclasses.field(metadata={"knob": declared})


def legal(kind: Any, declared: Knob) -> str:
    """Describe in words every value that `kind` within the knob's range allows.

    >>> legal(int | None, Knob(help="", at_least=1))
    'a whole number >= 1, or null'
    >>> legal(Literal["soft", "hard"], Knob(help=""))
    'one of: soft, hard'
    >>> legal(tuple[Literal["decay", "threshold"], ...], Knob(help=""))
    'a list, empty or of any of: decay, threshold'
    """
    text = ", or ".join(_legal(member, declared) for member in _members(kind))
    return f"{text} ({declared.unit})" if declared.unit else text


def _legal(kind: Any, declared: Knob) -> str:
    bounds = declared.range()
    bounds = f" {bounds}" if bounds else ""
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return f"one of: {', '.join(choices)}" if len(choices) > 1 else str(choices[0])
    if get_origin(kind) is tuple:
        element, *rest = get_args(kind)
        if get_origin(element) is Literal:
            return f"a list, empty or of any of: {', '.join(get_args(element))}"
        noun = _PLURALS[element]
        return f"a list of {noun}{bounds}" if rest == [...] else f"{len(rest) + 1} {noun}{bounds}"
    return f"{_NOUNS[kind]}{bounds if kind in (int, float) else ''}"


_NOUNS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
    type(None): "null",
}
_PLURALS: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "texts"}


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def convert(value: Any, kind: Any, declared: Knob, base: Path) -> Any:
    """Return `value` as the type `kind`: lists become tuples, paths absolute (relative ones from `base`).

    A single number stands for a list of one, or for a pair of the same. Raises `IllegalValue` for a wrong
    type or a number out of range; booleans are no numbers, and neither infinity nor NaN is ever legal.

    >>> convert([8, 16], tuple[int, ...], Knob(help="", at_least=1), Path("/"))
    (8, 16)
    >>> convert(3, tuple[int, int], Knob(help=""), Path("/"))
    (3, 3)
    """
    for member in _members(kind):
        try:
            return _convert(value, member, declared, base)
        except IllegalValue:
            continue
    raise IllegalValue(f"got {value!r}; legal: {legal(kind, declared)}")


def _convert(value: Any, kind: Any, declared: Knob, base: Path) -> Any:
    if get_origin(kind) is Literal:
        return _require(value, isinstance(value, str) and value in get_args(kind))
    if get_origin(kind) is tuple:
        element, *rest = get_args(kind)
        if not isinstance(value, list | tuple):
            value = [value] * (1 if rest == [...] else len(rest) + 1)
        may_be_empty = get_origin(element) is Literal  # a choice of none
        _require(value, (may_be_empty or len(value) > 0) if rest == [...] else len(value) == len(rest) + 1)
        return tuple(_convert(item, element, declared, base) for item in value)
    if kind is float or kind is int:
        allowed = (int, float) if kind is float else int
        _require(value, isinstance(value, allowed) and not isinstance(value, bool))
        return kind(_require(value, declared.admits(value)))
    if kind is Path:
        _require(value, isinstance(value, str | Path) and str(value) != "")
        return (base / Path(value).expanduser()).resolve()
    return _require(value, isinstance(value, kind))


def _require(value: Any, fits: bool) -> Any:
    if not fits:
        raise IllegalValue(repr(value))
    return value
