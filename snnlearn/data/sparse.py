"""Events as sparse steps: which (step, sample, channel) are not zero, and how many events each holds.

A batch is one list of counts, sorted by step, then sample, then channel: the rows of a compressed sparse matrix
[T B, I], time first. Any run of steps is a slice of it, so a chunk costs no copy of its events, and dense frames are
never made.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from snnlearn.data.errors import DataError
from snnlearn.data.samples import Sensor


class BinnedEvents(NamedTuple):
    """The events of one recording by step, 0..T - 1, and channel [N] each, in any order.

    `steps` the number of steps T; `sensor` (P, H, W); `binary` whether a step and channel count at most once.

    >>> len(BinnedEvents(np.array([1, 0, 1]), np.array([1, 0, 1], np.int32), 2, (1, 1, 2), False).step)
    3
    """

    step: Int64[np.ndarray, " events"]
    channel: Int32[np.ndarray, " events"]
    steps: int
    sensor: Sensor
    binary: bool


class SparseSequence:
    """A batch of event sequences, as `OnlineLearner.learn` takes it: a step is a sparse CSR tensor [B, I].

    Args:
        ends: where the row of each (step, sample) ends, integers [T B + 1], from 0.
        columns: channel of each count, ascending in a row, [E].
        values: the counts, float [E].
        batch: number of samples B.
        inputs: number of channels I.

    Raises:
        DataError: rows that are no whole number of steps, or events and ends that do not fit.

    Example:
        >>> events = SparseSequence(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1]), torch.ones(2), batch=1, inputs=2)
        >>> len(events), events.to_dense().tolist(), events.folded(1, 3).to_dense().tolist()
        (3, [[[1.0, 0.0]], [[0.0, 0.0]], [[0.0, 1.0]]], [[0.0, 0.0], [0.0, 1.0]])
    """

    def __init__(self, ends: Tensor, columns: Tensor, values: Tensor, batch: int, inputs: int) -> None:
        if batch < 1 or (len(ends) - 1) % batch or len(columns) != len(values) or int(ends[-1]) != len(values):
            raise DataError(
                f"{len(ends) - 1} rows for a batch of {batch}, with {len(columns)} channels and {len(values)} counts "
                f"where the rows hold {int(ends[-1])}: a row for each step and sample, a channel for each count"
            )
        self.ends, self.columns, self.values = ends, columns, values
        self.batch, self.inputs = batch, inputs

    @property
    def shape(self) -> tuple[int, int, int]:
        """Steps, samples, channels."""
        return len(self), self.batch, self.inputs

    @property
    def density(self) -> float:
        """Share of the entries that are not zero."""
        return len(self.values) / max(1, len(self) * self.batch * self.inputs)

    def __len__(self) -> int:
        return (len(self.ends) - 1) // self.batch

    def __iter__(self) -> Iterator[Tensor]:
        return (self.folded(step, step + 1) for step in range(len(self)))

    def folded(self, begin: int, end: int) -> Tensor:
        """Return the steps begin..end - 1 as one sparse CSR tensor [(end - begin) B, I], time first."""
        ends = self.ends[begin * self.batch : end * self.batch + 1]
        first, last = int(ends[0]), int(ends[-1])
        with warnings.catch_warnings():  # torch announces once that the layout is in beta
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            rows: Tensor = torch.sparse_compressed_tensor(
                ends - first,
                self.columns[first:last],
                self.values[first:last],
                (len(ends) - 1, self.inputs),
                layout=torch.sparse_csr,
                check_invariants=False,
            )
        return rows

    def to_dense(self) -> Float[Tensor, "steps batch inputs"]:
        """Return the frames [T, B, I]."""
        frames: Tensor = self.folded(0, len(self)).to_dense().unflatten(0, (len(self), self.batch))
        return frames

    def frames(self, samples: int) -> Float[Tensor, "steps few inputs"]:
        """Return the frames [T, N, I] of the first `samples` N samples, all of them where there are fewer.

        >>> events = SparseSequence(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2), batch=2, inputs=2)
        >>> events.frames(1).tolist()
        [[[1.0, 0.0]]]
        """
        rows = torch.repeat_interleave(torch.arange(len(self.ends) - 1, device=self.ends.device), self.ends.diff())
        step, sample = rows // self.batch, rows % self.batch
        chosen, few = sample < samples, min(samples, self.batch)
        frames = self.values.new_zeros((len(self), few, self.inputs))
        frames[step[chosen], sample[chosen], self.columns[chosen].long()] = self.values[chosen]
        return frames

    def __getitem__(self, index: object) -> NoReturn:
        """Raise TypeError: steps are taken by iterating, or with `folded`."""
        raise TypeError(
            f"SparseSequence[{index!r}]: its events are not cut by an index; write events.folded(begin, end) for steps "
            f"as one sparse tensor [(end - begin) B, I], `for step in events` for each, events.to_dense()[...] for "
            f"frames [T, B, I]"
        )

    def to(
        self, device: torch.device | torch.dtype | str | int | None = None, dtype: torch.dtype | None = None
    ) -> "SparseSequence":
        """Return the same events on `device`, their counts as `dtype`; a dtype may come first, as in `Tensor.to`.

        >>> events = SparseSequence(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), batch=1, inputs=2)
        >>> events.to(torch.float64).values.dtype, events.to("cpu", torch.float16).values.dtype
        (torch.float64, torch.float16)
        """
        if isinstance(device, torch.dtype):
            if dtype is not None:
                raise TypeError(f"to({device}, {dtype}): one dtype; write to(device, {dtype})")
            device, dtype = None, device
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"to({dtype}): the counts are floating-point numbers; write to(torch.float32)")
        values = self.values.to(device=device, dtype=dtype)
        ends, columns = self.ends.to(device=device), self.columns.to(device=device)
        return SparseSequence(ends, columns, values, self.batch, self.inputs)

    def __repr__(self) -> str:
        return f"SparseSequence(shape={list(self.shape)}, density={self.density:.3%}, dtype={self.values.dtype})"


def collate_sparse(
    batch: Sequence[tuple[BinnedEvents, int]],
) -> tuple[SparseSequence, Int64[Tensor, " batch"], Int64[Tensor, " batch"]]:
    """Join recordings into one batch, equal to `collate` of their dense frames; shorter ones end in empty steps.

    Args:
        batch: pairs (events by place, label), at least one, all of one sensor and all binary or none.

    Returns:
        The events, labels [B], and lengths [B] in steps.

    Raises:
        DataError: an empty batch, recordings of different kinds, or frames in place of events.

    Example:
        >>> one = BinnedEvents(np.array([1, 0, 1]), np.array([1, 0, 1], np.int32), 2, (1, 1, 2), False)
        >>> events, labels, lengths = collate_sparse([(one, 7)])
        >>> events.to_dense().tolist(), labels.tolist(), lengths.tolist()
        ([[[1.0, 0.0]], [[0.0, 2.0]]], [7], [2])
    """
    for recording, _ in batch:
        if not isinstance(recording, BinnedEvents):
            raise DataError(
                f"collate_sparse got a recording as {type(recording).__name__} and joins events, BinnedEvents: give "
                f"the dataset Binning(..., sparse=True), or write collate_fn=collate for frames"
            )
    kinds = {(events.sensor, events.binary) for events, _ in batch}
    if len(kinds) != 1:
        raise DataError(
            f"a batch of {len(batch)} recordings of kinds {sorted(kinds)}: one sensor and one binning, one recording "
            "at least"
        )
    ((sensor, binary),) = kinds
    inputs, lengths = sensor[0] * sensor[1] * sensor[2], [events.steps for events, _ in batch]
    keys = np.sort(np.concatenate([_keys(e, inputs, len(batch), b) for b, (e, _) in enumerate(batch)]))
    rows, columns, counts = _counted(keys, inputs)
    ends = np.zeros(max(lengths) * len(batch) + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=len(ends) - 1), out=ends[1:])
    values = torch.from_numpy((counts > 0 if binary else counts).astype(np.float32))
    events = SparseSequence(torch.from_numpy(ends), torch.from_numpy(columns), values, len(batch), inputs)
    return events, torch.tensor([label for _, label in batch]), torch.tensor(lengths)


def _keys(events: BinnedEvents, inputs: int, batch: int, sample: int) -> np.ndarray:
    """Return (step * B + sample) * I + channel of each event."""
    keys: np.ndarray = (events.step * batch + sample) * inputs + events.channel
    return keys


def _counted(
    keys: Int64[np.ndarray, " events"], inputs: int
) -> tuple[Int64[np.ndarray, " counts"], Int32[np.ndarray, " counts"], Int64[np.ndarray, " counts"]]:
    """Return row, column and number of each distinct one of sorted keys."""
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    rows, columns = np.divmod(keys[first], inputs)
    return rows, columns.astype(np.int32), np.diff(first, append=len(keys))


__all__ = ["BinnedEvents", "SparseSequence", "collate_sparse"]
