"""The per-synapse eligibility of one block: exact for any elementwise neuron, B x O x I numbers per hidden value."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from snnlearn.functional.captured import is_captured
from snnlearn.functional.chunk_roll import empty_eligibility
from snnlearn.functional.chunked_step import ChunkSteps
from snnlearn.functional.dynamics import Jacobian
from snnlearn.functional.precision import full_precision
from snnlearn.functional.side_by_side import SideBySide
from snnlearn.functional.sparse_eligibility import (
    laid_by_input,
)
from snnlearn.functional.sparse_map import is_sparse
from snnlearn.functional.synaptic import step_eligibility, with_one
from snnlearn.functional.traced_step import LinearisedStep, Step
from snnlearn.functional.weighted_map import WeightedMap, rows_of
from snnlearn.nn.clocked_trace import versions_of
from snnlearn.nn.kept_chunk import KeptChunk
from snnlearn.nn.step_trace import StepTrace


class SynapticTrace(StepTrace):
    """Eligibility E = dh/dW of a linear connection: `snnlearn.functional.synaptic`, `snnlearn.functional.chunk`.

    `values` [K, B, ..., O, I] (one input more with a bias), K hidden values; `filtered_values` those of the filter;
    `spike_by_weight` [B, ..., O, I] is what the signal dL/ds of the step meets. Arguments as `StepTrace`.

    After a reset the memory of `values` is kept as `room` for the next sequence, which writes over it: fresh memory
    costs more than filling it. `stash`, `eval` and a move let go of it; so clone `values` to keep them.

    >>> SynapticTrace("a").norm()
    0.0
    """

    needs_jacobian = True
    transient: tuple[str, ...] = ("values", "filtered_values", *StepTrace.transient)
    plain: tuple[str, ...] = (
        "spike_by_weight",
        "kept",
        "kept_versions",
        "deferring",
        "settled_norm",
        "room",
        *StepTrace.plain,
    )
    takes_side_by_side = True
    values: Tensor | None = None
    filtered_values: Tensor | None = None
    spike_by_weight: Tensor | None = None
    kept: KeptChunk | None = None
    kept_versions: tuple[int, ...] = ()
    deferring: bool = False
    settled_norm: float | None = None
    room: Tensor | None = None

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
        self.room = None  # a single step makes its eligibility anew
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
        self.room = None
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

    def room_for_parts(self) -> Tensor | None:
        """Return memory of before that may be written over; none while a graph is captured, which would not own it."""
        return None if is_captured() else self.room

    def take_chunk(self, kept: KeptChunk) -> None:
        """Move E and the values of the filter through a chunk."""
        if kept.rows is not None and self.values is not None:
            self.room, self.values = None, laid_by_input(self.values)
        self.lay_filter(kept)
        parts = kept.rolled(self.parts(), room=self.room_for_parts())
        if isinstance(parts, Tensor):  # the first; later ones are written over
            self.room, hidden = parts if kept.rows is None else None, len(kept.jacobian.drive)
            self.values, self.filtered_values = parts[:hidden], None if kept.filter is None else parts[hidden:]

    def lay_filter(self, kept: KeptChunk) -> None:
        """Let the values of the filter lie in memory as sparse events are added to them, if the chunk has such."""
        if kept.rows is not None and self.filtered_values is not None:
            self.room, self.filtered_values = None, laid_by_input(self.filtered_values)

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
        """Return the transient state by reference, the chunk that was kept in it; nothing writes over it later."""
        self.settle_ahead()
        self.room = None
        return super().stash()

    def watched(self) -> dict[str, Any]:
        """Return what a NaN would show in: the state, and a chunk that is kept as it came."""
        if self.kept is None:
            return super().stash()
        rows = self.kept.rows
        inputs = self.kept.inputs.parts if rows is None else (rows.values(),)
        return {**super().stash(), "kept": (*self.kept.jacobian, *inputs)}

    def reset(self, rows: Bool[Tensor, " batch"] | None = None) -> None:
        """Forget the eligibilities, or the rows where `rows` [B] is true; a backward still pending then raises."""
        if rows is None:
            self.kept = None
        else:
            self.room = None  # rows are reset in a copy
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
        return {**super().__getstate__(), "room": None}

    def train(self, mode: bool = True) -> "SynapticTrace":
        """Switch to learning or away from it, when memory that waits for a next sequence is let go of."""
        self.room = self.room if mode else None
        super().train(mode)
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "SynapticTrace":
        self.settle_ahead()  # the chunk that is kept would stay behind
        self.room = None
        super()._apply(fn, recurse)
        return self


__all__ = ["SynapticTrace"]
