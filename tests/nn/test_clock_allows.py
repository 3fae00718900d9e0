"""What the clock of the trace lets pass, and that the gradient is then autograd's own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from nets import assert_alive, assert_same, gradients, labels, live_input, live_net, loop_gradients
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import LI, LIF, OTTT, SLTT, CubaLIF, ETBlock, ETLinear, TraceBuffer, attach, bptt_gradients, reset


def traces(net: nn.Module) -> list[TraceBuffer]:
    return [module for module in net.modules() if isinstance(module, TraceBuffer)]


def snapshot(net: nn.Module) -> list[tuple[int, Tensor, Tensor]]:
    taken = []
    for trace in traces(net):
        assert trace.values is not None
        assert trace.bias_values is not None
        taken.append((trace.tick, trace.values.clone(), trace.values.new_tensor(trace.bias_values)))
    assert taken
    return taken


def assert_stood_still(net: nn.Module, before: list[tuple[int, Tensor, Tensor]]) -> None:
    for (tick, values, bias), (tick_now, values_now, bias_now) in zip(before, snapshot(net), strict=True):
        assert tick == tick_now
        assert torch.equal(values, values_now)
        assert torch.equal(bias, bias_now)


def test_second_backward_in_the_same_step(net: nn.Module, x: Tensor) -> None:
    for x_t in x[:2]:
        net.zero_grad()
        loss = net(x_t).square().sum()
        loss.backward(retain_graph=True)
        once = gradients(net)
        loss.backward()
        assert_same(gradients(net), {name: 2 * g for name, g in once.items()}, 1e-14)


def test_two_losses_of_one_step_backward_one_by_one(net: nn.Module, x: Tensor) -> None:
    output = net(x[0])
    (output[:, 0].sum() + output[:, 1].square().sum()).backward(retain_graph=True)
    together = gradients(net)
    net.zero_grad()
    output[:, 0].sum().backward(retain_graph=True)
    output[:, 1].square().sum().backward()
    assert_same(gradients(net), together, 1e-13)


def test_no_grad_and_eval_move_no_trace(net: nn.Module, x: Tensor) -> None:
    net(x[0]).sum().backward()
    before = snapshot(net)
    with torch.no_grad():
        net(x[1])
    assert_stood_still(net, before)
    net.eval()
    net(x[2])
    assert_stood_still(net, before)
    with torch.no_grad():
        net(x[3])
    assert_stood_still(net, before)
    net.train()
    reset(net)
    net(x[0]).sum().backward()
    assert not torch.equal(snapshot(net)[0][1], torch.zeros_like(before[0][1]))


def test_no_trace_is_kept_where_none_may_be_needed(net: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        net(x[0])
    assert all(trace.values is None and trace.bias_values is None for trace in traces(net))
    net.eval()
    net(x[0])
    assert all(trace.values is None and trace.bias_values is None for trace in traces(net))


def test_input_gradient_in_eval(net: nn.Module, x: Tensor) -> None:
    """eval() refuses weight gradients alone."""
    net.eval().requires_grad_(False)
    start = x[0].clone().requires_grad_()
    net(start).sum().backward()
    assert start.grad is not None
    assert float(start.grad.abs().max()) > 0


def test_steps_without_a_backward(net: nn.Module, x: Tensor) -> None:
    """A loss at the last step alone: the trace advances at every step."""
    y = labels(4, device=x.device)
    assert_alive(net, x)
    for x_t in x:
        output = net(x_t)
    F.cross_entropy(output, y).backward()
    found = gradients(net)
    reset(net)

    def last_step_alone(output_t: Tensor, weight: Tensor) -> Tensor:
        return weight * F.cross_entropy(output_t, y)

    weights = torch.tensor([0.0, 0.0, 0.0, 0.0, 5.0], device=x.device)
    expected = bptt_gradients(net, x, weights, last_step_alone, cut=["output"], per_step_target=True)
    assert_same({n: g for n, g in found.items() if "hidden" in n}, {n: g for n, g in expected.items() if "hidden" in n})
    whole = bptt_gradients(net, x, weights, last_step_alone, per_step_target=True)
    assert_same({n: g for n, g in found.items() if "output" in n}, {n: g for n, g in whole.items() if "output" in n})


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),  # noqa: S301
}


@pytest.mark.parametrize("copier", COPIES)
@pytest.mark.parametrize("after_backward", [True, False])
def test_copy_in_mid_sequence_goes_on_alone(copier: str, after_backward: bool, net: nn.Module, x: Tensor) -> None:
    output = net(x[0])
    if after_backward:
        output.sum().backward()
        net.zero_grad()
    twin = COPIES[copier](net)
    before = snapshot(net)
    twin(x[2]).sum().backward()
    assert_stood_still(net, before)
    reset(twin)
    assert_stood_still(net, before)
    twin = COPIES[copier](net)
    twin(x[1]).sum().backward()
    if not after_backward:
        output.sum().backward()
        net.zero_grad()
    net(x[1]).sum().backward()
    assert_same(gradients(twin), gradients(net), 1e-14)


def test_save_and_load_of_the_whole_module_in_mid_sequence(net: nn.Module, x: Tensor, tmp_path) -> None:  # type: ignore[no-untyped-def]
    net(x[0]).sum().backward()
    net.zero_grad()
    torch.save(net, tmp_path / "net.pt")
    twin = torch.load(tmp_path / "net.pt", weights_only=False)
    twin(x[1]).sum().backward()
    net(x[1]).sum().backward()
    assert_same(gradients(twin), gradients(net), 1e-14)


@pytest.mark.parametrize("between", ["sequences", "steps"])
def test_moves(between: str, x: Tensor) -> None:
    """To float32 and back to float64 changes no number here: every spike and every power of 1/2 fits both."""
    net = live_net(x.device)
    attach(net, OTTT())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_((parameter * 16).round() / 16)
    y = labels(4, device=x.device)
    expected = loop_gradients(net, x, y)
    net.zero_grad(set_to_none=True)
    reset(net)
    for step, x_t in enumerate(x):
        if step == 2 and between == "steps":
            kept = gradients(net)
            net.cpu().float().to(x.device).double()
            assert_same(gradients(net), kept, 1e-6)
            for name, parameter in net.named_parameters():
                parameter.grad = kept[name]
        (F.cross_entropy(net(x_t), y) / len(x)).backward()
    if between == "sequences":
        net.cpu().float().to(x.device).double()
        assert_same(loop_gradients(net, x, y), expected)
    else:
        assert_same(gradients(net), expected)


@pytest.mark.parametrize("neuron", [LIF, CubaLIF])
def test_two_blocks_sharing_one_parameter_both_contribute(neuron: Callable[[], LIF], device: torch.device) -> None:
    """Each block keeps its own trace; autograd adds what both make of the one weight."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = ETBlock(ETLinear(6, 6), neuron())
            self.second = ETBlock(ETLinear(6, 6), neuron())
            self.readout = ETBlock(ETLinear(6, 3), LI())

        def forward(self, x_t: Tensor) -> Tensor:
            output: Tensor = self.readout(self.second(self.first(x_t)))
            return output

    untied = Twice().to(device, torch.float64)
    with torch.no_grad():
        untied.first.connection.weight.mul_(3)
        untied.second.load_state_dict(untied.first.state_dict())
    tied = copy.deepcopy(untied)
    tied.second.connection.weight = tied.first.connection.weight
    x, y = live_input(6, 4, device=device), labels(4, device=device)
    assert_alive(tied, x)
    for net in (tied, untied):
        attach(net, OTTT())
    apart, together = loop_gradients(untied, x, y), loop_gradients(tied, x, y)
    first, second = apart["first.connection.weight"], apart["second.connection.weight"]
    assert float(first.abs().max()) > 1e-4
    assert float(second.abs().max()) > 1e-4
    torch.testing.assert_close(together["first.connection.weight"], first + second, rtol=0, atol=1e-12)
    assert "second.connection.weight" not in together


