"""The N-MNIST reader: bytes, trees, counts against the published set, and messages that name the file."""

import logging
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snnlearn.data import NMNIST, Binning, DataError, EventSample
from snnlearn.data.nmnist import class_folders, decode_events, encode_events, read_file, write_file

PIXELS = 34 * 34


def record(x: int, y: int, on: int, t: int) -> bytes:
    return bytes([x, y, on << 7 | t >> 16, t >> 8 & 0xFF, t & 0xFF])


def test_bytes_by_hand() -> None:
    raw = record(7, 15, 1, 654) + record(33, 0, 0, 0x7FFFFF) + record(0, 33, 1, 0x012345)
    times, channels = decode_events(raw)
    assert times.tolist() == [654, 0x7FFFFF, 0x012345]
    assert channels.tolist() == [PIXELS + 15 * 34 + 7, 33, PIXELS + 33 * 34]


def test_overflow_marker_is_no_event_and_moves_later_times() -> None:
    raw = record(1, 1, 1, 100) + record(0, 240, 0, 0) + record(2, 2, 0, 50) + record(0, 240, 1, 7) + record(3, 3, 1, 60)
    times, channels = decode_events(raw)
    assert times.tolist() == [100, 50 + 8192, 60 + 2 * 8192]
    assert channels.tolist() == [PIXELS + 35, 70, PIXELS + 105]


@given(st.lists(st.tuples(st.integers(0, 2**23 - 1), st.integers(0, 2 * PIXELS - 1)), min_size=1, max_size=50))
def test_encoding_round_trips(events: list[tuple[int, int]]) -> None:
    times, channels = np.array(events).T
    np.testing.assert_array_equal(decode_events(encode_events(times, channels)), np.stack([times, channels]))


def test_what_the_format_cannot_hold_is_refused() -> None:
    with pytest.raises(DataError, match="8388608"):
        encode_events(np.array([2**23]), np.array([0]))
    with pytest.raises(DataError, match="0 to 2311"):
        encode_events(np.array([0]), np.array([2 * PIXELS]))


def test_real_sample_has_its_published_sums(shared_data: Path) -> None:
    recording = read_file(shared_data / "events" / "sample_nmnist.bin", label=3)
    polarity, pixel = np.divmod(recording.channel, PIXELS)
    y, x = np.divmod(pixel, 34)
    events = list(zip(x.tolist(), y.tolist(), polarity.tolist(), recording.time_us.tolist(), strict=True))
    assert len(recording) == 4325
    assert events[0] == (7, 15, 1, 654)
    assert events[-1] == (21, 14, 1, 311175)
    assert (x.sum(), y.sum(), recording.time_us.sum(dtype=np.int64)) == (74457, 71931, 690487405)
    assert (polarity.sum(), (1 - polarity).sum()) == (2145, 2180)
    assert (recording.length_us, recording.label) == (311176, 3)
    raw = (shared_data / "events" / "sample_nmnist.bin").read_bytes()
    assert encode_events(recording.time_us, recording.channel) == raw


def test_first_recording_of_the_training_set(shared_data: Path) -> None:
    recording = read_file(shared_data / "nmnist" / "NMNIST" / "Train" / "5" / "00001.bin", label=5)
    assert (len(recording), recording.time_us[0], recording.time_us[-1]) == (4681, 893, 305924)


def test_all_real_files_load(shared_data: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="snnlearn.data"):
        parts = {split: NMNIST(shared_data / "nmnist", split) for split in ("train", "test")}
    assert [len(part) for part in parts.values()] == [700, 100]
    manifest = (shared_data / "nmnist" / "MANIFEST.csv").read_text().splitlines()[1:]
    counts = {row.split(",")[0]: int(row.split(",")[2]) for row in manifest}
    for part in parts.values():
        for index in range(len(part)):
            recording = part.events(index)
            name = part.files[index].relative_to(part.folder.parent).as_posix()
            assert len(recording) == counts[name]
            assert recording.label == int(part.files[index].parent.name)
            assert part[index][0].numpy().sum() == counts[name]
    assert "700 of the published 60,000" in caplog.text
    assert "100 of the published 10,000" in caplog.text


def test_binary_frames_of_real_recordings_lose_a_third_at_ten_milliseconds(shared_data: Path) -> None:
    data = NMNIST(shared_data / "nmnist", "train", Binning(by="duration", bin_us=10_000, binary=True))
    assert 0.30 < data.binary_loss() < 0.38
    assert f"binary frames lose {data.binary_loss():.1%}" in data.describe()


@pytest.fixture
def tree(tmp_path: Path, sample: Callable[..., EventSample]) -> Path:
    """A tree of 12 + 4 recordings; the name of a file tells nothing, its folder is the label."""
    for split, names in (("Train", range(12)), ("Test", range(4))):
        for number in names:
            write_file(tmp_path / "NMNIST" / split / str(number % 10) / f"{number:05}.bin", sample(seed=number))
    return tmp_path


@pytest.mark.parametrize("level", ["", "NMNIST", "NMNIST/Train", "NMNIST/Test"])
def test_root_at_every_level(tree: Path, level: str) -> None:
    assert [len(NMNIST(tree / level, split)) for split in ("train", "test")] == [12, 4]


