"""How an input lies in memory, and what becomes of that memory, changes no gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from nets import assert_same, gradients
from torch import Tensor

from snnlearn import LIF, OTTT, SLTT, ETBlock, ETConv2d, ETLinear, LearningRule, attach
from snnlearn.nn import Connection

# N08: strides of the input, on a sensor that is not square.

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "sliced": lambda x: torch.stack([x, torch.full_like(x, 9.0)], dim=2).flatten(1, 2)[:, ::2],
    "time and batch swapped": lambda x: torch.stack([x, x + 1], dim=1).transpose(0, 1)[0],
    "width and height swapped in memory": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
}


def learn_maps(x: Tensor, connection: Connection) -> tuple[Tensor, dict[str, Tensor]]:
    block = ETBlock(copy.deepcopy(connection), LIF()).to(x.device)
    attach(block, OTTT())
    for _ in range(3):
        output = block(x)
        output.square().mean().backward()
    assert 0.01 < float(output.detach().mean()) < 0.9
    return output.detach(), gradients(block)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_change_nothing(layout: str, device: torch.device) -> None:
    connection = ETConv2d(2, 4, 3, padding=1)
    with torch.no_grad():
        connection.weight.mul_(3)
    x = (torch.rand(3, 2, 34, 20) < 0.3).float().to(device)
    variant = LAYOUTS[layout](x)
    assert torch.equal(variant, x)
    assert variant.stride() != x.stride() or layout == "time and batch swapped"
    expected, expected_gradients = learn_maps(x, connection)
    assert expected.shape == (3, 4, 34, 20)
    output, found = learn_maps(variant, connection)
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
    assert_same(found, expected_gradients, 1e-5)


@pytest.mark.parametrize("shape", [(1, 2, 34, 20), (1, 8)])
def test_an_expanded_input_is_read_and_never_written(shape: tuple[int, ...], device: torch.device) -> None:
    one = (torch.rand(shape) < 0.6).float().to(device)
    kept = one.clone()
    connection: Connection = ETConv2d(2, 4, 3, padding=1) if len(shape) == 4 else ETLinear(8, 16)
    with torch.no_grad():
        connection.weight.mul_(4)
    expanded = one.expand(3, *shape[1:])
    assert expanded.stride(0) == 0
    output, found = learn_maps(expanded, connection)
    expected, expected_gradients = learn_maps(expanded.contiguous(), connection)
    assert torch.equal(one, kept)
    torch.testing.assert_close(output, expected)
    assert_same(found, expected_gradients, 1e-5)


@pytest.mark.parametrize("rule", [OTTT(), SLTT()], ids=lambda rule: rule.name)
def test_the_input_may_be_overwritten_after_its_step(rule: LearningRule, device: torch.device) -> None:
    """A stream often fills one buffer again and again: the trace is no view of it."""
    x = (torch.rand(4, 3, 8) < 0.5).double().to(device)

    def learn(reuse: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        block = ETBlock(ETLinear(8, 16), LIF()).to(device, torch.float64)
        with torch.no_grad():
            block.connection.weight.mul_(4)
        attach(block, rule)
        buffer = torch.empty_like(x[0])
        for x_t in x:
            block(buffer.copy_(x_t) if reuse else x_t).square().sum().backward()
        return gradients(block)

    assert_same(learn(reuse=True), learn(reuse=False), 1e-14)
