"""LIF neuron with an adaptive threshold; equations in `snnlearn.functional.alif`."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from snnlearn.functional.alif import alif_constant_derivatives, alif_jacobian, alif_step
from snnlearn.functional.chunk import Restarts
from snnlearn.functional.dynamics import ConstantDerivatives, Jacobian, LeakTransition, SpikeFunction, State
from snnlearn.functional.lif import lif_leak_transition
from snnlearn.functional.neuron_scan import NeuronConstants, alif_scan
from snnlearn.functional.surrogates import Surrogate
from snnlearn.kernels import dispatch
from snnlearn.nn.constant import FRACTION, POSITIVE, ConstantValue, LearnableConstant, check_adaptation
from snnlearn.nn.lif import FiringNeuron
from snnlearn.nn.time_constant import TimeScale, mean_decay, resolve_decays


class ALIF(FiringNeuron):
    """Adaptive LIF neuron: each spike raises the threshold by `adaptation`: `snnlearn.functional.alif.alif_step`.

    `tau` / `decay` of the membrane and `tau_adaptation` / `decay_adaptation` of the threshold, in the three
    forms of `LIF` (one `dt` for both); tau 2 and tau_adaptation 20 when nothing is given. `adaptation`
    (membrane units per spike, at least 0, above 0 where it is learned). The rest as for `LIF`, decay_adaptation and
    adaptation two more constants that `learn` may name; b starts at 0. Raises ValueError outside a range.

    >>> ALIF(tau=2.0, tau_adaptation=20.0, adaptation=0.2)  # doctest: +ELLIPSIS
    ALIF(decay=0.5, decay_adaptation=0.95, adaptation=0.2, threshold=1, ...)
    """

    state_names: ClassVar[tuple[str, ...]] = ("v", "b")
    unit_drive: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    decay = LearnableConstant(FRACTION)
    decay_adaptation = LearnableConstant(FRACTION)
    adaptation = LearnableConstant(POSITIVE)

    def __init__(
        self,
        tau: ConstantValue | None = None,
        tau_adaptation: ConstantValue | None = None,
        adaptation: ConstantValue = 0.2,
        *,
        dt: float | None = None,
        decay: ConstantValue | None = None,
        decay_adaptation: ConstantValue | None = None,
        threshold: ConstantValue = 1.0,
        reset: str = "soft",
        detach_reset: bool = True,
        initial_membrane: ConstantValue = 0.0,
        learn: Sequence[str] = (),
        surrogate: Surrogate | None = None,
    ) -> None:
        super().__init__(threshold, reset, detach_reset, surrogate, initial_membrane=initial_membrane, learn=learn)
        self.set_constant("adaptation", check_adaptation(adaptation))
        membrane = TimeScale(tau, decay)
        threshold_rise = TimeScale(tau_adaptation, decay_adaptation, "tau_adaptation", 20.0)
        resolved = resolve_decays(dt, membrane, threshold_rise)
        for name, value in zip(("decay", "decay_adaptation"), resolved, strict=True):
            self.set_constant(name, value)

    def extra_repr(self) -> str:
        """Return the constants in effect."""
        return f"{self.describe('decay', 'decay_adaptation', 'adaptation', 'threshold')}, {super().extra_repr()}"

    def step_with(self, y: Tensor, state: State, spike_function: SpikeFunction) -> tuple[Tensor, State]:
        """Advance by one step with the spikes of `spike_function`."""
        v, b = state
        spike, v, b = alif_step(
            y,
            v,
            b,
            self.decay,
            self.decay_adaptation,
            self.adaptation,
            self.threshold,
            self.reset_kind,
            self.detach_reset,
            spike_function,
        )
        return spike, (v, b)

    def scan(self, y: Tensor, state: State, restarts: Restarts, entering: State | None) -> tuple[Tensor, Tensor, State]:
        """Step through y [K, B, *units] at once."""
        constants = NeuronConstants(
            self.decay,
            self.threshold,
            self.reset_kind,
            self.surrogate,
            self.initial_membrane,
            decay_adaptation=self.decay_adaptation,
            adaptation=self.adaptation,
        )
        return dispatch.run(alif_scan, y, state, constants, restarts, entering)

    def jacobian(self, y: Tensor, state: State) -> Jacobian:
        """Return the analytic Jacobian."""
        v, b = state
        return alif_jacobian(
            y,
            v,
            b,
            self.decay,
            self.decay_adaptation,
            self.adaptation,
            self.threshold,
            self.reset_kind,
            self.detach_reset,
            self.surrogate,
        )

    def constant_derivatives(self, y: Tensor, state: State) -> ConstantDerivatives:
        """Return the analytic derivatives by the constants."""
        v, b = state
        return alif_constant_derivatives(
            y,
            v,
            b,
            self.decay,
            self.decay_adaptation,
            self.adaptation,
            self.threshold,
            self.reset_kind,
            self.detach_reset,
            self.surrogate,
        )

    def leak_transition(self) -> LeakTransition:
        """Return the membrane's leak alone: the adaptation is left out, as `leak_caveats` says."""
        return lif_leak_transition(mean_decay(self.decay))

    def leak_caveats(self) -> list[str]:
        """Return why a factored trace is approximate for this neuron."""
        caveats = super().leak_caveats()
        if isinstance(self.adaptation, Tensor) or self.adaptation > 0:
            caveats.append("adaptive threshold: the factored trace leaves out the adaptation's gradient")
        return caveats


__all__ = ["ALIF"]
