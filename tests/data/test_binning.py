"""Binning: every event in exactly one frame, where the definition says; bad events and bad options refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snnlearn.data import Binning, DataError, EventSample, binary_loss
from snnlearn.data.nmnist import read_file
from snnlearn.data.samples import flatten_channels, microseconds

SENSOR = (2, 3, 5)
SIZE = 30


def make(time: list[int], channel: list[int], length: int | None = None) -> EventSample:
    end = max(time, default=-1) + 1 if length is None else length
    return EventSample(np.array(time, np.int32), np.array(channel, np.int32), end, 0)


def unchecked(kind: type, **fields: object) -> object:
    """Build a dataclass past the type checks that tests alone have, as a user would."""
    made = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    made.__post_init__()  # type: ignore[attr-defined]
    return made


recordings = st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, SIZE - 1)), max_size=60).map(
    lambda events: make([time for time, _ in events], [channel for _, channel in events])
)
binnings = st.one_of(
    st.builds(Binning, steps=st.integers(1, 40), window_us=st.integers(1, 500_000)),
    st.builds(
        Binning, steps=st.none() | st.integers(1, 40), by=st.just("duration"), bin_us=st.integers(5_000, 500_000)
    ),
)


@given(recordings, binnings)
def test_every_event_is_counted_once(recording: EventSample, binning: Binning) -> None:
    frames = binning.frames(recording, SENSOR)
    assert frames.dtype == np.float32
    assert frames.shape[0] >= 1
    assert frames.shape[1:] == SENSOR
    per_channel = frames.sum(0).reshape(-1)
    np.testing.assert_array_equal(per_channel, np.bincount(recording.channel, minlength=SIZE))  # none moved in space


@given(recordings, binnings)
def test_frames_are_those_of_the_definition(recording: EventSample, binning: Binning) -> None:
    frames = binning.frames(recording, SENSOR)
    expected = np.zeros_like(frames).reshape(len(frames), SIZE)
    length = binning.bin_us if binning.by == "duration" else binning.window_us / binning.steps
    for time, channel in zip(recording.time_us.tolist(), recording.channel.tolist(), strict=True):
        step = time // length if binning.by == "duration" else time * binning.steps // binning.window_us
        expected[min(int(step), len(frames) - 1), channel] += 1
    np.testing.assert_array_equal(frames.reshape(len(frames), SIZE), expected)


@given(recordings, binnings, st.randoms(use_true_random=False))
def test_order_of_events_does_not_matter(recording: EventSample, binning: Binning, random: object) -> None:
    order = np.arange(len(recording))
    random.shuffle(order)  # type: ignore[attr-defined]
    mixed = EventSample(recording.time_us[order], recording.channel[order], recording.length_us, recording.label)
    np.testing.assert_array_equal(binning.frames(mixed, SENSOR), binning.frames(recording, SENSOR))


@given(recordings, binnings)
def test_binary_shows_what_is_occupied_and_reports_the_loss(recording: EventSample, binning: Binning) -> None:
    counts = binning.frames(recording, SENSOR)
    options = {"steps": binning.steps, "by": binning.by, "window_us": binning.window_us, "bin_us": binning.bin_us}
    binary = Binning(binary=True, **options)
    shown = binary.frames(recording, SENSOR)
    np.testing.assert_array_equal(shown, (counts > 0).astype(np.float32))
    lost = counts.sum() - shown.sum()
    assert binary_loss(recording, binary, SENSOR) * len(recording) == pytest.approx(lost, abs=1e-6)


def test_events_after_the_window_go_to_the_last_step() -> None:
    recording = make([0, 99, 100, 199, 200, 900], [0] * 6)
    assert Binning(steps=2, window_us=200).frames(recording, SENSOR)[:, 0, 0, 0].tolist() == [2, 4]
    fixed = Binning(by="duration", bin_us=100, steps=2)
    assert fixed.frames(recording, SENSOR)[:, 0, 0, 0].tolist() == [2, 4]
    open_end = Binning(by="duration", bin_us=100)
    assert open_end.frames(recording, SENSOR)[:, 0, 0, 0].tolist() == [2, 2, 1, 0, 0, 0, 0, 0, 0, 1]


def test_bins_start_at_time_zero_not_at_the_first_event() -> None:
    late = make([150], [0], length=200)
    assert Binning(steps=2, window_us=200).frames(late, SENSOR)[:, 0, 0, 0].tolist() == [0, 1]


def test_late_times_do_not_overflow() -> None:
    late = make([2**31 - 2], [1])
    frames = Binning(steps=1000, window_us=2**31 - 1).frames(late, SENSOR)  # time * steps needs 64 bits
    assert frames[-1].sum() == frames.sum() == 1


@pytest.mark.parametrize("binning", [Binning(steps=4), Binning(by="duration"), Binning(by="duration", steps=3)])
def test_empty_recording_gives_empty_frames(binning: Binning) -> None:
    frames = binning.frames(make([], []), SENSOR)
    assert frames.shape == (binning.steps or 1, *SENSOR)
    assert frames.sum() == 0
    assert binary_loss(make([], []), binning, SENSOR) == 0.0


def test_one_event_is_one_count() -> None:
    assert Binning(steps=1).frames(make([0], [7]), SENSOR).sum() == 1  # lost by a library that rounds


def test_bin_longer_than_the_recording_gives_one_frame(shared_data: Path) -> None:
    recording = read_file(shared_data / "events" / "sample_nmnist.bin", label=0)
    frames = Binning(by="duration", bin_us=1_000_000).frames(recording, (2, 34, 34))
    assert frames.shape == (1, 2, 34, 34)
    assert frames.sum() == 4325
    assert frames[0, 0].sum() == 2180  # OFF
    assert frames[0, 1].sum() == 2145  # ON
    assert frames.max() == 16  # counts by default
    binary = Binning(by="duration", bin_us=1_000_000, binary=True).frames(recording, (2, 34, 34))
    assert binary.max() == 1
    assert binary.sum() < 4325


@pytest.mark.parametrize("binning", [Binning(steps=20), Binning(by="duration", bin_us=1000)])
def test_reversed_file_gives_the_same_frames(shared_data: Path, binning: Binning) -> None:
    frames = [
        binning.frames(read_file(shared_data / "events" / name, label=0), (2, 34, 34))
        for name in ("sample_nmnist.bin", "reversed_time.bin")
    ]
    np.testing.assert_array_equal(*frames)
    assert frames[0].sum() == 4325


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "events"}, "by='events'"),
        ({"steps": 0}, "steps=0"),
        ({"steps": 2.5}, "steps=2.5"),
        ({"window_us": -1}, "window_us=-1"),
        ({"by": "duration", "bin_us": 0}, "bin_us=0"),
        ({"by": "duration", "window_us": 10}, "no meaning with by='duration'"),
        ({"bin_us": 10}, "no meaning with by='number'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    defaults = {"steps": None, "by": "number", "window_us": None, "bin_us": None, "binary": False}
    with pytest.raises(ValueError, match=message):
        unchecked(Binning, **(defaults | options))


def test_channel_off_the_sensor_is_refused() -> None:
    with pytest.raises(DataError, match="channel 30 on a sensor"):
        Binning(steps=1).frames(make([0], [30]), SENSOR)


@pytest.mark.parametrize(
    ("time", "channel", "length", "message"),
    [
        ([1, 2], [1], 10, "one of each"),
        ([-1], [0], 10, "-1..-1 us"),
        ([10], [0], 10, "length_us"),
        ([1], [-1], 10, "channel -1 is negative"),
    ],
)
def test_impossible_recordings_are_refused(time: list[int], channel: list[int], length: int, message: str) -> None:
    arrays = {"time_us": np.array(time, np.int32), "channel": np.array(channel, np.int32)}
    with pytest.raises(DataError, match=message):
        unchecked(EventSample, **arrays, length_us=length, label=0)


def test_flattening_puts_polarity_first_and_names_what_is_off_the_sensor(sample: Callable[..., EventSample]) -> None:
    x, y, p = np.array([0, 4, 2]), np.array([2, 0, 1]), np.array([1, 0, 1])
    assert flatten_channels(x, y, p, SENSOR).tolist() == [15 + 10, 4, 15 + 5 + 2]
    recording = make([0, 0, 0], flatten_channels(x, y, p, SENSOR).tolist())
    frame = Binning(steps=1).frames(recording, SENSOR)[0]
    assert [frame[p[i], y[i], x[i]] for i in range(3)] == [1, 1, 1]
    with pytest.raises(DataError, match=r"file\.bin: 1 of 3 events.*event 1 at x=4, y=3"):
        flatten_channels(x, np.array([2, 3, 1]), p, SENSOR, "file.bin")


def test_half_precision_seconds_become_whole_microseconds() -> None:
    seconds = np.array([0.6994, 0.6997, 0.7000, 0.7003], np.float16)
    assert microseconds(seconds, 1e6).tolist() == [699218, 699707, 700195, 700195]
    with np.errstate(over="ignore"):
        assert not np.isfinite(seconds * np.float16(1e6)).any()  # what scaling before casting would have given


@given(st.integers(0, 2**31 - 2))
def test_seconds_in_double_precision_round_trip(time: int) -> None:
    assert microseconds(np.array([time / 1e6]), 1e6).tolist() == [time]


@pytest.mark.parametrize("times", [[-1.0], [np.nan], [np.inf], [3e9]])
def test_impossible_times_are_refused(times: list[float]) -> None:
    with pytest.raises(DataError, match="recording 5"):
        microseconds(np.array(times), 1.0, "recording 5")
