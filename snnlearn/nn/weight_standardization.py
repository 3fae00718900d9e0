"""Connections with standardised weights; equation in `snnlearn.functional.weight_standardization`."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn.functional.arguments import is_number
from snnlearn.functional.eligibility import LinearEligibility
from snnlearn.functional.weight_standardization import standardize_weight
from snnlearn.functional.weighted_map import Convolution, Dense
from snnlearn.nn.connection import ETLinear
from snnlearn.nn.convolution import ETConv2d
from snnlearn.nn.step_trace import StepTrace
from snnlearn.nn.trace_buffer import TraceBuffer


def _check_eps(eps: float) -> float:
    if not (is_number(eps) and eps >= 0):
        raise ValueError(f"eps={eps!r}: what is added to the variance is a finite number from 0; write eps=1e-4")
    return eps


def _refuse_one_input(weight: Tensor, layer: str, remedy: str) -> None:
    if weight[0].numel() < 2:
        raise ValueError(f"{layer} has a fan-in of 1: one number has no variance to standardise; {remedy}")


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
        layer = f"WeightStandardizedETConv2d({in_channels}, {out_channels}, {kernel_size}, groups={groups})"
        _refuse_one_input(self.weight, layer, "use ETConv2d, a larger kernel or fewer groups")
        self.eps = _check_eps(eps)
        gain = torch.ones(out_channels, device=device, dtype=dtype)
        self.gain = nn.Parameter(gain) if use_gain else None

    def effective_weight(self) -> Tensor:
        """Return W_hat [O, C/groups, kh, kw]."""
        return standardize_weight(self.weight, self.gain, self.eps)

    def weighted_map(self) -> Convolution:
        """Return the convolution of the padded input."""
        return super().weighted_map()


class WeightStandardizedETLinear(ETLinear):
    """`ETLinear` whose rows are standardised: W_hat = gain * (W - mean) / sqrt(var * fan_in + eps).

    Mean and unbiased variance are taken over the I weights of each unit; `gain` [O] is learned with `use_gain`, else
    1. The gradient of W_hat passes once through the standardisation. Other arguments as `torch.nn.Linear`. Raises
    ValueError when I is 1, since one number has no variance.

    >>> layer = WeightStandardizedETLinear(6, 4)
    >>> bool(layer.effective_weight().mean(1).abs().max() < 1e-6)
    True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        eps: float = 1e-4,
        use_gain: bool = True,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        layer = f"WeightStandardizedETLinear({in_features}, {out_features})"
        _refuse_one_input(self.weight, layer, "use ETLinear, or more inputs")
        self.eps = _check_eps(eps)
        gain = torch.ones(out_features, device=device, dtype=dtype)
        self.gain = nn.Parameter(gain) if use_gain else None

    def effective_weight(self) -> Tensor:
        """Return W_hat [O, I]."""
        return standardize_weight(self.weight, self.gain, self.eps)

    def weighted_map(self) -> Dense:
        """Return the matrix product."""
        return Dense()

    def forward(self, x: Tensor) -> Tensor:
        """Return x W_hat^T + b for x [B, ..., I]; the weight gradient is the trace's when there is one."""
        if self.trace is None or not torch.is_grad_enabled():
            return F.linear(x, self.effective_weight(), self.bias)
        return self.traced(x, self.trace)

    def traced(self, x: Tensor, trace: TraceBuffer | StepTrace) -> Tensor:
        """Return x W_hat^T + b with a weight gradient read from `trace`."""
        weight = self.effective_weight()
        return LinearEligibility.apply(x, weight, self.bias, trace)  # type: ignore[no-any-return]


__all__ = ["WeightStandardizedETConv2d", "WeightStandardizedETLinear"]
