"""What a layer with weights does to its input, and its two gradients: all linear in the input and in the weights.

For y = W * x + b, where * is a matrix product or a convolution, and d = dL/dy, an eligibility rule needs three things:

    value      y                            from the step's input x
    weight     dL/dW = d (x) e              from a trace e shaped like x, in place of x
    input      dL/dx = W^T * d              from the weights, or from a feedback matrix in their place

Both gradients are linear in what takes the place of x or W, so a trace or a feedback needs no equation of its own.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def rows_of(values: Float[Tensor, "*leading units"]) -> Float[Tensor, "rows units"]:
    """Return values [..., U] as rows [N, U], so that one plain matrix product sums over all leading dimensions.

    >>> rows_of(torch.zeros(2, 3, 4)).shape
    torch.Size([6, 4])
    """
    return values if values.dim() == 2 else rearrange(values, "... units -> (...) units")


@runtime_checkable
class WeightedMap(Protocol):
    """A map y = W * x + b with its two gradients; stateless.

    >>> isinstance(Dense(), WeightedMap)
    True
    """

    def value(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return W * x + b."""
        ...

    def weight_gradient(self, d: Tensor, trace: Tensor, weight: Tensor) -> Tensor:
        """Return the sum over samples and places of d (x) trace, shaped like `weight`."""
        ...

    def input_gradient(self, d: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        """Return W^T * d, of the input's `shape`."""
        ...

    def units_last(self, d: Tensor) -> Tensor:
        """Return d with the dimension that a bias belongs to moved to the end."""
        ...


class Dense(NamedTuple):
    """The matrix product y = x W^T + b: x [..., I], W [O, I], y [..., O].

    >>> Dense().weight_gradient(torch.ones(2, 3), torch.ones(2, 4), torch.zeros(3, 4)).shape
    torch.Size([3, 4])
    """

    def value(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x W^T + b."""
        return F.linear(x, weight, bias)

    def weight_gradient(self, d: Tensor, trace: Tensor, weight: Tensor) -> Tensor:
        """Return d^T trace."""
        return rows_of(d).T @ rows_of(trace)

    def input_gradient(self, d: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        """Return d W."""
        return d @ weight.to(d.dtype)

    def units_last(self, d: Tensor) -> Tensor:
        """Return d."""
        return d


class Convolution(NamedTuple):
    """A convolution of one to three dimensions, or its transpose, by torch's own arguments: x [B, C, ...].

    `padding` with zeros; `output_padding` counts for a transposed one alone.

    >>> convolution = Convolution((1,), (1,), (1,), 1)
    >>> convolution.value(torch.ones(1, 1, 3), torch.ones(1, 1, 3), None)
    tensor([[[2., 3., 2.]]])
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    output_padding: tuple[int, ...] | None = None

    def value(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution of x."""
        return torch.convolution(
            x, weight, bias, self.stride, self.padding, self.dilation, self.transposed, self._extra(), self.groups
        )

    def weight_gradient(self, d: Tensor, trace: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the kernels with the trace in place of the input."""
        return self.gradients(d, trace, weight, (False, True))[1]  # type: ignore[return-value]

    def input_gradient(self, d: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        """Return the gradient of the input map."""
        return self.gradients(d, d.new_zeros(()).expand(shape), weight, (True, False))[0]  # type: ignore[return-value]

    def gradients(
        self, d: Tensor, trace: Float[Tensor, "..."], weight: Tensor, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of input and kernels, those that are `wanted`, in one call."""
        by_input, by_weight, _ = torch.ops.aten.convolution_backward(
            d,
            trace,
            weight.to(d.dtype),
            None,
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self._extra(),
            self.groups,
            [*wanted, False],
        )
        return by_input, by_weight

    def units_last(self, d: Tensor) -> Tensor:
        """Return d [B, O, ...] as [B, ..., O]."""
        return d.movedim(1, -1)

    def _extra(self) -> tuple[int, ...]:
        return (0,) * len(self.stride) if self.output_padding is None else self.output_padding


__all__ = ["Convolution", "Dense", "WeightedMap", "rows_of"]
