"""Run a network by chunks of steps: the same numbers as step by step, time folded into the batch.

What may be folded is checked here: layers whose meaning would change are refused, with the way out.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from snnlearn.engine.losses import NO_TARGET
from snnlearn.engine.sequence import FoldedSteps, kept_apart, map_outputs, sequence_length, steps_of
from snnlearn.functional.sparse_map import fold_rows, is_sparse
from snnlearn.nn.block import ETBlock
from snnlearn.nn.chunk import Chunk, in_chunk
from snnlearn.nn.connection import is_described
from snnlearn.nn.neuron import Neuron
from snnlearn.nn.signal_hub import SignalHub
from snnlearn.nn.within_chunk import WithinChunkTrace
from snnlearn.rules.axes import LearningRule
from snnlearn.rules.legality import RuleChoiceError


class Piece(NamedTuple):
    """Consecutive steps of a sequence: `x` [K B, ...], time first; a target for each step.

    `restarts` [K, B] says which rows restart before which step, None for none.
    """

    x: Tensor
    targets: list[Any]
    restarts: Tensor | None

    @property
    def steps(self) -> int:
        """The number of steps K."""
        return len(self.targets)


def pieces_of(
    x: Iterable[Tensor],
    y: Any,
    per_step_target: bool,
    restarts: Tensor | None,
    chunk: int,
    until_update: Callable[[], int | None] = lambda: None,
) -> Iterator[Piece]:
    """Yield a sequence in pieces of `chunk` steps, the last one what is left; `x`, `y` as `steps_of`.

    `restarts` [T, B]; `until_update()` how many more targets make an update, which a piece does not go beyond.

    >>> [piece.steps for piece in pieces_of(torch.zeros(5, 1, 2), torch.zeros(1), False, None, 2)]
    [2, 2, 1]
    """
    check_restarts(restarts, sequence_length(x))
    inputs: list[Tensor] = []
    targets: list[Any] = []
    begin, left = 0, until_update()

    def piece() -> Piece:
        """Return the steps that were gathered, and let go of them."""
        nonlocal begin, inputs, targets
        end = begin + len(inputs)
        if isinstance(x, FoldedSteps):
            folded = x.folded(begin, end)
        elif len(inputs) == 1:
            folded = inputs[0]
        elif isinstance(x, Tensor):
            folded = x[begin:end].flatten(0, 1)
        else:
            refuse_other_than_tensors(inputs)
            folded = fold_rows(inputs) if is_sparse(inputs[0]) else torch.cat(inputs)
        if restarts is not None and isinstance(folded, Tensor):
            check_restarts_at(restarts, end, folded.shape[0] // len(inputs))
        mask = None if restarts is None else restarts[begin:end]
        made = Piece(folded, targets, mask if mask is not None and bool(mask.any()) else None)
        begin, inputs, targets = end, [], []
        return made

    steps = repeat(torch.empty(0), len(x)) if isinstance(x, FoldedSteps) else x  # a step alone is never cut out
    if chunk > 1:
        steps, y = kept_apart(steps), kept_apart(y) if per_step_target else y
    for x_t, target in steps_of(steps, y, per_step_target):
        inputs.append(x_t)
        targets.append(target)
        with_target = sum(t is not NO_TARGET for t in targets)
        if len(inputs) == chunk or with_target == left:
            yield piece()
            left = until_update()
    if inputs:
        yield piece()
    if restarts is not None and begin != len(restarts):
        raise ValueError(
            f"the input ended after {begin} steps and restarts has {len(restarts)} rows: the mask is [T, B], one row "
            f"per step; pass restarts[:{begin}]"
        )


def check_restarts_at(restarts: Tensor, end: int, batch: int) -> None:
    """Raise ValueError unless the mask [T, B] has rows for `end` steps, with an entry for each sample of the `batch`.

    >>> check_restarts_at(torch.zeros(5, 2, dtype=torch.bool), 5, 2)
    """
    if end > len(restarts) or restarts.shape[1] != batch:
        raise ValueError(
            f"restarts is {list(restarts.shape)} and the input has {end} steps or more of {batch} samples: it takes a "
            f"boolean mask [T, B], a row for each step and an entry for each sample; here [T, {batch}], T >= {end}"
        )


def check_restarts(restarts: object, steps: int | None) -> None:
    """Raise ValueError unless `restarts` is None or a mask [T, B] for a sequence of `steps` T, None where unknown.

    >>> check_restarts(torch.zeros(5, 2, dtype=torch.bool), 5)
    """
    if restarts is None:
        return
    got = f"{list(restarts.shape)} {restarts.dtype}" if isinstance(restarts, Tensor) else type(restarts).__name__
    is_mask = isinstance(restarts, Tensor) and restarts.dtype == torch.bool and restarts.dim() == 2
    if not is_mask or (isinstance(restarts, Tensor) and steps not in (None, len(restarts))):
        raise ValueError(
            f"restarts is {got}: it takes a boolean mask [T, B]{'' if steps is None else f' with T = {steps}'}, true "
            f"where a row begins another sequence before a step; or leave it None"
        )


def refuse_other_than_tensors(steps: Iterable[object]) -> None:
    """Raise TypeError for a step of the input that is no tensor.

    >>> refuse_other_than_tensors([torch.zeros(1, 2)])
    """
    for step in steps:
        if not isinstance(step, Tensor):
            raise TypeError(
                f"one step of the input is a {type(step).__name__}: pass tensors; write "
                f"torch.as_tensor(x, dtype=torch.float32)"
            )


def run_piece(net: Callable[[Tensor], Any], module: nn.Module, hubs: list[SignalHub], piece: Piece) -> list[Any]:
    """Run `net` (which is `module`, called) through a piece and return its output at every step."""
    chunk = Chunk(piece.steps, piece.restarts)
    with in_chunk(module, chunk):
        for hub in hubs:
            hub.targets = [target if isinstance(target, Tensor) else None for target in piece.targets]
        output = net(piece.x)
    by_step: list[list[Tensor]] = []

    def unfold(values: Tensor) -> int:
        by_step.append(list(chunk.unfolded(values).unbind()))
        return len(by_step) - 1

    numbered = map_outputs(unfold, output)
    return [map_outputs(lambda number, t=t: by_step[number][t], numbered) for t in range(piece.steps)]


def check_chunk(chunk: Any, update: Any, rule: LearningRule) -> int:
    """Return `chunk` if it is a number of steps that `update` and `rule` allow; raise ValueError or RuleChoiceError.

    >>> from snnlearn.rules import OTTT
    >>> check_chunk(4, "sequence", OTTT())
    4
    """
    if not (isinstance(chunk, int) and not isinstance(chunk, bool) and chunk >= 1):
        raise ValueError(f"chunk={chunk!r}: the number of steps run at once, from 1, or 'auto'; write chunk=16")
    if isinstance(update, int) and update % chunk:
        raise ValueError(
            f"chunk={chunk} with update={update}: weights change only where a chunk ends, so an update comes after a "
            f"multiple of {chunk} steps; write update={chunk * max(1, round(update / chunk))}, or a chunk that divides "
            f"{update}"
        )
    if chunk > 1 and not rule.online:
        raise RuleChoiceError(
            f"chunk={chunk} with {rule.name}: a chunk stands for steps whose past is in a trace, and this rule keeps "
            f"its graph through time; write chunk=1, or choose an online rule such as OTTT()"
        )
    return chunk


def blocks_within_chunk(net: nn.Module) -> dict[str, WithinChunkTrace]:
    """Return by name the traces of the blocks that follow their weights within one chunk alone.

    >>> blocks_within_chunk(nn.Linear(1, 1))
    {}
    """
    blocks = ((name, m.connection.trace) for name, m in net.named_modules() if isinstance(m, ETBlock))
    return {name or "block": trace for name, trace in blocks if isinstance(trace, WithinChunkTrace)}


def covered(net: nn.Module, x: Iterable[Tensor], chunk: int) -> Iterable[Tensor]:
    """Return x to go on with; raise RuleChoiceError where `net` needs it as one chunk and it has more steps than that.

    >>> len(covered(nn.Linear(1, 1), torch.zeros(3, 1, 1), 2))
    3
    """
    names = [name for name, trace in blocks_within_chunk(net).items() if not trace.truncates]
    if not names:
        return x
    steps, more = sequence_length(x), ""
    if steps is None:
        x = list(islice(kept_apart(x), chunk + 1))
        steps, more = len(x), " or more"
    if steps > chunk:
        raise RuleChoiceError(
            f"a sequence of {steps}{more} steps met chunk={chunk}, and {names[0]!r} has "
            f"weights with many synapses each, whose trace is kept within one chunk alone: write chunk={steps} or "
            f"more, give the rule truncate_trace=True to drop what came before each chunk, or attach OTTT() to that "
            f"block"
        )
    return x


DRAWN_ANEW = (_DropoutNd, nn.RReLU)
WITH_TIME = (nn.RNNBase, nn.RNNCellBase)


def refuse_unfoldable(net: nn.Module) -> None:
    """Raise RuleChoiceError for a layer of `net` that would mean something else with time folded into the batch.

    >>> refuse_unfoldable(nn.Sequential(nn.Flatten(), nn.AvgPool2d(2)))
    """
    for name, module in net.named_modules():
        where = f"chunk > 1 with {name or 'the network'}, a {type(module).__name__}"
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise RuleChoiceError(
                f"{where}: its statistics would be those of all steps of a chunk, not of each; freeze them with "
                f"net.get_submodule({name!r}).eval(), use GroupNorm or LayerNorm, or write chunk=1"
            )
        if isinstance(module, DRAWN_ANEW) and module.training and getattr(module, "p", True):
            raise RuleChoiceError(
                f"{where}: it draws a new mask at every step, and a chunk would draw them in another order; write "
                f"TimeConstantDropout, whose mask lasts a sequence, or chunk=1"
            )
        if isinstance(module, WITH_TIME):
            raise RuleChoiceError(f"{where}: it has a time of its own, which a chunk cannot see; write chunk=1")
        if isinstance(module, ETBlock) and (module.connection.trace is not None or module.signal is not None):
            if not is_described(module.connection):
                raise RuleChoiceError(
                    f"{where}: its {type(module.connection).__name__} has a forward of its own that its weighted_map "
                    f"does not tell; write weighted_map for it, or chunk=1"
                )
            if type(module.neuron).forward is not Neuron.forward:
                raise RuleChoiceError(
                    f"{where}: its {type(module.neuron).__name__} has a forward of its own, which a chunk does not "
                    f"call; write the change into its step, or chunk=1"
                )


__all__ = [
    "Piece",
    "blocks_within_chunk",
    "check_chunk",
    "check_restarts",
    "check_restarts_at",
    "covered",
    "pieces_of",
    "refuse_other_than_tensors",
    "refuse_unfoldable",
    "run_piece",
]
