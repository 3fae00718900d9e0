"""What autograd does and does not check: each claim of notebooks/01_version_safe_traces.ipynb.

A torch release that changes one of them is noticed here first. The notebook names the test beside each claim;
tests/test_notebooks.py holds the two lists against each other.
"""

import pytest
import torch
from torch import Tensor

# The first forward-mode product loads a part of torch that still uses torch.jit.script.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")
MODIFIED = "modified by an inplace operation"


# The version counter.


def test_every_in_place_operation_raises_the_version() -> None:
    x = torch.zeros(3)
    assert x._version == 0
    x.add_(1)
    x[0] = 5
    x.zero_()
    assert x._version == 3
    x = x + 1
    assert x._version == 0  # a new tensor, with a counter of its own


def test_reading_and_out_of_place_work_leave_the_version() -> None:
    x = torch.ones(3)
    _ = x + x, x[0], x.sum(), x.clone()
    assert x._version == 0


def test_the_version_is_raised_under_no_grad_too() -> None:
    x = torch.zeros(3)
    with torch.no_grad():
        x.add_(1)
    assert x._version == 1


# .detach() and .data.


def test_detach_shares_memory_and_version() -> None:
    x = torch.zeros(3)
    detached = x.detach()
    detached.add_(1)
    assert x.tolist() == [1, 1, 1]
    assert x._version == detached._version == 1


def test_data_shares_memory_but_not_the_version() -> None:
    x = torch.zeros(3)
    unseen = x.data
    unseen.add_(1)
    assert x.tolist() == [1, 1, 1]
    assert (x._version, unseen._version) == (0, 1)


def test_detach_and_data_cut_the_graph() -> None:
    w = torch.ones(3, requires_grad=True)
    y = w * 2
    assert y.requires_grad
    assert not y.detach().requires_grad
    assert not y.data.requires_grad


# In place on a leaf, on a view, on a saved tensor.


def test_a_leaf_that_requires_grad_refuses_in_place_work() -> None:
    w = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        w.add_(1)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        w[0] = 5
    with torch.no_grad():
        w.add_(1)  # what optimizers do
    assert w.tolist() == [2, 2, 2]


def test_a_view_raises_the_version_of_its_base_and_rewrites_its_history() -> None:
    w = torch.ones(3, requires_grad=True)
    base = w * 2
    history = base.grad_fn
    view = base[0]
    view.mul_(10)
    assert base._version == view._version == 1
    assert base.grad_fn is not history
    base.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [20, 2, 2]


def test_a_changed_saved_tensor_is_refused() -> None:
    w = torch.ones(3, requires_grad=True)
    y = w.exp()  # exp saves its own result for backward
    y.add_(1)
    with pytest.raises(RuntimeError, match=f"{MODIFIED}.*is at version 1; expected version 0"):
        y.sum().backward()


def test_a_changed_tensor_that_nobody_saved_is_fine() -> None:
    w = torch.ones(3, requires_grad=True)
    y = w + 1  # addition saves nothing
    y.add_(1)
    y.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [1, 1, 1]


def test_a_saved_tensor_changed_through_detach_is_refused() -> None:
    w = torch.full((3,), 3.0, requires_grad=True)
    y = w * 2
    loss = (y * y).sum()
    y.detach().zero_()
    with pytest.raises(RuntimeError, match=MODIFIED):
        loss.backward()


def test_a_saved_tensor_changed_through_data_gives_a_wrong_gradient_silently() -> None:
    w = torch.full((3,), 3.0, requires_grad=True)
    y = w * 2
    loss = (y * y).sum()  # d loss / d w = 8 w = 24
    y.data.zero_()
    loss.backward()
    assert w.grad is not None
    assert w.grad.tolist() == [0, 0, 0]


# Masks instead of in-place writes.


def test_a_mask_does_what_an_in_place_write_may_not() -> None:
    """`v[spike] = 0` writes over a saved tensor; `torch.where` makes a new one and has the right gradient."""
    w = torch.tensor([0.5, 2.0], requires_grad=True)
    v = w.exp()
    spike = v.detach() > 2
    reset = torch.where(spike, torch.zeros_like(v), v)
    reset.sum().backward()
    assert w.grad is not None
    torch.testing.assert_close(w.grad, torch.tensor([0.5, 0.0]).exp() * torch.tensor([1.0, 0.0]))

    v = w.exp()
    v[spike] = 0
    with pytest.raises(RuntimeError, match=MODIFIED):
        v.sum().backward()


def test_multiplying_by_a_mask_keeps_what_is_not_finite_and_where_does_not() -> None:
    """0 * inf is nan, also in the gradient; `torch.where` never touches the value it does not choose."""
    v = torch.tensor([1.0, torch.inf])
    keep = torch.tensor([True, False])
    assert (v * keep)[1].isnan()
    assert torch.where(keep, v, 0.0).tolist() == [1, 0]


# Retain_graph.


