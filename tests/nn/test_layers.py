"""Connections and blocks: torch's own layers, drop-in, with torch's own gradient where the trace is the input."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from nets import assert_same, gradients
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    BPTT,
    IF,
    LI,
    LIF,
    OTTT,
    SLTT,
    ETBlock,
    ETConv1d,
    ETConv2d,
    ETLinear,
    LearningRule,
    Readout,
    StateShapeError,
    TraceBuffer,
    WeightStandardizedETConv2d,
    attach,
    et_linear,
    reset,
)
from snnlearn.functional import lif_leak_transition
from snnlearn.nn import Connection

PAIRS: list[tuple[type[Any], type[Any]]] = [(ETLinear, nn.Linear), (ETConv1d, nn.Conv1d), (ETConv2d, nn.Conv2d)]


# Drop-in.


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_signature_and_class_are_torchs(ours: type[Any], theirs: type[Any]) -> None:
    assert issubclass(ours, theirs)
    assert inspect.signature(ours) == inspect.signature(theirs)


ARGUMENTS: dict[str, tuple[type[Any], type[Any], tuple[Any, ...], dict[str, Any]]] = {
    "linear": (ETLinear, nn.Linear, (5, 7), {}),
    "linear without bias": (ETLinear, nn.Linear, (5, 7), {"bias": False}),
    "linear double": (ETLinear, nn.Linear, (5, 7, True, "cpu", torch.float64), {}),
    "conv1d": (ETConv1d, nn.Conv1d, (4, 6, 3, 2, 1), {"groups": 2}),
    "conv2d": (ETConv2d, nn.Conv2d, (4, 6, (3, 2)), {"bias": False, "padding": "same"}),
}


@pytest.mark.parametrize("case", ARGUMENTS)
@pytest.mark.parametrize("traced", [False, True])
def test_same_initialisation_and_keys_and_weights_move_both_ways(case: str, traced: bool) -> None:
    ours, theirs, positional, named = ARGUMENTS[case]
    torch.manual_seed(3)
    mine = ours(*positional, **named)
    torch.manual_seed(3)
    plain = theirs(*positional, **named)
    if traced:
        attach(ETBlock(mine, LIF()), OTTT())
        assert mine.trace is not None
    assert list(mine.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in mine.named_parameters()] == [name for name, _ in plain.named_parameters()]
    for name, value in plain.state_dict().items():
        assert torch.equal(mine.state_dict()[name], value)
        assert mine.state_dict()[name].dtype == value.dtype
    other = theirs(*positional, **named)
    assert not torch.equal(other.weight, plain.weight)
    mine.load_state_dict(other.state_dict(), strict=True)
    assert torch.equal(mine.weight, other.weight)
    plain.load_state_dict(mine.state_dict(), strict=True)
    assert torch.equal(plain.weight, other.weight)


def test_weights_of_a_plain_network_load_into_one_of_blocks() -> None:
    """A plain recurrent network written without the library, with the same names."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.connection = nn.Linear(3, 2)

    plain, block = Plain(), ETBlock(ETLinear(3, 2), LIF())
    attach(block, OTTT())
    block(torch.ones(1, 3)).sum().backward()
    assert not torch.equal(block.connection.weight, plain.connection.weight)
    block.load_state_dict(plain.state_dict(), strict=True)
    assert torch.equal(block.connection.weight, plain.connection.weight)
    with torch.no_grad():
        block.connection.bias.fill_(3.0)
    plain.load_state_dict(block.state_dict(), strict=True)
    assert plain.connection.bias.tolist() == [3.0, 3.0]


# Values and, where the trace is the input, gradients.

LINEAR_SHAPES = [(2, 5), (1, 5), (3, 4, 5), (2, 3, 4, 5)]


def compare(mine: Any, plain: Any, x: Tensor) -> None:
    """At the first step of a sequence the trace is the input, so everything is torch's own."""
    attach(block := ETBlock(mine, IF()), OTTT())
    plain.load_state_dict(mine.state_dict())
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    output, expected = mine(ours), plain(theirs)
    mine.advance_trace(ours)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-13)
    signal = torch.randn_like(expected)
    output.backward(signal)
    expected.backward(signal)
    assert_same(gradients(mine), gradients(plain), 1e-12)
    assert ours.grad is not None
    assert theirs.grad is not None
    assert float(theirs.grad.abs().max()) > 0
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-12)
    reset(block)


