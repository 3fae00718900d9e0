"""A chunk of steps at once: the numbers of the step-by-step eligibility, which is touched once per chunk.

**The recurrence.** A unit with hidden values h_t = f(h_{t-1}, y_t), y_t = W x_t + b, and the `Jacobian` of each step
(A = dh_t/dh_{t-1}, p = dh_t/dy_t, c = ds_t/dh_{t-1}, r = ds_t/dy_t) has the eligibility E = dh/dW, which follows
E_t = A_t E_{t-1} + p_t (x) x_t, and a signal u_t = dL_t/ds_t meets Q_t = c_t E_{t-1} + r_t (x) x_t. Weights do not
change within a chunk, so its K steps are one linear expression in the eligibility E_0 that enters and in the inputs.
Sum u_t Q_t over t and write each E_{t-1} out; what multiplies x_t is

    d_t = r_t u_t + p_t R_t            R_{t-1} = c_t u_t + A_t^T R_t ,   R_K = 0

since R_t collects everything that h_t still does to the losses of the chunk: this is a scan backwards in time over the
units alone (B x O), not over synapses. What multiplies E_0 is R_0. So

    dL/dW += sum_t d_t (x) x_t + R_0 . E_0          one product over K B rows, one pass over E_0
    E_K    = (A_K ... A_1) E_0 + sum_t (A_K ... A_{t+1} p_t) (x) x_t      one batched product, one pass over E

**A filter** F_t = T F_{t-1} + g Q_t (`LeakTransition`: transition T, drive g, readout o), of which o . F_t meets the
signal, reads Q_t and nothing of the unit, so it is turned around first: with G_t = o u_t + T^T G_{t+1}, g . G_t meets
Q_t in place of u_t, and T^T G_1 meets F_0. The same scan tells how the filter's end depends on E_0 and on the inputs:
F_K = T^K F_0 + sum_t T^(K-t) g Q_t, so that row i of it is the scan above for the "signals" (T^(K-t) g)_i, with the
weights of x_t for d_t and those of E_0 for R_0 (`snnlearn.functional.chunk_roll`).

**A constant transition** (a leak) needs no unit at all: e_t = T e_{t-1} + g x_t, of which a_t = o . e_t meets
d_t = dL/dy_t, gives

    sum_t d_t (x) a_t = sum_t (g . G_t) (x) x_t + (T^T G_1) . e_0       G_t = o d_t + T^T G_{t+1}

so that the trace of the inputs inside a chunk is never formed either; x_t may be sparse.

**A row that restarts** before step t has A_t = 0 and c_t = 0 there: its past is another sequence's.

**A step without a loss** has u_t = 0; a chunk without any needs no scan, only the roll to E_K.

K = 1 is `snnlearn.functional.synaptic` and `snnlearn.functional.trace`; a chunk that is the whole sequence is BPTT
within the layer and needs no E_0 at all; in between the numbers are the same. Baronig et al. 2025 (HYPR),
doi:10.48550/arXiv.2506.14464.
"""

import functools
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from snnlearn.functional.dynamics import Jacobian, LeakTransition
from snnlearn.functional.leak_block import pays_as_block, run_leak
from snnlearn.functional.side_by_side import SideBySide
from snnlearn.functional.trace import flush_subnormals_
from snnlearn.functional.weighted_map import rows_of

Restarts = Bool[Tensor, "steps batch"] | None
"""Which rows begin a new sequence before which step of the chunk; None for none."""

Parts = Sequence[Tensor] | Tensor
"""An eligibility: one tensor for each hidden value, [..., O, I] each."""


def rows_at(restarts: Restarts, t: int) -> Bool[Tensor, " batch"] | None:
    """Return the rows [B] that restart before step t, None for none.

    >>> rows_at(torch.tensor([[False, False], [True, False]]), 0) is None
    True
    """
    return None if restarts is None or not bool(restarts[t].any()) else restarts[t]


