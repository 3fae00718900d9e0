"""Leaky integrator readout; equations in `snnlearn.functional.leaky_integrator`."""

from typing import ClassVar

from torch import Tensor

from snnlearn.functional.dynamics import Jacobian, LeakTransition, State
from snnlearn.functional.leaky_integrator import leaky_integrator_jacobian, leaky_integrator_step
from snnlearn.functional.lif import lif_leak_transition
from snnlearn.nn.neuron import Neuron
from snnlearn.nn.time_constant import (
    TimeConstant,
    TimeScale,
    describe_decay,
    mean_decay,
    resolve_decays,
    unequal_decay_caveats,
)


class LI(Neuron):
    """Leaky integrator, the usual readout: v = decay * v + y, and the output is the membrane v.

    `tau`, `tau` with `dt`, or `decay`, as for `LIF`; tau 2 when none is given. Input and output [B, *units] in
    membrane units. Raises ValueError for a constant outside its range.

    >>> LI(tau=4.0)
    LI(decay=0.75)
    """

    state_names: ClassVar[tuple[str, ...]] = ("v",)
    spiking = False

    def __init__(
        self,
        tau: TimeConstant | None = None,
        *,
        dt: float | None = None,
        decay: TimeConstant | None = None,
    ) -> None:
        super().__init__()
        self.decay: float | Tensor
        (resolved,) = resolve_decays(dt, TimeScale(tau, decay))
        if isinstance(resolved, Tensor):
            self.register_buffer("decay", resolved)
        else:
            self.decay = resolved

    def extra_repr(self) -> str:
        """Return the decay in effect."""
        return f"decay={describe_decay(self.decay)}"

    def step(self, y: Tensor, state: State) -> tuple[Tensor, State]:
        """Advance by one step."""
        output, v = leaky_integrator_step(y, state[0], self.decay)
        return output, (v,)

    def jacobian(self, y: Tensor, state: State) -> Jacobian:
        """Return the analytic Jacobian."""
        return leaky_integrator_jacobian(y, self.decay)

    def leak_transition(self) -> LeakTransition:
        """Return (decay, 1, 1)."""
        return lif_leak_transition(mean_decay(self.decay))

    def leak_caveats(self) -> list[str]:
        """Return why a factored trace is approximate: only a decay that differs per unit."""
        return unequal_decay_caveats(decay=self.decay)


__all__ = ["LI"]
