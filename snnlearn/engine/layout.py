"""The memory layout of convolutions: channels first, or channels last, which a measurement chooses.

Weights [O, C, H, W] with their channels last in memory make a convolution put out values with channels last, and what
follows keeps them so: neurons, traces and averages. The numbers are the same but for rounding.

A layer that flattens maps sends their gradient back with channels first, and torch's backward of an average then takes
some twenty times as long, so the gradients of pooled maps are turned before they arrive there.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import pooling

from snnlearn.nn.block import ETBlock


def may_choose_layout(net: nn.Module) -> bool:
    """Say whether `net` has a block with a convolution over images, and none of its weights lie channels last yet.

    >>> may_choose_layout(nn.Linear(2, 2))
    False
    """
    weights = [parameter for parameter in net.parameters() if parameter.dim() == 4]
    convolves = any(isinstance(m, ETBlock) and m.connection.effective_weight().dim() == 4 for m in net.modules())
    lie = any(not weight.is_contiguous() for weight in weights)
    return convolves and not lie


def lies_channels_last(net: nn.Module) -> bool:
    """Say whether weights over images of `net` lie with their channels last.

    >>> net = nn.Conv2d(2, 3, 3)
    >>> lies_channels_last(net), lies_channels_last(net.to(memory_format=torch.channels_last))
    (False, True)
    """
    weights = [parameter for parameter in net.parameters() if parameter.dim() == 4]
    return any(w.is_contiguous(memory_format=torch.channels_last) and not w.is_contiguous() for w in weights)


def lay_out_(net: nn.Module, channels_last: bool) -> None:
    """Lay out the weights of `net` with channels last or first; parameters stay the objects that they are.

    >>> net = nn.Conv2d(2, 3, 3)
    >>> lay_out_(net, True)
    >>> net.weight.stride()
    (18, 1, 6, 2)
    """
    net.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    for module in net.modules():
        if not isinstance(module, POOLS):
            continue
        for key in [key for key, hook in module._forward_hooks.items() if hook is turn_gradient]:
            del module._forward_hooks[key]
        if channels_last:
            module.register_forward_hook(turn_gradient)


POOLS = (pooling._AvgPoolNd, pooling._MaxPoolNd, pooling._AdaptiveAvgPoolNd, pooling._AdaptiveMaxPoolNd)


def turn_gradient(_module: nn.Module, _inputs: Any, output: Any) -> None:
    """Let the gradient of a map whose channels are last in memory arrive laid out as the map is; a forward hook.

    >>> flat = nn.Sequential(nn.AvgPool2d(2), nn.Flatten())
    >>> lay_out_(flat, True)
    >>> len(flat[0]._forward_hooks), len(flat[1]._forward_hooks)
    (1, 0)
    """
    if not (isinstance(output, Tensor) and output.dim() == 4 and output.requires_grad) or output.is_contiguous():
        return
    if output.is_contiguous(memory_format=torch.channels_last):
        output.register_hook(_turned)


def _turned(gradient: Tensor) -> Tensor:
    return gradient.contiguous(memory_format=torch.channels_last)


__all__ = ["POOLS", "lay_out_", "lies_channels_last", "may_choose_layout", "turn_gradient"]
