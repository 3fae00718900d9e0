"""Attention of spikes without a softmax: Spikformer, Zhou et al. 2023, doi:10.48550/arXiv.2209.15425.

For one head with queries Q, keys K and values V [N, D] of N tokens,

    Y = scale * Q K^T V

Counts of coinciding spikes are never negative, so nothing has to be normalised; and without a softmax the product may
be taken in either order, (Q K^T) V in N^2 D steps or Q (K^T V) in N D^2.
"""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor


def spike_attention(
    query: Float[Tensor, "batch tokens features"],
    key: Float[Tensor, "batch tokens features"],
    value: Float[Tensor, "batch tokens features"],
    heads: int,
    scale: float,
) -> Float[Tensor, "batch tokens features"]:
    """Return scale * Q K^T V [B, N, F] of every head, in the cheaper order; the features are split among `heads`.

    Raises ValueError when they cannot be.

    >>> import torch
    >>> ones = torch.ones(1, 3, 2)
    >>> spike_attention(ones, ones, ones, heads=1, scale=0.5)[0, 0]
    tensor([3., 3.])
    """
    if heads < 1 or query.shape[-1] % heads:
        raise ValueError(
            f"heads={heads} for {query.shape[-1]} features: every head takes an equal share of the features; write a "
            f"divisor of {query.shape[-1]}"
        )
    q, k, v = (rearrange(part, "b n (h d) -> b h n d", h=heads) for part in (query, key, value))
    tokens, share = q.shape[-2:]
    mixed = q @ (k.mT @ v) if share <= tokens else (q @ k.mT) @ v
    return rearrange(scale * mixed, "b h n d -> b n (h d)")


__all__ = ["spike_attention"]