@pytest.mark.parametrize("shape", LINEAR_SHAPES)
@pytest.mark.parametrize("bias", [True, False])
def test_linear_equals_torchs(shape: tuple[int, ...], bias: bool, device: torch.device) -> None:
    kind: dict[str, Any] = {"bias": bias, "device": device, "dtype": torch.float64}
    compare(ETLinear(5, 7, **kind), nn.Linear(5, 7, **kind), torch.randn(shape, device=device, dtype=torch.float64))


GEOMETRIES: list[dict[str, Any]] = [
    {},
    {"bias": False},
    {"stride": 2},
    {"stride": 3, "padding": 2},
    {"dilation": 2},
    {"dilation": 2, "padding": 1, "stride": 2},
    {"groups": 2},
    {"groups": 4, "padding": 1},
    {"padding": "same"},
    {"padding": "same", "dilation": 2},
    {"padding": "same", "kernel_size": 4},
    {"padding": "valid"},
    {"padding": 2, "padding_mode": "reflect"},
    {"padding": 2, "padding_mode": "replicate", "stride": 2},
    {"padding": 2, "padding_mode": "circular", "groups": 2},
    {"padding": "same", "padding_mode": "circular", "kernel_size": 4},
]


def geometry_id(geometry: dict[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in geometry.items()) or "plain"


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=geometry_id)
@pytest.mark.parametrize("dimensions", [1, 2])
def test_convolution_equals_torchs(dimensions: int, geometry: dict[str, Any], device: torch.device) -> None:
    arguments = {"kernel_size": 3, **geometry, "device": device, "dtype": torch.float64}
    ours, theirs = (ETConv1d, nn.Conv1d) if dimensions == 1 else (ETConv2d, nn.Conv2d)
    shape = (3, 4, 11) if dimensions == 1 else (3, 4, 11, 8)
    compare(ours(4, 8, **arguments), theirs(4, 8, **arguments), torch.randn(shape, device=device, dtype=torch.float64))


@pytest.mark.parametrize(
    "geometry", [{"stride": (2, 1), "padding": (0, 2), "kernel_size": (3, 5)}, {"dilation": (1, 3), "stride": (3, 2)}]
)
def test_convolution_with_uneven_geometry(geometry: dict[str, Any], device: torch.device) -> None:
    arguments = {"kernel_size": 3, **geometry, "device": device, "dtype": torch.float64}
    x = torch.randn(2, 4, 20, 13, device=device, dtype=torch.float64)
    compare(ETConv2d(4, 6, **arguments), nn.Conv2d(4, 6, **arguments), x)


def test_a_changed_weight_between_forward_and_backward_raises() -> None:
    """torch's own check still guards what torch saves: the input gradient needs the weight as it was."""
    layer = ETLinear(3, 2)
    attach(ETBlock(layer, LIF()), OTTT())
    x = torch.ones(1, 3, requires_grad=True)
    output = layer(x)
    layer.advance_trace(x)
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("leading", [(), (4,), (2, 3), (2, 3, 2)])
def test_the_primitive_takes_any_leading_dimensions(leading: tuple[int, ...], device: torch.device) -> None:
    """dL/dW = sum over the leading dimensions of d e^T, by hand."""
    make: dict[str, Any] = {"device": device, "dtype": torch.float64}
    x, trace = torch.randn(*leading, 5, **make).requires_grad_(), torch.randn(*leading, 5, **make)
    weight, bias = torch.randn(3, 5, **make).requires_grad_(), torch.randn(3, **make).requires_grad_()
    ones = torch.rand(leading, **make)
    output = et_linear(x, trace, weight, bias, ones)
    torch.testing.assert_close(output, F.linear(x, weight, bias))
    d = torch.randn_like(output)
    output.backward(d)
    rows, traces = d.reshape(-1, 3), trace.reshape(-1, 5)
    torch.testing.assert_close(weight.grad, rows.T @ traces, rtol=0, atol=1e-12)
    torch.testing.assert_close(bias.grad, rows.T @ ones.reshape(-1), rtol=0, atol=1e-12)
    torch.testing.assert_close(x.grad, d @ weight.detach(), rtol=0, atol=1e-12)


