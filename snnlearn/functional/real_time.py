"""Real-time recurrent learning of one recurrent layer: in full, one step sparse, and as an unbiased rank one.

The layer takes q_t = (x_t, s_{t-1}, 1) by joined weights Theta [O, Q], with V its recurrent part: y_t = Theta q_t. With
the step's `Jacobian` (A, p, c, r) of the neuron (`snnlearn.functional.dynamics`), M = dh/dTheta and N = ds/dTheta,

    dy_t = V N_{t-1} + d(Theta) q_t     N_t = c_t . M_{t-1} + r_t dy_t     M_t = A_t M_{t-1} + p_t dy_t

and dL/dTheta = sum_t dL_t/ds_t . N_t. Nothing is left out: that is BPTT, run forward.

    full          every unit's M for every weight, O x O x Q numbers: Williams and Zipser 1989,
                  doi:10.1162/neco.1989.1.2.270
    one step      only weights of the unit itself, which is what a weight reaches within a step. Of V N just the unit's
                  own connection V_oo is left: D-RTRL plus that term (SnAp-1: Menick et al. 2021,
                  doi:10.48550/arXiv.2006.07232)
    rank one      (h, s) ~ u and Theta ~ w with E[u (x) w] = (M, N): Tallec and Ollivier 2017 (UORO),
                  doi:10.48550/arXiv.1702.05043. With signs n drawn at every step and F = d(h, s)/dTheta at once,
                  u <- a J u + b n ,  w <- w / a + n^T F / b ,  a^2 = |w| / |J u| ,  b^2 = |n^T F| / |n|
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.dynamics import Jacobian
from snnlearn.functional.synaptic import advance_eligibility, read_eligibility

TINY = 1e-30
"""Added to the lengths whose ratio balances the two factors of a rank-one estimate, against 0 / 0."""


class Influence(NamedTuple):
    """How state and spike depend on the weights: hidden [K, B, O, ...], spike [B, O, ...].

    The last dimensions are [O * Q] in full and [Q], the unit's own weights, one step sparse.
    """

    hidden: Tensor
    spike: Tensor


class RankOne(NamedTuple):
    """One draw of a rank-one estimate: hidden [K, B, O] and spike [B, O] times weights [B, O, Q]."""

    hidden: Tensor
    spike: Tensor
    weights: Tensor


def full_influence_step(
    influence: Influence, jacobian: Jacobian, q: Float[Tensor, "batch joined"], recurrent: Float[Tensor, "units units"]
) -> Influence:
    """Return the influence after a step with joined input `q` [B, Q] and recurrent weights V [O, O].

    >>> one = torch.ones(1, 1)
    >>> before = Influence(torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1))
    >>> full_influence_step(before, Jacobian(one[None, None], one[None], one[None], one), 3 * one, 2 * one).spike
    tensor([[[5.]]])
    """
    units = recurrent.shape[0]
    at_once = torch.einsum("oj,bi->boji", torch.eye(units, dtype=q.dtype, device=q.device), q).flatten(2)
    return _advance(influence, jacobian, at_once + torch.einsum("oj,bjp->bop", recurrent, influence.spike))


def sparse_influence_step(
    influence: Influence, jacobian: Jacobian, q: Float[Tensor, "batch joined"], recurrent: Float[Tensor, "units units"]
) -> Influence:
    """Return the one-step sparse influence after a step; arguments as `full_influence_step`.

    >>> one = torch.ones(1, 1)
    >>> before = Influence(torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1))
    >>> sparse_influence_step(before, Jacobian(one[None, None], one[None], one[None], one), 3 * one, 2 * one).spike
    tensor([[[5.]]])
    """
    return _advance(influence, jacobian, q[:, None] + recurrent.diagonal()[:, None] * influence.spike)


def _advance(influence: Influence, jacobian: Jacobian, dy: Tensor) -> Influence:
    by_input, drive = jacobian.spike_input[..., None], jacobian.drive[..., None]
    spike = read_eligibility(influence.hidden, jacobian.spike_state, by_input * dy)
    return Influence(advance_eligibility(influence.hidden, jacobian.transition, drive * dy), spike)


def rank_one_step(
    estimate: RankOne,
    jacobian: Jacobian,
    q: Float[Tensor, "batch joined"],
    recurrent: Float[Tensor, "units units"],
    signs: Float[Tensor, "hidden_and_spike batch units"],
) -> RankOne:
    """Return the estimate after a step, each sample with a draw of its own: `signs` [K + 1, B, O] of +1 and -1.

    >>> one = torch.ones(1, 1)
    >>> start = RankOne(0 * one[None], 0 * one, 0 * one[None])
    >>> signs = torch.tensor([[[1.0]], [[-1.0]]])
    >>> after = rank_one_step(start, Jacobian(one[None, None], one[None], one[None], 3 * one), 5 * one, one, signs)
    >>> (after.spike * after.weights).round()  # spike_input * q = 15, and 5 * 1 * -1 from the noise
    tensor([[[10.]]])
    """
    dy = estimate.spike @ recurrent.T
    hidden = torch.einsum("jkbo,kbo->jbo", jacobian.transition, estimate.hidden) + jacobian.drive * dy
    spike = torch.einsum("kbo,kbo->bo", jacobian.spike_state, estimate.hidden) + jacobian.spike_input * dy
    seen = (signs[:-1] * jacobian.drive).sum(0) + signs[-1] * jacobian.spike_input
    at_once = torch.einsum("bo,bi->boi", seen, q)
    carried = (hidden.square().sum((0, 2)) + spike.square().sum(1)).sqrt()
    old = ((_length(estimate.weights) + TINY) / (carried + TINY)).sqrt()
    new = ((_length(at_once) + TINY) / signs.square().sum((0, 2)).sqrt()).sqrt()
    return RankOne(
        old[:, None] * hidden + new[:, None] * signs[:-1],
        old[:, None] * spike + new[:, None] * signs[-1],
        estimate.weights / old[:, None, None] + at_once / new[:, None, None],
    )


def _length(values: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
    return length


def full_gradient(influence: Influence, signal: Float[Tensor, "batch units"]) -> Float[Tensor, "units joined"]:
    """Return the gradient of the joined weights from dL/ds [B, O] and the full influence.

    >>> full_gradient(Influence(torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 2)), torch.ones(1, 1))
    tensor([[1., 1.]])
    """
    return torch.einsum("bo,bop->p", signal, influence.spike).view(signal.shape[1], -1)


def sparse_gradient(influence: Influence, signal: Float[Tensor, "batch units"]) -> Float[Tensor, "units joined"]:
    """Return the gradient of the joined weights from dL/ds [B, O] and the one-step sparse influence.

    >>> sparse_gradient(Influence(torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 2)), torch.ones(1, 1))
    tensor([[1., 1.]])
    """
    return torch.einsum("bo,boi->oi", signal, influence.spike)


def rank_one_gradient(estimate: RankOne, signal: Float[Tensor, "batch units"]) -> Float[Tensor, "units joined"]:
    """Return the estimated gradient of the joined weights from dL/ds [B, O].

    >>> rank_one_gradient(RankOne(torch.zeros(1, 1, 1), torch.ones(1, 1), torch.ones(1, 1, 2)), torch.ones(1, 1))
    tensor([[1., 1.]])
    """
    return torch.einsum("bo,bo,bpi->pi", signal, estimate.spike, estimate.weights)


__all__ = [
    "Influence",
    "RankOne",
    "full_gradient",
    "full_influence_step",
    "rank_one_gradient",
    "rank_one_step",
    "sparse_gradient",
    "sparse_influence_step",
]
