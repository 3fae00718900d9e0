"""The per-synapse eligibility of one block: exact for any elementwise neuron, B x O x I numbers per hidden value."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from snnlearn.functional.chunk import Parts, Restarts, fold_chunk, roll_leak_trace, scan_chunk, scan_leak
from snnlearn.functional.chunk_roll import empty_eligibility, read_norm, read_weights, roll_eligibility, roll_weights
from snnlearn.functional.chunked_step import ChunkSteps
from snnlearn.functional.dynamics import Jacobian, LeakTransition, leak_jacobian
from snnlearn.functional.precision import full_precision
from snnlearn.functional.side_by_side import SideBySide
from snnlearn.functional.sparse_eligibility import (
    fold_sparse_chunk,
    laid_by_input,
    read_sparse_norm,
    roll_sparse_eligibility,
    roll_sparse_inputs,
)
from snnlearn.functional.sparse_map import is_sparse
from snnlearn.functional.synaptic import inputs_of, step_eligibility, with_one
from snnlearn.functional.trace import advance_leak_trace_, read_leak_trace
from snnlearn.functional.traced_step import LinearisedStep, Step
from snnlearn.functional.weighted_map import WeightedMap, rows_of
from snnlearn.kernels import dispatch
from snnlearn.nn.clocked_trace import versions_of
from snnlearn.nn.step_trace import StepTrace


class KeptChunk(NamedTuple):
    """A chunk that the eligibility has not taken in yet: it does when the next step needs it, and often never has to.

    `jacobian` [H, H, K, B, ...] that the eligibility follows; `filter` what follows that, None for nothing; `inputs`
    [K, B, ..., I], or sparse rows [K B, I], with the one of a bias behind; `restarts` [K, B].
    """

    jacobian: Jacobian
    filter: LeakTransition | None
    inputs: SideBySide
    restarts: Restarts

    @property
    def rows(self) -> Tensor | None:
        """The sparse rows [K B, I] that the chunk was fed with, None for dense inputs."""
        first = self.inputs.parts[0]
        return first if is_sparse(first) else None

    def joined(self) -> "KeptChunk":
        """Return the chunk with dense inputs as one tensor, its one joined to them: what is larger needs that."""
        return self if self.rows is not None else self._replace(inputs=SideBySide((self.inputs.joined(),)))

    def gradient(
        self, signals: Tensor, entering: Parts | None, product: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> Tensor:
        """Return the chunk's share of dL/dW for the signals [K, B, ..., O] and the parts that enter it."""
        received, by_part = self.received(signals)
        if self.rows is not None:
            return fold_sparse_chunk(received, by_part, self.rows, entering, self.inputs.has_one)
        return fold_chunk(received, by_part, self.inputs, entering, product)

    def received(self, signals: Tensor) -> tuple[Tensor, Tensor]:
        """Return what meets the input of each step [K, B, ..., O] and the parts that enter [P, B, ..., O]."""
        if self.filter is None:
            return dispatch.run(scan_chunk, self.jacobian, signals, self.restarts)
        filtered, by_filter = dispatch.run(scan_leak, signals, self.filter, self.restarts)
        received, by_hidden = dispatch.run(scan_chunk, self.jacobian, filtered, self.restarts)
        return received, torch.cat([by_hidden, by_filter])

    def rolled(self, entering: Parts | None, shared: int = 0) -> Parts:
        """Return the parts at the end of the chunk; those that enter it are written over.

        At the start of a sequence the first `shared` of them, which are the same for all units, are left out.
        """
        product, weights = roll_weights(self.jacobian, self.filter, self.restarts)
        if entering is None and shared:
            product, weights = product[shared:, shared:], weights[shared:]
        if self.rows is not None:
            return roll_sparse_eligibility(entering, product, weights, self.rows, self.inputs.has_one)
        return dispatch.run(roll_eligibility, entering, product, weights, self.inputs.joined())

    def read_norm(self, entering: Parts | None) -> float:
        """Return the norm of what meets the signal of the chunk's last step."""
        product, weights = read_weights(self.jacobian, self.filter, self.restarts)
        if self.rows is not None:
            return read_sparse_norm(entering, product, weights, self.rows, self.inputs.has_one)
        return read_norm(entering, product, weights, self.inputs.joined())

    def rolled_inputs(self, values: Tensor | None, leak: LeakTransition) -> Tensor:
        """Return the trace of the inputs at the end of the chunk from that at its entry, None for zero."""
        if self.rows is not None:
            steps = len(self.jacobian.spike_input)
            return roll_sparse_inputs(values, self.rows, steps, leak, self.restarts, self.inputs.has_one)
        return dispatch.run(roll_leak_trace, values, self.inputs.joined(), leak, self.restarts)