def test_the_primitives_refusals() -> None:
    x, weight = torch.ones(2, 3), torch.ones(1, 3, requires_grad=True)
    with pytest.raises(ValueError, match=r"et has shape \[3, 3\], x has \[2, 3\].*et = decay \* et \+ x"):
        et_linear(x, torch.ones(3, 3), weight)
    with pytest.raises(ValueError, match=r"bias_trace.*TraceBuffer.*leave bias_trace out"):
        et_linear(x, TraceBuffer(lif_leak_transition(0.5)), weight, None, torch.ones(2))
    trace = torch.ones(2, 3)
    output = et_linear(x, trace, weight)
    trace.mul_(0.5)
    with pytest.raises(RuntimeError, match=r"written in place.*new tensor each step.*TraceBuffer"):
        output.sum().backward()


# What the trace holds.


@pytest.mark.parametrize("rule", [OTTT(), SLTT(), BPTT()], ids=lambda rule: rule.name)
def test_the_trace_by_hand(rule: LearningRule, device: torch.device) -> None:
    """x = 1, 1, 0, 1 and decay 0.5: traces 1, 1.5, 0.75, 1.375, and of a constant one 1, 1.5, 1.75, 1.875."""
    block = ETBlock(ETLinear(1, 1), LI(decay=0.5)).to(device, torch.float64)
    attach(block, rule)
    trace = block.connection.trace
    assert (trace is not None) == (rule.transition == "leak")
    for x_t, a, c in ((1.0, 1.0, 1.0), (1.0, 1.5, 1.5), (0.0, 0.75, 1.75), (1.0, 1.375, 1.875)):
        block(torch.full((1, 1), x_t, device=device, dtype=torch.float64))
        if trace is not None:
            assert trace.values is not None
            assert trace.bias_values is not None
            assert float(trace.values) == a
            assert trace.bias_values == (c,)
            assert trace.norm() == a


def test_report_and_structure_of_an_attached_block() -> None:
    block = ETBlock(ETLinear(2, 3), LIF())
    assert "TraceBuffer" not in repr(block)
    report = attach(block, OTTT())
    assert "transition=((0.5,),), tick=" in repr(block)
    assert report["connection.weight"].exact
    attach(block, SLTT())
    assert block.connection.trace is None


# G20: a fan-in of one.


@pytest.mark.parametrize("arguments", [{"groups": 4, "kernel_size": 1}, {"groups": 4, "kernel_size": (1, 1)}])
def test_weight_standardisation_refuses_a_fan_in_of_one(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"fan-in of 1.*no variance.*ETConv2d, a larger kernel or fewer groups"):
        WeightStandardizedETConv2d(4, 4, **arguments)
    with pytest.raises(ValueError, match="fan-in of 1"):
        WeightStandardizedETConv2d(1, 4, 1)


def test_weight_standardisation_is_finite_from_a_fan_in_of_two(device: torch.device) -> None:
    layer = WeightStandardizedETConv2d(2, 4, 1, device=device, dtype=torch.float64)
    attach(block := ETBlock(layer, LIF()), OTTT())
    block(torch.rand(2, 2, 5, 4, device=device, dtype=torch.float64)).sum().backward()
    for value in (layer.effective_weight().detach(), *gradients(layer).values()):
        assert bool(value.isfinite().all())
    nn.init.constant_(layer.weight, 0.7)  # filters without any variance
    assert not layer.effective_weight().any()
    assert bool(layer(torch.ones(1, 2, 3, 3, device=device, dtype=torch.float64)).isfinite().all())


@pytest.mark.parametrize("use_gain", [True, False])
def test_weight_standardisation_by_hand(use_gain: bool, device: torch.device) -> None:
    layer = WeightStandardizedETConv2d(2, 4, 3, eps=1e-3, use_gain=use_gain, device=device, dtype=torch.float64)
    assert ("gain" in layer.state_dict()) == use_gain
    if layer.gain is not None:
        nn.init.constant_(layer.gain, 1.5)
    flat = layer.weight.detach().flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    expected = centred / (centred.square().sum(1, keepdim=True) / 17 * 18 + 1e-3).sqrt() * (1.5 if use_gain else 1.0)
    torch.testing.assert_close(layer.effective_weight().detach().flatten(1), expected, rtol=0, atol=1e-12)
    x = torch.randn(2, 2, 6, 5, device=device, dtype=torch.float64)
    torch.testing.assert_close(layer(x), F.conv2d(x, layer.effective_weight(), layer.bias), rtol=0, atol=1e-12)


