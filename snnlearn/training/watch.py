"""Warn of layers that hardly ever fire, or almost always do: both learn nothing."""

import logging
from collections.abc import Mapping

from snnlearn.engine.agreement import SATURATED, SILENT

__all__ = ["RateWatch"]

log = logging.getLogger(__name__)


class RateWatch:
    """Look at the mean firing rates of an epoch (spikes per neuron and step); warn once per layer and kind.

    >>> watch = RateWatch()
    >>> [text.split(":")[0] for text in watch.look({"hidden_1": 0.0, "hidden_2": 0.2}, epoch=1)]
    ['hidden_1 is silent']
    >>> watch.look({"hidden_1": 0.0}, epoch=2)
    []
    """

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def look(self, rates: Mapping[str, float], epoch: int) -> list[str]:
        """Log and return a warning for every layer that is silent or saturated and was not told of before."""
        warnings = []
        for name, rate in rates.items():
            kind = "silent" if rate < SILENT else "saturated" if rate > SATURATED else ""
            if kind and (name, kind) not in self._told:
                self._told.add((name, kind))
                warnings.append(_text(name, kind, rate, epoch))
                log.warning(warnings[-1])
        return warnings


def _text(name: str, kind: str, rate: float, epoch: int) -> str:
    fired = f"{name} is {kind}: it fired in {100 * rate:.3f} % of its steps in epoch {epoch}"
    if kind == "silent":
        return f"{fired} ({100 * SILENT:g} % is little); give it more input, a lower threshold or a wider surrogate"
    return f"{fired} ({100 * SATURATED:g} % is much); give it less input or a higher threshold"
