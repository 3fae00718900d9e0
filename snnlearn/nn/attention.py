"""Spiking self-attention with traced projections; equation in `snnlearn.functional.attention`."""

from collections.abc import Callable

from torch import Tensor, nn

from snnlearn.functional.arguments import is_number, is_whole
from snnlearn.functional.attention import spike_attention
from snnlearn.nn.block import ETBlock
from snnlearn.nn.connection import ETLinear
from snnlearn.nn.factory import check_factory
from snnlearn.nn.neuron import Neuron
from snnlearn.nn.state import StateShapeError


class SpikingSelfAttention(nn.Module):
    """Spiking self-attention among tokens: x [B, N, F] -> spikes [B, N, F]; Zhou et al. 2023 (Spikformer).

    Blocks `query`, `key` and `value` make spikes of x; `attention_neuron` spikes on scale * Q K^T V of each of `heads`
    heads, which share the F `features`; block `output` mixes the heads. `neuron()` makes a neuron, `norm()` a
    normalisation for each block (over the last dimension, such as `nn.LayerNorm(F)`), `attention_neuron()` the neuron
    of the product if it is another kind (in the paper one of threshold 0.5, with scale 0.125). Every projection has its
    own trace; the product has no weights and is passed within the step. Raises ValueError unless `heads` divides
    `features`, TypeError for a neuron where what makes one is wanted, StateShapeError for an input that is not [B, N,
    F].

    >>> import torch
    >>> from snnlearn.nn import LIF
    >>> SpikingSelfAttention(8, 2, LIF)(torch.ones(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    report_note = (
        "the product of queries, keys and values has no weights and no trace: spatial backprop passes it and the "
        "neuron behind it within the step, and for query, key and value that neuron counts among the later blocks"
    )

    def __init__(
        self,
        features: int,
        heads: int,
        neuron: Callable[[], Neuron],
        *,
        scale: float = 0.125,
        attention_neuron: Callable[[], Neuron] | None = None,
        norm: Callable[[], nn.Module] | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if not (is_whole(heads, 1) and is_whole(features, 1)) or features % heads:
            raise ValueError(
                f"SpikingSelfAttention(features={features!r}, heads={heads!r}): every head takes an equal share of the "
                f"features; write whole numbers from 1, heads a divisor of features"
            )
        if not is_number(scale):
            raise ValueError(f"scale={scale!r}: what the product is multiplied by is a finite number; write 0.125")
        check_factory("neuron", neuron, "LIF")
        if attention_neuron is not None:
            check_factory("attention_neuron", attention_neuron, "LIF")
        if norm is not None:
            check_factory("norm", norm, "lambda: nn.LayerNorm(F)")
        self.features, self.heads, self.scale = features, heads, scale

        def projection() -> ETBlock:
            return ETBlock(ETLinear(features, features, bias), neuron(), None if norm is None else norm())

        self.query, self.key, self.value = projection(), projection(), projection()
        self.attention_neuron = neuron() if attention_neuron is None else attention_neuron()
        if not isinstance(self.attention_neuron, Neuron):
            raise TypeError(
                f"attention_neuron() made a {type(self.attention_neuron).__name__}: spikes come from a Neuron; write "
                f"attention_neuron=lambda: LIF(threshold=0.5)"
            )
        self.output = projection()

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"features={self.features}, heads={self.heads}, scale={self.scale}"

    def forward(self, x: Tensor) -> Tensor:
        """Return the spikes [B, N, F] of one step for x [B, N, F]."""
        if x.dim() != 3 or x.shape[-1] != self.features:
            raise StateShapeError(
                f"SpikingSelfAttention got an input of shape {list(x.shape)}: one step of a batch is [B, N, "
                f"{self.features}], the tokens second and the features last; write x.flatten(2).mT for maps "
                f"[B, C, H, W]"
            )
        mixed = spike_attention(self.query(x), self.key(x), self.value(x), self.heads, self.scale)
        output: Tensor = self.output(self.attention_neuron(mixed))
        return output


__all__ = ["SpikingSelfAttention"]
