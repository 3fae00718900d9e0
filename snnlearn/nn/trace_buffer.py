"""The eligibility trace of one connection: written in place, guarded by a clock of its own.

Forward runs, then the trace advances in place, then backward reads it. PyTorch's version counter would
refuse that order if the trace were a saved tensor, and `.data` would switch the check off: a trace
advanced twice, or not at all, would then give a wrong gradient silently. So the buffer is held, not
saved, and keeps a clock: forward notes the tick that backward must find, every write ticks, and a
mismatch raises `StaleTraceError`.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from snnlearn.functional.chunk import roll_leak_trace, scan_leak
from snnlearn.functional.chunked_step import ChunkSteps
from snnlearn.functional.dynamics import LeakTransition
from snnlearn.functional.eligibility import BiasTrace, bias_gradient
from snnlearn.functional.side_by_side import SideBySide
from snnlearn.functional.sparse_map import add_weight_gradient_, is_sparse, roll_sparse_trace
from snnlearn.functional.trace import advance_leak_trace_, advance_leak_trace_of_one, read_leak_trace
from snnlearn.functional.weighted_map import WeightedMap
from snnlearn.kernels import dispatch
from snnlearn.nn.clocked_trace import NO_TRACE, ClockedTrace, StaleTraceError, versions_of
from snnlearn.nn.state import StateShapeError


class KeptInputs(NamedTuple):
    """What backward needs of a chunk: its inputs [K B, *inputs], their versions, its steps, both traces before it."""

    inputs: SideBySide
    versions: tuple[int, ...]
    steps: ChunkSteps
    before: Tensor | None
    before_one: Tensor | tuple[float, ...] | None


class TraceBuffer(ClockedTrace):
    """Traces e <- transition @ e + drive * x of one connection, and of the constant one that feeds its bias.

    `leak` the constant transition of the neuron behind the connection; `name` what errors call the block.
    `values` [K, B, *inputs] follows the input's shape, device and dtype; `bias_values` is K numbers, the same for
    every sample, until a reset of some rows makes it [K, B]. Pass the buffer as `et` to `et_linear`: call, then
    `advance_(x)`, then backward. Raises StaleTraceError on any other order, StateShapeError when the input changes
    shape in mid-sequence.

    >>> from snnlearn.functional import et_linear, lif_leak_transition
    >>> trace, weight = TraceBuffer(lif_leak_transition(0.5)), torch.zeros(1, 2, requires_grad=True)
    >>> for x in torch.ones(2, 1, 2):
    ...     y = et_linear(x, trace, weight)
    ...     trace.advance_(x)
    >>> y.sum().backward(); weight.grad
    tensor([[1.5000, 1.5000]])
    """

    transient = ("values", "bias_values", "skipped")
    plain = ("tick", "gathering", "gathered", "gathered_by_input", "kept")
    takes_side_by_side = True

    def __init__(self, leak: LeakTransition, name: str = "this block") -> None:
        super().__init__(name)
        self.leak = leak
        self.values: Tensor | None = None
        self.bias_values: Tensor | tuple[float, ...] | None = None
        self.gathering: Tensor | None = None
        self.gathered: Tensor | None = None
        self.gathered_by_input: Tensor | None = None
        self.kept: KeptInputs | None = None

    def extra_repr(self) -> str:
        """Return the transition in effect."""
        return f"transition={self.leak.transition}, tick={self.tick}"

    @property
    def is_empty(self) -> bool:
        """Whether no step has been taken in since the last reset."""
        return self.values is None or self.bias_values is None

    def advance_(self, x: Float[Tensor, "batch *inputs"]) -> None:
        """Take the step's input x [B, *inputs] into the trace, in place, and tick."""
        if self.values is None or self.bias_values is None:
            self.values, self.bias_values = self._start(x)
        elif self.values.shape[1:] != x.shape or self.values.device != x.device:
            raise self._changed(x.shape, x.device)
        advance_leak_trace_(self.values, x, self.leak)
        if isinstance(self.bias_values, Tensor):
            advance_leak_trace_(self.bias_values, torch.ones_like(self.bias_values[0]), self.leak)
        else:
            self.bias_values = advance_leak_trace_of_one(self.bias_values, self.leak)
        self.tick += 1

    def read(self, tick: int) -> tuple[Tensor, BiasTrace]:
        """Return (trace [B, *inputs], trace of one, a number or [B]) if the clock stands at `tick`, else raise."""
        self.check(tick)
        assert self.values is not None
        assert self.bias_values is not None
        return read_leak_trace(self.values, self.leak), self._read_bias(self.bias_values)

    def _read_bias(self, values: Tensor | tuple[float, ...]) -> Tensor | float:
        if isinstance(values, Tensor):
            return read_leak_trace(values, self.leak)
        return sum(weight * value for weight, value in zip(self.leak.readout, values, strict=True))

    def gather(self, d: Tensor, trace: Tensor, weight: Tensor) -> bool:
        """Add d^T trace to `gathered` [O, I] while gathering for `weight`: one pass, where autograd needs two."""
        if self.gathering is not weight or weight.dtype != d.dtype:
            return False
        self.gathered = d.T @ trace if self.gathered is None else self.gathered.addmm_(d.T, trace)
        return True

    def take_gathered(self) -> Tensor | None:
        """Return what was gathered [O, I] since the last call, None for nothing, and start a new sum."""
        total, by_input = self.gathered, self.gathered_by_input
        self.gathered = self.gathered_by_input = None
        if by_input is None:
            return total
        return by_input.T.contiguous() if total is None else total.add_(by_input.T)

    def advance_chunk_(self, x: Float[Tensor, "rows *inputs"] | SideBySide, steps: ChunkSteps) -> None:
        """Take a chunk's inputs x [K B, *inputs] into the trace, and tick once; backward meets them as they are."""
        beside = x if isinstance(x, SideBySide) else SideBySide((x,))
        step = torch.Size((x.shape[0] // steps.steps, *x.shape[1:]))
        ones: Tensor | None = None
        if steps.restarts is not None and isinstance(self.bias_values, tuple) and self.values is not None:
            self.bias_values = self.values.new_tensor(self.bias_values)[:, None].repeat(1, self.values.shape[1])
        before, before_one = self.values, self.bias_values
        device = beside.parts[0].device
        if before is not None and (before.shape[1:] != step or before.device != device):
            raise self._changed(step, device)
        rolled = self._rolled(before, beside, steps)
        if steps.restarts is not None or isinstance(before_one, Tensor):
            ones = rolled.new_ones((steps.steps, step[0]))
            self.bias_values = roll_leak_trace(before_one, ones, self.leak, steps.restarts)  # type: ignore[arg-type]
        else:
            numbers = (0.0,) * len(self.leak.drive) if before_one is None else before_one
            for _ in range(steps.steps):
                numbers = advance_leak_trace_of_one(numbers, self.leak)
            self.bias_values = numbers
        self.values = rolled
        self.kept = KeptInputs(beside.each(Tensor.detach), versions_of(beside.parts), steps, before, before_one)
        self.tick += 1

    def _rolled(self, before: Tensor | None, inputs: SideBySide, steps: ChunkSteps) -> Tensor:
        """Return the trace [H, B, *inputs] after the chunk; parts that stand side by side are rolled one by one."""
        wide, *others = (self._wide(part) for part in inputs.parts)
        if is_sparse(wide):
            return roll_sparse_trace(before, wide, steps.steps, self.leak, steps.restarts)
        if not others:
            return dispatch.run(roll_leak_trace, before, steps.unfolded(wide), self.leak, steps.restarts)
        entering = (None,) * len(inputs.parts) if before is None else before.split(inputs.widths, -1)
        rolled = [
            dispatch.run(roll_leak_trace, past, steps.unfolded(part), self.leak, steps.restarts)
            for part, past in zip((wide, *others), entering, strict=True)
        ]
        return torch.cat(rolled, dim=-1)

    def relay(self, tick: int, spike_input: Tensor) -> Tensor:
        """Return ds/dy: what the signal is multiplied by on its way down."""
        return spike_input

    def chunk_parameter_gradients(self, tick: int, signal: Tensor) -> tuple[Tensor, ...]:
        """Return nothing: a neuron with parameters has another trace."""
        return ()

    def chunk_weight_gradients(
        self, tick: int, signal: Tensor, weighted_map: WeightedMap, weight: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """Return dL/dW and dL/db for the signals dL/ds [K B, *units] of the chunk; `snnlearn.functional.chunk`.

        From sparse inputs dL/dW goes into `gathered_by_input` [I, O] while gathering for `weight`, and None comes back.
        """
        self.check(tick)
        assert self.kept is not None
        inputs, versions, steps, before, before_one = self.kept
        self.check_unchanged(inputs.parts, versions)
        d = steps.unfolded(signal * steps.spike_input)
        received, entering = dispatch.run(scan_leak, d, self.leak, steps.restarts)
        units = weighted_map.units_last(received.flatten(0, 1))
        by_bias = units.flatten(0, -2).sum(0)
        gathers = self.gathering is weight and weight.requires_grad and weight.dtype == received.dtype
        gathers = gathers and is_sparse(inputs.parts[0])
        by_row = received.flatten(0, 1)
        parts = []
        for k, row in enumerate(entering if before is not None else ()):
            assert before is not None
            assert before_one is not None
            parts.append((row, before[k].to(row.dtype)))
            by_bias = by_bias + bias_gradient(weighted_map.units_last(row), before_one[k])
        inputs = inputs.each(lambda part: part.to(received.dtype))
        if not gathers:
            within = inputs.summed_products(by_row, partial(weighted_map.weight_gradient, weight=weight))
            return sum((weighted_map.weight_gradient(d, x, weight) for d, x in parts), within), by_bias
        if self.gathered_by_input is None:
            self.gathered_by_input = received.new_zeros(weight.shape[::-1])
        for d, x in ((by_row, inputs.parts[0]), *parts):
            add_weight_gradient_(self.gathered_by_input, d, x)
        return None, by_bias

    def _wide(self, x: Tensor) -> Tensor:
        return x.float() if torch.is_autocast_enabled(x.device.type) else x

    def reset(self, rows: Bool[Tensor, " batch"] | None = None) -> None:
        """Forget the trace, or the rows where `rows` [B] is true; a backward still pending then raises."""
        if rows is not None and self.values is not None and isinstance(self.bias_values, tuple):
            numbers = self.values.new_tensor(self.bias_values)
            self.bias_values = numbers[:, None].repeat(1, self.values.shape[1])
        self.kept = None
        super().reset(rows)

    def norm(self) -> float:
        """Return the Euclidean norm of the trace that meets the learning signal; 0.0 before the first step.

        >>> from snnlearn.functional import lif_leak_transition
        >>> TraceBuffer(lif_leak_transition(0.5)).norm()
        0.0
        """
        return 0.0 if self.values is None else float(read_leak_trace(self.values, self.leak).norm())

    def _changed(self, shape: torch.Size, device: torch.device) -> StateShapeError:
        assert self.values is not None
        return StateShapeError(
            f"{self.name}: the input has shape {list(shape)} on {device}, the running trace "
            f"{list(self.values.shape[1:])} on {self.values.device}: within a sequence both stay the same. "
            f"Call reset(net) where a new sequence begins"
        )

    def _start(self, x: Tensor) -> tuple[Tensor, tuple[float, ...]]:
        hidden = len(self.leak.drive)
        dtype = torch.float32 if torch.is_autocast_enabled(x.device.type) else x.dtype
        return torch.stack([torch.zeros_like(x.detach(), dtype=dtype) for _ in range(hidden)]), (0.0,) * hidden

    def __getstate__(self) -> dict[str, Any]:
        """Return attributes for copies and pickles, which gather nothing for the learner of this one."""
        return {**super().__getstate__(), "gathering": None, "gathered": None, "gathered_by_input": None, "kept": None}


__all__ = ["NO_TRACE", "StaleTraceError", "TraceBuffer"]
