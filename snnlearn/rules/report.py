"""What attaching a rule did, one row per parameter: traced how, exact for what, and why not."""

from collections.abc import Iterator
from dataclasses import dataclass


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
    """The rows of `rule.attach(net)`; print it to see the table.

    >>> print(AttachReport("SLTT", (ReportRow("w", "none", True, "BPTT", "static"),)))
    SLTT  parameter  trace  gradient  of    because
          w          none   exact     BPTT  static
    """

    rule: str
    rows: tuple[ReportRow, ...]

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
        """Return the table as text."""
        head = (self.rule, "parameter", "trace", "gradient", "of", "because")
        body = [
            ("", row.parameter, row.trace, "exact" if row.exact else "approximate", row.yardstick, row.why)
            for row in self.rows
        ]
        widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in (head, *body)
        ]
        return "\n".join(line.rstrip() for line in lines)


__all__ = ["AttachReport", "ReportRow"]
