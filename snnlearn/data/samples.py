"""One recording: the type that every reader of this package produces, and every binning takes.

A recording is a list of events (time, channel).  A channel is a pixel and a polarity in one number,

    channel = p * H * W + y * W + x        p = 0 for OFF (darker), p = 1 for ON (brighter),

so a sensor is the triple (P, H, W), and frames have the shape [T, P, H, W]: row y, column x, plane 0 OFF,
plane 1 ON.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Int32

from snnlearn.data.errors import DataError

Sensor = tuple[int, int, int]
"""Polarities, height and width: (P, H, W)."""

LATEST_US = 2**31 - 1


@dataclass(frozen=True, eq=False)
class EventSample:
    """Hold one recording: when and where its events fell, how long it lasted, what it shows.

    Args:
        time_us: time of each event from the start of the recording, microseconds, int32 [N], >= 0, in any
            order.
        channel: p * H * W + y * W + x of each event, int32 [N], >= 0.
        length_us: length of the recording, microseconds; every event lies before it.
        label: index of the class, >= 0.

    Raises:
        DataError: arrays of different lengths, a negative time or channel, an event at or after
            ``length_us``.

    Example:
        >>> time, channel = np.array([5, 9], np.int32), np.array([0, 3], np.int32)
        >>> sample = EventSample(time, channel, length_us=10, label=7)
        >>> len(sample)
        2
    """

    time_us: Int32[np.ndarray, " events"]
    channel: Int32[np.ndarray, " events"]
    length_us: int
    label: int

    def __post_init__(self) -> None:
        if self.time_us.shape != self.channel.shape or self.time_us.ndim != 1:
            raise DataError(
                f"a recording has {self.time_us.shape} times and {self.channel.shape} channels; it needs one of each "
                "per event, as flat arrays: cut both to the same length"
            )
        if self.label < 0 or self.length_us < 0:
            raise DataError(f"got label {self.label} and length {self.length_us} us; both must be 0 or more")
        if not len(self):
            return
        first, last = int(self.time_us.min()), int(self.time_us.max())
        if first < 0 or last >= self.length_us:
            raise DataError(
                f"events at {first}..{last} us in a recording of {self.length_us} us; times are counted from its "
                "start and lie before its end: subtract the start, or set length_us to at least the last time + 1"
            )
        if int(self.channel.min()) < 0:
            raise DataError(f"channel {int(self.channel.min())} is negative; channels are p*H*W + y*W + x, from 0")

    def __len__(self) -> int:
        return int(self.time_us.shape[0])


def flatten_channels(
    x: Int[np.ndarray, " events"],
    y: Int[np.ndarray, " events"],
    p: Int[np.ndarray, " events"],
    sensor: Sensor,
    source: str = "the events",
) -> Int32[np.ndarray, " events"]:
    """Turn pixel and polarity into one channel number: p * H * W + y * W + x.

    Args:
        x: column of each event, pixels, [N], 0 <= x < W.
        y: row of each event, pixels, [N], 0 <= y < H.
        p: polarity of each event, [N], 0 OFF or 1 ON.
        sensor: (P, H, W).
        source: the file's name, for the message.

    Raises:
        DataError: an event off the sensor; the message names the source and the first such event.

    Example:
        >>> flatten_channels(np.array([3]), np.array([1]), np.array([1]), sensor=(2, 4, 5)).tolist()
        [28]
    """
    polarities, height, width = sensor
    outside = (x < 0) | (x >= width) | (y < 0) | (y >= height) | (p < 0) | (p >= polarities)
    if outside.any():
        first = int(outside.argmax())
        raise DataError(
            f"{source}: {int(outside.sum())} of {len(x)} events lie off the sensor, the first is event {first} at "
            f"x={int(x[first])}, y={int(y[first])}, p={int(p[first])}; allowed are x < {width}, y < {height}, p < "
            f"{polarities}: the file is damaged or from another sensor"
        )
    flat: np.ndarray = (p.astype(np.int64) * height + y) * width + x
    return flat.astype(np.int32)


def microseconds(times: np.ndarray, unit_us: float, source: str = "the events") -> Int32[np.ndarray, " events"]:
    """Turn times of any unit and dtype into whole microseconds, cast to double *before* scaling.

    Rounded down, with a nanosecond's grace for what double precision cannot hold (0.29 s is 290,000 us).  A
    float16 second near 0.7 has a grid of 488 us: the result is then exact to that grid, and no better.

    Args:
        times: times [N] in units of ``unit_us``; any real dtype.
        unit_us: microseconds in one unit: 1 for microseconds, 1000 for milliseconds, 1e6 for seconds.
        source: the recording's name, for the message.

    Raises:
        DataError: a time that is not finite, is negative, or lies past 2^31 us (35 minutes).

    Example:
        >>> microseconds(np.array([0.6994, 0.7], np.float16), unit_us=1e6).tolist()
        [699218, 700195]
    """
    scaled = np.floor(times.astype(np.float64) * unit_us + 1e-3)
    if scaled.size and not (scaled.min() >= 0 and scaled.max() < LATEST_US):
        raise DataError(
            f"{source}: times run from {times.min()} to {times.max()} in units of {unit_us:g} us; allowed are finite "
            f"times from 0 to {LATEST_US} us: subtract the start of the recording, check the unit, or cut the "
            "recording"
        )
    return scaled.astype(np.int32)
