"""The chunk length that `chunk="auto"` has settled on, for a run that goes on with it."""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from snnlearn.engine.chunked import blocks_within_chunk, check_chunk, refuse_unfoldable
from snnlearn.engine.sequence import sequence_length
from snnlearn.rules.legality import RuleChoiceError

if TYPE_CHECKING:
    from snnlearn.engine.learner import OnlineLearner

log = logging.getLogger("snnlearn.engine")


def chosen_chunk(learner: "OnlineLearner") -> int | None:
    """Return the chunk length that `chunk="auto"` has settled on, None where it has not, or one was given.

    >>> import torch
    >>> from snnlearn import LI, OTTT, ETBlock, ETLinear, OnlineLearner
    >>> net = ETBlock(ETLinear(3, 2), LI())
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> learner = OnlineLearner(net, OTTT(), torch.nn.functional.cross_entropy, optimizer, chunk="auto")
    >>> take_chunk(learner, 8); chosen_chunk(learner)
    8
    """
    return learner.chunk if learner.is_auto and not learner.chooses_chunk else None


def take_chunk(learner: "OnlineLearner", chunk: int | None) -> None:
    """Let a `learner` that would still choose go on with `chunk`, which an earlier run chose; None changes nothing.

    >>> import torch
    >>> from snnlearn import LI, OTTT, ETBlock, ETLinear, OnlineLearner
    >>> net = ETBlock(ETLinear(3, 2), LI())
    >>> learner = OnlineLearner(net, OTTT(), lambda o, y: o.mean(), torch.optim.SGD(net.parameters(), lr=0.1))
    >>> take_chunk(learner, 8); learner.chunk
    1
    """
    if chunk is not None and learner.chooses_chunk and not blocks_within_chunk(learner.net):
        learner.chunk, learner.chooses_chunk = check_chunk(chunk, learner.update, learner.rule), False
        log.info("chunk=%d: chosen before", chunk)


def whole_sequence(learner: "OnlineLearner", x: Iterable[Tensor]) -> tuple[int, str] | None:
    """Return the length of x and why, for a network that needs it as one chunk, None for any other.

    With `truncate_trace` the chunk length says what is dropped, so that the longest is the best there too. Raises
    RuleChoiceError where nobody knows the length.

    >>> import torch
    >>> from snnlearn import LI, OTTT, ETBlock, ETLinear, OnlineLearner
    >>> net = ETBlock(ETLinear(3, 2), LI())
    >>> learner = OnlineLearner(net, OTTT(), lambda o, y: o.mean(), torch.optim.SGD(net.parameters(), lr=0.1))
    >>> whole_sequence(learner, torch.ones(5, 4, 3)) is None
    True
    """
    names = list(blocks_within_chunk(learner.net))
    if not names:
        return None
    length = sequence_length(x)
    if length is None:
        raise RuleChoiceError(
            f"chunk='auto' met a sequence whose length nobody knows, and {names[0]!r} has a trace that is kept within "
            f"one chunk alone; pass a tensor [T, B, ...] or a list, or write chunk=T for sequences of up to T steps"
        )
    refuse_unfoldable(learner.net)
    check_chunk(length, learner.update, learner.rule)
    return length, f"the whole sequence, since the trace of {names[0]!r} is kept within one chunk alone"


__all__ = ["chosen_chunk", "take_chunk", "whole_sequence"]
