"""Per-synapse eligibility: how every hidden value of a unit depends on each of its own weights.

For h_t = f(h_{t-1}, y_t), y_t = W x_t + b, with the neuron's own Jacobian (A, p, c, r) of the step
(`snnlearn.functional.dynamics.Jacobian`: transition, drive, spike_state, spike_input) and E = dh/dW,

    Q_t = c_t . E_{t-1} + r_t (x) x_t         ds_t/dW, which meets the learning signal dL_t/ds_t
    E_t = A_t E_{t-1} + p_t (x) x_t

A bias is a weight from a constant one, so it is one more input. A parameter of the neuron follows the same recurrence
with its own direct derivatives in place of p (x) x and r (x) x. Nothing of A is approximated: resets, attached or not,
adaptation and constants per unit are all in it. Williams and Zipser 1989, doi:10.1162/neco.1989.1.2.270, cut to the
unit's own states; Bohnstingl et al. 2023 (OSTL), doi:10.1109/TNNLS.2022.3153985.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.batch_ties import BatchTies
from snnlearn.functional.dynamics import Jacobian
from snnlearn.functional.trace import flush_subnormals_


def with_one(x: Float[Tensor, "*leading inputs"]) -> Float[Tensor, "*leading inputs_and_one"]:
    """Return x [..., I] with a constant one behind it [..., I + 1], the input of the bias.

    >>> with_one(torch.zeros(1, 2))
    tensor([[0., 0., 1.]])
    """
    return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)


def read_eligibility(
    eligibility: Float[Tensor, "hidden *units inputs"],
    spike_state: Float[Tensor, "hidden *units"],
    direct: Float[Tensor, "*units inputs"],
) -> Float[Tensor, "*units inputs"]:
    """Return Q = c . E + direct: how the spike depends on the parameters, through the past and at once.

    `eligibility` E of the step before [K, ..., O, I]; `spike_state` c [K, ..., O]; `direct` r (x) x [..., O, I].

    >>> read_eligibility(torch.full((1, 1, 2), 3.0), torch.full((1, 1), 0.5), torch.ones(1, 2))
    tensor([[2.5000, 2.5000]])
    """
    return _accumulated(direct, spike_state, eligibility)


def advance_eligibility(
    eligibility: Float[Tensor, "hidden *units inputs"],
    transition: Float[Tensor, "hidden hidden *units"],
    direct: Float[Tensor, "hidden *units inputs"],
) -> Float[Tensor, "hidden *units inputs"]:
    """Return E after the step: A E + direct, flushed; `direct` p (x) x [K, ..., O, I], `transition` A [K, K, ..., O].

    >>> one = torch.ones(1, 1, 1)
    >>> advance_eligibility(3 * one, torch.full((1, 1, 1), 0.5), one)
    tensor([[[2.5000]]])
    """
    after = [_accumulated(part, row, eligibility) for part, row in zip(direct, transition, strict=True)]
    return flush_subnormals_(after[0].unsqueeze(0) if len(after) == 1 else torch.stack(after))


def _accumulated(direct: Tensor, factors: Tensor, eligibility: Tensor) -> Tensor:
    """Return direct + sum_k factors_k * eligibility_k; a pass over memory for each k, where einsum takes several."""
    total = torch.addcmul(direct, factors[0].unsqueeze(-1), eligibility[0])
    for factor, part in zip(factors[1:], eligibility[1:], strict=True):
        total.addcmul_(factor.unsqueeze(-1), part)
    return total


def inputs_of(x: Float[Tensor, "*leading inputs"], ties: BatchTies | None) -> Float[Tensor, "*units inputs"]:
    """Return what the weights of each unit meet: x [..., I] as [..., 1, I], or [B, O, I] where `ties` tell units apart.

    Raises ValueError where ties meet more leading dimensions than the batch: the channels of the normalisation are not
    the units then.

    >>> inputs_of(torch.zeros(2, 3), None).shape, inputs_of(torch.zeros(2, 3), BatchTies(torch.zeros(2, 4))).shape
    (torch.Size([2, 1, 3]), torch.Size([2, 4, 3]))
    """
    if ties is None:
        return x.unsqueeze(-2)
    if x.dim() != 2:
        raise ValueError(
            f"batch statistics met an input of shape {list(x.shape)} under a rule per synapse: behind a linear layer "
            f"that takes [B, N, I] they are those of N, not of the units; freeze them with block.norm.eval(), or write "
            f"one input [B, I] a step"
        )
    return ties.inputs(x)


def step_eligibility(
    eligibility: Float[Tensor, "hidden *units inputs"],
    jacobian: Jacobian,
    x: Float[Tensor, "*leading inputs"],
    ties: BatchTies | None = None,
) -> tuple[Float[Tensor, "*units inputs"], Float[Tensor, "hidden *units inputs"]]:
    """Return (Q_t, E_t) of a linear connection's weights from E_{t-1} and the step's input x [..., I].

    With `ties` of batch statistics each unit meets its own x, `inputs_of` it, and the recurrence is exact as before:
    a weight reaches no state but those of its own unit, in all samples.

    >>> ones, x = torch.ones(1, 1, 1), torch.tensor([[2.0]])
    >>> step_eligibility(0 * ones[None], Jacobian(ones[None], ones, ones, ones[0]), x)
    (tensor([[[2.]]]), tensor([[[[2.]]]]))
    """
    inputs = inputs_of(x, ties)
    spike = read_eligibility(eligibility, jacobian.spike_state, jacobian.spike_input.unsqueeze(-1) * inputs)
    return spike, advance_eligibility(eligibility, jacobian.transition, jacobian.drive.unsqueeze(-1) * inputs)


__all__ = ["advance_eligibility", "inputs_of", "read_eligibility", "step_eligibility", "with_one"]
