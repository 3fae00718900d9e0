"""The trainer: epochs of batches, validation, checkpoints, and a resume that continues to the same numbers."""

import logging
import math
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from snnlearn.data import StepTargets
from snnlearn.engine import NonFiniteError, OnlineLearner, SequenceResult
from snnlearn.engine.chosen_chunk import chosen_chunk, take_chunk, take_layout
from snnlearn.engine.layout import lies_channels_last
from snnlearn.rules import FPTT
from snnlearn.training.batches import Batches, Inputs, Targets
from snnlearn.training.board import Board
from snnlearn.training.checkpoint import FOLDER, load_checkpoint, random_states, restore_random_states, save_checkpoint
from snnlearn.training.errors import Interrupted, TrainingError
from snnlearn.training.fidelity_watch import FidelityWatch
from snnlearn.training.interrupt import StopRequest
from snnlearn.training.metrics import MetricLog, Running
from snnlearn.training.progress import Progress, ProgressKind, make_progress
from snnlearn.training.watch import RateWatch

__all__ = ["Options", "Position", "Precision", "Trainer", "evaluate_batch", "products_in"]

Precision = Literal["float32", "bfloat16", "float16"]
"""What the operands of products are rounded to: `snnlearn.functional.precision`."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a trainer runs.

    `epochs` in all (a resumed run counts those before), `log_every` and `save_every` batches between two lines
    of metrics and two checkpoints (None: at the end of an epoch only), `nonfinite` what a batch with a NaN or
    infinite loss does, `progress` the display, `tensorboard` whether curves are written, `fidelity_every` epochs
    between two measurements of the rule against BPTT (None: never), `precision` of the operands of products.

    >>> Options(epochs=3).nonfinite
    'stop'
    """

    epochs: int
    log_every: int = 10
    save_every: int | None = None
    nonfinite: Literal["stop", "skip"] = "stop"
    progress: ProgressKind = "auto"
    tensorboard: bool = False
    fidelity_every: int | None = None
    precision: Precision = "float32"


@dataclass
class Position:
    """Where a run stands: in `epoch` (from 1) with `batch` batches of it done, after `step` batches in all.

    `best` is the best accuracy so far, or minus the smallest loss where the targets are numbers, and `best_epoch`
    its epoch; `seconds` is the training time.
    """

    epoch: int = 1
    batch: int = 0
    step: int = 0
    best: float = -math.inf
    best_epoch: int = 0
    seconds: float = 0.0


