"""Sparse batches are the dense frames, exactly, whatever the recordings hold."""

import inspect
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from snnlearn.data import (
    NMNIST,
    BinnedEvents,
    Binning,
    DataError,
    Digits,
    EventDataset,
    EventSample,
    SparseSequence,
    collate,
    collate_sparse,
)
from snnlearn.data.errors import check_flag

SENSOR = (2, 3, 4)


class Recordings(EventDataset):
    """Recordings from memory."""

    def __init__(self, samples: Sequence[EventSample], binning: Binning) -> None:
        super().__init__("made by hand", SENSOR, ("a", "b"), np.array([s.label for s in samples]), binning)
        self.samples = samples

    def events(self, index: int) -> EventSample:
        return self.samples[index]


def sample(*events: tuple[int, int], length_us: int = 1000, label: int = 0) -> EventSample:
    time, channel = (np.array(column, np.int32) for column in (zip(*events, strict=True) if events else ((), ())))
    return EventSample(time, channel, length_us, label)


BY_HAND = {
    "one event": [sample((500, 7))],
    "none": [sample(), sample()],
    "an empty one among others": [sample((0, 0), (999, 23)), sample(label=1), sample((300, 5))],
    "twice in a bin": [sample((10, 7), (20, 7), (30, 7), (15, 3), (900, 7))],
    "out of order": [sample((900, 1), (10, 22), (500, 3), (10, 2))],
    "of different lengths": [sample((0, 0), length_us=10), sample((0, 0), (990, 1)), sample((2400, 1), length_us=2500)],
}
BINNINGS = {
    "number": Binning(steps=4, window_us=1000),
    "binary": Binning(steps=4, window_us=1000, binary=True),
    "duration": Binning(by="duration", bin_us=300),
}


def both(data: EventDataset, indices: Sequence[int]) -> tuple[tuple, tuple]:
    """The same batch as frames and as events."""
    binning = data.binning
    dense = collate([data[i] for i in indices])
    data.binning = Binning(**{**vars(binning), "sparse": True})
    sparse = collate_sparse([data[i] for i in indices])
    data.binning = binning
    return dense, sparse


def check(dense: tuple, sparse: tuple) -> None:
    frames, events = dense[0].flatten(2), sparse[0]
    assert events.shape == frames.shape
    assert len(events.values) == int((frames != 0).sum())  # nothing is stored twice, and no zero
    assert torch.equal(events.to_dense(), frames)
    assert events.density == pytest.approx(float((frames != 0).double().mean()))
    for t, step in enumerate(events):
        assert torch.equal(step.to_dense(), frames[t])
    for begin, end in ((0, 2), (1, len(events)), (len(events) - 1, len(events))):
        if begin < end <= len(events):
            assert torch.equal(events.folded(begin, end).to_dense(), frames[begin:end].flatten(0, 1))
    assert torch.equal(dense[1], sparse[1])
    assert torch.equal(dense[2], sparse[2])


@pytest.mark.parametrize("binning", BINNINGS)
@pytest.mark.parametrize("name", BY_HAND)
def test_made_by_hand(name: str, binning: str) -> None:
    data = Recordings(BY_HAND[name], BINNINGS[binning])
    dense, sparse = both(data, range(len(data)))
    check(dense, sparse)
    if name == "twice in a bin":
        assert float(sparse[0].values.max()) == (1.0 if binning == "binary" else 3.0)


def test_the_simulated_digits() -> None:
    dense, sparse = both(Digits(split="test", binning=Binning(steps=31)), range(0, 40, 5))
    assert sparse[0].density > 0.001
    check(dense, sparse)


def test_real_recordings(shared_data: object) -> None:
    data = NMNIST(f"{shared_data}/nmnist", "test", Binning(by="duration", bin_us=1000))
    dense, sparse = both(data, range(0, len(data), max(1, len(data) // 4)))
    assert 0.003 < sparse[0].density < 0.01
    check(dense, sparse)


def test_a_batch_moves_changes_its_dtype_and_prints() -> None:
    _, (events, _, _) = both(Recordings(BY_HAND["twice in a bin"], BINNINGS["number"]), [0])
    wide = events.to(torch.device("cpu"), torch.float64)
    assert wide.folded(0, 1).dtype == torch.float64
    assert torch.equal(wide.to_dense(), events.to_dense().double())
    assert "shape=[4, 1, 24], density=3.125%" in repr(events)
    assert "sparse" in Binning(steps=2, sparse=True).describe()


def test_refusals() -> None:
    one = Binning(steps=2).binned(sample((1, 1)), SENSOR)
    with pytest.raises(DataError, match="batch of 0"):
        collate_sparse([])
    with pytest.raises(DataError, match="one sensor and one binning"):
        collate_sparse([(one, 0), (one._replace(sensor=(1, 4, 4)), 0)])
    with pytest.raises(DataError, match="a row for each step and sample"):
        SparseSequence(torch.tensor([0, 1, 1]), torch.tensor([0]), torch.ones(1), batch=3, inputs=2)
    with pytest.raises(DataError, match="channel 24"):
        Binning(sparse=True).binned(sample((1, 24)), SENSOR)
    assert isinstance(one, BinnedEvents)


def test_a_dtype_comes_first_as_in_a_tensor() -> None:
    _, (events, _, _) = both(Recordings(BY_HAND["one event"], BINNINGS["number"]), [0])
    for moved in (events.to(torch.float64), events.to("cpu", torch.float64), events.to(dtype=torch.float64)):
        assert torch.equal(moved.to_dense(), events.to_dense().double())
        assert moved.values.dtype == torch.float64
        assert moved.ends.dtype == events.ends.dtype
    for wrong in ((torch.float64, torch.float64), (torch.int64,)):
        with pytest.raises(TypeError, match=r"write to\("):
            events.to(*wrong)


@pytest.mark.parametrize("index", [0, slice(0, 5)])
def test_an_index_is_told_what_to_write(index: object) -> None:
    _, (events, _, _) = both(Recordings(BY_HAND["one event"], BINNINGS["number"]), [0])
    with pytest.raises(TypeError, match=r"write events\.folded\(begin, end\)"):
        events[index]


@pytest.mark.parametrize(("sparse", "told"), [(True, "write collate_fn=collate_sparse"), (False, "sparse=True")])
def test_each_collate_names_the_other(sparse: bool, told: str) -> None:
    data = Recordings(BY_HAND["one event"], Binning(steps=4, window_us=1000, sparse=sparse))
    unchecked = inspect.unwrap(collate if sparse else collate_sparse)  # as users have it, without the tests' checks
    with pytest.raises(DataError, match=told):
        unchecked([data[0]])


@pytest.mark.parametrize("name", ["binary", "sparse"])
@pytest.mark.parametrize("wrong", ["x", 1, None])
def test_a_flag_is_a_bool(name: str, wrong: object) -> None:
    with pytest.raises(ValueError, match=f"{name}={wrong!r}: True or False; write {name}=True"):
        check_flag(name, wrong)
