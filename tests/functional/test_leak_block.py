"""A leak over several steps as one product, against the recurrence step by step and against autograd."""

import pytest
import torch
from torch import Tensor

from snnlearn.functional import lif_leak_transition, scan_leak
from snnlearn.functional.dynamics import LeakTransition
from snnlearn.functional.leak_block import LARGEST, leak_block, pays_as_block, run_leak

LEAKS = {
    "one": lif_leak_transition(0.875),
    "two": LeakTransition(((0.8, 0.1), (0.3, 0.6)), (1.0, 0.5), (0.2, 1.0)),
}


def by_step(y: Tensor, leak: LeakTransition, entering: Tensor) -> tuple[Tensor, Tensor]:
    transition, drive, readout = (torch.tensor(part, dtype=y.dtype) for part in leak)
    state, outputs = entering, []
    for y_t in y:
        state = torch.einsum("ij,j...->i...", transition, state) + torch.einsum("i,...->i...", drive, y_t)
        outputs.append(torch.einsum("i,i...->...", readout, state))
    return torch.stack(outputs), state


def values(*shape: int, last: bool = False) -> Tensor:
    made = torch.randn(*shape, dtype=torch.float64)
    return made.movedim(2, -1).contiguous().movedim(-1, 2) if last else made


@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS)
@pytest.mark.parametrize("steps", [1, 2, 15, 16, 17, 40])
@pytest.mark.parametrize("channels_last", [False, True])
def test_forwards_and_backwards_are_the_recurrence(leak: LeakTransition, steps: int, channels_last: bool) -> None:
    torch.manual_seed(0)
    y = values(steps, 2, 3, 4, 5, last=channels_last).requires_grad_()
    entering = values(len(leak.drive), 2, 3, 4, 5).requires_grad_()
    expected, expected_end = by_step(y, leak, entering)
    found, end = run_leak(y.detach(), leak, entering.detach())
    torch.testing.assert_close(found, expected.detach(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(end, expected_end.detach(), rtol=1e-13, atol=1e-13)
    assert found.stride() == y.stride()

    signals, of_end = torch.randn_like(expected), torch.randn_like(expected_end)
    by_y, by_entering = torch.autograd.grad((expected * signals).sum() + (expected_end * of_end).sum(), (y, entering))
    back, at_start = run_leak(signals, leak, of_end, backwards=True)
    torch.testing.assert_close(back, by_y, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(at_start, by_entering, rtol=1e-13, atol=1e-13)
    assert float(by_y.norm()) > 0
    if steps > 1:
        assert not torch.allclose(run_leak(signals, leak, of_end)[0], by_y)  # the other direction differs


@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS)
def test_a_scan_is_the_same_either_way(leak: LeakTransition) -> None:
    """Steps that are too large for a product go one by one: halves of them, which are not, give the same numbers."""
    torch.manual_seed(0)
    rows = LARGEST // (8 * 64) + 1
    signals = torch.randn(5, rows, 64, dtype=torch.float64)
    half = signals[:, : rows // 2].contiguous()
    assert not pays_as_block(signals)
    assert pays_as_block(half)
    for whole, part in zip(scan_leak(signals, leak), scan_leak(half, leak), strict=True):
        torch.testing.assert_close(whole[:, : rows // 2], part, rtol=1e-13, atol=1e-13)


def test_subnormal_numbers_are_flushed() -> None:
    leak = lif_leak_transition(1e-3)
    assert leak_block(leak, 16, torch.float32)[15, 0] == 0
    found, end = run_leak(torch.tensor([1e-20, 0, 0, 0, 0, 0]).unsqueeze(1), leak)
    assert found.flatten().tolist() == pytest.approx([1e-20, 1e-23, 1e-26, 1e-29, 0, 0], rel=1e-5, abs=0)
    assert end.item() == 0


def test_a_signal_that_is_expanded_is_read_right() -> None:
    leak, one = lif_leak_transition(0.5), torch.ones(())
    found, _ = run_leak(one.expand(3, 2, 2), leak)
    assert found[:, 0, 0].tolist() == [1.0, 1.5, 1.75]
    assert torch.equal(found, found[:, :1, :1].expand(3, 2, 2))
