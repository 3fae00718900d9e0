"""Other people's datasets: structured events and a target become recordings of ours."""

import numpy as np
import pytest

from snnlearn.data import Binning, DataError, from_structured
from snnlearn.data.structured import StructuredSource, class_names

KIND = np.dtype([("x", "<i2"), ("y", "<i2"), ("t", "<i8"), ("p", bool)])


class Theirs:
    """A dataset as other libraries give it: structured events and a target."""

    def __init__(self, events: list[np.ndarray], targets: list[object], listed: bool = True) -> None:
        self.recordings = events
        self.answers = targets
        if listed:
            self.targets = targets
        self.read = 0

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: int) -> tuple[np.ndarray, object]:
        self.read += 1
        return self.recordings[index], self.answers[index]


def structured(events: list[tuple[int, int, int, int]], kind: np.dtype = KIND) -> np.ndarray:
    return np.array(events, kind)


def test_structured_events_become_ours() -> None:
    events = [structured([(3, 1, 500, 1), (0, 2, 90, 0)]), structured([])]
    theirs = Theirs(events, [10, 2])
    data = from_structured(theirs, sensor=(2, 3, 4), binning=Binning(steps=2, window_us=1000))
    assert theirs.read == 0  # labels came from `targets`
    assert (data.labels.tolist(), data.classes, data.class_to_index) == ([1, 0], ("2", "10"), {"2": 0, "10": 1})
    assert data.events(0).channel.tolist() == [12 + 4 + 3, 8]
    frames, label = data[0]
    assert (label, frames[1, 1, 1, 3].item(), frames[0, 0, 2, 0].item(), frames.sum().item()) == (1, 1, 1, 2)
    assert data[1][0].sum() == 0


def test_structured_labels_are_read_where_they_are_not_listed() -> None:
    theirs = Theirs([structured([(0, 0, 1, 1)])] * 3, ["b", "a", "b"], listed=False)
    data = from_structured(theirs, sensor=(2, 1, 1))
    assert (data.labels.tolist(), data.class_to_index) == ([1, 0, 1], {"a": 0, "b": 1})


def test_structured_seconds_in_half_precision() -> None:
    kind = np.dtype([("x", "<u2"), ("t", "<f2")])
    times = [0.6994, 0.6997, 0.7000, 0.7003]
    theirs = Theirs([np.array([(9, t) for t in times], kind)], [0])
    data = from_structured(theirs, sensor=(1, 1, 700), binning=Binning(by="duration"), unit_us=1e6)
    assert data.events(0).time_us.tolist() == [699218, 699707, 700195, 700195]
    assert data[0][0].sum() == 4


def test_structured_errors_name_the_recording() -> None:
    good, off, late = structured([(0, 0, 1, 1)]), structured([(0, 9, 1, 1)]), structured([(0, 0, -5, 1)])
    bare = np.zeros(1, np.dtype([("x", int), ("timestamp", int)]))
    data = from_structured(Theirs([good, off, late, bare], [0] * 4), sensor=(2, 3, 4), name="theirs")
    assert len(data.events(0)) == 1
    for index, message in ((1, "lie off the sensor"), (2, "times run from -5"), (3, "rename the fields")):
        with pytest.raises(DataError, match=f"theirs, recording {index}.*{message}"):
            data.events(index)


def test_signed_polarity_is_off_below_zero() -> None:
    kind = np.dtype([("x", int), ("y", int), ("t", int), ("p", int)])
    data = from_structured(Theirs([structured([(0, 0, 1, -1), (0, 0, 2, 1)], kind)], [0]), sensor=(2, 1, 1))
    assert data.events(0).channel.tolist() == [0, 1]


def test_what_is_needed_of_a_source() -> None:
    assert isinstance(Theirs([], []), StructuredSource)
    assert not isinstance(iter([]), StructuredSource)


def test_listed_targets_of_another_length_are_not_believed() -> None:
    """Some datasets list the targets of the whole set while they serve a part of it."""
    theirs = Theirs([structured([(0, 0, 1, 1)])] * 2, ["b", "a"])
    theirs.targets = ["a", "a", "b"]
    data = from_structured(theirs, sensor=(2, 1, 1))
    assert (data.labels.tolist(), theirs.read) == ([1, 0], 2)


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        (["10", "2", "0", "2"], ("0", "2", "10")),
        ([10, 2, np.int64(0)], ("0", "2", "10")),
        (["b", "a", "B"], ("B", "a", "b")),
        (["10", "2", "x"], ("10", "2", "x")),
        (["-1", "2"], ("-1", "2")),
        ([1.5, 0.5], ("0.5", "1.5")),
        (["٣", "1"], ("1", "٣")),
        ([], ()),
    ],
)
def test_class_names_are_sorted_as_numbers_if_all_are_whole(targets: list[object], names: tuple[str, ...]) -> None:
    assert class_names(targets) == names
    assert class_names(targets[::-1]) == names


def test_rows_and_polarities_may_be_missing_where_there_is_one() -> None:
    """An audio sensor has neither; what a file says of them all the same is not looked at."""
    bare, full = np.dtype([("x", int), ("t", int)]), np.dtype([("x", int), ("y", int), ("t", int), ("p", int)])
    theirs = Theirs([np.array([(5, 3)], bare), np.array([(5, 77, 3, 9)], full)], [0, 0])
    data = from_structured(theirs, sensor=(1, 1, 8))
    assert [data.events(index).channel.tolist() for index in range(2)] == [[5], [5]]
    seeing = from_structured(theirs, sensor=(2, 1, 8))
    with pytest.raises(DataError, match=r"recording 0: events have the fields \('x', 't'\).*rename the fields"):
        seeing.events(0)
    with pytest.raises(DataError, match=r"recording 1: 1 of 1 events lie off the sensor.*p=9"):
        seeing.events(1)


def test_plain_arrays_have_no_fields() -> None:
    data = from_structured(Theirs([np.zeros((3, 4))], [0]), sensor=(2, 3, 4))
    with pytest.raises(DataError, match=r"structured events, recording 0: events have the fields \(\)"):
        data.events(0)


def test_a_recording_lasts_to_its_last_event() -> None:
    events = [structured([(0, 0, 7000, 1), (1, 0, 90, 0)]), structured([])]
    data = from_structured(Theirs(events, [4, 4]), sensor=(2, 1, 2))
    assert [data.events(index).length_us for index in range(2)] == [7001, 0]
    assert [data.events(index).label for index in range(2)] == [0, 0]
    frames, _ = data[0]
    assert tuple(frames.shape) == (20, 2, 1, 2)  # the default: 20 steps over 310 ms
    assert frames.nonzero().tolist() == [[0, 0, 0, 1], [0, 1, 0, 0]]
    assert data.describe().startswith("structured events: 2 recordings; 4: 2")
