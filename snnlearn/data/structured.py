"""Use any dataset of (structured events, target) pairs, such as one of tonic's, as one of ours."""

from collections.abc import Sequence, Sized
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32

from snnlearn.data.binning import Binning
from snnlearn.data.dataset import EventDataset
from snnlearn.data.errors import DataError
from snnlearn.data.samples import EventSample, Sensor, flatten_channels, microseconds


@runtime_checkable
class StructuredSource(Sized, Protocol):
    """What is needed of a dataset: a length, and pairs (structured array of events, target) by index."""

    def __getitem__(self, index: int, /) -> tuple[np.ndarray, Any]:
        """Return events with the fields x, y, t, p, and the target."""
        ...


class StructuredDataset(EventDataset):
    """Serve somebody else's recordings; made by ``from_structured``."""

    def __init__(self, source: StructuredSource, sensor: Sensor, binning: Binning, unit_us: float, name: str) -> None:
        targets = getattr(source, "targets", None)
        if targets is None or len(targets) != len(source):
            targets = [source[index][1] for index in range(len(source))]
        names = class_names(targets)
        index_of = {name: index for index, name in enumerate(names)}
        labels = np.array([index_of[str(target)] for target in targets], np.int64)
        super().__init__(name, sensor, names, labels, binning)
        self.source = source
        self.unit_us = unit_us

    def events(self, index: int) -> EventSample:
        """Return recording ``index`` as events."""
        record, _ = self.source[index]
        where = f"{self.name}, recording {index}"
        fields = record.dtype.names or ()
        for field, needed in (("t", True), ("x", True), ("y", self.sensor[1] > 1), ("p", self.sensor[0] > 1)):
            if needed and field not in fields:
                raise DataError(
                    f"{where}: events have the fields {fields}; x, y, t, p are needed (y and p may be missing where "
                    f"the sensor {self.sensor} has one row or one polarity): rename the fields"
                )
        time = microseconds(record["t"], self.unit_us, where)
        row = _column(record, "y") if self.sensor[1] > 1 else np.zeros(len(record), np.int32)
        polarity = _column(record, "p") if self.sensor[0] > 1 else np.zeros(len(record), np.int32)
        channel = flatten_channels(_column(record, "x"), row, np.maximum(polarity, 0), self.sensor, where)
        return EventSample(time, channel, int(time.max()) + 1 if len(time) else 0, int(self.labels[index]))


def from_structured(
    dataset: StructuredSource,
    sensor: Sensor,
    binning: Binning | None = None,
    unit_us: float = 1.0,
    name: str = "structured events",
) -> StructuredDataset:
    """Turn a dataset of (structured events, target) pairs into one of ours.

    Labels come from ``dataset.targets`` where it has them, and from reading every recording once where it has
    not.  Classes are sorted as numbers if all of them are numbers, so 2 comes before 10, and as text if not;
    ``class_to_index`` tells.

    Args:
        dataset: ``len(dataset)`` and ``dataset[i] -> (events, target)``; events is a structured array with x,
            y, t, p. A polarity of -1, 0 or False is OFF, 1 or True is ON.
        sensor: (P, H, W); with P = 1 the polarity is not looked at, with H = 1 nor is y.
        binning: how events become frames; 20 steps over 310 ms by default.
        unit_us: microseconds in one unit of t: 1 for microseconds, 1e6 for seconds.
        name: what the log calls it.

    Raises:
        DataError: a field is missing, an event is off the sensor, a time is negative.

    Example:
        >>> kind = np.dtype([("x", int), ("y", int), ("t", int), ("p", int)])
        >>> data = from_structured([(np.array([(3, 1, 500, 1)], kind), "cat")], sensor=(2, 4, 4))
        >>> data.events(0).channel.tolist(), data.class_to_index
        ([23], {'cat': 0})
    """
    return StructuredDataset(dataset, sensor, binning or Binning(), unit_us, name)


def class_names(targets: Sequence[Any]) -> tuple[str, ...]:
    """Return the different targets as text, in numeric order if all are whole numbers, else in the order of
    text.

    Example:
        >>> class_names(["10", "2", "0", "2"]), class_names(["b", "a"])
        (('0', '2', '10'), ('a', 'b'))
    """
    names = {str(target) for target in targets}
    numeric = all(name.isascii() and name.isdecimal() for name in names)
    return tuple(sorted(names, key=int) if numeric else sorted(names))


def _column(record: np.ndarray, field: str) -> Int32[np.ndarray, " events"]:
    return record[field].astype(np.int32)
