"""Weight gradients gathered inside the traces are autograd's, and nobody who listens to autograd is left out."""

import copy
from collections.abc import Callable

import pytest
import torch
from nets import assert_same, gradients, labels, live_input, live_net, loop_gradients
from torch import nn
from torch.nn import functional as F

from snnlearn import LIF, OTTT, ETBlock, ETLinear, OnlineLearner, attach
from snnlearn.engine.gathering import Gathering


def test_gathered_gradients_equal_autograds(device: torch.device) -> None:
    net, x, y = live_net(device), live_input(6, 5, device=device), labels(5, device=device)
    attach(net, OTTT())
    true = loop_gradients(net, x, y)
    attach(net, OTTT())
    net.zero_grad(set_to_none=True)
    with Gathering(net) as gathering:
        for x_t in x:
            (F.cross_entropy(net(x_t), y) / len(x)).backward()
        assert net.hidden.connection.weight.grad is None  # it lies in the trace
        assert net.hidden.connection.bias.grad is not None
        gathering.hand_over()
        assert_same(gradients(net), true)
        net.zero_grad(set_to_none=True)
        gathering.hand_over()
        assert net.hidden.connection.weight.grad is None  # handed over once
    assert net.hidden.connection.trace.gathered is None


def test_outside_the_context_backward_fills_grad_as_ever() -> None:
    net, x, y = live_net(), live_input(6, 5), labels(5)
    attach(net, OTTT())
    with Gathering(net):
        pass
    F.cross_entropy(net(x[0]), y).backward()
    assert net.hidden.connection.weight.grad is not None


def test_an_error_leaves_nothing_gathered() -> None:
    net, x, y = live_net(), live_input(6, 5), labels(5)

    class Interrupting(torch.optim.SGD):
        def step(self, closure=None):  # type: ignore[no-untyped-def, override]
            raise KeyboardInterrupt

    learner = OnlineLearner(net, OTTT(), F.cross_entropy, Interrupting(net.parameters(), lr=0.0), update=2)
    with pytest.raises(KeyboardInterrupt):
        learner.learn(x, y)
    assert net.hidden.connection.trace.gathered is None
    assert net.hidden.connection.trace.gathering is None
    assert net.hidden.connection.weight.grad is None


def updates(net: nn.Module, learn: Callable[[OnlineLearner], object]) -> dict[str, torch.Tensor]:
    """What one SGD update of rate 1 takes off every parameter."""
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    learn(OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=1.0)))
    return {name: before[name] - p.detach() for name, p in net.named_parameters()}


def test_a_weight_replaced_for_the_call_keeps_its_own_gradient() -> None:
    """The product belongs to half the weight, so the weight gets half of it; a plain loop says the same."""

    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = ETBlock(ETLinear(6, 3), LIF()).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            half = {"connection.weight": 0.5 * self.block.connection.weight}
            return torch.func.functional_call(self.block, half, (x,))

    torch.manual_seed(3)
    net, x, y = Halved(), 3 * live_input(6, 5), labels(5)
    attach(net, OTTT())
    true = loop_gradients(net, x, y)
    assert_same(updates(net, lambda learner: learner.learn(x, y)), true)


def test_a_weight_made_before_each_call_is_left_to_autograd() -> None:
    with pytest.warns(FutureWarning):
        torch.nn.utils.weight_norm(connection := ETLinear(6, 3).double())
    net, x, y = ETBlock(connection, LIF()), 3 * live_input(6, 5), labels(5)
    attach(net, OTTT())
    true = loop_gradients(net, x, y)
    assert {"connection.weight_g", "connection.weight_v"} <= true.keys()
    assert_same(updates(net, lambda learner: learner.learn(x, y)), true)


def test_a_loss_that_differentiates_on_its_own_adds_nothing() -> None:
    net, x, y = live_net(), live_input(6, 5), labels(5)

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        value = F.cross_entropy(output, target)
        torch.autograd.grad(value, list(net.parameters()), retain_graph=True, allow_unused=True)
        return value

    attach(net, OTTT())
    true = loop_gradients(net, x, y)
    learner = OnlineLearner(net, OTTT(), loss, torch.optim.SGD(net.parameters(), lr=1.0))
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    learner.learn(x, y)
    assert_same({name: before[name] - p.detach() for name, p in net.named_parameters()}, true)


def test_a_kept_gradient_stays_as_it_was() -> None:
    net, x, y = live_net(), live_input(6, 5), labels(5)

    class Keeping(torch.optim.SGD):
        kept: torch.Tensor | None = None

        def step(self, closure=None):  # type: ignore[no-untyped-def, override]
            self.kept = net.hidden.connection.weight.grad if self.kept is None else self.kept

    optimizer = Keeping(net.parameters(), lr=0.0)
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, optimizer)
    learner.learn(x, y)
    assert optimizer.kept is not None
    before = optimizer.kept.clone()
    learner.learn(2 * x, y)
    assert torch.equal(optimizer.kept, before)


def test_a_copy_made_in_mid_sequence_gathers_nothing() -> None:
    net, x, y = live_net(), live_input(6, 5), labels(5)
    copies: list[nn.Module] = []
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.0), update=2)
    net.hidden.connection.bias.register_hook(lambda _: copies.append(copy.deepcopy(net)))
    learner.learn(x, y)
    twin = copies[3]
    twin.zero_grad(set_to_none=True)
    twin_trace = twin.hidden.connection.trace
    assert twin_trace.gathering is None
    assert twin_trace.gathered is None
    F.cross_entropy(twin(x[4]), y).backward()
    assert twin.hidden.connection.weight.grad is not None


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
    with Gathering(block) as gathering:
        block(2 * torch.ones(3, 6, dtype=torch.float64)).sum().backward()
        gathering.hand_over()
    for name, p in block.named_parameters():
        assert p.grad is not None, name
        assert float(p.grad.norm()) > 0
