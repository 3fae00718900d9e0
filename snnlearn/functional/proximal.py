"""Forward propagation through time: every update pulled towards a running average of the weights.

At step t the weights w descend l_t(w) - <m, w> + alpha/2 |w - u|^2, where u is a running average of the weights and m
a running estimate of the gradient that earlier steps still ask for:

    gradient   g_t + alpha (w - u) - m
    after it   m <- m - alpha (w - u) ,    u <- (1 - beta) u + beta w - (beta / alpha) m

At a minimum the first line is zero, so that the new m is g_t at the new w. Kag and Saligrama 2021, Training Recurrent
Neural Networks via Forward Propagation Through Time, ICML (PMLR 139).
"""

import torch
from jaxtyping import Float
from torch import Tensor


def proximal_gradient(
    gradient: Float[Tensor, "*weights"],
    weight: Float[Tensor, "*weights"],
    average: Float[Tensor, "*weights"],
    multiplier: Float[Tensor, "*weights"],
    alpha: float,
) -> Float[Tensor, "*weights"]:
    """Return gradient + alpha * (weight - average) - multiplier, all [*weights]; `alpha` above 0.

    >>> one = torch.ones(1)
    >>> proximal_gradient(one, 3 * one, one, 0.5 * one, 0.25)
    tensor([1.])
    """
    return torch.add(gradient - multiplier, weight - average, alpha=alpha)


def advance_average_(
    average: Float[Tensor, "*weights"],
    multiplier: Float[Tensor, "*weights"],
    weight: Float[Tensor, "*weights"],
    alpha: float,
    beta: float,
) -> None:
    """Advance `multiplier`, then `average`, in place, for the `weight` after its update; all [*weights].

    `alpha` above 0; `beta` in (0, 1], the share of the new weights. Outside autograd.

    >>> average, multiplier = torch.zeros(1), torch.zeros(1)
    >>> advance_average_(average, multiplier, torch.ones(1), alpha=0.5, beta=0.5)
    >>> multiplier, average
    (tensor([-0.5000]), tensor([1.]))
    """
    with torch.no_grad():
        multiplier.add_(weight - average, alpha=-alpha)
        average.mul_(1 - beta).add_(weight, alpha=beta).add_(multiplier, alpha=-beta / alpha)


__all__ = ["advance_average_", "proximal_gradient"]
