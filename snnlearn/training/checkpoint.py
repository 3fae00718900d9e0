"""Checkpoints: written whole or not at all, made of plain containers and tensors only."""

import io
import os
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._weights_only_unpickler import UnpicklingError  # type: ignore[attr-defined]

from snnlearn.training.errors import CheckpointError, TrainingError

__all__ = [
    "find_checkpoint",
    "load_checkpoint",
    "random_states",
    "restore_random_states",
    "save_checkpoint",
    "write_whole",
]

FORMAT = 1
FOLDER = "checkpoints"

# What torch.load was seen to raise for random, cut and altered files.
UNREADABLE = (
    RuntimeError,
    EOFError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    struct.error,
    UnpicklingError,
)
INSTEAD = f"pass best.pt or last.pt from the {FOLDER}/ of a run's folder, or that folder"


def save_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` to `path`: first beside it, then moved over it, so that a good file is always there.

    Raises TrainingError where the disk refuses; an earlier checkpoint at `path` is then untouched.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "last.pt"
    >>> save_checkpoint(path, {"step": 3})
    >>> load_checkpoint(path)["step"]
    3
    """
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **content}, buffer)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, buffer.getbuffer())
    except OSError as error:
        kept = f"the earlier one at {path} is kept" if path.exists() else "there is no earlier one"
        raise TrainingError(
            f"could not save the checkpoint ({error.strerror or error}), {buffer.tell()} bytes; {kept}. "
            "Make room, then go on with trainer.resume"
        ) from error


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file so that `path` holds either all of `content` or what it held before; raises OSError.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> write_whole(path, b"all")
    >>> path.read_bytes(), [item.name for item in path.parent.iterdir()]
    (b'all', ['note.txt'])
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; nothing in it is executed.

    Raises CheckpointError where the file is missing, damaged, or not one of ours.

    >>> load_checkpoint(Path("nowhere.pt"))
    Traceback (most recent call last):
    snnlearn.training.errors.CheckpointError: there is no checkpoint at nowhere.pt
    """
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} is truncated or not a checkpoint; {INSTEAD} ({reason})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is not a checkpoint of a training run; {INSTEAD} (format {FORMAT} of this version not found in it)"
        )
    return content


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint that `path`, a file or the folder of a run, means.

    Raises CheckpointError where there is none.

    >>> find_checkpoint(Path("nowhere"))
    Traceback (most recent call last):
    snnlearn.training.errors.CheckpointError: nowhere: no such run folder or checkpoint
    """
    if path.is_file():
        return path
    if not path.exists():
        raise CheckpointError(f"{path}: no such run folder or checkpoint")
    for candidate in (path / FOLDER / "last.pt", path / "last.pt"):
        if candidate.is_file():
            return candidate
    raise CheckpointError(f"{path} holds no {FOLDER}/last.pt: it is no run folder, or the run saved nothing yet")


def random_states() -> dict[str, Any]:
    """Return the states of every random generator that a run can draw from, as plain data.

    >>> state = random_states()
    >>> first = torch.rand(1)
    >>> restore_random_states(state)
    >>> bool(torch.rand(1) == first)
    True
    """
    name, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002 (the global one is meant)
    version, words, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [str(name), torch.from_numpy(np.array(keys, np.int64)), int(position), int(has_gauss), float(gauss)],
        "python": [version, list(words), gauss_next],
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Put every random generator back to `states`, from `random_states`; GPU states only where they fit."""
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
    name, keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    version, words, gauss_next = states["python"]
    random.setstate((version, tuple(words), gauss_next))
