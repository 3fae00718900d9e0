"""A small simulator of an event camera that looks at a still picture in three saccades, as N-MNIST was
recorded.

The picture is ink on white, I = 1 - contrast * ink, and moves over the sensor along a triangle, each side in
one saccade of raised-cosine speed.  A pixel low-passes its log intensity and fires when that has moved by a
threshold since its last event:

    position   p(t) = p_k + (p_{k+1} - p_k) * (1 - cos(pi * (t - t_k) / d_k)) / 2
    pixel      u  <-  u + (1 - exp(-dt / tau)) * (log I(t) - u)
    event      ON  if u - r >= theta_on,   OFF  if r - u >= theta_off;   then r moves by that threshold

One time step of 1 ms allows one event, which stands for the refractory period (0.8 ms was measured).  An
event's time is the crossing interpolated within the step, plus an exponential latency, plus the onset jitter
of the recording.  The sensor's thresholds are its own, the same in every recording; latency, jitter and noise
are drawn per recording. The constants were fitted to 100 real recordings of N-MNIST beside their MNIST
images.  A simulation, not a recording.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from snnlearn.data.errors import DataError
from snnlearn.data.samples import EventSample, Sensor

VERSION = 1
"""Raise it with every change that moves a single event: it is part of the cache's key."""

SENSOR: Sensor = (2, 34, 34)
SIDE = 34
MARGIN_PX = 8
CORNERS_PX = ((0.3, 0.4), (1.9, 6.1), (5.3, 0.8), (0.7, 0.4))
STARTS_MS = (-2.0, 92.0, 221.0)
LENGTHS_MS = (88.0, 104.0, 89.0)
STEP_MS = 1.0
DURATION_MS = 312.0
CHUNK = 64


