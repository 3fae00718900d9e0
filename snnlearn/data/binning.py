"""From events to frames: which step an event belongs to.  Every event is counted, once, in one frame.

    by number:     step = floor(t * steps / window_us)    a fixed number of steps over a fixed window
    by duration:   step = floor(t / bin_us)               steps of a fixed duration, as many as it takes

Both start at time 0 of the recording, not at its first event, so recordings stay aligned.  An event at or
after the end of the last step is counted *in the last step*: none is lost.  The order of the events does not
matter.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float32, Int64

from snnlearn.data.errors import DataError, check_flag
from snnlearn.data.samples import EventSample, Sensor
from snnlearn.data.sparse import BinnedEvents

By = Literal["number", "duration"]


@dataclass(frozen=True)
class Binning:
    """Say how events become frames: counts per step, polarity and pixel.

    Args:
        steps: number of frames T; by duration it may be None, then each recording gets as many as it needs
            (at least 1).
        by: "number" cuts ``window_us`` into ``steps``; "duration" makes steps of ``bin_us``.
        window_us: by number: the window, microseconds, from 0.  310,000 holds a whole N-MNIST recording but
            its tail.
        bin_us: by duration: length of a step, microseconds.
        binary: frames of 0 and 1 instead of counts.  This loses events: 34 % on N-MNIST at 10 ms
            (``binary_loss``).
        sparse: hand over the events by step and channel, ``BinnedEvents``, and never make frames; for
            ``collate_sparse``, and for networks that begin with a linear block.

    Raises:
        ValueError: a value out of range, a flag that is no bool, or a value that the other kind of binning uses.

    Example:
        >>> Binning(steps=20).describe()
        '20 steps over 310 ms, counts'
        >>> Binning(by="duration", bin_us=10_000).describe()
        'steps of 10 ms, counts'
    """

    steps: int | None = None
    by: By = "number"
    window_us: int | None = None
    bin_us: int | None = None
    binary: bool = False
    sparse: bool = False

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise ValueError(f"by={self.by!r}: bins are made by 'number' or by 'duration'; write one of these two")
        if self.by == "number":
            if self.bin_us is not None:
                raise ValueError(
                    f"bin_us={self.bin_us} has no meaning with by='number', where window_us / steps is the length of "
                    "a bin: leave it out, or write by='duration'"
                )
            object.__setattr__(self, "steps", 20 if self.steps is None else self.steps)
            object.__setattr__(self, "window_us", 310_000 if self.window_us is None else self.window_us)
        else:
            if self.window_us is not None:
                raise ValueError(
                    f"window_us={self.window_us} has no meaning with by='duration', where the recording or `steps` "
                    "sets the end: leave it out, or write by='number'"
                )
            object.__setattr__(self, "bin_us", 10_000 if self.bin_us is None else self.bin_us)
        for name in ("steps", "window_us", "bin_us"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}={value!r}: a whole number of at least 1 is needed, such as {name}=20")
        for name in ("binary", "sparse"):
            check_flag(name, getattr(self, name))

    def step_of(self, time_us: np.ndarray, steps: int) -> Int64[np.ndarray, " events"]:
        """Return the step 0..steps-1 of each event: floor of its time over the step's length, late ones in
        the last.

        Args:
            time_us: times [N], microseconds.
            steps: number of steps T.

        Example:
            >>> Binning(steps=3, window_us=10).step_of(np.array([0, 3, 4, 9, 50]), steps=3).tolist()
            [0, 0, 1, 2, 2]
        """
        time = time_us.astype(np.int64)
        step = time // self.bin_us if self.bin_us is not None else time * steps // int(self.window_us or 1)
        return np.minimum(step, steps - 1)

    def steps_for(self, sample: EventSample) -> int:
        """Return the number of frames, at least 1, that this recording gets.

        Example:
            >>> from snnlearn.data import EventSample
            >>> none = np.zeros(0, np.int32)
            >>> sample = EventSample(none, none, length_us=2500, label=0)
            >>> Binning(by="duration", bin_us=1000).steps_for(sample)
            3
        """
        if self.steps is not None:
            return self.steps
        return max(1, -(-sample.length_us // int(self.bin_us or 1)))

    def frames(self, sample: EventSample, sensor: Sensor) -> Float32[np.ndarray, "steps p h w"]:
        """Count the events of every step, polarity and pixel: float32 [T, P, H, W].

        Args:
            sample: the recording, in any order of its events; it may be empty.
            sensor: (P, H, W).

        Raises:
            DataError: a channel that the sensor does not have.

        Example:
            >>> from snnlearn.data import EventSample
            >>> time, channel = np.array([0, 1, 99], np.int32), np.array([0, 0, 1], np.int32)
            >>> sample = EventSample(time, channel, length_us=100, label=0)
            >>> Binning(steps=2, window_us=100).frames(sample, sensor=(1, 1, 2)).reshape(2, 2).tolist()
            [[2.0, 0.0], [0.0, 1.0]]
        """
        events, size = self.binned(sample, sensor), sensor[0] * sensor[1] * sensor[2]
        counts = np.bincount(events.step * size + events.channel, minlength=events.steps * size)
        shown = counts > 0 if self.binary else counts
        return shown.astype(np.float32).reshape(events.steps, *sensor)

    def binned(self, sample: EventSample, sensor: Sensor) -> BinnedEvents:
        """Return the step and the channel of every event, for ``collate_sparse``.

        Args:
            sample: the recording, in any order of its events; it may be empty.
            sensor: (P, H, W).

        Raises:
            DataError: a channel that the sensor does not have.

        Example:
            >>> from snnlearn.data import EventSample
            >>> time, channel = np.array([0, 99], np.int32), np.array([0, 1], np.int32)
            >>> sample = EventSample(time, channel, length_us=100, label=0)
            >>> Binning(steps=2, window_us=100).binned(sample, sensor=(1, 1, 2)).step.tolist()
            [0, 1]
        """
        size = sensor[0] * sensor[1] * sensor[2]
        if len(sample) and int(sample.channel.max()) >= size:
            raise DataError(
                f"channel {int(sample.channel.max())} on a sensor {sensor} of {size} channels: give the sensor that "
                "recorded these events as (polarities, height, width)"
            )
        steps = self.steps_for(sample)
        return BinnedEvents(self.step_of(sample.time_us, steps), sample.channel, steps, sensor, self.binary)

    def describe(self) -> str:
        """Say in words what the bins are."""
        if self.bin_us is None:
            what = f"{self.steps} steps over {int(self.window_us or 1) / 1000:g} ms"
        else:
            what = (
                f"steps of {self.bin_us / 1000:g} ms"
                if self.steps is None
                else (f"{self.steps} steps of {self.bin_us / 1000:g} ms")
            )
        return f"{what}, {'binary' if self.binary else 'counts'}{', sparse' * self.sparse}"


def binary_loss(sample: EventSample, binning: Binning, sensor: Sensor) -> float:
    """Return the share of a recording's events, 0..1, that frames of 0 and 1 do not show.

    Every event of a (step, channel) after the first is lost: 1 - occupied / N; 0 for an empty recording.

    Args:
        sample: the recording.
        binning: the bins; whether they are binary does not matter here.
        sensor: (P, H, W).

    Example:
        >>> from snnlearn.data import EventSample
        >>> sample = EventSample(np.array([0, 1, 99], np.int32), np.array([0, 0, 1], np.int32), 100, label=0)
        >>> round(binary_loss(sample, Binning(steps=2, window_us=100), sensor=(1, 1, 2)), 3)
        0.333
    """
    if not len(sample):
        return 0.0
    return 1.0 - float(np.count_nonzero(binning.frames(sample, sensor))) / len(sample)
