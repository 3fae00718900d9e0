"""From a parameter that may be any number to a constant of a neuron that may not, and back.

    fraction in (0, 1):   c = 1 / (1 + exp(-p))      positive in (0, inf):   c = log(1 + exp(p))

Both are rounded into the open interval, so that no parameter, however far an optimizer throws it, gives a constant
outside; where that rounding is at work the gradient is zero.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

SOFTPLUS_IS_LINEAR_ABOVE = 40.0
"""Where log(1 + exp(p)) equals p in double precision too."""


def fraction_of_logit(logit: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
    """Return 1 / (1 + exp(-logit)) [*units], at least the smallest normal number and less than 1.

    >>> fraction_of_logit(torch.tensor([0.0, -1e6, 1e6])) < 1
    tensor([True, True, True])
    """
    limits = torch.finfo(logit.dtype)
    return torch.sigmoid(logit).clamp(limits.tiny, 1 - limits.eps / 2)


def logit_of_fraction(fraction: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
    """Return log(c / (1 - c)) of a fraction c in (0, 1), both [*units].

    >>> logit_of_fraction(torch.tensor(0.5))
    tensor(0.)
    """
    return torch.logit(fraction)


def positive_of_softplus(inverse: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
    """Return log(1 + exp(inverse)) [*units], at least the smallest normal number and finite.

    >>> positive_of_softplus(torch.tensor([-1e6, 1e6])) > 0
    tensor([True, True])
    """
    limits = torch.finfo(inverse.dtype)
    return F.softplus(inverse, threshold=SOFTPLUS_IS_LINEAR_ABOVE).clamp(limits.tiny, limits.max)


def inverse_softplus(positive: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
    """Return log(exp(c) - 1) of c > 0, both [*units].

    >>> positive_of_softplus(inverse_softplus(torch.tensor(1.0)))
    tensor(1.)
    """
    return positive + torch.log(-torch.expm1(-positive))


__all__ = [
    "SOFTPLUS_IS_LINEAR_ABOVE",
    "fraction_of_logit",
    "inverse_softplus",
    "logit_of_fraction",
    "positive_of_softplus",
]
