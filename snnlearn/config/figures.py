"""Figures of a whole run that its epochs do not have: speed of learning, memory, agreement with BPTT."""

import logging
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from snnlearn.config.schema import Config
from snnlearn.data import StepTargets
from snnlearn.engine import NonFiniteError, kept_bytes
from snnlearn.engine.chosen_chunk import present_chunk
from snnlearn.engine.layout import lies_channels_last
from snnlearn.training import Trainer

__all__ = ["chance_of", "epochs_to", "final_fidelity", "learning_figures"]

log = logging.getLogger(__name__)

Line = Mapping[str, Any]


def learning_figures(config: Config, trainer: Trainer) -> dict[str, Any]:
    """Return `chance`, `epochs_to_threshold`, `chunk`, `channels_last`, `kept_bytes` and `fidelity` of a finished run.

    None is what is unknown. `chunk` is the number of steps that were run at once, chosen or given (where each sequence
    is one chunk of its own length, the last one's); `channels_last` whether weights of convolutions lie so in memory;
    `kept_bytes` are those of such chunks.
    """
    chance, share, lines = chance_of(trainer.train.dataset), config.trainer.threshold, trainer.metrics.read()
    goal = None if share is None else chance + share * (1 - chance)
    return {
        "chance": chance,
        "epochs_to_threshold": None if goal is None else epochs_to(goal, lines),
        "chunk": trainer.learner.chunk,
        "channels_last": lies_channels_last(trainer.learner.net),
        "kept_bytes": _kept_bytes(trainer),
        "fidelity": final_fidelity(lines, config.trainer.epochs),
    }


def chance_of(dataset: Any) -> float:
    """Return what guessing earns: the accuracy, or the squared error where targets are numbers."""
    return float(dataset.chance) if hasattr(dataset, "chance") else 1 / len(dataset.classes)


def epochs_to(goal: float, lines: Iterable[Line]) -> int | None:
    """Return the first epoch whose validation accuracy is at least `goal`; the training's, where nothing is validated.

    `lines` are those of `metrics.jsonl`; None where no epoch comes so far.

    >>> lines = [{"kind": "epoch", "epoch": n, "validation": {"accuracy": n / 10}} for n in (1, 2, 3)]
    >>> epochs_to(0.2, lines), epochs_to(0.9, lines)
    (2, None)
    """
    for line in lines:
        if line["kind"] == "epoch":
            accuracy = (line["validation"] or line["train"])["accuracy"]
            if accuracy is not None and accuracy >= goal:
                return int(line["epoch"])
    return None


def final_fidelity(lines: Iterable[Line], epochs: int) -> float | None:
    """Return the mean over parameters of the gradient's cosine with BPTT's after the last of `epochs`.

    Parameters without a gradient are left out; None where that epoch was not measured.

    >>> final_fidelity([{"kind": "fidelity", "epoch": 2, "cosine": {"weight": 0.5, "bias": 1.0, "dead": None}}], 2)
    0.75
    """
    for line in lines:
        if line["kind"] == "fidelity" and line["epoch"] == epochs:
            cosines = [cosine for cosine in line["cosine"].values() if cosine is not None]
            return statistics.fmean(cosines) if cosines else None
    return None


def _kept_bytes(trainer: Trainer) -> int | None:
    learner, (x, y) = trainer.learner, next(iter(trainer.train.epoch(1)))
    batch, per_step = (x.to(trainer.device), y.to(trainer.device)), isinstance(y, StepTargets)
    try:
        return kept_bytes(
            learner.net,
            batch,
            learner.rule,
            learner.loss,
            per_step_target=per_step,
            update=learner.update,
            chunk=present_chunk(learner, x),
        )
    except NonFiniteError as error:
        log.warning("the memory that learning keeps was not measured: %s", error)
        return None
