"""K steps of a spiking neuron at once, the past of the chunk a constant: the references of the fused scans.

A scan is the neuron's own step, K times, with the state flushed after each (`snnlearn.functional.trace`); the equations
stay in `lif`, `alif` and `cuba_lif`. It runs outside autograd: with the past cut, the only path back is

    dL/dy_t = psi(u_t) dL/ds_t         u_t = membrane - threshold, as in `snnlearn.functional.cut_step`

so a scan returns u and `cut_gradient` turns signals into gradients. In each scan `y` [K, *units] are the inputs, the
state [*units] is in the dtype it is kept in (float32 for inputs of low precision), a decay, threshold or adaptation is
one number or a tensor that broadcasts over the units, `reset` is one of soft, hard, none, and a row that `restarts`
[K, B] marks begins anew before that step: its membrane at `initial_membrane`, the other value at zero. `entering`, a
tensor [K, *units] for each hidden value or None, is written with the state that meets each step. A scan returns
(spikes [K, *units], u [K, *units], the hidden values after the last step), all in the dtype of the state.
"""

from collections.abc import Callable

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


def lif_scan(
    y: Float[Tensor, "steps *units"],
    v: Float[Tensor, "*units"],
    decay: Decay,
    threshold: PerUnit,
    reset: str,
    surrogate: Surrogate,
    restarts: Restarts = None,
    initial_membrane: PerUnit = 0.0,
    entering: State | None = None,
) -> tuple[Float[Tensor, "steps *units"], Float[Tensor, "steps *units"], State]:
    """Run `lif_step` over y; return (spikes, u, (v,)); arguments in the module's docstring.

    Raises ValueError for an unknown reset.

    >>> from snnlearn.functional import ArcTan
    >>> spikes, u, (v,) = lif_scan(torch.full((2, 1), 0.75), torch.zeros(1), 0.5, 1.0, "soft", ArcTan())
    >>> spikes.flatten(), u.flatten(), v
    (tensor([0., 1.]), tensor([-0.2500,  0.1250]), tensor([0.1250]))
    """
    check_reset(reset)

    return _scan(
        lambda y_t, state, fire: lif_step(y_t, state[0], decay, threshold, reset, True, fire),
        y,
        (v,),
        surrogate,
        restarts,
        (initial_membrane,),
        entering,
    )


def alif_scan(
    y: Float[Tensor, "steps *units"],
    v: Float[Tensor, "*units"],
    b: Float[Tensor, "*units"],
    decay: Decay,
    decay_adaptation: Decay,
    adaptation: PerUnit,
    threshold: PerUnit,
    reset: str,
    surrogate: Surrogate,
    restarts: Restarts = None,
    initial_membrane: PerUnit = 0.0,
    entering: State | None = None,
) -> tuple[Float[Tensor, "steps *units"], Float[Tensor, "steps *units"], State]:
    """Run `alif_step` over y; return (spikes, u, (v, b)); arguments in the module's docstring.

    Raises ValueError for an unknown reset.

    >>> from snnlearn.functional import ArcTan
    >>> zero = torch.zeros(1)
    >>> alif_scan(torch.full((2, 1), 1.1), zero, zero, 0.5, 0.5, 0.2, 1.0, "soft", ArcTan())[0].flatten()
    tensor([1., 0.])
    """
    check_reset(reset)

    return _scan(
        lambda y_t, state, fire: alif_step(
            y_t, state[0], state[1], decay, decay_adaptation, adaptation, threshold, reset, True, fire
        ),
        y,
        (v, b),
        surrogate,
        restarts,
        (initial_membrane, 0.0),
        entering,
    )


def cuba_lif_scan(
    y: Float[Tensor, "steps *units"],
    current: Float[Tensor, "*units"],
    v: Float[Tensor, "*units"],
    decay_synapse: Decay,
    decay: Decay,
    threshold: PerUnit,
    reset: str,
    surrogate: Surrogate,
    restarts: Restarts = None,
    initial_membrane: PerUnit = 0.0,
    entering: State | None = None,
) -> tuple[Float[Tensor, "steps *units"], Float[Tensor, "steps *units"], State]:
    """Run `cuba_lif_step` over y; return (spikes, u, (current, v)); arguments in the module's docstring.

    Raises ValueError for an unknown reset.

    >>> from snnlearn.functional import ArcTan
    >>> zero = torch.zeros(1)
    >>> cuba_lif_scan(torch.full((2, 1), 0.6), zero, zero, 0.5, 0.5, 1.0, "soft", ArcTan())[0].flatten()
    tensor([0., 1.])
    """
    check_reset(reset)

    return _scan(
        lambda y_t, state, fire: cuba_lif_step(
            y_t, state[0], state[1], decay_synapse, decay, threshold, reset, True, fire
        ),
        y,
        (current, v),
        surrogate,
        restarts,
        (0.0, initial_membrane),
        entering,
    )


def _scan(
    advance: Advance,
    y: Tensor,
    state: State,
    surrogate: Surrogate,
    restarts: Restarts,
    initial: tuple[PerUnit, ...],
    entering: State | None,
) -> tuple[Tensor, Tensor, State]:
    """Return the spikes, u and last state of `advance` over y; the state given is not written to."""
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
            firing = Firing(surrogate)
            spikes[t], *after = advance(y_t, state, firing)
            assert firing.u is not None
            u[t] = firing.u
            state = tuple(flush_subnormals_(value) for value in after)
    return spikes, u, state


__all__ = ["alif_scan", "cuba_lif_scan", "lif_scan"]
