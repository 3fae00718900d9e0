"""What `chunk="auto"` has settled on, the chunk length and the layout of weights, for a run that goes on with it."""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from snnlearn.engine.chunked import blocks_within_chunk, check_chunk, refuse_unfoldable
from snnlearn.engine.layout import lay_out_, lies_channels_last
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


def take_layout(learner: "OnlineLearner", channels_last: bool | None) -> None:
    """Lay out the weights of `learner` as those of an earlier run lay; None, where that is unknown, does nothing.

    >>> import torch
    >>> from snnlearn import LI, OTTT, ETBlock, ETConv2d, OnlineLearner
    >>> net = ETBlock(ETConv2d(2, 3, 3), LI())
    >>> learner = OnlineLearner(net, OTTT(), lambda o, y: o.mean(), torch.optim.SGD(net.parameters(), lr=0.1))
    >>> take_layout(learner, True); lies_channels_last(net)
    True
    """
    if channels_last is not None and channels_last != lies_channels_last(learner.net):
        lay_out_(learner.net, channels_last)
        log.info("weights with channels %s: chosen before", "last" if channels_last else "first")


def present_chunk(learner: "OnlineLearner", x: Iterable[Tensor]) -> int:
    """Return how many steps `learner` runs at once on x: for a network that takes x as one chunk, what it then takes.

    >>> import torch
    >>> from snnlearn import LI, OTTT, ETBlock, ETLinear, OnlineLearner
    >>> net = ETBlock(ETLinear(3, 2), LI())
    >>> learner = OnlineLearner(net, OTTT(), lambda o, y: o.mean(), torch.optim.SGD(net.parameters(), lr=0.1), chunk=3)
    >>> present_chunk(learner, torch.ones(5, 4, 3))
    3
    """
    whole = whole_sequence(learner, x) if learner.chooses_chunk else None
    return learner.chunk if whole is None else whole[0]


def whole_sequence(learner: "OnlineLearner", x: Iterable[Tensor]) -> tuple[int, str] | None:
    """Return the chunk length for x and why, for a network that needs x as one chunk, None for any other.

    With `truncate_trace` the chunk length says what is dropped, so that the longest is the best there too: the
    sequence, or what lies between two updates. Raises RuleChoiceError where an update would cut what may not be cut,
    and where nobody knows the length.

    >>> import torch
    >>> from snnlearn import LI, OTTT, ETBlock, ETLinear, OnlineLearner
    >>> net = ETBlock(ETLinear(3, 2), LI())
    >>> learner = OnlineLearner(net, OTTT(), lambda o, y: o.mean(), torch.optim.SGD(net.parameters(), lr=0.1))
    >>> whole_sequence(learner, torch.ones(5, 4, 3)) is None
    True
    """
    traces = blocks_within_chunk(learner.net)
    if not traces:
        return None
    refuse_unfoldable(learner.net)
    whole = [name for name, trace in traces.items() if not trace.truncates]
    kept = f"the trace of {next(iter(whole or traces))!r} is kept within one chunk alone"
    length, update = sequence_length(x), learner.update
    if isinstance(update, int) and not whole:
        return update, f"all steps of an update, since {kept}"
    if length is None:
        either = f"write chunk=T for sequences of up to T steps{'' if whole else ', or less, to drop more'}"
        raise RuleChoiceError(
            f"chunk='auto' met a sequence whose length nobody knows, and {kept}; pass a tensor [T, B, ...] or a list, "
            f"or {either}"
        )
    if isinstance(update, int) and update < length:
        raise RuleChoiceError(
            f"chunk='auto' with update={update} met a sequence of {length} steps, and {kept}, which an update would "
            f"cut; write update='sequence', or give the rule truncate_trace=True to drop what came before each update"
        )
    if isinstance(update, int):
        return update, f"the whole sequence of {length} steps, since {kept}"
    return length, f"the whole sequence, since {kept}"


__all__ = ["chosen_chunk", "present_chunk", "take_chunk", "take_layout", "whole_sequence"]
