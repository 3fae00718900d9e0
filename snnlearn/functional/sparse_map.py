"""The product of sparse inputs with weights, its weight gradient and its trace, without the zeros ever being stored.

Rows of events are a `torch.sparse_csr_tensor` X [N, I]: a step of a batch has N = B rows, a chunk K B, time first.

    value      Y = X W^T + b              for each event, one row of W^T is added to one row of Y
    weight     dL/dW = D^T X              for each event, one row of D is added to one column of dL/dW
    trace      e_K = T^K e_0 + sum_t w_t x_t,   w_t = T^(K-t) g         for each event, one number is added

so that the work is that of the events alone, N I density O products in place of N I O. The two gradients of a chunk
meet x_t and not its trace, which is dense (`snnlearn.functional.chunk`), so they stay sparse in a chunk of any length.
Sums run in another order than in the dense form: the numbers agree to rounding.
"""

import warnings
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from snnlearn.functional.chunk import Restarts, leak_powers, rolled_entry, steps_that_last
from snnlearn.functional.dynamics import LeakTransition
from snnlearn.functional.eligibility import refuse_second_order
from snnlearn.functional.trace import flush_subnormals_
from snnlearn.functional.weighted_map import Dense

DENSE_ABOVE = 0.08
FEW_ROWS = 32
"""Where both products of a layer, value and weight gradient, are as fast dense as sparse on a CPU: for many rows at a
density of DENSE_ABOVE; for hardly any event at FEW_ROWS rows, since the sparse ones turn all the weights around first.
Measured by `benchmarks/sparse_events.py --sweep` for 2312 -> 512 in float32 on one idle core, the dense side made from
events as the block does it: sparse took of dense

    rows       0.5 %     1 %     2 %     5 %    10 %
     128        0.40    0.56    0.63    0.83    1.21
     512        0.22    0.24    0.55    0.69    1.69
    2,048       0.10    0.14    0.16    0.56    0.76
    4,096       0.07    0.13    0.21    0.49    0.98

Under rules per synapse the sums over a chunk of 16 steps of 32 samples took 0.38 of dense at 1 %, 0.52 at 5 % and 0.50
at 10 %, the passes over the eligibility included; of 64 steps 0.19, 0.36 and 0.96. On other devices they are not
measured.
"""


FEW_SPIKES = 0.03
LARGE = 512
"""Below which share of a dense input that is not zero, and from which numbers of inputs and of units, a chunk's two
products pay for finding the events first, on a CPU. For N -> N units in float32 on one idle core, conversion included,
sparse took of dense

       N    rows     0.5 %     1 %     2 %     5 %    10 %
     256   2,048      0.92    0.96    1.12    2.16    2.77
     512     512      0.36    0.44    0.55    0.92    1.68
     512   2,048      0.44    0.56    0.64    0.94    1.57
   1,024   2,048      0.30    0.29    0.61    1.11    3.02
   2,048     512      0.14    0.25    0.43    0.83    2.07

and 2 to 8 times as long for a readout of 10 units. The gradient for the inputs stays a dense product.
"""


def is_sparse(x: Tensor) -> bool:
    """Say whether x holds sparse rows; raise TypeError for another sparse layout than CSR, or other than rows.

    >>> is_sparse(torch.zeros(2, 3))
    False
    """
    if x.layout is torch.strided:
        return False
    if x.layout is not torch.sparse_csr or x.dim() != 2:
        raise TypeError(
            f"a sparse input of layout {x.layout} and shape {list(x.shape)}: sparse rows are a torch.sparse_csr_tensor "
            f"[batch, inputs]; write x.to_sparse_csr(), after x.flatten(1) where a step has a shape, or x.to_dense()"
        )
    return True


def density(x: Tensor) -> float:
    """Return the share of the entries of sparse rows that are stored, 0 for none.

    >>> density(sparse_rows([0, 1], [2], [1.0], 4))
    0.25
    """
    return x.values().numel() / max(x.numel(), 1)


def sparse_pays(x: Tensor) -> bool:
    """Say whether sparse rows [N, I] are multiplied faster than dense ones: density / DENSE_ABOVE + FEW_ROWS / N < 1.

    >>> sparse_pays(sparse_rows([0, 1], [2], [1.0], 4))
    False
    """
    return density(x) / DENSE_ABOVE + FEW_ROWS / max(x.shape[0], 1) < 1


def spikes_pay(x: Tensor, units: int) -> bool:
    """Say whether a dense input [N, I] of a layer of `units` is multiplied faster as sparse rows, found first.

    >>> spikes_pay(torch.zeros(512, 512), 512), spikes_pay(torch.zeros(512, 512), 10)
    (True, False)
    """
    if x.device.type != "cpu" or not is_large(x, units):
        return False
    return int(torch.count_nonzero(x)) < FEW_SPIKES * x.numel()


def is_large(x: Tensor, units: int) -> bool:
    """Say whether a layer from x [N, I] to `units` is large enough for sparse spikes to pay.

    >>> is_large(torch.zeros(512, 512), 512)
    True
    """
    return x.dim() == 2 and x.shape[0] >= LARGE // 2 and min(x.shape[1], units) >= LARGE


