"""Current-based LIF neuron; equations in `snnlearn.functional.cuba_lif`."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from snnlearn.functional.chunk import Restarts
from snnlearn.functional.cuba_lif import (
    cuba_lif_constant_derivatives,
    cuba_lif_jacobian,
    cuba_lif_leak_transition,
    cuba_lif_step,
)
from snnlearn.functional.dynamics import ConstantDerivatives, Jacobian, LeakTransition, SpikeFunction, State
from snnlearn.functional.neuron_scan import NeuronConstants, cuba_lif_scan
from snnlearn.functional.surrogates import Surrogate
from snnlearn.kernels import dispatch
from snnlearn.nn.constant import FRACTION, ConstantValue, LearnableConstant
from snnlearn.nn.lif import FiringNeuron
from snnlearn.nn.time_constant import TimeScale, mean_decay, resolve_decays


class CubaLIF(FiringNeuron):
    """LIF neuron behind a decaying synaptic current: `snnlearn.functional.cuba_lif.cuba_lif_step`.

    `tau` / `decay` of the membrane and `tau_synapse` / `decay_synapse` of the current, in the three forms of
    `LIF` (one `dt` for both); both tau 2 when nothing is given. The rest as for `LIF`, decay_synapse one more constant
    that `learn` may name; the current starts at 0. Raises ValueError for a constant outside its range.

    >>> CubaLIF(tau=2.0, tau_synapse=4.0)  # doctest: +ELLIPSIS
    CubaLIF(decay=0.5, decay_synapse=0.75, threshold=1, ...)
    """

    state_names: ClassVar[tuple[str, ...]] = ("current", "v")
    unit_drive: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    decay = LearnableConstant(FRACTION)
    decay_synapse = LearnableConstant(FRACTION)

    def __init__(
        self,
        tau: ConstantValue | None = None,
        tau_synapse: ConstantValue | None = None,
        *,
        dt: float | None = None,
        decay: ConstantValue | None = None,
        decay_synapse: ConstantValue | None = None,
        threshold: ConstantValue = 1.0,
        reset: str = "soft",
        detach_reset: bool = True,
        initial_membrane: ConstantValue = 0.0,
        learn: Sequence[str] = (),
        surrogate: Surrogate | None = None,
    ) -> None:
        super().__init__(threshold, reset, detach_reset, surrogate, initial_membrane=initial_membrane, learn=learn)
        membrane, synapse = TimeScale(tau, decay), TimeScale(tau_synapse, decay_synapse, "tau_synapse")
        for name, resolved in zip(("decay", "decay_synapse"), resolve_decays(dt, membrane, synapse), strict=True):
            self.set_constant(name, resolved)

    def extra_repr(self) -> str:
        """Return the constants in effect."""
        return f"{self.describe('decay', 'decay_synapse', 'threshold')}, {super().extra_repr()}"

    def step_with(self, y: Tensor, state: State, spike_function: SpikeFunction) -> tuple[Tensor, State]:
        """Advance by one step with the spikes of `spike_function`."""
        current, v = state
        spike, current, v = cuba_lif_step(
            y,
            current,
            v,
            self.decay_synapse,
            self.decay,
            self.threshold,
            self.reset_kind,
            self.detach_reset,
            spike_function,
        )
        return spike, (current, v)

    def scan(self, y: Tensor, state: State, restarts: Restarts, entering: State | None) -> tuple[Tensor, Tensor, State]:
        """Step through y [K, B, *units] at once."""
        constants = NeuronConstants(
            self.decay,
            self.threshold,
            self.reset_kind,
            self.surrogate,
            self.initial_membrane,
            decay_synapse=self.decay_synapse,
        )
        return dispatch.run(cuba_lif_scan, y, state, constants, restarts, entering)

    def jacobian(self, y: Tensor, state: State) -> Jacobian:
        """Return the analytic Jacobian."""
        current, v = state
        return cuba_lif_jacobian(
            y,
            current,
            v,
            self.decay_synapse,
            self.decay,
            self.threshold,
            self.reset_kind,
            self.detach_reset,
            self.surrogate,
        )

    def constant_derivatives(self, y: Tensor, state: State) -> ConstantDerivatives:
        """Return the analytic derivatives by the constants."""
        current, v = state
        return cuba_lif_constant_derivatives(
            y,
            current,
            v,
            self.decay_synapse,
            self.decay,
            self.threshold,
            self.reset_kind,
            self.detach_reset,
            self.surrogate,
        )

    def leak_transition(self) -> LeakTransition:
        """Return two cascaded traces."""
        return cuba_lif_leak_transition(mean_decay(self.decay_synapse), mean_decay(self.decay))


__all__ = ["CubaLIF"]
