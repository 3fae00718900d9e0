"""The leaky integrator, a readout that never fires: v = decay * v + y, and v is its output."""

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.dynamics import ConstantDerivatives, Decay, Jacobian, charge


def leaky_integrator_step(
    y: Float[Tensor, "*units"], v: Float[Tensor, "*units"], decay: Decay
) -> tuple[Float[Tensor, "*units"], Float[Tensor, "*units"]]:
    """Advance a leaky integrator by one step; return (output, membrane), which are the same tensor.

    `y` input and `v` membrane [*units] in membrane units; `decay` per step.

    >>> import torch
    >>> leaky_integrator_step(torch.ones(1), torch.ones(1), 0.5)[0]
    tensor([1.5000])
    """
    v = charge(y, v, decay)
    return v, v


def leaky_integrator_jacobian(y: Float[Tensor, "*units"], decay: Decay) -> Jacobian:
    """Differentiate `leaky_integrator_step` by hand; K = 1: (decay, 1, decay, 1).

    `y` [*units] gives the shape; `decay` per step.

    >>> import torch
    >>> leaky_integrator_jacobian(torch.zeros(1), 0.5).spike_state
    tensor([[0.5000]])
    """
    one = torch.ones_like(y)
    return Jacobian((one * decay)[None, None], one[None], (one * decay)[None], one)


def leaky_integrator_constant_derivatives(v: Float[Tensor, "*units"]) -> ConstantDerivatives:
    """Differentiate `leaky_integrator_step` by its decay; K = 1: the membrane v before the step [*units].

    >>> import torch
    >>> leaky_integrator_constant_derivatives(torch.full((1,), 3.0))
    {'decay': (tensor([3.]), tensor([[3.]]))}
    """
    return {"decay": (v, v[None])}


__all__ = ["leaky_integrator_constant_derivatives", "leaky_integrator_jacobian", "leaky_integrator_step"]
