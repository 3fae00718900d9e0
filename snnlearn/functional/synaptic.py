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

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from snnlearn.functional.dynamics import Jacobian
from snnlearn.functional.eligibility import refuse_second_order
from snnlearn.functional.trace import flush_subnormals_
from snnlearn.functional.weighted_map import rows_of


class DirectDerivative(NamedTuple):
    """How a neuron's step depends on one of its own parameters at once, per unit.

    spike [*units]: d s / d p; state [K, *units]: d h_i(next) / d p.
    """

    spike: Tensor
    state: Tensor


class LinearisedStep(NamedTuple):
    """A step and its derivatives: spike [*units], the local Jacobian, and one `DirectDerivative` per parameter."""

    spike: Tensor
    jacobian: Jacobian
    parameters: tuple[DirectDerivative, ...]


@runtime_checkable
class SynapticSource(Protocol):
    """What keeps the per-synapse eligibility between the steps and hands out what backward needs."""

    def expect(self) -> int:
        """Return the tick at which backward must find the source."""
        ...

    def advance_(self, x: Tensor, step: LinearisedStep) -> None:
        """Take in the step of input x [..., I], keep how its spike depends on every parameter, and tick."""
        ...

    def read_spike(self, tick: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return ds/dW [..., O, I] and ds/dp [..., O] of the step, or raise when the source is not at `tick`."""
        ...


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
    return torch.einsum("k...,k...i->...i", spike_state, eligibility) + direct


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
    return flush_subnormals_(torch.einsum("jk...,k...i->j...i", transition, eligibility) + direct)


def step_eligibility(
    eligibility: Float[Tensor, "hidden *units inputs"],
    jacobian: Jacobian,
    x: Float[Tensor, "*leading inputs"],
) -> tuple[Float[Tensor, "*units inputs"], Float[Tensor, "hidden *units inputs"]]:
    """Return (Q_t, E_t) of a linear connection's weights from E_{t-1} and the step's input x [..., I].

    >>> ones, x = torch.ones(1, 1, 1), torch.tensor([[2.0]])
    >>> step_eligibility(0 * ones[None], Jacobian(ones[None], ones, ones, ones[0]), x)
    (tensor([[[2.]]]), tensor([[[[2.]]]]))
    """
    inputs = x.unsqueeze(-2)
    spike = read_eligibility(eligibility, jacobian.spike_state, jacobian.spike_input.unsqueeze(-1) * inputs)
    return spike, advance_eligibility(eligibility, jacobian.transition, jacobian.drive.unsqueeze(-1) * inputs)


class SynapticStep(torch.autograd.Function):
    """A linear connection and the neuron behind it as one node, with the gradients of the per-synapse eligibility."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        source: SynapticSource,
        advance: Callable[[Tensor], LinearisedStep],
        told: Callable[[str], None],
        *parameters: Tensor,
    ) -> Tensor:
        """Return the spikes of x W^T + b and advance the eligibility; `told` hears the name of each phase."""
        ctx.source, ctx.tick, ctx.told = source, source.expect(), told
        ctx.dtypes = [None if value is None else value.dtype for value in (x, weight, bias, *parameters)]
        ctx.shapes = [parameter.shape for parameter in parameters]
        step = advance(F.linear(x, weight, bias))
        told("FORWARD")
        source.advance_(x if bias is None else with_one(x), step)
        told("TRACE_UPDATE")
        ctx.save_for_backward(weight, step.jacobian.spike_input)
        return step.spike

    @staticmethod
    def backward(ctx: Any, signal: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients for x, W, b and the neuron's parameters from the signal dL/ds [..., O]."""
        refuse_second_order("a layer with a per-synapse eligibility")
        weight, spike_input = ctx.saved_tensors
        needs = ctx.needs_input_grad
        need_x, need_weight, need_bias, need_parameters = needs[0], needs[1], needs[2], needs[6:]
        d = signal * spike_input
        ctx.told("NEURON_BACKWARD")
        grad_x = d @ weight.to(d.dtype) if need_x else None
        grad_weight = grad_bias = None
        grads: list[Tensor | None] = [None] * len(ctx.shapes)
        if need_weight or need_bias or any(need_parameters):
            by_weight, by_parameter = ctx.source.read_spike(ctx.tick)
            gathered = torch.einsum("no,noi->oi", rows_of(signal), by_weight.flatten(0, -3))
            inputs = weight.shape[1]
            grad_weight = gathered[:, :inputs] if need_weight else None
            grad_bias = gathered[:, inputs] if need_bias else None
            grads = [(signal * ds_dp).sum_to_size(shape) for ds_dp, shape in zip(by_parameter, ctx.shapes, strict=True)]
        ctx.told("ET_BACKWARD")
        found = [grad_x, grad_weight, grad_bias, *grads]
        cast = [None if g is None else g.to(dtype) for g, dtype in zip(found, ctx.dtypes, strict=True)]
        return *cast[:3], None, None, None, *cast[3:]


__all__ = [
    "DirectDerivative",
    "LinearisedStep",
    "SynapticSource",
    "SynapticStep",
    "advance_eligibility",
    "read_eligibility",
    "step_eligibility",
    "with_one",
]