class SynapticTrace(StepTrace):
    """Eligibility E = dh/dW of a linear connection: `snnlearn.functional.synaptic`, `snnlearn.functional.chunk`.

    `values` [K, B, ..., O, I] (one input more with a bias), K hidden values; `filtered_values` those of the filter;
    `spike_by_weight` [B, ..., O, I] is what the signal dL/ds of the step meets. Arguments as `StepTrace`.

    >>> SynapticTrace("a").norm()
    0.0
    """

    needs_jacobian = True
    transient: tuple[str, ...] = ("values", "filtered_values", *StepTrace.transient)
    plain: tuple[str, ...] = ("spike_by_weight", "kept", "kept_versions", "deferring", "settled_norm", *StepTrace.plain)
    takes_side_by_side = True
    values: Tensor | None = None
    filtered_values: Tensor | None = None
    spike_by_weight: Tensor | None = None
    kept: KeptChunk | None = None
    kept_versions: tuple[int, ...] = ()
    deferring: bool = False
    settled_norm: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no step has been taken in since the last reset."""
        return self.kept is None and (self.values is None or self.spike_by_weight is None)

    def start_weights(self, x: Tensor, step: Step) -> None:
        """Start from an eligibility of zero."""
        if self.deferring:
            return
        assert isinstance(step, LinearisedStep)
        drive, inputs = step.jacobian.drive, x.shape[-1] + self.has_bias
        self.values = empty_eligibility(len(drive), drive.shape[1:], inputs, drive).zero_()
        self.filtered_values = self.filter_start(self.values[0])

    def advance_(self, x: Tensor, step: Step) -> None:
        """Take in the step whose input is x [B, ..., I], and tick."""
        if not self.deferring:
            self.settle()
        self.settled_norm = None
        super().advance_(x, step)

    def advance_weights(self, x: Tensor, step: Step) -> None:
        """Keep ds/dW, filtered, and move E by the step's Jacobian."""
        if self.deferring:
            return
        assert isinstance(step, LinearisedStep)
        assert self.values is not None
        inputs = with_one(x) if self.has_bias else x
        spike_by_weight, self.values = step_eligibility(self.values, step.jacobian, inputs, step.ties)
        self.spike_by_weight = self.filtered(self.filtered_values, spike_by_weight)

    def advance_chunk_(self, x: Tensor | SideBySide, steps: ChunkSteps) -> None:
        """Keep a chunk with inputs x [K B, ..., I], and tick once; the eligibility takes it in when it is asked for."""
        self.settle()
        beside = x if isinstance(x, SideBySide) else SideBySide((x,))
        first = beside.parts[0]
        self.deferring = True
        try:  # the steps need no more than the inputs' shape
            super().advance_chunk_(first.new_empty((), layout=torch.strided).expand(x.shape), steps)
        finally:
            self.deferring = False
        self.spike_by_weight = self.settled_norm = None
        inputs = beside._replace(has_one=self.has_bias).each(Tensor.detach)
        inputs = inputs if is_sparse(first) else inputs.each(steps.unfolded)
        self.kept = KeptChunk(self.chunk_jacobian(steps), self.filter, inputs, steps.restarts)
        self.kept_versions = versions_of(inputs.parts)

    def chunk_jacobian(self, steps: ChunkSteps) -> Jacobian:
        """Return the Jacobian that the eligibility of the weights follows, filter aside."""
        return steps.unfolded_jacobian()

    def parts(self) -> list[Tensor] | None:
        """Return E and the values of the filter, a tensor [B, ..., O, I] each; None before the first step."""
        if self.values is None:
            return None
        return [*self.values, *(() if self.filtered_values is None else self.filtered_values)]

    def settle(self) -> None:
        """Take in the chunk that is kept, if there is one."""
        if self.kept is None:
            return
        self.check_unchanged(self.kept.inputs.parts, self.kept_versions)
        kept, self.kept = self.kept.joined(), None
        with full_precision(kept.jacobian.drive.device):
            self.take_chunk(kept)

    def take_chunk(self, kept: KeptChunk) -> None:
        """Move E and the values of the filter through a chunk."""
        if kept.rows is not None and self.values is not None:
            self.values = laid_by_input(self.values)
        self.lay_filter(kept)
        parts = kept.rolled(self.parts())
        if isinstance(parts, Tensor):  # the first; later ones are written over
            hidden = len(kept.jacobian.drive)
            self.values, self.filtered_values = parts[:hidden], None if kept.filter is None else parts[hidden:]

    def lay_filter(self, kept: KeptChunk) -> None:
        """Let the values of the filter lie in memory as sparse events are added to them, if the chunk has such."""
        if kept.rows is not None and self.filtered_values is not None:
            self.filtered_values = laid_by_input(self.filtered_values)

    def weight_gradients(
        self, tick: int, signal: Tensor, weighted_map: WeightedMap, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the sum over the batch of signal * ds/dW, and the same for the bias (zeros where there is none)."""
        self.check(tick)
        assert self.spike_by_weight is not None
        gathered = torch.einsum("no,noi->oi", rows_of(signal), self.spike_by_weight.flatten(0, -3))
        return self._apart(gathered)

    def chunk_weight_gradients(
        self, tick: int, signal: Tensor, weighted_map: WeightedMap, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return dL/dW and dL/db for the signals [K B, ..., O] of the chunk that is kept."""
        self.check(tick)
        assert self.kept is not None
        self.check_unchanged(self.kept.inputs.parts, self.kept_versions)
        signals = signal.unflatten(0, self.kept.jacobian.spike_input.shape[:2]).to(self.kept.jacobian.drive.dtype)
        product = partial(weighted_map.weight_gradient, weight=weight)
        return self._apart(self.kept.gradient(signals, self.parts(), product))

    def _apart(self, gathered: Tensor) -> tuple[Tensor, Tensor]:
        if not self.has_bias:
            return gathered, gathered.new_zeros(gathered.shape[0])
        return gathered[:, :-1], gathered[:, -1]

    def norm(self) -> float:
        """Return the Euclidean norm of ds/dW of the last step (of E, right after its state was loaded), or 0.0."""
        if self.settled_norm is not None:
            return self.settled_norm
        if self.spike_by_weight is not None:
            return float(self.spike_by_weight.norm())
        if self.kept is not None:
            self.check_unchanged(self.kept.inputs.parts, self.kept_versions)
            with full_precision(self.kept.jacobian.drive.device):
                return self.kept.read_norm(self.parts())
        return 0.0 if self.values is None else float(self.values.norm())

    def settle_ahead(self) -> None:
        """Take in the chunk that is kept before the next step asks for it, for a copy of the state."""
        if self.kept is not None:
            norm = self.norm()
            self.settle()
            self.settled_norm = norm

    def stash(self) -> dict[str, Any]:
        """Return the transient state by reference, the chunk that was kept in it."""
        self.settle_ahead()
        return super().stash()

    def watched(self) -> dict[str, Any]:
        """Return what a NaN would show in: the state, and a chunk that is kept as it came."""
        if self.kept is None:
            return super().watched()
        rows = self.kept.rows
        inputs = self.kept.inputs.parts if rows is None else (rows.values(),)
        return {**super().stash(), "kept": (*self.kept.jacobian, *inputs)}

    def reset(self, rows: Bool[Tensor, " batch"] | None = None) -> None:
        """Forget the eligibilities, or the rows where `rows` [B] is true; a backward still pending then raises."""
        if rows is None:
            self.kept = None
        self.settle()
        super().reset(rows)

    def restart(self, rows: Bool[Tensor, " batch"]) -> None:
        """Let rows begin anew within a chunk: what follows the weights learns of it from the chunk itself."""
        held = self.values, self.filtered_values
        self.values = self.filtered_values = None
        StepTrace.reset(self, rows)
        self.values, self.filtered_values = held

    def forget_step(self) -> None:
        """Drop ds/dW and ds/dp of the last step."""
        super().forget_step()
        self.spike_by_weight = self.settled_norm = None

    def __getstate__(self) -> dict[str, object]:
        """Return attributes for copies and pickles, the chunk that was kept taken in."""
        self.settle_ahead()
        return super().__getstate__()


class FilteredTrace(SynapticTrace):
    """A filtered eligibility whose transition is one constant for the layer, so that only the filter is per synapse.

    With the trace a of the input, which decays by `leak`, ds/dW of the step is ds/dy (x) a; the filter then runs per
    synapse: `filtered_values` [F, B, ..., O, I], `values` [K, B, ..., I]. Batch statistics tie a by this step's share
    alone. The rest as `StepTrace`.

    >>> from snnlearn.functional import lif_leak_transition
    >>> FilteredTrace(lif_leak_transition(0.5), lif_leak_transition(0.9), "a").norm()
    0.0
    """

    needs_jacobian = False

    def __init__(
        self,
        leak: LeakTransition,
        filter: LeakTransition | None,
        name: str = "this block",
        has_bias: bool = True,
        mean_leak: LeakTransition | None = None,
    ) -> None:
        super().__init__(name, filter, has_bias, mean_leak)
        self.leak = leak

    def extra_repr(self) -> str:
        """Return the transition in effect."""
        return f"transition={self.leak.transition}, {super().extra_repr()}"

    def start_weights(self, x: Tensor, step: Step) -> None:
        """Start from a trace of zero."""
        if self.deferring:
            return
        inputs = with_one(x) if self.has_bias else x
        wide = torch.promote_types(x.dtype, step.spike_input.dtype)
        self.values = inputs.new_zeros((len(self.leak.drive), *inputs.shape), dtype=wide)
        self.filtered_values = self.filter_start(step.spike_input.unsqueeze(-1) * self.values[0].unsqueeze(-2))

    def advance_weights(self, x: Tensor, step: Step) -> None:
        """Take x into its trace and ds/dW of the step into the filter."""
        if self.deferring:
            return
        assert self.values is not None
        inputs = with_one(x) if self.has_bias else x
        advance_leak_trace_(self.values, inputs.to(self.values.dtype), self.leak)
        trace = read_leak_trace(self.values, self.leak)
        eligibility = step.spike_input.unsqueeze(-1) * inputs_of(trace, step.ties)
        self.spike_by_weight = self.filtered(self.filtered_values, eligibility)

    def chunk_jacobian(self, steps: ChunkSteps) -> Jacobian:
        """Return the Jacobian of a unit whose hidden values are the trace of its inputs: constant, read by ds/dy."""
        return leak_jacobian(self.leak, steps.unfolded(steps.spike_input))

    def parts(self) -> list[Tensor] | None:
        """Return the trace of the inputs, the same for all units [B, ..., 1, I], and the values of the filter."""
        if self.values is None:
            return None
        return [*self.values.unsqueeze(-2), *(() if self.filtered_values is None else self.filtered_values)]

    def take_chunk(self, kept: KeptChunk) -> None:
        """Move the trace of the inputs and the values of the filter through a chunk."""
        if kept.filter is not None:
            self.lay_filter(kept)
            parts = kept.rolled(self.parts(), shared=len(self.leak.drive))
            self.filtered_values = parts if isinstance(parts, Tensor) else self.filtered_values
        self.values = kept.rolled_inputs(self.values, self.leak)


__all__ = ["FilteredTrace", "KeptChunk", "SynapticTrace"]
