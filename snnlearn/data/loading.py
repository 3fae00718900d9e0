"""From recordings to batches, and from labels to splits."""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from snnlearn.data.errors import DataError


def collate(
    batch: Sequence[tuple[Tensor, int]],
) -> tuple[Float32[Tensor, "steps batch p h w"], Int64[Tensor, " batch"], Int64[Tensor, " batch"]]:
    """Stack recordings into one batch, time first; shorter ones end in empty frames.

    Args:
        batch: pairs (frames [T_i, P, H, W], label), at least one.

    Returns:
        Frames [T, B, P, H, W] with T the longest of the T_i, labels [B], and lengths [B] in steps.

    Raises:
        DataError: an empty batch, frames of different sensors, or recordings that are no frames.

    Example:
        >>> frames, labels, lengths = collate([(torch.ones(3, 2, 4, 4), 7), (torch.ones(1, 2, 4, 4), 1)])
        >>> tuple(frames.shape), labels.tolist(), lengths.tolist(), frames[:, 1].sum().item()
        ((3, 2, 2, 4, 4), [7, 1], [3, 1], 32.0)
    """
    for frames, _ in batch:
        if not isinstance(frames, Tensor):
            raise DataError(
                f"collate got a recording as {type(frames).__name__} and stacks frames, tensors [T, P, H, W]: write "
                f"collate_fn=collate_sparse for events of Binning(..., sparse=True), or leave sparse=True out"
            )
    shapes = {tuple(frames.shape[1:]) for frames, _ in batch}
    if len(shapes) != 1:
        raise DataError(
            f"a batch of {len(batch)} recordings of sensors {sorted(shapes)}: one sensor, one recording at least"
        )
    lengths = [frames.shape[0] for frames, _ in batch]
    out = torch.zeros(max(lengths), len(batch), *shapes.pop(), dtype=torch.float32)
    for place, (frames, _) in enumerate(batch):
        out[: frames.shape[0], place] = frames
    return out, torch.tensor([label for _, label in batch]), torch.tensor(lengths)


def stratified_split(
    labels: Int64[np.ndarray, " samples"], fraction: float, seed: int
) -> tuple[Int64[np.ndarray, " train"], Int64[np.ndarray, " validation"]]:
    """Cut a validation set of the given size that has every class in proportion.

    Within a class, samples are taken in the order of sha256("seed:index"): the same split on every machine
    and with every version of every library.  The shares of the classes are rounded so that the total is exact
    (largest remainder).

    Args:
        labels: label of every sample, [N].
        fraction: share of the samples that goes to validation, 0 < fraction < 1.
        seed: a different seed gives a different split.

    Returns:
        Indices of the training and of the validation samples, each ascending; disjoint, and together all N.

    Raises:
        ValueError: a fraction out of range, or one that leaves either part empty.

    Example:
        >>> train, validation = stratified_split(np.array([0, 0, 1, 1, 1, 1]), fraction=0.5, seed=0)
        >>> sorted(np.array([0, 0, 1, 1, 1, 1])[validation].tolist())
        [0, 1, 1]
    """
    total = round(fraction * len(labels)) if 0 < fraction < 1 else 0
    if not 0 < total < len(labels):
        raise ValueError(
            f"fraction={fraction} of {len(labels)} samples would leave one part empty; allowed is 0 < fraction < 1 "
            "with a sample in each: choose another fraction, or do without a validation set"
        )
    classes, counts = np.unique(labels, return_counts=True)
    share = total * counts / len(labels)
    take = np.floor(share).astype(np.int64)
    rest = np.argsort(take - share, kind="stable")[: total - int(take.sum())]
    take[rest] += 1
    chosen = [_shuffled(np.flatnonzero(labels == label), seed)[:n] for label, n in zip(classes, take, strict=True)]
    validation = np.sort(np.concatenate(chosen))
    return np.setdiff1d(np.arange(len(labels)), validation), validation


def _shuffled(indices: np.ndarray, seed: int) -> np.ndarray:
    order = sorted(indices.tolist(), key=lambda index: hashlib.sha256(f"{seed}:{index}".encode()).digest())
    return np.array(order, np.int64)
