"""A chunk of steps of a connection and the neuron behind it as one node; time is folded into the batch.

Every tensor is [K B, ...], time first. In backward the signals u_t = dL_t/ds_t of all steps arrive at once, each made
by backpropagation through space at its own step, so

    dL/dx_t = W^T (u_t * ds_t/dy_t)        for all steps in one product: nothing of the past is in it
    dL/dW, dL/db, dL/dp                    from what the trace kept of the chunk: `snnlearn.functional.chunk`

It is `snnlearn.functional.traced_step` for K steps; K = 1 gives the same numbers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from snnlearn.functional.chunk import Restarts, rows_at
from snnlearn.functional.dynamics import Jacobian
from snnlearn.functional.eligibility import refuse_second_order
from snnlearn.functional.precision import in_products, outside_autocast, remembers_autocast, widened
from snnlearn.functional.side_by_side import SideBySide
from snnlearn.functional.traced_step import DirectDerivative, GatedStep, LinearisedStep, Step
from snnlearn.functional.weighted_map import WeightedMap


class ChunkSteps(NamedTuple):
    """K steps of a neuron and what they leave for learning, time folded into the batch.

    `spike` [K B, *units]; `spike_input` ds/dy [K B, *units]; `jacobian` the whole Jacobian of every step
    [H, H, K B, *units], None where nobody asked; `parameters` one `DirectDerivative` per parameter of the neuron;
    `steps` K; `restarts` [K, B], the rows that begin a new sequence before each step, None for none; `membrane` the
    first hidden value after each step [K B, *units], where it is asked for.
    """

    spike: Tensor
    spike_input: Tensor
    jacobian: Jacobian | None
    parameters: tuple[DirectDerivative, ...]
    steps: int
    restarts: Restarts = None
    membrane: Tensor | None = None

    def unfolded(self, values: Tensor, dim: int = 0) -> Tensor:
        """Return values [..., K B, ...] as [..., K, B, ...]."""
        unfolded: Tensor = values.unflatten(dim, (self.steps, -1))
        return unfolded

    def unfolded_jacobian(self) -> Jacobian:
        """Return the Jacobian with K and B apart."""
        assert self.jacobian is not None, "nobody asked for the Jacobian of this chunk"
        transition, drive, spike_state, spike_input = self.jacobian
        return Jacobian(
            self.unfolded(transition, 2),
            self.unfolded(drive, 1),
            self.unfolded(spike_state, 1),
            self.unfolded(spike_input),
        )

    def rows_at(self, t: int) -> Tensor | None:
        """Return the rows [B] that restart before step t, None for none."""
        return rows_at(self.restarts, t)

    def each(self) -> list[Step]:
        """Return the chunk step by step."""
        spikes, gates = self.unfolded(self.spike), self.unfolded(self.spike_input)
        if self.jacobian is None:
            return [GatedStep(spikes[t], gates[t]) for t in range(self.steps)]
        whole = self.unfolded_jacobian()
        direct = [(self.unfolded(d.spike), self.unfolded(d.state, 1), d.initial) for d in self.parameters]
        return [
            LinearisedStep(
                spikes[t],
                Jacobian(whole.transition[:, :, t], whole.drive[:, t], whole.spike_state[:, t], whole.spike_input[t]),
                tuple(DirectDerivative(spike[t], state[:, t], initial) for spike, state, initial in direct),
            )
            for t in range(self.steps)
        ]


@runtime_checkable
class ChunkSource(Protocol):
    """What takes in a chunk and hands out the gradients of its parameters."""

    takes_side_by_side: bool
    """Whether a chunk's inputs may come as `SideBySide`; they are joined for a source that does not say so."""

    def expect(self) -> int:
        """Return the tick at which backward must find the source."""
        ...

    def advance_chunk_(self, x: Tensor | SideBySide, steps: ChunkSteps) -> None:
        """Take in the chunk whose inputs are x [K B, *inputs], and tick once."""
        ...

    def relay(self, tick: int, spike_input: Tensor) -> Tensor:
        """Return what the signal is multiplied by on its way down [K B, *units]."""
        ...

    def chunk_weight_gradients(
        self, tick: int, signal: Tensor, weighted_map: WeightedMap, weight: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """Return dL/dW, None if it is gathered, and dL/db for the signals [K B, *units], or raise off `tick`."""
        ...

    def chunk_parameter_gradients(self, tick: int, signal: Tensor) -> tuple[Tensor, ...]:
        """Return dL/dp per unit [..., *units], one per parameter of the neuron."""
        ...


class ChunkRun(NamedTuple):
    """What the forward of a chunk gives: the steps, and what entered the weights [K B, *inputs]."""

    steps: ChunkSteps
    inputs: Tensor | SideBySide


class ChunkedStep(torch.autograd.Function):
    """K steps of a connection and the neuron behind it as one node, with the gradients of a `ChunkSource`."""

    @staticmethod
    @remembers_autocast
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weighted_map: WeightedMap,
        source: ChunkSource,
        run: Callable[[Tensor, Tensor, Tensor | None, WeightedMap], ChunkRun],
        told: Callable[[str], None],
        feedback: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        """Return the spikes [K B, *units] of x [K B, *inputs] and let the source take in the chunk.

        `run(x, weight, bias, map)` steps the neuron, with the map in the precision of autocast; `told` hears the name
        of each phase; `feedback`, shaped like `weight`, carries the signal down in its place.
        """
        ctx.source, ctx.tick, ctx.told, ctx.map = (
            source,
            source.expect(),
            told,
            in_products(weighted_map, ctx.product_dtype),
        )
        ctx.dtypes = [None if value is None else value.dtype for value in (x, weight, bias, *parameters)]
        ctx.shapes, ctx.x_shape = [parameter.shape for parameter in parameters], x.shape
        steps, inputs = run(x, weight, bias, ctx.map)
        ctx.inputs_shape = inputs.shape
        told("FORWARD")
        if isinstance(inputs, Tensor):
            taken: Tensor | SideBySide = widened(inputs, ctx.product_dtype)
        else:
            taken = inputs.each(lambda part: widened(part, ctx.product_dtype))
            taken = taken if source.takes_side_by_side else taken.joined()
        source.advance_chunk_(taken, steps)
        told("TRACE_UPDATE")
        ctx.save_for_backward(weight, steps.spike_input, feedback)
        return steps.spike

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, signal: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients for x, W, b and the neuron's parameters from the signals dL_t/ds_t [K B, *units]."""
        refuse_second_order("a layer with an eligibility trace")
        weight, spike_input, feedback = ctx.saved_tensors
        needs = ctx.needs_input_grad
        need_x, need_weight, need_bias, need_parameters = needs[0], needs[1], needs[2], needs[8:]
        signal = signal.to(torch.promote_types(signal.dtype, spike_input.dtype))
        grad_x = grad_weight = grad_bias = None
        if need_x:
            d = signal * ctx.source.relay(ctx.tick, spike_input)
            down = weight if feedback is None else feedback
            if ctx.inputs_shape != ctx.x_shape:  # the block's own spikes are inputs too, and constants
                down = down[..., : ctx.x_shape[-1]]
            grad_x = ctx.map.input_gradient(d, down, ctx.x_shape)
        ctx.told("NEURON_BACKWARD")
        grads: list[Tensor | None] = [None] * len(ctx.shapes)
        if need_weight or need_bias:
            grad_weight, grad_bias = ctx.source.chunk_weight_gradients(ctx.tick, signal, ctx.map, weight)
        if any(need_parameters):
            by_unit = ctx.source.chunk_parameter_gradients(ctx.tick, signal)
            grads = [per_unit.sum_to_size(shape) for per_unit, shape in zip(by_unit, ctx.shapes, strict=True)]
        ctx.told("ET_BACKWARD")
        found = [grad_x, grad_weight if need_weight else None, grad_bias if need_bias else None, *grads]
        cast = [None if g is None else g.to(dtype) for g, dtype in zip(found, ctx.dtypes, strict=True)]
        return *cast[:3], None, None, None, None, None, *cast[3:]


__all__ = ["ChunkRun", "ChunkSource", "ChunkSteps", "ChunkedStep"]
