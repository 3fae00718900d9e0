"""Connections: torch's own layers, drop-in, whose weight gradient can be read from a trace.

Outside an `ETBlock`, or under a rule without a trace, each is exactly the torch layer it derives from,
with the same arguments and the same `state_dict` keys.
"""

from itertools import takewhile
from typing import cast

import torch
from torch import Tensor, nn

from snnlearn.functional.eligibility import LinearEligibility
from snnlearn.functional.sparse_map import is_sparse, linear
from snnlearn.functional.weighted_map import Dense, WeightedMap
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
    def input_size(self) -> tuple[int, int] | None:
        """The dimension of the input that the weights fix, and its size; None where they fix none."""
        return None

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

    @property
    def input_size(self) -> tuple[int, int] | None:
        """The last dimension, of `in_features` values."""
        return -1, self.in_features

    def weighted_map(self) -> WeightedMap:
        """Return the matrix product."""
        return Dense()

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b for x [B, ..., I], or sparse rows [B, I]; the weight gradient is the trace's, if any."""
        if is_sparse(x) and (self.trace is None or not torch.is_grad_enabled()):
            return linear(x, self.weight, self.bias)
        return super().forward(x)

    def traced(self, x: Tensor, trace: TraceBuffer | StepTrace) -> Tensor:
        """Return x W^T + b."""
        return LinearEligibility.apply(x, self.weight, self.bias, trace)  # type: ignore[no-any-return]


__all__ = ["Connection", "ETLinear", "is_described"]