def found_rows(x: Float[Tensor, "rows inputs"]) -> Tensor:
    """Return a dense input [N, I] as sparse rows.

    >>> found_rows(torch.tensor([[0.0, 2.0], [0.0, 0.0]])).to_dense()
    tensor([[0., 2.],
            [0., 0.]])
    """
    row, column = x.nonzero().unbind(1)
    ends = row.new_zeros(len(x) + 1)
    torch.cumsum(torch.bincount(row, minlength=len(x)), 0, out=ends[1:])
    return sparse_rows(ends, column, x[row, column], x.shape[1])


def sparse_rows(ends: Any, columns: Any, values: Any, inputs: int) -> Tensor:
    """Return rows [N, I] from where each ends, `ends` [N + 1] from 0, and the column and value of each event [E].

    Tensors or lists; a column is there once in a row.

    >>> sparse_rows([0, 1, 1], [2], [1.0], 3).to_dense()
    tensor([[0., 0., 1.],
            [0., 0., 0.]])
    """
    ends, columns, values = (torch.as_tensor(part) for part in (ends, columns, values))
    shape, layout = (len(ends) - 1, inputs), torch.sparse_csr
    with warnings.catch_warnings():  # torch announces once that the layout is in beta
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_compressed_tensor(
            ends, columns.to(ends.dtype), values, shape, layout=layout, check_invariants=False
        )


def row_numbers(x: Tensor) -> Tensor:
    """Return the row of every event [E] of sparse rows.

    >>> row_numbers(sparse_rows([0, 2, 3], [0, 1, 1], [1.0, 1.0, 1.0], 2))
    tensor([0, 0, 1])
    """
    ends = x.crow_indices().long()
    return torch.repeat_interleave(torch.arange(len(ends) - 1, device=ends.device), ends.diff())


def fold_rows(steps: list[Tensor]) -> Tensor:
    """Return the sparse rows of several steps [B, I] as those of a chunk [K B, I].

    >>> fold_rows([sparse_rows([0, 1], [2], [1.0], 3), sparse_rows([0, 0], [], [], 3)]).shape
    torch.Size([2, 3])
    """
    ends, begin = [steps[0].crow_indices()[:1]], 0
    for step in steps:
        ends.append(step.crow_indices()[1:] + begin)
        begin += step.values().numel()
    columns = torch.cat([step.col_indices() for step in steps])
    return sparse_rows(torch.cat(ends), columns, torch.cat([step.values() for step in steps]), steps[0].shape[1])


def sparse_value(x: Tensor, weight: Float[Tensor, "outputs inputs"], bias: Tensor | None = None) -> Tensor:
    """Return X W^T + b [N, O] for sparse rows X [N, I]; inside autocast in float32. Outside autograd.

    Raises TypeError when the dtypes differ, ValueError when the sizes do.

    >>> sparse_value(sparse_rows([0, 1, 1], [2], [2.0], 3), torch.ones(1, 3), torch.ones(1))
    tensor([[3.],
            [1.]])
    """
    if x.shape[1] != weight.shape[1]:
        raise ValueError(f"sparse rows of {x.shape[1]} inputs for weights of {weight.shape[1]}: both must be as many")
    mixed = torch.is_autocast_enabled(x.device.type)
    if x.dtype != weight.dtype and not mixed:
        raise TypeError(
            f"the input is {x.dtype} and the weights are {weight.dtype}: both must be one dtype; write "
            f"events.to(dtype={weight.dtype})"
        )
    with torch.autocast(x.device.type, enabled=False):
        wide = torch.promote_types(x.dtype, torch.float32)
        y = torch.mm(x.to(wide), weight.T.to(wide).contiguous())
        if bias is not None:
            y.add_(bias)
        return y if mixed else y.to(x.dtype)


def transposed(x: Tensor) -> Tensor:
    """Return the sparse rows [I, N] of X^T for X [N, I].

    >>> transposed(sparse_rows([0, 1, 1], [2], [2.0], 3)).to_dense()[2]
    tensor([2., 0.])
    """
    rows: Tensor = x.t().to_sparse_csr()
    return rows


def sparse_weight_gradient(d: Float[Tensor, "rows outputs"], x: Tensor) -> Float[Tensor, "outputs inputs"]:
    """Return D^T X [O, I] for D = dL/dY [N, O] and sparse rows X [N, I]; the result is dense, and not contiguous.

    >>> sparse_weight_gradient(torch.ones(1, 2), sparse_rows([0, 1], [2], [2.0], 3))
    tensor([[0., 0., 2.],
            [0., 0., 2.]])
    """
    with torch.autocast(x.device.type, enabled=False):
        wide = torch.promote_types(d.dtype, torch.float32)
        return torch.mm(transposed(x).to(wide), d.to(wide)).T.to(d.dtype)


