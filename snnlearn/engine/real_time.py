"""References for small recurrent nets: full RTRL, SnAp-1 and UORO, as gradients by name like `bptt_gradients`.

Equations in `snnlearn.functional.real_time`. They are yardsticks, not rules to train by: full RTRL keeps O * O * Q
numbers for every sample and hidden value, O units with Q inputs each, and takes O times as many products.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn.engine.losses import LossRun, SequenceLoss, StepLoss
from snnlearn.engine.sequence import sequence_length, steps_of
from snnlearn.functional.dynamics import Jacobian
from snnlearn.functional.real_time import (
    Influence,
    RankOne,
    full_gradient,
    full_influence_step,
    rank_one_gradient,
    rank_one_step,
    sparse_gradient,
    sparse_influence_step,
)
from snnlearn.functional.synaptic import with_one
from snnlearn.functional.weighted_map import Dense
from snnlearn.nn.block import ETBlock
from snnlearn.nn.connection import ETLinear
from snnlearn.nn.recurrent import ETRecurrent
from snnlearn.nn.state import Stateful, stashed_state


def rtrl_gradients(
    net: nn.Module, x: Iterable[Tensor], y: Any, loss: StepLoss = F.cross_entropy, per_step_target: bool = False
) -> dict[str, Tensor]:
    """Return the gradient of the sequence loss by full real-time recurrent learning: BPTT's, run forward.

    `net` an `ETBlock` of an `ETRecurrent` or `ETLinear`, or a `Sequential` with such a block, nothing trained before it
    and nothing with memory behind it. `x` [T, B, ...] or an iterable of [B, ...]; `y`, `loss`, `per_step_target` as
    for `bptt_gradients`, and like it the result is the mean over counted steps, and state, traces and `.grad` stay.
    Raises ValueError for another network and for a loss that remembers.

    >>> from snnlearn import LIF, ETRecurrent
    >>> net = nn.Sequential(ETBlock(ETRecurrent(3, 4), LIF()), nn.Linear(4, 2))
    >>> sorted(rtrl_gradients(net, torch.ones(5, 2, 3), torch.tensor([0, 1])))[:2]
    ['0.connection.bias', '0.connection.recurrent_weight']
    """

    def start(jacobian: Jacobian, q: Tensor) -> Influence:
        return _influence(jacobian, q, jacobian.spike_input.shape[1] * q.shape[1])

    return _gradients(net, x, y, loss, per_step_target, _Method(start, full_influence_step, full_gradient))


def snap_gradients(
    net: nn.Module, x: Iterable[Tensor], y: Any, loss: StepLoss = F.cross_entropy, per_step_target: bool = False
) -> dict[str, Tensor]:
    """Return the gradient by SnAp-1, full RTRL without what a weight does to other units; arguments as there.

    Without self-connections it is D-RTRL.

    >>> from snnlearn import LIF, ETRecurrent
    >>> net = nn.Sequential(ETBlock(ETRecurrent(3, 4), LIF()), nn.Linear(4, 2))
    >>> snap_gradients(net, torch.ones(5, 2, 3), torch.tensor([0, 1]))["1.bias"].shape
    torch.Size([2])
    """

    def start(jacobian: Jacobian, q: Tensor) -> Influence:
        return _influence(jacobian, q, q.shape[1])

    return _gradients(net, x, y, loss, per_step_target, _Method(start, sparse_influence_step, sparse_gradient))


def uoro_gradients(
    net: nn.Module,
    x: Iterable[Tensor],
    y: Any,
    loss: StepLoss = F.cross_entropy,
    per_step_target: bool = False,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Return one draw of UORO's gradient, whose mean over draws is that of `rtrl_gradients`; arguments as there.

    Every sample has signs of its own, drawn from `generator` (a CPU one; torch's global one with None).

    >>> from snnlearn import LIF, ETRecurrent
    >>> net = nn.Sequential(ETBlock(ETRecurrent(3, 4), LIF()), nn.Linear(4, 2))
    >>> uoro_gradients(net, torch.ones(5, 2, 3), torch.tensor([0, 1]))["0.connection.weight"].shape
    torch.Size([4, 3])
    """

    def start(jacobian: Jacobian, q: Tensor) -> RankOne:
        spike = torch.zeros_like(jacobian.spike_input)
        return RankOne(torch.zeros_like(jacobian.drive), spike, spike[..., None] * q[:, None])

    def advance(estimate: RankOne, jacobian: Jacobian, q: Tensor, recurrent: Tensor) -> RankOne:
        shape = (jacobian.drive.shape[0] + 1, *jacobian.spike_input.shape)
        signs = torch.randint(2, shape, generator=generator).to(q) * 2 - 1
        return rank_one_step(estimate, jacobian, q, recurrent, signs)

    return _gradients(net, x, y, loss, per_step_target, _Method(start, advance, rank_one_gradient))


class _Method(NamedTuple):
    """A way to follow a step's influence: how it starts, advances, and meets dL/ds."""

    start: Callable[[Jacobian, Tensor], Any]
    advance: Callable[[Any, Jacobian, Tensor, Tensor], Any]
    gradient: Callable[[Any, Tensor], Tensor]


