"""A sweep: a folder and a row of `summary.csv` for every job; a failed one is named and does not stop the rest."""

import csv
import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from snnlearn.config.problem import ConfigError, Problem
from snnlearn.data import DataError
from snnlearn.kernels import dispatch
from snnlearn.training import CheckpointError, Interrupted, TrainingError
from snnlearn.training.checkpoint import write_whole

__all__ = ["COLUMNS", "USER_ERRORS", "Job", "SweepTable", "reason_of"]

log = logging.getLogger(__name__)

COLUMNS = (
    "job",
    "status",
    "seed",
    "dataset",
    "model",
    "rule",
    "test_accuracy",
    "chance",
    "validation_accuracy",
    "validation_loss",
    "test_loss",
    "best_epoch",
    "epochs",
    "epochs_to_threshold",
    "seconds",
    "kept_bytes",
    "fidelity",
    "reason",
    "overrides",
)

TOLD = ("seed", "dataset", "model", "rule")
"""Columns that a job's own words may fill where the job could not be composed."""

# What a user can mend; anything else is a bug, and its traceback is shown.
USER_ERRORS = (ConfigError, CheckpointError, DataError, dispatch.KernelUnavailableError, TrainingError, Interrupted)


def reason_of(error: BaseException) -> str:
    """Return why a job failed, on one line.

    >>> reason_of(ValueError("one\\ntwo"))
    'ValueError: one two'
    """
    if isinstance(error, ConfigError):
        return error.reason
    text = " ".join(str(error).split())
    return text if isinstance(error, USER_ERRORS) else f"{type(error).__name__}: {text}"


class SweepTable:
    """Keep `summary.csv` in the folder of a sweep; rows of earlier calls stay until their job runs again.

    >>> import tempfile
    >>> table = SweepTable(Path(tempfile.mkdtemp()))
    >>> table.put("seed=1", {"status": "finished", "test_accuracy": 0.9})
    >>> table.rows()["seed=1"]["test_accuracy"], table.failed
    ('0.9', [])
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "summary.csv"
        self.failed: list[str] = []

    def rows(self) -> dict[str, dict[str, str]]:
        """Return every row by the name of its job."""
        if not self.path.is_file():
            return {}
        with self.path.open(newline="") as file:
            return {row["job"]: row for row in csv.DictReader(file)}

    def put(self, job: str, values: Mapping[str, Any]) -> None:
        """Write or replace the row of a job."""
        if values["status"] == "failed":
            self.failed.append(job)
        rows = self.rows()
        rows[job] = {name: "" if values.get(name) is None else str(values[name]) for name in COLUMNS} | {"job": job}
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, text.getvalue().encode())

    def put_lost(self, lost: Sequence[tuple[Sequence[str], Problem]]) -> None:
        """Write a row for every job that could not even be composed."""
        for overrides, problem in lost:
            words = " ".join(overrides)
            log.error("job failed: %s: %s", words, problem)
            told = dict(word.split("=", 1) for word in overrides if word.partition("=")[0] in TOLD and "=" in word)
            self.put(words, told | {"status": "failed", "reason": str(problem), "overrides": words})


class Job:
    """One job of a sweep, as a context manager: however it ends, its row is written.

    A failure is logged (a bug with its traceback) and the sweep goes on; an interruption ends the sweep.
    """

    def __init__(self, table: SweepTable, name: str, overrides: Sequence[str]) -> None:
        self.table, self.name = table, name
        self.row: dict[str, Any] = {"overrides": " ".join(overrides)}

    def __enter__(self) -> "Job":
        return self

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Take over the figures of a finished run."""
        self.row |= summary

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self.table.put(self.name, self.row | {"status": "finished"})
            return False
        interrupted = isinstance(error, Interrupted) or not isinstance(error, Exception)
        status = "interrupted" if interrupted else "failed"
        self.table.put(self.name, self.row | {"status": status, "reason": reason_of(error)})
        if not interrupted:
            bug = None if isinstance(error, USER_ERRORS) else error
            log.error("job %s failed: %s", self.name, error, exc_info=bug)
        return not interrupted
