"""A block that runs as one autograd node gives the numbers of the same block phase by phase."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from snnlearn import (
    ALIF,
    IF,
    LI,
    LIF,
    OTTT,
    SLTT,
    ArcTan,
    CubaLIF,
    ETBlock,
    ETConv1d,
    ETConv2d,
    ETConv3d,
    ETLinear,
    Neuron,
    attach,
)
from snnlearn.engine.gathering import Gathering

NEURONS: dict[str, Callable[[], Neuron]] = {
    "LIF": LIF,
    "hard": lambda: LIF(tau=3.0, reset="hard"),
    "ALIF": ALIF,
    "CubaLIF": lambda: CubaLIF(tau=3.0, tau_synapse=2.0),
}


def built(neuron: Callable[[], Neuron] = LIF, bias: bool = True, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(1)
    net = nn.Sequential(
        ETBlock(ETLinear(6, 16, bias=bias), neuron()), ETBlock(ETLinear(16, 5, bias=bias), neuron())
    ).to(dtype)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(4)
    attach(net, OTTT())
    return net


def blocks(net: nn.Sequential) -> list[ETBlock]:
    return [block for block in net if isinstance(block, ETBlock)]


def learned(net: nn.Sequential, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Step along x [T, B, I] with a backward each; return the outputs and every gradient, the input's last."""
    x = x.clone().requires_grad_()
    outputs = []
    for x_t in x:
        output = net(x_t)
        (output * torch.linspace(-1, 2, 5, dtype=x.dtype)).sum().backward()
        outputs.append(output.detach())
    gradients = [p.grad for p in (*net.parameters(), x) if p.grad is not None]
    assert len(gradients) == len(list(net.parameters())) + 1
    return torch.stack(outputs), gradients


@pytest.mark.parametrize("neuron", NEURONS.values(), ids=NEURONS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [False, True], ids=["", "rows reset"])
def test_one_node_gives_the_numbers_of_the_phases(neuron: Callable[[], Neuron], bias: bool, rows: bool) -> None:
    net = built(neuron, bias)
    apart = copy.deepcopy(net)
    for block in blocks(apart):
        block.neuron.register_forward_hook(lambda *_: None)  # somebody listens, so the phases run one by one
    assert all(block.is_one_node() for block in blocks(net))
    assert not any(block.is_one_node() for block in blocks(apart))
    x = torch.rand(6, 3, 6, dtype=torch.float64)
    for part in (x[:3], x[3:]):
        output, gradients = learned(net, part)
        other_output, other_gradients = learned(apart, part)
        assert 0.02 < float(output.mean()) < 0.8
        torch.testing.assert_close(output, other_output, rtol=0, atol=0)
        for gradient, other in zip(gradients, other_gradients, strict=True):
            assert bool(gradient.any())
            torch.testing.assert_close(gradient, other, rtol=1e-14, atol=1e-14)
        if rows:
            for each in (net, apart):
                for module in blocks(each):
                    assert module.connection.trace is not None
                    module.connection.trace.reset(torch.tensor([True, False, False]))
                    module.neuron.reset(torch.tensor([True, False, False]))


CONVOLUTIONS: dict[str, tuple[ETConv1d | ETConv2d | ETConv3d, Neuron]] = {
    "one dimension": (ETConv1d(2, 3, 3, stride=2), ALIF()),
    "two": (ETConv2d(2, 3, 3, padding=1), LIF(decay=torch.full((3, 1, 1), 0.6))),
    "three, no bias": (ETConv3d(2, 3, 2, bias=False), LIF(tau=3.0, reset="hard")),
    "padded in words": (ETConv2d(2, 3, 3, padding="same", padding_mode="reflect"), IF()),
    "no reset": (ETConv2d(2, 2, 3, groups=2), LIF(reset="none", threshold=torch.tensor([0.8, 1.5])[:, None, None])),
}


@pytest.mark.parametrize("parts", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_convolution_in_one_node_gives_the_numbers_of_the_phases(parts: tuple[Any, Neuron]) -> None:
    torch.manual_seed(1)
    net = ETBlock(*copy.deepcopy(parts)).double()
    with torch.no_grad():
        net.connection.weight.mul_(3)
    attach(net, OTTT())
    apart = copy.deepcopy(net)
    apart.neuron.register_forward_hook(lambda *_: None)
    assert net.is_one_node()
    assert not apart.is_one_node()
    x, found = torch.rand(4, 3, 2, *(6,) * (net.connection.input_dims[0] - 2), dtype=torch.float64), []
    for each in (net, apart):
        xs, outputs, membranes = x.clone().requires_grad_(), [], []
        for x_t in xs:
            output = each(x_t)
            outputs.append(output.detach())
            assert each.neuron.state is not None
            membranes.append(each.neuron.state[0])  # a step leaves what others hold as it is
            (output * torch.linspace(-1, 2, output.numel(), dtype=x.dtype).view_as(output)).sum().backward()
        assert 0.02 < float(torch.stack(outputs).mean()) < 0.8
        found.append([*outputs, *membranes, xs.grad, *(parameter.grad for parameter in each.parameters())])
    for one, other in zip(*found, strict=True):
        assert one is not None
        assert bool(one.any())
        torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-14)