def add_weight_gradient_(
    total: Float[Tensor, "inputs outputs"], d: Float[Tensor, "rows outputs"], x: Tensor
) -> Float[Tensor, "inputs outputs"]:
    """Add X^T D to `total` [I, O], in place, for D [N, O] and rows X [N, I], sparse or dense.

    Only the columns that hold an event are touched, where a fresh gradient is as large as the weights.

    >>> add_weight_gradient_(torch.ones(3, 1), torch.ones(1, 1), sparse_rows([0, 1], [2], [2.0], 3)).flatten()
    tensor([1., 1., 3.])
    """
    with torch.autocast(x.device.type, enabled=False):
        return total.addmm_(transposed(x).to(total.dtype) if is_sparse(x) else x.T, d)


def roll_sparse_trace(
    traces: Float[Tensor, "hidden batch inputs"] | None,
    x: Tensor,
    steps: int,
    leak: LeakTransition,
    restarts: Restarts = None,
) -> Float[Tensor, "hidden batch inputs"]:
    """Return what `roll_leak_trace` does, for the sparse rows x [K B, I] of a chunk of K = `steps` steps.

    >>> from snnlearn.functional.lif import lif_leak_transition
    >>> x = sparse_rows([0, 1, 2], [0, 0], [1.0, 1.0], 1)
    >>> roll_sparse_trace(None, x, 2, lif_leak_transition(0.5)).flatten()
    tensor([1.5000])
    """
    power, by_step = leak_powers(leak, steps)
    batch, inputs = x.shape[0] // steps, x.shape[1]
    rows, values = row_numbers(x), x.values()
    step, sample = rows // max(batch, 1), rows % max(batch, 1)
    if restarts is not None:
        values = values * steps_that_last(restarts).to(values)[step, sample]
    place = sample * inputs + x.col_indices()
    rolled = values.new_zeros((len(by_step), batch * inputs))
    for row, weights in zip(rolled, by_step.to(values), strict=True):
        row.index_add_(0, place, values * weights[step])
    rolled = rolled.unflatten(1, (batch, inputs))
    if traces is not None:
        rolled += rolled_entry(traces, power, restarts)
    return flush_subnormals_(rolled)


class SparseProduct(torch.autograd.Function):
    """Y = X W^T + b for sparse rows X, which are data and get no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the product [N, O]; keep x, as it is."""
        ctx.x = x
        return sparse_value(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        """Return the gradients for W and b; raise when asked for a graph of them."""
        refuse_second_order("a product with sparse events")
        by_weight = sparse_weight_gradient(d, ctx.x) if ctx.needs_input_grad[1] else None
        return None, by_weight, d.sum(0) if ctx.needs_input_grad[2] else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b for x [..., I], or for sparse rows [N, I].

    >>> linear(sparse_rows([0, 1], [2], [2.0], 3), torch.ones(1, 3))
    tensor([[2.]])
    """
    if not is_sparse(x):
        return F.linear(x, weight, bias)
    return SparseProduct.apply(x, weight, bias)  # type: ignore[no-any-return]


class SparseDense(NamedTuple):
    """`Dense` for sparse rows x [N, I]: a `snnlearn.functional.weighted_map.WeightedMap`.

    >>> x = sparse_rows([0, 1], [2], [2.0], 3)
    >>> SparseDense().weight_gradient(torch.ones(1, 1), x, torch.zeros(1, 3))
    tensor([[0., 0., 2.]])
    """

    def value(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x W^T + b."""
        return sparse_value(x, weight, bias)

    def weight_gradient(self, d: Tensor, trace: Tensor, weight: Tensor) -> Tensor:
        """Return d^T trace, for sparse rows in place of a trace or for a dense one."""
        if is_sparse(trace):
            return sparse_weight_gradient(d, trace)
        return Dense().weight_gradient(d, trace, weight)

    def input_gradient(self, d: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        """Refuse: events are data."""
        raise RuntimeError(
            "a gradient was asked for sparse events, which are data; write x.to_dense().requires_grad_() for one"
        )

    def units_last(self, d: Tensor) -> Tensor:
        """Return d."""
        return d


class FoundSparse(SparseDense):
    """`SparseDense` for a dense input that was found to be sparse, and gets a gradient as others do.

    >>> FoundSparse().input_gradient(torch.ones(1, 1), torch.full((1, 2), 3.0), torch.Size((1, 2)))
    tensor([[3., 3.]])
    """

    def input_gradient(self, d: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        """Return d W, a dense product."""
        return Dense().input_gradient(d, weight, shape)


__all__ = [
    "DENSE_ABOVE",
    "FEW_ROWS",
    "FEW_SPIKES",
    "LARGE",
    "FoundSparse",
    "SparseDense",
    "SparseProduct",
    "add_weight_gradient_",
    "density",
    "fold_rows",
    "found_rows",
    "is_large",
    "is_sparse",
    "linear",
    "roll_sparse_trace",
    "row_numbers",
    "sparse_pays",
    "sparse_rows",
    "sparse_value",
    "sparse_weight_gradient",
    "spikes_pay",
    "transposed",
]
