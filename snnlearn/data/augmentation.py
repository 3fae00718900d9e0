"""Variations of recordings for training, drawn per batch from a generator of their own."""

import torch
from jaxtyping import Float
from torch import Tensor


def random_shift(
    frames: Float[Tensor, "steps batch polarities rows columns"], pixels: int, generator: torch.Generator
) -> Float[Tensor, "steps batch polarities rows columns"]:
    """Return frames [T, B, P, H, W] with each recording moved by up to `pixels` in x and in y.

    One displacement per recording, the same at every step, uniform in -pixels..pixels; what leaves the sensor
    is gone and zeros come in. `frames` itself is not changed. For training only: it takes the place of the
    recordings that a small training set lacks. Raises ValueError for a negative shift or one as wide as the sensor.

    >>> frames = torch.zeros(1, 1, 1, 3, 3); frames[0, 0, 0, 1, 1] = 1.0
    >>> random_shift(frames, 1, torch.Generator().manual_seed(0)).sum()
    tensor(1.)
    """
    batch, rows, columns = frames.shape[1], frames.shape[3], frames.shape[4]
    if not 0 <= pixels < min(rows, columns):
        raise ValueError(
            f"pixels={pixels!r}: a shift is at least 0 and smaller than the sensor ({rows} x {columns}), since nothing "
            f"would be left; write pixels=2"
        )
    if pixels == 0:
        return frames
    padded = torch.nn.functional.pad(frames, (pixels,) * 4)
    corners = torch.randint(0, 2 * pixels + 1, (batch, 2), generator=generator).tolist()
    moved = [
        padded[:, sample, :, top : top + rows, left : left + columns] for sample, (top, left) in enumerate(corners)
    ]
    return torch.stack(moved, dim=1) if moved else frames


__all__ = ["random_shift"]
