"""A filtered eligibility under a constant transition: the filter alone is kept per synapse."""

import torch
from torch import Tensor

from snnlearn.functional.chunk_roll import empty_eligibility
from snnlearn.functional.chunked_step import ChunkSteps
from snnlearn.functional.dynamics import Jacobian, LeakTransition, leak_jacobian
from snnlearn.functional.synaptic import inputs_of, with_one
from snnlearn.functional.trace import advance_leak_trace_, read_leak_trace
from snnlearn.functional.traced_step import Step
from snnlearn.nn.kept_chunk import KeptChunk
from snnlearn.nn.synaptic_trace import SynapticTrace


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
        self.filtered_values = self._filter_of_zero(step.spike_input.to(wide), inputs.shape[-1])

    def _filter_of_zero(self, units: Tensor, inputs: int) -> Tensor | None:
        if self.filter is None:
            return None
        room = self.room_for_parts()
        self.room = empty_eligibility(len(self.filter.drive), units.shape, inputs, units, room).zero_()
        return self.room

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
            parts = kept.rolled(self.parts(), len(self.leak.drive), self.room_for_parts())
            if isinstance(parts, Tensor):
                self.filtered_values, self.room = parts, parts if kept.rows is None else None
        self.values = kept.rolled_inputs(self.values, self.leak)


__all__ = ["FilteredTrace"]
