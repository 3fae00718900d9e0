"""One step of a connection and the neuron behind it as one node, whose gradients come from what a trace kept.

With the learning signal u = dL/ds of the step, or what a rule puts in its place, and the derivative ds/dy of the spike,

    dL/dx = W^T (u * ds/dy)          the relay to the layer below; feedback alignment has a fixed matrix for W^T;
                                     batch statistics tie u * ds/dy over samples (`snnlearn.functional.batch_ties`)
    dL/dW, dL/db                     from the trace: `snnlearn.functional.synaptic`, `snnlearn.functional.factored`
    dL/dp = sum u * ds/dp            for a parameter p of the neuron, ds/dp following the neuron's own Jacobian

so that nothing of the past is in the graph.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from snnlearn.functional.batch_ties import BatchTies
from snnlearn.functional.dynamics import Jacobian
from snnlearn.functional.eligibility import refuse_second_order
from snnlearn.functional.precision import in_products, outside_autocast, remembers_autocast, widened
from snnlearn.functional.weighted_map import WeightedMap


class DirectDerivative(NamedTuple):
    """How a neuron's step depends on one of its own parameters at once, per unit.

    spike [*units]: d s / d p; state [K, *units]: d h_i(next) / d p; initial [K, *units]: d h_i / d p before the first
    step, None where the parameter is not in it.
    """

    spike: Tensor
    state: Tensor
    initial: Tensor | None = None


class GatedStep(NamedTuple):
    """A step and the one derivative that a factored trace needs: spike [*units] and ds/dy [*units].

    `ties` where y meets batch statistics: ds/dy is then that of one sample alone, before the ties.
    """

    spike: Tensor
    spike_input: Tensor
    ties: BatchTies | None = None


class LinearisedStep(NamedTuple):
    """A step and its derivatives: spike [*units], the local Jacobian, and one `DirectDerivative` per parameter.

    `ties` as in `GatedStep`.
    """

    spike: Tensor
    jacobian: Jacobian
    parameters: tuple[DirectDerivative, ...]
    ties: BatchTies | None = None

    @property
    def spike_input(self) -> Tensor:
        """The derivative ds/dy [*units]."""
        return self.jacobian.spike_input


Step = GatedStep | LinearisedStep


@runtime_checkable
class StepSource(Protocol):
    """What takes in a step and hands out the gradients of its parameters."""

    def expect(self) -> int:
        """Return the tick at which backward must find the source."""
        ...

    def advance_(self, x: Tensor, step: Step) -> None:
        """Take in the step whose input is x, and tick."""
        ...

    def relay(self, tick: int, spike_input: Tensor) -> Tensor:
        """Return what the signal is multiplied by on its way down: ds/dy, or what the rule has for it."""
        ...

    def weight_gradients(
        self, tick: int, signal: Tensor, weighted_map: WeightedMap, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return dL/dW and dL/db for the signal [*units] of the step, or raise when the source is not at `tick`."""
        ...

    def parameter_gradients(self, tick: int, signal: Tensor) -> tuple[Tensor, ...]:
        """Return dL/dp per unit [*units], one per parameter of the neuron, or raise as `weight_gradients`."""
        ...


class TracedStep(torch.autograd.Function):
    """A connection and the neuron behind it as one node, with the gradients of a `StepSource`."""

    @staticmethod
    @remembers_autocast
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weighted_map: WeightedMap,
        source: StepSource,
        advance: Callable[[Tensor], Step],
        told: Callable[[str], None],
        feedback: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        """Return the spikes of W * x + b and let the source take in the step; `told` hears the name of each phase.

        `feedback`, shaped like `weight`, carries the signal down in its place.
        """
        ctx.source, ctx.tick, ctx.told, ctx.map = (
            source,
            source.expect(),
            told,
            in_products(weighted_map, ctx.product_dtype),
        )
        ctx.dtypes = [None if value is None else value.dtype for value in (x, weight, bias, *parameters)]
        ctx.shapes, ctx.x_shape = [parameter.shape for parameter in parameters], x.shape
        step = advance(ctx.map.value(x, weight, bias))
        told("FORWARD")
        source.advance_(widened(x.detach(), ctx.product_dtype), step)
        told("TRACE_UPDATE")
        ctx.save_for_backward(weight, step.spike_input, feedback, None if step.ties is None else step.ties.z)
        return step.spike

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, signal: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients for x, W, b and the neuron's parameters from the signal dL/ds [*units]."""
        refuse_second_order("a layer with an eligibility trace")
        weight, spike_input, feedback, tied = ctx.saved_tensors
        needs = ctx.needs_input_grad
        need_x, need_weight, need_bias, need_parameters = needs[0], needs[1], needs[2], needs[8:]
        signal = signal.to(torch.promote_types(signal.dtype, spike_input.dtype))
        d = signal * ctx.source.relay(ctx.tick, spike_input) if need_x else signal
        d = d if tied is None or not need_x else BatchTies(tied).project(d)
        ctx.told("NEURON_BACKWARD")
        down = weight if feedback is None else feedback
        grad_x = ctx.map.input_gradient(d, down, ctx.x_shape) if need_x else None
        grad_weight = grad_bias = None
        grads: list[Tensor | None] = [None] * len(ctx.shapes)
        if need_weight or need_bias:
            grad_weight, grad_bias = ctx.source.weight_gradients(ctx.tick, signal, ctx.map, weight)
        if any(need_parameters):
            by_unit = ctx.source.parameter_gradients(ctx.tick, signal)
            grads = [per_unit.sum_to_size(shape) for per_unit, shape in zip(by_unit, ctx.shapes, strict=True)]
        ctx.told("ET_BACKWARD")
        found = [grad_x, grad_weight if need_weight else None, grad_bias if need_bias else None, *grads]
        cast = [None if g is None else g.to(dtype) for g, dtype in zip(found, ctx.dtypes, strict=True)]
        return *cast[:3], None, None, None, None, None, *cast[3:]


class CarryDown(torch.autograd.Function):
    """Zero, with d B as its input's gradient: beside a layer whose own gradient is cut, it is feedback alignment."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, feedback: Tensor, shape: torch.Size) -> Tensor:
        """Return zeros of `shape` [..., C] for input x [..., I] and feedback B [C, I]."""
        ctx.save_for_backward(feedback)
        return x.new_zeros(shape)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None]:
        """Return d B."""
        (feedback,) = ctx.saved_tensors
        return d @ feedback.to(d.dtype), None, None


__all__ = ["CarryDown", "DirectDerivative", "GatedStep", "LinearisedStep", "Step", "StepSource", "TracedStep"]
