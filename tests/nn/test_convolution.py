"""Three-dimensional and transposed convolutions: torch's own layers, drop-in, and their gradients."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from nets import assert_same, gradients
from torch import Tensor, nn

from snnlearn import (
    IF,
    OTTT,
    ETBlock,
    ETConv1d,
    ETConv2d,
    ETConv3d,
    ETConvTranspose1d,
    ETConvTranspose2d,
    ETConvTranspose3d,
    StateShapeError,
    attach,
)
from snnlearn.functional import ConvEligibility, Convolution, FixedTrace

F64: dict[str, Any] = {"dtype": torch.float64}
MAPS = {1: (9,), 2: (6, 5), 3: (4, 5, 3)}
PLAIN: dict[int, tuple[type[Any], type[Any]]] = {
    1: (ETConv1d, nn.Conv1d),
    2: (ETConv2d, nn.Conv2d),
    3: (ETConv3d, nn.Conv3d),
}
TRANSPOSED: dict[int, tuple[type[Any], type[Any]]] = {
    1: (ETConvTranspose1d, nn.ConvTranspose1d),
    2: (ETConvTranspose2d, nn.ConvTranspose2d),
    3: (ETConvTranspose3d, nn.ConvTranspose3d),
}
# torch's own note about asymmetric padding='same', from its plain convolution
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")


@pytest.mark.parametrize(("ours", "theirs"), [PLAIN[3]])
def test_arguments_are_torchs(ours: type[Any], theirs: type[Any]) -> None:
    assert issubclass(ours, theirs)
    assert inspect.signature(ours) == inspect.signature(theirs)


@pytest.mark.parametrize("dims", TRANSPOSED)
def test_arguments_of_the_transposed_are_torchs(dims: int) -> None:
    ours, theirs = TRANSPOSED[dims]
    assert issubclass(ours, theirs)
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert list(inspect.signature(ours.forward).parameters.values())[2].name == "output_size"


@pytest.mark.parametrize("pair", [PLAIN[3], *TRANSPOSED.values()], ids=lambda pair: pair[0].__name__)
def test_same_initialisation_and_keys(pair: tuple[type[Any], type[Any]]) -> None:
    made = []
    for kind in pair:
        torch.manual_seed(3)
        made.append(kind(4, 6, 3, groups=2, stride=2))
    mine, plain = (layer.state_dict() for layer in made)
    assert list(mine) == list(plain) == ["weight", "bias"]
    assert all(torch.equal(mine[name], plain[name]) for name in mine)
    plain["weight"] = plain["weight"] + 1
    made[0].load_state_dict(plain, strict=True)
    assert torch.equal(made[0].weight, plain["weight"])


def compare(mine: Any, plain: Any, x: Tensor, size: list[int] | None = None) -> None:
    """At the first step of a sequence the trace is the input, so everything is torch's own."""
    attach(ETBlock(mine, IF()), OTTT())
    plain.load_state_dict(mine.state_dict())
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    output, expected = (layer(*((v,) if size is None else (v, size))) for layer, v in ((mine, ours), (plain, theirs)))
    mine.advance_trace(ours)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    signal = torch.randn_like(expected)
    output.backward(signal)
    expected.backward(signal)
    assert_same(gradients(mine), gradients(plain), 1e-11)
    assert ours.grad is not None
    assert theirs.grad is not None
    assert float(theirs.grad.abs().max()) > 0
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-11)
    with torch.no_grad():
        torch.testing.assert_close(mine(*((x,) if size is None else (x, size))), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "geometry",
    [
        {},
        {"bias": False, "stride": 2},
        {"dilation": 2, "padding": 1},
        {"groups": 2, "padding": 1},
        {"groups": 4},
        {"padding": "same", "kernel_size": 2},
        {"padding": "valid"},
        {"padding": (1, 2, 0), "padding_mode": "reflect", "stride": (2, 1, 1)},
        {"padding": 2, "padding_mode": "replicate"},
        {"padding": 1, "padding_mode": "circular", "groups": 2},
    ],
    ids=str,
)
def test_conv3d_equals_torchs(geometry: dict[str, Any], device: torch.device) -> None:
    arguments = {"kernel_size": 3, **geometry, "device": device, "dtype": torch.float64}
    x = torch.randn(2, 4, 5, 6, 5, device=device, dtype=torch.float64)
    compare(ETConv3d(4, 8, **arguments), nn.Conv3d(4, 8, **arguments), x)


