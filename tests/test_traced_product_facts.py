"""A traced product, naive and done with a trace buffer: claims of notebooks/01_version_safe_traces.ipynb.

As in `test_autograd_facts.py`, which has those about autograd alone.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    LIF,
    OTTT,
    ETBlock,
    ETLinear,
    Readout,
    StaleTraceError,
    TraceBuffer,
    attach,
    bptt_gradients,
    et_linear,
    reset,
)
from snnlearn.functional import lif_leak_transition

MODIFIED = "modified by an inplace operation"


class Product(torch.autograd.Function):
    """y = x w, whose weight gradient is read from `trace`, saved the way autograd wants it."""

    @staticmethod
    def forward(ctx, x: Tensor, trace: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(trace, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, Tensor]:
        trace, weight = ctx.saved_tensors
        return gradient @ weight, None, gradient.T @ trace


class UncheckedProduct(torch.autograd.Function):
    """The same, but the trace is an attribute of the context: no version is noted, so none is checked."""

    @staticmethod
    def forward(ctx, x: Tensor, trace: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.trace = trace
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, Tensor]:
        (weight,) = ctx.saved_tensors
        return gradient @ weight, None, gradient.T @ ctx.trace


# A traced product, done naively.

DECAY = 0.5


def two_steps(product: type[torch.autograd.Function], advance: str) -> tuple[nn.Parameter, Tensor]:
    """Run two steps in the order forward, trace update, backward; give the weight and its right gradient."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(2, 3))
    inputs, signals = torch.rand(2, 4, 3), torch.rand(2, 4, 2)
    trace = torch.zeros(4, 3)
    exact = torch.zeros(2, 3)
    right = torch.zeros(4, 3)
    for x, signal in zip(inputs, signals, strict=True):
        right = DECAY * right + x
        exact += signal.T @ right
        if advance == "a copy per step, before":
            trace = DECAY * trace + x
        y = product.apply(x, trace, weight)
        if advance == "in place":
            trace.mul_(DECAY).add_(x)
        elif advance == "through .data":
            trace.data.mul_(DECAY).add_(x)
        elif advance == "twice":
            trace.data.mul_(DECAY).add_(x)
            trace.data.mul_(DECAY).add_(x)
        (y * signal).sum().backward()
    return weight, exact


def relative_error(weight: nn.Parameter, exact: Tensor) -> float:
    assert weight.grad is not None
    return ((weight.grad - exact).norm() / exact.norm()).item()


def test_a_saved_trace_that_is_advanced_in_place_is_refused() -> None:
    with pytest.raises(RuntimeError, match=MODIFIED):
        two_steps(Product, "in place")


def test_a_copy_per_step_is_right_and_a_second_buffer() -> None:
    assert relative_error(*two_steps(Product, "a copy per step, before")) < 1e-6


def test_a_trace_advanced_through_data_is_right_when_all_goes_well() -> None:
    assert relative_error(*two_steps(Product, "through .data")) < 1e-6
    assert relative_error(*two_steps(UncheckedProduct, "in place")) < 1e-6


def test_a_trace_advanced_twice_or_never_is_wrong_and_nothing_says_so() -> None:
    assert relative_error(*two_steps(Product, "twice")) > 0.2
    assert relative_error(*two_steps(UncheckedProduct, "never")) == 1


# A traced product, done with a trace buffer.


def buffer_and_weight() -> tuple[TraceBuffer, nn.Parameter]:
    torch.manual_seed(0)
    return TraceBuffer(lif_leak_transition(DECAY), name="hidden"), nn.Parameter(torch.randn(2, 3))


def test_a_trace_buffer_is_in_place_and_right() -> None:
    trace, weight = buffer_and_weight()
    exact, right, places = torch.zeros(2, 3), torch.zeros(4, 3), set()
    for x, signal in zip(torch.rand(5, 4, 3), torch.rand(5, 4, 2), strict=True):
        right = DECAY * right + x
        exact += signal.T @ right
        y = et_linear(x, trace, weight)
        trace.advance_(x)
        assert trace.values is not None
        places.add(trace.values.data_ptr())
        (y * signal).sum().backward()
    assert relative_error(weight, exact) < 1e-6
    assert len(places) == 1


def test_a_trace_buffer_refuses_what_would_be_silently_wrong() -> None:
    x = torch.rand(4, 3)
    for mistake in ("advanced twice", "never advanced", "reset too early"):
        trace, weight = buffer_and_weight()
        y = et_linear(x, trace, weight)
        for _ in range({"advanced twice": 2, "never advanced": 0, "reset too early": 1}[mistake]):
            trace.advance_(x)
        if mistake == "reset too early":
            trace.reset()
        with pytest.raises(StaleTraceError, match=r"hidden: backward .* at tick 1 and found tick [02]"):
            y.sum().backward()
        assert weight.grad is None


def firing_network() -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(ETBlock(ETLinear(20, 30), LIF(tau=2.0)), Readout(nn.Linear(30, 10))).double()
    with torch.no_grad():
        net.get_parameter("0.connection.weight").mul_(5)
    attach(net, OTTT())
    return net, torch.rand(6, 8, 20, dtype=torch.float64), torch.randint(0, 10, (8,))


def test_a_block_learns_like_backpropagation_through_time() -> None:
    net, x, labels = firing_network()
    for x_t in x:
        (F.cross_entropy(net(x_t), labels) / len(x)).backward()
    reset(net)
    exact = bptt_gradients(net, x, labels, loss=F.cross_entropy)
    cut = bptt_gradients(net, x, labels, loss=F.cross_entropy, cut="all")
    assert set(exact) == {name for name, _ in net.named_parameters()}
    for name, gradient in exact.items():
        torch.testing.assert_close(net.get_parameter(name).grad, gradient, rtol=1e-12, atol=1e-14)
    hidden = "0.connection.weight"
    assert (cut[hidden] - exact[hidden]).norm() > 0.1 * exact[hidden].norm()  # time matters in this network


def test_a_loss_over_the_whole_sequence_is_refused() -> None:
    net, x, labels = firing_network()
    loss = torch.stack([F.cross_entropy(net(x_t), labels) for x_t in x]).mean()
    with pytest.raises(StaleTraceError, match="attach BPTT"):
        loss.backward()
