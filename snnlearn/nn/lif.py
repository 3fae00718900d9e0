"""Leaky integrate-and-fire and integrate-and-fire neurons; equations in `snnlearn.functional.lif`."""

from typing import ClassVar

from torch import Tensor

from snnlearn.functional.cut_step import Firing, cut_step
from snnlearn.functional.dynamics import Jacobian, LeakTransition, SpikeFunction, State, check_reset
from snnlearn.functional.lif import lif_jacobian, lif_leak_transition, lif_step
from snnlearn.functional.surrogates import Surrogate
from snnlearn.functional.trace import flush_subnormals_
from snnlearn.nn.neuron import Neuron, check_threshold
from snnlearn.nn.probe import STEP_NAMES
from snnlearn.nn.time_constant import (
    TimeConstant,
    TimeScale,
    describe_decay,
    mean_decay,
    resolve_decays,
    unequal_decay_caveats,
)


class FiringNeuron(Neuron):
    """Base of the built-in spiking neurons: a threshold, and a reset that may be cut from the gradient.

    A subclass gives `step_with(y, state, spike_function)`. Where its spikes come from one u with du/dy = 1, and the
    new state is in fresh tensors, it may say so in `unit_drive`, which is not inherited: a step whose past is a
    constant is then one autograd node (`snnlearn.functional.cut_step`).
    `threshold` (membrane units, above 0); `reset` soft, hard or none; `detach_reset` takes the spike in the
    reset as a constant. Raises ValueError for a value outside these.

    >>> FiringNeuron.state_names
    ('v',)
    """

    state_names: ClassVar[tuple[str, ...]] = ("v",)
    unit_drive: ClassVar[bool] = False

    def __init__(
        self,
        threshold: float = 1.0,
        reset: str = "soft",
        detach_reset: bool = True,
        surrogate: Surrogate | None = None,
    ) -> None:
        super().__init__(surrogate)
        check_reset(reset)
        self.threshold = check_threshold(threshold)
        self.reset_kind, self.detach_reset = reset, detach_reset

    def set_decay(self, name: str, decay: float | Tensor) -> None:
        """Keep a decay per step under `name`: a number, or a buffer when it differs per unit."""
        if isinstance(decay, Tensor):
            self.register_buffer(name, decay)
        else:
            setattr(self, name, decay)

    def step_with(self, y: Tensor, state: State, spike_function: SpikeFunction) -> tuple[Tensor, State]:
        """Advance by one step with the spikes of `spike_function`."""
        raise TypeError(f"{type(self).__name__} must define step_with(y, state, spike_function)")

    def step(self, y: Tensor, state: State) -> tuple[Tensor, State]:
        """Advance by one step."""
        return self.step_with(y, state, self.spike)

    @property
    def cuts_its_past(self) -> bool:
        """Whether the coming step is one node: the graph is not carried on, and `unit_drive` is true of its step."""
        return (
            not self.carry_graph
            and vars(type(self)).get("unit_drive", False)
            and type(self).step is FiringNeuron.step
            and type(self).spike is Neuron.spike
            and type(self).forward is Neuron.forward
            and type(self.surrogate).__call__ is Surrogate.__call__
            and self.__dict__.keys().isdisjoint(STEP_NAMES)
        )

    def advance_cut(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Advance by y outside autograd, keep the new state, and return (spike, u = membrane - threshold)."""
        firing = Firing(self.surrogate)
        spike, after = self.step_with(y, self.state_for(y), firing)
        self.state = tuple(flush_subnormals_(value) for value in after)
        assert firing.u is not None
        return spike, firing.u

    def _advance(self, y: Tensor) -> Tensor:
        return cut_step(self.advance_cut, y, self.surrogate) if self.cuts_its_past else super()._advance(y)

    def extra_repr(self) -> str:
        """Return the constants in effect."""
        detached = ", detached" if self.detach_reset and self.reset_kind != "none" else ""
        return f"threshold={self.threshold:g}, reset={self.reset_kind}{detached}, surrogate={self.surrogate}"

    def leak_caveats(self) -> list[str]:
        """Return why a factored trace is approximate for this neuron."""
        caveats = []
        if self.reset_kind == "hard":
            caveats.append("hard reset: a spike clears the membrane, the factored trace keeps decaying")
        if self.reset_kind == "soft" and not self.detach_reset:
            caveats.append("attached soft reset: the trace leaves out the path through the spike")
        if self.reset_kind == "hard" and not self.detach_reset:
            caveats.append("attached hard reset: the trace leaves out the path through the spike")
        decays = {name: getattr(self, name) for name in ("decay", "decay_synapse") if hasattr(self, name)}
        return caveats + unequal_decay_caveats(**decays)


class LIF(FiringNeuron):
    """Leaky integrate-and-fire neuron: `snnlearn.functional.lif.lif_step`.

    `tau` (steps, above 1: decay 1 - 1/tau), `tau` with `dt` (same unit: decay exp(-dt/tau)) or `decay` in
    (0, 1), each one number or one per unit; tau 2 when none is given. Input and output [B, *units]. Raises
    ValueError for a constant outside its range.

    >>> import torch
    >>> LIF(tau=2.0)
    LIF(decay=0.5, threshold=1, reset=soft, detached, surrogate=ArcTan(alpha=2.0))
    >>> LIF()(torch.tensor([[0.5, 1.5]]))
    tensor([[0., 1.]])
    """

    unit_drive: ClassVar[bool] = True

    def __init__(
        self,
        tau: TimeConstant | None = None,
        *,
        dt: float | None = None,
        decay: TimeConstant | None = None,
        threshold: float = 1.0,
        reset: str = "soft",
        detach_reset: bool = True,
        surrogate: Surrogate | None = None,
    ) -> None:
        super().__init__(threshold, reset, detach_reset, surrogate)
        self.decay: float | Tensor
        self.set_decay("decay", *resolve_decays(dt, TimeScale(tau, decay)))

    def extra_repr(self) -> str:
        """Return the constants in effect."""
        return f"decay={describe_decay(self.decay)}, {super().extra_repr()}"

    def step_with(self, y: Tensor, state: State, spike_function: SpikeFunction) -> tuple[Tensor, State]:
        """Advance by one step with the spikes of `spike_function`."""
        spike, v = lif_step(y, state[0], self.decay, self.threshold, self.reset_kind, self.detach_reset, spike_function)
        return spike, (v,)

    def jacobian(self, y: Tensor, state: State) -> Jacobian:
        """Return the analytic Jacobian."""
        return lif_jacobian(y, state[0], self.decay, self.threshold, self.reset_kind, self.detach_reset, self.surrogate)

    def leak_transition(self) -> LeakTransition:
        """Return (decay, 1, 1)."""
        return lif_leak_transition(mean_decay(self.decay))


class IF(LIF):
    """Integrate-and-fire neuron: a LIF that does not leak (decay 1).

    Arguments as `LIF` without a time constant. Input and output [B, *units].

    >>> IF(threshold=2.0)
    IF(decay=1, threshold=2, reset=soft, detached, surrogate=ArcTan(alpha=2.0))
    """

    unit_drive: ClassVar[bool] = True

    def __init__(
        self,
        threshold: float = 1.0,
        reset: str = "soft",
        detach_reset: bool = True,
        surrogate: Surrogate | None = None,
    ) -> None:
        super().__init__(threshold=threshold, reset=reset, detach_reset=detach_reset, surrogate=surrogate)
        self.decay = 1.0


__all__ = ["IF", "LIF", "FiringNeuron"]