def _influence(jacobian: Jacobian, q: Tensor, width: int) -> Influence:
    return Influence(q.new_zeros(*jacobian.drive.shape, width), q.new_zeros(*jacobian.spike_input.shape, width))


def _gradients(
    net: nn.Module, x: Iterable[Tensor], y: Any, loss: StepLoss, per_step_target: bool, method: _Method
) -> dict[str, Tensor]:
    """Run forward once: advance the influence, and let every step's loss meet it."""
    if isinstance(loss, SequenceLoss) and loss.readout != "step":
        raise ValueError(
            f"readout={loss.readout!r} makes the loss depend on earlier outputs, which no influence here follows; "
            f"write readout='step'"
        )
    before, block, after = _parts(net)
    named = {name: p for name, p in net.named_parameters() if p.requires_grad}
    inside = {id(p) for p in block.parameters()}
    behind = [p for p in named.values() if id(p) not in inside]
    weight = block.connection.effective_weight().detach()
    recurrent = _recurrent(block.connection, weight)
    joined, others = None, [torch.zeros_like(p) for p in behind]
    influence, counted = None, 0
    with stashed_state(net):
        run = LossRun(loss, sequence_length(x), False)
        for x_t, target in steps_of(x, y, per_step_target):
            with torch.no_grad():
                q, jacobian, spike = _forward(block, weight, before(x_t))
                influence = method.start(jacobian, q) if influence is None else influence
                influence = method.advance(influence, jacobian, q, recurrent)
            with torch.enable_grad():
                leaf = spike.requires_grad_()
                step_loss = run.step(after(leaf), target)
            if step_loss is not None:
                signal, *parts = torch.autograd.grad(step_loss, [leaf, *behind], materialize_grads=True)
                found = method.gradient(influence, signal)
                joined = found if joined is None else joined + found
                others = [total + part for total, part in zip(others, parts, strict=True)]
                counted += 1
    if joined is None:
        raise ValueError("no step of this sequence has a target that counts, so there is no loss to differentiate")
    by_id = dict(zip(map(id, behind), others, strict=True)) | _apart(block, joined)
    return {name: by_id[id(p)] / counted for name, p in named.items()}


def _forward(block: ETBlock, weight: Tensor, x: Tensor) -> tuple[Tensor, Jacobian, Tensor]:
    """Step the block outside autograd; return (q, the neuron's Jacobian, spikes)."""
    connection = block.connection
    q, bias = connection.traced_input(x), connection.bias
    step = block.neuron.advance_linearised(Dense().value(q, weight, bias if isinstance(bias, Tensor) else None))
    connection.take_output(step.spike, False)
    return with_one(q) if bias is not None else q, step.jacobian, step.spike.detach().clone()


def _recurrent(connection: nn.Module, weight: Tensor) -> Tensor:
    """Return V [O, O], zero for a layer that takes nothing back."""
    units = weight.shape[0]
    return weight[:, -units:] if isinstance(connection, ETRecurrent) else weight.new_zeros(units, units)


def _apart(block: ETBlock, joined: Tensor) -> dict[int, Tensor]:
    """Hand the gradient of the joined weights [O, Q] to the parameters they are made of, masks and all."""
    connection = block.connection
    with torch.enable_grad():
        weight, bias = connection.effective_weight(), connection.bias
        parts = [p for p in block.parameters() if p.requires_grad]
        made = [weight, *([bias * 1] if isinstance(bias, Tensor) else [])]
        wanted = [joined[:, : weight.shape[1]], *([joined[:, -1]] if len(made) == 2 else [])]
        pairs = [(value, gradient) for value, gradient in zip(made, wanted, strict=True) if value.requires_grad]
        gradients = torch.autograd.grad([v for v, _ in pairs], parts, [g for _, g in pairs])
    return dict(zip(map(id, parts), gradients, strict=True))


def _parts(net: nn.Module) -> tuple[nn.Module, ETBlock, nn.Module]:
    """Split a network into what comes before its one block, the block, and what comes after."""
    modules = list(net) if isinstance(net, nn.Sequential) else [net]
    blocks = [(n, module) for n, module in enumerate(modules) if isinstance(module, ETBlock)]
    if len(blocks) != 1 or type(blocks[0][1].connection) not in (ETLinear, ETRecurrent):
        raise ValueError(
            f"{type(net).__name__}: real-time recurrent learning is written for one layer; pass an ETBlock of an "
            f"ETRecurrent or ETLinear, or an nn.Sequential that holds exactly one; use bptt_gradients for the rest"
        )
    place, block = blocks[0]
    before, after = nn.Sequential(*modules[:place]), nn.Sequential(*modules[place + 1 :])
    remembers = [type(m).__name__ for part in (before, after) for m in part.modules() if isinstance(m, Stateful)]
    trained = [name for part in (before, block.neuron) for name, _ in part.named_parameters()]
    if remembers or trained or not isinstance(block.norm, nn.Identity | None):
        raise ValueError(
            f"the block's influence alone is followed: {remembers or trained or [type(block.norm).__name__]} would "
            f"need an influence too; leave out memory outside the block, parameters before its weights or in its "
            f"neuron, and its norm; or use bptt_gradients"
        )
    return before, block, after


__all__ = ["rtrl_gradients", "snap_gradients", "uoro_gradients"]