class Trainer:
    """Train a learner, in `folder`, which gets `metrics.jsonl`, `checkpoints/` and `tensorboard/`.

    `train` serves the training batches, `validation` those that choose the best epoch (None: the training
    figures do): the highest accuracy, or the smallest loss where the targets are numbers. `record` is plain data
    that every checkpoint keeps: the configuration, the names of classes.
    `scheduler` is one of torch's, stepped once an epoch.

    `fit` raises TrainingError, Interrupted or KeyboardInterrupt (a second Ctrl-C).

    >>> Position().epoch
    1
    """

    def __init__(
        self,
        learner: OnlineLearner,
        train: Batches,
        validation: Batches | None,
        folder: Path,
        options: Options,
        *,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        device: torch.device | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        self.learner = learner
        self.train = train
        self.validation = validation
        self.folder = folder
        self.options = options
        self.scheduler = scheduler
        self.device = device or torch.device("cpu")
        self.record = dict(record or {})
        self.position = Position()
        self.metrics = MetricLog(folder / "metrics.jsonl")
        self._running = Running()
        self._watch = RateWatch()
        self._fidelity = FidelityWatch(options.fidelity_every, train, self.device)
        self._stop = StopRequest()
        self._last: SequenceResult | None = None

    @property
    def last(self) -> Path:
        """Path of the checkpoint that a resume reads."""
        return self.folder / FOLDER / "last.pt"

    @property
    def best(self) -> Path:
        """Path of the checkpoint of the best epoch."""
        return self.folder / FOLDER / "best.pt"

    def fit(self) -> None:
        """Train until `options.epochs`; after `resume`, from where the checkpoint was saved."""
        total = self.options.epochs * len(self.train)
        first = self.position.step + 1 if self.position.step else None
        board_folder = self.folder / "tensorboard" if self.options.tensorboard else None
        with (
            StopRequest() as self._stop,
            Board(board_folder, first) as board,
            make_progress(self.options.progress, total, self.position.step) as progress,
        ):
            while self.position.epoch <= self.options.epochs:
                self._epoch(board, progress)

    def resume(self, path: Path) -> None:
        """Take weights, optimizer, schedule, random states and position from a checkpoint of `save`.

        A chunk length and a layout of the weights that were chosen by measurement are gone on with, so that the numbers
        are those of one run.
        Raises CheckpointError where there is none; lines of metrics from after the checkpoint are dropped.
        """
        content = load_checkpoint(path)
        self.learner.net.load_state_dict(content["model"])
        self.learner.optimizer.load_state_dict(content["optimizer"])
        if self.scheduler is not None and content["scheduler"] is not None:
            self.scheduler.load_state_dict(content["scheduler"])
        self.position = Position(**content["position"])
        self._running = Running(**content["running"])
        take_chunk(self.learner, content.get("chunk"))
        take_layout(self.learner, content.get("channels_last"))
        self.metrics.rewind(self.position.step, self.position.epoch)
        restore_random_states(content["random"])

    def save(self, *paths: Path) -> None:
        """Save everything that a resume needs, to every path."""
        content = {
            "model": self.learner.net.state_dict(),
            "optimizer": self.learner.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "position": dict(vars(self.position)),
            "running": self._running.state(),
            "chunk": chosen_chunk(self.learner),
            "channels_last": lies_channels_last(self.learner.net),
            "random": random_states(),
            "record": self.record,
        }
        for path in paths:
            save_checkpoint(path, content)

    def evaluate(self, batches: Batches) -> Running:
        """Return the figures of `batches` without learning from them."""
        running = Running()
        for x, y in batches.epoch(1):
            if y.numel() == 0:
                running.empty += 1
                continue
            try:
                running.add(evaluate_batch(self.learner, x, y, self.device, self.options.precision))
            except NonFiniteError as error:
                self._nonfinite_evaluation(running, error)
            if self._stop.requested:
                self._interrupt()
        return running

    def test(self, batches: Batches) -> Running:
        """Return the figures of `batches` with the weights of the best epoch; Ctrl-C works as in `fit`."""
        content = load_checkpoint(self.best)
        self.learner.net.load_state_dict(content["model"])
        with StopRequest() as self._stop:
            return self.evaluate(batches)

    def _epoch(self, board: Board, progress: Progress) -> None:
        """Finish the epoch that the position is in: the rest of its batches, validation, checkpoints."""
        began = time.monotonic()
        place, optimizer = self.position, self.learner.optimizer
        if isinstance(optimizer, FPTT) and place.batch == 0:
            optimizer.begin_epoch()
        before = place.seconds
        for x, y in self._rest(place):
            self._batch(x, y)
            place.batch += 1
            place.step += 1
            place.seconds = before + time.monotonic() - began
            self._after_batch(board, progress)
        lr = self._learning_rate()
        validation = self.evaluate(self.validation) if self.validation is not None else None
        place.seconds = before + time.monotonic() - began
        self._close_epoch(validation, lr, board, progress)

    def _rest(self, place: Position) -> Iterable[tuple[Inputs, Targets]]:
        return self.train.epoch(place.epoch, start=place.batch) if place.batch < len(self.train) else ()

    def _batch(self, x: Inputs, y: Targets) -> None:
        self._last = None
        if y.numel() == 0:
            self._running.empty += 1
            return
        try:
            per_step = isinstance(y, StepTargets)
            with products_in(self.options.precision, self.device):
                self._last = self.learner.learn(x.to(self.device), y.to(self.device), per_step_target=per_step)
        except NonFiniteError as error:
            self._nonfinite(error)
        else:
            self._running.add(self._last)

    def _nonfinite(self, error: NonFiniteError) -> None:
        place = self.position
        where = f"epoch {place.epoch}, batch {place.batch + 1}"
        if self.options.nonfinite == "skip":
            self._running.nonfinite += 1
            log.warning("%s skipped: %s", where, error)
            return
        self.save(self.last)
        raise TrainingError(
            f"{where}: {error}. No weight was changed by what is not finite, and {self.last} holds the state "
            "before it; lower the learning rate or look at that batch, or leave such batches out with "
            "trainer.nonfinite=skip"
        ) from error

    def _nonfinite_evaluation(self, running: Running, error: NonFiniteError) -> None:
        place = f"evaluation batch {running.batches + running.nonfinite + 1}"
        if self.options.nonfinite == "stop":
            raise TrainingError(f"{place}: {error}; or leave such batches out with trainer.nonfinite=skip") from error
        running.nonfinite += 1
        log.warning("%s skipped: %s", place, error)

    def _after_batch(self, board: Board, progress: Progress) -> None:
        place, result = self.position, self._last
        text = f"epoch {place.epoch}/{self.options.epochs}"
        if result is not None and (place.step % self.options.log_every == 0 or place.step == 1):
            figures = {"loss": result.loss, "accuracy": result.accuracy, "gradient_norm": result.gradient_norm}
            figures["learning_rate"] = self._learning_rate()
            self.metrics.write(
                {"kind": "batch", "epoch": place.epoch, "batch": place.batch, "step": place.step, **figures}
            )
            board.scalars({f"batch/{name}": value for name, value in figures.items()}, place.step)
        if result is not None:
            text += f" loss {result.loss:.3f}"
        progress.batch(place.step, text)
        if self._stop.requested:
            self._interrupt()
        if self.options.save_every is not None and place.batch % self.options.save_every == 0:
            self.save(self.last)

    def _close_epoch(self, validation: Running | None, lr: float, board: Board, progress: Progress) -> None:
        place, train = self.position, self._running.figures()
        measured = None if validation is None else validation.figures()
        score = _score(train if measured is None else measured)
        line = {"kind": "epoch", "epoch": place.epoch, "step": place.step, "learning_rate": lr}
        self.metrics.write({**line, "train": train, "validation": measured, "seconds": round(place.seconds, 3)})
        board.scalars(_curves(train, measured, lr), place.step)
        self._watch.look({k: v for k, v in train["firing_rates"].items() if v is not None}, place.epoch)
        self._measure_fidelity(board)
        self._step_scheduler()
        improved = score is not None and score > place.best
        if improved or place.best_epoch == 0:
            place.best, place.best_epoch = (-math.inf if score is None else score), place.epoch
        finished, is_best = place.epoch, place.best_epoch == place.epoch
        place.epoch, place.batch, self._running = place.epoch + 1, 0, Running()
        self.save(*([self.best] if is_best else []), self.last)
        progress.line(place.step, _epoch_text(finished, self.options.epochs, train, measured))

    def _measure_fidelity(self, board: Board) -> None:
        place, found = self.position, self._fidelity.look(self.learner, self.position.epoch)
        if found is not None:
            self.metrics.write({"kind": "fidelity", "epoch": place.epoch, "step": place.step, **found})
            board.scalars({f"fidelity/{name}": cosine for name, cosine in found["cosine"].items()}, place.step)

    def _step_scheduler(self) -> None:
        if self.scheduler is None:
            return
        with warnings.catch_warnings():  # after a resume the optimizer's steps may all lie in the earlier process
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self.scheduler.step()

    def _interrupt(self) -> None:
        place = self.position
        if place.epoch > self.options.epochs:  # the test is running, on the weights of the best epoch
            raise Interrupted(self.last, "the last epoch")
        self.save(self.last)
        raise Interrupted(self.last, f"epoch {place.epoch}, batch {place.batch} of {len(self.train)}")

    def _learning_rate(self) -> float:
        return float(self.learner.optimizer.param_groups[0]["lr"])


def products_in(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which the operands of products have that precision: torch's autocast, or nothing.

    >>> with products_in("bfloat16", torch.device("cpu")):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.bfloat16
    """
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype={"bfloat16": torch.bfloat16, "float16": torch.float16}[precision])


def evaluate_batch(
    learner: OnlineLearner, x: Inputs, y: Targets, device: torch.device, precision: Precision = "float32"
) -> SequenceResult:
    """Return the figures of one batch, x [T, B, ...] and its labels or `StepTargets`, without learning from it."""
    with products_in(precision, device):
        return learner.evaluate(x.to(device), y.to(device), per_step_target=isinstance(y, StepTargets))


def _score(figures: Mapping[str, Any]) -> float | None:
    """Return what the best epoch has most of: accuracy, or minus the loss where nothing is right or wrong."""
    if figures["accuracy"] is not None:
        return float(figures["accuracy"])
    loss = figures["loss"]
    return None if loss is None else -float(loss)


def _curves(train: Mapping[str, Any], validation: Mapping[str, Any] | None, lr: float) -> dict[str, float | None]:
    curves = {"learning_rate": lr, "gradient_norm": train["gradient_norm"]}
    for split, figures in (("train", train), ("validation", validation)):
        for name in ("loss", "accuracy", "accuracy_last") if figures is not None else ():
            curves[f"{name}/{split}"] = figures[name]  # type: ignore[index]
    curves |= {f"firing_rate/{name}": rate for name, rate in train["firing_rates"].items()}
    return curves | {f"trace_norm/{name}": norm for name, norm in train["trace_norms"].items()}


def _epoch_text(epoch: int, epochs: int, train: Mapping[str, Any], validation: Mapping[str, Any] | None) -> str:
    parts = [f"epoch {epoch}/{epochs}"]
    for name, figures in (("train", train), ("validation", validation)):
        if figures is not None and figures["loss"] is not None:
            accuracy = "" if figures["accuracy"] is None else f" accuracy {100 * figures['accuracy']:.2f} %"
            parts.append(f"{name} loss {figures['loss']:.3f}{accuracy}")
    if train["nonfinite_batches"] or train["empty_batches"]:
        parts.append(f"skipped {train['nonfinite_batches']} not finite, {train['empty_batches']} empty")
    return " | ".join(parts)
