"""What the fidelity measurement found: rows, their sums by layer, the table, the CSV file and the picture."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from snnlearn.engine.agreement import Agreement, rate_remark
from snnlearn.engine.fidelity_plot import draw_heat_map

HOLDS, BROKEN, EMPTY, UNCHECKED, APPROXIMATE = "holds", "broken", "nothing to check", "not checked", "approximate"
"""What became of a row's claim to be exact; approximate where it makes none."""

COLUMNS = (
    *("rule", "steps", "depth", "layer", "parameter", "cosine", "error", "norm_ratio", "gradient_norm", "bptt_norm"),
    *("firing_rate", "remark", "claim", "yardstick", "claim_error", "because"),
)
"""Columns of the CSV file, one row per rule, length and parameter; a figure that does not exist is empty."""


class BrokenClaimError(RuntimeError):
    """A gradient that attach() reported as exact differs from its yardstick; `report` has the figures."""

    def __init__(self, report: "FidelityReport") -> None:
        self.report = report
        super().__init__(
            f"{_claims_that_broke(report.broken)}\nThe rule, or its report, is wrong for this network. "
            f"fidelity(..., strict=False) returns the figures without raising"
        )


@dataclass(frozen=True)
class FidelityRow:
    """One rule's gradient of one parameter against BPTT's, on the first `steps` steps of the batch.

    `layer` the block or module of the parameter and `depth` its place in the order of execution, from 1; `agreement`
    with full BPTT; `firing_rate` of the layer, None where it does not spike. `claim` says what became of the report's
    claim to be exact of `yardstick`: holds, broken, nothing to check (no gradient), not checked (an unknown yardstick
    or a precision without bound) or approximate, which is no claim; `claim_error` is the relative error against the
    yardstick, `why` the report's reason.

    >>> nothing = Agreement(0.0, 0.0, 0.0, 0.0)
    >>> row = FidelityRow("SLTT", "w", "fc", 1, 8, nothing, None, APPROXIMATE, "BPTT", None, "why")
    >>> row.agreement.cosine is None, row.remark
    (True, 'no gradient')
    """

    rule: str
    parameter: str
    layer: str
    depth: int
    steps: int
    agreement: Agreement
    firing_rate: float | None
    claim: str
    yardstick: str
    claim_error: float | None
    why: str

    @property
    def remark(self) -> str:
        """Why the figures say little or nothing: no gradient, a silent or a saturated layer; empty where they speak."""
        return "; ".join(filter(None, (self.agreement.missing, rate_remark(self.firing_rate))))

    @property
    def verdict(self) -> str:
        """The claim and what became of it, in words."""
        if self.claim == HOLDS:
            return f"exact of {self.yardstick}: holds to {self.claim_error:.0e}"
        if self.claim == BROKEN:
            return f"BROKEN CLAIM: said to be exact of {self.yardstick}, and off by {self.claim_error:.2g}"
        return f"approximate: {self.why}" if self.claim == APPROXIMATE else f"exact of {self.yardstick}: {self.claim}"

    def cells(self) -> tuple[object, ...]:
        """Return the row of the CSV file, in the order of `COLUMNS`."""
        figures = self.agreement
        return (
            *(self.rule, self.steps, self.depth, self.layer, self.parameter, figures.cosine, figures.error),
            *(figures.norm_ratio, figures.norm, figures.reference_norm, self.firing_rate, self.remark, self.claim),
            *(self.yardstick, self.claim_error, self.why),
        )


@dataclass(frozen=True)
class LayerFidelity:
    """The parameters of one layer taken together: fields as in `FidelityRow`.

    >>> LayerFidelity("SLTT", "fc", 1, 8, Agreement(1.0, 1.0, 1.0, 0.0), 0.2).agreement.cosine
    1.0
    """

    rule: str
    layer: str
    depth: int
    steps: int
    agreement: Agreement
    firing_rate: float | None


