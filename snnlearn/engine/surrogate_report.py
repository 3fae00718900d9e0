"""What the measurement of the surrogate's bias found: a row per parameter, and what it means."""

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from snnlearn.engine.agreement import rate_remark
from snnlearn.engine.fidelity_report import aligned

NOISE = 3.0
"""Standard errors that a difference has to exceed to be one."""

RESOLVED = 0.05
"""Largest standard error of a cosine that says anything."""

SMALL = 0.01
"""A cosine this close to 1 is agreement, however small the noise."""

CHECK_BOUND = 1e-3
"""Relative error up to which BPTT equals finite differences on the smoothed network; piecewise surrogates take some."""

COLUMNS = ("parameter", "cosine", "cosine_error", "slope_ratio", "slope_error", "verdict")

AGREES, DIFFERS, UNRESOLVED, FLAT = "agrees", "differs", "not resolved", "no slope"


@dataclass(frozen=True)
class BiasRow:
    """One parameter's surrogate gradient against the slope of the smoothed spiking loss.

    `cosine` of the two, with its standard error; `slope_ratio` how steep the loss is along the surrogate gradient, in
    parts of what BPTT predicts: 1 where BPTT is right, 0 or less where going against its gradient does not lower the
    loss. None where a figure does not exist.

    >>> BiasRow("w", 0.5, 0.01, 0.7, 0.01).verdict
    'differs'
    """

    parameter: str
    cosine: float | None
    cosine_error: float | None
    slope_ratio: float | None
    slope_error: float | None

    @classmethod
    def of(
        cls,
        parameter: str,
        sizes: Float[Tensor, " parameters"],
        slope: Float[Tensor, " parameters"],
        rest: Float[Tensor, " parameters"],
        slopes: Float[Tensor, "samples parameters"],
        rests: Float[Tensor, "samples parameters"],
    ) -> "BiasRow":
        """Return the row of parameters together: |S g|, slope and Q of each, and both without each sample in turn."""
        size = float(sizes.norm())
        if size == 0:
            return cls(parameter, None, None, None, None)
        weights = sizes / size
        along = float(weights @ slope)
        across = max(float(rest.sum()), 0.0)
        whole = math.sqrt(float(slope.square().sum()) + across)
        ratio_error = _jackknife(slopes @ weights / size)
        if whole == 0:
            return cls(parameter, None, None, along / size, ratio_error)
        by_slope = weights / whole - along * slope / whole**3
        by_rest = -along / (2 * whole**3)
        error = _jackknife(slopes @ by_slope + by_rest * rests.sum(1))
        return cls(parameter, along / whole, error, along / size, ratio_error)

    @property
    def verdict(self) -> str:
        """agrees, differs (beyond the noise), not resolved (too few pairs), or no slope (of BPTT or of the loss)."""
        if self.cosine is None or self.cosine_error is None:
            return FLAT
        if 1 - self.cosine > max(NOISE * self.cosine_error, SMALL):
            return DIFFERS
        return UNRESOLVED if self.cosine_error > RESOLVED else AGREES

    def cells(self) -> tuple[object, ...]:
        """Return the row of the CSV file, in the order of `COLUMNS`."""
        return (self.parameter, self.cosine, self.cosine_error, self.slope_ratio, self.slope_error, self.verdict)


def _jackknife(values: Float[Tensor, " samples"]) -> float:
    """Return the standard error from the figures without each sample in turn."""
    n = len(values)
    return math.sqrt((n - 1) / n * float((values - values.mean()).square().sum()))


@dataclass(frozen=True)
class SurrogateBiasReport:
    """The rows of `surrogate_bias`; print it to see them and what they mean.

    `total` all parameters together, each in units of its root mean square; `check_error` the relative error of BPTT
    against finite differences on the smoothed network (None: not possible, see `check_remark`); `firing_rates`
    by block, in spikes per unit and step.

    >>> report = SurrogateBiasReport((), BiasRow("all together", 0.5, 0.01, 0.7, 0.01), 64, 0.05, 1e-9, "")
    >>> report.wrong_yardstick
    True
    """

    rows: tuple[BiasRow, ...]
    total: BiasRow
    pairs: int
    sigma: float
    check_error: float | None
    check_remark: str
    firing_rates: dict[str, float] = field(default_factory=dict)

    @property
    def wrong_yardstick(self) -> bool:
        """Whether BPTT's direction differs from the slope of the loss by more than the noise, taken all together."""
        return self.total.verdict == DIFFERS

    @property
    def check_holds(self) -> bool | None:
        """Whether BPTT equals finite differences on the smoothed network; None where that could not be tried."""
        return None if self.check_error is None else self.check_error <= CHECK_BOUND

    def row(self, parameter: str) -> BiasRow:
        """Return the row of a parameter; raise KeyError with the names there are."""
        for row in self.rows:
            if row.parameter == parameter:
                return row
        raise KeyError(f"no parameter {parameter!r} in this report; it has {[row.parameter for row in self.rows]}")

    @property
    def conclusion(self) -> str:
        """What the figures mean, in a sentence."""
        total = self.total
        if total.verdict == FLAT:
            return "neither BPTT nor the loss has a slope here, so nothing can be said"
        figure = f"cosine {total.cosine:.3f} +- {total.cosine_error:.3f}"
        if total.verdict == DIFFERS:
            return (
                f"BPTT ITSELF IS A BIASED YARDSTICK HERE: its direction differs from the slope of the spiking loss by "
                f"more than the noise ({figure}), so a rule's distance from BPTT is not its distance from the truth"
            )
        if total.verdict == UNRESOLVED:
            return f"not resolved ({figure}): take more pairs, or a larger sigma"
        return f"BPTT points where the spiking loss goes, within the noise ({figure})"

    def __str__(self) -> str:
        """Return the table as text."""
        head = ("parameter", "cosine", "+-", "slope / BPTT's", "+-", "verdict")
        body = [(row.parameter, *map(_decimal, row.cells()[1:5]), row.verdict) for row in (*self.rows, self.total)]
        remarks = {name: rate_remark(rate) for name, rate in self.firing_rates.items()}
        silent = [f"note: {name} is {remark}" for name, remark in remarks.items() if remark]
        title = f"BPTT against the slope of the spiking loss, {self.pairs} pairs, weights changed by {self.sigma:g}"
        return "\n".join([title, *aligned([head, *body]), self.conclusion, self._check_text(), *silent])

    def _check_text(self) -> str:
        if self.check_error is None:
            return f"check on the smoothed network: not possible, {self.check_remark}"
        if self.check_holds:
            return f"check on the smoothed network: BPTT equals finite differences to {self.check_error:.0e}"
        return (
            f"CHECK ON THE SMOOTHED NETWORK FAILED: BPTT is off by {self.check_error:.2g}; a surrogate's derivative is "
            f"not that of its primitive, a neuron detaches part of its step, or the loss is not smooth"
        )

    def to_csv(self, path: Path | str) -> None:
        """Write the rows to a CSV file with the columns `COLUMNS`; numbers are written to the last digit."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for row in (*self.rows, self.total):
                writer.writerow("" if cell is None else cell for cell in row.cells())


def _decimal(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "-"


__all__ = ["BiasRow", "SurrogateBiasReport"]
