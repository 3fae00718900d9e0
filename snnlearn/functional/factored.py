"""Factored eligibilities beyond the plain trace: one factor per unit times one per input.

**Mean gate** (OTPE). The derivative ds/dy of the step is replaced by its leaky mean, weighted like the trace itself:

    n_t = decay * n_{t-1} + 1        g_t = g_{t-1} + (ds_t/dy - g_{t-1}) / n_t

**Post-synaptic trace** (S-TLLR). Beside the causal term (ds/dy) a^T stands one that pairs earlier spikes of the unit
with this step's input; p is the trace of ds/dy before the step:

    dL/dW = (u * ds/dy * c_pre)^T a + (u * p * c_post)^T x        p <- decay_post * p + ds/dy

**Ratio** (NDOT). The trace of an input decays by how the membrane r after reset of the neuron that sends it changed:

    a_t = e_{t-1} * a_{t-1} + x_t        e_t = r_t / r_{t-1}, held within +-decay

**Rank one** (ES-D-RTRL). The eligibility of a synapse is a product of an input factor and an output factor, the latter
following the neuron's Jacobian (A, p, c, r) with a forgetting factor alpha and the weight that a mean of n steps gives:

    z_t = decay * z_{t-1} + x_t                     dL/dW = (u * f_t / (1 - alpha^n))^T z_t
    F_t = alpha A_t F_{t-1} + (1 - alpha) p_t       f_t = alpha c_t . F_{t-1} + (1 - alpha) r_t

With alpha = 0 the output factor is ds/dy and the rule is OTTT. Sources are on the rules' pages in `snnlearn.rules`.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.dynamics import Jacobian
from snnlearn.functional.trace import flush_subnormals


def per_row(values: Float[Tensor, " batch"], like: Tensor) -> Tensor:
    """Return values [B] shaped to broadcast over `like` [B, ...].

    >>> per_row(torch.ones(2), torch.zeros(2, 3, 4)).shape
    torch.Size([2, 1, 1])
    """
    return values.reshape(-1, *(1,) * (like.dim() - 1))


def advance_mean_gate(
    mean: Float[Tensor, "batch *units"],
    count: Float[Tensor, " batch"],
    gate: Float[Tensor, "batch *units"],
    decay: float,
) -> tuple[Float[Tensor, "batch *units"], Float[Tensor, " batch"]]:
    """Return the leaky mean of the gate ds/dy and its weight n, after one more step; see the module's equations.

    `mean`, `gate` [B, *units]; `count` n [B]; `decay` per step.

    >>> advance_mean_gate(torch.ones(1, 1), torch.ones(1), torch.zeros(1, 1), 0.5)
    (tensor([[0.3333]]), tensor([1.5000]))
    """
    count = decay * count + 1
    return mean + (gate - mean) / per_row(count, mean), count


def membrane_ratio(
    now: Float[Tensor, "*inputs"], before: Float[Tensor, "*inputs"], decay: float
) -> Float[Tensor, "*inputs"]:
    """Return e = now / before within +-`decay`; where `before` is zero, `decay` with the sign of `now`.

    `now`, `before` membranes after reset [*inputs], one step apart.

    >>> membrane_ratio(torch.tensor([0.2, -3.0, 0.5]), torch.tensor([1.0, 1.0, 0.0]), 0.5)
    tensor([ 0.2000, -0.5000,  0.5000])
    """
    ratio = (now / before).clamp(-decay, decay)
    return torch.where(before == 0, decay * torch.sign(now), ratio)


def advance_ratio_trace(
    trace: Float[Tensor, "*inputs"], x: Float[Tensor, "*inputs"], ratio: Float[Tensor, "*inputs"]
) -> Float[Tensor, "*inputs"]:
    """Return ratio * trace + x, flushed; all [*inputs].

    >>> advance_ratio_trace(torch.ones(1), torch.ones(1), torch.full((1,), -0.5))
    tensor([0.5000])
    """
    return flush_subnormals(torch.addcmul(x, ratio, trace))


def step_output_factor(
    factor: Float[Tensor, "hidden *units"], jacobian: Jacobian, forgetting: float
) -> tuple[Float[Tensor, "*units"], Float[Tensor, "hidden *units"]]:
    """Return (f_t, F_t) of the rank-one eligibility from F_{t-1}; see the module's equations.

    `factor` F [K, *units]; `jacobian` of the step; `forgetting` alpha in [0, 1).

    >>> one = torch.ones(1, 1)
    >>> step_output_factor(one, Jacobian(0.5 * one[None], one, 0.5 * one, one[0]), 0.5)
    (tensor([0.7500]), tensor([[0.7500]]))
    """
    past = torch.einsum("k...,k...->...", jacobian.spike_state, factor)
    read = forgetting * past + (1 - forgetting) * jacobian.spike_input
    moved = torch.einsum("jk...,k...->j...", jacobian.transition, factor)
    return read, flush_subnormals(forgetting * moved + (1 - forgetting) * jacobian.drive)


__all__ = ["advance_mean_gate", "advance_ratio_trace", "membrane_ratio", "per_row", "step_output_factor"]
