"""What attaching a rule did, one row per parameter: traced how, exact for what, and why not."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class ReportRow:
    """How the gradient of one parameter arises.

    `parameter` its dotted name; `trace` in words; `exact` whether the gradient equals that of `yardstick` to
    rounding; `why` the reason when it does not, else what makes it so.

    >>> ReportRow("weight", "none", True, "BPTT", "static readout").exact
    True
    """

    parameter: str
    trace: str
    exact: bool
    yardstick: str
    why: str


@dataclass(frozen=True)
class AttachReport:
    """The rows of `rule.attach(net)`, and `notes` on parts without a parameter; print it to see the table.

    >>> print(AttachReport("SLTT", (ReportRow("w", "none", True, "BPTT", "static"),)))
    SLTT  parameter  trace  gradient  of    because
          w          none   exact     BPTT  static
    """

    rule: str
    rows: tuple[ReportRow, ...]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[ReportRow]:
        """Iterate over the rows."""
        return iter(self.rows)

    def __getitem__(self, parameter: str) -> ReportRow:
        """Return the row of a parameter by its dotted name; raise KeyError with the names there are."""
        for row in self.rows:
            if row.parameter == parameter:
                return row
        raise KeyError(f"no parameter {parameter!r} in this report; it has {[row.parameter for row in self.rows]}")

    @property
    def approximate(self) -> tuple[ReportRow, ...]:
        """The rows whose gradient is approximate."""
        return tuple(row for row in self.rows if not row.exact)

    def __str__(self) -> str:
        """Return the table and the notes as text."""
        head = (self.rule, "parameter", "trace", "gradient", "of", "because")
        body = [
            ("", row.parameter, row.trace, "exact" if row.exact else "approximate", row.yardstick, row.why)
            for row in self.rows
        ]
        widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in (head, *body)
        ]
        return "\n".join([*(line.rstrip() for line in lines), *(f"note: {note}" for note in self.notes)])


def notes_of(net: nn.Module) -> tuple[str, ...]:
    """Return what the modules of `net` have to say in a report, by their `report_note`, each with its name.

    >>> notes_of(nn.Linear(1, 1))
    ()
    """
    notes = ((name, module, getattr(module, "report_note", None)) for name, module in net.named_modules())
    return tuple(f"{name or type(module).__name__}: {note}" for name, module, note in notes if isinstance(note, str))


__all__ = ["AttachReport", "ReportRow", "notes_of"]
