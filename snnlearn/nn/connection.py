"""Connections: torch's own layers, drop-in, whose weight gradient can be read from a trace.

Outside an `ETBlock`, or under a rule without a trace, each is exactly the torch layer it derives from,
with the same arguments and the same `state_dict` keys.
"""

from itertools import takewhile
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn.functional.eligibility import ConvEligibility, LinearEligibility
from snnlearn.functional.weighted_map import Convolution, Dense, WeightedMap
from snnlearn.nn.step_trace import StepTrace
from snnlearn.nn.trace_buffer import TraceBuffer


class Connection(nn.Module):
    """What an `ETBlock` asks of a layer with weights; mix it into the torch layer, before it.

    A subclass gives `traced(x, trace)`, the layer's value with the gradients of `trace`, and `input_dims`,
    the numbers of dimensions its input may have, batch included. `trace` is None unless a rule attached one.

    >>> isinstance(ETLinear(2, 3), nn.Linear), ETLinear(2, 3).state_dict().keys()
    (True, odict_keys(['weight', 'bias']))
    """

    input_dims: tuple[int, ...] = ()

    @property
    def unit_shape(self) -> tuple[int, ...]:
        """The shape of one sample of the output, as far as the layer knows it (size 1 where it does not)."""
        return (4,)

    @property
    def trace(self) -> TraceBuffer | StepTrace | None:
        """The trace in use, or None when no rule attached one."""
        return self._modules.get("trace")  # type: ignore[return-value]

    def hold_trace(self, trace: TraceBuffer | StepTrace | None) -> None:
        """Keep `trace` as a child, so that it moves, copies and changes mode with this layer; None drops it."""
        self._modules["trace"] = trace

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output for x [B, ...]; the weight gradient is the trace's when there is one."""
        trace = self.trace
        if trace is None or not torch.is_grad_enabled():
            return cast(Tensor, super().forward(x))
        return self.traced(x, trace)

    def traced(self, x: Tensor, trace: TraceBuffer | StepTrace) -> Tensor:
        """Return the layer's output with a weight gradient read from `trace`."""
        raise TypeError(f"{type(self).__name__} must define traced(x, trace)")

    def traced_input(self, x: Tensor) -> Tensor:
        """Return what enters the weights, which is what the trace is a trace of."""
        return x

    def effective_weight(self) -> Tensor:
        """Return the weights that `weighted_map` takes, those that `traced_input` enters."""
        return cast(Tensor, self.weight)

    def weighted_map(self) -> WeightedMap:
        """Return what the layer does to `traced_input` with `effective_weight`."""
        raise TypeError(f"{type(self).__name__} must define weighted_map()")

    def take_output(self, output: Tensor, carry_graph: bool) -> None:
        """Take note of the neuron's output; only a recurrent connection needs it."""

    def advance_trace(self, x: Tensor) -> bool:
        """Take this step's input into the trace and return True, or note that the step passed without it."""
        trace = self.trace
        if trace is None:
            return False
        if isinstance(trace, TraceBuffer) and self.training and torch.is_grad_enabled():
            trace.advance_(self.traced_input(x.detach()))
            return True
        trace.skip()
        return False


def is_described(connection: Connection) -> bool:
    """Say whether `weighted_map` tells what `connection` does: no subclass replaced its forward without it.

    >>> class Doubled(ETLinear):
    ...     def forward(self, x):
    ...         return 2 * super().forward(x)
    >>> is_described(ETLinear(1, 1)), is_described(Doubled(1, 1))
    (True, False)
    """
    kinds = list(takewhile(lambda kind: "weighted_map" not in vars(kind), type(connection).__mro__))
    known = {"forward", "traced", "traced_input", "effective_weight"}
    return all(known.isdisjoint(vars(kind)) for kind in kinds) and "forward" not in vars(connection)


class ETLinear(Connection, nn.Linear):
    """`torch.nn.Linear` with an eligibility trace: x [B, ..., I] -> [B, ..., O].

    Arguments, initialisation and `state_dict` of `torch.nn.Linear`.

    >>> ETLinear(4, 2)(torch.zeros(3, 4)).shape
    torch.Size([3, 2])
    """

    @property
    def unit_shape(self) -> tuple[int, ...]:
        """One number per output feature."""
        return (self.out_features,)

    def weighted_map(self) -> WeightedMap:
        """Return the matrix product."""
        return Dense()

    def traced(self, x: Tensor, trace: TraceBuffer | StepTrace) -> Tensor:
        """Return x W^T + b."""
        return LinearEligibility.apply(x, self.weight, self.bias, trace)  # type: ignore[no-any-return]


class ConvConnection(Connection):
    """What `ETConv1d` and `ETConv2d` share: padding before the trace, and the weight that convolves."""

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


class WeightStandardizedETConv2d(ETConv2d):
    """`ETConv2d` whose filters are standardised: W_hat = gain * (W - mean) / sqrt(var * fan_in + eps).

    Mean and unbiased variance are taken over each output filter's fan_in = (C/groups)*kh*kw weights; `gain` [O]
    is learned with `use_gain`, else 1. The gradient of W_hat passes once through the standardisation. `eps`
    as in Xiao et al. 2022 (1e-4); weight standardisation: Qiao et al. 2019, doi:10.48550/arXiv.1903.10520;
    scaled form: Brock et al. 2021, doi:10.48550/arXiv.2101.08692. Other arguments as `torch.nn.Conv2d`.
    Raises ValueError when fan_in is 1, since one number has no variance.

    >>> layer = WeightStandardizedETConv2d(2, 4, 3)
    >>> bool(layer.effective_weight().mean((1, 2, 3)).abs().max() < 1e-6)
    True
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        eps: float = 1e-4,
        use_gain: bool = True,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            cast(Any, padding_mode),
            device,
            dtype,
        )
        if self.weight[0].numel() < 2:
            raise ValueError(
                f"WeightStandardizedETConv2d({in_channels}, {out_channels}, {kernel_size}, groups={groups}) has a "
                f"fan-in of 1: one number has no variance to standardise; use ETConv2d, a larger kernel or fewer "
                f"groups"
            )
        self.eps = eps
        gain = torch.ones(out_channels, device=device, dtype=dtype)
        self.gain = nn.Parameter(gain) if use_gain else None

    def effective_weight(self) -> Tensor:
        """Return W_hat [O, C/groups, kh, kw]."""
        flat = self.weight.flatten(1)
        variance, mean = torch.var_mean(flat, dim=1, keepdim=True)
        standardized = (flat - mean) * torch.rsqrt(variance * flat.shape[1] + self.eps)
        if self.gain is not None:
            standardized = standardized * self.gain[:, None]
        return standardized.view_as(self.weight)


__all__ = [
    "Connection",
    "ConvConnection",
    "ETConv1d",
    "ETConv2d",
    "ETLinear",
    "WeightStandardizedETConv2d",
    "is_described",
]
