"""The eligibility at the end of a chunk, E_K, and that of its last step: one pass, whatever the chunk's length.

The equations are those of `snnlearn.functional.chunk`. What goes on to the next chunk, E and behind it the values F of
a filter, are parts of one list; each becomes a weighted sum of the parts and of the outer products with the inputs.

**Cost.** E is B O I numbers for each hidden value, far more than fits a cache: it is read and written once, in blocks
of samples that do, and every row of it begins where a cache line does. A matrix product of the BLAS at hand ran 3.5
times slower on rows of 957 numbers that did not (66 against 18 ms for 64 x 256 x 957, 32 steps, one core of an EPYC).
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.captured import is_captured
from snnlearn.functional.chunk import Parts, Restarts, leak_powers, scan_chunk, spread, steps_that_last
from snnlearn.functional.dynamics import Jacobian, LeakTransition
from snnlearn.functional.trace import flush_subnormals_
from snnlearn.kernels import dispatch

LINE = 64
"""Bytes of a cache line, where each row of an eligibility begins."""

BLOCK = 2**21
"""Bytes of eligibility that are rolled at a time on the CPU, so that they are still in the cache when read again."""


def row_length(inputs: int, element_size: int) -> int:
    """Return the numbers of `element_size` bytes from one row of I inputs to the next: whole cache lines.

    >>> row_length(5, 4), row_length(17, 4)
    (16, 32)
    """
    each = max(1, LINE // element_size)
    return -(-inputs // each) * each


def empty_eligibility(
    parts: int, units: Sequence[int], inputs: int, like: Tensor, room: Tensor | None = None
) -> Float[Tensor, "parts *units inputs"]:
    """Return an eligibility [P, ..., O, I] that nobody has written to, each row at the start of a cache line.

    `room` is one of before whose memory may be written over: it is returned if it has the same form, since fresh
    memory costs more than filling it (62 MB: 51 ms with a first product into it, 18 without, one core of an EPYC).

    >>> empty_eligibility(1, (2, 3), 5, torch.zeros(1)).stride()
    (96, 48, 16, 1)
    """
    wide, shape = row_length(inputs, like.element_size()), (parts, *units, inputs)
    if room is not None and (room.shape, room.dtype, room.device) == (shape, like.dtype, like.device):
        assert room.stride()[-2:] == (wide, 1), "room was made by something else"
        return room
    return like.new_empty((parts, *units, wide))[..., :inputs]


def without_past(jacobian: Jacobian, restarts: Restarts) -> Jacobian:
    """Return the Jacobian with A_t = 0 and c_t = 0 where a row restarts before step t.

    >>> one = torch.ones(1, 1, 1)
    >>> step = Jacobian(one[None, None], one[None], one[None], one)
    >>> without_past(step, torch.tensor([[True]])).transition.flatten()
    tensor([0.])
    """
    if restarts is None:
        return jacobian
    kept = ~spread(restarts, jacobian.spike_input)
    return jacobian._replace(transition=jacobian.transition * kept, spike_state=jacobian.spike_state * kept)


def roll_weights(
    jacobian: Jacobian, filter: LeakTransition | None = None, restarts: Restarts = None
) -> tuple[Float[Tensor, "parts parts *units"], Float[Tensor, "parts steps *units"]]:
    """Return how the parts at the chunk's end depend on those that enter [P, P, ...] and on the inputs [P, K, ...].

    The parts are E, H of them, and the values of `filter` behind; for E it is A_K ... A_1 and A_K ... A_{t+1} p_t.

    >>> one = torch.ones(2, 1, 1)
    >>> product, weights = roll_weights(Jacobian(0.5 * one[None, None], one[None], 0.5 * one[None], one))
    >>> product.flatten(), weights.flatten()
    (tensor([0.2500]), tensor([0.5000, 1.0000]))
    """
    jacobian = without_past(jacobian, restarts)
    product, weights = _roll_hidden(jacobian)
    if filter is None:
        return product, weights
    hidden, values, units = len(weights), len(filter.drive), jacobian.spike_input
    power, drives = leak_powers(filter, len(units), units.dtype, units.device)
    whole = product.new_zeros((hidden + values, hidden + values, *units.shape[1:]))
    whole[:hidden, :hidden] = product
    whole[hidden:, hidden:] = power.reshape(values, values, *(1,) * (units.dim() - 1))
    lasting = None if restarts is None else spread(steps_that_last(restarts), units)
    if restarts is not None:
        whole[hidden:, hidden:] *= ~spread(restarts.any(0, keepdim=True), units)[0]
    rows = []
    for row, drive in enumerate(drives):
        signals = drive.reshape(-1, *(1,) * (units.dim() - 1)).expand_as(units)
        weighted = signals if lasting is None else signals * lasting
        received, whole[hidden + row, :hidden] = dispatch.run(scan_chunk, jacobian, weighted, restarts)
        rows.append(received)
    return whole, torch.cat([weights, torch.stack(rows)])


def _roll_hidden(jacobian: Jacobian) -> tuple[Tensor, Tensor]:
    """Return A_K ... A_1 [H, H, *units] and A_K ... A_{t+1} p_t [H, K, *units]."""
    hidden = len(jacobian.drive)
    weights = torch.empty_like(jacobian.drive)
    units = jacobian.spike_input[0]
    if hidden == 1:
        one = torch.ones_like(units)
        for t in range(weights.shape[1] - 1, -1, -1):
            torch.mul(one, jacobian.drive[0, t], out=weights[0, t])
            one = flush_subnormals_(one * jacobian.transition[0, 0, t])
        return one[None, None], weights
    identity = torch.eye(hidden, dtype=units.dtype, device=units.device)
    product = identity.reshape(hidden, hidden, *(1,) * units.dim()).expand(hidden, hidden, *units.shape)
    for t in range(weights.shape[1] - 1, -1, -1):
        weights[:, t] = (product * jacobian.drive[:, t]).sum(1)
        product = flush_subnormals_((product.unsqueeze(2) * jacobian.transition[:, :, t]).sum(1))
    return product, weights


def read_weights(
    jacobian: Jacobian, filter: LeakTransition | None = None, restarts: Restarts = None
) -> tuple[Float[Tensor, "parts *units"], Float[Tensor, "steps *units"]]:
    """Return how what meets the signal of the chunk's last step depends on the parts [P, ...] and the inputs [K, ...].

    That is ds/dW of the step, or the readout o . F of `filter`.

    >>> one = torch.ones(2, 1, 1)
    >>> product, weights = read_weights(Jacobian(0.5 * one[None, None], one[None], 0.5 * one[None], one))
    >>> product.flatten(), weights.flatten()
    (tensor([0.2500]), tensor([0.5000, 1.0000]))
    """
    if filter is not None:
        product, weights = roll_weights(jacobian, filter, restarts)
        readout = weights.new_tensor(filter.readout)
        values = len(readout)
        return torch.tensordot(readout, product[-values:], 1), torch.tensordot(readout, weights[-values:], 1)
    jacobian = without_past(jacobian, restarts)
    before = jacobian._replace(transition=jacobian.transition[:, :, :-1], drive=jacobian.drive[:, :-1])
    product, weights = _roll_hidden(before)
    last = jacobian.spike_state[:, -1]
    by_step = torch.cat([(last.unsqueeze(1) * weights).sum(0), jacobian.spike_input[-1:]])
    return (last.unsqueeze(1) * product).sum(0), by_step


def roll_eligibility(
    eligibility: Parts | None,
    product: Float[Tensor, "parts parts *units"],
    weights: Float[Tensor, "parts steps *units"],
    x: Float[Tensor, "steps *leading inputs"],
    room: Tensor | None = None,
) -> Parts:
    """Return the parts [..., O, I] at the chunk's end, for what `roll_weights` gave.

    `eligibility` the parts that enter, which are written over and returned, or None for zero, when they are a tensor
    [P, ..., O, I], in the memory of `room` if that may be written over (`empty_eligibility`); parts [..., 1, I], the
    same for all units, stay as they are: `roll_leak_trace` moves them.

    >>> one = torch.ones(2, 1, 1)
    >>> step = Jacobian(0.5 * one[None, None], one[None], 0.5 * one[None], one)
    >>> roll_eligibility(None, *roll_weights(step), torch.ones(2, 1, 1))[0].flatten()
    tensor([1.5000])
    """
    rows = x.flatten(1, -2).transpose(0, 1)
    left = weights.flatten(2, -2).permute(0, 2, 3, 1)
    if eligibility is None:
        parts = empty_eligibility(len(weights), weights.shape[2:], x.shape[-1], weights, room)
        for part, by_step in zip(parts, left, strict=True):
            flush_subnormals_(part.flatten(0, -3).baddbmm_(by_step, rows, beta=0))
        return parts
    moved = [number for number, part in enumerate(eligibility) if part.shape[-2] == weights.shape[-1]]
    feeds = feeding(product)
    flat = [part.flatten(0, -3) for part in eligibility]
    factors = product.flatten(2, -2).unsqueeze(-1)
    for block in _blocks(flat):
        for row, part in carried_([part[block] for part in flat], moved, feeds, factors[:, :, block]):
            flush_subnormals_(part.baddbmm_(left[row, block], rows[block]))
    return eligibility


def feeding(product: Float[Tensor, "parts parts *units"]) -> list[list[bool]]:
    """Return whether part i at the end depends on part j at the entry for any unit; yes where asking would wait.

    >>> feeding(torch.tensor([[[0.5], [0.0]], [[1.0], [0.9]]]))
    [[True, False], [True, True]]
    """
    if product.device.type != "cpu" or is_captured():
        return [[True] * len(product)] * len(product)
    return [[bool(entry.any()) for entry in row] for row in product]


def _blocks(parts: Sequence[Tensor]) -> Iterator[slice]:
    """Yield slices of the rows that fit the cache, all of them at once on a device."""
    rows = len(parts[0])
    each = sum(part.stride(0) * part.element_size() for part in parts)
    count = max(1, BLOCK // max(1, each)) if parts[0].device.type == "cpu" else max(1, rows)
    for begin in range(0, rows, count):
        yield slice(begin, begin + count)


def carried_(
    parts: Sequence[Tensor],
    moved: Sequence[int],
    feeds: Sequence[Sequence[bool]],
    factors: Float[Tensor, "parts parts rows outputs 1"],
) -> Iterator[tuple[int, Tensor]]:
    """Multiply parts [N, O, I] by A_K ... A_1 in place and yield each with its number: those that are `moved`.

    They come last part first, since a filter reads the eligibility that entered; `feeds` as `feeding` tells it.

    >>> part = torch.ones(1, 1, 2)
    >>> list(carried_([part], [0], [[True]], torch.full((1, 1, 1, 1, 1), 0.5)))
    [(0, tensor([[[0.5000, 0.5000]]]))]
    """
    before = list(parts)
    for column in moved:
        if any(feeds[row][column] for row in moved if row < column):
            before[column] = parts[column].clone()
    for row in reversed(moved):
        part = parts[row].mul_(factors[row, row])
        for column, other in enumerate(before):
            if column != row and feeds[row][column]:
                part.addcmul_(factors[row, column], other)
        yield row, part


def read_norm(
    eligibility: Parts | None,
    product: Float[Tensor, "parts *units"],
    weights: Float[Tensor, "steps *units"],
    x: Float[Tensor, "steps *leading inputs"],
) -> float:
    """Return the Euclidean norm of what `read_weights` describes, for the parts that enter the chunk.

    At the start of a sequence (`eligibility` None) it is that of a sum of outer products, found by K by K products.

    >>> read_norm(None, torch.zeros(1, 1, 1), torch.ones(2, 1, 1), torch.tensor([[[3.0]], [[1.0]]]))
    4.0
    """
    factor, rows = weights.flatten(1, -2), x.flatten(1, -2)
    if eligibility is None:
        left = torch.einsum("kno,lno->nkl", factor, factor)
        return float((left * torch.einsum("kni,lni->nkl", rows, rows)).sum().clamp(min=0).sqrt())
    flat, by_part = [part.flatten(0, -3) for part in eligibility], product.flatten(1, -2).unsqueeze(-1)
    left, right = factor.permute(1, 2, 0), rows.transpose(0, 1)
    total, room = 0.0, None
    for block in _blocks(flat):
        shape = (*left[block].shape[:2], rows.shape[-1])
        if room is None or room.shape != shape:
            room = empty_eligibility(1, shape[:2], shape[2], weights)[0]
        room.baddbmm_(left[block], right[block], beta=0)
        for factors, part in zip(by_part, flat, strict=True):
            room.addcmul_(factors[block], part[block])
        total += float(room.norm()) ** 2
    return float(total**0.5)


__all__ = [
    "carried_",
    "empty_eligibility",
    "feeding",
    "read_norm",
    "read_weights",
    "roll_eligibility",
    "roll_weights",
    "row_length",
    "without_past",
]
