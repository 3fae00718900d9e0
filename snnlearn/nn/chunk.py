"""A chunk of steps folded into the batch: who is told of it, and how a neuron runs through it.

Inside `in_chunk(net, Chunk(K))` every tensor of the network is [K B, ...], time first. Layers without state never
notice; blocks, neurons and masks that last a sequence unfold what they get. Equations: `snnlearn.functional.chunk`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn.functional.chunk import Restarts, rows_at
from snnlearn.functional.cut_step import spike_gate
from snnlearn.functional.dynamics import State
from snnlearn.functional.leak_block import pays_as_block, run_leak
from snnlearn.functional.trace import flush_subnormals
from snnlearn.functional.traced_step import DirectDerivative, LinearisedStep
from snnlearn.kernels import dispatch
from snnlearn.nn.probe import jacobian_at
from snnlearn.nn.state import StateShapeError, zero_rows

if TYPE_CHECKING:
    from snnlearn.nn.lif import FiringNeuron
    from snnlearn.nn.neuron import Neuron


class Chunk(NamedTuple):
    """K steps at once: `steps` K; `restarts` [K, B], true where a row begins a new sequence before a step.

    >>> Chunk(2).unfolded(torch.zeros(6, 4)).shape
    torch.Size([2, 3, 4])
    """

    steps: int
    restarts: Restarts = None

    def unfolded(self, values: Tensor) -> Tensor:
        """Return values [K B, ...] as [K, B, ...]; raise StateShapeError where K does not divide their number."""
        if values.shape[0] % self.steps:
            raise StateShapeError(
                f"a chunk of {self.steps} steps met {list(values.shape)}: its first dimension is steps times batch; "
                f"fold as many steps as Chunk(K) says, x[t:t + K].flatten(0, 1); or a layer before has changed the "
                f"batch, which a chunk cannot follow: write chunk=1"
            )
        unfolded: Tensor = values.unflatten(0, (self.steps, -1))
        return unfolded

    def check_rows(self, values: Tensor, state: State | None) -> None:
        """Raise StateShapeError where values [K B, ...] make another B than `state` carries from the chunk before."""
        if not state or values.shape[0] % self.steps or len(state[0]) * self.steps == values.shape[0]:
            return
        raise StateShapeError(
            f"a chunk of {self.steps} steps met {list(values.shape)}, {values.shape[0] // self.steps} rows a step, and "
            f"the state carried from the step before has {len(state[0])}: the first dimension is steps times batch, "
            f"K B, and K may not fit; write Chunk(K) for x[t:t + K].flatten(0, 1), the last chunk with what is left, "
            f"or call reset(net) where a new sequence begins"
        )

    def rows_at(self, t: int) -> Tensor | None:
        """Return the rows [B] that restart before step t, None for none."""
        return rows_at(self.restarts, t)


@contextmanager
def in_chunk(net: nn.Module, chunk: Chunk | None) -> Iterator[None]:
    """Let the modules of `net` take their inputs for chunks while the context lasts.

    >>> with in_chunk(nn.Linear(1, 1), Chunk(2)):
    ...     pass
    """
    told = [vars(module) for module in net.modules() if "chunk" in vars(module)]
    hubs = {id(hub): vars(hub) for module in net.modules() if (hub := vars(module).get("hub")) is not None}
    for attributes in hubs.values():
        attributes.update(targets=[], learning=[])
    told += hubs.values()
    for attributes in told:
        attributes["chunk"] = chunk
    try:
        yield
    finally:
        for attributes in told:
            attributes["chunk"] = None


class NeuronScan(NamedTuple):
    """A neuron's run through a chunk: spikes [K, B, *units], inputs y, and the state before each step, all [K, B, ...].

    `before` are the spikes of the step before each [K, B, *units], which a recurrent connection fed back.
    """

    spikes: Tensor
    y: Tensor
    entering: State
    before: Tensor | None
    membrane: Tensor | None


def scan_neuron(
    neuron: "Neuron",
    y: Tensor,
    chunk: Chunk,
    recurrent_weight: Tensor | None = None,
    spikes: Tensor | None = None,
    shows_membrane: bool = False,
) -> NeuronScan:
    """Step `neuron` through y [K, B, *units] outside autograd, and keep its new state.

    With `recurrent_weight` V [O, O] the spikes of the step before, `spikes` [B, O] at the entry, are added to y by it.
    A neuron with a scan of its own (`FiringNeuron.scan`) runs by that, where nothing is fed back or shown.

    >>> from snnlearn.nn import LIF
    >>> scan_neuron(LIF(), torch.full((2, 1, 1), 0.8), Chunk(2)).spikes.flatten()
    tensor([0., 1.])
    """
    state = neuron.state_for(y[0])
    entering = tuple(value.new_empty((chunk.steps, *value.shape)) for value in state)
    if recurrent_weight is None and not shows_membrane:
        if _scans(neuron):
            return _scanned(neuron, y, chunk, entering)[0]
        if neuron.is_leak and chunk.restarts is None and pays_as_block(y):
            return _leaked(neuron, y, state)

    def advance(y_t: Tensor, t: int) -> Tensor:
        before = neuron.state_for(y_t)
        for kept, value in zip(entering, before, strict=True):
            kept[t] = value
        spike, after = neuron._unpacked(neuron.step(y_t, before))
        neuron.state = tuple(flush_subnormals(value.detach()) for value in after)
        return spike.detach()

    return _scan(neuron, y, chunk, recurrent_weight, spikes, shows_membrane, advance)._replace(entering=entering)


def scan_cut(neuron: "FiringNeuron", y: Tensor, chunk: Chunk) -> tuple[NeuronScan, Tensor]:
    """Return what `scan_neuron` does and u = membrane - threshold [K, B, *units], where the past is a constant.

    >>> from snnlearn.nn import LIF
    >>> scan_cut(LIF(), torch.full((2, 1, 1), 0.75), Chunk(2))[1].flatten()
    tensor([-0.2500,  0.1250])
    """
    if _scans(neuron):
        return _scanned(neuron, y, chunk, None)
    u = torch.empty_like(y)

    def advance(y_t: Tensor, t: int) -> Tensor:
        spike, u[t] = neuron.advance_cut(y_t)
        return spike

    return _scan(neuron, y, chunk, None, None, False, advance), u


def scan_gated(
    neuron: "FiringNeuron",
    y: Tensor,
    chunk: Chunk,
    recurrent_weight: Tensor | None = None,
    spikes: Tensor | None = None,
    shows_membrane: bool = False,
) -> tuple[NeuronScan, Tensor]:
    """Return what `scan_neuron` does and ds/dy = psi(u) [K, B, *units], where the past is a constant.

    Stepwise psi(u) is found while u is in the cache; u itself is not kept.

    >>> from snnlearn.nn import LIF
    >>> scan_gated(LIF(), torch.full((1, 1, 1), 1.0), Chunk(1))[1].flatten()
    tensor([1.])
    """
    if recurrent_weight is None and not shows_membrane and _scans(neuron):
        found, u = _scanned(neuron, y, chunk, None)
        return found, dispatch.run(spike_gate, u, neuron.surrogate)
    gate = torch.empty_like(y, dtype=torch.promote_types(y.dtype, torch.float32))

    step = neuron.advance_cut if recurrent_weight is None else neuron.advance_over  # y is written to anyway

    def advance(y_t: Tensor, t: int) -> Tensor:
        spike, u = step(y_t)
        gate[t] = neuron.surrogate.derivative(u)
        return spike

    found = _scan(neuron, y, chunk, recurrent_weight, spikes, shows_membrane, advance)
    if recurrent_weight is not None and neuron.state is not None:
        neuron.state = tuple(value.clone() for value in neuron.state)  # not a view that holds the whole chunk
    return found, gate


def _leaked(neuron: "Neuron", y: Tensor, state: State) -> NeuronScan:
    """Return the run of a neuron that is a leak and nothing else, and keep its new state."""
    wide = y.to(torch.promote_types(y.dtype, state[0].dtype))
    found, last = run_leak(wide, neuron.leak_transition(), torch.stack(state))
    neuron.state = tuple(last)
    return NeuronScan(found, y, (torch.cat([state[0][None], found[:-1]]),), None, None)


def _scans(neuron: "Neuron") -> TypeGuard["FiringNeuron"]:
    return getattr(neuron, "has_scan", False)


def _scanned(neuron: "FiringNeuron", y: Tensor, chunk: Chunk, entering: State | None) -> tuple[NeuronScan, Tensor]:
    """Return the neuron's scan of the chunk and u, and keep its new state."""
    spikes, u, neuron.state = neuron.scan(y, neuron.state_for(y[0]), chunk.restarts, entering)
    return NeuronScan(spikes, y, entering or (), None, None), u


