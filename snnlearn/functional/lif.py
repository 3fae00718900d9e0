"""The leaky integrate-and-fire neuron and, with decay 1, the integrate-and-fire neuron.

v = decay * v_after_reset + y ;  s = H(v - threshold) ;  v_after_reset = reset(v, s)
"""

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


def lif_step(
    y: Float[Tensor, "*units"],
    v: Float[Tensor, "*units"],
    decay: Decay,
    threshold: PerUnit,
    reset: str,
    detach_reset: bool,
    spike_function: SpikeFunction,
) -> tuple[Float[Tensor, "*units"], Float[Tensor, "*units"]]:
    """Advance a LIF neuron by one step; return (spike, membrane after reset).

    `y` input and `v` membrane after the last reset, both [*units] in membrane units; `decay` per step;
    `threshold` in membrane units, like the decay one number or one per unit; `reset` one of soft, hard, none. Leak
    and reset, then charge, then fire: Xiao et al. 2022, doi:10.48550/arXiv.2210.04195.

    >>> import torch
    >>> from snnlearn.functional import ArcTan
    >>> lif_step(torch.tensor([0.8]), torch.tensor([0.5]), 0.5, 1.0, "soft", True, ArcTan())
    (tensor([1.]), tensor([0.0500]))
    """
    v = charge(y, v, decay)
    spike = spike_function(v - per_unit(threshold, v))
    return spike, reset_membrane(v, spike, threshold, reset, detach_reset)


def lif_step_(
    y: Float[Tensor, "*units"],
    v: Float[Tensor, "*units"],
    decay: Decay,
    threshold: PerUnit,
    reset: str,
    spike_function: SpikeFunction,
) -> tuple[Float[Tensor, "*units"], Float[Tensor, "*units"]]:
    """Advance a LIF neuron as `lif_step` does, outside autograd; y becomes the membrane after the reset.

    Arguments as `lif_step`, y and v of one dtype. Writing large maps to new memory takes longer than the arithmetic.

    >>> import torch
    >>> from snnlearn.functional import ArcTan
    >>> y = torch.tensor([0.8])
    >>> lif_step_(y, torch.tensor([0.5]), 0.5, 1.0, "soft", ArcTan().fire), y
    ((tensor([1.]), tensor([0.0500])), tensor([0.0500]))
    """
    v = charge(y, v, decay, out=y)
    spike = spike_function(v - per_unit(threshold, v))
    return spike, reset_membrane(v, spike, threshold, reset, True, out=v)


def lif_jacobian(
    y: Float[Tensor, "*units"],
    v: Float[Tensor, "*units"],
    decay: Decay,
    threshold: PerUnit,
    reset: str,
    detach_reset: bool,
    spike_function: Surrogate,
) -> Jacobian:
    """Differentiate `lif_step` by hand (same arguments); K = 1.

    With psi at this step and R = d(reset)/dv: transition R*decay, drive R,
    spike_state psi*decay, spike_input psi.

    >>> import torch
    >>> from snnlearn.functional import ArcTan
    >>> lif_jacobian(torch.zeros(1), torch.zeros(1), 0.5, 1.0, "soft", True, ArcTan()).transition.flatten()
    tensor([0.5000])
    """
    v = charge(y, v, decay)
    u = v - per_unit(threshold, v)
    psi = spike_function.derivative(u)
    if reset == "none" or (reset == "soft" and detach_reset):
        one = v.new_ones(())
        carried = one * per_unit(decay, v)
        return Jacobian(carried.expand_as(v)[None, None], one.expand_as(v)[None], (psi * decay)[None], psi)
    direct, by_spike = reset_partials(v, spike_function.fire(u), threshold, reset, detach_reset)
    total = direct if detach_reset else direct + by_spike * psi
    return Jacobian((total * decay)[None, None], total[None], (psi * decay)[None], psi)


def lif_constant_derivatives(
    y: Float[Tensor, "*units"],
    v: Float[Tensor, "*units"],
    decay: Decay,
    threshold: PerUnit,
    reset: str,
    detach_reset: bool,
    spike_function: Surrogate,
) -> ConstantDerivatives:
    """Differentiate `lif_step` by its decay and its threshold (same arguments); K = 1.

    >>> import torch
    >>> from snnlearn.functional import ArcTan
    >>> one = torch.ones(1)
    >>> lif_constant_derivatives(0.5 * one, one, 0.5, 1.0, "soft", True, ArcTan())["threshold"]
    (tensor([-1.]), tensor([[-1.]]))
    """
    before, v = v, charge(y, v, decay)
    u = v - per_unit(threshold, v)
    psi, spike = spike_function.derivative(u), spike_function(u)
    direct, by_spike = reset_partials(v, spike, threshold, reset, detach_reset)
    by_threshold = threshold_partials(psi, spike, by_spike, reset)
    return {
        "decay": (psi * before, ((direct + by_spike * psi) * before)[None]),
        "threshold": (by_threshold[0], by_threshold[1][None]),
    }


def lif_leak_transition(decay: float) -> LeakTransition:
    """Return the constant part of `lif_step`: e_t = decay * e_{t-1} + x_t.

    >>> lif_leak_transition(0.5).transition
    ((0.5,),)
    """
    return LeakTransition(((decay,),), (1.0,), (1.0,))


__all__ = ["lif_constant_derivatives", "lif_jacobian", "lif_leak_transition", "lif_step", "lif_step_"]
