"""What is wrong with a configuration, said in one line each."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["ConfigError", "Problem", "nearest"]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: dotted `path`, the value `got`, what is `legal`, and a `hint` (may be empty).

    >>> print(Problem("trainer.epochs", "-1", "a whole number >= 1"))
    trainer.epochs: got -1; legal: a whole number >= 1
    """

    path: str
    got: str
    legal: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.path}: got {self.got}; legal: {self.legal}"
        return f"{text}; {self.hint}" if self.hint else text


class ConfigError(ValueError):
    """Raised with every problem of a configuration at once.

    >>> print(ConfigError([Problem("seed", "-1", "a whole number >= 0")]))
    the configuration has 1 problem; nothing was built
      seed: got -1; legal: a whole number >= 0
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        count = f"{len(self.problems)} problem{'' if len(self.problems) == 1 else 's'}"
        lines = [f"the configuration has {count}; nothing was built", *map(str, self.problems)]
        super().__init__("\n  ".join(lines))

    @property
    def reason(self) -> str:
        """All problems in a single line."""
        return " | ".join(map(str, self.problems))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `did you mean ...?` for the known name nearest to `name`, or nothing where none is near.

    >>> nearest("trainr.epochs", ["trainer.epochs", "seed"])
    'did you mean trainer.epochs?'
    """
    known = list(known)
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not found and "." in name:  # a right last word in a wrong group
        leaf = name.rsplit(".", 1)[1]
        found = [path for path in known if path.rsplit(".", 1)[-1] == leaf][:1]
    return f"did you mean {found[0]}?" if found else ""
