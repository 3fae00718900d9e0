"""One timestep of a neuron and its derivative: what every step function here shares.

A neuron with K hidden values per unit takes its input y and its state h = (h_1 .. h_K) and returns its
output s and the next state. All of it is elementwise over the units, so the local Jacobian is a handful
of numbers per unit, which `Jacobian` names.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.device_numbers import numbers_like

State = tuple[Tensor, ...]
"""The K hidden values of a neuron, each of the shape of its input."""

SpikeFunction = Callable[[Tensor], Tensor]
"""What turns u = membrane - threshold into spikes: a surrogate, or anything that is called like one."""

RESETS = ("soft", "hard", "none")
"""What a spike does to the membrane: subtract the threshold, set it to zero, or nothing."""

PerUnit = float | Tensor
"""A constant of a neuron: one number for all units, or a tensor that broadcasts over them."""

Decay = PerUnit
"""A factor per step in (0, 1]."""


class Jacobian(NamedTuple):
    """Local derivatives of one step, per unit; K hidden values.

    transition [K, K, *units]: d h_i(next) / d h_j; drive [K, *units]: d h_i(next) / d y;
    spike_state [K, *units]: d s / d h_j; spike_input [*units]: d s / d y.
    """

    transition: Tensor
    drive: Tensor
    spike_state: Tensor
    spike_input: Tensor


ConstantDerivatives = dict[str, tuple[Tensor, Tensor]]
"""For each constant c of a step, by name: d s / d c [*units] and d h(next) / d c [K, *units], the past held fixed."""


class LeakTransition(NamedTuple):
    """The constant part of a step: a K by K matrix that is the same for every unit, every step.

    The eligibility of a weight follows e_t = transition @ e_{t-1} + drive * x_t, and the trace that
    meets the learning signal dL/dy is readout @ e_t. For a leaky neuron K = 1 and all is (decay, 1, 1).
    """

    transition: tuple[tuple[float, ...], ...]
    drive: tuple[float, ...]
    readout: tuple[float, ...]


def per_unit(constant: PerUnit, v: Tensor) -> PerUnit:
    """Return a constant as it combines with v: a number as it is, a tensor in the dtype of v.

    >>> per_unit(torch.ones(1), torch.ones(1, dtype=torch.float64)).dtype
    torch.float64
    """
    return constant.to(v.dtype) if isinstance(constant, Tensor) else constant


def charge(
    y: Float[Tensor, "*units"], v: Float[Tensor, "*units"], decay: Decay, out: Float[Tensor, "*units"] | None = None
) -> Float[Tensor, "*units"]:
    """Return decay * v + y, the membrane before it may fire.

    `y` input and `v` membrane [*units] in membrane units; `decay` per step; `out` where it is written, such as y,
    outside autograd.

    >>> charge(torch.ones(1), torch.full((1,), 4.0), 0.5)
    tensor([3.])
    """
    if isinstance(decay, Tensor):
        return torch.addcmul(y, v, decay.to(v.dtype), out=out)
    return torch.add(y, v, alpha=decay, out=out)


def reset_membrane(
    v: Float[Tensor, "*units"],
    spike: Float[Tensor, "*units"],
    threshold: PerUnit,
    reset: str,
    detach_reset: bool,
    out: Float[Tensor, "*units"] | None = None,
) -> Float[Tensor, "*units"]:
    """Return the membrane after the reset: soft v - threshold*s, hard v*(1 - s), none v.

    `v`, `spike` [*units]; `threshold` in membrane units. With `detach_reset` the gradient takes the
    spike in the reset as a constant: that of the threshold which a soft reset subtracts is then -s, and it counts.
    `out` where a reset membrane is written, such as v, outside autograd.

    >>> reset_membrane(torch.tensor([1.25]), torch.ones(1), 1.0, "soft", True)
    tensor([0.2500])
    """
    if reset == "none":
        return v
    gate = spike.detach() if detach_reset else spike
    if reset == "hard":
        return torch.addcmul(v, v, gate, value=-1.0, out=out)
    if isinstance(threshold, Tensor):
        return torch.addcmul(v, gate, threshold.to(v.dtype), value=-1.0, out=out)
    return torch.sub(v, gate, alpha=threshold, out=out)


def reset_partials(
    v: Tensor, spike: Tensor, threshold: PerUnit, reset: str, detach_reset: bool
) -> tuple[Tensor, Tensor]:
    """Return the partial derivatives of `reset_membrane` by v (direct) and by the spike, both [*units].

    >>> reset_partials(torch.tensor([2.0]), torch.ones(1), 1.0, "hard", False)
    (tensor([0.]), tensor([-2.]))
    """
    direct = 1 - spike if reset == "hard" else torch.ones_like(v)
    if reset == "none" or detach_reset:
        return direct, torch.zeros_like(v)
    return direct, torch.ones_like(v) * -per_unit(threshold, v) if reset == "soft" else -v


def threshold_partials(psi: Tensor, spike: Tensor, by_spike: Tensor, reset: str) -> tuple[Tensor, Tensor]:
    """Return how the spike and the membrane after the reset depend on the threshold, both [*units].

    -psi, and what of it passes the reset (by_spike of `reset_partials`) less the s that a soft reset subtracts.

    >>> one = torch.ones(1)
    >>> threshold_partials(0.5 * one, one, 0 * one, "soft")
    (tensor([-0.5000]), tensor([-1.]))
    """
    by_threshold = -by_spike * psi
    return -psi, by_threshold - spike if reset == "soft" else by_threshold


def check_reset(reset: str) -> None:
    """Raise ValueError when `reset` is none of RESETS.

    >>> check_reset("soft")
    """
    if reset not in RESETS:
        raise ValueError(f"reset={reset!r}: choose one of {', '.join(RESETS)}; write reset='soft'")


def jacobian_of(step: Callable[[Tensor, State], tuple[Tensor, State]], y: Tensor, state: State) -> Jacobian:
    """Differentiate any elementwise step by reverse mode: one pass back for the spike and one per hidden value.

    `step(y, state) -> (spike, state)`; `y` and each state [*units]. The result is the `Jacobian` of shapes given
    there. Exact when the step is elementwise over units, as every neuron's must be: the derivative of a sum over units
    then is each unit's own. (Forward mode gives the same and takes many times as long on small tensors.)

    >>> jacobian = jacobian_of(lambda y, h: (h[0], (0.5 * h[0] + y,)), torch.ones(1), (torch.ones(1),))
    >>> jacobian.transition.flatten(), jacobian.drive.flatten()
    (tensor([0.5000]), tensor([1.]))
    """
    with torch.enable_grad():
        inputs = [value.detach().requires_grad_() for value in (y, *state)]
        copies = [value.clone() for value in inputs]  # a step may write to what it is given
        spike, after = step(copies[0], tuple(copies[1:]))
        shape = torch.broadcast_shapes(*(value.shape for value in (*inputs, spike, *after)))
        if any(value.shape != shape for value in inputs):  # constants per unit may widen what they meet
            return jacobian_of(step, y.expand(shape), tuple(value.expand(shape) for value in state))
        spike_by, *state_by = (_derivatives(value.expand(shape), inputs) for value in (spike, *after))
    return Jacobian(
        transition=torch.stack([torch.stack(row[1:]) for row in state_by]),
        drive=torch.stack([row[0] for row in state_by]),
        spike_state=torch.stack(spike_by[1:]),
        spike_input=spike_by[0],
    )


def _derivatives(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Return d output / d input per unit, for each of the inputs; zeros where it does not depend on one."""
    if not output.requires_grad:
        return [torch.zeros_like(value) for value in inputs]
    found = torch.autograd.grad(output.sum(), inputs, retain_graph=True, allow_unused=True, materialize_grads=True)
    return list(found)


