"""Factored eligibilities of a whole step: one factor per input and one per unit, for any connection."""

from typing import NamedTuple

import torch
from torch import Tensor

from snnlearn.functional.chunked_step import ChunkSteps
from snnlearn.functional.dynamics import LeakTransition
from snnlearn.functional.eligibility import bias_gradient
from snnlearn.functional.factored import (
    advance_ratio_trace,
    membrane_ratio,
    per_row,
    step_output_factor,
)
from snnlearn.functional.trace import advance_leak_trace_, read_leak_trace
from snnlearn.functional.traced_step import LinearisedStep, Step
from snnlearn.functional.weighted_map import WeightedMap
from snnlearn.nn.signal_hub import SignalError
from snnlearn.nn.step_trace import StepTrace


class PostTrace(NamedTuple):
    """The post-synaptic half of S-TLLR: `decay` per step of the trace of ds/dy, and the weights of both terms.

    `causal` multiplies the term of the input's trace, `acausal` that of the unit's trace.

    >>> PostTrace(decay=0.2, acausal=-1.0).causal
    1.0
    """

    decay: float
    acausal: float
    causal: float = 1.0


class FactoredTrace(StepTrace):
    """Traces of the input and of a constant one, met by a gate per unit: `snnlearn.functional.factored`.

    `leak` the transition of the input's trace; `post` the post-synaptic trace, None for none; the rest as `StepTrace`.
    The gate is what the relay is: ds/dy or its leaky mean. `values` [K, B, *inputs], `one_values` [K, B].

    >>> from snnlearn.functional import lif_leak_transition
    >>> FactoredTrace(lif_leak_transition(0.5), "a").norm()
    0.0
    """

    transient: tuple[str, ...] = (
        "values",
        "one_values",
        "filtered_values",
        "filtered_ones",
        "post_values",
        *StepTrace.transient,
    )
    plain: tuple[str, ...] = ("post_before", "present", "trace", "trace_of_one", *StepTrace.plain)
    per_step: tuple[str, ...] = ("post_before", "present", "trace", "trace_of_one", *StepTrace.per_step)
    values: Tensor | None = None
    one_values: Tensor | None = None
    filtered_values: Tensor | None = None
    filtered_ones: Tensor | None = None
    post_values: Tensor | None = None
    post_before: Tensor | None = None
    present: Tensor | None = None
    trace: Tensor | None = None
    trace_of_one: Tensor | None = None

    def __init__(
        self,
        leak: LeakTransition,
        name: str = "this block",
        filter: LeakTransition | None = None,
        has_bias: bool = True,
        mean_leak: LeakTransition | None = None,
        post: PostTrace | None = None,
    ) -> None:
        super().__init__(name, filter, has_bias, mean_leak)
        self.leak, self.post = leak, post

    @property
    def is_empty(self) -> bool:
        """Whether no step has been taken in since the last reset."""
        return self.values is None or self.trace is None

    def extra_repr(self) -> str:
        """Return the transition in effect."""
        return f"transition={self.leak.transition}, post={self.post}, {super().extra_repr()}"

    def start_weights(self, x: Tensor, step: Step) -> None:
        """Start from traces of zero."""
        hidden = len(self.leak.drive)
        wide = torch.promote_types(x.dtype, step.spike_input.dtype)
        self.values = x.new_zeros((hidden, *x.shape), dtype=wide)
        self.one_values = x.new_zeros((hidden, x.shape[0]), dtype=wide)
        self.filtered_values = self.filter_start(self.values[0])
        self.filtered_ones = self.filter_start(self.one_values[0])
        self.post_values = torch.zeros_like(step.spike_input)[None]

    def advance_weights(self, x: Tensor, step: Step) -> None:
        """Take x and ds/dy of the step into the traces and keep what the signal meets."""
        assert self.values is not None
        assert self.one_values is not None
        self.advance_input(x)
        self.trace = self.filtered(self.filtered_values, read_leak_trace(self.values, self.leak))
        ones = torch.ones_like(self.one_values[0])
        advance_leak_trace_(self.one_values, ones, self.leak)
        self.trace_of_one = self.filtered(self.filtered_ones, read_leak_trace(self.one_values, self.leak))
        if self.post is not None:
            assert self.post_values is not None
            self.present, self.post_before = x, self.post_values[0]
            self.post_values = torch.add(step.spike_input, self.post_before, alpha=self.post.decay)[None]

    def advance_input(self, x: Tensor) -> None:
        """Take x into the trace of the input."""
        assert self.values is not None
        advance_leak_trace_(self.values, x.to(self.values.dtype), self.leak)

    def weight_gradients(
        self, tick: int, signal: Tensor, weighted_map: WeightedMap, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return dL/dW and dL/db for the signal [B, *units]."""
        self.check(tick)
        assert self.gate is not None
        assert self.trace is not None
        d = self.tied(signal * self.gate if self.post is None else signal * self.gate * self.post.causal)
        by_weight = weighted_map.weight_gradient(d, self.trace.to(d.dtype), weight)
        by_bias = bias_gradient(weighted_map.units_last(d), self.trace_of_one)
        if self.post is None:
            return by_weight, by_bias
        assert self.present is not None
        assert self.post_before is not None
        earlier = self.tied(signal * self.post_before * self.post.acausal)
        by_weight = by_weight + weighted_map.weight_gradient(earlier, self.present.to(earlier.dtype), weight)
        return by_weight, by_bias + bias_gradient(weighted_map.units_last(earlier), None)

    def norm(self) -> float:
        """Return the Euclidean norm of the trace that meets the signal; 0.0 before the first step."""
        if self.trace is None or self.values is None:
            return 0.0
        return float(self.trace[-self.values.shape[1] :].norm())  # of a chunk, the last step

    def forget_step(self) -> None:
        """Drop what the last step left for its backward."""
        super().forget_step()
        self.post_before = self.present = self.trace = self.trace_of_one = None


class RatioTrace(FactoredTrace):
    """A trace that decays by the ratio of the sending neurons' membranes: NDOT, `snnlearn.functional.factored`.

    Before each step the block hands over the membranes after reset [B, *inputs] of the neurons that send x, with
    `take_membrane`. The first block of a network (`is_first`) gets x from outside, and its trace decays with `leak`;
    another without membranes raises SignalError. The rest as `FactoredTrace`.

    >>> from snnlearn.functional import lif_leak_transition
    >>> RatioTrace(lif_leak_transition(0.5), "a").norm()
    0.0
    """

    is_first = True

    transient: tuple[str, ...] = ("membrane_now", "membrane_before", *FactoredTrace.transient)
    plain: tuple[str, ...] = ("arriving", "arriving_chunk", *FactoredTrace.plain)
    membrane_now: Tensor | None = None
    membrane_before: Tensor | None = None
    arriving: Tensor | None = None
    arriving_chunk: Tensor | None = None

    def take_membrane(self, membrane: Tensor | None) -> None:
        """Note the membranes [B, *inputs] that belong to the coming input; those of a chunk are [K B, *inputs]."""
        self.arriving = membrane

    def advance_chunk_(self, x: Tensor, steps: ChunkSteps) -> None:
        """Take in a chunk, each step with its own membranes."""
        self.arriving_chunk = None if self.arriving is None else steps.unfolded(self.arriving)
        super().advance_chunk_(x, steps)
        self.arriving_chunk = None

    def begin_step(self, t: int) -> None:
        """Note the membranes of step t."""
        self.arriving = None if self.arriving_chunk is None else self.arriving_chunk[t]

    def advance_input(self, x: Tensor) -> None:
        """Take x into the trace, which first decays by the ratio that the step before made."""
        if self.arriving is None and not self.is_first:
            raise SignalError(
                f"{self.name}: the ratio trace decays by the membranes of the neurons that send its input, and this "
                f"input does not come straight from a block; move pooling, dropout or reshaping before the neuron, or "
                f"attach OTTT() to this block"
            )
        if self.arriving is None:
            super().advance_input(x)
            return
        assert self.values is not None
        decay, membrane = self.leak.transition[0][0], self.arriving.detach()
        now = torch.zeros_like(membrane) if self.membrane_now is None else self.membrane_now[0]
        before = torch.zeros_like(membrane) if self.membrane_before is None else self.membrane_before[0]
        ratio = membrane_ratio(now, before, decay)
        self.values = advance_ratio_trace(self.values[0], x.to(self.values.dtype), ratio)[None]
        self.membrane_before, self.membrane_now, self.arriving = now[None], membrane[None], None


class RankOneTrace(StepTrace):
    """A rank-one eligibility, one factor per input and one per unit: ES-D-RTRL, `snnlearn.functional.factored`.

    `leak` the transition of the input factor; `forgetting` alpha in [0, 1) of the output factor; the rest as
    `StepTrace`, without a filter. `values` [K, B, *inputs], `factors` [K, B, *units].

    >>> from snnlearn.functional import lif_leak_transition
    >>> RankOneTrace(lif_leak_transition(0.5), 0.9, "a").norm()
    0.0
    """

    needs_jacobian = True
    transient: tuple[str, ...] = ("values", "one_values", "factors", "counts", *StepTrace.transient)
    plain: tuple[str, ...] = ("output_factor", "trace", "trace_of_one", *StepTrace.plain)
    per_step: tuple[str, ...] = ("output_factor", "trace", "trace_of_one", *StepTrace.per_step)
    values: Tensor | None = None
    one_values: Tensor | None = None
    factors: Tensor | None = None
    counts: Tensor | None = None
    output_factor: Tensor | None = None
    trace: Tensor | None = None
    trace_of_one: Tensor | None = None

    def __init__(
        self, leak: LeakTransition, forgetting: float, name: str = "this block", has_bias: bool = True
    ) -> None:
        super().__init__(name, None, has_bias)
        self.leak, self.forgetting = leak, forgetting

    @property
    def is_empty(self) -> bool:
        """Whether no step has been taken in since the last reset."""
        return self.values is None or self.output_factor is None

    def extra_repr(self) -> str:
        """Return the transition and the forgetting factor."""
        return f"transition={self.leak.transition}, forgetting={self.forgetting}, tick={self.tick}"

    def start_weights(self, x: Tensor, step: Step) -> None:
        """Start from factors of zero."""
        assert isinstance(step, LinearisedStep)
        hidden = len(self.leak.drive)
        wide = torch.promote_types(x.dtype, step.spike_input.dtype)
        self.values = x.new_zeros((hidden, *x.shape), dtype=wide)
        self.one_values = x.new_zeros((hidden, x.shape[0]), dtype=wide)
        self.factors = torch.zeros_like(step.jacobian.drive)
        self.counts = x.new_zeros((1, x.shape[0]), dtype=wide)

    def advance_weights(self, x: Tensor, step: Step) -> None:
        """Move both factors, and keep the output factor that meets the signal, divided by its weight 1 - alpha^n."""
        assert isinstance(step, LinearisedStep)
        assert self.values is not None
        assert self.one_values is not None
        assert self.factors is not None
        assert self.counts is not None
        advance_leak_trace_(self.values, x.to(self.values.dtype), self.leak)
        advance_leak_trace_(self.one_values, torch.ones_like(self.one_values[0]), self.leak)
        self.trace = read_leak_trace(self.values, self.leak)
        self.trace_of_one = read_leak_trace(self.one_values, self.leak)
        read, self.factors = step_output_factor(self.factors, step.jacobian, self.forgetting)
        self.counts = self.counts + 1
        self.output_factor = read / per_row(1 - self.forgetting ** self.counts[0], read)

    def weight_gradients(
        self, tick: int, signal: Tensor, weighted_map: WeightedMap, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return dL/dW and dL/db for the signal [B, *units]."""
        self.check(tick)
        assert self.trace is not None
        assert self.output_factor is not None
        d = self.tied(signal * self.output_factor)
        by_weight = weighted_map.weight_gradient(d, self.trace.to(d.dtype), weight)
        return by_weight, bias_gradient(weighted_map.units_last(d), self.trace_of_one)

    def norm(self) -> float:
        """Return the Euclidean norm of the input factor; 0.0 before the first step."""
        return 0.0 if self.values is None else float(read_leak_trace(self.values, self.leak).norm())

    def forget_step(self) -> None:
        """Drop what the last step left for its backward."""
        super().forget_step()
        self.output_factor = self.trace = self.trace_of_one = None


__all__ = ["FactoredTrace", "PostTrace", "RankOneTrace", "RatioTrace"]
