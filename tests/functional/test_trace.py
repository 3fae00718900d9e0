"""Trace recurrences in step form, and the flush of subnormal numbers."""

import pytest
import torch

from snnlearn.functional import (
    FLUSH_BELOW,
    LeakTransition,
    advance_leak_trace_,
    cuba_lif_leak_transition,
    decay_trace,
    flush_subnormals,
    flush_subnormals_,
    flush_threshold,
    lif_leak_transition,
    read_leak_trace,
)


def test_trace_by_hand() -> None:
    trace = torch.zeros(1, 1, dtype=torch.float64)
    seen = []
    for x in (1.0, 1.0, 0.0, 1.0):
        advance_leak_trace_(trace, torch.tensor([x], dtype=torch.float64), lif_leak_transition(0.5))
        seen.append(float(trace))
    assert seen == [1.0, 1.5, 0.75, 1.375]


def test_trace_is_not_the_moving_average() -> None:
    """decay*a + x and decay*a + (1 - decay)*x differ by exactly 1 - decay."""
    decay, trace, average = 0.8, torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for _ in range(7):
        x = torch.rand(3, dtype=torch.float64)
        trace, average = decay_trace(trace, x, decay), decay * average + (1 - decay) * x
    torch.testing.assert_close(average, (1 - decay) * trace, atol=1e-15, rtol=1e-14)


@pytest.mark.parametrize(
    "leak",
    [
        lif_leak_transition(0.7),
        cuba_lif_leak_transition(0.4, 0.7),
        LeakTransition(((0.6, -0.5), (0.5, 0.6)), (1.0, 0.0), (1.0, 0.0)),
        LeakTransition(((0.6, -0.5), (0.5, 0.6)), (1.0, 0.5), (0.3, 0.9)),
    ],
    ids=["lif", "cuba", "rotation", "mixed readout"],
)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 4, 4)])
def test_step_form_equals_the_sum_over_the_past(leak: LeakTransition, shape: tuple[int, ...]) -> None:
    """e_T = sum_k A^(T-k) p x_k, by explicit matrix powers."""
    hidden, steps = len(leak.drive), 6
    matrix = torch.tensor(leak.transition, dtype=torch.float64)
    drive = torch.tensor(leak.drive, dtype=torch.float64)
    inputs = torch.randn(steps, *shape, dtype=torch.float64)
    traces = torch.zeros(hidden, *shape, dtype=torch.float64)
    for x in inputs:
        assert advance_leak_trace_(traces, x, leak) is traces
    powers = [torch.linalg.matrix_power(matrix, steps - 1 - k) @ drive for k in range(steps)]
    expected = sum(torch.einsum("h,...->h...", p, x) for p, x in zip(powers, inputs, strict=True))
    torch.testing.assert_close(traces, expected, atol=1e-13, rtol=1e-13)
    read = torch.einsum("h,h...->...", torch.tensor(leak.readout, dtype=torch.float64), traces)
    torch.testing.assert_close(read_leak_trace(traces, leak), read)
    assert not torch.allclose(traces, traces.roll(1, -1)) or traces[0].numel() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_flush_leaves_nothing_subnormal_and_keeps_the_rest(dtype: torch.dtype, device: torch.device) -> None:
    info = torch.finfo(dtype)
    values = torch.tensor([info.tiny / 4, -info.tiny / 4, 0.0, 1.0, -2.0, float("nan"), float("inf")], dtype=dtype)
    flushed = flush_subnormals(values.to(device)).cpu()
    assert flushed[:3].tolist() == [0.0, 0.0, 0.0]
    assert flushed[3:5].tolist() == [1.0, -2.0]
    assert torch.isnan(flushed[5])
    assert torch.isinf(flushed[6])
    in_place = values.clone()
    assert flush_subnormals_(in_place) is in_place
    torch.testing.assert_close(in_place, flushed, equal_nan=True)
    assert flush_threshold(dtype) >= info.tiny
    assert float(flush_subnormals(torch.tensor([2 * flush_threshold(dtype)], dtype=dtype))) != 0.0


def test_flush_has_an_identity_gradient_even_where_it_flushes() -> None:
    """A membrane that is exactly zero still passes its gradient: zero is a value, not a cut."""
    values = torch.tensor([0.0, FLUSH_BELOW / 10, 1.0], dtype=torch.float64, requires_grad=True)
    (flush_subnormals(values) * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [1.0, 2.0, 3.0]
    assert torch.autograd.gradcheck(
        flush_subnormals, (torch.tensor([0.3, -1.0], dtype=torch.float64, requires_grad=True),)
    )
