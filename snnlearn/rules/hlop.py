"""HLOP: Hebbian learning based orthogonal projection, for learning tasks one after another.

Xiao et al., ICLR 2024, doi:10.48550/arXiv.2402.11984. While an earlier task runs, rows H learn the subspace of what
enters each layer's weights; from then on the weights move only outside of it, so that the layer's answers to it stay.
Composes with every rule: `snnlearn.functional.hebbian`. Here a bias is one more input, a constant one, and the rows of
a task are made orthonormal at its end, so that 1 - H^T H is a projection.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn.functional.arguments import is_number, is_whole
from snnlearn.functional.hebbian import hebbian_step, orthonormal_rows, remove_subspace
from snnlearn.functional.synaptic import with_one
from snnlearn.functional.weighted_map import rows_of
from snnlearn.nn.block import ETBlock, Readout
from snnlearn.nn.connection import Connection
from snnlearn.nn.convolution import ConvConnection, ETConv1d, ETConv2d


class HLOP:
    """Keep what the layers of `net` answer to the inputs of earlier tasks, while they learn new ones.

    `components` rows that a task adds per layer, one number or one per block name; `rate` of Hebbian learning, in
    (0, 1]. Keeps every `ETBlock` and `Readout`, or those named: linear layers and ungrouped 1-D and 2-D convolutions.
    Run the earlier task inside `watching`, then learn the next one inside `guard`, or call `project_gradients` before
    each step. Raises ValueError for a layer it cannot keep, and for more components than a layer has inputs.

    >>> from snnlearn.nn import ETLinear, LIF
    >>> block = ETBlock(ETLinear(4, 2), LIF())
    >>> hlop = HLOP(block, components=2)
    >>> with hlop.watching():
    ...     _ = block(torch.eye(2, 4))
    >>> hlop.kept[""].shape  # four inputs and the constant one of the bias
    torch.Size([2, 5])
    """

    def __init__(self, net: nn.Module, components: int | Mapping[str, int] = 10, rate: float = 0.5) -> None:
        if not isinstance(net, nn.Module):
            raise TypeError(
                f"HLOP(net) got a {type(net).__name__} as net: it keeps the ETBlocks and Readouts of a network; write "
                f"HLOP(net, components=10)"
            )
        if not (is_number(rate) and 0 < rate <= 1):
            raise ValueError(f"rate={rate!r}: Hebbian learning is stable for a rate in (0, 1]; write rate=0.5")
        layers = {name: m for name, m in net.named_modules() if isinstance(m, ETBlock | Readout)}
        if not layers:
            raise ValueError(
                f"this {type(net).__name__} has no ETBlock and no Readout, and HLOP keeps their answers; wrap its "
                f"layers, for example Readout(nn.Linear(...))"
            )
        every = dict(components) if isinstance(components, Mapping) else dict.fromkeys(layers, components)
        if not all(is_whole(number, 1) for number in every.values()):
            raise ValueError(
                f"components={components!r}: a whole number of rows from 1, or such a number per block name; write "
                f"components=10"
            )
        unknown = sorted(set(every) - set(layers))
        if unknown or not every:
            raise ValueError(f"components names {unknown}: the blocks and readouts of this net are {sorted(layers)}")
        self.layers = {name: _Layer(name, layers[name]) for name in every}
        self.components, self.rate = every, rate
        self.kept = {name: layer.joined().new_zeros(0, layer.inputs) for name, layer in self.layers.items()}
        self._learning: dict[str, Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Learn the inputs' subspace outside what is kept already, and keep it too when the context ends well."""
        for name, layer in self.layers.items():
            kept, more = self.kept[name].to(layer.weight), self.components[name]
            if not 1 <= more <= layer.inputs - len(kept):
                raise ValueError(
                    f"components={more} for layer {name!r}: it has {layer.inputs} inputs, bias included, of which "
                    f"{len(kept)} directions are kept already; keep at least 1, and at most what is left"
                )
            self.kept[name] = kept
            self._learning[name] = orthonormal_rows(remove_subspace(torch.randn(more, layer.inputs).to(kept), kept))
        hooks = [
            layer.module.register_forward_pre_hook(partial(self._take_in, name)) for name, layer in self.layers.items()
        ]
        try:
            yield
            for name, rows in self._learning.items():
                new = orthonormal_rows(remove_subspace(rows, self.kept[name]))
                self.kept[name] = torch.cat([self.kept[name], new])
        finally:
            self._learning = {}
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def _take_in(self, name: str, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = remove_subspace(self.layers[name].rows(inputs[0]), self.kept[name])
        self._learning[name] = hebbian_step(self._learning[name], x, self.rate)

    @torch.no_grad()
    def project_gradients(self) -> None:
        """Take what is kept out of the gradients of weights and biases, once before a step of plain descent."""
        for name, layer in self.layers.items():
            if layer.weight.grad is not None:
                gradient = remove_subspace(layer.joined_gradient(), self.kept[name].to(layer.weight))
                layer.weight.grad = layer.weight_part(gradient)
                if layer.bias is not None:
                    layer.bias.grad = gradient[:, -1].clone()

    @contextmanager
    def guard(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Take what is kept out of every change that `optimizer` makes while the context lasts.

        For plain descent the same as `project_gradients`. An optimizer that scales each weight on its own, such as
        Adam, or one with weight decay, leaves the projected direction, and is held to it here.
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"guard(optimizer) got a {type(optimizer).__name__}: pass the optimizer that steps the network"
            )
        before: dict[str, Tensor] = {}

        def note(*_: Any) -> None:
            before.update({name: layer.joined() for name, layer in self.layers.items()})

        @torch.no_grad()
        def hold(*_: Any) -> None:
            for name, layer in self.layers.items():
                change = layer.joined() - before[name]
                held = before[name] + remove_subspace(change, self.kept[name].to(change))
                layer.weight.copy_(layer.weight_part(held))
                if layer.bias is not None:
                    layer.bias.copy_(held[:, -1])

        hooks = [optimizer.register_step_pre_hook(note), optimizer.register_step_post_hook(hold)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is kept, by layer: rows [n, inputs]."""
        return dict(self.kept)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state_dict` returned; raise ValueError when it is of other layers."""
        wrong = {*state} ^ {*self.layers}
        wrong |= {name for name, layer in self.layers.items() if name in state and state[name].shape[1] != layer.inputs}
        if wrong:
            raise ValueError(f"this state does not fit the layers {sorted(wrong)}: it was saved from another network")
        self.kept = {name: state[name].to(layer.weight) for name, layer in self.layers.items()}


class _Layer:
    """A layer as one matrix [O, D] of weights, the bias as the weight of one more input."""

    def __init__(self, name: str, module: ETBlock | Readout) -> None:
        layer = module.connection
        convolves = isinstance(layer, ETConv1d | ETConv2d) and layer.groups == 1
        standardized = isinstance(layer, Connection) and layer.effective_weight() is not layer.weight
        if standardized or not (convolves or isinstance(layer, nn.Linear)):
            raise ValueError(
                f"layer {name!r} is a {type(layer).__name__}: rows of inputs are known for linear layers and ungrouped "
                f"convolutions whose weight is used as it is; give components by name, without this layer, whose "
                f"answers are then not kept"
            )
        assert isinstance(layer.weight, Tensor)
        self.module, self.layer, self.weight = module, layer, layer.weight
        trained = isinstance(layer.bias, Tensor) and layer.bias.requires_grad
        self.bias = layer.bias if isinstance(layer.bias, Tensor) and trained else None
        self.inputs = self.weight[0].numel() + (self.bias is not None)

    def rows(self, x: Tensor) -> Tensor:
        """Return what one step's input x [B, ...] brings to the weights, a row [D] per sample and place."""
        if isinstance(self.layer, ConvConnection):
            x = _unfolded(self.layer, self.layer.traced_input(x))
        x = rows_of(x).to(self.weight)
        return x if self.bias is None else with_one(x)

    def joined(self) -> Tensor:
        """Return a copy of weight and bias [O, D]."""
        return self._join(self.weight, self.bias)

    def joined_gradient(self) -> Tensor:
        """Return a copy of the gradients of weight and bias [O, D]; that of the bias may be missing."""
        assert self.weight.grad is not None
        bias = self.bias
        if bias is not None:
            bias = torch.zeros_like(bias) if bias.grad is None else bias.grad
        return self._join(self.weight.grad, bias)

    def weight_part(self, joined: Tensor) -> Tensor:
        """Return the part of [O, D] that is the weight's, in its shape."""
        return joined[:, : self.weight[0].numel()].reshape(self.weight.shape).clone()

    @staticmethod
    def _join(weight: Tensor, bias: Tensor | None) -> Tensor:
        parts = [weight.detach().flatten(1)] if bias is None else [weight.detach().flatten(1), bias.detach()[:, None]]
        return torch.cat(parts, dim=1)


def _unfolded(layer: ConvConnection, x: Tensor) -> Tensor:
    """Return the patches of x [B, C, ...] under the kernel, [B, places, D]."""
    settings: list[tuple[int, ...]] = [layer.weight.shape[2:], *layer.weighted_map()[:3]]
    kernel, stride, padding, dilation = settings
    if x.dim() == 3:  # a map of one row
        x, kernel, stride, padding, dilation = x.unsqueeze(2), (1, *kernel), (1, *stride), (0, *padding), (1, *dilation)
    return F.unfold(x, kernel, dilation, padding, stride).transpose(1, 2)


__all__ = ["HLOP"]
