"""Pattern generation: follow a few sums of sines, given nothing but a fixed raster of spikes.

Bellec et al. 2020, doi:10.1038/s41467-020-17236-y, in the form of three targets at once.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from snnlearn.data.sequences import SequenceDataset
from snnlearn.data.tasks.options import COUNT, SHARE, Bounds, Fault, TaskOptions, check_split, generator_of, spikes

logger = logging.getLogger("snnlearn.data")

CYCLES = (1, 2, 3, 5)


@dataclass(frozen=True, kw_only=True)
class PatternGenerationOptions(TaskOptions):
    """Hold raster and curves.

    Each curve is a sum of four sines with 1, 2, 3 and 5 cycles in the sequence, amplitudes drawn from 0.5..2 and
    phases from the circle, scaled to mean 0 and variance 1.  The raster is drawn once.

    Args:
        length: steps of the sequence, at least 11.
        outputs: number of curves.
        inputs: channels of the raster.
        rate: spikes per step of a channel, 0..1.
        drop: share of the raster's spikes that is left out, anew in every sequence, 0..1; with 0 all sequences
            are the same, of both splits, as they are in the paper.

    Example:
        >>> PatternGenerationOptions(length=50).steps
        50
    """

    bounds: ClassVar[Bounds] = TaskOptions.bounds | {
        "length": COUNT,
        "outputs": COUNT,
        "inputs": COUNT,
        "rate": SHARE,
        "drop": SHARE,
    }

    length: int = 100
    outputs: int = 3
    inputs: int = 50
    rate: float = 0.1
    drop: float = 0.0
    train: int = 16
    test: int = 4

    @property
    def steps(self) -> int:
        """Steps T of a sequence."""
        return self.length

    @property
    def channels(self) -> int:
        """Values of a step."""
        return self.inputs

    def faults(self) -> Iterator[Fault]:
        """Yield what does not go together."""
        if self.length <= 2 * max(CYCLES):
            allowed = f"at least {2 * max(CYCLES) + 1} steps, or {max(CYCLES)} cycles cannot be told apart"
            yield Fault("length", self.length, allowed)


class PatternGeneration(SequenceDataset):
    """Serve pattern generation: at every step the numbers to follow, and the spikes of a fixed raster.

    Chance is a mean squared error of 1: no constant does better, since the curves have mean 0 and variance 1.

    Args:
        split: "train" or "test": the same raster and curves; with ``drop`` other spikes are missing.
        options: raster and curves.

    Example:
        >>> data = PatternGeneration("test")
        >>> x, y = data[0]
        >>> tuple(x.shape), tuple(y.shape), round(float((y**2).mean()), 5)
        ((100, 50), (100, 3), 1.0)
    """

    def __init__(self, split: str = "train", options: PatternGenerationOptions | None = None) -> None:
        self.options = options or PatternGenerationOptions()
        self.options.check()
        self.split = check_split(split, "pattern_generation")
        random = np.random.default_rng([self.options.seed, 2])
        self.raster = spikes(np.full((self.options.steps, self.options.inputs), self.options.rate), random)
        self.curves = _curves(self.options, random)
        labels = np.zeros(self.options.count(self.split), np.int64)
        classes = tuple(f"curve {number}" for number in range(1, self.options.outputs + 1))
        title = "pattern_generation"
        super().__init__(
            f"{title} {split}", title, self.options.inputs, classes, labels, chance=1.0, per_step=True, numbers=True
        )
        logger.info("%s", self.describe())

    def sequence(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the spikes [T, inputs] and the numbers to follow [T, outputs] of sequence ``index``."""
        random = generator_of(self.options, self.split, index)
        kept = spikes(np.full(self.raster.shape, 1 - self.options.drop), random)
        return (self.raster * kept).astype(np.float32), self.curves.copy()

    def describe(self) -> str:
        """Say what this is, whether the sequences differ, and what guessing earns."""
        options = self.options
        if options.drop == 0:
            note = "every sequence is the same, of training and of test alike: this measures following, not learning"
            note = f"{note} for new inputs"
        else:
            note = f"{options.drop:.0%} of the raster's spikes are missing, others in every sequence".replace("%", " %")
        return f"{super().describe()}\n  {options.steps} steps; {note}"


def _curves(options: PatternGenerationOptions, random: np.random.Generator) -> np.ndarray:
    amplitude = random.uniform(0.5, 2.0, (len(CYCLES), options.outputs))
    phase = random.uniform(0.0, 2 * np.pi, (len(CYCLES), options.outputs))
    turns = np.arange(options.steps)[:, None, None] / options.steps * np.array(CYCLES)[:, None]
    raw = (amplitude * np.sin(2 * np.pi * turns + phase)).sum(axis=1)
    curves: np.ndarray = ((raw - raw.mean(axis=0)) / raw.std(axis=0)).astype(np.float32)
    return curves


__all__ = ["PatternGeneration", "PatternGenerationOptions"]
