"""K steps of a spiking neuron at once, the past of the chunk a constant: the references of the fused scans.

A scan is the neuron's own step, K times, with the state flushed after each (`snnlearn.functional.trace`); the equations
stay in `lif`, `alif` and `cuba_lif`. It runs outside autograd: with the past cut, the only path back is

    dL/dy_t = psi(u_t) dL/ds_t         u_t = membrane - threshold, as in `snnlearn.functional.cut_step`

so a scan returns u and `cut_gradient` turns signals into gradients. In each scan `y` [K, *units] are the inputs, the
`state`, one [*units] per hidden value, is in the dtype it is kept in (float32 for inputs of low precision), and a row
that `restarts` [K, B] marks begins anew before that step: its membrane at the initial one, the other value at zero.
`entering`, a tensor [K, *units] for each hidden value or None, is written with the state that meets each step. A scan
returns (spikes [K, *units], u [K, *units], the hidden values after the last step), all in the dtype of the state.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.alif import alif_step
from snnlearn.functional.chunk import Restarts, spread
from snnlearn.functional.cuba_lif import cuba_lif_step
from snnlearn.functional.cut_step import Firing
from snnlearn.functional.dynamics import Decay, PerUnit, State, check_reset, per_unit
from snnlearn.functional.lif import lif_step
from snnlearn.functional.surrogates import Surrogate
from snnlearn.functional.trace import flush_subnormals_

Advance = Callable[[Tensor, State, Firing], tuple[Tensor, ...]]


class NeuronConstants(NamedTuple):
    """What stays the same over the steps of a scan; each is one number or a tensor that broadcasts over the units.

    `decay` of the membrane per step, `threshold` and `initial_membrane` in membrane units, `reset` one of soft, hard,
    none. An ALIF alone has `decay_adaptation` per step and `adaptation` in membrane units per spike, a CUBA-LIF alone
    `decay_synapse` per step.
    """

    decay: Decay
    threshold: PerUnit
    reset: str
    surrogate: Surrogate
    initial_membrane: PerUnit = 0.0
    decay_adaptation: Decay = 0.0
    adaptation: PerUnit = 0.0
    decay_synapse: Decay = 0.0


def lif_scan(
    y: Float[Tensor, "steps *units"],
    state: tuple[Float[Tensor, "*units"], ...],
    constants: NeuronConstants,
    restarts: Restarts = None,
    entering: State | None = None,
) -> tuple[Float[Tensor, "steps *units"], Float[Tensor, "steps *units"], State]:
    """Run `lif_step` over y from the state (v,); return (spikes, u, (v,)); arguments in the module's docstring.

    Raises ValueError for an unknown reset.

    >>> from snnlearn.functional import ArcTan
    >>> constants = NeuronConstants(0.5, 1.0, "soft", ArcTan())
    >>> spikes, u, (v,) = lif_scan(torch.full((2, 1), 0.75), (torch.zeros(1),), constants)
    >>> spikes.flatten(), u.flatten(), v
    (tensor([0., 1.]), tensor([-0.2500,  0.1250]), tensor([0.1250]))
    """
    decay, threshold, reset, _, initial, *_ = constants
    return _scan(
        lambda y_t, state, fire: lif_step(y_t, state[0], decay, threshold, reset, True, fire),
        y,
        state,
        constants,
        (initial,),
        restarts,
        entering,
    )


def alif_scan(
    y: Float[Tensor, "steps *units"],
    state: tuple[Float[Tensor, "*units"], ...],
    constants: NeuronConstants,
    restarts: Restarts = None,
    entering: State | None = None,
) -> tuple[Float[Tensor, "steps *units"], Float[Tensor, "steps *units"], State]:
    """Run `alif_step` over y from the state (v, b); return (spikes, u, (v, b)); arguments in the module's docstring.

    Raises ValueError for an unknown reset.

    >>> from snnlearn.functional import ArcTan
    >>> constants = NeuronConstants(0.5, 1.0, "soft", ArcTan(), decay_adaptation=0.5, adaptation=0.2)
    >>> alif_scan(torch.full((2, 1), 1.1), (torch.zeros(1), torch.zeros(1)), constants)[0].flatten()
    tensor([1., 0.])
    """
    decay, threshold, reset, _, initial, decay_adaptation, adaptation, _ = constants
    return _scan(
        lambda y_t, state, fire: alif_step(
            y_t, state[0], state[1], decay, decay_adaptation, adaptation, threshold, reset, True, fire
        ),
        y,
        state,
        constants,
        (initial, 0.0),
        restarts,
        entering,
    )


def cuba_lif_scan(
    y: Float[Tensor, "steps *units"],
    state: tuple[Float[Tensor, "*units"], ...],
    constants: NeuronConstants,
    restarts: Restarts = None,
    entering: State | None = None,
) -> tuple[Float[Tensor, "steps *units"], Float[Tensor, "steps *units"], State]:
    """Run `cuba_lif_step` over y from (current, v); return (spikes, u, (current, v)); the rest as for `lif_scan`.

    Raises ValueError for an unknown reset.

    >>> from snnlearn.functional import ArcTan
    >>> constants = NeuronConstants(0.5, 1.0, "soft", ArcTan(), decay_synapse=0.5)
    >>> cuba_lif_scan(torch.full((2, 1), 0.6), (torch.zeros(1), torch.zeros(1)), constants)[0].flatten()
    tensor([0., 1.])
    """
    decay, threshold, reset, _, initial, *_, decay_synapse = constants
    return _scan(
        lambda y_t, state, fire: cuba_lif_step(
            y_t, state[0], state[1], decay_synapse, decay, threshold, reset, True, fire
        ),
        y,
        state,
        constants,
        (0.0, initial),
        restarts,
        entering,
    )


def _scan(
    advance: Advance,
    y: Tensor,
    state: State,
    constants: NeuronConstants,
    initial: tuple[PerUnit, ...],
    restarts: Restarts,
    entering: State | None,
) -> tuple[Tensor, Tensor, State]:
    """Return the spikes, u and last state of `advance` over y; the state given is not written to."""
    check_reset(constants.reset)
    fresh = None if restarts is None else spread(restarts, y)
    begin = [False] * len(y) if restarts is None else restarts.any(1).tolist()
    dtype = torch.promote_types(y.dtype, state[0].dtype)
    spikes, u = torch.empty_like(y, dtype=dtype), torch.empty_like(y, dtype=dtype)
    with torch.no_grad():
        for t, y_t in enumerate(y):
            if fresh is not None and begin[t]:
                state = tuple(
                    torch.where(fresh[t], per_unit(start, value), value)
                    for start, value in zip(initial, state, strict=True)
                )
            if entering is not None:
                for kept, value in zip(entering, state, strict=True):
                    kept[t] = value
            firing = Firing(constants.surrogate)
            spikes[t], *after = advance(y_t, state, firing)
            assert firing.u is not None
            u[t] = firing.u
            state = tuple(flush_subnormals_(value) for value in after)
    return spikes, u, state


__all__ = ["NeuronConstants", "alif_scan", "cuba_lif_scan", "lif_scan"]