def test_sltt_allows_a_whole_sequence_loss(x: Tensor) -> None:
    net = live_net(x.device)
    attach(net, SLTT())
    y = labels(4, device=x.device)
    assert_alive(net, x)
    by_steps = loop_gradients(net, x, y)
    net.zero_grad()
    reset(net)
    torch.stack([F.cross_entropy(net(x_t), y) for x_t in x]).mean().backward()
    assert_same(gradients(net), by_steps, 1e-13)


# P02, P03, P04, P07: the gradient is autograd's own, however it is asked for.


def test_asking_for_a_graph_of_the_gradient_raises(net: nn.Module, x: Tensor) -> None:
    """P02: never a silent zero."""
    loss = net(x[0]).square().sum()
    with pytest.raises(RuntimeError, match=r"create_graph=True reached.*eligibility trace.*BPTT\(\)"):
        torch.autograd.grad(loss, next(net.parameters()), create_graph=True)


def test_autograd_grad_equals_backward_and_writes_nothing(net: nn.Module, x: Tensor) -> None:
    """P03."""
    net(x[0]).sum().backward()
    net.zero_grad(set_to_none=True)
    loss = net(x[1]).square().sum()
    asked = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
    assert all(parameter.grad is None for parameter in net.parameters())
    loss.backward()
    assert_same(gradients(net), dict(zip(dict(net.named_parameters()), asked, strict=True)), 1e-14)


def test_a_branch_without_a_loss_leaves_nothing_behind(device: torch.device) -> None:
    """P04: loss on head A for the first sequence, on B for the second."""

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = ETBlock(ETLinear(6, 12), LIF())
            self.a = ETBlock(ETLinear(12, 3), LI())
            self.b = ETBlock(ETLinear(12, 3), LI())

        def forward(self, x_t: Tensor) -> tuple[Tensor, Tensor]:
            spikes = self.trunk(x_t)
            return self.a(spikes), self.b(spikes)

    used = TwoHeads().to(device, torch.float64)
    with torch.no_grad():
        used.trunk.connection.weight.mul_(3)
    fresh = copy.deepcopy(used)
    x, y = live_input(5, 4, device=device), labels(4, device=device)
    attach(used, OTTT())
    attach(fresh, OTTT())
    first = loop_gradients(used, x, y, lambda output, target: F.cross_entropy(output[0], target))
    assert "a.connection.weight" in first
    assert not any(name.startswith("b.") for name in first)
    second = loop_gradients(used, x, y, lambda output, target: F.cross_entropy(output[1], target))
    assert_same(second, loop_gradients(fresh, x, y, lambda output, target: F.cross_entropy(output[1], target)), 1e-14)


def test_gradient_lands_on_the_parameter_in_place_now(net: nn.Sequential, x: Tensor) -> None:
    """P07: replaced after attach, and in mid-sequence."""
    y = labels(4, device=x.device)
    expected = loop_gradients(net, x, y)
    old = net.hidden.connection.weight
    net.hidden.connection.weight = nn.Parameter(old.detach().clone())
    old.grad = None
    assert_same(loop_gradients(net, x, y), expected, 1e-14)
    assert old.grad is None
