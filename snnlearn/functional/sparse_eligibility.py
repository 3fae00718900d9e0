"""The eligibility of synapses over a chunk of sparse events: what `snnlearn.functional.chunk` does, event by event.

Of the chunk's expressions

    dL/dW += sum_t d_t (x) x_t + R_0 . E_0
    E_K    = (A_K ... A_1) E_0 + sum_t w_t (x) x_t        w_t = A_K ... A_{t+1} p_t

the sums over t cost O products per event in place of O I per step; the passes over E_0 stay as they are. An event of
sample b on channel i at step t adds one row of numbers w_tb [O] at the place (b, i), so E [B, O, I] is kept with the
units next to each other in memory, as the transposed view of [B, I, O], and all events of a chunk are one product of
sparse rows [B I, K B] with w [K B, O]. Where they touch few places, those alone are made and added.

A bias is a weight from a constant one: its place (b, I) gets sum_t w_tb.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from snnlearn.functional.chunk import Parts, Restarts, roll_leak_trace
from snnlearn.functional.chunk_roll import carried_, feeding
from snnlearn.functional.dynamics import LeakTransition
from snnlearn.functional.sparse_map import add_weight_gradient_, roll_sparse_trace, row_numbers, sparse_rows
from snnlearn.functional.trace import flush_subnormals_

FEW_PLACES = 0.15
"""Share of the places (b, i) that events touch, below which those are made apart and added: the product of all places
passes over E once more. For 32 x 2312 x 512 on one core: 10 against 22 ms at 9 %, 137 against 21 ms at 48 %."""


class Places(NamedTuple):
    """Where the events of a chunk fall: `place` b I' + i [P] of those that any touches, ascending, and their `rows`.

    `rows` [P, K B] sparse: the events of each place, by the step and sample that they belong to.
    """

    place: Int64[Tensor, " places"]
    rows: Tensor


def by_input(part: Float[Tensor, "batch outputs inputs"]) -> Float[Tensor, "batch inputs outputs"]:
    """Return E [B, O, I] turned around, [B, I, O].

    >>> by_input(torch.zeros(1, 2, 3)).shape
    torch.Size([1, 3, 2])
    """
    return part.transpose(-1, -2)


def laid_by_input(values: Float[Tensor, "hidden batch outputs inputs"]) -> Float[Tensor, "hidden batch outputs inputs"]:
    """Return the same numbers with the units next to each other in memory; the tensor itself where they already are.

    >>> laid_by_input(torch.zeros(1, 1, 2, 3)).stride()
    (6, 6, 1, 2)
    """
    return values.transpose(-1, -2).contiguous().transpose(-1, -2)


def places_of(x: Tensor, batch: int, inputs: int) -> Places:
    """Return the places that the events of sparse rows x [K B, I] touch, of `inputs` I' places a sample.

    >>> x = sparse_rows([0, 1, 2], [1, 1], [1.0, 2.0], 2)
    >>> places_of(x, 1, 2).place, places_of(x, 1, 2).rows.to_dense()
    (tensor([1]), tensor([[1., 2.]]))
    """
    rows = row_numbers(x)
    place, order = torch.sort(rows % batch * inputs + x.col_indices())
    touched, count = torch.unique_consecutive(place, return_counts=True)
    ends = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return Places(touched, sparse_rows(ends, rows[order], x.values()[order], len(x)))


def fold_sparse_chunk(
    received: Float[Tensor, "steps batch outputs"],
    entering: Float[Tensor, "hidden batch outputs"],
    x: Tensor,
    eligibility: Parts | None,
    has_one: bool,
) -> Float[Tensor, "outputs inputs"]:
    """Return what `fold_chunk` does for sparse rows x [K B, I], with a column for the bias behind if `has_one`.

    `eligibility` E_0, a tensor [B, O, I'] for each hidden value, or [B, 1, I'] the same for all units, or None.

    >>> x = sparse_rows([0, 1], [1], [3.0], 2)
    >>> fold_sparse_chunk(torch.ones(1, 1, 1), torch.ones(1, 1, 1), x, [torch.ones(1, 1, 3)], True)
    tensor([[1., 4., 2.]])
    """
    d, inputs = received.flatten(0, 1), x.shape[1]
    total = d.new_zeros((inputs + has_one, d.shape[1]))
    add_weight_gradient_(total[:inputs], d, x)
    if has_one:
        total[-1] = d.sum(0)
    for row, part in zip(entering, () if eligibility is None else eligibility, strict=eligibility is not None):
        if part.shape[-2] == 1 < row.shape[-1]:
            total.addmm_(part.squeeze(-2).T, row)
        else:
            for of_sample, factor in zip(by_input(part), row, strict=True):
                total.addcmul_(of_sample, factor)
    return total.T


def sum_of_outer(
    weights: Float[Tensor, "hidden steps batch outputs"], x: Tensor, has_one: bool
) -> Float[Tensor, "hidden batch outputs inputs"]:
    """Return sum_t w_t (x) x_t, laid by input, for sparse rows x [K B, I], the one of a bias behind if `has_one`.

    >>> sum_of_outer(torch.ones(1, 2, 1, 1), sparse_rows([0, 1, 2], [0, 0], [1.0, 3.0], 1), True)
    tensor([[[[4., 2.]]]])
    """
    hidden, _, batch, outputs = weights.shape
    made = weights.new_zeros((hidden, batch, x.shape[1] + has_one, outputs)).transpose(-1, -2)
    _add_chunk_(list(made), weights, x, has_one)
    return made


def roll_sparse_eligibility(
    eligibility: Parts | None,
    product: Float[Tensor, "parts parts batch outputs"],
    weights: Float[Tensor, "parts steps batch outputs"],
    x: Tensor,
    has_one: bool,
) -> Parts:
    """Return what `roll_eligibility` does, for sparse rows x [K B, I] as `sum_of_outer` takes them.

    `eligibility` the parts [B, O, I'] that enter, laid by input (`laid_by_input`; RuntimeError otherwise), which are
    written over and returned; None for zero. A part [B, 1, I'], the same for all units, stays as it is.

    >>> one, x = torch.ones(1, 1, 1, 1), sparse_rows([0, 1, 2], [0, 0], [1.0, 3.0], 1)
    >>> roll_sparse_eligibility([torch.ones(1, 1, 1)], 0.5 * one, torch.ones(1, 2, 1, 1), x, False)
    [tensor([[[4.5000]]])]
    """
    if eligibility is None:
        return sum_of_outer(weights, x, has_one)
    moved = [row for row, part in enumerate(eligibility) if part.shape[-2] == product.shape[-1]]
    feeds, factors = feeding(product), product.unsqueeze(-1)
    for sample in range(product.shape[2]):  # one at a time, in the cache
        here = slice(sample, sample + 1)
        for _, part in carried_([part[here] for part in eligibility], moved, feeds, factors[:, :, here]):
            flush_subnormals_(part)
    _add_chunk_([eligibility[row] for row in moved], weights[moved], x, has_one)
    return eligibility


def roll_sparse_inputs(
    traces: Float[Tensor, "hidden batch inputs"] | None,
    x: Tensor,
    steps: int,
    leak: LeakTransition,
    restarts: Restarts,
    has_one: bool,
) -> Float[Tensor, "hidden batch inputs"]:
    """Return what `roll_sparse_trace` does, with the trace of a constant one behind if `has_one`.

    >>> from snnlearn.functional.lif import lif_leak_transition
    >>> x = sparse_rows([0, 1, 2], [0, 0], [3.0, 1.0], 1)
    >>> roll_sparse_inputs(None, x, 2, lif_leak_transition(0.5), None, True)
    tensor([[[2.5000, 1.5000]]])
    """
    inputs = x.shape[1]
    rolled = roll_sparse_trace(None if traces is None else traces[..., :inputs], x, steps, leak, restarts)
    if not has_one:
        return rolled
    ones = rolled.new_ones((steps, rolled.shape[1], 1))
    of_one = roll_leak_trace(None if traces is None else traces[..., inputs:], ones, leak, restarts)
    return torch.cat([rolled, of_one], dim=-1)


def _add_chunk_(parts: list[Tensor], weights: Tensor, x: Tensor, has_one: bool) -> None:
    places = places_of(x, weights.shape[2], x.shape[1] + has_one)
    for part, of_steps in zip(parts, weights, strict=True):
        if len(places.place):
            _add_events_(part, places, of_steps.flatten(0, 1))
        if has_one:
            part[..., -1] += of_steps.sum(0)


def _add_events_(part: Tensor, places: Places, weights: Tensor) -> None:
    """Add the outer products of a chunk's events, for w [K B, O], to E [B, O, I']."""
    flat = by_input(part).view(-1, part.shape[-2])
    rows = places.rows.to(part.dtype)
    if len(places.place) < FEW_PLACES * len(flat):
        flat.index_add_(0, places.place, torch.mm(rows, weights.to(part.dtype)))
        return
    ends = rows.crow_indices()
    all_ends = ends.new_zeros(len(flat) + 1)
    all_ends[places.place + 1] = ends.diff()
    flat.addmm_(sparse_rows(all_ends.cumsum(0), rows.col_indices(), rows.values(), rows.shape[1]), weights)


def read_sparse_norm(
    eligibility: Parts | None,
    product: Float[Tensor, "hidden batch outputs"],
    weights: Float[Tensor, "steps batch outputs"],
    x: Tensor,
    has_one: bool,
) -> float:
    """Return what `read_norm` does for sparse rows x [K B, I], with a column for the bias behind if `has_one`.

    It goes sample by sample, so that ds/dW of one of them alone is ever formed.

    >>> x = sparse_rows([0, 1, 2], [0, 0], [3.0, 1.0], 1)
    >>> read_sparse_norm(None, torch.zeros(1, 1, 1), torch.ones(2, 1, 1), x, False)
    4.0
    """
    _, batch, outputs = weights.shape
    inputs = x.shape[1] + has_one
    place, rows = places_of(x, batch, inputs)
    bounds = torch.searchsorted(place, torch.arange(batch + 1, device=place.device) * inputs).tolist()
    ends, columns, values = rows.crow_indices(), rows.col_indices(), rows.values().to(weights.dtype)
    flat, ones, squares = weights.flatten(0, 1), weights.sum(0), 0.0
    for sample, (first, last) in enumerate(pairwise(bounds)):
        begin, end = int(ends[first]), int(ends[last])
        read = weights.new_zeros((0, outputs))
        if end > begin:
            read = sparse_rows(ends[first : last + 1] - begin, columns[begin:end], values[begin:end], len(flat)) @ flat
        if eligibility is not None:
            whole = weights.new_zeros((inputs, outputs))
            for factor, part in zip(product, eligibility, strict=True):
                whole.addcmul_(part[sample].T, factor[sample])
            read = whole.index_add_(0, place[first:last] - sample * inputs, read)
        if has_one:
            bias = ones[sample] if eligibility is None else read[-1] + ones[sample]
            squares += float(bias.square().sum())
            read = read if eligibility is None else read[:-1]
        squares += float(read.square().sum())
    return float(squares**0.5)


__all__ = [
    "FEW_PLACES",
    "Places",
    "by_input",
    "fold_sparse_chunk",
    "laid_by_input",
    "places_of",
    "read_sparse_norm",
    "roll_sparse_eligibility",
    "roll_sparse_inputs",
    "sum_of_outer",
]