def test_lower_case_folders_are_read(tree: Path) -> None:
    (tree / "NMNIST" / "Train").rename(tree / "NMNIST" / "train")
    assert len(NMNIST(tree, "train")) == 12


def test_labels_classes_and_lengths(tree: Path, sample: Callable[..., EventSample]) -> None:
    data = NMNIST(tree, "train")
    assert data.labels.tolist() == [0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert data.class_to_index == {str(digit): digit for digit in range(10)}
    frames, label = data[1]
    assert (tuple(frames.shape), label) == ((20, 2, 34, 34), 0)
    expected = data.binning.frames(sample(seed=10), data.sensor)
    np.testing.assert_array_equal(frames.numpy(), expected)
    assert data[-1][1] == 9
    with pytest.raises(IndexError, match="asked for number 12"):
        data[12]


def test_train_and_test_share_no_file(tree: Path) -> None:
    train, test = NMNIST(tree, "train"), NMNIST(tree, "test")
    assert train.files
    assert not set(train.files) & set(test.files)


def test_a_part_is_reported_against_the_published_set(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="snnlearn.data"):
        NMNIST(tree, "train")
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert "12 of the published 60,000" in line.getMessage()


def test_folders_are_ordered_by_number(tmp_path: Path) -> None:
    for name in ("10", "2", "0", "1"):
        (tmp_path / name).mkdir()
    (tmp_path / ".cache").mkdir()
    assert [label for label, _ in class_folders(tmp_path, classes=11)] == [0, 1, 2, 10]
    with pytest.raises(DataError, match="10 is no label"):
        class_folders(tmp_path, classes=10)


@pytest.mark.parametrize("name", ["cat", "10", "-1", "05", "٣"])
def test_a_folder_that_is_no_digit_is_named(tree: Path, name: str) -> None:
    (tree / "NMNIST" / "Train" / name).mkdir()
    with pytest.raises(DataError, match=f"{name} is no label"):
        NMNIST(tree, "train")


def test_missing_root_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder") as error:
        NMNIST(tmp_path / "nowhere", "train")
    for part in (str(tmp_path / "nowhere" / "Train" / "0"), "python scripts/train.py dataset=digits", "CC BY-SA 4.0"):
        assert part in str(error.value)


def test_empty_and_foreign_folders_say_what_they_hold(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it holds nothing"):
        NMNIST(tmp_path, "test")
    (tmp_path / "photos").mkdir()
    with pytest.raises(DataError, match="it holds photos"):
        NMNIST(tmp_path, "test")
    (tmp_path / "Test" / "3").mkdir(parents=True)
    with pytest.raises(DataError, match=r"no <digit>/\*\.bin in it"):
        NMNIST(tmp_path, "test")


def test_unknown_split_is_refused(tree: Path) -> None:
    with pytest.raises(DataError, match="'validation'"):
        NMNIST(tree, "validation")


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "is empty"), (bytes(12), "12 bytes are not a multiple of five")]
)
def test_damaged_files_are_named_at_once(tree: Path, content: bytes, message: str) -> None:
    (tree / "NMNIST" / "Train" / "4" / "broken.bin").write_bytes(content)
    with pytest.raises(DataError, match=rf"4/broken\.bin.*{message}"):
        NMNIST(tree, "train")
    assert len(NMNIST(tree, "test")) == 4


def test_many_damaged_files_are_counted(tree: Path) -> None:
    for number in range(8):
        (tree / "NMNIST" / "Train" / "4" / f"broken{number}.bin").write_bytes(b"123")
    with pytest.raises(DataError, match="and 3 more"):
        NMNIST(tree, "train")


def test_an_event_off_the_sensor_is_named(tree: Path) -> None:
    (tree / "NMNIST" / "Train" / "4" / "99999.bin").write_bytes(record(1, 1, 1, 5) + record(34, 2, 0, 9))
    data = NMNIST(tree, "train")
    bad = [path.name for path in data.files].index("99999.bin")
    with pytest.raises(DataError, match=r"4/99999\.bin: 1 of 2 events lie off the sensor.*x=34, y=2"):
        data.events(bad)


def test_recordings_are_kept_within_the_limit(tree: Path) -> None:
    kept, read_again = NMNIST(tree, "train"), NMNIST(tree, "train", keep_mb=0)
    assert kept.events(3) is kept.events(3)
    assert read_again.events(3) is not read_again.events(3)
    np.testing.assert_array_equal(kept.events(3).time_us, read_again.events(3).time_us)
    full = len(pickle.dumps(kept))
    assert full < 10_000  # a copy for a worker carries no recordings
    again = pickle.loads(pickle.dumps(kept))  # noqa: S301
    np.testing.assert_array_equal(again[3][0].numpy(), kept[3][0].numpy())


def test_nothing_is_read_or_written_in_the_constructor(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(tree.rglob("*"))
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("a recording was read"))
    data = NMNIST(tree, "train")
    assert len(data) == len(data.labels) == 12
    assert sorted(tree.rglob("*")) == before
