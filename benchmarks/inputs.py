"""What the works of `chunk_speed.py` are fed: made like the recordings, or the recordings themselves; torch alone.

The peers import this file too, so that everything that is compared sees the same numbers.
"""

import os
from pathlib import Path

import torch
from common import sparse_counts
from torch import Tensor

SIZES = {"a": (96, 128), "b": (20, 32), "c": (96, 64), "d": (300, 128)}
"""T and B of each work, unless told otherwise."""
EVENTS_PER_UTTERANCE = 7_200
"""Spikes of a spoken digit on the 700 channels of the Heidelberg cochlea, on average."""
MOST_SPIKES = 0.3
CHANNELS = 700


def digits(steps: int, batch: int) -> Tensor:
    """Return counts [T, B, 2312] like those of N-MNIST."""
    return sparse_counts(steps, batch, torch.device("cpu"))


def frames(steps: int, batch: int) -> Tensor:
    """Return counts [T, B, 2, 34, 34] like those of N-MNIST."""
    return digits(steps, batch).reshape(steps, batch, 2, 34, 34)


def utterances(steps: int, batch: int) -> Tensor:
    """Return spikes [T, B, 700], as many as a spoken digit has (fewer where the steps are few)."""
    share = min(MOST_SPIKES, EVENTS_PER_UTTERANCE / (steps * CHANNELS))
    generator = torch.Generator().manual_seed(0)
    spikes: Tensor = torch.rand(steps, batch, CHANNELS, generator=generator) < share
    return spikes.float()


def labels_for(batch: int, classes: int) -> Tensor:
    """Return labels [B]."""
    return torch.randint(classes, (batch,), generator=torch.Generator().manual_seed(1))


def recordings_folder() -> Path | None:
    """Return where N-MNIST recordings lie: data/nmnist, or that under $SNNLEARN_SHARED; None for nowhere."""
    root = Path(__file__).resolve().parents[1]
    shared = Path(os.environ.get("SNNLEARN_SHARED", root.parent / "shared"))
    found = [folder for folder in (root / "data/nmnist", shared / "data/nmnist") if any(folder.rglob("*.bin"))]
    return found[0] if found else None