def test_one_node_under_autocast(unchecked: None) -> None:
    net = built(dtype=torch.float32)
    apart = copy.deepcopy(net)
    for block in blocks(apart):
        block.neuron.register_forward_hook(lambda *_: None)
    x = torch.rand(6, 3, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, gradients = learned(net, x)
        other_output, other_gradients = learned(apart, x)
    torch.testing.assert_close(output, other_output, rtol=0, atol=0)
    torch.testing.assert_close(gradients, other_gradients, rtol=2e-2, atol=2e-2)


def hook_the_connection(block: ETBlock) -> None:
    block.connection.register_forward_pre_hook(lambda *_: None)


def norm_it(block: ETBlock) -> None:
    block.norm = nn.Identity()


def eval_it(block: ETBlock) -> None:
    block.eval()


def carry_the_graph(block: ETBlock) -> None:
    block.neuron.carry_graph = True


def drop_the_trace(block: ETBlock) -> None:
    attach(block, SLTT())


def parametrize_the_weight(block: ETBlock) -> None:
    parametrizations.weight_norm(block.connection)


def without_spikes(block: ETBlock) -> None:
    block.neuron = LI()


def own_forward_of_the_connection(block: ETBlock) -> None:
    forward = block.connection.forward
    block.connection.forward = lambda x: 2 * forward(x)  # type: ignore[method-assign]


def own_forward_of_the_neuron(block: ETBlock) -> None:
    forward = block.neuron.forward
    block.neuron.forward = lambda y: forward(2 * y)  # type: ignore[method-assign]


def own_step_of_the_neuron(block: ETBlock) -> None:
    step = block.neuron.step
    block.neuron.step = lambda y, state: step(2 * y, state)  # type: ignore[method-assign]


class Loud(LIF):
    unit_drive = True

    def spike(self, u: Tensor) -> Tensor:
        return super().spike(3 * u)


def a_subclass_that_only_says_so(block: ETBlock) -> None:
    block.neuron = Loud()


@dataclass(frozen=True)
class Steep(ArcTan):
    def __call__(self, u: Tensor) -> Tensor:
        return super().__call__(3 * u)


def a_surrogate_that_is_called_otherwise(block: ETBlock) -> None:
    block.neuron.surrogate = Steep()


@pytest.mark.parametrize(
    "change",
    [
        hook_the_connection,
        norm_it,
        eval_it,
        carry_the_graph,
        drop_the_trace,
        parametrize_the_weight,
        without_spikes,
        own_forward_of_the_connection,
        own_forward_of_the_neuron,
        own_step_of_the_neuron,
        a_subclass_that_only_says_so,
        a_surrogate_that_is_called_otherwise,
    ],
)
def test_what_one_node_cannot_hold_runs_phase_by_phase(change: Callable[[ETBlock], None]) -> None:
    block = blocks(built())[0]
    assert block.is_one_node()
    change(block)
    assert not block.is_one_node()
    assert block(torch.rand(3, 6, dtype=torch.float64)).shape == (3, 16)


@pytest.mark.parametrize("change", [own_forward_of_the_neuron, own_step_of_the_neuron, a_subclass_that_only_says_so])
def test_what_the_instance_does_otherwise_is_done(change: Callable[[ETBlock], None]) -> None:
    """Negative control: the changed block gives other numbers than the block as built."""
    block, changed = blocks(built())[0], blocks(built())[0]
    change(changed)
    changed.neuron.carry_graph = False
    x = torch.rand(3, 6, dtype=torch.float64)
    results = []
    for each in (block, changed):
        each(x).sum().backward()
        weight = each.connection.weight
        assert isinstance(weight, Tensor)
        assert weight.grad is not None
        results.append(weight.grad)
    assert float((results[0] - results[1]).norm()) > 1e-3


def test_a_weight_that_is_no_parameter_still_works() -> None:
    block = blocks(built())[0]
    weight = block.connection.weight
    assert isinstance(weight, Tensor)
    plain = weight.detach().clone().requires_grad_()
    del block.connection.weight
    block.connection.weight = plain
    assert block.is_one_node()
    block(torch.rand(3, 6, dtype=torch.float64)).sum().backward()
    assert plain.grad is not None


def test_no_grad_runs_phase_by_phase() -> None:
    with torch.no_grad():
        assert not blocks(built())[0].is_one_node()


def test_a_global_hook_sees_connection_and_neuron() -> None:
    block, seen = blocks(built())[0], []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    try:
        block(torch.rand(3, 6, dtype=torch.float64))
    finally:
        handle.remove()
    assert seen == ["ETLinear", "LIF", "ETBlock"]


def test_a_second_order_gradient_is_refused() -> None:
    block = blocks(built())[0]
    with pytest.raises(RuntimeError, match=r"create_graph=True .* attach BPTT\(\)"):
        torch.autograd.grad(
            block(torch.rand(3, 6, dtype=torch.float64)).sum(), list(block.parameters()), create_graph=True
        )


def test_every_gathered_sum_starts_afresh() -> None:
    """Three updates in a row equal three of fresh networks."""
    net = built()
    weight = blocks(net)[0].connection.weight
    assert isinstance(weight, Tensor)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.rand(3, 2, 6, dtype=torch.float64)
        fresh = built()
        learned(fresh, x)
        for module in blocks(net):
            module.neuron.reset()
            assert module.connection.trace is not None
            module.connection.trace.reset()
        net.zero_grad()
        with Gathering(net) as gathering:
            for x_t in x:
                (net(x_t) * torch.linspace(-1, 2, 5, dtype=x.dtype)).sum().backward()
            gathering.hand_over()
        assert weight.grad is not None
        right = blocks(fresh)[0].connection.weight
        assert isinstance(right, Tensor)
        torch.testing.assert_close(weight.grad, right.grad)
