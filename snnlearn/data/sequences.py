"""Sequences [T, channels] with one label each, or with a target at every step: the base, and their batches.

A target at every step may be missing: for labels the number `MISSING`, for floats NaN.  In a batch a step that
no sequence has a target for is None to the learner, and a label that is missing in some sequences alone is left
out of the step's mean.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor, from_numpy
from torch.utils.data import Dataset

from snnlearn.data.errors import DataError, check_flag

MISSING = -100
"""The label of a step that has none; what torch's cross entropy leaves out."""

SequenceTarget = int | Tensor
Item = tuple[Tensor, SequenceTarget]


class StepTargets:
    """Hold the targets of every step of a batch; iterate to get one a step, None where no sequence has one.

    Args:
        values: labels [T, B], int64, `MISSING` where there is none; or numbers [T, B, D], NaN where there are none.

    Raises:
        DataError: a step at which only some of the sequences have numbers.

    Example:
        >>> targets = StepTargets(torch.tensor([[MISSING, MISSING], [3, MISSING]]))
        >>> list(targets)
        [None, tensor([   3, -100])]
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values
        missing = values.isnan().any(-1) if values.is_floating_point() else values == MISSING
        rows = missing.reshape(len(values), -1)
        self.counted: list[bool] = (~rows.all(1)).tolist()
        if values.is_floating_point() and bool((rows.any(1) & ~rows.all(1)).any()):
            step = int((rows.any(1) & ~rows.all(1)).int().argmax())
            raise DataError(
                f"at step {step} only some sequences of a batch have numbers to follow: numbers are there for all "
                "sequences of a step or, as NaN, for none; use labels, or sequences of one length"
            )

    def __len__(self) -> int:
        return len(self.counted)

    def __iter__(self) -> Iterator[Tensor | None]:
        for counted, target in zip(self.counted, self.values, strict=True):
            yield target if counted else None

    def numel(self) -> int:
        """Return the number of entries, 0 for an empty batch."""
        return self.values.numel()

    def to(self, device: torch.device) -> "StepTargets":
        """Return the same targets on `device`."""
        moved = object.__new__(StepTargets)
        moved.values, moved.counted = self.values.to(device), self.counted
        return moved


class SequenceDataset(Dataset[Item]):
    """Serve sequences [T, channels]; the base of every dataset without frames.  A subclass gives
    ``sequence(i)``.

    Args:
        name: what the log calls it, the split included.
        title: its short name, the same for both splits.
        channels: values of a step.
        classes: name of each class or, for numbers to follow, of each of them.
        labels: int64 [N], over which a validation set is spread evenly: the label of each sequence, or 0
            where the labels are those of its steps.
        chance: what guessing without memory earns: the accuracy, or for numbers the mean squared error.
        per_step: whether there is a target at every step.
        numbers: whether the targets are numbers.

    Example:
        >>> class One(SequenceDataset):
        ...     def sequence(self, index):
        ...         return np.eye(2, dtype=np.float32), int(self.labels[index])
        >>> data = One("one train", "one", 2, ("no", "yes"), np.array([1]), chance=0.5)
        >>> data[0][1], data.describe().splitlines()
        (1, ['one train: 1 sequence of 2 channels; no: 0, yes: 1', '  chance: 50.0 %'])
    """

    def __init__(
        self,
        name: str,
        title: str,
        channels: int,
        classes: tuple[str, ...],
        labels: Int64[np.ndarray, " samples"],
        chance: float,
        *,
        per_step: bool = False,
        numbers: bool = False,
    ) -> None:
        check_flag("per_step", per_step)
        check_flag("numbers", numbers)
        self.name = name
        self.title = title
        self.channels = channels
        self.classes = classes
        self.labels = labels
        self.chance = chance
        self.per_step = per_step
        self.numbers = numbers

    def sequence(self, index: int) -> tuple[np.ndarray, int | np.ndarray]:
        """Return the input, float32 [T, channels], and the target of sequence ``index`` (0 <= index < len).

        The target is a label, or with ``per_step`` labels int64 [T] or numbers float32 [T, D].
        """
        raise NotImplementedError(f"{type(self).__name__} has to define sequence(index), to make number {index}")

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def __getitem__(self, index: int) -> Item:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} sequences, asked for number {index}")
        values, target = self.sequence(int(index) % len(self))
        return from_numpy(values), from_numpy(target) if isinstance(target, np.ndarray) else int(target)

    def describe(self) -> str:
        """Say in a few lines what this is: sequences, classes, and what guessing earns."""
        count = f"{len(self)} sequence{'' if len(self) == 1 else 's'} of {self.channels} channels"
        if self.numbers:
            return (
                f"{self.name}: {count}; {len(self.classes)} numbers to follow at every step\n"
                f"  chance: a mean squared error of {self.chance:.3g}, by the best constant"
            )
        if self.per_step:
            what = f"a label at every step that has one: {', '.join(self.classes)}"
        else:
            counts = np.bincount(self.labels, minlength=len(self.classes))
            what = ", ".join(f"{name}: {number}" for name, number in zip(self.classes, counts, strict=True))
        return f"{self.name}: {count}; {what}\n  chance: {self.chance:.1%}".replace("%", " %")


def collate_sequences(
    batch: Sequence[Item],
) -> tuple[Float32[Tensor, "steps batch channels"], Tensor | StepTargets, Tensor]:
    """Stack sequences into one batch, time first; shorter ones end in zeros, without targets.

    Args:
        batch: pairs (input [T_i, C], target), at least one; all targets labels of a sequence, or all of steps.

    Returns:
        Input [T, B, C] with T the longest of the T_i; labels [B], or ``StepTargets``; and lengths [B], steps.

    Raises:
        DataError: an empty batch, different channels, a target per step that is not as long as its input.

    Example:
        >>> x, y, lengths = collate_sequences([(torch.ones(3, 2), torch.tensor([0, 1, 0])), (torch.ones(1, 2),
        ...                                     torch.tensor([1]))])
        >>> tuple(x.shape), y.values.tolist(), lengths.tolist()
        ((3, 2, 2), [[0, 1], [1, -100], [0, -100]], [3, 1])
    """
    shapes = {tuple(values.shape[1:]) for values, _ in batch}
    if len(shapes) != 1:
        raise DataError(
            f"a batch of {len(batch)} sequences with {sorted(shapes)} values a step: one number of channels, one "
            "sequence at least"
        )
    lengths = torch.tensor([values.shape[0] for values, _ in batch])
    out = _stacked([values for values, _ in batch], 0.0)
    steps = [target for _, target in batch if isinstance(target, Tensor)]
    if not steps:
        return out, torch.tensor([target for _, target in batch]), lengths
    if [target.shape[0] for target in steps] != lengths.tolist():
        raise DataError(
            f"inputs of {lengths.tolist()} steps with targets for {[target.shape[0] for target in steps]}: each "
            "step has one target, MISSING or NaN where there is none"
        )
    missing = float("nan") if steps[0].is_floating_point() else MISSING
    return out, StepTargets(_stacked(steps, missing)), lengths


def _stacked(parts: Sequence[Tensor], fill: int | float) -> Tensor:
    steps = max(part.shape[0] for part in parts)
    out = torch.full((steps, len(parts), *parts[0].shape[1:]), fill, dtype=parts[0].dtype)
    for place, part in enumerate(parts):
        out[: part.shape[0], place] = part
    return out


__all__ = ["MISSING", "SequenceDataset", "StepTargets", "collate_sequences"]
