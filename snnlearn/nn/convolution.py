"""Convolutions of one to three dimensions and their transposes, drop-in, with an eligibility trace of the input map."""

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn.functional.eligibility import ConvEligibility
from snnlearn.functional.weighted_map import Convolution
from snnlearn.nn.connection import Connection
from snnlearn.nn.step_trace import StepTrace
from snnlearn.nn.trace_buffer import TraceBuffer


class ConvConnection(Connection):
    """What the convolutions share: padding before the trace, and the weight that convolves."""

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    padding_mode: Literal["zeros", "reflect", "replicate", "circular"]
    _reversed_padding_repeated_twice: list[int]

    @property
    def unit_shape(self) -> tuple[int, ...]:
        """The channels, and a map of one pixel."""
        return (self.weight.shape[0], *(1,) * len(self.stride))

    @property
    def input_size(self) -> tuple[int, int] | None:
        """The channels."""
        return 1, cast(Any, self).in_channels

    def effective_weight(self) -> Tensor:
        """Return the weight that convolves."""
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of x [B, C, ...]."""
        if self.trace is None or not torch.is_grad_enabled():
            return cast(Tensor, cast(Any, self)._conv_forward(x, self.effective_weight(), self.bias))
        return self.traced(x, self.trace)

    def traced_input(self, x: Tensor) -> Tensor:
        """Return x, padded already where the convolution itself cannot pad it symmetrically with zeros."""
        if self._pads_itself():
            return x
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return F.pad(x, self._reversed_padding_repeated_twice, mode=mode)

    def traced(self, x: Tensor, trace: TraceBuffer | StepTrace) -> Tensor:
        """Return the convolution with a weight gradient read from `trace`."""
        return ConvEligibility.apply(  # type: ignore[no-any-return]
            self.traced_input(x), self.effective_weight(), self.bias, trace, self.weighted_map()
        )

    def weighted_map(self) -> Convolution:
        """Return the convolution of the padded input."""
        padding = self.padding if self._pads_itself() else (0,) * len(self.stride)
        return Convolution(self.stride, cast(tuple[int, ...], padding), self.dilation, self.groups)

    def _pads_itself(self) -> bool:
        return self.padding_mode == "zeros" and not isinstance(self.padding, str)


class ETConv1d(ConvConnection, nn.Conv1d):
    """`torch.nn.Conv1d` with an eligibility trace: x [B, C, L] -> [B, O, L'].

    Arguments, initialisation and `state_dict` of `torch.nn.Conv1d`.

    >>> ETConv1d(2, 4, 3)(torch.zeros(1, 2, 8)).shape
    torch.Size([1, 4, 6])
    """

    input_dims = (3,)


class ETConv2d(ConvConnection, nn.Conv2d):
    """`torch.nn.Conv2d` with an eligibility trace: x [B, C, H, W] -> [B, O, H', W'].

    Arguments, initialisation and `state_dict` of `torch.nn.Conv2d`.

    >>> ETConv2d(2, 4, 3, padding=1)(torch.zeros(1, 2, 8, 6)).shape
    torch.Size([1, 4, 8, 6])
    """

    input_dims = (4,)


class ETConv3d(ConvConnection, nn.Conv3d):
    """`torch.nn.Conv3d` with an eligibility trace: x [B, C, D, H, W] -> [B, O, D', H', W'].

    Arguments, initialisation and `state_dict` of `torch.nn.Conv3d`.

    >>> ETConv3d(2, 4, 3, padding=1)(torch.zeros(1, 2, 4, 8, 6)).shape
    torch.Size([1, 4, 4, 8, 6])
    """

    input_dims = (5,)


class TransposedConvConnection(Connection):
    """What the transposed convolutions share; torch gives them zero padding in numbers alone.

    Raises ValueError at the first use for padding in words, whose size a transposed convolution cannot derive.

    >>> TransposedConvConnection.mro()[1].__name__
    'Connection'
    """

    weight: Tensor
    bias: Tensor | None
    out_channels: int
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def unit_shape(self) -> tuple[int, ...]:
        """The channels, and a map of one pixel."""
        return (self.out_channels, *(1,) * len(self.stride))

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Return the transposed convolution of x [B, C, ...].

        `output_size` the wanted size of the map, as for torch's layer, where a stride leaves it open.
        """
        trace = self.trace
        if trace is None or not torch.is_grad_enabled():
            self._refuse_padding_in_words()
            plain = cast(Any, super(Connection, self)).forward  # torch's own, which takes the size
            return cast(Tensor, plain(x, None if output_size is None else list(output_size)))
        return self._eligible(x, trace, self._map_for(x, output_size))

    def traced(self, x: Tensor, trace: TraceBuffer | StepTrace) -> Tensor:
        """Return the transposed convolution with a weight gradient read from `trace`."""
        return self._eligible(x, trace, self.weighted_map())

    def weighted_map(self) -> Convolution:
        """Return the transposed convolution."""
        self._refuse_padding_in_words()
        padding = cast(tuple[int, ...], self.padding)
        return Convolution(self.stride, padding, self.dilation, self.groups, True, self.output_padding)

    def _map_for(self, x: Tensor, output_size: Sequence[int] | None) -> Convolution:
        usual = self.weighted_map()
        if output_size is None:
            return usual
        layer, dims = cast(Any, self), len(self.stride)
        extra = layer._output_padding(
            x, list(output_size), self.stride, self.padding, layer.kernel_size, dims, self.dilation
        )
        return usual._replace(output_padding=tuple(extra))

    def _eligible(self, x: Tensor, trace: TraceBuffer | StepTrace, convolution: Convolution) -> Tensor:
        weight = self.effective_weight()
        return ConvEligibility.apply(x, weight, self.bias, trace, convolution)  # type: ignore[no-any-return]

    def _refuse_padding_in_words(self) -> None:
        if any(isinstance(size, str) for size in self.padding):
            raise ValueError(
                f"{type(self).__name__}(padding={''.join(map(str, self.padding))!r}): the padding of a transposed "
                f"convolution is a number per dimension, since many sizes of its output are the same to the "
                f"convolution it transposes; write padding=(kernel_size - 1) // 2 and output_padding=stride - 1, for "
                f"example"
            )


class ETConvTranspose1d(TransposedConvConnection, nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d` with an eligibility trace: x [B, C, L] -> [B, O, L'].

    Arguments, initialisation and `state_dict` of `torch.nn.ConvTranspose1d`.

    >>> ETConvTranspose1d(2, 4, 3, stride=2)(torch.zeros(1, 2, 8)).shape
    torch.Size([1, 4, 17])
    """

    input_dims = (3,)


class ETConvTranspose2d(TransposedConvConnection, nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` with an eligibility trace: x [B, C, H, W] -> [B, O, H', W'].

    Arguments, initialisation and `state_dict` of `torch.nn.ConvTranspose2d`.

    >>> ETConvTranspose2d(2, 4, 3, stride=2)(torch.zeros(1, 2, 8, 6)).shape
    torch.Size([1, 4, 17, 13])
    """

    input_dims = (4,)


class ETConvTranspose3d(TransposedConvConnection, nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d` with an eligibility trace: x [B, C, D, H, W] -> [B, O, D', H', W'].

    Arguments, initialisation and `state_dict` of `torch.nn.ConvTranspose3d`.

    >>> ETConvTranspose3d(2, 4, 3, stride=2)(torch.zeros(1, 2, 4, 8, 6)).shape
    torch.Size([1, 4, 9, 17, 13])
    """

    input_dims = (5,)


__all__ = [
    "ConvConnection",
    "ETConv1d",
    "ETConv2d",
    "ETConv3d",
    "ETConvTranspose1d",
    "ETConvTranspose2d",
    "ETConvTranspose3d",
    "TransposedConvConnection",
]
