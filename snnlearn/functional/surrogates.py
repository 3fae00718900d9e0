"""Surrogate derivatives of the spike: the one home of their equations.

A spike is the step function H(u) of the distance u = v - threshold. Its derivative is zero almost
everywhere, so learning replaces it by a bump psi(u). Every surrogate here is the derivative of a smooth
`primitive` P with P' = psi, which is what finite differences are taken of when a network is smoothed.

All are finite for every input, infinite ones included, in float32 and bfloat16.
"""

import inspect
import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.arguments import is_number


class Spike(torch.autograd.Function):
    """Fire where u >= 0; pass gradients through a surrogate's derivative, backward and forward mode."""

    @staticmethod
    def forward(u: Tensor, surrogate: "Surrogate") -> Tensor:
        """Return `surrogate.fire(u)`."""
        return surrogate.fire(u)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, "Surrogate"], output: Tensor) -> None:
        """Keep u for both directions."""
        u, ctx.surrogate = inputs
        ctx.save_for_backward(u)
        ctx.save_for_forward(u)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        """Return psi(u) * grad_output."""
        (u,) = ctx.saved_tensors
        return grad_output * ctx.surrogate.derivative(u), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        """Return psi(u) * tangent."""
        (u,) = ctx.saved_tensors
        psi: Tensor = ctx.surrogate.derivative(u)
        return tangent * psi


