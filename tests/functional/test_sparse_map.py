"""Products, gradients and traces of sparse rows: the dense numbers, to rounding, and clear refusals."""

import pytest
import torch
from torch import Tensor

from snnlearn.functional import roll_leak_trace
from snnlearn.functional.cuba_lif import cuba_lif_leak_transition
from snnlearn.functional.dynamics import LeakTransition
from snnlearn.functional.lif import lif_leak_transition
from snnlearn.functional.sparse_map import (
    SparseDense,
    density,
    fold_rows,
    is_sparse,
    linear,
    roll_sparse_trace,
    sparse_rows,
    sparse_value,
    sparse_weight_gradient,
)

STEPS, BATCH, INPUTS, OUTPUTS = 5, 3, 11, 4
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5}


def rows_of(dense: Tensor) -> Tensor:
    """Sparse rows of a dense matrix, built event by event."""
    ends, columns, values = [0], [], []
    for row in dense.tolist():
        for column, value in enumerate(row):
            if value:
                columns.append(column)
                values.append(value)
        ends.append(len(columns))
    return sparse_rows(ends, torch.tensor(columns, dtype=torch.int64), torch.tensor(values, dtype=dense.dtype), INPUTS)


def events(rows: int, dtype: torch.dtype = torch.float64, share: float = 0.2) -> Tensor:
    """Counts of 1 to 3 in a share of the places, with an empty row and an empty column."""
    counts = torch.randint(1, 4, (rows, INPUTS)) * (torch.rand(rows, INPUTS) < share)
    if rows > 1:
        counts[rows // 2] = 0
    counts[:, 3] = 0
    return counts.to(dtype)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("rows", [1, 2, STEPS * BATCH])
def test_product_and_gradient_are_the_dense_ones(rows: int, dtype: torch.dtype) -> None:
    bound = BOUNDS[dtype]
    dense = events(rows, dtype, 0.5)
    x, weight, bias = rows_of(dense), torch.randn(OUTPUTS, INPUTS, dtype=dtype), torch.randn(OUTPUTS, dtype=dtype)
    d = torch.randn(rows, OUTPUTS, dtype=dtype)
    assert 0 < density(x) < 1
    torch.testing.assert_close(x.to_dense(), dense)
    by_hand = torch.stack([sum((v * weight[:, i] for i, v in enumerate(row)), bias) for row in dense])
    torch.testing.assert_close(sparse_value(x, weight, bias), by_hand, rtol=bound, atol=bound)
    gradient = sparse_weight_gradient(d, x)
    torch.testing.assert_close(gradient, torch.einsum("no,ni->oi", d, dense), rtol=bound, atol=bound)
    assert float(gradient.norm()) > 0
    assert float((sparse_weight_gradient(d.flip(1), x) - gradient).norm()) > 1e-3  # control


@pytest.mark.parametrize("leak", [lif_leak_transition(0.7), cuba_lif_leak_transition(0.8, 0.6)], ids=["lif", "cuba"])
@pytest.mark.parametrize("restarting", [False, True])
@pytest.mark.parametrize("entering", [False, True])
def test_the_trace_at_the_end_is_the_dense_one(leak: LeakTransition, restarting: bool, entering: bool) -> None:
    dense = events(STEPS * BATCH)
    before = torch.randn(len(leak.drive), BATCH, INPUTS, dtype=torch.float64) if entering else None
    restarts = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    restarts[2, 0] = restarts[0, 1] = restarts[4, 1] = True
    mask = restarts if restarting else None
    unfolded = dense.unflatten(0, (STEPS, BATCH))
    sparse = roll_sparse_trace(before, rows_of(dense), STEPS, leak, mask)
    torch.testing.assert_close(sparse, roll_leak_trace(before, unfolded, leak, mask), rtol=1e-12, atol=1e-12)
    trace = torch.zeros_like(sparse) if before is None else before.clone()  # step by step
    for t in range(STEPS):
        if restarting:
            trace[:, restarts[t]] = 0
        trace = torch.einsum("ij,jbn->ibn", torch.tensor(leak.transition, dtype=torch.float64), trace)
        trace += torch.tensor(leak.drive, dtype=torch.float64)[:, None, None] * unfolded[t]
    torch.testing.assert_close(sparse, trace, rtol=1e-12, atol=1e-12)
    other = lif_leak_transition(0.71) if len(leak.drive) == 1 else cuba_lif_leak_transition(0.81, 0.6)
    assert float((roll_sparse_trace(before, rows_of(dense), STEPS, other, mask) - trace).norm()) > 1e-3  # control


def test_no_event_at_all_gives_the_bias_and_no_gradient() -> None:
    x = sparse_rows([0, 0, 0], [], torch.zeros(0, dtype=torch.float64), INPUTS)
    weight, bias = torch.randn(OUTPUTS, INPUTS).double(), torch.randn(OUTPUTS).double()
    assert density(x) == 0
    assert torch.equal(sparse_value(x, weight, bias), bias.expand(2, -1))
    assert not sparse_weight_gradient(torch.ones(2, OUTPUTS).double(), x).any()
    assert not roll_sparse_trace(None, x, 2, lif_leak_transition(0.5)).any()


def test_steps_fold_into_a_chunk() -> None:
    steps = [events(BATCH) for _ in range(STEPS)]
    folded = fold_rows([rows_of(step) for step in steps])
    assert torch.equal(folded.to_dense(), torch.cat(steps))


def test_linear_differentiates_weights_and_bias() -> None:
    dense = events(6)
    weight = torch.randn(OUTPUTS, INPUTS, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(OUTPUTS, dtype=torch.float64, requires_grad=True)
    d = torch.randn(6, OUTPUTS, dtype=torch.float64)
    found = torch.autograd.grad((linear(rows_of(dense), weight, bias) * d).sum(), (weight, bias))
    expected = torch.autograd.grad((torch.nn.functional.linear(dense, weight, bias) * d).sum(), (weight, bias))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(linear(rows_of(dense), weight, bias).sum(), weight, create_graph=True)


def test_autocast_keeps_the_product_in_float32() -> None:
    dense, weight = events(4, torch.float32), torch.randn(OUTPUTS, INPUTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = sparse_value(rows_of(dense), weight)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, dense @ weight.T)


def test_refusals_say_what_to_write() -> None:
    x = rows_of(events(2))
    with pytest.raises(TypeError, match=r"events\.to\(dtype=torch.float32\)"):
        sparse_value(x, torch.zeros(OUTPUTS, INPUTS))
    with pytest.raises(ValueError, match="11 inputs for weights of 12"):
        sparse_value(x, torch.zeros(OUTPUTS, INPUTS + 1).double())
    with pytest.raises(TypeError, match=r"write x\.to_sparse_csr\(\)"):
        is_sparse(x.to_dense().to_sparse())
    with pytest.raises(RuntimeError, match="events, which are data"):
        SparseDense().input_gradient(torch.zeros(2, OUTPUTS), torch.zeros(OUTPUTS, INPUTS), x.shape)
