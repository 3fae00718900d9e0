"""The primitive: value of the layer, gradient of the trace."""

import pytest
import torch
from einops import einsum
from torch import Tensor
from torch.nn import functional as F

from snnlearn import TraceBuffer, et_linear
from snnlearn.functional import ConvEligibility, Convolution, FixedTrace, LinearEligibility, lif_leak_transition

F64 = {"dtype": torch.float64}


def make(*shape: int) -> Tensor:
    return torch.randn(*shape, **F64).requires_grad_()


@pytest.mark.parametrize("leading", [(4,), (2, 3), (2, 3, 2)])
def test_gradcheck_where_the_trace_is_the_input(leading: tuple[int, ...]) -> None:
    """With the trace equal to x the layer is the plain one, so finite differences must agree."""
    x, weight, bias = make(*leading, 5), make(3, 5), make(3)

    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return LinearEligibility.apply(x, weight, bias, FixedTrace(x))

    assert torch.autograd.gradcheck(layer, (x, weight, bias))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dims", [1, 2])
def test_gradcheck_of_convolutions_where_the_trace_is_the_input(dims: int, groups: int) -> None:
    x, weight, bias = make(2, 2, *(6, 5)[:dims]), make(4, 2 // groups, *(3, 2)[:dims]), make(4)
    geometry = Convolution((2,) * dims, (1,) * dims, (1,) * dims, groups)

    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ConvEligibility.apply(x, weight, bias, FixedTrace(x), geometry)

    assert torch.autograd.gradcheck(layer, (x, weight, bias))


@pytest.mark.parametrize("leading", [(4,), (2, 3)])
def test_backward_reads_the_trace_and_nothing_else(leading: tuple[int, ...], device: torch.device) -> None:
    x, weight, bias = (t.detach().to(device).requires_grad_() for t in (make(*leading, 5), make(3, 5), make(3)))
    trace = torch.randn(*leading, 5, **F64, device=device)
    bias_trace = torch.rand(leading[0], **F64, device=device) + 1
    y = et_linear(x, trace, weight, bias, bias_trace)
    torch.testing.assert_close(y, F.linear(x, weight, bias))
    d = torch.randn_like(y)
    y.backward(d)
    torch.testing.assert_close(weight.grad, einsum(d, trace, "... o, ... i -> o i"))
    torch.testing.assert_close(x.grad, einsum(d, weight.detach(), "... o, o i -> ... i"))
    c = bias_trace.reshape(-1, *(1,) * len(leading))
    torch.testing.assert_close(bias.grad, (d * c).flatten(0, -2).sum(0))
    assert not torch.allclose(weight.grad, einsum(d, x.detach(), "... o, ... i -> o i"))


def test_convolution_reads_the_trace(device: torch.device) -> None:
    x, weight, bias = (t.detach().to(device).requires_grad_() for t in (make(2, 3, 6, 5), make(4, 3, 3, 2), make(4)))
    trace, c = torch.randn(2, 3, 6, 5, **F64, device=device), torch.rand(2, **F64, device=device) + 1
    y = ConvEligibility.apply(x, weight, bias, FixedTrace(trace, c), Convolution((2, 1), (1, 0), (1, 2), 1))
    torch.testing.assert_close(y, F.conv2d(x, weight, bias, (2, 1), (1, 0), (1, 2)))
    d = torch.randn_like(y)
    y.backward(d)
    reference = weight.detach().clone().requires_grad_()
    F.conv2d(trace, reference, None, (2, 1), (1, 0), (1, 2)).backward(d)
    torch.testing.assert_close(weight.grad, reference.grad)
    torch.testing.assert_close(bias.grad, (d.sum((2, 3)) * c[:, None]).sum(0))
    torch.testing.assert_close(x.grad, torch.nn.grad.conv2d_input(x.shape, weight.detach(), d, (2, 1), (1, 0), (1, 2)))


def test_untraced_bias_counts_this_step_alone() -> None:
    x, weight, bias = make(4, 5), make(3, 5), make(3)
    et_linear(x, x.detach(), weight, bias).sum().backward()
    torch.testing.assert_close(bias.grad, torch.full((3,), 4.0, **F64))


def test_a_fixed_trace_written_in_place_is_refused() -> None:
    x, weight = make(4, 5), make(3, 5)
    trace = x.detach().clone()
    y = et_linear(x, trace, weight)
    trace.mul_(0.5)
    with pytest.raises(RuntimeError, match=r"written in place after the forward .* TraceBuffer"):
        y.sum().backward()


def test_wrong_arguments_say_what_to_write() -> None:
    x, weight = make(4, 5), make(3, 5)
    with pytest.raises(ValueError, match=r"shape \[1, 5\], x has \[4, 5\].*write et ="):
        et_linear(x, torch.zeros(1, 5, **F64), weight)
    with pytest.raises(ValueError, match="leave bias_trace out"):
        et_linear(x, TraceBuffer(lif_leak_transition(0.5)), weight, make(3), torch.ones(4, **F64))


def test_second_order_is_refused_not_silently_zero() -> None:
    x, weight = make(4, 5), make(3, 5)
    y = et_linear(x, x.detach(), weight)
    with pytest.raises(RuntimeError, match="create_graph=True reached a layer with an eligibility trace"):
        torch.autograd.grad(y.sum(), weight, create_graph=True)
    convolved = ConvEligibility.apply(
        make(1, 1, 4), make(1, 1, 2), None, FixedTrace(make(1, 1, 4)), Convolution((1,), (0,), (1,), 1)
    )
    with pytest.raises(RuntimeError, match="create_graph=True"):
        convolved.sum().backward(create_graph=True)


def test_only_what_is_asked_for_is_computed() -> None:
    """A frozen weight gets no gradient, and its trace is not read."""

    class Unreadable(FixedTrace):
        def read(self, tick: int) -> tuple[Tensor, Tensor | None]:
            raise AssertionError("the trace was read for a frozen layer")

    x, weight = make(4, 5), torch.randn(3, 5, **F64)
    et_linear(x, Unreadable(x), weight, None).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(4, 5))
