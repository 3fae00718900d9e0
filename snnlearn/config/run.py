"""One run, from a checked configuration to its summary line."""

import json
import logging
import math
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from snnlearn.config.build import build_test, build_trainer
from snnlearn.config.figures import learning_figures
from snnlearn.config.problem import ConfigError, Problem
from snnlearn.config.resume import (
    Difference,
    check_same_run,
    differences,
    only_if_relevant,
    read_summary,
    run_folder,
    stored_config,
)
from snnlearn.config.schema import Config
from snnlearn.config.validate import plain
from snnlearn.data import EventDataset, SequenceDataset
from snnlearn.training import Trainer, find_checkpoint
from snnlearn.training.checkpoint import FOLDER, write_whole
from snnlearn.training.metrics import Running

__all__ = ["figures_text", "finished_before", "finished_resumed", "run", "summary_line"]

log = logging.getLogger(__name__)


def run(config: Config, folder: Path, in_sweep: bool = False) -> dict[str, Any]:
    """Train and test as `config` says, with everything written to `folder`; return the summary.

    A job of a sweep goes on from the checkpoint in its own folder where there is one. Raises ConfigError,
    CheckpointError, DataError, TrainingError or Interrupted.
    """
    if not in_sweep and (done := finished_resumed(config, folder)) is not None:
        return done
    checkpoint, notes = _starting_point(config, folder, in_sweep)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(plain(config))).encode())
    for difference in notes:
        log.warning("resumed with another value: %s", difference)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    trainer = build_trainer(config, folder)
    test = build_test(config)
    _announce(config, trainer, test.dataset)
    if checkpoint is not None:
        _bring_along(run_folder(checkpoint), folder)
        trainer.resume(checkpoint)
        log.info("resumed %s at epoch %d, batch %d", checkpoint, trainer.position.epoch, trainer.position.batch)
    trainer.fit()
    began = time.monotonic()
    figures = trainer.test(test)
    summary = _summary(config, folder, trainer, figures, time.monotonic() - began)
    write_whole(folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    return summary


def finished_before(config: Config, folder: Path) -> dict[str, Any] | None:
    """Return the summary that `folder` already holds for this very configuration, or None for an unfinished one.

    Raises ConfigError where the folder holds a finished run of another configuration.
    """
    summary = read_summary(folder)
    if summary is None:
        return None
    stored = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    present = plain(config)
    other = [item for item in differences(dict(stored), present) if only_if_relevant(item, present)]  # type: ignore[arg-type]
    if other:
        text = ", ".join(f"{item.path} {item.stored!r} there and {item.present!r} here" for item in other)
        raise ConfigError([Problem("hydra.sweep.dir", str(folder), "a folder without another finished job", text)])
    return summary


def finished_resumed(config: Config, folder: Path) -> dict[str, Any] | None:
    """Return the summary of the finished run that `config` resumes; None where there is something left to train.

    `folder` is where the run would write. Raises CheckpointError where `config` is that of another run, and
    ConfigError where `folder` holds a run that is not resumed.
    """
    checkpoint, _ = _starting_point(config, folder, in_sweep=False)
    summary = None if checkpoint is None else read_summary(run_folder(checkpoint))
    return summary if summary is not None and config.trainer.epochs <= summary["epochs"] else None


def _starting_point(config: Config, folder: Path, in_sweep: bool) -> tuple[Path | None, list[Difference]]:
    """Return the checkpoint to go on from, if any, and the differences to warn of; look before anything is built."""
    own, resume = folder / FOLDER / "last.pt", config.trainer.resume
    checkpoint: Path | None
    if (resume == "auto" or in_sweep) and own.is_file():
        checkpoint = own
    else:
        checkpoint = find_checkpoint(resume) if isinstance(resume, Path) else None
        if own.is_file() and (checkpoint is None or run_folder(checkpoint) != folder.resolve()):
            hint = f"go on with it by trainer.resume={folder}"
            raise ConfigError([Problem("hydra.run.dir", str(folder), "a folder without another run", hint)])
    return checkpoint, [] if checkpoint is None else check_same_run(stored_config(checkpoint), plain(config))


def _bring_along(source: Path, folder: Path) -> None:
    """Copy what a resumed run needs from its old folder to a new one."""
    if source == folder.resolve():
        return
    (folder / FOLDER).mkdir(exist_ok=True)
    for name in (f"{FOLDER}/best.pt", "metrics.jsonl"):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def _announce(config: Config, trainer: Trainer, test: Any) -> None:
    assert isinstance(test, EventDataset | SequenceDataset)
    log.debug("%s", trainer.learner.net)
    log.info("how each parameter learns:\n%s", trainer.learner.report)
    weights = sum(parameter.numel() for parameter in trainer.learner.net.parameters())
    validation = 0 if trainer.validation is None else trainer.validation.samples
    log.info(
        "%s on %s: %d training, %d validation, %d test recordings; %d parameters on %s; seed %d",
        config.rule.name,
        _title(config, test),
        trainer.train.samples,
        validation,
        min(len(test), config.dataset.limit or len(test)),
        weights,
        trainer.device,
        config.seed,
    )


def _title(config: Config, dataset: Any) -> str:
    """Return what the figures are of, which is not always what the choice is called: smnist-t10k, say."""
    return dataset.title if isinstance(dataset, SequenceDataset) else config.dataset.name


def _summary(config: Config, folder: Path, trainer: Trainer, test: Running, seconds: float) -> dict[str, Any]:
    figures, place = test.figures(), trainer.position
    validated = trainer.validation is not None and math.isfinite(place.best)
    judged = figures["accuracy"] is not None
    return {
        "test_accuracy": figures["accuracy"],
        "test_accuracy_last": figures["accuracy_last"],
        "test_loss": figures["loss"],
        "correct": figures["correct"],
        "decisions": figures["decisions"],
        "samples": figures["samples"],
        "validation_accuracy": place.best if validated and judged else None,
        "validation_loss": -place.best if validated and not judged else None,
        "best_epoch": place.best_epoch,
        "epochs": config.trainer.epochs,
        **learning_figures(config, trainer),
        "seconds": round(place.seconds + seconds, 3),
        "rule": config.rule.name,
        "dataset": _title(config, trainer.train.dataset),
        "model": config.model.name,
        "seed": config.seed,
        "folder": str(folder),
    }


def summary_line(summary: dict[str, Any]) -> str:
    """Return the last line of a run.

    >>> summary_line({"test_accuracy": 0.5, "correct": 1, "samples": 2, "rule": "ottt", "dataset": "digits",
    ...               "epochs": 3, "seconds": 4.2, "folder": "/runs/a"})
    'test accuracy 50.00 % (1 of 2) | ottt on digits | 3 epochs | 4 s | /runs/a'
    """
    names = {"test_accuracy": "accuracy", "test_loss": "loss"}
    figures = {names.get(name, name): value for name, value in summary.items()}
    epochs = f"{summary['epochs']} epoch{'' if summary['epochs'] == 1 else 's'}"
    folder = Path(summary["folder"])
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    what = f"{summary['rule']} on {summary['dataset']}"
    return f"{figures_text(figures)} | {what} | {epochs} | {summary['seconds']:.0f} s | {folder}"


def figures_text(figures: dict[str, Any]) -> str:
    """Return the figures of a test in words: accuracy, or loss where the targets are numbers.

    >>> figures_text({"accuracy": 0.75, "correct": 3, "decisions": 4, "samples": 2, "loss": 1.0})
    'test accuracy 75.00 % (3 of 4 steps)'
    >>> figures_text({"accuracy": None, "correct": 0, "decisions": 0, "samples": 2, "loss": 0.25})
    'test loss 0.2500 (mean of 2)'
    """
    accuracy, samples, loss = figures["accuracy"], figures["samples"], figures.get("loss")
    if accuracy is not None:
        asked = figures.get("decisions", samples)
        steps = "" if asked == samples else " steps"
        return f"test accuracy {100 * accuracy:.2f} % ({figures['correct']} of {asked}{steps})"
    return "test loss unknown" if loss is None else f"test loss {loss:.4f} (mean of {samples})"