@pytest.mark.parametrize(
    "geometry",
    [
        {},
        {"bias": False, "stride": 2},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"stride": 3, "output_padding": 2, "groups": 2},
        {"dilation": 2, "padding": 2, "stride": 2, "output_padding": 1},
        {"groups": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("dims", TRANSPOSED)
def test_transposed_equals_torchs(dims: int, geometry: dict[str, Any], device: torch.device) -> None:
    arguments = {"kernel_size": 3, **geometry, "device": device, "dtype": torch.float64}
    ours, theirs = TRANSPOSED[dims]
    x = torch.randn(2, 4, *MAPS[dims], device=device, dtype=torch.float64)
    compare(ours(4, 8, **arguments), theirs(4, 8, **arguments), x)


@pytest.mark.parametrize("dims", TRANSPOSED)
@pytest.mark.parametrize("extra", [0, 1])
def test_output_size_is_torchs(dims: int, extra: int) -> None:
    ours, theirs = TRANSPOSED[dims]
    x = torch.randn(2, 2, *MAPS[dims], **F64)
    size = [2 * (n - 1) + 3 + extra for n in MAPS[dims]]
    layers = ours(2, 3, 3, stride=2, **F64), theirs(2, 3, 3, stride=2, **F64)
    assert list(layers[1](x, size).shape[2:]) == size
    compare(*layers, x, size)
    with pytest.raises(ValueError, match="output size"):
        layers[0](x, [n + 9 for n in size])


@pytest.mark.parametrize("dims", TRANSPOSED)
@pytest.mark.parametrize("traced", [True, False])
def test_transposed_padding_in_words_is_refused(dims: int, traced: bool) -> None:
    layer = TRANSPOSED[dims][0](2, 3, 3, padding="same")
    if traced:
        attach(ETBlock(layer, IF()), OTTT())
    with pytest.raises(ValueError, match=r"padding='same'.*a number per dimension.*write padding="):
        layer(torch.ones(1, 2, *MAPS[dims]))


@pytest.mark.parametrize("dims", TRANSPOSED)
def test_transposed_padding_other_than_zeros_is_torchs_refusal(dims: int) -> None:
    with pytest.raises(ValueError, match='Only "zeros" padding mode'):
        TRANSPOSED[dims][0](2, 3, 3, padding_mode="circular")


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kind", ["plain", "transposed"])
def test_a_map_without_a_batch_is_refused(dims: int, kind: str) -> None:
    ours = (PLAIN if kind == "plain" else TRANSPOSED)[dims][0]
    with pytest.raises(StateShapeError, match=rf"{dims + 2} dimensions"):
        ETBlock(ours(2, 3, 2), IF())(torch.zeros(2, *MAPS[dims]))


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_gradcheck_where_the_trace_is_the_input(transposed: bool, dims: int, groups: int) -> None:
    geometry = Convolution(
        (2,) * dims, (1,) * dims, (1,) * dims, groups, transposed, (1,) * dims if transposed else None
    )
    inputs, outputs = 4, 4
    shape = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    x = torch.randn(2, inputs, *(3, 2, 3)[:dims], **F64).requires_grad_()
    weight = torch.randn(*shape, *(2, 3, 2)[:dims], **F64).requires_grad_()
    bias = torch.randn(outputs, **F64).requires_grad_()

    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ConvEligibility.apply(x, weight, bias, FixedTrace(x), geometry)

    assert torch.autograd.gradcheck(layer, (x, weight, bias), fast_mode=True)
