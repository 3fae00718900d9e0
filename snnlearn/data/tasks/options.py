"""What every made-up task shares: its options, a generator for each sequence, and spikes in groups of channels."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from snnlearn.data.errors import DataError

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")


Bounds = dict[str, tuple[float, float]]
"""The lowest and the highest value of options, by name."""

COUNT, NOT_NEGATIVE, SHARE = (1, math.inf), (0, math.inf), (0, 1)


class Fault(NamedTuple):
    """One option that cannot be: its name, the value it has, and what is allowed and why."""

    name: str
    got: object
    allowed: str


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Hold what a task is made from; the base of every task's options.

    Args:
        train: number of training sequences, at least 1.
        test: number of test sequences, at least 1, made from other random numbers.
        seed: of the sequences, 0 or more; another seed makes another set.

    Example:
        >>> TaskOptions(train=10, test=5).count("test")
        5
    """

    bounds: ClassVar[Bounds] = {"train": COUNT, "test": COUNT, "seed": NOT_NEGATIVE}

    train: int = 1000
    test: int = 200
    seed: int = 0

    @property
    def steps(self) -> int:
        """Steps T of a sequence."""
        raise NotImplementedError(f"{type(self).__name__} has to define steps")

    @property
    def channels(self) -> int:
        """Values of a step."""
        raise NotImplementedError(f"{type(self).__name__} has to define channels")

    @property
    def answer_steps(self) -> int | None:
        """Steps at the end that ask for the sequence's label; None for all, or where targets are per step."""
        return None

    def count(self, split: Split) -> int:
        """Return the number of sequences of a split."""
        return self.train if split == "train" else self.test

    def faults(self) -> Iterator[Fault]:
        """Yield what does not go together, where every option is within its own bounds."""
        return iter(())

    def check(self) -> None:
        """Raise DataError with every option out of its bounds or, where none is, all that does not go together."""
        found = [*self._out_of_bounds()] or [*self.faults()]
        if found:
            raise DataError("; ".join(f"{fault.name}={fault.got!r}: {fault.allowed}" for fault in found))

    def _out_of_bounds(self) -> Iterator[Fault]:
        for name, (lowest, highest) in self.bounds.items():
            value = getattr(self, name)
            if not lowest <= value <= highest:
                allowed = f"{lowest:g} or more" if highest == math.inf else f"from {lowest:g} to {highest:g}"
                yield Fault(name, value, allowed)


def check_split(split: str, what: str) -> Split:
    """Return the split, or raise DataError for a name that is none."""
    for known in SPLITS:
        if split == known:
            return known
    raise DataError(
        f"split={split!r}: {what} has 'train' and 'test'; cut a validation set from train by stratified_split"
    )


def generator_of(options: TaskOptions, split: Split, index: int) -> np.random.Generator:
    """Return the random numbers of one sequence: its own, so it is the same whatever else is made.

    Example:
        >>> first, again = (generator_of(TaskOptions(), "train", 3).random() for _ in range(2))
        >>> first == again
        True
    """
    return np.random.default_rng([options.seed, SPLITS.index(split), index])


def spikes(probability: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draw a spike, 0 or 1 (uint8), for every step and channel of ``probability`` [T, C].

    Example:
        >>> spikes(np.array([[0.0, 1.0]]), np.random.default_rng(0)).tolist()
        [[0, 1]]
    """
    drawn: np.ndarray = random.random(probability.shape, dtype=np.float32) < probability
    return drawn.view(np.uint8)


__all__ = [
    "COUNT",
    "NOT_NEGATIVE",
    "SHARE",
    "SPLITS",
    "Bounds",
    "Fault",
    "Split",
    "TaskOptions",
    "check_split",
    "generator_of",
    "spikes",
]
