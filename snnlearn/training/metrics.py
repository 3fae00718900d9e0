"""Figures of an epoch, weighted by samples, and the file `metrics.jsonl` that keeps them."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from snnlearn.engine import SequenceResult
from snnlearn.training.checkpoint import write_whole
from snnlearn.training.errors import TrainingError

__all__ = ["MetricLog", "Running"]

NORM_BATCHES = 8
"""How many batches of an epoch the norms of traces are read in: each is a pass over the whole trace."""


@dataclass
class Running:
    """Sum the results of batches; every mean is over samples, never over batches.

    Rates and trace norms are per block, these of the first NORM_BATCHES; the gradient norm is a mean over batches.
    Accuracy is a share of `decisions`: of sequences, or of labels of steps; none where the targets are numbers.

    >>> running = Running()
    >>> running.samples, running.figures()["accuracy"]
    (0, None)
    """

    samples: int = 0
    batches: int = 0
    loss: float = 0.0
    correct: int = 0
    correct_last: int = 0
    decisions: int = 0
    decisions_last: int = 0
    gradient_norm: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    traces: dict[str, float] = field(default_factory=dict)
    with_norms: int = 0
    empty: int = 0
    nonfinite: int = 0

    def add(self, result: SequenceResult) -> None:
        """Add the result of one batch."""
        size = result.batch_size
        self.samples += size
        self.batches += 1
        self.loss += result.loss * size
        if result.accuracy is not None:
            self.correct += round(result.accuracy * result.decisions)
            self.decisions += result.decisions
        if result.accuracy_last is not None:
            self.correct_last += round(result.accuracy_last * size)
            self.decisions_last += size
        self.gradient_norm += result.gradient_norm
        counted: list[tuple[dict[str, float], Mapping[str, float]]] = [(self.rates, result.firing_rates)]
        if self.batches <= NORM_BATCHES:
            self.with_norms += size
            counted.append((self.traces, result.trace_norms))
        for sums, values in counted:
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + float(value) * size

    def figures(self) -> dict[str, Any]:
        """Return the means, ready for JSON; None where nothing was counted."""
        count = self.samples

        def mean(total: int | float) -> float | None:
            return total / count if count else None

        return {
            "samples": count,
            "loss": mean(self.loss),
            "accuracy": self.correct / self.decisions if self.decisions else None,
            "accuracy_last": self.correct_last / self.decisions_last if self.decisions_last else None,
            "correct": self.correct,
            "decisions": self.decisions,
            "gradient_norm": self.gradient_norm / self.batches if self.batches else None,
            "firing_rates": {name: mean(total) for name, total in self.rates.items()},
            "trace_norms": {name: total / self.with_norms for name, total in self.traces.items()},
            "empty_batches": self.empty,
            "nonfinite_batches": self.nonfinite,
        }

    def state(self) -> dict[str, Any]:
        """Return the sums as plain data, for a checkpoint in the middle of an epoch.

        >>> Running(**Running(samples=3).state()).samples
        3
        """
        return asdict(self)


class MetricLog:
    """Append one JSON object a line to `path`; numbers that JSON cannot hold become null.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "metrics.jsonl"
    >>> MetricLog(path).write({"kind": "batch", "step": 1, "loss": float("nan")})
    >>> path.read_text()
    '{"kind": "batch", "step": 1, "loss": null}\\n'
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, line: Mapping[str, Any]) -> None:
        """Append `line`; raises TrainingError where the disk refuses."""
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(_finite(line)) + "\n")
        except OSError as error:
            raise TrainingError(f"could not write {self.path} ({error.strerror or error}); make room") from error

    def read(self) -> list[dict[str, Any]]:
        """Return every whole line; a last one that was cut off by a crash is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().split("\n")
        return [json.loads(line) for line in lines[:-1] if line]

    def rewind(self, step: int, epoch: int) -> None:
        """Drop what was written after a checkpoint at `step` inside `epoch` (both counted from 1)."""
        kept = [line for line in self.read() if _before(line, step, epoch)]
        write_whole(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())


def _before(line: Mapping[str, Any], step: int, epoch: int) -> bool:
    return bool(line["step"] <= step and (line["kind"] == "batch" or line["epoch"] < epoch))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
