"""The chunk length that `chunk="auto"` has settled on, for a run that goes on with it."""

import logging
from typing import TYPE_CHECKING

from snnlearn.engine.chunked import blocks_within_chunk, check_chunk

if TYPE_CHECKING:
    from snnlearn.engine.learner import OnlineLearner

log = logging.getLogger("snnlearn.engine")


def chosen_chunk(learner: "OnlineLearner") -> int | None:
    """Return the chunk length that `chunk="auto"` has settled on, None where it has not, or one was given.

    >>> from snnlearn import LI, OTTT, ETBlock, ETLinear, OnlineLearner
    >>> net = ETBlock(ETLinear(3, 2), LI())
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> learner = OnlineLearner(net, OTTT(), nn.functional.cross_entropy, optimizer, chunk="auto")
    >>> take_chunk(learner, 8); chosen_chunk(learner)
    8
    """
    return learner.chunk if learner.is_auto and not learner.chooses_chunk else None


def take_chunk(learner: "OnlineLearner", chunk: int | None) -> None:
    """Let a `learner` that would still choose go on with `chunk`, which an earlier run chose; None changes nothing."""
    if chunk is not None and learner.chooses_chunk and not blocks_within_chunk(learner.net):
        learner.chunk, learner.chooses_chunk = check_chunk(chunk, learner.update, learner.rule), False
        log.info("chunk=%d: chosen before", chunk)


__all__ = ["chosen_chunk", "take_chunk"]