@dataclass(frozen=True)
class Camera:
    """Set up the simulated sensor.

    Args:
        contrast: how much light full ink takes away, 0..1.
        threshold: change of log intensity that makes an event, ON or OFF.
        threshold_spread: its relative standard deviation over pixels.
        low_pass_ms: time constant of a pixel, milliseconds.
        latency_ms: mean of the exponential latency, milliseconds.
        jitter_ms: standard deviation of a recording's onset, milliseconds.
        noise_events: mean number of noise events per pixel and recording.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> quiet = Camera(noise_events=0.0)
        >>> [len(sample) for sample in record(np.zeros((1, 42, 42), np.float32), np.array([7]), quiet, seed=0)]
        [0]
    """

    contrast: float = 0.85
    threshold: float = 0.235
    threshold_spread: float = 0.125
    low_pass_ms: float = 3.4
    latency_ms: float = 3.0
    jitter_ms: float = 4.0
    noise_events: float = 0.08

    def __post_init__(self) -> None:
        if not 0 < self.contrast < 1:
            raise ValueError(f"contrast={self.contrast}: it lies between 0 and 1, since black has no logarithm")
        for name in ("threshold", "low_pass_ms"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: it has to be above 0")
        for name in ("threshold_spread", "latency_ms", "jitter_ms", "noise_events"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}: it has to be 0 or more")


def record(
    ink: Float32[np.ndarray, "images height width"], labels: np.ndarray, camera: Camera, seed: int
) -> Iterator[EventSample]:
    """Record every picture; picture i depends on ``seed`` and i alone, not on how many there are.

    Args:
        ink: pictures [N, 42, 42], 0 white to 1 ink: the sensor's 34 x 34 pixels, and before them a margin
            of 8 rows and columns from which the picture moves in.
        labels: class of each, [N].
        camera: the sensor.
        seed: of thresholds, latency, jitter and noise.

    Yields:
        One ``EventSample`` per picture, in order.

    Raises:
        DataError: pictures of another size.
    """
    if ink.shape[1:] != (SIDE + MARGIN_PX, SIDE + MARGIN_PX):
        raise DataError(f"pictures of {ink.shape[1:]} pixels; the camera needs 42 x 42: put yours on white paper")
    for start in range(0, len(ink), CHUNK):
        stop = min(start + CHUNK, len(ink))
        image, step, pixel, on, fraction = _crossings(ink[start:stop], camera, seed)
        order = np.argsort(image, kind="stable")
        bounds = np.searchsorted(image[order], np.arange(stop - start + 1))
        for offset in range(stop - start):
            mine = order[bounds[offset] : bounds[offset + 1]]
            time_ms = (step[mine] + fraction[mine]) * STEP_MS
            channel = on[mine] * SIDE * SIDE + pixel[mine]
            yield _finish(time_ms, channel, int(labels[start + offset]), camera, (seed, start + offset))


def _finish(time_ms: np.ndarray, channel: np.ndarray, label: int, camera: Camera, key: tuple[int, int]) -> EventSample:
    """Add latency, jitter and noise, sort by time, and drop what falls before the camera was switched on."""
    random = np.random.default_rng(key)
    size = SIDE * SIDE
    noise = random.poisson(camera.noise_events * size)
    time_ms = time_ms + random.exponential(camera.latency_ms, len(time_ms)) + random.normal(0, camera.jitter_ms)
    time_ms = np.concatenate([time_ms, random.uniform(0, DURATION_MS, noise)])
    channel = np.concatenate([channel, random.integers(0, 2 * size, noise)])
    time = np.floor(time_ms * 1000).astype(np.int64)
    order = np.argsort(time, kind="stable")
    order = order[time[order] >= 0]
    length = max(int(DURATION_MS * 1000), int(time[order[-1]]) + 1) if len(order) else int(DURATION_MS * 1000)
    return EventSample(time[order].astype(np.int32), channel[order].astype(np.int32), length, label)


def path_px(time_ms: float) -> tuple[float, float]:
    """Return where the picture has moved to at a time, (x, y) in pixels.

    Example:
        >>> path_px(-5.0), [round(place, 6) for place in path_px(500.0)]
        ((0.3, 0.4), [0.7, 0.4])
    """
    x, y = CORNERS_PX[0]
    for (x0, y0), (x1, y1), start, length in zip(CORNERS_PX[:-1], CORNERS_PX[1:], STARTS_MS, LENGTHS_MS, strict=True):
        if time_ms >= start:
            share = (1 - np.cos(np.pi * min(1.0, (time_ms - start) / length))) / 2
            x, y = x0 + (x1 - x0) * share, y0 + (y1 - y0) * share
    return float(x), float(y)


def _log_intensity(ink: np.ndarray, position: tuple[float, float], camera: Camera) -> np.ndarray:
    """See the picture moved to (x, y), bilinear between its pixels: log intensity [N, H * W]."""
    # The sensor's pixel (r, c) sees the picture at (r + 8 - y, c + 8 - x) of the array with its margin of 8.
    row, column = MARGIN_PX - position[1], MARGIN_PX - position[0]
    r, c = int(row), int(column)
    fr, fc = np.float32(row - r), np.float32(column - c)
    rows = ink[:, r : r + SIDE + 1]
    rows = rows[:, :-1] + fr * (rows[:, 1:] - rows[:, :-1])
    rows = rows[:, :, c : c + SIDE + 1]
    seen = rows[:, :, :-1] + fc * (rows[:, :, 1:] - rows[:, :, :-1])
    seen *= np.float32(-camera.contrast)
    seen += np.float32(1)
    log_seen: np.ndarray = np.log(seen.reshape(len(ink), SIDE * SIDE))
    return log_seen


def _crossings(ink: np.ndarray, camera: Camera, seed: int) -> tuple[np.ndarray, ...]:
    """Run the pixels of a few pictures through time; return (image, step, pixel, on, fraction) of each event."""
    size = SIDE * SIDE
    spread = np.random.default_rng((seed, 2**31)).standard_normal((2, size))
    theta = (camera.threshold * np.maximum(0.2, 1 + camera.threshold_spread * spread)).astype(np.float32)
    gain = np.float32(1 - np.exp(-STEP_MS / camera.low_pass_ms))
    position = path_px(-np.inf)
    seen = _log_intensity(ink, position, camera)
    pixel, reference = seen.copy(), seen.copy()
    found: list[tuple[np.ndarray, ...]] = []
    for step in range(int(DURATION_MS / STEP_MS)):
        before, position = position, path_px((step + 1) * STEP_MS)
        if position != before:
            seen = _log_intensity(ink, position, camera)
        change = gain * (seen - pixel)
        pixel += change
        away = pixel - reference
        for on, crossed in ((1, away >= theta[1]), (0, away <= -theta[0])):
            place = np.flatnonzero(crossed)
            if not len(place):
                continue
            limit = theta[on][place % size]
            excess = np.abs(away.reshape(-1)[place]) - limit
            moved = np.maximum(np.abs(change.reshape(-1)[place]), np.float32(1e-6))
            fraction = 1 - np.clip(excess / moved, 0, 1)
            reference.reshape(-1)[place] += limit if on else -limit
            found.append((place // size, np.full(len(place), step), place % size, np.full(len(place), on), fraction))
    return tuple(np.concatenate(column) for column in zip(*found, strict=True)) if found else _nothing()


def _nothing() -> tuple[np.ndarray, ...]:
    return (*(np.zeros(0, np.int64) for _ in range(4)), np.zeros(0, np.float32))
