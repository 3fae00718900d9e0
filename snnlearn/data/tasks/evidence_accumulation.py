"""Evidence accumulation: cues on the left and on the right, a delay, and the side that had more of them.

Bellec et al. 2020, doi:10.1038/s41467-020-17236-y (after Morcos and Harvey 2016, doi:10.1038/nn.4403).
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from snnlearn.data.sequences import SequenceDataset
from snnlearn.data.tasks.options import (
    COUNT,
    NOT_NEGATIVE,
    Bounds,
    Fault,
    TaskOptions,
    check_split,
    generator_of,
    spikes,
)

logger = logging.getLogger("snnlearn.data")

LEFT, RIGHT, RECALL, NOISE = 0, 1, 2, 3


@dataclass(frozen=True, kw_only=True)
class EvidenceAccumulationOptions(TaskOptions):
    """Hold how cues, delay and recall follow each other; the defaults are the published ones, but for the delay,
    which is ours.

    A sequence is: ``cues`` times a silence and a cue, a delay, the recall.  Four groups of channels: left cue,
    right cue, recall, noise.  A group that is on fires at ``rate_hz``; the noise group always, at ``noise_hz``;
    the other three are silent while off.  A channel has at most one spike a step, with probability rate * dt.

    Args:
        cues: number of cues, odd.
        cue_ms: length of a cue, milliseconds.
        spacing_ms: from the start of a cue to that of the next, milliseconds, at least ``cue_ms``.
        delay_ms: from the end of the last cue to the recall, milliseconds.
        recall_ms: length of the recall, milliseconds; the loss is there alone.
        dt_ms: length of a step, milliseconds; every length above is a multiple of it.
        group: channels of each of the four groups.
        rate_hz: spikes per second of a channel that is on.
        noise_hz: spikes per second of a channel of the noise group.
        bias: probability that a cue is on the side of the majority to be, 0.5..1.

    Example:
        >>> options = EvidenceAccumulationOptions()
        >>> options.steps, options.channels, options.answer_steps
        (2250, 40, 150)
        >>> EvidenceAccumulationOptions(dt_ms=10, cues=3, delay_ms=100).steps
        70
    """

    bounds: ClassVar[Bounds] = TaskOptions.bounds | {
        **dict.fromkeys(("cues", "cue_ms", "spacing_ms", "recall_ms", "dt_ms", "group"), COUNT),
        **dict.fromkeys(("delay_ms", "rate_hz", "noise_hz"), NOT_NEGATIVE),
        "bias": (0.5, 1),
    }

    cues: int = 7
    cue_ms: int = 100
    spacing_ms: int = 150
    delay_ms: int = 1050
    recall_ms: int = 150
    dt_ms: int = 1
    group: int = 10
    rate_hz: float = 40.0
    noise_hz: float = 10.0
    bias: float = 0.7

    @property
    def steps(self) -> int:
        """Steps T of a sequence."""
        return (self.cues * self.spacing_ms + self.delay_ms + self.recall_ms) // self.dt_ms

    @property
    def channels(self) -> int:
        """Values of a step."""
        return 4 * self.group

    @property
    def answer_steps(self) -> int:
        """Steps of the recall."""
        return self.recall_ms // self.dt_ms

    def faults(self) -> Iterator[Fault]:
        """Yield what does not go together."""
        if self.cues % 2 == 0:
            yield Fault("cues", self.cues, "an odd number, or the sides can be even")
        if self.spacing_ms < self.cue_ms:
            yield Fault("spacing_ms", self.spacing_ms, f"at least cue_ms, which is {self.cue_ms}, or cues overlap")
        for name in ("cue_ms", "spacing_ms", "delay_ms", "recall_ms"):
            if getattr(self, name) % self.dt_ms:
                yield Fault(name, getattr(self, name), f"a multiple of dt_ms, which is {self.dt_ms}")
        for name in ("rate_hz", "noise_hz"):
            if getattr(self, name) * self.dt_ms > 1000:
                allowed = f"at most {1000 / self.dt_ms:g}, one spike a step of dt_ms {self.dt_ms}"
                yield Fault(name, getattr(self, name), allowed)


class EvidenceAccumulation(SequenceDataset):
    """Serve evidence accumulation: label 0 where more cues came from the left, 1 where from the right.

    Chance is 50 %: every other sequence is "right".  Whoever keeps the last cue alone does better than chance,
    since a cue is more often on the side of the majority.

    Args:
        split: "train" or "test"; different random numbers.
        options: cues, delay, recall.

    Example:
        >>> data = EvidenceAccumulation("test", EvidenceAccumulationOptions(cues=3, dt_ms=10, delay_ms=100))
        >>> x, label = data[1]
        >>> tuple(x.shape), label, int(data.sides(1).sum() > 1)
        ((70, 40), 1, 1)
    """

    def __init__(self, split: str = "train", options: EvidenceAccumulationOptions | None = None) -> None:
        self.options = options or EvidenceAccumulationOptions()
        self.options.check()
        self.split = check_split(split, "evidence_accumulation")
        labels = np.arange(self.options.count(self.split), dtype=np.int64) % 2
        title, classes = "evidence_accumulation", ("left", "right")
        super().__init__(f"{title} {split}", title, self.options.channels, classes, labels, chance=0.5)
        logger.info("%s", self.describe())

    def sides(self, index: int) -> np.ndarray:
        """Return the side of every cue, 0 left or 1 right, of sequence ``index``."""
        return self._sides(index, generator_of(self.options, self.split, index))

    def sequence(self, index: int) -> tuple[np.ndarray, int]:
        """Return the spikes [T, 4 * group] and the label of sequence ``index``."""
        options, random = self.options, generator_of(self.options, self.split, index)
        on = np.zeros((options.steps, 4))
        spacing, cue = options.spacing_ms // options.dt_ms, options.cue_ms // options.dt_ms
        for number, side in enumerate(self._sides(index, random)):
            end = (number + 1) * spacing
            on[end - cue : end, side] = options.rate_hz
        on[-options.answer_steps :, RECALL] = options.rate_hz
        on[:, NOISE] = options.noise_hz
        probability = np.repeat(on * (options.dt_ms / 1000), options.group, axis=1)
        return spikes(probability, random).astype(np.float32), int(self.labels[index])

    def _sides(self, index: int, random: np.random.Generator) -> np.ndarray:
        label = int(self.labels[index])
        sides = np.where(random.random(self.options.cues) < self.options.bias, label, 1 - label)
        wrong_way = int(sides.sum() > self.options.cues // 2) != label
        return 1 - sides if wrong_way else sides

    def describe(self) -> str:
        """Say what this is, how it runs, and what guessing earns."""
        o = self.options
        return (
            f"{super().describe()}\n  {o.steps} steps of {o.dt_ms} ms: {o.cues} cues of {o.cue_ms} ms every "
            f"{o.spacing_ms} ms, {o.delay_ms} ms of delay, {o.recall_ms} ms of recall"
        )


__all__ = ["EvidenceAccumulation", "EvidenceAccumulationOptions"]
