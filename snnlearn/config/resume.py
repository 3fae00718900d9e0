"""Find the run that a resume means, and tell what differs between its configuration and the present one."""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snnlearn.config.schema_rules import PER_SYNAPSE
from snnlearn.training.checkpoint import FOLDER, find_checkpoint, load_checkpoint
from snnlearn.training.errors import CheckpointError

__all__ = [
    "Difference",
    "check_same_run",
    "differences",
    "find_latest",
    "only_if_relevant",
    "read_summary",
    "run_folder",
    "stored_config",
]

log = logging.getLogger(__name__)

# Without these the stored tensors, data order or split would not mean what they did, or the figures of one
# run would come from two different networks, rules or encodings.
MUST_MATCH = (
    "seed",
    "model",
    "neuron",
    "surrogate",
    "rule",
    "loss",
    "dataset",
    "optimizer",
    "scheduler",
    "trainer.batch_size",
    "trainer.max_batches",
)
# These do not touch what is learned, rounding aside.
MAY_DIFFER = (
    "device",
    "threads",
    "logger",
    "dataset.root",
    "dataset.cache_dir",
    "dataset.sparse",
    "trainer.chunk",
    "trainer.epochs",
    "trainer.workers",
    "trainer.save_every",
    "trainer.nonfinite",
    "trainer.resume",
)


# Knobs that came after the first run folders: the value that means what those runs did, a knob of the choices that
# have it, and the values of that knob that these choices have, None for any.
LATER: dict[str, tuple[Any, str, tuple[str, ...] | None]] = {
    "trainer.chunk": (1, "epochs", None),
    "trainer.precision": ("float32", "epochs", None),
    "dataset.sparse": (False, "binary", None),
    "rule.truncate_trace": (False, "name", PER_SYNAPSE),
}


@dataclass(frozen=True)
class Difference:
    """A knob whose value in the checkpoint is not the present one."""

    path: str
    stored: Any
    present: Any

    def __str__(self) -> str:
        return f"{self.path}: {self.stored!r} in the checkpoint, {self.present!r} now"


def differences(stored: Mapping[str, Any], present: Mapping[str, Any], prefix: str = "") -> Iterator[Difference]:
    """Yield every knob that differs between two plain configurations.

    >>> [str(item) for item in differences({"neuron": {"tau": 2.0}}, {"neuron": {"tau": 4.0}})]
    ['neuron.tau: 2.0 in the checkpoint, 4.0 now']
    """
    for key in dict.fromkeys([*stored, *present]):
        path, before, now = f"{prefix}{key}", stored.get(key, "(absent)"), present.get(key, "(absent)")
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            yield from differences(before, now, f"{path}.")
        elif before != now:
            yield Difference(path, before, now)


def only_if_relevant(item: Difference, config: Mapping[str, Any]) -> bool:
    """Say whether a difference from the plain `config` changes the figures of a finished run.

    >>> only_if_relevant(Difference("trainer.chunk", 1, 4), {"rule": {"name": "ottt"}})
    False
    """
    return item.path == "trainer.epochs" or not _listed(item.path, _may_differ(config))


def _may_differ(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what does not touch what `config` learns: not the chunk, where it says what a convolution drops."""
    truncates = bool(config.get("rule", {}).get("truncate_trace"))
    if truncates and config.get("model", {}).get("name") == "convolutional":
        return tuple(path for path in MAY_DIFFER if path != "trainer.chunk")
    return MAY_DIFFER


def _listed(path: str, entries: tuple[str, ...]) -> bool:
    return any(path == entry or path.startswith(f"{entry}.") for entry in entries)


def check_same_run(stored: Mapping[str, Any], present: Mapping[str, Any]) -> list[Difference]:
    """Return the differences that only deserve a warning.

    Raises CheckpointError, listing both sides, where network, rule, loss, optimizer or data would not be the same.

    >>> [item.path for item in check_same_run({"trainer": {"update": 1}}, {"trainer": {"update": 2}})]
    ['trainer.update']
    """
    found = [item for item in differences(stored, present) if not _listed(item.path, _may_differ(present))]
    fatal = [item for item in found if _listed(item.path, (*MUST_MATCH, "trainer.chunk"))]
    if fatal:
        lines = "\n  ".join(map(str, fatal))
        raise CheckpointError(
            f"the checkpoint belongs to another run:\n  {lines}\n"
            "give these knobs the checkpoint's values, or start a fresh run without trainer.resume"
        )
    if present.get("scheduler", {}).get("name") == "cosine":
        epochs = [item for item in differences(stored, present) if item.path == "trainer.epochs"]
        found.extend(epochs)
    return found


def stored_config(checkpoint: Path) -> dict[str, Any]:
    """Return the plain configuration in a checkpoint. Raises CheckpointError where there is none."""
    record = load_checkpoint(checkpoint).get("record", {})
    if not isinstance(record.get("config"), dict):
        raise CheckpointError(f"{checkpoint} holds no configuration: scripts/train.py did not write it")
    config: dict[str, Any] = record["config"]
    for path, (value, beside, those) in LATER.items():
        group, _, leaf = path.rpartition(".")
        knobs = config.get(group)
        if isinstance(knobs, dict) and beside in knobs and (those is None or knobs[beside] in those):
            knobs.setdefault(leaf, value)
    return config


def run_folder(checkpoint: Path) -> Path:
    """Return the folder of the run that wrote a checkpoint.

    >>> run_folder(Path("/runs/a/checkpoints/last.pt")).as_posix()
    '/runs/a'
    """
    folder = checkpoint.parent
    return (folder.parent if folder.name == FOLDER else folder).resolve()


def find_latest(outputs: Path, present: Mapping[str, Any]) -> Path | None:
    """Return the last checkpoint of the newest unfinished run under `outputs` that fits; None where there is none."""
    found = sorted(outputs.glob(f"*/*/{FOLDER}/last.pt"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found:
        if is_finished(run_folder(path)):
            continue
        try:
            if not check_same_run(stored_config(path), present):
                return find_checkpoint(path)
        except CheckpointError as error:
            log.debug("not resumed: %s", error)
    return None


def is_finished(folder: Path) -> bool:
    """Say whether the run in `folder` came to its end."""
    return read_summary(folder) is not None


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Return what `summary.json` in `folder` says, or None where there is none."""
    path = folder / "summary.json"
    if not path.is_file():
        return None
    summary: dict[str, Any] = json.loads(path.read_text())
    return summary
