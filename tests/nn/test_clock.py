"""The clock of the trace: every order of calls that must raise raises; `test_clock_allows.py` has those that work."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from nets import assert_same, furthest, gradients, labels, loop_gradients
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from snnlearn import LIF, OTTT, ETBlock, ETConv1d, ETLinear, StaleTraceError, TraceBuffer, attach, et_linear, reset
from snnlearn.functional import lif_leak_transition


def two_forwards(net: nn.Module, x: Tensor) -> None:
    first = net(x[0])
    net(x[1])
    first.sum().backward()


def two_forwards_and_both_losses(net: nn.Module, x: Tensor) -> None:
    (net(x[0]) + net(x[1])).sum().backward()


def whole_sequence_loss(net: nn.Module, x: Tensor) -> None:
    torch.stack([net(x_t) for x_t in x]).mean(0).square().sum().backward()


def reset_before_backward(net: nn.Module, x: Tensor) -> None:
    output = net(x[0])
    reset(net)
    output.sum().backward()


def reset_and_one_step_before_backward(net: nn.Module, x: Tensor) -> None:
    """The tick counts resets, so a new sequence at the same step number is told from the old one."""
    output = net(x[0])
    reset(net)
    net(x[0])
    output.sum().backward()


def row_reset_before_backward(net: nn.Module, x: Tensor) -> None:
    output = net(x[0])
    reset(net, torch.tensor([True, False, False, False], device=x.device))
    output.sum().backward()


def backward_after_the_next_forward(net: nn.Module, x: Tensor) -> None:
    net(x[0]).sum().backward()
    late = net(x[1])
    net(x[2]).sum().backward()
    late.sum().backward()


def move_before_backward(net: nn.Module, x: Tensor) -> None:
    output = net(x[0])
    net.to(x.device)
    output.sum().backward()


@pytest.mark.parametrize(
    "wrong_order",
    [
        two_forwards,
        two_forwards_and_both_losses,
        whole_sequence_loss,
        reset_before_backward,
        reset_and_one_step_before_backward,
        row_reset_before_backward,
        backward_after_the_next_forward,
        move_before_backward,
    ],
)
def test_wrong_order_raises(wrong_order: Callable[[nn.Module, Tensor], None], net: nn.Module, x: Tensor) -> None:
    with pytest.raises(StaleTraceError) as raised:
        wrong_order(net, x)
    message = str(raised.value)
    assert "output" in message
    assert "BPTT()" in message
    assert "once per step" in message
    expected, found = map(int, re.findall(r"tick (\d+)", message))
    assert expected != found


def test_the_block_at_fault_is_named(net: nn.Sequential, x: Tensor) -> None:
    """Only the hidden block is stepped twice."""
    spikes = net.hidden(x[0])
    net.hidden(x[1])
    with pytest.raises(StaleTraceError, match=r"^hidden: "):
        net.output(spikes).sum().backward()


def test_one_block_used_twice_in_a_step_raises(device: torch.device) -> None:
    block = ETBlock(ETLinear(4, 4), LIF()).to(device)
    attach(block, OTTT())
    with pytest.raises(StaleTraceError, match=r"the block: .*stepped again"):
        block(block(torch.ones(2, 4, device=device))).sum().backward()


def test_one_convolution_used_twice_in_a_step_raises(device: torch.device) -> None:
    block = ETBlock(ETConv1d(2, 2, 3, padding=1), LIF()).to(device)
    attach(block, OTTT())
    with pytest.raises(StaleTraceError, match="stepped again"):
        block(block(torch.ones(2, 2, 5, device=device))).sum().backward()


@pytest.mark.parametrize("how", ["no_grad", "inference_mode", "eval"])
def test_learning_after_a_step_without_the_trace_raises(how: str, net: nn.Module, x: Tensor) -> None:
    net(x[0]).sum().backward()
    if how == "eval":
        net.eval()
        net(x[1])
        net.train()
    else:
        with torch.no_grad() if how == "no_grad" else torch.inference_mode():
            net(x[1])
    with pytest.raises(StaleTraceError, match=r"^hidden: .*1 step\(s\) under no_grad\(\) or eval\(\).*reset\(net\)"):
        net(x[2])
    reset(net)
    net(x[2]).sum().backward()


def test_weight_gradient_of_an_eval_forward_raises(net: nn.Module, x: Tensor) -> None:
    net.eval()
    with pytest.raises(StaleTraceError, match=r"^output: .*eval\(\).*net\.train\(\).*requires_grad_\(False\)"):
        net(x[0]).sum().backward()


def test_checkpointing_a_block_raises(net: nn.Module, x: Tensor) -> None:
    """Its second forward would advance the trace again."""
    output = checkpoint(net, x[0].clone().requires_grad_(), use_reentrant=False)
    with pytest.raises(StaleTraceError):
        output.sum().backward()


def test_forward_without_advance_raises() -> None:
    trace, weight = TraceBuffer(lif_leak_transition(0.5), "mine"), torch.ones(1, 2, requires_grad=True)
    output = et_linear(torch.ones(1, 2), trace, weight)
    with pytest.raises(StaleTraceError, match=r"^mine: .*no trace in it.*not advanced"):
        output.sum().backward()


def test_advancing_twice_raises() -> None:
    trace, weight = TraceBuffer(lif_leak_transition(0.5), "mine"), torch.ones(1, 2, requires_grad=True)
    output = et_linear(torch.ones(1, 2), trace, weight)
    trace.advance_(torch.ones(1, 2))
    trace.advance_(torch.ones(1, 2))
    with pytest.raises(StaleTraceError, match=r"^mine: "):
        output.sum().backward()


def test_without_the_clock_the_gradient_would_be_silently_wrong(
    net: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: what the clock guards is real."""
    y = labels(4, device=x.device)
    right = loop_gradients(net, x, y)
    monkeypatch.setattr(TraceBuffer, "expect", lambda self: 0)
    honest = TraceBuffer.read
    monkeypatch.setattr(TraceBuffer, "read", lambda self, tick: honest(self, self.tick))
    assert_same(loop_gradients(net, x, y), right)
    net.zero_grad()
    reset(net)
    torch.stack([F.cross_entropy(net(x_t), y) for x_t in x]).mean().backward()
    assert furthest(gradients(net), right) > 1e-3
