"""Learning signals: what a rule puts in the place of dL/ds where it does not backpropagate through space.

With the network's output o [B, C] of the step, its error e = dL/do, the block's spikes s [B, *units], a target y and n
samples, and a feedback matrix B [*units, C],

    broadcast        u = B e                                  direct feedback alignment; e-prop's broadcast
    target           u = -B y / n                             the label alone, no error (y one-hot or as it is)
    local readout    u = dl(G s, y)/ds                        l the loss of the block's own readout G [C, D]
    reward           u = -r / n                               one number r per sample for all units
    zeroth order     u = M^T e,  M <- m M + (1 - m) sum (o - mean o) z^T / ((n - 1) sigma^2)
                                                              z the noise added to s; M grows from 0 to do/ds

A firing rate is held by a further term: for c/2 sum_j (f_j - f*)^2 with f_j the mean of m spikes of unit j (samples and
steps so far), u_j += c (f_j - f*) / m. Sources: Lillicrap et al. 2016, doi:10.1038/ncomms13276; Nokland 2016,
doi:10.48550/arXiv.1609.01596; Frenkel et al. 2021, doi:10.3389/fnins.2021.629892; Kaiser et al. 2020,
doi:10.3389/fnins.2020.00424; Bellec et al. 2020, doi:10.1038/s41467-020-17236-y.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from snnlearn.functional.losses import is_labelled

LOCAL_LOSSES = ("cross_entropy", "mse", "smooth_l1")
"""Losses of a block's own readout."""


def broadcast_error(
    error: Float[Tensor, "batch outputs"], feedback: Float[Tensor, "*units outputs"]
) -> Float[Tensor, "batch *units"]:
    """Return u = B e for errors e [B, C] and feedback B [*units, C].

    >>> broadcast_error(torch.ones(1, 2), torch.tensor([[1.0, 2.0]]))
    tensor([[3.]])
    """
    signal: Tensor = torch.tensordot(error, feedback.to(error.dtype), dims=([-1], [-1]))
    return signal


def as_values(target: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
    """Return a target as one number per output [B, C]: whole-number labels [B] become one-hot, the rest stays.

    A sample without a label (`snnlearn.functional.losses.MISSING_LABEL`) becomes zeros. Raises ValueError for a label
    outside 0 .. C - 1.

    >>> as_values(torch.tensor([1, -100]), 2, torch.float32)
    tensor([[0., 1.],
            [0., 0.]])
    """
    if target.is_floating_point() or target.dim() != 1:
        return target.to(dtype)
    labelled = is_labelled(target)
    labels = torch.where(labelled, target, 0).long()
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < outputs:
        raise ValueError(
            f"labels run from {int(labels.min())} to {int(labels.max())} and the network has {outputs} outputs: labels "
            f"are 0 to {outputs - 1}; renumber them, or give the readout more outputs"
        )
    return F.one_hot(labels, outputs).to(dtype) * labelled.unsqueeze(-1)


def labelled_rows(target: Tensor) -> Tensor:
    """Return which samples [B] have a target: all of them for numbers, those that are not missing for labels.

    >>> labelled_rows(torch.tensor([1, -100]))
    tensor([ True, False])
    """
    if target.is_floating_point() or target.dim() != 1:
        return torch.ones(target.shape[0], dtype=torch.bool, device=target.device)
    return is_labelled(target)


def project_target(
    target: Float[Tensor, "batch outputs"], feedback: Float[Tensor, "*units outputs"], samples: int | None = None
) -> Float[Tensor, "batch *units"]:
    """Return u = -B y / n for targets y [B, C], the part of B (o - y) / n that the output has no share in.

    `samples` n, those that have a target; None for all.

    >>> project_target(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 2.0]]))
    tensor([[-2.]])
    """
    return -broadcast_error(target, feedback) / (target.shape[0] if samples is None else max(samples, 1))


def local_loss(output: Float[Tensor, "batch outputs"], target: Tensor, kind: str) -> Float[Tensor, ""]:
    """Return the loss of a block's own readout [B, C], averaged over the batch: one of LOCAL_LOSSES.

    `target` labels [B], or numbers [B, C]; squared and smooth absolute errors are averaged over outputs too. Samples
    without a label are left out, and the loss of none is zero.

    >>> local_loss(torch.zeros(1, 2), torch.tensor([0]), "mse")
    tensor(0.5000)
    """
    rows = labelled_rows(target)
    if not bool(rows.any()):
        return output.sum() * 0.0
    if not bool(rows.all()):
        output, target = output[rows], target[rows]
    if kind == "cross_entropy":
        return F.cross_entropy(output, target)
    values = as_values(target, output.shape[-1], output.dtype)
    return F.mse_loss(output, values) if kind == "mse" else F.smooth_l1_loss(output, values)


def sinusoids(outputs: int, features: int, square: bool = False) -> Float[Tensor, "outputs features"]:
    """Return the fixed readout of TESS: row c is sin(f_c k) / D, f_c evenly in 50 .. 512, k = 0 .. D - 1.

    `square` takes the sign of the sine; `features` D. Apolinario et al. 2025, doi:10.48550/arXiv.2502.01837.

    >>> sinusoids(2, 3)[:, 1] * 3 - torch.tensor([50.0, 512.0]).sin()
    tensor([0., 0.])
    """
    frequency = torch.linspace(50.0, 512.0, outputs, dtype=torch.float64)
    wave = torch.sin(torch.outer(frequency, torch.arange(features, dtype=torch.float64)))
    return ((torch.sign(wave) if square else wave) / features).to(torch.get_default_dtype())


def advance_output_estimate(
    estimate: Float[Tensor, "outputs *units"],
    output: Float[Tensor, "batch outputs"],
    noise: Float[Tensor, "batch *units"],
    scale: float,
    momentum: float,
) -> Float[Tensor, "outputs *units"]:
    """Return M after one more step of n samples; see the module's equations.

    `estimate` M [C, *units]; `output` o [B, C]; `noise` z [B, *units] of standard deviation `scale`; `momentum` m. The
    output of a single sample has no other to be centred by: then z meets o itself, which only makes M noisier.
    Xiao et al. 2024, doi:10.48550/arXiv.2407.12516.

    >>> output, noise = torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0], [-1.0]])
    >>> advance_output_estimate(torch.zeros(1, 1), output, noise, 1.0, 0.0)
    tensor([[2.]])
    """
    samples = output.shape[0]
    centred = output - output.mean(0) if samples > 1 else output
    latest = torch.tensordot(centred.to(noise.dtype), noise, dims=([0], [0])) / (max(samples - 1, 1) * scale**2)
    after: Tensor = momentum * estimate + (1 - momentum) * latest.to(estimate.dtype)
    return after


def rate_signal(
    rate: Float[Tensor, " *units"], target: float, weight: float, counted: Float[Tensor, ""]
) -> Float[Tensor, " *units"]:
    """Return c (f - f*) / m per unit: `rate` f [*units] and `target` f* in spikes per step, `weight` c.

    `counted` m how many samples and steps the rate is the mean of.

    >>> rate_signal(torch.tensor([0.3]), 0.1, 1.0, torch.tensor(2.0))
    tensor([0.1000])
    """
    return weight * (rate - target) / counted


__all__ = [
    "LOCAL_LOSSES",
    "advance_output_estimate",
    "as_values",
    "broadcast_error",
    "labelled_rows",
    "local_loss",
    "project_target",
    "rate_signal",
    "sinusoids",
]
