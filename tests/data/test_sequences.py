"""Sequences and their batches: padding, targets at every step, steps that have none."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from snnlearn.data import MISSING, DataError, SequenceDataset, StepTargets, collate_sequences

NAN = float("nan")


class Counting(SequenceDataset):
    """Sequence i is i, i, ... of length i + 1."""

    def sequence(self, index: int) -> tuple[np.ndarray, int | np.ndarray]:
        values = np.full((index + 1, self.channels), index, np.float32)
        return values, np.full(index + 1, index, np.int64) if self.per_step else int(self.labels[index])


def counting(labels: list[int], *, per_step: bool = False, numbers: bool = False, chance: float = 0.4) -> Counting:
    classes = ("a", "b", "c")
    return Counting("it train", "it", 2, classes, np.array(labels), chance, per_step=per_step, numbers=numbers)


def test_a_missing_label_is_what_cross_entropy_leaves_out() -> None:
    """The mean over a step's labels is one over those that are there."""
    outputs, labels = torch.randn(4, 3, dtype=torch.float64), torch.tensor([2, MISSING, 0, MISSING])
    by_hand = -(outputs[0].softmax(0)[2].log() + outputs[2].softmax(0)[0].log()) / 2
    torch.testing.assert_close(F.cross_entropy(outputs, labels), by_hand)
    assert not torch.isclose(F.cross_entropy(outputs, labels.clamp(min=0)), by_hand)


def test_items_and_indices() -> None:
    data = counting([2, 0, 1])
    assert len(data) == 3
    x, y = data[1]
    assert isinstance(x, Tensor)
    assert (x.tolist(), y) == ([[1, 1], [1, 1]], 0)
    assert data[-1][0].shape == (3, 2)
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"it train has 3 sequences, asked for number {index}"):
            data[index]
    label = counting([0, 0], per_step=True)[1][1]
    assert isinstance(label, Tensor)
    assert (label.tolist(), label.dtype) == ([1, 1], torch.int64)


def test_the_base_has_no_sequences() -> None:
    data = SequenceDataset("none", "none", 1, ("a",), np.zeros(2, np.int64), 1.0)
    with pytest.raises(NotImplementedError, match=r"SequenceDataset has to define sequence\(index\), to make number 1"):
        data[1]


def test_descriptions() -> None:
    assert counting([2, 2, 0]).describe() == "it train: 3 sequences of 2 channels; a: 1, b: 0, c: 2\n  chance: 40.0 %"
    steps = "it train: 1 sequence of 2 channels; a label at every step that has one: a, b, c\n  chance: 40.0 %"
    assert counting([0], per_step=True).describe() == steps
    numbers = counting([0, 0], per_step=True, numbers=True, chance=1.25).describe()
    assert numbers == (
        "it train: 2 sequences of 2 channels; 3 numbers to follow at every step\n"
        "  chance: a mean squared error of 1.25, by the best constant"
    )


def test_step_targets_give_one_a_step_and_none_where_there_is_none() -> None:
    labels = torch.tensor([[1, 0], [MISSING, MISSING], [MISSING, 2], [MISSING, MISSING]])
    targets = StepTargets(labels)
    first, second, third, fourth = targets
    assert first is not None
    assert third is not None
    assert (first.tolist(), second, third.tolist(), fourth) == ([1, 0], None, [MISSING, 2], None)
    assert (len(targets), targets.numel(), targets.counted) == (4, 8, [True, False, True, False])
    assert [step is None for step in targets] == [step is None for step in targets]  # it can be gone through again
    assert StepTargets(torch.zeros(3, 0, dtype=torch.int64)).numel() == 0


def test_step_targets_of_numbers() -> None:
    values = torch.ones(3, 2, 2)
    values[1] = NAN
    first, second, third = StepTargets(values)
    assert second is None
    assert first is not None
    assert third is not None
    assert (first.tolist(), third.tolist()) == ([[1, 1], [1, 1]],) * 2
    assert all(step is not None for step in StepTargets(torch.full((2, 1, 1), float(MISSING))))  # -100 is a number


@pytest.mark.parametrize("step", [0, 2])
def test_numbers_for_some_sequences_alone_are_refused(step: int) -> None:
    values = torch.ones(3, 2, 2)
    values[step, 1] = NAN
    with pytest.raises(DataError, match=f"at step {step} only some sequences of a batch have numbers"):
        StepTargets(values)


def test_step_targets_move(device: torch.device) -> None:
    targets = StepTargets(torch.tensor([[MISSING], [3]])).to(device)
    assert targets.values.device.type == device.type
    none, label = targets
    assert none is None
    assert label is not None
    assert (label.tolist(), label.device.type) == ([3], device.type)


def test_a_batch_has_time_first_and_ends_in_zeros() -> None:
    first, second = torch.rand(3, 2), torch.rand(5, 2)
    x, y, lengths = collate_sequences([(first, 7), (second, 0)])
    assert isinstance(y, Tensor)
    assert (x.shape, x.dtype) == ((5, 2, 2), torch.float32)
    assert torch.equal(x[:3, 0], first)
    assert torch.equal(x[:, 1], second)
    assert not x[3:, 0].any()
    assert (y.tolist(), y.dtype, lengths.tolist(), lengths.dtype) == ([7, 0], torch.int64, [3, 5], torch.int64)


def test_a_batch_of_labels_at_every_step_ends_in_missing_ones() -> None:
    data = counting([0, 0, 0], per_step=True)
    x, y, lengths = collate_sequences([data[2], data[0]])
    assert isinstance(y, StepTargets)
    assert x[:, 1].tolist() == [[0, 0]] * 3
    assert y.values.tolist() == [[2, 0], [2, MISSING], [2, MISSING]]
    assert (y.counted, lengths.tolist(), y.values.dtype) == ([True] * 3, [3, 1], torch.int64)
    labels = torch.tensor([MISSING, 1])
    assert [step is None for step in collate_sequences([(torch.rand(2, 1), labels)])[1]] == [True, False]


def test_a_batch_of_numbers_needs_one_length() -> None:
    numbers = torch.rand(3, 2)
    _, y, _ = collate_sequences([(torch.rand(3, 1), numbers), (torch.rand(3, 1), 2 * numbers)])
    assert isinstance(y, StepTargets)
    assert torch.equal(y.values, torch.stack([numbers, 2 * numbers], dim=1))
    with pytest.raises(DataError, match="at step 1 only some sequences"):
        collate_sequences([(torch.rand(3, 1), numbers), (torch.rand(1, 1), numbers[:1])])


def test_batches_that_cannot_be() -> None:
    with pytest.raises(DataError, match="a batch of 0 sequences"):
        collate_sequences([])
    with pytest.raises(DataError, match=r"a batch of 2 sequences with \[\(2,\), \(3,\)\] values a step"):
        collate_sequences([(torch.rand(3, 2), 0), (torch.rand(3, 3), 0)])
    with pytest.raises(DataError, match=r"inputs of \[3, 2\] steps with targets for \[3, 1\]"):
        collate_sequences([(torch.rand(3, 2), torch.zeros(3).long()), (torch.rand(2, 2), torch.zeros(1).long())])
    with pytest.raises(DataError, match=r"inputs of \[3, 2\] steps with targets for \[3\]"):
        collate_sequences([(torch.rand(3, 2), torch.zeros(3).long()), (torch.rand(2, 2), 1)])
