"""Copy: a short string of symbols, a delay, and the string again from memory."""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from snnlearn.data.sequences import MISSING, SequenceDataset
from snnlearn.data.tasks.options import COUNT, NOT_NEGATIVE, Bounds, Fault, TaskOptions, check_split

logger = logging.getLogger("snnlearn.data")


@dataclass(frozen=True, kw_only=True)
class CopyOptions(TaskOptions):
    """Hold how long the string is and how long it has to be kept.

    A sequence is: `length` symbols, each for `hold` steps; `delay` steps of nothing; `length` * `hold` steps of
    recall.  One channel for each symbol, which is 1 while its symbol is shown, and one that is 1 during recall.

    Args:
        symbols: number of different symbols, at least 2.
        length: symbols in a string.
        hold: steps of each symbol, shown and recalled.
        delay: steps between the last symbol and the recall.

    Example:
        >>> CopyOptions(symbols=4, length=3, hold=1, delay=5).steps
        11
    """

    bounds: ClassVar[Bounds] = TaskOptions.bounds | {
        "symbols": (2, math.inf),
        "length": COUNT,
        "hold": COUNT,
        "delay": NOT_NEGATIVE,
    }

    symbols: int = 8
    length: int = 4
    hold: int = 1
    delay: int = 10

    @property
    def steps(self) -> int:
        """Steps T of a sequence."""
        return 2 * self.length * self.hold + self.delay

    @property
    def channels(self) -> int:
        """Values of a step."""
        return self.symbols + 1

    def faults(self) -> Iterator[Fault]:
        """Yield what does not go together."""
        strings, wanted = self.symbols**self.length, self.train + self.test
        if wanted > strings:
            allowed = (
                f"at most {strings} with test: there are {self.symbols}^{self.length} strings and none comes twice"
            )
            yield Fault("train", self.train, allowed)


class Copy(SequenceDataset):
    """Serve the copy task: a label at every step of the recall, the symbol that was shown in its place.

    Chance is 1 / symbols: the symbols of a string are drawn evenly and independently of each other.  No string
    comes twice, neither within a split nor in both.

    Args:
        split: "train" or "test".
        options: strings and delay.

    Example:
        >>> data = Copy("test", CopyOptions(symbols=2, length=2, delay=1, train=2, test=1))
        >>> x, y = data[0]
        >>> tuple(x.shape), y[:3].tolist(), y[3:].tolist() == data.strings[0].tolist()
        ((5, 3), [-100, -100, -100], True)
    """

    def __init__(self, split: str = "train", options: CopyOptions | None = None) -> None:
        self.options = options or CopyOptions()
        self.options.check()
        self.split = check_split(split, "copy")
        self.strings = _strings(self.options)[self.split]
        classes = tuple(str(symbol) for symbol in range(self.options.symbols))
        labels = np.zeros(len(self.strings), np.int64)
        chance = 1 / self.options.symbols
        super().__init__(f"copy {split}", "copy", self.options.channels, classes, labels, chance, per_step=True)
        logger.info("%s", self.describe())

    def sequence(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the input [T, symbols + 1] and the labels [T] of sequence ``index``."""
        options, shown = self.options, np.repeat(self.strings[index], self.options.hold)
        values = np.zeros((options.steps, options.channels), np.float32)
        values[np.arange(len(shown)), shown] = 1
        values[-len(shown) :, options.symbols] = 1
        labels = np.full(options.steps, MISSING, np.int64)
        labels[-len(shown) :] = shown
        return values, labels

    def describe(self) -> str:
        """Say what this is, how long the delay is, and what guessing earns."""
        options = self.options
        return (
            f"{super().describe()}\n  {options.steps} steps: {options.length} symbols of {options.hold}, "
            f"{options.delay} of delay, then as many of recall"
        )


def _strings(options: CopyOptions) -> dict[str, np.ndarray]:
    """Draw the strings of both splits, [N, length] each: all different."""
    random = np.random.default_rng([options.seed, 2])
    wanted, total = options.train + options.test, options.symbols**options.length
    if total <= 4 * wanted:
        places = options.symbols ** np.arange(options.length)
        strings = random.permutation(total)[:wanted, None] // places % options.symbols
    else:  # too many to list: draw until there are enough
        found: dict[tuple[int, ...], None] = {}
        while len(found) < wanted:
            drawn = random.integers(0, options.symbols, (wanted, options.length))
            found |= dict.fromkeys(map(tuple, drawn.tolist()))
        strings = np.array(list(found)[:wanted], np.int64)
    return {"train": strings[: options.train], "test": strings[options.train :]}


__all__ = ["Copy", "CopyOptions"]
