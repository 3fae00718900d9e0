"""A set of recordings: events by index, frames by binning, labels without reading a file."""

import numpy as np
from jaxtyping import Float32, Int64
from torch import Tensor, from_numpy
from torch.utils.data import Dataset

from snnlearn.data.binning import Binning, binary_loss
from snnlearn.data.samples import EventSample, Sensor
from snnlearn.data.sparse import BinnedEvents


class EventDataset(Dataset[tuple[Tensor | BinnedEvents, int]]):
    """Serve recordings as frames [T, P, H, W], or with a sparse binning as ``BinnedEvents``; the base of
    every dataset here.  A subclass gives ``events(i)``.

    Args:
        name: what the log calls it.
        sensor: (P, H, W).
        classes: name of each class; its place is its label.
        labels: label of each recording, int64 [N].
        binning: how events become frames.

    Example:
        >>> class One(EventDataset):
        ...     def events(self, index):
        ...         return EventSample(np.array([5], np.int32), np.array([1], np.int32), 10, 0)
        >>> data = One("one", (1, 1, 2), ("only",), np.array([0]), Binning(steps=2, window_us=10))
        >>> data[0][0].flatten().tolist(), data.class_to_index
        ([0.0, 0.0, 0.0, 1.0], {'only': 0})
    """

    def __init__(
        self,
        name: str,
        sensor: Sensor,
        classes: tuple[str, ...],
        labels: Int64[np.ndarray, " samples"],
        binning: Binning,
    ) -> None:
        self.name = name
        self.sensor = sensor
        self.classes = classes
        self.labels = labels
        self.binning = binning

    @property
    def class_to_index(self) -> dict[str, int]:
        """Label of each class by its name, for a checkpoint to keep."""
        return {name: index for index, name in enumerate(self.classes)}

    def events(self, index: int) -> EventSample:
        """Return recording ``index`` (0 <= index < len) as events."""
        raise NotImplementedError(f"{type(self).__name__} has to define events(index), to read recording {index}")

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def __getitem__(self, index: int) -> tuple[Float32[Tensor, "steps polarities height width"] | BinnedEvents, int]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} recordings, asked for number {index}")
        sample = self.events(int(index) % len(self))
        if self.binning.sparse:
            return self.binning.binned(sample, self.sensor), sample.label
        return from_numpy(self.binning.frames(sample, self.sensor)), sample.label

    def binary_loss(self, limit: int = 200) -> float:
        """Return the share of events, 0..1, that binary frames lose, over up to ``limit`` recordings spread "
        "evenly."""
        lost = total = 0.0
        for index in np.unique(np.linspace(0, len(self) - 1, min(limit, len(self))).astype(int)):
            sample = self.events(int(index))
            lost += binary_loss(sample, self.binning, self.sensor) * len(sample)
            total += len(sample)
        return lost / total if total else 0.0

    def describe(self) -> str:
        """Say in a few lines what this is: recordings by class, sensor, binning, the loss of binarising."""
        counts = np.bincount(self.labels, minlength=len(self.classes))
        by_class = ", ".join(f"{name}: {count}" for name, count in zip(self.classes, counts, strict=True))
        lines = [
            f"{self.name}: {len(self)} recordings; {by_class}",
            f"  sensor {self.sensor[0]} x {self.sensor[1]} x {self.sensor[2]} (polarity, y, x); "
            f"{self.binning.describe()}",
        ]
        if self.binning.binary and len(self):
            lines.append(f"  binary frames lose {self.binary_loss():.1%} of the events (up to 200 recordings counted)")
        return "\n".join(lines)
