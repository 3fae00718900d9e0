"""The current-based LIF neuron: a synaptic current that decays on its own charges the membrane.

i = decay_synapse * i + y ;  v = decay * v_after_reset + i ;  s = H(v - threshold) ;  reset
"""

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.dynamics import (
    ConstantDerivatives,
    Decay,
    Jacobian,
    LeakTransition,
    PerUnit,
    SpikeFunction,
    charge,
    per_unit,
    reset_membrane,
    reset_partials,
    threshold_partials,
)
from snnlearn.functional.surrogates import Surrogate


def cuba_lif_step(
    y: Float[Tensor, "*units"],
    current: Float[Tensor, "*units"],
    v: Float[Tensor, "*units"],
    decay_synapse: Decay,
    decay: Decay,
    threshold: PerUnit,
    reset: str,
    detach_reset: bool,
    spike_function: SpikeFunction,
) -> tuple[Float[Tensor, "*units"], Float[Tensor, "*units"], Float[Tensor, "*units"]]:
    """Advance a current-based LIF neuron by one step; return (spike, current, membrane after reset).

    `y`, `current`, `v` [*units] in membrane units; `decay_synapse` and `decay` per step; the rest as
    `lif_step`. Neftci et al. 2019, doi:10.1109/MSP.2019.2931595, with the current entering in the same step.

    >>> import torch
    >>> from snnlearn.functional import ArcTan
    >>> cuba_lif_step(torch.ones(1), torch.zeros(1), torch.zeros(1), 0.5, 0.5, 2.0, "soft", True, ArcTan())
    (tensor([0.]), tensor([1.]), tensor([1.]))
    """
    current = charge(y, current, decay_synapse)
    v = charge(current, v, decay)
    spike = spike_function(v - per_unit(threshold, v))
    return spike, current, reset_membrane(v, spike, threshold, reset, detach_reset)


def cuba_lif_jacobian(
    y: Float[Tensor, "*units"],
    current: Float[Tensor, "*units"],
    v: Float[Tensor, "*units"],
    decay_synapse: Decay,
    decay: Decay,
    threshold: PerUnit,
    reset: str,
    detach_reset: bool,
    spike_function: Surrogate,
) -> Jacobian:
    """Differentiate `cuba_lif_step` by hand (same arguments); K = 2 in the order (current, membrane).

    >>> import torch
    >>> from snnlearn.functional import ArcTan
    >>> zero = torch.zeros(1)
    >>> cuba_lif_jacobian(zero, zero, zero, 0.25, 0.5, 1.0, "soft", True, ArcTan()).transition[..., 0]
    tensor([[0.2500, 0.0000],
            [0.2500, 0.5000]])
    """
    current = charge(y, current, decay_synapse)
    v = charge(current, v, decay)
    u = v - per_unit(threshold, v)
    psi = spike_function.derivative(u)
    direct, by_spike = reset_partials(v, spike_function(u), threshold, reset, detach_reset)
    total = direct + by_spike * psi
    one, zero = torch.ones_like(v), torch.zeros_like(v)
    transition = torch.stack(
        [
            torch.stack([one * decay_synapse, zero]),
            torch.stack([total * decay_synapse, total * decay]),
        ]
    )
    return Jacobian(
        transition=transition,
        drive=torch.stack([one, total]),
        spike_state=torch.stack([psi * decay_synapse, psi * decay]),
        spike_input=psi,
    )


def cuba_lif_constant_derivatives(
    y: Float[Tensor, "*units"],
    current: Float[Tensor, "*units"],
    v: Float[Tensor, "*units"],
    decay_synapse: Decay,
    decay: Decay,
    threshold: PerUnit,
    reset: str,
    detach_reset: bool,
    spike_function: Surrogate,
) -> ConstantDerivatives:
    """Differentiate `cuba_lif_step` by its decays and its threshold (same arguments); K = 2 (current, membrane).

    >>> import torch
    >>> from snnlearn.functional import ArcTan
    >>> one = torch.ones(1)
    >>> cuba_lif_constant_derivatives(0 * one, one, one, 0.5, 0.5, 2.0, "soft", True, ArcTan())["decay"][1].flatten()
    tensor([0., 1.])
    """
    current_before, before = current, v
    current = charge(y, current, decay_synapse)
    v = charge(current, v, decay)
    u = v - per_unit(threshold, v)
    psi, spike = spike_function.derivative(u), spike_function(u)
    direct, by_spike = reset_partials(v, spike, threshold, reset, detach_reset)
    total, zero = direct + by_spike * psi, torch.zeros_like(v)
    by_threshold = threshold_partials(psi, spike, by_spike, reset)
    return {
        "decay": (psi * before, torch.stack([zero, total * before])),
        "decay_synapse": (psi * current_before, torch.stack([current_before, total * current_before])),
        "threshold": (by_threshold[0], torch.stack([zero, by_threshold[1]])),
    }


def cuba_lif_leak_transition(decay_synapse: float, decay: float) -> LeakTransition:
    """Return the constant part of `cuba_lif_step`: two cascaded traces, the second of which is read.

    >>> cuba_lif_leak_transition(0.25, 0.5).transition
    ((0.25, 0.0), (0.25, 0.5))
    """
    return LeakTransition(((decay_synapse, 0.0), (decay_synapse, decay)), (1.0, 1.0), (0.0, 1.0))


__all__ = ["cuba_lif_constant_derivatives", "cuba_lif_jacobian", "cuba_lif_leak_transition", "cuba_lif_step"]
