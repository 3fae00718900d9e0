"""The LIF neuron with an adaptive threshold: every spike raises the threshold, which then decays.

v = decay * v_after_reset + y ;  s = H(v - threshold - adaptation * b) ;  reset(v, s)
b_next = decay_adaptation * b + s
"""

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.dynamics import (
    ConstantDerivatives,
    Decay,
    Jacobian,
    PerUnit,
    SpikeFunction,
    charge,
    per_unit,
    reset_membrane,
    reset_partials,
    threshold_partials,
)
from snnlearn.functional.surrogates import Surrogate


def alif_step(
    y: Float[Tensor, "*units"],
    v: Float[Tensor, "*units"],
    b: Float[Tensor, "*units"],
    decay: Decay,
    decay_adaptation: Decay,
    adaptation: PerUnit,
    threshold: PerUnit,
    reset: str,
    detach_reset: bool,
    spike_function: SpikeFunction,
) -> tuple[Float[Tensor, "*units"], Float[Tensor, "*units"], Float[Tensor, "*units"]]:
    """Advance an adaptive LIF neuron by one step; return (spike, membrane after reset, adaptation variable).

    `y`, `v` [*units] in membrane units, `b` [*units] in spikes; `decay`, `decay_adaptation` per step;
    `adaptation` in membrane units per spike. The soft reset subtracts the base threshold, and `detach_reset`
    concerns the reset alone: the adaptation keeps its gradient. Bellec et al. 2020,
    doi:10.1038/s41467-020-17236-y.

    >>> import torch
    >>> from snnlearn.functional import ArcTan
    >>> y, v, b = torch.tensor([1.5]), torch.zeros(1), torch.ones(1)
    >>> alif_step(y, v, b, 0.5, 0.9, 0.2, 1.0, "soft", True, ArcTan())
    (tensor([1.]), tensor([0.5000]), tensor([1.9000]))
    """
    v = charge(y, v, decay)
    spike = spike_function(v - per_unit(threshold, v) - per_unit(adaptation, b) * b)
    return spike, reset_membrane(v, spike, threshold, reset, detach_reset), charge(spike, b, decay_adaptation)


def alif_jacobian(
    y: Float[Tensor, "*units"],
    v: Float[Tensor, "*units"],
    b: Float[Tensor, "*units"],
    decay: Decay,
    decay_adaptation: Decay,
    adaptation: PerUnit,
    threshold: PerUnit,
    reset: str,
    detach_reset: bool,
    spike_function: Surrogate,
) -> Jacobian:
    """Differentiate `alif_step` by hand (same arguments); K = 2 in the order (membrane, adaptation).

    >>> import torch
    >>> from snnlearn.functional import ArcTan
    >>> zero = torch.zeros(1)
    >>> alif_jacobian(zero, zero, zero, 0.5, 0.9, 0.0, 1.0, "soft", True, ArcTan()).transition[0, :, 0]
    tensor([0.5000, -0.0000])
    """
    v = charge(y, v, decay)
    u = v - per_unit(threshold, v) - per_unit(adaptation, b) * b
    psi = spike_function.derivative(u)
    direct, by_spike = reset_partials(v, spike_function(u), threshold, reset, detach_reset)
    by_membrane = direct + by_spike * psi
    by_adaptation = -per_unit(adaptation, psi) * psi
    transition = torch.stack(
        [
            torch.stack([by_membrane * decay, by_spike * by_adaptation]),
            torch.stack([psi * decay, decay_adaptation + by_adaptation]),
        ]
    )
    return Jacobian(
        transition=transition,
        drive=torch.stack([by_membrane, psi]),
        spike_state=torch.stack([psi * decay, by_adaptation]),
        spike_input=psi,
    )


def alif_constant_derivatives(
    y: Float[Tensor, "*units"],
    v: Float[Tensor, "*units"],
    b: Float[Tensor, "*units"],
    decay: Decay,
    decay_adaptation: Decay,
    adaptation: PerUnit,
    threshold: PerUnit,
    reset: str,
    detach_reset: bool,
    spike_function: Surrogate,
) -> ConstantDerivatives:
    """Differentiate `alif_step` by its constants (same arguments); K = 2 in the order (membrane, adaptation).

    >>> import torch
    >>> from snnlearn.functional import ArcTan
    >>> one = torch.ones(1)
    >>> by = alif_constant_derivatives(0 * one, one, 3 * one, 0.5, 0.9, 0.1, 1.0, "soft", True, ArcTan())
    >>> by["decay_adaptation"][1].flatten()
    tensor([0., 3.])
    """
    before, v = v, charge(y, v, decay)
    u = v - per_unit(threshold, v) - per_unit(adaptation, b) * b
    psi, spike = spike_function.derivative(u), spike_function(u)
    direct, by_spike = reset_partials(v, spike, threshold, reset, detach_reset)
    by_threshold = threshold_partials(psi, spike, by_spike, reset)
    zero = torch.zeros_like(v)
    return {
        "decay": (psi * before, torch.stack([(direct + by_spike * psi) * before, psi * before])),
        "decay_adaptation": (zero, torch.stack([zero, b])),
        "adaptation": (-psi * b, torch.stack([-by_spike * psi * b, -psi * b])),
        "threshold": (by_threshold[0], torch.stack([by_threshold[1], -psi])),
    }


__all__ = ["alif_constant_derivatives", "alif_jacobian", "alif_step"]
