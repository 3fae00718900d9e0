"""Store and recall: a stream of bits, and now and then the command to keep one or to say which was kept."""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from snnlearn.data.sequences import MISSING, SequenceDataset
from snnlearn.data.tasks.options import COUNT, SHARE, Bounds, Fault, TaskOptions, check_split, generator_of, spikes

logger = logging.getLogger("snnlearn.data")

NOTHING, STORE, RECALL = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class StoreRecallOptions(TaskOptions):
    """Hold how the stream runs.

    A sequence has ``periods`` periods of ``period_steps`` steps, each with a bit, drawn evenly.  The first one is
    stored; each further one is stored with probability ``store``, is a recall with probability ``recall``, and
    passes by otherwise; the last one is a recall.  Four groups of channels: bit 0, bit 1, "store", "recall".  A
    channel of a group that is on fires with probability ``rate`` a step, any other with ``noise``.

    Args:
        periods: periods of a sequence, at least 2.
        period_steps: steps of each.
        store: share of the periods in the middle that are stored, 0..1.
        recall: share of them that are recalls, 0..1; with ``store`` at most 1.
        group: channels of each of the four groups.
        rate: spikes per step of a channel that is on, 0..1.
        noise: spikes per step of any other, 0..1.

    Example:
        >>> StoreRecallOptions(periods=6, period_steps=10).steps
        60
    """

    bounds: ClassVar[Bounds] = TaskOptions.bounds | {
        "periods": (2, math.inf),
        "period_steps": COUNT,
        "store": SHARE,
        "recall": SHARE,
        "group": COUNT,
        "rate": SHARE,
        "noise": SHARE,
    }

    periods: int = 6
    period_steps: int = 10
    store: float = 0.2
    recall: float = 0.2
    group: int = 5
    rate: float = 0.5
    noise: float = 0.01

    @property
    def steps(self) -> int:
        """Steps T of a sequence."""
        return self.periods * self.period_steps

    @property
    def channels(self) -> int:
        """Values of a step."""
        return 4 * self.group

    def faults(self) -> Iterator[Fault]:
        """Yield what does not go together."""
        if self.store + self.recall > 1:
            allowed = f"at most {1 - self.store:g} while store is {self.store:g}: a period is one or the other"
            yield Fault("recall", self.recall, allowed)
        if self.noise >= self.rate:
            yield Fault("noise", self.noise, f"below rate, which is {self.rate:g}, or no command stands out")


class StoreRecall(SequenceDataset):
    """Serve store and recall: at every step of a recall the label is the bit of the last period that was stored.

    Chance is 50 %: bits are drawn evenly, and the bit of a recall's own period has nothing to do with the answer.

    Args:
        split: "train" or "test"; different random numbers.
        options: how the stream runs.

    Example:
        >>> data = StoreRecall("test", StoreRecallOptions(periods=2, period_steps=2, test=1))
        >>> x, y = data[0]
        >>> bits, commands = data.stream(0)
        >>> tuple(x.shape), commands.tolist(), y[:2].tolist(), bool((y[2:] == int(bits[0])).all())
        ((4, 20), [1, 2], [-100, -100], True)
    """

    def __init__(self, split: str = "train", options: StoreRecallOptions | None = None) -> None:
        self.options = options or StoreRecallOptions()
        self.options.check()
        self.split = check_split(split, "store_recall")
        labels = np.zeros(self.options.count(self.split), np.int64)
        name = f"store_recall {split}"
        super().__init__(name, "store_recall", self.options.channels, ("0", "1"), labels, chance=0.5, per_step=True)
        logger.info("%s", self.describe())

    def stream(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the bit and the command (0 nothing, 1 store, 2 recall) of every period of sequence ``index``."""
        return _stream(self.options, generator_of(self.options, self.split, index))

    def sequence(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the spikes [T, 4 * group] and the labels [T] of sequence ``index``."""
        options, random = self.options, generator_of(self.options, self.split, index)
        bits, commands = _stream(options, random)
        on = np.full((options.periods, 4), options.noise)
        on[np.arange(options.periods), bits] = options.rate
        on[commands == STORE, 2] = options.rate
        on[commands == RECALL, 3] = options.rate
        stored = np.maximum.accumulate(np.where(commands == STORE, np.arange(options.periods), 0))
        answers = np.where(commands == RECALL, bits[stored], MISSING)
        probability = np.repeat(np.repeat(on, options.group, axis=1), options.period_steps, axis=0)
        return spikes(probability, random).astype(np.float32), np.repeat(answers, options.period_steps)

    def describe(self) -> str:
        """Say what this is, how the stream runs, and what guessing earns."""
        options = self.options
        return (
            f"{super().describe()}\n  {options.steps} steps: {options.periods} periods of {options.period_steps}, "
            f"stored {options.store:g}, recalled {options.recall:g} of those in the middle"
        )


def _stream(options: StoreRecallOptions, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    bits = random.integers(0, 2, options.periods)
    drawn = random.random(options.periods)
    commands = np.where(drawn < options.store, STORE, NOTHING)
    commands[(drawn >= options.store) & (drawn < options.store + options.recall)] = RECALL
    commands[0], commands[-1] = STORE, RECALL
    return bits, commands


__all__ = ["StoreRecall", "StoreRecallOptions"]