# torch binds the arguments of `forward` by its signature at every call; stating it once saves a tenth of a millisecond.
Spike.forward.__signature__ = inspect.signature(Spike.forward)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Surrogate:
    """Base of all surrogates: call it on u = v - threshold [any shape] to get spikes.

    Subclasses give `derivative` psi(u) and `primitive` P(u) with P' = psi. With `smooth=True` (see
    `smoothed`) the call returns P(u) instead of H(u): the gradient is then the true one, and finite
    differences can judge it.

    Raises ValueError on construction when a width is not a positive finite number.

    >>> ArcTan()(torch.tensor([-0.5, 0.0, 2.0]))
    tensor([0., 1., 1.])
    """

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (is_number(value) and value > 0):
                raise ValueError(
                    f"{type(self).__name__}({field.name}={value!r}): a surrogate's {field.name} is a finite "
                    f"number above 0, since it scales the bump; write e.g. {type(self).__name__}()"
                )

    @property
    def smooth(self) -> bool:
        """Whether the forward value is the primitive instead of the step."""
        return False

    def __call__(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return spikes of the shape and dtype of u."""
        return Spike.apply(u, self)  # type: ignore[no-any-return]

    def fire(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return the value of the call without its derivative: H(u), or P(u) when smooth."""
        return self.primitive(u) if self.smooth else torch.ge(u, 0, out=torch.empty_like(u))

    def derivative(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return psi(u)."""
        raise TypeError(f"{type(self).__name__} must define derivative(u)")

    def primitive(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return P(u) with P' = psi."""
        raise TypeError(f"{type(self).__name__} must define primitive(u)")

    def smoothed(self) -> "Smooth":
        """Return the same surrogate with the primitive as its forward value.

        >>> ArcTan().smoothed()(torch.zeros(1))
        tensor([0.5000])
        """
        return Smooth(self)


@dataclass(frozen=True)
class Smooth(Surrogate):
    """A surrogate whose forward value is its primitive: a neuron that emits graded values, not spikes.

    >>> Smooth(Rectangle(width=1.0))(torch.tensor([0.25]))
    tensor([0.7500])
    """

    base: Surrogate

    def __post_init__(self) -> None:
        if not isinstance(self.base, Surrogate):
            raise TypeError(f"Smooth({self.base!r}): wrap a surrogate, for example Smooth(ArcTan())")

    @property
    def smooth(self) -> bool:
        """Always true."""
        return True

    def derivative(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return the wrapped psi(u)."""
        return self.base.derivative(u)

    def primitive(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return the wrapped P(u)."""
        return self.base.primitive(u)


@dataclass(frozen=True)
class ArcTan(Surrogate):
    """psi(u) = (alpha/2) / (1 + (pi*alpha*u/2)^2); P(u) = 1/2 + atan(pi*alpha*u/2)/pi.

    `alpha` (1/membrane unit) is twice the height at u = 0. Fang et al. 2021,
    doi:10.1109/ICCV48922.2021.00266.

    >>> ArcTan(alpha=2.0).derivative(torch.zeros(1))
    tensor([1.])
    """

    alpha: float = 2.0

    def derivative(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return psi(u) as 1 / (2/alpha + pi^2*alpha/2 * u^2): two passes over u."""
        return torch.addcmul(u.new_full((), 2 / self.alpha), u, u, value=math.pi**2 * self.alpha / 2).reciprocal_()

    def primitive(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return P(u)."""
        return 0.5 + torch.atan(math.pi * self.alpha / 2 * u) / math.pi


@dataclass(frozen=True)
class Sigmoid(Surrogate):
    """psi(u) = alpha * S(alpha*u) * (1 - S(alpha*u)) with the logistic S; P(u) = S(alpha*u).

    `alpha` (1/membrane unit) is four times the height at u = 0. Used with alpha 4 by OTTT,
    Xiao et al. 2022, doi:10.48550/arXiv.2210.04195.

    >>> Sigmoid(alpha=4.0).derivative(torch.zeros(1))
    tensor([1.])
    """

    alpha: float = 4.0

    def derivative(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return psi(u)."""
        return self.alpha * torch.sigmoid(self.alpha * u) * torch.sigmoid(-self.alpha * u)

    def primitive(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return P(u)."""
        return torch.sigmoid(self.alpha * u)


@dataclass(frozen=True)
class Triangle(Surrogate):
    """psi(u) = max(0, 1 - |u|/width) / width; P is its quadratic integral, 0 below -width, 1 above width.

    `width` (membrane units) is half the base. Bellec et al. 2018, doi:10.48550/arXiv.1803.09574.

    >>> Triangle(width=2.0).derivative(torch.tensor([0.0, 1.0, 3.0]))
    tensor([0.5000, 0.2500, 0.0000])
    """

    width: float = 1.0

    def derivative(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return psi(u)."""
        return (1 - u.abs() / self.width).clamp(min=0) / self.width

    def primitive(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return P(u)."""
        z = (u / self.width).clamp(-1, 1)
        return 0.5 + z - z * z.abs() / 2


@dataclass(frozen=True)
class Rectangle(Surrogate):
    """psi(u) = 1/width where |u| < width/2, else 0; P(u) = clamp(1/2 + u/width, 0, 1).

    `width` (membrane units) is the full base. Wu et al. 2018, doi:10.3389/fnins.2018.00331.

    >>> Rectangle(width=2.0).derivative(torch.tensor([0.0, 0.9, 1.5]))
    tensor([0.5000, 0.5000, 0.0000])
    """

    width: float = 1.0

    def derivative(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return psi(u)."""
        return (u.abs() < self.width / 2).to(u.dtype) / self.width

    def primitive(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return P(u)."""
        return (0.5 + u / self.width).clamp(0, 1)


@dataclass(frozen=True)
class FastSigmoid(Surrogate):
    """psi(u) = 1 / (1 + slope*|u|)^2; P(u) = 1/2 + u / (1 + slope*|u|).

    `slope` (1/membrane unit) narrows the bump, whose height is 1. Zenke and Ganguli 2018,
    doi:10.1162/neco_a_01086.

    >>> FastSigmoid(slope=1.0).derivative(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 0.2500])
    """

    slope: float = 10.0

    def derivative(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return psi(u)."""
        return (1 + self.slope * u.abs()).square().reciprocal()

    def primitive(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return P(u), written so that infinite u stays finite."""
        return 0.5 + u.sign() / self.slope * (1 - (1 + self.slope * u.abs()).reciprocal())


def gaussian_density(u: Float[Tensor, "*units"], mean: float, sigma: float) -> Float[Tensor, "*units"]:
    """Return the normal density N(u; mean, sigma^2), for u [any shape] in membrane units.

    >>> gaussian_density(torch.zeros(1), 0.0, 1.0)
    tensor([0.3989])
    """
    return torch.exp(-0.5 * ((u - mean) / sigma).square()) / (sigma * math.sqrt(2 * math.pi))


def gaussian_cumulative(u: Float[Tensor, "*units"], mean: float, sigma: float) -> Float[Tensor, "*units"]:
    """Return the normal distribution function, the integral of `gaussian_density`.

    >>> gaussian_cumulative(torch.zeros(1), 0.0, 1.0)
    tensor([0.5000])
    """
    return 0.5 * (1 + torch.erf((u - mean) / (sigma * math.sqrt(2))))


@dataclass(frozen=True)
class Gaussian(Surrogate):
    """psi(u) = N(u; 0, sigma^2); P is the normal distribution function.

    `sigma` (membrane units) is the standard deviation. Yin et al. 2020, doi:10.1145/3407197.3407225.

    >>> Gaussian(sigma=0.5).derivative(torch.zeros(1))
    tensor([0.7979])
    """

    sigma: float = 0.5

    def derivative(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return psi(u)."""
        return gaussian_density(u, 0.0, self.sigma)

    def primitive(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return P(u)."""
        return gaussian_cumulative(u, 0.0, self.sigma)


@dataclass(frozen=True)
class MultiGaussian(Surrogate):
    """psi(u) = (1+h) N(u; 0, sigma^2) - h N(u; sigma, (s*sigma)^2) - h N(u; -sigma, (s*sigma)^2).

    `sigma` (membrane units), `scale` s and `height` h without unit: a central bump with two shallow
    negative flanks. Yin, Corradi and Bohte 2021, doi:10.1038/s42256-021-00397-w.

    >>> bool(MultiGaussian().derivative(torch.tensor([2.0])) < 0)
    True
    """

    sigma: float = 0.5
    scale: float = 6.0
    height: float = 0.15

    def derivative(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return psi(u)."""
        flanks = sum(gaussian_density(u, m, self.scale * self.sigma) for m in (self.sigma, -self.sigma))
        return (1 + self.height) * gaussian_density(u, 0.0, self.sigma) - self.height * flanks

    def primitive(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return P(u)."""
        flanks = sum(gaussian_cumulative(u, m, self.scale * self.sigma) for m in (self.sigma, -self.sigma))
        return (1 + self.height) * gaussian_cumulative(u, 0.0, self.sigma) - self.height * flanks


@dataclass(frozen=True)
class Constant(Surrogate):
    """psi(u) = value everywhere; P(u) = value*u. Not for learning: it probes how a neuron's step is wired.

    With value 0 every path through the spike vanishes, with value 1 the spike passes tangents unchanged.

    >>> Constant(0.0).derivative(torch.ones(1))
    tensor([0.])
    """

    value: float = 1.0

    def __post_init__(self) -> None:
        if not is_number(self.value):
            raise ValueError(f"Constant(value={self.value!r}): the value is a finite number; write Constant(1.0)")

    def derivative(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return the constant."""
        return torch.full_like(u, self.value)

    def primitive(self, u: Float[Tensor, "*units"]) -> Float[Tensor, "*units"]:
        """Return value * u."""
        return self.value * u


SURROGATES: dict[str, type[Surrogate]] = {
    "arctan": ArcTan,
    "sigmoid": Sigmoid,
    "triangle": Triangle,
    "rectangle": Rectangle,
    "fast_sigmoid": FastSigmoid,
    "gaussian": Gaussian,
    "multi_gaussian": MultiGaussian,
}
"""Every surrogate for learning, by its configuration name."""

__all__ = [
    "SURROGATES",
    "ArcTan",
    "Constant",
    "FastSigmoid",
    "Gaussian",
    "MultiGaussian",
    "Rectangle",
    "Sigmoid",
    "Smooth",
    "Spike",
    "Surrogate",
    "Triangle",
    "gaussian_cumulative",
    "gaussian_density",
]