def forward_derivative(
    function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor], tangents: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the derivative of `function` at `inputs` along `tangents`, one per result, by forward mode.

    >>> forward_derivative(lambda x: (x * x,), [torch.tensor(3.0)], [torch.tensor(1.0)])
    (tensor(6.),)
    """
    with warnings.catch_warnings():
        # torch.func loads decompositions that torch itself still scripts; its warning is not the user's.
        warnings.filterwarnings("ignore", message=".*torch.jit.script.*")
        result = torch.func.jvp(function, tuple(value.detach() for value in inputs), tuple(tangents))
    return tuple(result[1])


def leak_jacobian(leak: LeakTransition, gate: Float[Tensor, "*units"]) -> Jacobian:
    """Return the Jacobian of a unit whose hidden values are the trace of its input: constant, read by ds/dy.

    `gate` ds/dy [*units]: the eligibility of such a unit is ds/dy times the trace of the input.

    >>> leak_jacobian(LeakTransition(((0.5,),), (1.0,), (1.0,)), torch.ones(1)).spike_state
    tensor([[0.5000]])
    """
    hidden = len(leak.drive)
    constant = numbers_like(leak.transition, gate)
    drive, readout = numbers_like(leak.drive, gate), numbers_like(leak.readout, gate)
    places = (1,) * gate.dim()
    return Jacobian(
        constant.reshape(hidden, hidden, *places).expand(hidden, hidden, *gate.shape),
        drive.reshape(hidden, *places).expand(hidden, *gate.shape),
        (readout @ constant).reshape(hidden, *places) * gate,
        sum(o * g for o, g in zip(leak.readout, leak.drive, strict=True)) * gate,
    )


__all__ = [
    "RESETS",
    "ConstantDerivatives",
    "Decay",
    "Jacobian",
    "LeakTransition",
    "PerUnit",
    "SpikeFunction",
    "State",
    "charge",
    "check_reset",
    "forward_derivative",
    "jacobian_of",
    "leak_jacobian",
    "per_unit",
    "reset_membrane",
    "reset_partials",
    "threshold_partials",
]