def spread(rows: Bool[Tensor, "steps batch"], like: Float[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Return a mask [K, B] with dimensions of size 1 behind it, to meet values [K, B, ...].

    >>> spread(torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 3, 4, 5)).shape
    torch.Size([2, 3, 1, 1])
    """
    return rows.to(like.device).reshape(*rows.shape, *(1,) * (like.dim() - 2))


def scan_chunk(
    jacobian: Jacobian, signals: Float[Tensor, "steps *units"], restarts: Restarts = None
) -> tuple[Float[Tensor, "steps *units"], Float[Tensor, "hidden *units"]]:
    """Return (d, R_0): what meets the input of each step [K, B, ..., O], and the eligibility before it [H, B, ..., O].

    `jacobian` that of all steps, with the steps K in front of the units: transition [H, H, K, B, ...]; `signals` u
    [K, B, ..., O]. Raises ValueError when they are not as many.

    >>> one = torch.ones(2, 1, 1)
    >>> received, entering = scan_chunk(Jacobian(0.5 * one[None, None], one[None], 0.5 * one[None], one), one)
    >>> received.flatten(), entering.flatten()
    (tensor([1.5000, 1.0000]), tensor([0.7500]))
    """
    steps = jacobian.drive.shape[1]
    if steps != len(signals):
        raise ValueError(f"{steps} Jacobians for {len(signals)} signals: a chunk has one of each per step")
    fresh = None if restarts is None else spread(restarts, signals)
    after = torch.zeros_like(jacobian.drive[:, 0])
    received = jacobian.spike_input * signals
    for t in range(steps - 1, -1, -1):
        for drive, row in zip(jacobian.drive[:, t], after, strict=True):
            received[t].addcmul_(drive, row)
        after = _back(jacobian.transition[:, :, t], after).addcmul_(jacobian.spike_state[:, t], signals[t])
        flush_subnormals_(after if fresh is None else after.masked_fill_(fresh[t], 0))
    return received, after


def _back(transition: Tensor, after: Tensor) -> Tensor:
    """Return A^T R [H, *units] for A [H, H, *units] and R [H, *units]."""
    if len(after) == 1:
        return transition[0] * after
    return (transition * after.unsqueeze(1)).sum(0)


def fold_chunk(
    received: Float[Tensor, "steps *units"],
    entering: Float[Tensor, "hidden *units"],
    x: Float[Tensor, "steps *leading inputs"] | SideBySide,
    eligibility: Parts | None,
    product: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Float[Tensor, "outputs inputs"]:
    """Return the chunk's share of dL/dW [O, I] for what `scan_chunk` gave.

    `x` [K, ..., I], joined or side by side, with a one behind it for a bias; `eligibility` E_0, a tensor [..., O, I]
    for each hidden value, or [..., 1, I] where it is the same for all units; None at the start of a sequence.
    `product(d, x)` sums d (x) x over all rows, in the dtype of both unless it is given.

    >>> fold_chunk(torch.ones(1, 1, 1), torch.ones(1, 1, 1), torch.ones(1, 1, 2), [torch.ones(1, 1, 2)])
    tensor([[2., 2.]])
    """
    beside = x if isinstance(x, SideBySide) else SideBySide((x,))
    total = beside.summed_products(received, product or (lambda d, part: rows_of(d).T @ rows_of(part)))
    for row, part in zip(entering, () if eligibility is None else eligibility, strict=eligibility is not None):
        if part.shape[-2] == 1 < row.shape[-1]:
            total.addmm_(rows_of(row).T, rows_of(part.squeeze(-2)))
        else:
            total += torch.einsum("no,noi->oi", rows_of(row), part.flatten(0, -3))
    return total


def scan_leak(
    signals: Float[Tensor, "steps batch *units"], leak: LeakTransition, restarts: Restarts = None
) -> tuple[Float[Tensor, "steps batch *units"], Float[Tensor, "hidden batch *units"]]:
    """Return (g . G_t [K, B, ...], T^T G_1 [H, B, ...]) for d_t = dL/dy_t under a constant transition; see the module.

    >>> from snnlearn.functional.lif import lif_leak_transition
    >>> received, entering = scan_leak(torch.ones(2, 1, 1), lif_leak_transition(0.5))
    >>> received.flatten(), entering.flatten()
    (tensor([1.5000, 1.0000]), tensor([0.7500]))
    """
    if restarts is None and pays_as_block(signals):
        return run_leak(signals, leak, backwards=True)
    fresh = None if restarts is None else spread(restarts, signals)
    hidden = len(leak.drive)
    after = signals.new_zeros((hidden, *signals.shape[1:]))
    received = torch.empty_like(signals)
    if leak.drive == leak.readout == (1.0,):
        (after_one,), decay = after, leak.transition[0][0]
        for t in range(len(signals) - 1, -1, -1):
            torch.add(signals[t], after_one, out=received[t])
            after_one = flush_subnormals_(received[t] * decay)
            if fresh is not None:
                after_one.masked_fill_(fresh[t], 0)
        return received, after_one[None]
    for t in range(len(signals) - 1, -1, -1):
        gathered = [torch.add(after[i], signals[t], alpha=o) if o else after[i] for i, o in enumerate(leak.readout)]
        received[t] = _weighted(leak.drive, gathered)
        columns = zip(*leak.transition, strict=True)
        after = flush_subnormals_(torch.stack([_weighted(column, gathered) for column in columns]))
        if fresh is not None:
            after.masked_fill_(fresh[t], 0)
    return received, after


def _weighted(weights: tuple[float, ...], values: list[Tensor]) -> Tensor:
    """Return the sum of values times plain numbers, as a new tensor."""
    total = values[0] * weights[0]
    for weight, value in zip(weights[1:], values[1:], strict=True):
        if weight:
            total.add_(value, alpha=weight)
    return total


def roll_leak_trace(
    traces: Float[Tensor, "hidden batch *inputs"] | None,
    x: Float[Tensor, "steps batch *inputs"],
    leak: LeakTransition,
    restarts: Restarts = None,
) -> Float[Tensor, "hidden batch *inputs"]:
    """Return e_K [H, B, ...] at the end of a chunk from e_0, None for zero, and the inputs x [K, B, ...] of its steps.

    >>> from snnlearn.functional.lif import lif_leak_transition
    >>> roll_leak_trace(None, torch.ones(2, 1, 1), lif_leak_transition(0.5)).flatten()
    tensor([1.5000])
    """
    power, by_step = leak_powers(leak, len(x), x.dtype, x.device)
    if restarts is None:
        rolled = (by_step @ x.flatten(1)).unflatten(1, x.shape[1:])
    else:
        lasting = steps_that_last(restarts)
        rolled = torch.stack([(row[:, None] * lasting).to(x) for row in by_step])
        rolled = torch.einsum("hkb,kb...->hb...", rolled, x)
    return flush_subnormals_(rolled if traces is None else rolled + rolled_entry(traces, power, restarts))


@functools.lru_cache(maxsize=256)  # so that a device gets them once
def leak_powers(
    leak: LeakTransition, steps: int, dtype: torch.dtype = torch.float64, device: torch.device | None = None
) -> tuple[Float[Tensor, "hidden hidden"], Float[Tensor, "hidden steps"]]:
    """Return T^K and T^(K-t) g for the steps t = 1..K, computed in float64; shared, so never written to.

    >>> from snnlearn.functional.lif import lif_leak_transition
    >>> [part.flatten().tolist() for part in leak_powers(lif_leak_transition(0.5), 2)]
    [[0.25], [0.5, 1.0]]
    """
    with torch.inference_mode(False):
        matrix = torch.tensor(leak.transition, dtype=torch.float64)
        column = torch.tensor(leak.drive, dtype=torch.float64)
        power, weights = torch.eye(len(column), dtype=torch.float64), []
        for _ in range(steps):
            weights.append(power @ column)
            power = power @ matrix
        return power.to(device, dtype), torch.stack(weights[::-1], dim=1).to(device, dtype)


def steps_that_last(restarts: Bool[Tensor, "steps batch"]) -> Bool[Tensor, "steps batch"]:
    """Return the steps of each row that still count at the chunk's end: the row does not restart after them.

    >>> steps_that_last(torch.tensor([[False], [True], [False]])).flatten()
    tensor([False,  True,  True])
    """
    return restarts.flip(0).cumsum(0).flip(0) - restarts.long() == 0


def rolled_entry(
    traces: Float[Tensor, "hidden batch *inputs"], power: Float[Tensor, "hidden hidden"], restarts: Restarts = None
) -> Float[Tensor, "hidden batch *inputs"]:
    """Return T^K e_0, zero in the rows that restart, for the trace e_0 that enters a chunk.

    >>> rolled_entry(torch.ones(1, 1, 1), torch.tensor([[0.25]])).flatten()
    tensor([0.2500])
    """
    entry = torch.einsum("ij,j...->i...", power.to(traces), traces)
    if restarts is not None:
        entry = entry.masked_fill(spread(restarts.any(0, keepdim=True), entry[:1])[0], 0)
    return entry


__all__ = [
    "Parts",
    "Restarts",
    "fold_chunk",
    "leak_powers",
    "roll_leak_trace",
    "rolled_entry",
    "rows_at",
    "scan_chunk",
    "scan_leak",
    "spread",
    "steps_that_last",
]
