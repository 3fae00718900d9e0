"""Why a training run can end early."""

from pathlib import Path

__all__ = ["CheckpointError", "Interrupted", "TrainingError"]


class CheckpointError(ValueError):
    """Raised where a checkpoint is missing, unreadable, or belongs to another run."""


class TrainingError(RuntimeError):
    """Raised where training cannot go on: a batch that is not finite, a disk that is full."""


class Interrupted(RuntimeError):
    """Raised after the first Ctrl-C (or SIGTERM), once the running batch is done and `checkpoint` is saved.

    `place` says in words how far the run had come.
    """

    def __init__(self, checkpoint: Path, place: str) -> None:
        super().__init__(f"interrupted after {place}; saved {checkpoint}")
        self.checkpoint = checkpoint
        self.place = place
