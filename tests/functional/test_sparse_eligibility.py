"""A chunk of sparse events in the eligibility of synapses: what the recurrence gives, step by step and dense."""

import pytest
import torch
from torch import Tensor

from snnlearn.functional import sparse_eligibility
from snnlearn.functional.chunk import scan_chunk
from snnlearn.functional.chunk_roll import read_weights, roll_weights
from snnlearn.functional.dynamics import Jacobian
from snnlearn.functional.sparse_eligibility import (
    fold_sparse_chunk,
    laid_by_input,
    read_sparse_norm,
    roll_sparse_eligibility,
)
from snnlearn.functional.sparse_map import sparse_rows

STEPS, BATCH, INPUTS, OUTPUTS = 4, 3, 9, 5


def events(share: float) -> tuple[Tensor, Tensor]:
    """Counts [K, B, I], with a sample and a step without events, and the same as sparse rows."""
    x = torch.randint(1, 4, (STEPS, BATCH, INPUTS)) * (torch.rand(STEPS, BATCH, INPUTS) < share)
    x[1] = x[:, 1] = 0
    dense = x.double()
    rows = dense.flatten(0, 1)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), (rows != 0).sum(1).cumsum(0)])
    return dense, sparse_rows(ends, rows.nonzero()[:, 1], rows[rows != 0], INPUTS)


def steps_of(hidden: int) -> Jacobian:
    """Any Jacobians at all."""
    units = (STEPS, BATCH, OUTPUTS)
    return Jacobian(
        torch.randn(hidden, hidden, *units).double() / 2,
        torch.randn(hidden, *units).double(),
        torch.randn(hidden, *units).double(),
        torch.randn(*units).double(),
    )


def with_ones(x: Tensor, has_one: bool) -> Tensor:
    return torch.cat([x, torch.ones(*x.shape[:-1], 1).double()], dim=-1) if has_one else x


def by_steps(jacobian: Jacobian, entry: Tensor, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E_K, ds/dW of the last step, and sum_t u_t ds_t/dW, from E_0 [H, B, O, I]."""
    gradient, read = torch.zeros(OUTPUTS, x.shape[-1]).double(), torch.empty(0)
    for t in range(STEPS):
        read = torch.einsum("hbo,hboi->boi", jacobian.spike_state[:, t], entry)
        read = read + torch.einsum("bo,bi->boi", jacobian.spike_input[t], x[t])
        gradient = gradient + torch.einsum("bo,boi->oi", u[t], read)
        entry = torch.einsum("hjbo,jboi->hboi", jacobian.transition[:, :, t], entry)
        entry = entry + torch.einsum("hbo,bi->hboi", jacobian.drive[:, t], x[t])
    return entry, read, gradient


@pytest.mark.parametrize("has_one", [True, False])
@pytest.mark.parametrize("few", [0.0, 1.0])
@pytest.mark.parametrize("hidden", [1, 2])
@pytest.mark.parametrize("share", [0.15, 0.7, 0.0])
def test_a_chunk_is_its_steps(
    hidden: int, share: float, few: float, has_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways of adding events, from zero and from an eligibility that enters; control: another event moves it."""
    monkeypatch.setattr(sparse_eligibility, "FEW_PLACES", few)
    jacobian, (dense, x) = steps_of(hidden), events(share)
    inputs, u = with_ones(dense, has_one), torch.randn(STEPS, BATCH, OUTPUTS).double()
    received, entering = scan_chunk(jacobian, u)
    rolled, read = roll_weights(jacobian), read_weights(jacobian)
    entry = torch.randn(hidden, BATCH, OUTPUTS, INPUTS + has_one).double()
    for before in (None, entry):
        start = torch.zeros_like(entry) if before is None else before
        after, last, gradient = by_steps(jacobian, start, inputs, u)
        parts = None if before is None else list(laid_by_input(before.clone()))
        found = fold_sparse_chunk(received, entering, x, parts, has_one)
        torch.testing.assert_close(found, gradient, rtol=1e-12, atol=1e-12)
        norm = read_sparse_norm(parts, *read, x, has_one)
        assert norm == pytest.approx(float(last.norm()), rel=1e-12, abs=1e-12)
        made = torch.stack(list(roll_sparse_eligibility(parts, *rolled, x, has_one)))
        torch.testing.assert_close(made, after, rtol=1e-12, atol=1e-12)
    if share:
        assert float(after.norm()) > 0
        other = inputs.roll(1, -1)
        assert float((by_steps(jacobian, entry, other, u)[0] - made).norm()) > 1e-3


def test_parts_that_are_the_same_for_all_units_stay_and_are_met() -> None:
    jacobian, (dense, x) = steps_of(2), events(0.3)
    jacobian.transition[0, 1] = 0
    trace, own = torch.randn(BATCH, 1, INPUTS).double(), torch.randn(BATCH, OUTPUTS, INPUTS).double()
    entry = torch.stack([trace.expand(-1, OUTPUTS, -1), own])
    u = torch.randn(STEPS, BATCH, OUTPUTS).double()
    after, _, gradient = by_steps(jacobian, entry, dense, u)
    parts = [trace, laid_by_input(own[None].clone())[0]]
    received, entering = scan_chunk(jacobian, u)
    found = fold_sparse_chunk(received, entering, x, parts, False)
    torch.testing.assert_close(found, gradient, rtol=1e-12, atol=1e-12)
    kept = trace.clone()
    roll_sparse_eligibility(parts, *roll_weights(jacobian), x, False)
    assert torch.equal(parts[0], kept)
    torch.testing.assert_close(parts[1], after[1], rtol=1e-12, atol=1e-12)


def test_an_eligibility_laid_by_unit_is_refused() -> None:
    _, x = events(0.3)
    with pytest.raises(RuntimeError, match="view"):
        roll_sparse_eligibility([torch.ones(BATCH, OUTPUTS, INPUTS).double()], *roll_weights(steps_of(1)), x, False)


def test_what_decays_to_next_to_nothing_is_nothing() -> None:
    jacobian, (_, x) = steps_of(1), events(0.0)
    for value in jacobian.transition:
        value.fill_(1e-80)
    parts = list(laid_by_input(torch.ones(1, BATCH, OUTPUTS, INPUTS).double()))
    roll_sparse_eligibility(parts, *roll_weights(jacobian), x, False)
    assert not parts[0].any()
