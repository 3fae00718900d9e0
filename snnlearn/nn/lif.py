"""Leaky integrate-and-fire and integrate-and-fire neurons; equations in `snnlearn.functional.lif`."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from snnlearn.functional.chunk import Restarts
from snnlearn.functional.cut_step import Firing, cut_step
from snnlearn.functional.dynamics import (
    ConstantDerivatives,
    Jacobian,
    LeakTransition,
    SpikeFunction,
    State,
    check_reset,
)
from snnlearn.functional.lif import lif_constant_derivatives, lif_jacobian, lif_leak_transition, lif_step, lif_step_
from snnlearn.functional.neuron_scan import NeuronConstants, lif_scan
from snnlearn.functional.surrogates import Surrogate
from snnlearn.functional.trace import flush_subnormals_
from snnlearn.kernels import dispatch
from snnlearn.nn.chunk import Chunk, scan_cut
from snnlearn.nn.constant import FRACTION, POSITIVE, ConstantValue, LearnableConstant, check_threshold
from snnlearn.nn.membrane import MembraneNeuron
from snnlearn.nn.neuron import Neuron
from snnlearn.nn.probe import STEP_NAMES
from snnlearn.nn.time_constant import TimeScale, mean_decay, resolve_decays


class FiringNeuron(MembraneNeuron):
    """Base of the built-in spiking neurons: a threshold, and a reset that may be cut from the gradient.

    A subclass gives `step_with(y, state, spike_function)`. Where its spikes come from one u with du/dy = 1, and the
    new state is in fresh tensors, it may say so in `unit_drive`, which is not inherited: a step whose past is a
    constant is then one autograd node (`snnlearn.functional.cut_step`).
    `threshold` (membrane units, above 0) one number or one per unit; `reset` soft, hard or none; `detach_reset` takes
    the spike in the reset as a constant; `initial_membrane` and `learn` as for `MembraneNeuron`. Raises ValueError
    for a value outside these.

    >>> FiringNeuron.state_names
    ('v',)
    """

    unit_drive: ClassVar[bool] = False
    threshold = LearnableConstant(POSITIVE)

    def __init__(
        self,
        threshold: ConstantValue = 1.0,
        reset: str = "soft",
        detach_reset: bool = True,
        surrogate: Surrogate | None = None,
        *,
        initial_membrane: ConstantValue = 0.0,
        learn: Sequence[str] = (),
    ) -> None:
        super().__init__(surrogate, initial_membrane, learn)
        check_reset(reset)
        self.set_constant("threshold", check_threshold(threshold))
        self.reset_kind, self.detach_reset = reset, detach_reset

    def step_with(self, y: Tensor, state: State, spike_function: SpikeFunction) -> tuple[Tensor, State]:
        """Advance by one step with the spikes of `spike_function`."""
        raise TypeError(f"{type(self).__name__} must define step_with(y, state, spike_function)")

    def step(self, y: Tensor, state: State) -> tuple[Tensor, State]:
        """Advance by one step."""
        return self.step_with(y, state, self.spike)

    def scan(self, y: Tensor, state: State, restarts: Restarts, entering: State | None) -> tuple[Tensor, Tensor, State]:
        """Step through y [K, B, *units] at once: `snnlearn.functional.neuron_scan`, which says what comes back.

        A subclass with a scan of the same numbers as its `step_with` gives it here; it is not inherited.
        """
        raise TypeError(f"{type(self).__name__} has no scan; step it with step_with(y, state, spike_function)")

    @property
    def has_scan(self) -> bool:
        """Whether a chunk may run by `scan`: this very class has one, and no part of its step was replaced."""
        return "scan" in vars(type(self)) and type(self) is not FiringNeuron and self._steps_as_written()

    @property
    def cuts_its_past(self) -> bool:
        """Whether the coming step is one node: no graph is carried on, nothing is learned, and `unit_drive` is true."""
        return (
            not self.carry_graph
            and not self._parameters
            and vars(type(self)).get("unit_drive", False)
            and type(self).forward is Neuron.forward
            and self._steps_as_written()
        )

    def _steps_as_written(self) -> bool:
        """Whether a step is `step_with` of the class, with spikes where u >= 0 as the surrogate fires them."""
        return (
            type(self).step is FiringNeuron.step
            and type(self).spike is Neuron.spike
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

    def advance_over(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Do what `advance_cut` does for a y that is nobody else's, so that the neuron may write over it."""
        return self.advance_cut(y)

    def _advance(self, y: Tensor) -> Tensor:
        return cut_step(self.advance_cut, y, self.surrogate) if self.cuts_its_past else super()._advance(y)

    def _advance_chunk(self, y: Tensor, chunk: Chunk) -> Tensor:
        if not self.cuts_its_past:
            return super()._advance_chunk(y, chunk)

        def advance(folded: Tensor) -> tuple[Tensor, Tensor]:
            scan, u = scan_cut(self, chunk.unfolded(folded), chunk)
            return scan.spikes.flatten(0, 1), u.flatten(0, 1)

        return cut_step(advance, y, self.surrogate)

    def extra_repr(self) -> str:
        """Return what a spike does."""
        detached = ", detached" if self.detach_reset and self.reset_kind != "none" else ""
        return f"reset={self.reset_kind}{detached}, surrogate={self.surrogate}"

    def leak_caveats(self) -> list[str]:
        """Return why a factored trace is approximate for this neuron."""
        caveats = []
        if self.reset_kind == "hard":
            caveats.append("hard reset: a spike clears the membrane, the factored trace keeps decaying")
        if self.reset_kind == "soft" and not self.detach_reset:
            caveats.append("attached soft reset: the trace leaves out the path through the spike")
        if self.reset_kind == "hard" and not self.detach_reset:
            caveats.append("attached hard reset: the trace leaves out the path through the spike")
        return caveats + self.decay_caveats(*(n for n in ("decay", "decay_synapse") if hasattr(self, n)))


