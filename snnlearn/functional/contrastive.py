"""The loss that a layer has of its own under traces propagation: which sample's target a sample's trace belongs to.

With traces of the spikes of a layer, e_b <- beta e_b + s_b on the path of the input and f_b <- beta f_b + s~_b on the
path of the target, for each sample b of n, and the target traces g_b of the layer below (of the label itself, below the
first),

    z_bc = <e_b, f_c> / tau          how alike the trace of b is to the target trace of c
    y_bc = softmax_c(-|g_b - g_c|)   which targets are one, as the layer below sees it; a constant
    E    = -1/n sum_bc y_bc log softmax_c(z_bc)

so that samples of one class are drawn to one target, and pushed from those of the others. With a single sample there
is nothing to contrast and E is zero, whatever the weights. Pes et al. 2025, doi:10.48550/arXiv.2509.13053, equations 11
to 15; tau is 1 there.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from snnlearn.functional.trace import flush_subnormals


def likeness_of_targets(traces: Float[Tensor, "batch units"]) -> Float[Tensor, "batch batch"]:
    """Return y, the softmax of the negative Euclidean distances between target traces [B, H], without their graph.

    >>> likeness_of_targets(torch.tensor([[0.0], [0.0], [100.0]]))
    tensor([[0.5000, 0.5000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """
    traces = traces.detach()
    exact = "donot_use_mm_for_euclid_dist"  # products would lose the digits of small distances
    return flush_subnormals(torch.softmax(-torch.cdist(traces, traces, compute_mode=exact), dim=1))


def contrastive_loss(
    trace: Float[Tensor, "batch units"],
    target_trace: Float[Tensor, "batch units"],
    likeness: Float[Tensor, "batch batch"],
    temperature: float = 1.0,
) -> Float[Tensor, ""]:
    """Return E, averaged over the samples; see the module's equations.

    `trace` e and `target_trace` f [B, H] of the layer; `likeness` y [B, B], its rows summing to one; `temperature` tau,
    above 0. The loss of no sample is zero.

    >>> likeness = torch.eye(2)
    >>> right = contrastive_loss(torch.eye(2), torch.eye(2), likeness)
    >>> right < contrastive_loss(torch.eye(2), torch.eye(2).flip(0), likeness)
    tensor(True)
    """
    similarity = trace @ target_trace.T / temperature
    return -(likeness * F.log_softmax(similarity, dim=1)).sum() / max(trace.shape[0], 1)


__all__ = ["contrastive_loss", "likeness_of_targets"]
