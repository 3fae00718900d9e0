"""The base of traces that take in a whole step: an eligibility per parameter of the neuron, and a filter of all.

A filter (the leak of a readout, or of the layer above) is itself a constant transition: its K values follow the
eligibility q_t as a trace follows an input, R_t = transition R_{t-1} + drive q_t, and readout . R_t meets the signal.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from snnlearn.functional.batch_ties import BatchTies
from snnlearn.functional.chunked_step import ChunkSteps
from snnlearn.functional.dynamics import Jacobian, LeakTransition
from snnlearn.functional.factored import advance_mean_gate
from snnlearn.functional.sparse_map import is_sparse
from snnlearn.functional.synaptic import advance_eligibility, read_eligibility
from snnlearn.functional.trace import advance_leak_trace_, read_leak_trace
from snnlearn.functional.traced_step import DirectDerivative, LinearisedStep, Step
from snnlearn.functional.weighted_map import WeightedMap
from snnlearn.nn.clocked_trace import ClockedTrace
from snnlearn.nn.state import StateShapeError


class StepTrace(ClockedTrace):
    """Eligibilities of one block, fed with a whole step at a time: a `StepSource` of `snnlearn.functional.traced_step`.

    `name` what errors call the block; `filter` a further filter of every eligibility, None for none; `has_bias`
    whether the connection has one; `mean_leak` makes the relay the leaky mean of ds/dy with that leak. A subclass
    keeps the eligibility of the weights: `start_weights`, `advance_weights` and `weight_gradients`. `parameter_values`
    has [K, B, ..., O] for each parameter of the neuron, which follows the neuron's own Jacobian. Raises StaleTraceError
    on a wrong order of steps, StateShapeError when shapes change in mid-sequence.

    >>> StepTrace("a").is_empty
    True
    """

    needs_jacobian = False
    """Whether the eligibility of the weights follows the neuron's own Jacobian."""

    per_step: tuple[str, ...] = ("gate", "spike_by_parameter")
    """What a step leaves for its backward: [B, ...], None, or a tuple of such."""

    transient: tuple[str, ...] = ("parameter_values", "parameter_filtered", "mean_values", "mean_counts", "skipped")
    plain: tuple[str, ...] = ("tick", "spike_by_parameter", "fresh", "gate", "ties")

    def __init__(
        self,
        name: str = "this block",
        filter: LeakTransition | None = None,
        has_bias: bool = True,
        mean_leak: LeakTransition | None = None,
    ) -> None:
        super().__init__(name)
        self.filter, self.has_bias, self.mean_leak = filter, has_bias, mean_leak
        self.mean_values: Tensor | None = None
        self.mean_counts: Tensor | None = None
        self.gate: Tensor | None = None
        self.ties: BatchTies | None = None
        self.parameter_values: tuple[Tensor, ...] | None = None
        self.parameter_filtered: tuple[Tensor | None, ...] = ()
        self.spike_by_parameter: tuple[Tensor, ...] = ()
        self.fresh: Tensor | None = None
        self.running_shape: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no step has been taken in since the last reset."""
        return self.parameter_values is None

    def extra_repr(self) -> str:
        """Return the filter and the tick."""
        return f"filter={None if self.filter is None else self.filter.transition}, tick={self.tick}"

    def start_weights(self, x: Tensor, step: Step) -> None:
        """Make the eligibility of the weights before the first step, for input x [B, *inputs]."""
        raise TypeError(f"{type(self).__name__} must define start_weights(x, step)")

    def advance_weights(self, x: Tensor, step: Step) -> None:
        """Take the step into the eligibility of the weights."""
        raise TypeError(f"{type(self).__name__} must define advance_weights(x, step)")

    def weight_gradients(
        self, tick: int, signal: Tensor, weighted_map: WeightedMap, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return dL/dW and dL/db for the signal [B, *units]."""
        raise TypeError(f"{type(self).__name__} must define weight_gradients(...)")

    def weight_shape(self, x: Tensor, step: Step) -> tuple[int, ...]:
        """Return what has to stay the same within a sequence."""
        return (*x.shape, *step.spike.shape)

    def advance_(self, x: Tensor, step: Step) -> None:
        """Take in the step whose input is x [B, *inputs], and tick."""
        parameters = step.parameters if isinstance(step, LinearisedStep) else ()
        if self.parameter_values is None:
            self.start_weights(x, step)
            self.parameter_values = tuple(_initial(direct) for direct in parameters)
            self.parameter_filtered = tuple(self.filter_start(direct.spike) for direct in parameters)
            self.running_shape = self.weight_shape(x, step)
        elif self.running_shape != self.weight_shape(x, step):
            raise StateShapeError(
                f"{self.name}: the input has shape {list(x.shape)}, and the running trace was begun with another: "
                f"within a sequence the input keeps its shape. Call reset(net) where a new sequence begins"
            )
        self.gate, self.ties = self._gate(step.spike_input), step.ties
        self.advance_weights(x, step)
        if isinstance(step, LinearisedStep) and parameters:
            self._advance_parameters(step.jacobian, parameters)
        self.fresh = None
        self.tick += 1

    def advance_chunk_(self, x: Tensor, steps: ChunkSteps) -> None:
        """Take in a chunk whose inputs are x [K B, *inputs], step by step, and tick once.

        What the steps leave for backward is joined to [K B, ...], so that the gradients of all steps are one product.
        """
        tick, inputs = self.tick + 1, steps.unfolded(x.to_dense() if is_sparse(x) else x)
        left: dict[str, list[Any]] = {name: [] for name in self.per_step}
        for t, step in enumerate(steps.each()):
            rows = steps.rows_at(t)
            if rows is not None:
                self.restart(rows)
            self.begin_step(t)
            self.advance_(inputs[t], step)
            for name, values in left.items():
                values.append(_copied(getattr(self, name)))
        for name, values in left.items():
            setattr(self, name, _joined(values))
        self.tick = tick

    def begin_step(self, t: int) -> None:
        """Make ready for step t of a chunk."""

    def restart(self, rows: Bool[Tensor, " batch"]) -> None:
        """Let the rows where `rows` [B] is true begin anew within a chunk."""
        self.reset(rows)

    def chunk_weight_gradients(
        self, tick: int, signal: Tensor, weighted_map: WeightedMap, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return dL/dW and dL/db for the signals [K B, *units] of a chunk."""
        return self.weight_gradients(tick, signal, weighted_map, weight)

    def chunk_parameter_gradients(self, tick: int, signal: Tensor) -> tuple[Tensor, ...]:
        """Return dL/dp [K B, *units] for each of the neuron's parameters."""
        return self.parameter_gradients(tick, signal)

    def _advance_parameters(self, jacobian: Jacobian, parameters: Iterable[DirectDerivative]) -> None:
        assert self.parameter_values is not None
        reads, values = [], []
        for before, direct in zip(self.parameter_values, parameters, strict=True):
            kept = before if self.fresh is None else _where_fresh(self.fresh, _initial(direct), before)
            column = kept.unsqueeze(-1)
            reads.append(read_eligibility(column, jacobian.spike_state, direct.spike.unsqueeze(-1)).squeeze(-1))
            values.append(advance_eligibility(column, jacobian.transition, direct.state.unsqueeze(-1)).squeeze(-1))
        self.parameter_values = tuple(values)
        self.spike_by_parameter = tuple(
            self.filtered(kept, read) for kept, read in zip(self.parameter_filtered, reads, strict=True)
        )

    def filter_start(self, like: Tensor) -> Tensor | None:
        """Return the values of the filter before the first step, zeros [F, *like]; None without a filter."""
        return None if self.filter is None else like.new_zeros((len(self.filter.drive), *like.shape))

    def filtered(self, values: Tensor | None, eligibility: Tensor) -> Tensor:
        """Advance the filter's values [F, ...] in place by the eligibility [...] and return what meets the signal."""
        if self.filter is None or values is None:
            return eligibility
        return read_leak_trace(advance_leak_trace_(values, eligibility, self.filter), self.filter)

    def _gate(self, spike_input: Tensor) -> Tensor:
        """Return ds/dy of the step, or its leaky mean."""
        if self.mean_leak is None:
            return spike_input
        if self.mean_values is None or self.mean_counts is None:
            self.mean_values = torch.zeros_like(spike_input)[None]
            self.mean_counts = spike_input.new_zeros((1, spike_input.shape[0]))
        decay = self.mean_leak.transition[0][0]
        mean, count = advance_mean_gate(self.mean_values[0], self.mean_counts[0], spike_input, decay)
        self.mean_values, self.mean_counts = mean[None], count[None]
        return mean

    def tied(self, d: Tensor) -> Tensor:
        """Return dL/dy [B, *units] of the last step from d, which does not know of batch statistics yet."""
        return d if self.ties is None else self.ties.project(d)

    def relay(self, tick: int, spike_input: Tensor) -> Tensor:
        """Return ds/dy [B, *units], or its leaky mean, which belongs to the step at `tick` alone."""
        if self.mean_leak is None:
            return spike_input
        self.check(tick)
        assert self.gate is not None
        return self.gate

    def parameter_gradients(self, tick: int, signal: Tensor) -> tuple[Tensor, ...]:
        """Return dL/dp per unit [B, *units] for each of the neuron's parameters."""
        self.check(tick)
        return tuple(signal * by_parameter for by_parameter in self.spike_by_parameter)

    def read(self, tick: int) -> tuple[Tensor, float]:
        """Raise: only a forward in eval() goes past the block's own step, and it keeps no trace."""
        self.check(tick)
        raise RuntimeError(f"{self.name}: this trace is read by the step of its block, not by the connection alone")

    def gather(self, d: Tensor, trace: Tensor, weight: Tensor) -> bool:
        """Return False: nothing is gathered here."""
        return False

    def norm(self) -> float:
        """Return the Euclidean norm of the eligibility of the weights; 0.0 before the first step."""
        raise TypeError(f"{type(self).__name__} must define norm()")

    def reset(self, rows: Bool[Tensor, " batch"] | None = None) -> None:
        """Forget the eligibilities, or the rows where `rows` [B] is true; a backward still pending then raises."""
        super().reset(rows)
        self.forget_step()
        if rows is None or self.parameter_values is None:
            self.fresh = None
        else:
            self.fresh = rows if self.fresh is None else self.fresh | rows

    def forget_step(self) -> None:
        """Drop what the last step left for its backward."""
        self.spike_by_parameter, self.gate, self.ties = (), None, None

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "StepTrace":
        super()._apply(fn, recurse)
        self.forget_step()
        return self


def _initial(direct: DirectDerivative) -> Tensor:
    return torch.zeros_like(direct.state) if direct.initial is None else direct.initial.clone()


def _copied(value: Any) -> Any:
    """Return what a step left, out of the way of the next, which writes in place."""
    if isinstance(value, tuple):
        return tuple(map(_copied, value))
    return value.clone() if isinstance(value, Tensor) else value


def _joined(values: list[Any]) -> Any:
    """Return what K steps left, each [B, ...], None or a tuple, as one [K B, ...]."""
    if isinstance(values[0], tuple):
        return tuple(map(torch.cat, zip(*values, strict=True)))
    return torch.cat(values) if isinstance(values[0], Tensor) else None


def _where_fresh(rows: Tensor, initial: Tensor, values: Tensor) -> Tensor:
    mask = rows.to(values.device).reshape(1, -1, *(1,) * (values.dim() - 2))
    return torch.where(mask, initial, values)


__all__ = ["StepTrace"]
