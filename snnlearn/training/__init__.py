"""Training runs: batches in a reproducible order, epochs, validation, checkpoints, metrics, progress."""

from snnlearn.training.batches import Batches
from snnlearn.training.checkpoint import find_checkpoint, load_checkpoint, save_checkpoint
from snnlearn.training.errors import CheckpointError, Interrupted, TrainingError
from snnlearn.training.metrics import MetricLog, Running
from snnlearn.training.trainer import Options, Position, Trainer

__all__ = [
    "Batches",
    "CheckpointError",
    "Interrupted",
    "MetricLog",
    "Options",
    "Position",
    "Running",
    "Trainer",
    "TrainingError",
    "find_checkpoint",
    "load_checkpoint",
    "save_checkpoint",
]
