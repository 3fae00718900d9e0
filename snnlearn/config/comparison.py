"""The table of a sweep over rules: rules by tasks, mean and spread over seeds, from the rows of `summary.csv`."""

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from snnlearn.training.checkpoint import write_whole

__all__ = ["Cell", "compare", "comparison_csv", "comparison_text", "write_comparison"]

Row = Mapping[str, str]

OWN_AXES = ("rule", "dataset", "seed")
"""Swept knobs that have a place of their own in the table; any other is written behind the rule's name."""


@dataclass(frozen=True)
class Cell:
    """All jobs of one rule on one task: `finished` ones give the figures, the number of all is `jobs`.

    >>> cell = Cell("ottt", "copy", [{"status": "finished", "test_accuracy": "0.5"}, {"status": "failed"}])
    >>> cell.jobs, len(cell.finished), cell.values("test_accuracy")
    (2, 1, [0.5])
    """

    rule: str
    task: str
    rows: Sequence[Row]

    @property
    def jobs(self) -> int:
        """Number of jobs."""
        return len(self.rows)

    @property
    def finished(self) -> list[Row]:
        """Rows of the jobs that came to their end."""
        return [row for row in self.rows if row.get("status") == "finished"]

    def values(self, name: str) -> list[float]:
        """Return a figure of every finished job that has it."""
        return [float(row[name]) for row in self.finished if row.get(name)]


def compare(rows: Iterable[Row]) -> list[Cell]:
    """Return a cell for every rule and task of a sweep, in the order of their first rows.

    `rows` are those of `summary.csv`, all values text. Other swept knobs than rule, dataset and seed make rules of
    their own: `ottt neuron.tau=4`.

    >>> row = {"status": "finished", "rule": "ottt", "dataset": "copy", "overrides": "rule=ottt seed=1"}
    >>> [(cell.rule, cell.task, cell.jobs) for cell in compare([row, {**row, "overrides": "rule=ottt seed=2"}])]
    [('ottt', 'copy', 2)]
    """
    every = [row for row in rows if row.get("rule") and row.get("dataset")]
    words = [_other_words(row) for row in every]
    common = set.intersection(*map(set, words)) if words else set()
    found: dict[tuple[str, str], list[Row]] = {}
    for row, others in zip(every, words, strict=True):
        name = " ".join([row["rule"], *(word for word in others if word not in common)])
        found.setdefault((name, row["dataset"]), []).append(row)
    return [Cell(rule, task, cell) for (rule, task), cell in found.items()]


def _other_words(row: Row) -> list[str]:
    words = (row.get("overrides") or "").split()
    return [word for word in words if word.partition("=")[0].lstrip("+") not in OWN_AXES]


FIGURES = ("test_accuracy", "test_loss", "epochs_to_threshold", "seconds", "kept_bytes", "fidelity")
"""Columns of `summary.csv` that are compared."""


