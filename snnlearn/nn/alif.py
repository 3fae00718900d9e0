"""LIF neuron with an adaptive threshold; equations in `snnlearn.functional.alif`."""

import math
from typing import ClassVar

from torch import Tensor

from snnlearn.functional.alif import alif_jacobian, alif_step
from snnlearn.functional.dynamics import Jacobian, LeakTransition, SpikeFunction, State
from snnlearn.functional.lif import lif_leak_transition
from snnlearn.functional.surrogates import Surrogate
from snnlearn.nn.lif import FiringNeuron
from snnlearn.nn.neuron import check_number
from snnlearn.nn.time_constant import TimeConstant, TimeScale, describe_decay, mean_decay, resolve_decays


class ALIF(FiringNeuron):
    """Adaptive LIF neuron: each spike raises the threshold by `adaptation`: `snnlearn.functional.alif.alif_step`.

    `tau` / `decay` of the membrane and `tau_adaptation` / `decay_adaptation` of the threshold, in the three
    forms of `LIF` (one `dt` for both); tau 2 and tau_adaptation 20 when nothing is given. `adaptation`
    (membrane units per spike, at least 0). Input and output [B, *units]. Raises ValueError outside a range.

    >>> ALIF(tau=2.0, tau_adaptation=20.0, adaptation=0.2)  # doctest: +ELLIPSIS
    ALIF(decay=0.5, decay_adaptation=0.95, adaptation=0.2, threshold=1, ...)
    """

    state_names: ClassVar[tuple[str, ...]] = ("v", "b")
    unit_drive: ClassVar[bool] = True

    def __init__(
        self,
        tau: TimeConstant | None = None,
        tau_adaptation: TimeConstant | None = None,
        adaptation: float = 0.2,
        *,
        dt: float | None = None,
        decay: TimeConstant | None = None,
        decay_adaptation: TimeConstant | None = None,
        threshold: float = 1.0,
        reset: str = "soft",
        detach_reset: bool = True,
        surrogate: Surrogate | None = None,
    ) -> None:
        super().__init__(threshold, reset, detach_reset, surrogate)
        self.adaptation = check_number("adaptation", adaptation, "0.2")
        if not (math.isfinite(self.adaptation) and self.adaptation >= 0):
            raise ValueError(
                f"adaptation={adaptation!r}: the rise of the threshold per spike is finite and at least 0, since a "
                f"falling threshold would fire for ever; write adaptation=0.2"
            )
        self.decay: float | Tensor
        self.decay_adaptation: float | Tensor
        membrane = TimeScale(tau, decay)
        threshold_rise = TimeScale(tau_adaptation, decay_adaptation, "tau_adaptation", 20.0)
        resolved = resolve_decays(dt, membrane, threshold_rise)
        for name, value in zip(("decay", "decay_adaptation"), resolved, strict=True):
            self.set_decay(name, value)

    def extra_repr(self) -> str:
        """Return the constants in effect."""
        decays = f"decay={describe_decay(self.decay)}, decay_adaptation={describe_decay(self.decay_adaptation)}"
        return f"{decays}, adaptation={self.adaptation:g}, {super().extra_repr()}"

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

    def leak_transition(self) -> LeakTransition:
        """Return the membrane's leak alone: the adaptation is left out, as `leak_caveats` says."""
        return lif_leak_transition(mean_decay(self.decay))

    def leak_caveats(self) -> list[str]:
        """Return why a factored trace is approximate for this neuron."""
        caveats = super().leak_caveats()
        if self.adaptation:
            caveats.append("adaptive threshold: the factored trace leaves out the adaptation's gradient")
        return caveats


__all__ = ["ALIF"]