def test_weight_standardisation_gradient_is_autograds_where_the_trace_is_the_input(device: torch.device) -> None:
    layer = WeightStandardizedETConv2d(2, 4, 3, padding=1, device=device, dtype=torch.float64)
    plain = copy.deepcopy(layer)
    attach(ETBlock(layer, LIF()), OTTT())
    x = torch.randn(2, 2, 6, 5, device=device, dtype=torch.float64)
    output, expected = layer(x), plain(x)
    layer.advance_trace(x)
    output.square().sum().backward()
    expected.square().sum().backward()
    assert set(gradients(layer)) == {"weight", "bias", "gain"}
    assert_same(gradients(layer), gradients(plain), 1e-11)


# Blocks.


@pytest.mark.usefixtures("unchecked")
def test_what_a_block_is_made_of() -> None:
    with pytest.raises(TypeError, match=r"got Linear as connection.*ETLinear, ETConv1d or ETConv2d"):
        ETBlock(nn.Linear(2, 2), LIF())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got ReLU as neuron.*LIF\(tau=2\.0\).*Readout\(connection\)"):
        ETBlock(ETLinear(2, 2), nn.ReLU())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("connection", "shape", "words"),
    [
        (ETLinear(3, 2), (3,), r"\[3\].*at least 2 dimensions.*x\[None\]"),
        (ETConv2d(2, 3, 3), (2, 8, 6), r"\[2, 8, 6\].*4 dimensions.*batch first"),
        (ETConv2d(2, 3, 3), (5, 1, 2, 8, 6), r"4 dimensions.*\[T, B, \.\.\.\] step by step"),
        (ETConv1d(2, 3, 3), (2, 8), r"3 dimensions"),
    ],
)
def test_an_input_without_a_batch_is_refused(connection: Connection, shape: tuple[int, ...], words: str) -> None:
    """G30: a batch axis is never guessed, squeezed away or taken for channels."""
    with pytest.raises(StateShapeError, match=words):
        ETBlock(connection, LIF())(torch.zeros(shape))


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_the_batch_axis_stays(batch: int, device: torch.device) -> None:
    net = nn.Sequential(
        ETBlock(ETConv2d(1, 2, 3), LIF()), nn.Flatten(), ETBlock(ETLinear(8, 1), LIF()), Readout(nn.Linear(1, 1))
    ).to(device)
    attach(net, OTTT())
    for _ in range(2):
        output = net(torch.ones(batch, 1, 4, 4, device=device))
        assert output.shape == (batch, 1)
        output.sum().backward()


@pytest.mark.parametrize("frozen", [0, 1, 2])
@pytest.mark.parametrize("rule", [OTTT(), SLTT()], ids=lambda rule: rule.name)
def test_a_frozen_layer_stays_and_lets_the_gradient_pass(frozen: int, rule: LearningRule, device: torch.device) -> None:
    """G17: bit-identical under weight decay and momentum, `.grad` None, and consistent when unfrozen."""

    def build() -> nn.Sequential:
        torch.manual_seed(0)
        built = nn.Sequential(*(ETBlock(ETLinear(6, 6), LIF()) for _ in range(2)), ETBlock(ETLinear(6, 3), LI()))
        with torch.no_grad():
            for parameter in built.parameters():
                parameter.mul_(3)
        return built.to(device, torch.float64)

    net, free = build(), build()
    attach(net, rule)
    attach(free, rule)
    x = (torch.rand(3, 4, 6) < 0.5).double().to(device)
    net[frozen].requires_grad_(False)
    kept = copy.deepcopy(net[frozen].state_dict())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1)
    before = copy.deepcopy(net.state_dict())
    for x_t in x:
        for each in (net, free):
            each(x_t).square().sum().backward()
    learned = gradients(net)
    assert not any(name.startswith(f"{frozen}.") for name in learned)
    assert_same(learned, {name: g for name, g in gradients(free).items() if name in learned}, 1e-13)
    optimizer.step()
    for name, value in net[frozen].state_dict().items():
        assert torch.equal(value, kept[name])
    assert all(parameter.grad is None for parameter in net[frozen].parameters())
    assert all(not torch.equal(net.state_dict()[name], before[name]) for name in learned)
    # Unfrozen in mid-sequence the trace has seen everything: from here on as if it had never been frozen.
    net.load_state_dict(before)
    net[frozen].requires_grad_(True)
    for each in (net, free):
        each.zero_grad()
        each(x[0]).square().sum().backward()
    assert_same(gradients(net), gradients(free), 1e-13)
