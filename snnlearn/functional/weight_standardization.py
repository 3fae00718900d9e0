"""Weight standardisation: every unit's incoming weights get mean zero and a variance of 1 / fan_in.

    W_hat = gain * (W - mean) / sqrt(var * fan_in + eps)

with mean and unbiased variance over the fan_in weights of one unit. Qiao et al. 2019, doi:10.48550/arXiv.1903.10520;
the scaled form Brock et al. 2021, doi:10.48550/arXiv.2101.08692; `eps` as in Xiao et al. 2022.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def standardize_weight(
    weight: Float[Tensor, "outputs *inputs"], gain: Float[Tensor, " outputs"] | None = None, eps: float = 1e-4
) -> Float[Tensor, "outputs *inputs"]:
    """Return W_hat for the weights [O, ...] of O units and their `gain` [O], 1 if None; differentiable.

    A fan-in of one gives NaN, since one number has no variance: refuse it before.

    >>> standardize_weight(torch.tensor([[1.0, 3.0]]), torch.tensor([2.0]), eps=0.0)
    tensor([[-1.,  1.]])
    """
    flat = weight.flatten(1)
    variance, mean = torch.var_mean(flat, dim=1, keepdim=True)
    standardized = (flat - mean) * torch.rsqrt(variance * flat.shape[1] + eps)
    if gain is not None:
        standardized = standardized * gain[:, None]
    return standardized.view_as(weight)


__all__ = ["standardize_weight"]
