"""The per-synapse eligibility of one block: exact for any elementwise neuron, B x O x I numbers per hidden value."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.synaptic import LinearisedStep, advance_eligibility, read_eligibility, step_eligibility
from snnlearn.nn.clocked_trace import ClockedTrace
from snnlearn.nn.state import StateShapeError


class SynapticTrace(ClockedTrace):
    """Eligibility E = dh/dW of a linear connection and of its neuron's own parameters: `snnlearn.functional.synaptic`.

    `values` [K, B, ..., O, I] (one input more with a bias) and one [K, B, ..., O] per parameter of the neuron in
    `parameter_values`; K hidden values. `spike_by_weight` [B, ..., O, I] is what the signal dL/ds of the step meets.
    Raises StaleTraceError on a wrong order of steps, StateShapeError when the input changes shape in mid-sequence.

    >>> SynapticTrace("a").norm()
    0.0
    """

    transient = ("values", "parameter_values", "skipped")
    plain = ("tick", "spike_by_weight", "spike_by_parameter")

    def __init__(self, name: str = "this block") -> None:
        super().__init__(name)
        self.values: Tensor | None = None
        self.parameter_values: tuple[Tensor, ...] | None = None
        self.spike_by_weight: Tensor | None = None
        self.spike_by_parameter: tuple[Tensor, ...] = ()

    def extra_repr(self) -> str:
        """Return what is kept."""
        return f"per synapse, tick={self.tick}"

    @property
    def is_empty(self) -> bool:
        """Whether no step has been taken in since the last reset."""
        return self.values is None or self.spike_by_weight is None

    def advance_(self, x: Float[Tensor, "batch *inputs"], step: LinearisedStep) -> None:
        """Take in a step of input x [B, ..., I]: keep ds/dW and ds/dp, move E by the step's Jacobian, and tick."""
        jacobian = step.jacobian
        shape = (*jacobian.drive.shape, x.shape[-1])
        if self.values is None or self.parameter_values is None:
            self.values = jacobian.drive.new_zeros(shape)
            self.parameter_values = tuple(torch.zeros_like(jacobian.drive) for _ in step.parameters)
        elif self.values.shape != shape:
            raise StateShapeError(
                f"{self.name}: this step's eligibility has shape {list(shape)}, the running one "
                f"{list(self.values.shape)}: within a sequence the input keeps its shape. Call reset(net) where a new "
                f"sequence begins"
            )
        self.spike_by_weight, self.values = step_eligibility(self.values, jacobian, x)
        before = [values.unsqueeze(-1) for values in self.parameter_values]
        directs = [(direct.spike.unsqueeze(-1), direct.state.unsqueeze(-1)) for direct in step.parameters]
        self.spike_by_parameter = tuple(
            read_eligibility(kept, jacobian.spike_state, spike).squeeze(-1)
            for kept, (spike, _) in zip(before, directs, strict=True)
        )
        self.parameter_values = tuple(
            advance_eligibility(kept, jacobian.transition, state).squeeze(-1)
            for kept, (_, state) in zip(before, directs, strict=True)
        )
        self.tick += 1

    def read_spike(self, tick: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return ds/dW and ds/dp of the step if the clock stands at `tick`, else raise."""
        self.check(tick)
        assert self.spike_by_weight is not None
        return self.spike_by_weight, self.spike_by_parameter

    def read(self, tick: int) -> tuple[Tensor, float]:
        """Raise: only a forward in eval() goes past `SynapticStep`, and it keeps no trace."""
        self.check(tick)
        raise RuntimeError(f"{self.name}: a per-synapse trace is read by its own step, through read_spike")

    def gather(self, d: Tensor, trace: Tensor, weight: Tensor) -> bool:
        """Return False: nothing is gathered here."""
        return False

    def norm(self) -> float:
        """Return the Euclidean norm of ds/dW of the last step; 0.0 before the first."""
        return 0.0 if self.spike_by_weight is None else float(self.spike_by_weight.norm())

    def reset(self, rows: Tensor | None = None) -> None:
        """Forget the eligibility, or the rows where `rows` [B] is true; a backward still pending then raises."""
        super().reset(rows)
        self.spike_by_weight, self.spike_by_parameter = None, ()

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "SynapticTrace":
        super()._apply(fn, recurse)
        self.spike_by_weight, self.spike_by_parameter = None, ()
        return self


__all__ = ["SynapticTrace"]
