"""A chunk of steps at once: the numbers of the per-synapse eligibility, which is touched once per chunk.

K steps enter with the eligibility E_0 = dh/dW. With the local Jacobian (A, p, c, r) of each step
(`snnlearn.functional.dynamics.Jacobian`), its input x_t and its signal u_t = dL_t/ds_t, a backward scan over the units
alone gives what the hidden values and the input of each step still do to the losses of the chunk,

    R_K = 0        R_{t-1} = c_t u_t + A_t^T R_t        d_t = r_t u_t + p_t . R_t

and with that one product over all steps, and one pass over E_0:

    dL/dW += sum_t d_t^T x_t + sum R_0 . E_0            E_K = (A_K ... A_1) E_0 + sum_t (A_K ... A_{t+1} p_t) (x) x_t

c_t u_t is how the loss reaches h_{t-1} directly. K = 1 is `snnlearn.functional.synaptic`; a chunk that is the whole
sequence is BPTT and E_0 = 0 stays out of it; in between the numbers are the same. Baronig et al. 2025 (HYPR),
doi:10.48550/arXiv.2506.14464.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.dynamics import Jacobian
from snnlearn.functional.trace import flush_subnormals_
from snnlearn.functional.weighted_map import rows_of


def scan_chunk(
    jacobians: Sequence[Jacobian], signals: Float[Tensor, "steps *units"]
) -> tuple[Float[Tensor, "steps *units"], Float[Tensor, "hidden *units"]]:
    """Return (d, R_0): dL/dy_t of every step as the chunk sees it [K, ..., O], and dL/dh at its entry [H, ..., O].

    `jacobians` one per step; `signals` u [K, ..., O]. Raises ValueError when they are not as many.

    >>> one = torch.ones(1, 1)
    >>> step = Jacobian(0.5 * one[None], one, 0.5 * one, one[0])
    >>> received, entering = scan_chunk([step, step], torch.ones(2, 1))
    >>> received.flatten(), entering.flatten()
    (tensor([1.5000, 1.0000]), tensor([0.7500]))
    """
    if len(jacobians) != len(signals):
        raise ValueError(f"{len(jacobians)} Jacobians for {len(signals)} signals: a chunk has one of each per step")
    waiting = torch.zeros_like(jacobians[-1].drive)
    received = []
    for jacobian, signal in zip(reversed(jacobians), signals.flip(0), strict=True):
        received.append(jacobian.spike_input * signal + torch.einsum("h...,h...->...", jacobian.drive, waiting))
        waiting = jacobian.spike_state * signal + torch.einsum("ij...,i...->j...", jacobian.transition, waiting)
    return torch.stack(received[::-1]), waiting


def fold_chunk(
    received: Float[Tensor, "steps *units"],
    entering: Float[Tensor, "hidden *units"],
    x: Float[Tensor, "steps *leading inputs"],
    eligibility: Float[Tensor, "hidden *units inputs"] | None,
) -> Float[Tensor, "outputs inputs"]:
    """Return the chunk's share of dL/dW [O, I] for what `scan_chunk` gave.

    `x` [K, ..., I], with a one behind it for a bias; `eligibility` E_0 [H, ..., O, I], None at the start of a sequence.

    >>> fold_chunk(torch.ones(1, 1, 1), torch.ones(1, 1, 1), torch.ones(1, 1, 2), torch.ones(1, 1, 1, 2))
    tensor([[2., 2.]])
    """
    within = rows_of(received).T @ rows_of(x)
    if eligibility is None:
        return within
    return within + torch.einsum("no,noi->oi", rows_of(entering), eligibility.flatten(0, -3))


def roll_eligibility(
    eligibility: Float[Tensor, "hidden *units inputs"] | None,
    jacobians: Sequence[Jacobian],
    x: Float[Tensor, "steps *leading inputs"],
) -> Float[Tensor, "hidden *units inputs"]:
    """Return E_K [H, ..., O, I] at the end of a chunk from E_0, None for zero, the Jacobians and inputs of its steps.

    >>> one = torch.ones(1, 1)
    >>> step = Jacobian(0.5 * one[None], one, 0.5 * one, one[0])
    >>> roll_eligibility(None, [step, step], torch.ones(2, 1)).flatten()
    tensor([1.5000])
    """
    hidden = jacobians[-1].drive.shape[0]
    identity = torch.eye(hidden, dtype=x.dtype, device=x.device)
    product = identity.reshape(hidden, hidden, *(1,) * (jacobians[-1].drive.dim() - 1))
    weights = []
    for jacobian in reversed(jacobians):
        weights.append(torch.einsum("ij...,j...->i...", product, jacobian.drive))
        product = torch.einsum("ij...,jk...->ik...", product, jacobian.transition)
    rolled: Tensor = torch.einsum("th...o,t...i->h...oi", torch.stack(weights[::-1]), x)
    if eligibility is not None:
        rolled = rolled + torch.einsum("ij...,j...n->i...n", product, eligibility)
    return flush_subnormals_(rolled)


__all__ = ["fold_chunk", "roll_eligibility", "scan_chunk"]