class LIF(FiringNeuron):
    """Leaky integrate-and-fire neuron: `snnlearn.functional.lif.lif_step`.

    `tau` (steps, above 1: decay 1 - 1/tau), `tau` with `dt` (same unit: decay exp(-dt/tau)) or `decay` in
    (0, 1); tau 2 when none is given. `threshold` above 0 and `initial_membrane`, the membrane before the first step,
    in membrane units. Each is one number or one per unit, and `learn` names those that are learned, out of decay,
    threshold and initial_membrane. Input and output [B, *units]. Raises ValueError for a constant outside its range.

    >>> import torch
    >>> LIF(tau=2.0)
    LIF(decay=0.5, threshold=1, reset=soft, detached, surrogate=ArcTan(alpha=2.0))
    >>> list(LIF(tau=torch.tensor([2.0, 4.0]), learn=("decay",)).state_dict())
    ['decay_logit']
    >>> LIF()(torch.tensor([[0.5, 1.5]]))
    tensor([[0., 1.]])
    """

    unit_drive: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    decay = LearnableConstant(FRACTION)

    def __init__(
        self,
        tau: ConstantValue | None = None,
        *,
        dt: float | None = None,
        decay: ConstantValue | None = None,
        threshold: ConstantValue = 1.0,
        reset: str = "soft",
        detach_reset: bool = True,
        initial_membrane: ConstantValue = 0.0,
        learn: Sequence[str] = (),
        surrogate: Surrogate | None = None,
    ) -> None:
        super().__init__(threshold, reset, detach_reset, surrogate, initial_membrane=initial_membrane, learn=learn)
        self.set_constant("decay", *resolve_decays(dt, TimeScale(tau, decay)))

    def extra_repr(self) -> str:
        """Return the constants in effect."""
        return f"{self.describe('decay', 'threshold')}, {super().extra_repr()}"

    def step_with(self, y: Tensor, state: State, spike_function: SpikeFunction) -> tuple[Tensor, State]:
        """Advance by one step with the spikes of `spike_function`."""
        spike, v = lif_step(y, state[0], self.decay, self.threshold, self.reset_kind, self.detach_reset, spike_function)
        return spike, (v,)

    def advance_over(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Do what `advance_cut` does for a y that is nobody else's: the new membrane is written over it."""
        (v,) = self.state_for(y)
        if type(self).step_with is not LIF.step_with or y.dtype != v.dtype:
            return super().advance_over(y)
        firing = Firing(self.surrogate)
        spike, v = lif_step_(y, v, self.decay, self.threshold, self.reset_kind, firing)
        self.state = (flush_subnormals_(v),)
        assert firing.u is not None
        return spike, firing.u

    def scan(self, y: Tensor, state: State, restarts: Restarts, entering: State | None) -> tuple[Tensor, Tensor, State]:
        """Step through y [K, B, *units] at once."""
        constants = NeuronConstants(self.decay, self.threshold, self.reset_kind, self.surrogate, self.initial_membrane)
        return dispatch.run(lif_scan, y, state, constants, restarts, entering)

    def jacobian(self, y: Tensor, state: State) -> Jacobian:
        """Return the analytic Jacobian."""
        return lif_jacobian(y, state[0], self.decay, self.threshold, self.reset_kind, self.detach_reset, self.surrogate)

    def constant_derivatives(self, y: Tensor, state: State) -> ConstantDerivatives:
        """Return the analytic derivatives by the constants."""
        return lif_constant_derivatives(
            y, state[0], self.decay, self.threshold, self.reset_kind, self.detach_reset, self.surrogate
        )

    def leak_transition(self) -> LeakTransition:
        """Return (decay, 1, 1)."""
        return lif_leak_transition(mean_decay(self.decay))


class IF(LIF):
    """Integrate-and-fire neuron: a LIF that does not leak (decay 1).

    Arguments as `LIF` without a time constant, of which there is none to learn. Input and output [B, *units].

    >>> IF(threshold=2.0)
    IF(decay=1, threshold=2, reset=soft, detached, surrogate=ArcTan(alpha=2.0))
    """

    unit_drive: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    decay = 1.0
    scan = LIF.scan

    def __init__(
        self,
        threshold: ConstantValue = 1.0,
        reset: str = "soft",
        detach_reset: bool = True,
        surrogate: Surrogate | None = None,
        *,
        initial_membrane: ConstantValue = 0.0,
        learn: Sequence[str] = (),
    ) -> None:
        FiringNeuron.__init__(
            self, threshold, reset, detach_reset, surrogate, initial_membrane=initial_membrane, learn=learn
        )


__all__ = ["IF", "LIF", "FiringNeuron"]
