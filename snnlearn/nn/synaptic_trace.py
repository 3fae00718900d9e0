"""The per-synapse eligibility of one block: exact for any elementwise neuron, B x O x I numbers per hidden value."""

import torch
from torch import Tensor

from snnlearn.functional.dynamics import LeakTransition
from snnlearn.functional.synaptic import inputs_of, step_eligibility, with_one
from snnlearn.functional.trace import advance_leak_trace_, read_leak_trace
from snnlearn.functional.traced_step import LinearisedStep, Step
from snnlearn.functional.weighted_map import WeightedMap, rows_of
from snnlearn.nn.step_trace import StepTrace


class SynapticTrace(StepTrace):
    """Eligibility E = dh/dW of a linear connection: `snnlearn.functional.synaptic`.

    `values` [K, B, ..., O, I] (one input more with a bias), K hidden values; `filtered_values` those of the filter;
    `spike_by_weight` [B, ..., O, I] is what the signal dL/ds of the step meets. Arguments as `StepTrace`.

    >>> SynapticTrace("a").norm()
    0.0
    """

    needs_jacobian = True
    transient: tuple[str, ...] = ("values", "filtered_values", *StepTrace.transient)
    plain: tuple[str, ...] = ("spike_by_weight", *StepTrace.plain)
    values: Tensor | None = None
    filtered_values: Tensor | None = None
    spike_by_weight: Tensor | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no step has been taken in since the last reset."""
        return self.values is None or self.spike_by_weight is None

    def start_weights(self, x: Tensor, step: Step) -> None:
        """Start from an eligibility of zero."""
        assert isinstance(step, LinearisedStep)
        drive, inputs = step.jacobian.drive, x.shape[-1] + self.has_bias
        self.values = drive.new_zeros((*drive.shape, inputs))
        self.filtered_values = self.filter_start(self.values[0])

    def advance_weights(self, x: Tensor, step: Step) -> None:
        """Keep ds/dW, filtered, and move E by the step's Jacobian."""
        assert isinstance(step, LinearisedStep)
        assert self.values is not None
        inputs = with_one(x) if self.has_bias else x
        spike_by_weight, self.values = step_eligibility(self.values, step.jacobian, inputs, step.ties)
        self.spike_by_weight = self.filtered(self.filtered_values, spike_by_weight)

    def weight_gradients(
        self, tick: int, signal: Tensor, weighted_map: WeightedMap, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the sum over the batch of signal * ds/dW, and the same for the bias (zeros where there is none)."""
        self.check(tick)
        assert self.spike_by_weight is not None
        gathered = torch.einsum("no,noi->oi", rows_of(signal), self.spike_by_weight.flatten(0, -3))
        if not self.has_bias:
            return gathered, gathered.new_zeros(gathered.shape[0])
        return gathered[:, :-1], gathered[:, -1]

    def norm(self) -> float:
        """Return the Euclidean norm of ds/dW of the last step; 0.0 before the first."""
        return 0.0 if self.spike_by_weight is None else float(self.spike_by_weight.norm())

    def forget_step(self) -> None:
        """Drop ds/dW and ds/dp of the last step."""
        super().forget_step()
        self.spike_by_weight = None


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
        inputs = with_one(x) if self.has_bias else x
        wide = torch.promote_types(x.dtype, step.spike_input.dtype)
        self.values = inputs.new_zeros((len(self.leak.drive), *inputs.shape), dtype=wide)
        self.filtered_values = self.filter_start(step.spike_input.unsqueeze(-1) * self.values[0].unsqueeze(-2))

    def advance_weights(self, x: Tensor, step: Step) -> None:
        """Take x into its trace and ds/dW of the step into the filter."""
        assert self.values is not None
        inputs = with_one(x) if self.has_bias else x
        advance_leak_trace_(self.values, inputs.to(self.values.dtype), self.leak)
        trace = read_leak_trace(self.values, self.leak)
        eligibility = step.spike_input.unsqueeze(-1) * inputs_of(trace, step.ties)
        self.spike_by_weight = self.filtered(self.filtered_values, eligibility)


__all__ = ["FilteredTrace", "SynapticTrace"]