def test_a_graph_is_freed_by_backward_unless_retained() -> None:
    w = torch.ones(3, requires_grad=True)
    loss = (w**2).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert w.grad is not None
    assert w.grad.tolist() == [4, 4, 4]  # gradients add up
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_retain_graph_does_not_switch_the_version_check_off() -> None:
    w = torch.ones(3, requires_grad=True)
    y = w * 2
    loss = (y * y).sum()
    loss.backward(retain_graph=True)
    y.detach().add_(1)
    with pytest.raises(RuntimeError, match=MODIFIED):
        loss.backward()


def test_a_state_that_is_not_detached_asks_for_the_step_before() -> None:
    w = torch.ones(1, requires_grad=True)
    state = torch.zeros(1)
    for detach, outcome in ((True, "works"), (False, "fails")):
        state = torch.zeros(1)
        for step in range(2):
            state = 0.5 * (state.detach() if detach else state) + w**2
            if outcome == "fails" and step == 1:
                with pytest.raises(RuntimeError, match="second time"):
                    state.sum().backward()
            else:
                state.sum().backward()


# Inference tensors.


def test_an_inference_tensor_has_no_version_and_cannot_be_saved() -> None:
    w = torch.ones(3, requires_grad=True)
    with torch.inference_mode():
        state = torch.ones(3)
    assert state.is_inference()
    with pytest.raises(RuntimeError, match="do not track version counter"):
        _ = state._version
    with pytest.raises(RuntimeError, match="cannot be saved for backward"):
        _ = w * state
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        state.add_(1)
    (w * state.clone()).sum().backward()  # a copy is an ordinary tensor again
    assert w.grad is not None


# What a custom Function is given and what becomes of what it returns.


def test_inside_a_custom_forward_no_graph_is_recorded() -> None:
    seen = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            seen.append((torch.is_grad_enabled(), (x * 2).requires_grad))
            return x * 2

        @staticmethod
        def backward(ctx, gradient: Tensor) -> Tensor:
            seen.append((torch.is_grad_enabled(), gradient.requires_grad))
            return gradient * 2

    Probe.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert seen == [(False, False), (False, False)]


class Handover(torch.autograd.Function):
    """Give `buffer`, or what `alias` makes of it, away as the gradient of the weight."""

    @staticmethod
    def forward(ctx, weight: Tensor, buffer: Tensor, alias: bool) -> Tensor:
        ctx.buffer, ctx.alias = buffer, alias
        return weight.sum()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.buffer.data if ctx.alias else ctx.buffer, None, None


def test_a_gradient_that_somebody_still_holds_is_copied() -> None:
    weight, buffer = torch.ones(3, requires_grad=True), torch.full((3,), 5.0)
    Handover.apply(weight, buffer, False).backward()
    buffer.zero_()
    assert weight.grad is not None
    assert weight.grad.tolist() == [5, 5, 5]


def test_a_gradient_that_nobody_seems_to_hold_is_stolen() -> None:
    """`.data` is a second tensor on the same memory: autograd sees one owner and takes the memory."""
    weight, buffer = torch.ones(3, requires_grad=True), torch.full((3,), 5.0)
    Handover.apply(weight, buffer, True).backward()
    assert weight.grad is not None
    assert weight.grad.data_ptr() == buffer.data_ptr()
    buffer.zero_()
    assert weight.grad.tolist() == [0, 0, 0]


def test_the_second_gradient_is_added_in_place() -> None:
    weight = torch.ones(3, requires_grad=True)
    (weight * 2).sum().backward()
    first = weight.grad
    (weight * 2).sum().backward()
    assert weight.grad is first
    assert first is not None
    assert first.tolist() == [4, 4, 4]


# Forward mode.


def tangent(function, x: float) -> float:  # type: ignore[no-untyped-def]
    return torch.func.jvp(function, (torch.tensor(x),), (torch.tensor(1.0),))[1].item()


def test_detach_drops_the_tangent_in_forward_mode() -> None:
    """So one `step` that detaches its reset has the right Jacobian in both directions."""
    assert tangent(lambda x: x * x, 3.0) == 6
    assert tangent(lambda x: x * x.detach(), 3.0) == 3
    assert tangent(lambda x: x * x.data, 3.0) == 3


def test_no_grad_does_not_drop_the_tangent_when_set_outside() -> None:
    with torch.no_grad():
        assert tangent(lambda x: x * x, 3.0) == 6


def test_a_comparison_has_no_tangent_and_a_surrogate_needs_a_jvp_of_its_own() -> None:
    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(u: Tensor) -> Tensor:
            return (u >= 0).to(u.dtype)

        @staticmethod
        def setup_context(ctx, inputs: tuple[Tensor], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, gradient: Tensor) -> Tensor:
            return gradient * 7

        @staticmethod
        def jvp(ctx, direction: Tensor) -> Tensor:
            return direction * 7

    assert tangent(lambda u: (u >= 0).to(u.dtype) * u, 3.0) == 1
    assert tangent(Spike.apply, 3.0) == 7
