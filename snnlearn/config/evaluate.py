"""Test a checkpoint: network and data are rebuilt from the plain configuration that it holds."""

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from snnlearn.config.build import build_device, build_learner, build_network, build_test
from snnlearn.config.problem import ConfigError, Problem, nearest
from snnlearn.config.resume import stored_config
from snnlearn.config.run import figures_text
from snnlearn.config.sweep import USER_ERRORS
from snnlearn.config.validate import load
from snnlearn.training import Running, find_checkpoint, load_checkpoint
from snnlearn.training.checkpoint import FOLDER, write_whole
from snnlearn.training.trainer import evaluate_batch

__all__ = ["change", "evaluate", "evaluate_checkpoint", "parse_words"]

CHANGEABLE = (
    "device",
    "threads",
    "dataset.root",
    "dataset.cache_dir",
    "dataset.limit",
    "trainer.batch_size",
    "trainer.chunk",
    "trainer.workers",
)

_HELP = f"""\
Test a checkpoint of scripts/train.py on the test recordings.

  python scripts/evaluate.py checkpoint=PATH     a checkpoint, or the folder of a run (then its best epoch)

Everything else comes from the checkpoint. What may be changed: {", ".join(CHANGEABLE)}.
The figures are printed, and written to evaluation.json beside the checkpoint.
"""


def evaluate(words: Sequence[str] | None = None) -> None:
    """Run the command line of `scripts/evaluate.py`. Ends the process: 0 done, 2 wrong usage or data."""
    words = sys.argv[1:] if words is None else words
    if "--help" in words or "-h" in words:
        print(_HELP)
        sys.exit(0)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        checkpoint, changes = parse_words(words)
        figures = evaluate_checkpoint(checkpoint, changes)
    except USER_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    path = checkpoint.parent / "evaluation.json"
    write_whole(path, (json.dumps({"checkpoint": str(checkpoint), **figures}, indent=2) + "\n").encode())
    last = figures["accuracy_last"]
    alone = "" if last is None else f"from the last step alone {100 * last:.2f} % | "
    print(f"{figures_text(figures)} | {alone}loss {figures['loss']:.4f} | {path}")


def parse_words(words: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """Return the checkpoint and the changed knobs that words such as `checkpoint=PATH` mean.

    Raises ConfigError with every wrong word at once, CheckpointError where there is no checkpoint.
    """
    problems, changes = [], {}
    known = ("checkpoint", *CHANGEABLE)
    for word in words:
        key, sign, text = word.partition("=")
        if not sign or key not in known:
            legal = f"one of: {', '.join(f'{name}=...' for name in known)}"
            problems.append(Problem(key, text or "no value", legal, nearest(key, known)))
        else:
            changes[key] = text if key == "checkpoint" else OmegaConf.from_dotlist([f"value={text}"]).value
    if "checkpoint" not in changes and not any(problem.path == "checkpoint" for problem in problems):
        problems.append(Problem("checkpoint", "nothing", "checkpoint=PATH of a checkpoint or of a run's folder"))
    if problems:
        raise ConfigError(problems)
    path = Path(changes.pop("checkpoint")).expanduser()
    best = path / FOLDER / "best.pt"
    return (best if best.is_file() else find_checkpoint(path)).resolve(), changes


def evaluate_checkpoint(checkpoint: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a checkpoint on the test recordings, with the knobs `changes` (dotted paths) changed.

    Raises CheckpointError, ConfigError or DataError.
    """
    config = load(change(stored_config(checkpoint), changes))
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    test = build_test(config)
    device = build_device(config)
    learner = build_learner(config, build_network(config).to(device))
    learner.net.load_state_dict(load_checkpoint(checkpoint)["model"])
    running = Running()
    for x, y in test.epoch(1):
        running.add(evaluate_batch(learner, x, y, device, config.trainer.precision))
    return running.figures()


def change(stored: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Set the knobs `changes` (dotted paths) in the plain configuration `stored`, and return it.

    Raises ConfigError for a knob that the stored choice lacks.

    >>> change({"threads": None}, {"threads": 1})
    {'threads': 1}
    """
    for path, value in changes.items():
        group, _, leaf = path.rpartition(".")
        place = stored[group] if group else stored
        if leaf not in place:
            raise ConfigError([Problem(path, repr(value), f"a knob of {group}={place.get('name')}, which lacks it")])
        place[leaf] = value
    return stored
