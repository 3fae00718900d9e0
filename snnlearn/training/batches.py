"""Batches in an order that depends on the seed and the epoch alone, and from any batch of an epoch on."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from snnlearn.data import SparseSequence, StepTargets

__all__ = ["Batches", "Inputs", "Targets", "epoch_order"]

Targets = Tensor | StepTargets
Inputs = Tensor | SparseSequence
Collate = Callable[[list[Any]], tuple[Inputs, Targets, Tensor]]
Vary = Callable[[Tensor, torch.Generator], Tensor]


def epoch_order(count: int, seed: int, epoch: int) -> list[int]:
    """Return a permutation of 0..count-1 that `seed` and `epoch` determine, whatever was drawn before.

    >>> epoch_order(5, seed=1, epoch=1) == epoch_order(5, seed=1, epoch=1)
    True
    >>> epoch_order(50, seed=1, epoch=1) == epoch_order(50, seed=1, epoch=2)
    False
    """
    return torch.randperm(count, generator=_generator(seed, epoch)).tolist()


def _generator(*place: int) -> torch.Generator:
    digest = hashlib.sha256(" ".join(map(str, place)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class Batches:
    """Serve the recordings `indices` of `dataset` in batches (x [T, B, ...], y), the last one smaller.

    `x` is a tensor, or a `SparseSequence` where the recordings stay events.
    `y` is labels [B], or `StepTargets` where every step has its own. `collate` turns a list of items into
    (x, y, lengths [B]); `workers` processes read
    beside the training (0: none). `vary` changes the frames of a batch, with a generator that belongs to that
    batch of that epoch. The order is new in every epoch; without `shuffle` it is that of `indices`.

    >>> from snnlearn.training.batches import Batches
    >>> numbers = Batches([10, 11, 12], [0, 1, 2], 2, lambda items: (torch.tensor(items), torch.tensor(items), None))
    >>> [x.tolist() for x, y in numbers.epoch(1)]
    [[10, 11], [12]]
    """

    def __init__(
        self,
        dataset: Dataset[Any] | Sequence[Any],
        indices: Sequence[int],
        batch_size: int,
        collate: Collate,
        *,
        seed: int = 0,
        shuffle: bool = False,
        workers: int = 0,
        max_batches: int | None = None,
        vary: Vary | None = None,
    ) -> None:
        self.dataset = dataset
        self.indices = list(indices)
        self.batch_size = batch_size
        self.collate = collate
        self.seed = seed
        self.shuffle = shuffle
        self.workers = workers
        self.max_batches = max_batches
        self.vary = vary

    @property
    def samples(self) -> int:
        """Number of recordings in an epoch."""
        return len(self.indices)

    def __len__(self) -> int:
        whole = -(-len(self.indices) // self.batch_size)
        return whole if self.max_batches is None else min(whole, self.max_batches)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Inputs, Targets]]:
        """Yield the batches of `epoch` (from 1), leaving out the first `start` of them.

        Nothing is drawn from torch's global generator, so a resumed epoch sees what it would have seen.
        """
        order = epoch_order(len(self.indices), self.seed, epoch) if self.shuffle else range(len(self.indices))
        chosen = [self.indices[place] for place in order]
        portions = [chosen[at : at + self.batch_size] for at in range(0, len(chosen), self.batch_size)]
        loader: DataLoader[Any] = DataLoader(
            self.dataset,  # type: ignore[arg-type]
            batch_sampler=portions[start : len(self)],
            collate_fn=self.collate,
            num_workers=self.workers,
            generator=_generator(self.seed, epoch),
        )
        for place, (frames, labels, _) in enumerate(loader, start):
            yield frames if self.vary is None else self.vary(frames, _generator(self.seed, epoch, place)), labels