def _scan(
    neuron: "Neuron",
    y: Tensor,
    chunk: Chunk,
    recurrent_weight: Tensor | None,
    spikes: Tensor | None,
    shows_membrane: bool,
    advance: Callable[[Tensor, int], Tensor],
) -> NeuronScan:
    entering, row = spikes, None
    fed: list[Tensor] = []
    shown: list[Tensor] = []
    for t in range(chunk.steps):
        rows = chunk.rows_at(t)
        if rows is not None:
            neuron.reset(rows)
            spikes = None if spikes is None else zero_rows(spikes, rows)
        if recurrent_weight is not None and spikes is not None:
            if chunk.restarts is not None:
                fed.append(spikes)
            _feed_(y[t], spikes.to(recurrent_weight.dtype), recurrent_weight)
        spikes = advance(y[t], t)
        if row is None:  # the spikes of all steps behind those that enter, so that it is also what was fed back
            row = spikes.new_empty((chunk.steps + 1, *spikes.shape))
            if entering is not None:
                row[0] = entering
        row[t + 1] = spikes
        if shows_membrane and neuron.state is not None:
            shown.append(neuron.state[0])
    assert row is not None, "a chunk has a step"
    before = None if recurrent_weight is None else torch.stack(fed) if fed else row[:-1]
    return NeuronScan(row[1:], y, (), before, torch.stack(shown) if shown else None)


def _feed_(y: Tensor, spikes: Tensor, weight: Tensor) -> None:
    """Add what the block's own spikes [B, O] bring by V [O, O] to y [B, O], in one pass where it can be one."""
    if spikes.dim() == 2 and spikes.dtype == y.dtype:
        y.addmm_(spikes, weight.T)
    else:
        y += F.linear(spikes, weight)


def step_of_scan(neuron: "Neuron", scan: NeuronScan) -> LinearisedStep:
    """Return all steps of a chunk as one of K B rows, with its derivatives: a step is elementwise, so it may."""
    y = scan.y.flatten(0, 1)
    state = tuple(value.flatten(0, 1) for value in scan.entering)
    parameters: tuple[DirectDerivative, ...] = ()
    if next(neuron.parameters(), None) is not None:
        batch = scan.y.shape[1]
        parameters = tuple(
            d if d.initial is None else d._replace(initial=d.initial[:, :batch])
            for d in neuron.direct_derivatives(y, state)
        )
    return LinearisedStep(scan.spikes.flatten(0, 1), jacobian_at(neuron, y, state), parameters)


__all__ = ["Chunk", "NeuronScan", "in_chunk", "scan_cut", "scan_gated", "scan_neuron", "step_of_scan"]
