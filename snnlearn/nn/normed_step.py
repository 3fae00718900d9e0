"""A batch normalisation between weights and neuron, in a block that runs as one step."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from snnlearn.functional.batch_ties import BatchTies
from snnlearn.functional.normed_step import step_behind_norm
from snnlearn.functional.traced_step import Step

FOLLOWED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""Normalisations whose derivative a trace of whole steps knows."""


def is_followed(norm: nn.Module | None) -> bool:
    """Say whether a trace of whole steps knows the derivative of `norm`: torch's own batch norms, and no subclass.

    >>> is_followed(nn.BatchNorm1d(2)), is_followed(nn.LayerNorm(2)), is_followed(None)
    (True, False, False)
    """
    return type(norm) in FOLLOWED and "forward" not in vars(norm)


def norm_of_step(norm: nn.Module | None) -> nn.Module | None:
    """Return the normalisation that a step goes through: None where there is none, or an identity.

    Raises TypeError for one whose derivative is not known: it came after the rule was attached, which refuses it.

    >>> norm_of_step(nn.Identity()) is None
    True
    """
    if norm is None or isinstance(norm, nn.Identity):
        return None
    if not is_followed(norm):
        raise TypeError(
            f"the block runs as one step and got a {type(norm).__name__} as norm after its rule was attached: such a "
            f"step goes through {', '.join(kind.__name__ for kind in FOLLOWED)} alone; attach the rule again to see "
            f"which rules take it"
        )
    return norm


def affine_parameters(norm: nn.Module, dims: int) -> list[Tensor]:
    """Return gain and bias of `norm`, those that it has, so shaped that they broadcast over a value of `dims`.

    >>> [p.shape for p in affine_parameters(nn.BatchNorm2d(3), 4)]
    [torch.Size([3, 1, 1]), torch.Size([3, 1, 1])]
    """
    found = (norm._parameters.get(name) for name in ("weight", "bias"))
    return [p.view(-1, *(1,) * (dims - 2)) for p in found if p is not None]


def advance_behind(norm: nn.Module, advance: Callable[[Tensor], Step], y: Tensor) -> Step:
    """Normalise y [B, C, *places], `advance` the neuron by it, and return the step with derivatives by y.

    `norm` one that `is_followed`; outside autograd. It runs as it is, so that running statistics move once, and its
    train() and eval() say at each step whether its statistics are those of the step or frozen. Equations:
    `snnlearn.functional.normed_step`.
    """
    assert isinstance(norm, FOLLOWED)
    over = [k for k in range(y.dim()) if k != 1]
    wide = y.to(torch.promote_types(y.dtype, torch.float32))
    tied = norm.training or norm.running_mean is None or norm.running_var is None
    if tied:
        variance, mean = torch.var_mean(wide, over, correction=0, keepdim=True)
    else:
        statistics = (norm.get_buffer("running_mean"), norm.get_buffer("running_var"))
        mean, variance = (value.view(-1, *(1,) * (y.dim() - 2)) for value in statistics)
    scale = torch.rsqrt(variance + norm.eps)
    z = (wide - mean) * scale
    parameters = affine_parameters(norm, y.dim())
    if norm._parameters.get("weight") is not None:
        scale = scale * parameters[0].detach()
    affine = (z, 1.0)[: len(parameters)]
    return step_behind_norm(advance(norm(y)), scale, affine, BatchTies(z) if tied else None)


__all__ = ["FOLLOWED", "advance_behind", "affine_parameters", "is_followed", "norm_of_step"]
