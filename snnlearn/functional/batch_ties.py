"""How the statistics of a batch tie the samples of one step together, within a channel.

For z = (y - mean) / sqrt(var + eps), mean and var over the N values that a channel has in this step, and means taken
over the same N values,

    dz/dy d = (d - mean(d) - z mean(z d)) / sqrt(var + eps)

a symmetric map but for the factor, which is a number per channel. So it serves both ways: it takes dL/dz back to dL/dy,
and it takes what a weight meets, x, on to dz/dW. Ioffe and Szegedy 2015, arXiv:1502.03167.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class BatchTies(NamedTuple):
    """The map of the module's equation without its factor, at the normalised values `z` [B, C, *places] of a step.

    >>> BatchTies(torch.tensor([[1.0], [-1.0]])).project(torch.tensor([[3.0], [1.0]]))
    tensor([[0.],
            [0.]])
    """

    z: Tensor

    def project(self, d: Float[Tensor, "batch channels *places"]) -> Float[Tensor, "batch channels *places"]:
        """Return d - mean(d) - z mean(z d) per channel, for d [B, C, *places]."""
        z = self.z
        over = [k for k in range(z.dim()) if k != 1]
        return d - d.mean(over, keepdim=True) - z * (z * d).mean(over, keepdim=True)

    def inputs(self, x: Float[Tensor, "batch inputs"]) -> Float[Tensor, "batch channels inputs"]:
        """Return the same for every input x [B, I] of every unit [B, C]: what each weight of a linear layer meets.

        Unit o of sample b then has dz/dW = inputs[b, o] / sqrt(var + eps), through all samples of the step.

        >>> BatchTies(torch.zeros(2, 3)).inputs(torch.tensor([[2.0], [0.0]]))[:, 0]
        tensor([[ 1.],
                [-1.]])
        """
        z = self.z.to(torch.promote_types(self.z.dtype, x.dtype))
        centred, shared = x - x.mean(0), z.T @ x.to(z.dtype) / len(x)
        return centred.unsqueeze(-2) - z.unsqueeze(-1) * shared


__all__ = ["BatchTies"]
