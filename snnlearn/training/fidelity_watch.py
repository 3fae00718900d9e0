"""Measure the rule against BPTT while it trains, on one small batch that stays the same."""

import logging
from typing import Any

import torch

from snnlearn.data import SparseSequence, StepTargets
from snnlearn.engine import NonFiniteError, OnlineLearner, fidelity
from snnlearn.engine.chosen_chunk import present_chunk
from snnlearn.training.batches import Batches, Targets

__all__ = ["FidelityWatch"]

log = logging.getLogger(__name__)

SEQUENCES = 8
"""Sequences of the batch that is measured on: BPTT keeps all of their steps in memory, in float64."""


class FidelityWatch:
    """Compare the gradients of a learner's rule with BPTT's after every `every` epochs (None: never).

    The batch is the first few sequences of the first epoch of `batches`. Nothing of the learner, of the batches' order
    or of torch's random state is changed by it, so a run is the same with and without.

    >>> watch = FidelityWatch(None, Batches([], [], 1, lambda items: (torch.ones(0), torch.ones(0), torch.ones(0))))
    >>> watch.every is None
    True
    """

    def __init__(self, every: int | None, batches: Batches, device: torch.device | None = None) -> None:
        self.every, self.batches, self.device = every, batches, device or torch.device("cpu")
        self._batch: tuple[torch.Tensor, Targets] | None = None

    def look(self, learner: OnlineLearner, epoch: int) -> dict[str, Any] | None:
        """Return cosine and relative error by parameter after `epoch` (from 1); None where it is not its turn.

        A figure is None where a gradient is zero; the lists `empty` and `broken` name parameters whose layer is silent
        or saturated or has no gradient, and those whose claim to be exact does not hold, which is logged as an error.
        """
        if self.every is None or epoch % self.every:
            return None
        batch = self._sequences()
        try:
            report = fidelity(
                learner.net,
                batch,
                [learner.rule],
                learner.loss,
                per_step_target=isinstance(batch[1], StepTargets),
                lengths=[len(batch[0])],
                strict=False,
                chunk=present_chunk(learner, batch[0]),
            )
        except NonFiniteError as error:
            log.warning("fidelity of epoch %d was not measured: %s", epoch, error)
            return {"rule": learner.rule.name, "cosine": {}, "error": {}, "empty": [], "broken": []}
        return {
            "rule": learner.rule.name,
            "cosine": {row.parameter: row.agreement.cosine for row in report},
            "error": {row.parameter: row.agreement.error for row in report},
            "empty": [row.parameter for row in report if row.remark],
            "broken": [row.parameter for row in report.broken],
        }

    def _sequences(self) -> tuple[torch.Tensor, Targets]:
        if self._batch is None:
            x, y = next(iter(self.batches.epoch(1)))
            few = StepTargets(y.values[:, :SEQUENCES]) if isinstance(y, StepTargets) else y[:SEQUENCES]
            frames = x.frames(SEQUENCES) if isinstance(x, SparseSequence) else x[:, :SEQUENCES]
            self._batch = frames.to(self.device), few.to(self.device)
        return self._batch
