"""The base of every neuron: a user writes one elementwise step, and every rule works on it."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from snnlearn.functional.dynamics import Jacobian, LeakTransition, State, jacobian_of
from snnlearn.functional.surrogates import ArcTan, Surrogate
from snnlearn.functional.trace import flush_subnormals
from snnlearn.functional.traced_step import DirectDerivative, LinearisedStep
from snnlearn.nn.chunk import Chunk
from snnlearn.nn.eager import run_eagerly
from snnlearn.nn.probe import initial_derivatives, jacobian_at, parameter_derivatives, probe_caveats, probe_leak
from snnlearn.nn.state import Stateful, StateShapeError, zero_rows


class Neuron(Stateful):
    """A spiking neuron: `step(y, state) -> (spike, state)`, elementwise over its units.

    A subclass names its hidden values in `state_names` and defines `step`; its spikes come from
    `self.spike(u)` with u = membrane - threshold, so that learning can replace the derivative. `y` and each
    hidden value have the shape [B, *units]. Everything else is derived: the local Jacobian by differentiation,
    the constant part that a factored trace follows, and whether that constant part is all there is.

    `surrogate` the derivative of the spike. Between steps the state is cut from the graph, unless
    `carry_graph` is set, as BPTT does. `unit_shape` is that of one sample, which attaching
    a rule sets. Raises StateShapeError when the input changes shape in mid-sequence.

    >>> class Square(Neuron):
    ...     state_names = ("v",)
    ...     def step(self, y, state):
    ...         v = 0.5 * state[0] + y
    ...         return self.spike(v - 1.0), (v,)
    >>> neuron = Square(); neuron(torch.full((1, 2), 0.8)); neuron(torch.full((1, 2), 0.8))
    tensor([[0., 0.]])
    tensor([[1., 1.]])
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    spiking: ClassVar[bool] = True
    elementwise: ClassVar[bool] = False
    """Whether this very class is known to mix no units, which is not inherited: `attach` looks at the others."""
    transient = ("state",)

    def __init__(self, surrogate: Surrogate | None = None) -> None:
        super().__init__()
        if surrogate is not None and not isinstance(surrogate, Surrogate):
            raise TypeError(
                f"surrogate={surrogate!r}: pass a surrogate object, since the name alone has no width; write "
                f"surrogate=ArcTan()"
            )
        if not self.state_names:
            raise TypeError(
                f"{type(self).__name__} names no hidden value: a neuron carries at least one; write "
                f"state_names = ('v',) in the class"
            )
        self.surrogate: Surrogate = ArcTan() if surrogate is None else surrogate
        self.state: State | None = None
        self.carry_graph = True
        self.unit_shape: tuple[int, ...] = (4,)
        self.chunk: Chunk | None = None

    def step(self, y: Tensor, state: State) -> tuple[Tensor, State]:
        """Advance by one step: input y [B, *units] and hidden values -> (spike, hidden values)."""
        raise TypeError(f"{type(self).__name__} must define step(self, y, state) -> (spike, state)")

    def spike(self, u: Tensor) -> Tensor:
        """Return spikes of u = membrane - threshold [B, *units], with the surrogate as derivative."""
        return self.surrogate(u)

    @run_eagerly("a neuron carries state between calls; only eager code steps it")
    def forward(self, y: Tensor) -> Tensor:
        """Return this step's output for input y [B, *units] and keep the new state."""
        self.refuse_replicas()
        return self._advance(y) if self.chunk is None else self._advance_chunk(y, self.chunk)

    def _advance_chunk(self, y: Tensor, chunk: Chunk) -> Tensor:
        """Step through the chunk y [K B, *units] and return the spikes, each step with the gradient of its own."""
        spikes = []
        chunk.check_rows(y, self.state)
        for t, y_t in enumerate(chunk.unfolded(y).unbind()):
            rows = chunk.rows_at(t)
            if rows is not None:
                self.reset(rows)
            spikes.append(self._advance(y_t))
        return torch.cat(spikes)

    def _advance(self, y: Tensor) -> Tensor:
        """Step, keep the new state, cut from the graph unless it carries on, and return the spike."""
        spike, after = self._unpacked(self.step(y, self.state_for(y)))
        if len(after) != len(self.state_names):
            raise StateShapeError(
                f"{type(self).__name__}.step returned {len(after)} hidden value(s) for state_names="
                f"{self.state_names}: return all of them in that order"
            )
        kept = after if self.carry_graph else tuple(value.detach() for value in after)
        self.state = tuple(flush_subnormals(value) for value in kept)
        return spike

    def _unpacked(self, result: Any) -> tuple[Tensor, State]:
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], tuple):
            return result
        raise TypeError(
            f"{type(self).__name__}.step returned {type(result).__name__}: it returns the spike and a tuple of hidden "
            f"values; write return spike, ({', '.join(self.state_names)},)"
        )

    def initial_state(self, y: Tensor) -> State:
        """Return the hidden values before the first step, zeros shaped like y [B, *units].

        Inside autocast they are float32, since half precision loses a decaying membrane.
        """
        dtype = torch.float32 if torch.is_autocast_enabled(y.device.type) else y.dtype
        return tuple(torch.zeros_like(y, dtype=dtype, requires_grad=False) for _ in self.state_names)

    def jacobian(self, y: Tensor, state: State) -> Jacobian:
        """Return the local derivatives of `step` at (y, state), by differentiation unless overridden."""
        return jacobian_of(self.step, y, state)

    def advance_linearised(self, y: Tensor) -> LinearisedStep:
        """Advance by y outside autograd, keep the new state, and return the spike with the step's derivatives."""
        state = self.state_for(y)
        jacobian, parameters = jacobian_at(self, y, state), self.direct_derivatives(y, state)
        spike, after = self._unpacked(self.step(y, state))
        self.state = tuple(flush_subnormals(value.detach()) for value in after)
        return LinearisedStep(spike, jacobian, parameters)

    def direct_derivatives(self, y: Tensor, state: State) -> tuple[DirectDerivative, ...]:
        """Return how the step at (y, state) depends on each of the own parameters at once, by forward mode.

        One per parameter in the order of `parameters()`, with that of the state before the first step.
        """
        found = parameter_derivatives(self, y, state)
        if not found or type(self).initial_state is Neuron.initial_state:
            return found
        starts = self.initial_derivatives(y)
        return tuple(direct._replace(initial=start) for direct, start in zip(found, starts, strict=True))

    def initial_derivatives(self, y: Tensor) -> tuple[Tensor, ...]:
        """Return how the state before the first step, that of y [B, *units], depends on each of the own parameters.

        One [K, B, *units] per parameter in the order of `parameters()`, K hidden values: where its eligibility starts.
        """
        return initial_derivatives(self, y)

    @property
    def is_leak(self) -> bool:
        """Whether a step is v = decay v + y with one decay, put out as it is: several are then one product."""
        return False

    @property
    def learned(self) -> dict[str, str]:
        """The constants that are learned, by the name of the parameter behind each; empty unless overridden."""
        return {}

    def reset(self, rows: Tensor | None = None) -> None:
        """Forget the state, or restart the rows where `rows` [B] is true at their `initial_state`."""
        running = self.state
        super().reset(rows)
        if rows is not None and running is not None and self.state is not None:
            start = self.initial_state(running[0])
            self.state = tuple(
                zeroed + zero_rows(value.to(zeroed.dtype), ~rows)
                for zeroed, value in zip(self.state, start, strict=True)
            )

    def leak_transition(self) -> LeakTransition:
        """Return the constant part of `step`, which a factored trace follows; derived by `nn.probe` unless overridden.

        Raises ValueError when the input does not reach the spike within the step, or when units mix.
        """
        return probe_leak(self, self.unit_shape)

    def leak_caveats(self) -> list[str]:
        """Return why `leak_transition` is not the whole truth; empty when a factored trace is exact."""
        return probe_caveats(self, self.unit_shape)

    def state_for(self, y: Tensor) -> State:
        """Return the hidden values that meet y [B, *units]; raise StateShapeError when they do not fit it."""
        if self.state is None:
            return self.initial_state(y)
        first = self.state[0]
        if first.shape != y.shape or first.device != y.device:
            raise StateShapeError(
                f"{type(self).__name__}: the input has shape {list(y.shape)} on {y.device}, the state carried from "
                f"the step before {list(first.shape)} on {first.device}: within a sequence both stay the same. "
                f"Call reset(net) where a new sequence begins; several steps at once go inside in_chunk(net, Chunk(K))"
            )
        return self.state

    def refuse_replicas(self) -> None:
        """Raise RuntimeError in a DataParallel replica and under torch.export, where the state would be lost."""
        if self.__dict__.get("_is_replica", False):
            raise RuntimeError(
                "DataParallel steps a throw-away copy of this neuron, so its state would be lost; use "
                "torch.nn.parallel.DistributedDataParallel with one process per device"
            )
        if torch.compiler.is_exporting():
            raise RuntimeError(
                "a neuron's state is hidden from torch.export; export a module whose forward calls "
                "neuron.step(y, state), where the state is an explicit input and output"
            )


__all__ = ["Neuron"]
