"""Chunks of steps in a training loop of one's own: what `OnlineLearner(..., chunk=K)` does, written out.

Time is folded into the batch: inside `in_chunk(net, Chunk(K))` every tensor of the network is [K B, ...], time first,
its input and its output too. One backward per chunk, from the losses of its steps:

    rule.attach(net, chunk=K)
    for t in range(0, T, K):                               # the last chunk may be shorter: Chunk(len(steps))
        steps = x[t : t + K]
        with in_chunk(net, Chunk(len(steps))):
            output = net(steps.flatten(0, 1))
        (criterion(output, y.repeat(len(steps))) * len(steps) / T).backward()
    optimizer.step()
    reset(net)

A target or a reward that a rule is shown (`show_target`) is folded likewise, and shown before the forward.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from snnlearn.engine.chunked import check_restarts, refuse_unfoldable
from snnlearn.functional.arguments import is_whole
from snnlearn.nn import chunk as folding
from snnlearn.nn.chunk import Chunk


@contextmanager
def in_chunk(net: nn.Module, chunk: Chunk) -> Iterator[None]:
    """Let `net` take K steps at once while the context lasts: the input is [K B, ...], time first, so is the output.

    `chunk` says how many steps, and which rows restart before which of them. Backward comes once per chunk, inside the
    context or after it, before the next chunk. Raises ValueError or TypeError for what is no chunk, RuleChoiceError for
    a layer that would mean something else, StateShapeError where the rows are no multiple of K, StaleTraceError on a
    wrong order. An input [K, B, I] left unflattened is not refused: a linear layer takes it for a batch of one with B
    places each, so every place is a sequence of its own and the output is [K, B, O].

    >>> import torch
    >>> from snnlearn import ETBlock, ETLinear, LIF, OTTT
    >>> net = ETBlock(ETLinear(2, 3), LIF())
    >>> _ = OTTT().attach(net, chunk=4)
    >>> with in_chunk(net, Chunk(4)):
    ...     output = net(torch.ones(4, 5, 2).flatten(0, 1))
    >>> output.sum().backward(); Chunk(4).unfolded(output).shape
    torch.Size([4, 5, 3])
    """
    if not isinstance(chunk, Chunk):
        raise TypeError(f"in_chunk(net, {chunk!r}): the second argument is a chunk; write in_chunk(net, Chunk(16))")
    if not is_whole(chunk.steps, 1):
        raise ValueError(f"Chunk({chunk.steps!r}): the number of steps run at once, from 1; write Chunk(16)")
    check_restarts(chunk.restarts, chunk.steps)
    if any(vars(module).get("chunk") is not None for module in net.modules()):
        raise RuntimeError("in_chunk inside in_chunk: the network runs one chunk already; leave that context first")
    if chunk.steps > 1:
        refuse_unfoldable(net)
    restarts = chunk.restarts
    begins = chunk if isinstance(restarts, Tensor) and bool(restarts.any()) else Chunk(chunk.steps)
    with folding.in_chunk(net, begins):
        yield


__all__ = ["in_chunk"]
