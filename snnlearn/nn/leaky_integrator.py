"""Leaky integrator readout; equations in `snnlearn.functional.leaky_integrator`."""

from collections.abc import Sequence

from torch import Tensor

from snnlearn.functional.dynamics import ConstantDerivatives, Jacobian, LeakTransition, State
from snnlearn.functional.leaky_integrator import (
    leaky_integrator_constant_derivatives,
    leaky_integrator_jacobian,
    leaky_integrator_step,
)
from snnlearn.functional.lif import lif_leak_transition
from snnlearn.nn.constant import FRACTION, ConstantValue, LearnableConstant
from snnlearn.nn.membrane import MembraneNeuron
from snnlearn.nn.time_constant import TimeScale, mean_decay, resolve_decays


class LI(MembraneNeuron):
    """Leaky integrator, the usual readout: v = decay * v + y, and the output is the membrane v.

    `tau`, `tau` with `dt`, or `decay`, as for `LIF`; tau 2 when none is given. `initial_membrane` and `learn` as for
    `LIF`, there being no threshold. Input and output [B, *units] in membrane units. Raises ValueError for a constant
    outside its range.

    >>> LI(tau=4.0)
    LI(decay=0.75)
    """

    spiking = False
    elementwise = True
    decay = LearnableConstant(FRACTION)

    def __init__(
        self,
        tau: ConstantValue | None = None,
        *,
        dt: float | None = None,
        decay: ConstantValue | None = None,
        initial_membrane: ConstantValue = 0.0,
        learn: Sequence[str] = (),
    ) -> None:
        super().__init__(None, initial_membrane, learn)
        self.set_constant("decay", *resolve_decays(dt, TimeScale(tau, decay)))

    def extra_repr(self) -> str:
        """Return the constants in effect."""
        return self.describe("decay")

    def step(self, y: Tensor, state: State) -> tuple[Tensor, State]:
        """Advance by one step."""
        output, v = leaky_integrator_step(y, state[0], self.decay)
        return output, (v,)

    @property
    def is_leak(self) -> bool:
        """Whether the decay is one plain number and the step that of this class."""
        written = type(self).step is LI.step and "step" not in vars(self)
        return written and type(self).leak_transition is LI.leak_transition and isinstance(self.decay, float)

    def jacobian(self, y: Tensor, state: State) -> Jacobian:
        """Return the analytic Jacobian."""
        return leaky_integrator_jacobian(y, self.decay)

    def constant_derivatives(self, y: Tensor, state: State) -> ConstantDerivatives:
        """Return the analytic derivatives by the constants."""
        return leaky_integrator_constant_derivatives(state[0])

    def leak_transition(self) -> LeakTransition:
        """Return (decay, 1, 1)."""
        return lif_leak_transition(mean_decay(self.decay))

    def leak_caveats(self) -> list[str]:
        """Return why a factored trace is approximate: only a decay that differs per unit."""
        return self.decay_caveats("decay")


__all__ = ["LI"]
