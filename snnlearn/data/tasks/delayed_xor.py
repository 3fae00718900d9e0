"""Delayed exclusive or: two cues, far apart, and the question whether they differed."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from snnlearn.data.sequences import SequenceDataset
from snnlearn.data.tasks.options import (
    COUNT,
    NOT_NEGATIVE,
    SHARE,
    Bounds,
    Fault,
    TaskOptions,
    check_split,
    generator_of,
    spikes,
)

logger = logging.getLogger("snnlearn.data")


@dataclass(frozen=True, kw_only=True)
class DelayedXorOptions(TaskOptions):
    """Hold how the cues come.

    A sequence is: cue, delay, cue, answer.  Three groups of channels: "the cue is 0", "the cue is 1", "answer".
    A channel of the group that is on fires with probability ``rate`` a step, any other with ``noise``.

    Args:
        cue_steps: steps of each cue.
        delay: steps between the cues.
        answer: steps at the end, in which the answer is asked for.
        group: channels of each of the three groups.
        rate: spikes per step of a channel that is on, 0..1.
        noise: spikes per step of any other, 0..1.

    Example:
        >>> DelayedXorOptions(cue_steps=4, delay=20, answer=2).steps
        30
    """

    bounds: ClassVar[Bounds] = TaskOptions.bounds | {
        "cue_steps": COUNT,
        "delay": NOT_NEGATIVE,
        "answer": COUNT,
        "group": COUNT,
        "rate": SHARE,
        "noise": SHARE,
    }

    cue_steps: int = 5
    delay: int = 20
    answer: int = 5
    group: int = 5
    rate: float = 0.6
    noise: float = 0.02

    @property
    def steps(self) -> int:
        """Steps T of a sequence."""
        return 2 * self.cue_steps + self.delay + self.answer

    @property
    def channels(self) -> int:
        """Values of a step."""
        return 3 * self.group

    @property
    def answer_steps(self) -> int:
        """Steps at the end that ask for the label."""
        return self.answer

    def faults(self) -> Iterator[Fault]:
        """Yield what does not go together."""
        if self.noise >= self.rate:
            yield Fault("noise", self.noise, f"below rate, which is {self.rate:g}, or no cue stands out")


class DelayedXor(SequenceDataset):
    """Serve delayed exclusive or: label 1 where the two cues differed.

    Chance is 50 %: each of the four pairs of cues is exactly a quarter of the sequences (where their number is a
    multiple of four), so neither cue alone says anything about the label.

    Args:
        split: "train" or "test"; different random numbers.
        options: how the cues come.

    Example:
        >>> data = DelayedXor("test")
        >>> x, label = data[1]
        >>> tuple(x.shape), label, data.cues[1].tolist()
        ((35, 15), 1, [0, 1])
    """

    def __init__(self, split: str = "train", options: DelayedXorOptions | None = None) -> None:
        self.options = options or DelayedXorOptions()
        self.options.check()
        self.split = check_split(split, "delayed_xor")
        pair = np.arange(self.options.count(self.split)) % 4
        self.cues = np.stack([pair // 2, pair % 2], axis=1)
        labels = (self.cues[:, 0] ^ self.cues[:, 1]).astype(np.int64)
        name = f"delayed_xor {split}"
        super().__init__(name, "delayed_xor", self.options.channels, ("same", "different"), labels, chance=0.5)
        logger.info("%s", self.describe())

    def sequence(self, index: int) -> tuple[np.ndarray, int]:
        """Return the spikes [T, 3 * group] and the label of sequence ``index``."""
        options = self.options
        on = np.full((options.steps, 3), options.noise)
        second = options.cue_steps + options.delay
        on[: options.cue_steps, self.cues[index, 0]] = options.rate
        on[second : second + options.cue_steps, self.cues[index, 1]] = options.rate
        on[-options.answer :, 2] = options.rate
        probability = np.repeat(on, options.group, axis=1)
        drawn = spikes(probability, generator_of(options, self.split, index))
        return drawn.astype(np.float32), int(self.labels[index])

    def describe(self) -> str:
        """Say what this is, how long the delay is, and what guessing earns."""
        options = self.options
        return (
            f"{super().describe()}\n  {options.steps} steps: two cues of {options.cue_steps}, {options.delay} apart, "
            f"the answer in the last {options.answer}"
        )


__all__ = ["DelayedXor", "DelayedXorOptions"]