@dataclass(frozen=True)
class FidelityReport:
    """The rows of `fidelity`; print it to see the tables.

    `lengths` the numbers of steps that were measured, the longest last; `notes` what else a reader must know, such as
    rules that the network refused and layers that are silent.

    >>> print(FidelityReport((), (8,), 4, "float64", ("nothing was measured",)))
    fidelity to BPTT over 8 steps, batch of 4, in float64
    note: nothing was measured
    """

    rows: tuple[FidelityRow, ...]
    lengths: tuple[int, ...]
    batch_size: int
    precision: str
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[FidelityRow]:
        """Iterate over the rows."""
        return iter(self.rows)

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rules that were measured."""
        return tuple(dict.fromkeys(row.rule for row in self.rows))

    @property
    def broken(self) -> tuple[FidelityRow, ...]:
        """The rows whose claim to be exact does not hold."""
        return tuple(row for row in self.rows if row.claim == BROKEN)

    def row(self, rule: str, parameter: str, steps: int | None = None) -> FidelityRow:
        """Return the row of a rule and a parameter, over `steps` steps (None: all); raise KeyError if there is none."""
        length = self.lengths[-1] if steps is None else steps
        for row in self.rows:
            if (row.rule, row.parameter, row.steps) == (rule, parameter, length):
                return row
        parameters = list(dict.fromkeys(row.parameter for row in self.rows))
        raise KeyError(
            f"no row for rule {rule!r}, parameter {parameter!r}, {length} steps; there are rules {list(self.rules)}, "
            f"parameters {parameters}, lengths {list(self.lengths)}"
        )

    def layers(self) -> tuple[LayerFidelity, ...]:
        """Return every rule's agreement layer by layer and length by length, from the input on."""
        found: dict[tuple[str, int, int, str], LayerFidelity] = {}
        for row in self.rows:
            key = (row.rule, row.steps, row.depth, row.layer)
            before = found.get(key)
            together = row.agreement if before is None else before.agreement + row.agreement
            found[key] = LayerFidelity(row.rule, row.layer, row.depth, row.steps, together, row.firing_rate)
        rules = {name: place for place, name in enumerate(self.rules)}
        return tuple(found[key] for key in sorted(found, key=lambda key: (rules[key[0]], *key[1:])))

    def __str__(self) -> str:
        """Return the tables as text; broken claims come first."""
        lines = [f"fidelity to BPTT over {self.lengths[-1]} steps, batch of {self.batch_size}, in {self.precision}"]
        if self.broken:
            lines = [_claims_that_broke(self.broken), "", *lines]
        if self.rows:
            lines += [*self._parameter_table(), "", *self._layer_table()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def to_csv(self, path: Path | str) -> None:
        """Write every row to a CSV file with the columns `COLUMNS`; numbers are written to the last digit."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for row in self.rows:
                writer.writerow("" if cell is None else cell for cell in row.cells())

    def plot(self, path: Path | str) -> None:
        """Draw a heat map of cosines, parameters by rules and lengths, to `path` (.png, .svg or .pdf).

        Raises ImportError with what to install where matplotlib is missing, ValueError where there is no row.
        """
        if not self.rows:
            raise ValueError("this report has no row, so there is nothing to draw")
        ordered = sorted(self.rows, key=lambda row: row.depth)
        columns = [(rule, steps) for rule in self.rules for steps in self.lengths]
        cells = {(row.parameter, (row.rule, row.steps)): row for row in self.rows}
        parameters = list(dict.fromkeys(row.parameter for row in ordered))
        found = [[cells.get((parameter, column)) for column in columns] for parameter in parameters]
        draw_heat_map(
            Path(path),
            rows=parameters,
            columns=[f"{rule}\nT = {steps}" for rule, steps in columns],
            values=[[None if row is None or row.remark else row.agreement.cosine for row in line] for line in found],
            marks=[[_mark(row) for row in line] for line in found],
            title="cosine between a rule's gradient and BPTT's",
        )

    def _parameter_table(self) -> list[str]:
        head = ("rule", "layer", "parameter", "cosine", "error", "norm ratio", "|gradient|", "|BPTT|", "rate", "claim")
        body = []
        for row in self.rows:
            if row.steps != self.lengths[-1]:
                continue
            figures = row.agreement
            remark = f" [{row.remark}]" if row.remark else ""
            body.append(
                (
                    *(row.rule, row.layer, row.parameter, _decimal(figures.cosine), _scientific(figures.error)),
                    *(_decimal(figures.norm_ratio), _scientific(figures.norm), _scientific(figures.reference_norm)),
                    *("-" if row.firing_rate is None else f"{row.firing_rate:.3f}", row.verdict + remark),
                )
            )
        return aligned([head, *body])

    def _layer_table(self) -> list[str]:
        layers = self.layers()
        head = ("rule", "depth", "layer", *(f"T = {steps}" for steps in self.lengths))
        body = []
        for rule, depth, layer in dict.fromkeys((one.rule, one.depth, one.layer) for one in layers):
            cosines = {
                one.steps: one.agreement.cosine
                for one in layers
                if (one.rule, one.depth, one.layer) == (rule, depth, layer)
            }
            body.append((rule, str(depth), layer, *(_decimal(cosines.get(steps)) for steps in self.lengths)))
        return ["cosine by layer, from the input on, and by length", *aligned([head, *body])]


def _claims_that_broke(rows: tuple[FidelityRow, ...]) -> str:
    found: dict[tuple[str, str], list[FidelityRow]] = {}
    for row in rows:
        found.setdefault((row.rule, row.parameter), []).append(row)
    lines = [f"{len(found)} BROKEN CLAIM(S): reported as exact, and different from the yardstick"]
    for (rule, parameter), same in found.items():
        errors = ", ".join(f"{row.claim_error:.2g} at T = {row.steps}" for row in same)
        lines.append(f"  {rule}, {parameter}: off by {errors} from {same[0].yardstick} ({same[0].why})")
    return "\n".join(lines)


def _mark(row: FidelityRow | None) -> str:
    if row is None:
        return ""
    if row.claim == BROKEN:
        return f"{_decimal(row.agreement.cosine)}\nbroken claim"
    return row.remark.split(":")[0] if row.remark else _decimal(row.agreement.cosine)


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _scientific(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def aligned(lines: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table with every column as wide as its widest cell.

    >>> aligned([("a", "b"), ("long", "c")])
    ['a     b', 'long  c']
    """
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


__all__ = [
    "APPROXIMATE",
    "BROKEN",
    "COLUMNS",
    "EMPTY",
    "HOLDS",
    "UNCHECKED",
    "BrokenClaimError",
    "FidelityReport",
    "FidelityRow",
    "LayerFidelity",
    "aligned",
]
