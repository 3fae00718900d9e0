"""Weights with many synapses each, under a rule per synapse: followed exactly inside a chunk, and not beyond it.

A kernel of a convolution has as many synapses as there are places, so that the eligibility E of each is a number per
sample, unit, place and weight: nobody keeps that. Within a chunk nobody has to. With E_0 = 0 the gradient is what
`snnlearn.functional.chunk` gives without its last term,

    dL/dW = sum_t d_t * x_t        d_t = r_t u_t + p_t R_t        R_{t-1} = c_t u_t + A_t^T R_t ,   R_K = 0

where d_t [B, *units] meets x_t as dL/dy_t meets the input of any layer (`snnlearn.functional.weighted_map`), and the
scan is over the units. A chunk that is the whole sequence is exact: it is BPTT within the layer. One that goes on from
another lacks R_0 . E_0, which is refused, or dropped where the rule says so (`truncate_trace`).
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from snnlearn.functional.chunk import Restarts
from snnlearn.functional.chunked_step import ChunkSteps
from snnlearn.functional.dynamics import Jacobian, LeakTransition, leak_jacobian
from snnlearn.functional.side_by_side import SideBySide
from snnlearn.functional.traced_step import LinearisedStep, Step
from snnlearn.functional.weighted_map import WeightedMap
from snnlearn.nn.clocked_trace import StaleTraceError, versions_of
from snnlearn.nn.kept_chunk import KeptChunk
from snnlearn.nn.step_trace import StepTrace

if TYPE_CHECKING:
    from snnlearn.nn.chunk import Chunk


class WithinChunkTrace(StepTrace):
    """The eligibility of a layer's weights within one chunk, from zero; of the neuron's own parameters without end.

    `leak` the constant transition of the weights' eligibility, None for the neuron's own Jacobian; `truncates` whether
    a chunk may go on from another one, whose share is then dropped. A single step is a chunk of one. The rest as
    `StepTrace`. Raises StaleTraceError where a chunk goes on from another and `truncates` is False.

    >>> WithinChunkTrace("a").norm()
    0.0
    """

    transient: tuple[str, ...] = ("past", *StepTrace.transient)
    plain: tuple[str, ...] = ("kept", "kept_versions", "deferring", "chunk", *StepTrace.plain)
    deferring: bool = False

    def __init__(
        self,
        name: str = "this block",
        filter: LeakTransition | None = None,
        has_bias: bool = True,
        mean_leak: LeakTransition | None = None,
        leak: LeakTransition | None = None,
        truncates: bool = False,
    ) -> None:
        super().__init__(name, filter, has_bias, mean_leak)
        self.leak, self.truncates = leak, truncates
        self.needs_jacobian = leak is None
        self.past: Tensor | None = None
        self.kept: KeptChunk | None = None
        self.kept_versions: tuple[int, ...] = ()
        self.chunk: Chunk | None = None

    def extra_repr(self) -> str:
        """Return whether what came before a chunk is dropped."""
        return f"truncates={self.truncates}, {super().extra_repr()}"

    def expect(self) -> int:
        """Return the tick that backward must find; raise where the coming chunk goes on from what is not kept."""
        tick = super().expect()
        if self.training and self.past is not None and not self.truncates:
            begins = None if self.chunk is None else self.chunk.rows_at(0)
            going_on = self.past if begins is None else self.past & ~begins.to(self.past.device)
            if bool(going_on.any()):
                raise StaleTraceError(
                    f"{self.name}: these steps go on from others, and the trace of weights that have many synapses "
                    f"each is kept within one chunk alone: run the whole sequence as one chunk (OnlineLearner(..., "
                    f"chunk=T), or in_chunk(net, Chunk(T)) in a loop of your own), call reset(net) where a sequence "
                    f"ends, give the rule truncate_trace=True to drop what came before, or attach OTTT() to this block"
                )
        return tick

    def start_weights(self, x: Tensor, step: Step) -> None:
        """Start from nothing."""

    def advance_weights(self, x: Tensor, step: Step) -> None:
        """Keep a step as a chunk of one, unless a chunk is being taken in."""
        if self.deferring:
            return
        jacobian = step.jacobian if isinstance(step, LinearisedStep) else None
        if jacobian is not None:
            transition, drive, spike_state, spike_input = jacobian
            jacobian = Jacobian(
                transition.unsqueeze(2), drive.unsqueeze(1), spike_state.unsqueeze(1), spike_input[None]
            )
        self._keep(jacobian, step.spike_input[None], x[None], None)

    def advance_chunk_(self, x: Tensor, steps: ChunkSteps) -> None:
        """Keep a chunk with inputs x [K B, *inputs] until its backward, and tick once."""
        self.deferring = True
        try:
            super().advance_chunk_(x, steps)
        finally:
            self.deferring = False
        jacobian = None if steps.jacobian is None else steps.unfolded_jacobian()
        self._keep(jacobian, steps.unfolded(steps.spike_input), steps.unfolded(x), steps.restarts)

    def _keep(self, jacobian: Jacobian | None, gate: Tensor, inputs: Tensor, restarts: Restarts) -> None:
        """Keep what backward needs: the Jacobian [H, H, K, B, ...] that is followed, and the inputs [K, B, ...]."""
        followed = jacobian if self.leak is None else leak_jacobian(self.leak, gate)
        assert followed is not None, "nobody asked for the Jacobian of this chunk"
        self.kept = KeptChunk(followed, self.filter, SideBySide((inputs,)), restarts)
        self.kept_versions = versions_of(self.kept.inputs.parts)
        self.past = torch.ones((1, inputs.shape[1]), dtype=torch.bool, device=inputs.device)

    def weight_gradients(
        self, tick: int, signal: Tensor, weighted_map: WeightedMap, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return dL/dW and dL/db for the signals [K B, *units] of the chunk that is kept; a step is a chunk of one."""
        self.check(tick)
        assert self.kept is not None
        (inputs,) = self.kept.inputs.parts
        self.check_unchanged((inputs,), self.kept_versions)
        received, _ = self.kept.received(signal.unflatten(0, inputs.shape[:2]).to(self.kept.jacobian.drive.dtype))
        d = self.tied(received.flatten(0, 1))
        by_bias = weighted_map.units_last(d).flatten(0, -2).sum(0)
        return weighted_map.weight_gradient(d, inputs.flatten(0, 1).to(d.dtype), weight), by_bias

    def norm(self) -> float:
        """Return 0.0: between chunks there is no eligibility of the weights."""
        return 0.0

    def watched(self) -> dict[str, Any]:
        """Return what a NaN would show in: the state, and the last chunk as it came."""
        if self.kept is None:
            return super().watched()
        return {**super().watched(), "kept": (*self.kept.jacobian, *self.kept.inputs.parts)}

    def forget_step(self) -> None:
        """Drop what the last chunk left for its backward."""
        super().forget_step()
        if not self.deferring:
            self.kept = None

    def __getstate__(self) -> dict[str, Any]:
        """Return attributes for copies and pickles, without the chunk that waits for its backward."""
        return {**super().__getstate__(), "kept": None, "chunk": None}


__all__ = ["WithinChunkTrace"]
