"""Autograd's own gradient, with chosen edges between timesteps cut: what every rule is held against.

Nothing of the rules is used here: layers run as plain torch layers, neurons as their plain step, and
autograd goes back through the whole unrolled sequence.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn.engine.losses import LossRun, StepLoss
from snnlearn.engine.sequence import sequence_length, steps_of
from snnlearn.functional.arguments import is_whole
from snnlearn.nn.block import ETBlock, Readout
from snnlearn.nn.connection import Connection
from snnlearn.nn.neuron import Neuron
from snnlearn.nn.recurrent import ETRecurrent
from snnlearn.nn.state import Stateful, stashed_state

CARRIERS = (Neuron, ETRecurrent)
"""Modules that carry a graph from one step to the next."""


def bptt_gradients(
    net: nn.Module,
    x: Iterable[Tensor],
    y: Any,
    loss: StepLoss = F.cross_entropy,
    cut: Iterable[str] | str = (),
    per_step_target: bool = False,
    cut_recurrent: bool = False,
    cut_mean: bool = False,
    window: int | None = None,
) -> dict[str, Tensor]:
    """Return autograd's gradient of the sequence loss for every parameter that requires one, by name.

    `x` [T, B, ...] or an iterable of [B, ...]; `y` and `per_step_target` as for `OnlineLearner.learn`; the loss of
    the sequence is the mean over its counted steps. `cut` names modules whose neurons take the state of the step
    before as a constant, or "all" for every neuron (and the loss's running mean); `cut_recurrent` makes every
    recurrent connection take the spikes of the step before as a constant, as cutting its whole block does; `cut_mean`
    takes the running mean as online rules do, its past a constant; `window` cuts every edge, the mean's too, between
    windows of so many steps. State, traces, buffers and `.grad` of `net` stay as
    they were. Raises ValueError for a name in `cut` without neurons and for a window that is no whole number from 1.

    >>> from snnlearn import ETBlock, ETLinear, LI
    >>> net = ETBlock(ETLinear(3, 2), LI())
    >>> sorted(bptt_gradients(net, torch.ones(5, 4, 3), torch.tensor([0, 1, 0, 1])))
    ['connection.bias', 'connection.weight']
    """
    if window is not None and not is_whole(window, 1):
        raise ValueError(f"window={window!r}: a whole number of steps from 1, or None for no window; write window=10")
    carriers, every = _carriers_to_cut(net, cut), _carriers_to_cut(net, "all")
    if cut_recurrent:
        carriers += [module for module in net.modules() if isinstance(module, ETRecurrent)]
    named = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
    with _plain(net), torch.enable_grad():
        run = LossRun(loss, sequence_length(x), through_time=cut != "all" and not cut_mean)
        losses = []
        for step, (x_t, target) in enumerate(steps_of(x, y, per_step_target)):
            begins = window is not None and step % window == 0
            for carrier in every if begins else carriers:
                _cut(carrier)
            if begins:
                run.detach()
            step_loss = run.step(net(x_t), target)
            if step_loss is not None:
                losses.append(step_loss)
        if not losses:
            raise ValueError("no step of this sequence has a target that counts, so there is no loss to differentiate")
        mean = torch.stack(losses).mean()
        gradients = torch.autograd.grad(mean, [p for _, p in named], allow_unused=True, materialize_grads=True)
    return {name: gradient for (name, _), gradient in zip(named, gradients, strict=True)}


def _carriers_to_cut(net: nn.Module, cut: Iterable[str] | str) -> list[Stateful]:
    if cut == "all":
        return [module for module in net.modules() if isinstance(module, CARRIERS)]
    if isinstance(cut, str):
        raise ValueError(f"cut={cut!r}: write 'all', or a collection of module names such as cut=[{cut!r}]")
    carriers: list[Stateful] = []
    modules = dict(net.named_modules())
    for name in cut:
        found = [m for m in modules[name].modules() if isinstance(m, CARRIERS)] if name in modules else []
        if not found:
            neurons = [n for n, module in modules.items() if isinstance(module, Neuron)]
            raise ValueError(f"cut names {name!r}, which has no neuron: the network's neurons are {neurons}")
        carriers.extend(found)
    return carriers


def _cut(carrier: Stateful) -> None:
    kept = carrier.stash()
    carrier.restore({name: carrier._map(value, lambda t: t.detach()) for name, value in kept.items()})


@contextmanager
def _plain(net: nn.Module) -> Iterator[None]:
    """Run `net` as an ordinary recurrent network, and put rule, state and buffers back afterwards."""
    traces = [(module, module.trace) for module in net.modules() if isinstance(module, Connection)]
    graphs = [(module, module.carry_graph) for module in net.modules() if isinstance(module, Neuron)]
    buffers = [(buffer, buffer.clone()) for buffer in net.buffers()]
    signals = [(block, block.signal, block.rate) for block in net.modules() if isinstance(block, ETBlock)]
    feedbacks = [(module, module.feedback) for module in net.modules() if isinstance(module, ETBlock | Readout)]
    with stashed_state(net):
        try:
            for connection, _ in traces:
                connection.hold_trace(None)
            for block, _, _ in signals:
                block.signal = block.rate = None
            for module, _ in feedbacks:
                module.feedback = None
            for neuron, _ in graphs:
                neuron.carry_graph = True
            yield
        finally:
            for connection, trace in traces:
                connection.hold_trace(trace)
            for block, signal, rate in signals:
                block.signal, block.rate = signal, rate
            for module, feedback in feedbacks:
                module.feedback = feedback
            for neuron, carry in graphs:
                neuron.carry_graph = carry
    with torch.no_grad():
        for buffer, kept in buffers:
            buffer.copy_(kept)


__all__ = ["bptt_gradients"]
