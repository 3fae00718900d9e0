"""G18: one mask per sequence, sample and unit, and the trace sees it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from snnlearn import LIF, OTTT, ETBlock, ETLinear, TimeConstantDropout, attach, bptt_gradients, reset
from snnlearn.nn import stashed_state

STEPS = 20


def sequence(dropout: TimeConstantDropout, device: torch.device, steps: int = STEPS) -> torch.Tensor:
    reset(dropout)
    return torch.stack([dropout(torch.ones(16, 32, device=device)) for _ in range(steps)])


def test_a_unit_is_on_or_off_for_the_whole_sequence(device: torch.device) -> None:
    dropout = TimeConstantDropout(0.5)
    first, second = sequence(dropout, device), sequence(dropout, device)
    for run in (first, second):
        assert len(run.unique(dim=0)) == 1
        assert set(run.unique().tolist()) == {0.0, 2.0}
        assert 0.4 < float((run[0] > 0).float().mean()) < 0.6
        assert len(run[0].unique(dim=0)) == 16  # another mask for every sample
    assert not torch.equal(first[0], second[0])


def test_the_trace_behind_it_sees_the_mask(device: torch.device) -> None:
    """The trace of a dropped unit is 0, of a kept one 2 * sum of 0.5^k."""
    dropout, block = TimeConstantDropout(0.5), ETBlock(ETLinear(32, 4), LIF(decay=0.5))
    net = nn.Sequential(dropout, block).to(device, torch.float64)
    attach(net, OTTT())
    for _ in range(STEPS):
        net(torch.ones(16, 32, device=device, dtype=torch.float64)).sum().backward()
    trace = block.connection.trace
    assert trace is not None
    assert trace.values is not None
    assert dropout.mask is not None
    assert dropout.mask.dtype == torch.float64
    kept = 2 * sum(0.5**k for k in range(STEPS))
    torch.testing.assert_close(trace.values[0], dropout.mask / 2 * kept, rtol=0, atol=1e-12)
    assert set(dropout.mask.unique().tolist()) == {0.0, 2.0}


def test_eval_is_the_identity_and_keeps_the_mask(device: torch.device) -> None:
    dropout, x = TimeConstantDropout(0.5), torch.rand(4, 8, device=device)
    before = dropout(x)
    dropout.eval()
    assert dropout(x) is x
    dropout.train()
    assert torch.equal(dropout(x), before)


def test_the_ends_of_the_range(device: torch.device) -> None:
    x = torch.rand(4, 8, device=device)
    assert not TimeConstantDropout(1.0)(x).any()
    assert torch.equal(TimeConstantDropout(0.0)(x), x)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert not TimeConstantDropout(1.0)(x.to(dtype)).any()
        dropped = TimeConstantDropout(0.25)(torch.ones(9, 9, device=device, dtype=dtype))
        assert dropped.dtype == dtype
        torch.testing.assert_close(dropped.max(), torch.tensor(4 / 3, dtype=dtype, device=device))


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_no_probability(p: float) -> None:
    with pytest.raises(ValueError, match=rf"p={p}.*\[0, 1\].*p=0\.5"):
        TimeConstantDropout(p)


def test_expected_value_is_kept(device: torch.device) -> None:
    dropout = TimeConstantDropout(0.3)
    mean = torch.stack([sequence(dropout, device, 1) for _ in range(100)]).mean()
    assert float(mean) == pytest.approx(1.0, abs=0.02)


def test_gradient_passes_through_the_mask(device: torch.device) -> None:
    dropout, x = TimeConstantDropout(0.5), torch.ones(4, 8, device=device, requires_grad=True)
    output = dropout(x)
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert torch.equal(gradient, output.detach())
    assert dropout.mask is not None
    assert not dropout.mask.requires_grad


def test_rows_that_start_afresh_draw_a_new_mask_and_the_others_keep_theirs(device: torch.device) -> None:
    dropout, x = TimeConstantDropout(0.5), torch.ones(3, 64, device=device)
    reset(dropout, torch.tensor([True, True, True], device=device))  # before the first step: nothing to draw anew
    first = dropout(x)
    reset(dropout, torch.tensor([True, False, False], device=device))
    reset(dropout, torch.tensor([False, False, True], device=device))
    second = dropout(x)
    assert not torch.equal(second[0], first[0])
    assert torch.equal(second[1], first[1])
    assert not torch.equal(second[2], first[2])
    assert torch.equal(dropout(x), second)


def test_an_evaluation_in_between_keeps_mask_and_waiting_rows(device: torch.device) -> None:
    """The rows that wait for a new mask are state like the mask itself."""
    dropout, x = TimeConstantDropout(0.5), torch.ones(3, 64, device=device)
    first = dropout(x)
    reset(dropout, torch.tensor([True, False, False], device=device))
    with stashed_state(dropout):
        dropout(torch.ones(5, 7, device=device))
    second = dropout(x)
    assert not torch.equal(second[0], first[0])
    assert torch.equal(second[1:], first[1:])


def test_the_oracle_in_mid_sequence_leaves_the_mask_alone() -> None:
    net = nn.Sequential(TimeConstantDropout(0.5), ETBlock(ETLinear(8, 3), LIF())).double()
    attach(net, OTTT())
    x = torch.ones(4, 8, dtype=torch.float64)
    net(x).sum().backward()
    mask = net[0].mask
    bptt_gradients(net, x.expand(3, 2, 4, 8)[:, 0], torch.tensor([0, 1, 2, 0]))
    assert net[0].mask is mask


def test_copies_share_no_mask(device: torch.device) -> None:
    dropout = TimeConstantDropout(0.5)
    x = torch.ones(4, 8, device=device)
    first = dropout(x)
    twin = copy.deepcopy(dropout)
    assert torch.equal(twin(x), first)
    reset(twin)
    assert torch.equal(dropout(x), first)


def test_same_seed_same_mask(device: torch.device) -> None:
    def masks() -> torch.Tensor:
        torch.manual_seed(5)
        return sequence(TimeConstantDropout(0.5), device, 1)

    assert torch.equal(masks(), masks())
