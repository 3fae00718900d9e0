"""Weight gradients gathered inside the traces are autograd's, and nobody who listens to autograd is left out."""

import pytest
import torch
from nets import assert_same, gradients, labels, live_input, live_net, loop_gradients
from torch import nn
from torch.nn import functional as F

from snnlearn import LIF, OTTT, ETBlock, ETLinear, OnlineLearner, attach
from snnlearn.engine.gathering import gathering, hand_over


def test_gathered_gradients_equal_autograds(device: torch.device) -> None:
    net, x, y = live_net(device), live_input(6, 5, device=device), labels(5, device=device)
    attach(net, OTTT())
    true = loop_gradients(net, x, y)
    attach(net, OTTT())
    net.zero_grad(set_to_none=True)
    with gathering(net):
        for x_t in x:
            (F.cross_entropy(net(x_t), y) / len(x)).backward()
        assert net.hidden.connection.weight.grad is None  # it lies in the trace
        assert net.hidden.connection.bias.grad is not None
        hand_over(net)
        assert_same(gradients(net), true)
        net.zero_grad(set_to_none=True)
        hand_over(net)
        assert net.hidden.connection.weight.grad is None  # handed over once
    assert net.hidden.connection.trace.gathered is None


def test_outside_the_context_backward_fills_grad_as_ever() -> None:
    net, x, y = live_net(), live_input(6, 5), labels(5)
    attach(net, OTTT())
    with gathering(net):
        pass
    F.cross_entropy(net(x[0]), y).backward()
    assert net.hidden.connection.weight.grad is not None


def test_an_error_leaves_nothing_gathered() -> None:
    net, x, y = live_net(), live_input(6, 5), labels(5)
    attach(net, OTTT())

    def interrupted() -> None:
        with gathering(net):
            F.cross_entropy(net(x[0]), y).backward()
            assert net.hidden.connection.trace.gathered is not None
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert net.hidden.connection.trace.gathered is None
    assert net.hidden.connection.trace.gathering is None


def test_a_weight_with_a_hook_is_left_to_autograd() -> None:
    net, x, y = live_net(), live_input(6, 5), labels(5)
    seen: list[torch.Tensor] = []
    net.hidden.connection.weight.register_hook(seen.append)
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.0))
    learner.learn(x, y)
    assert len(seen) == len(x)


def test_a_parametrised_weight_is_left_to_autograd() -> None:
    block = ETBlock(ETLinear(6, 8), LIF()).double()
    nn.utils.parametrizations.weight_norm(block.connection)
    attach(block, OTTT())
    with gathering(block):
        block(2 * torch.ones(3, 6, dtype=torch.float64)).sum().backward()
        hand_over(block)
    for name, p in block.named_parameters():
        assert p.grad is not None, name
        assert float(p.grad.norm()) > 0