def comparison_csv(cells: Sequence[Cell]) -> str:
    """Return the cells as a CSV table: of every figure the mean and the standard deviation over the finished jobs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    spread = [f"{name}_{part}" for name in FIGURES for part in ("mean", "std")]
    writer.writerow(["rule", "dataset", "chance", "jobs", "finished", "reached_threshold", *spread])
    for cell in cells:
        counts = [cell.jobs, len(cell.finished), len(cell.values("epochs_to_threshold"))]
        figures: list[float | str] = []
        for name in FIGURES:
            values = cell.values(name)
            figures += [statistics.mean(values) if values else "", statistics.stdev(values) if len(values) > 1 else ""]
        writer.writerow([cell.rule, cell.task, next(iter(cell.values("chance")), ""), *counts, *figures])
    return text.getvalue()


def comparison_text(cells: Sequence[Cell]) -> str:
    """Return the cells as Markdown: a table of rules by tasks for every figure.

    >>> row = {"status": "finished", "test_accuracy": "0.75", "chance": "0.5", "seconds": "4"}
    >>> print(comparison_text([Cell("ottt", "copy", [row])]).splitlines()[2])
    | test accuracy, % | copy (chance 50.0) |
    """
    jobs, done = sum(cell.jobs for cell in cells), sum(len(cell.finished) for cell in cells)
    missing = "" if done == jobs else f" {done} of {jobs} jobs finished; a cell with fewer says so."
    parts = [f"Mean ± standard deviation over seeds.{missing}"]
    numbers = [cell for cell in cells if cell.values("test_loss") and not cell.values("test_accuracy")]
    judged = [cell for cell in cells if cell not in numbers]
    parts += [_table("test accuracy, %", judged, _accuracy, _chance_of(100, ".1f"))] if judged else []
    parts += [_table("test loss", numbers, _loss, _chance_of(1, ".3g"))] if numbers else []
    if any(cell.values("epochs_to_threshold") for cell in cells):
        parts.append(_table("epochs to threshold", judged, _epochs))
    parts.append(_table("seconds", cells, _seconds))
    if any(cell.values("kept_bytes") for cell in cells):
        parts.append(_table("kept while learning, MB", cells, _kept))
    if any(cell.values("fidelity") for cell in cells):
        parts.append(_table("cosine with BPTT", cells, _fidelity))
    return "\n\n".join(parts) + "\n"


def _table(
    title: str, cells: Sequence[Cell], text: Callable[[Cell], str], head: Callable[[Cell], str] = lambda cell: ""
) -> str:
    rules, tasks = dict.fromkeys(cell.rule for cell in cells), dict.fromkeys(cell.task for cell in cells)
    by_place = {(cell.rule, cell.task): cell for cell in cells}
    heads = []
    for task in tasks:
        told = (head(cell) for cell in cells if cell.task == task)
        heads.append(task + next(filter(None, told), ""))
    lines = [f"| {' | '.join([title, *heads])} |", f"|{'---|' * (len(heads) + 1)}"]
    for rule in rules:
        row = [by_place.get((rule, task)) for task in tasks]
        texts = ["" if cell is None else text(cell) for cell in row]
        lines.append(f"| {' | '.join([rule, *texts])} |")
    return "\n".join(lines)


def _chance_of(scale: int, form: str) -> Callable[[Cell], str]:
    def told(cell: Cell) -> str:
        chances = cell.values("chance")
        return f" (chance {format(scale * chances[0], form)})" if chances else ""

    return told


def _mean(cell: Cell, name: str, form: str, scale: int = 1) -> str:
    """Return mean ± deviation; how many of the jobs that is of, where some are missing."""
    values = [scale * value for value in cell.values(name)]
    if not values:
        return "-" if cell.finished else f"none of {cell.jobs}"
    spread = f" ± {format(statistics.stdev(values), form)}" if len(values) > 1 else ""
    missing = "" if len(values) == cell.jobs else f" ({len(values)} of {cell.jobs})"
    return format(statistics.mean(values), form) + spread + missing


def _accuracy(cell: Cell) -> str:
    return _mean(cell, "test_accuracy", ".1f", 100)


def _loss(cell: Cell) -> str:
    return _mean(cell, "test_loss", ".4f")


def _epochs(cell: Cell) -> str:
    return _mean(cell, "epochs_to_threshold", ".1f") if cell.values("epochs_to_threshold") else "never"


def _seconds(cell: Cell) -> str:
    return _mean(cell, "seconds", ".0f")


def _kept(cell: Cell) -> str:
    values = cell.values("kept_bytes")
    return f"{max(values) / 1e6:.2f}" if values else "-"


def _fidelity(cell: Cell) -> str:
    return _mean(cell, "fidelity", ".2f")


def write_comparison(folder: Path, rows: Iterable[Row]) -> str | None:
    """Write `comparison.csv` and `comparison.md` to `folder` where `rows` are of two rules or more; return the text.

    >>> write_comparison(Path("/nowhere"), [{"rule": "ottt", "dataset": "copy"}]) is None
    True
    """
    cells = compare(rows)
    if len({cell.rule for cell in cells}) < 2:
        return None
    text = comparison_text(cells)
    write_whole(folder / "comparison.csv", comparison_csv(cells).encode())
    write_whole(folder / "comparison.md", text.encode())
    return text
