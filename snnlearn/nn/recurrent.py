"""A recurrent connection: the spikes of its own neurons come back as input at the next step."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn.functional.arguments import is_whole
from snnlearn.functional.eligibility import LinearEligibility
from snnlearn.functional.weighted_map import Dense, WeightedMap
from snnlearn.nn.connection import Connection
from snnlearn.nn.state import Stateful, StateShapeError
from snnlearn.nn.step_trace import StepTrace
from snnlearn.nn.trace_buffer import TraceBuffer


class ETRecurrent(Connection, Stateful):
    """Linear in this step's input and in the spikes of the step before: y_t = W x_t + V s_{t-1} + b.

    `in_features` I, `out_features` O (also the units of the neuron behind it, which an `ETBlock` brings), `bias`.
    Parameters `weight` W [O, I], `recurrent_weight` V [O, O], `bias` [O]; with `self_connections` False the diagonal
    of V is held at zero. Input [B, ..., I], output [B, ..., O]; before the first step s is zero. It is one linear
    map of the joined input (x_t, s_{t-1}), so every trace of a linear layer serves it; online rules take s_{t-1} as a
    constant, as e-prop does (Bellec et al. 2020, doi:10.1038/s41467-020-17236-y).

    >>> from snnlearn.nn import LIF, ETBlock
    >>> block = ETBlock(ETRecurrent(4, 3), LIF())
    >>> block(torch.ones(2, 4)).shape, [name for name, _ in block.named_parameters()]
    (torch.Size([2, 3]), ['connection.weight', 'connection.recurrent_weight', 'connection.bias'])
    """

    transient = ("spikes",)

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, self_connections: bool = False
    ) -> None:
        super().__init__()
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if not is_whole(size, 1):
                raise ValueError(
                    f"{name}={size!r}: a layer has a whole number of inputs and outputs, at least one; write {name}=1 "
                    f"or more"
                )
        self.in_features, self.out_features, self.self_connections = in_features, out_features, self_connections
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.recurrent_weight = nn.Parameter(torch.empty(out_features, out_features))
        self.bias: nn.Parameter | None
        self.register_parameter("bias", nn.Parameter(torch.empty(out_features)) if bias else None)
        self.spikes: Tensor | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw W and b uniformly in +-1/sqrt(I), as `torch.nn.Linear` does, and V in +-1/sqrt(O)."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        nn.init.kaiming_uniform_(self.recurrent_weight, a=math.sqrt(5))
        if not self.self_connections:
            with torch.no_grad():
                self.recurrent_weight.fill_diagonal_(0.0)
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features)
            nn.init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        """Return the arguments."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}, self_connections={self.self_connections}"

    @property
    def unit_shape(self) -> tuple[int, ...]:
        """One number per output feature."""
        return (self.out_features,)

    @property
    def input_size(self) -> tuple[int, int] | None:
        """The last dimension, of `in_features` values."""
        return -1, self.in_features

    def forward(self, x: Tensor) -> Tensor:
        """Return W x + V s + b for x [B, ..., I]; the weight gradients are the trace's when there is one."""
        trace = self.trace
        if trace is None or not torch.is_grad_enabled():
            return F.linear(self.traced_input(x), self.effective_weight(), self.bias)
        return self.traced(x, trace)

    def traced(self, x: Tensor, trace: TraceBuffer | StepTrace) -> Tensor:
        """Return W x + V s + b with weight gradients read from `trace`."""
        joined = self.traced_input(x)
        return LinearEligibility.apply(joined, self.effective_weight(), self.bias, trace)  # type: ignore[no-any-return]

    def traced_input(self, x: Tensor) -> Tensor:
        """Return (x_t, s_{t-1}) [B, ..., I + O]; raise StateShapeError when x changes shape in mid-sequence."""
        return torch.cat([x, self.spikes_for(x).to(x.dtype)], dim=-1)

    def spikes_for(self, x: Tensor) -> Tensor:
        """Return the spikes of the step before [B, ..., O] that meet x [B, ..., I], zeros before the first step."""
        spikes = self.spikes
        if spikes is None:
            spikes = x.new_zeros((*x.shape[:-1], self.out_features))
        elif spikes.shape[:-1] != x.shape[:-1] or spikes.device != x.device:
            raise StateShapeError(
                f"ETRecurrent: the input has shape {list(x.shape)} on {x.device}, the spikes of the step before "
                f"{list(spikes.shape)} on {spikes.device}: within a sequence both stay the same. Call reset(net) where "
                f"a new sequence begins"
            )
        return spikes

    def effective_weight(self) -> Tensor:
        """Return (W, V) [O, I + O], the diagonal of V masked where there are no self-connections."""
        recurrent = self.recurrent_weight
        if not self.self_connections:
            return torch.cat([self.weight, recurrent - torch.diag_embed(recurrent.diagonal())], dim=1)
        return torch.cat([self.weight, recurrent], dim=1)

    def weighted_map(self) -> WeightedMap:
        """Return the matrix product."""
        return Dense()

    def take_output(self, output: Tensor, carry_graph: bool) -> None:
        """Keep the neuron's output [B, ..., O] for the next step, with its graph where time is backpropagated."""
        self.spikes = output if carry_graph else output.detach()


__all__ = ["ETRecurrent"]
