"""Hold the firing rate of every unit near a target: a term of the loss that is local to a block."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from snnlearn.functional.arguments import is_number
from snnlearn.functional.signals import rate_signal
from snnlearn.nn.chunk import Chunk
from snnlearn.nn.state import Stateful


class AddSignal(torch.autograd.Function):
    """The spikes, unchanged; in backward a fixed signal is added to theirs."""

    @staticmethod
    def forward(ctx: Any, spikes: Tensor, signal: Tensor) -> Tensor:
        """Return the spikes."""
        ctx.save_for_backward(signal)
        return spikes.view_as(spikes)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient with the signal."""
        (signal,) = ctx.saved_tensors
        return gradient + signal.to(gradient.dtype), None


class RateRegulariser(Stateful):
    """Add the gradient of c/2 sum_j (f_j - f*)^2 to the signal of a block: f_j is unit j's mean rate so far.

    `target` f* (spikes per step, in 0 .. 1) and `weight` c, at least 0: `snnlearn.functional.signals.rate_signal`. The
    mean runs over the batch and the steps since the last reset. Input and output spikes [B, *units], unchanged. Raises
    ValueError outside these ranges. Bellec et al. 2020, doi:10.1038/s41467-020-17236-y.

    >>> spikes = torch.ones(1, 2, requires_grad=True)
    >>> RateRegulariser(0.1, 2.0)(spikes).sum().backward(); spikes.grad
    tensor([[2.8000, 2.8000]])
    """

    transient: tuple[str, ...] = ("totals", "steps")
    totals: Tensor | None = None
    steps: Tensor | None = None

    def __init__(self, target: float, weight: float) -> None:
        super().__init__()
        if not (is_number(target) and 0.0 <= target <= 1.0):
            raise ValueError(
                f"target={target!r}: a firing rate is in spikes per step, between 0 and 1; write target=0.1"
            )
        if not (is_number(weight) and weight >= 0.0):
            raise ValueError(
                f"weight={weight!r}: the weight of the rate term is finite and at least 0; write weight=1.0"
            )
        self.target, self.weight = target, weight

    def extra_repr(self) -> str:
        """Return the target and the weight."""
        return f"target={self.target:g}, weight={self.weight:g}"

    def forward(self, spikes: Float[Tensor, "batch *units"]) -> Float[Tensor, "batch *units"]:
        """Count the spikes and return them, with the term's gradient joined to theirs."""
        now = spikes.detach()
        if self.totals is None or self.steps is None:
            self.totals, self.steps = torch.zeros_like(now), now.new_zeros(now.shape[0])
        self.totals, self.steps = self.totals + now, self.steps + 1
        if not (spikes.requires_grad and torch.is_grad_enabled()):
            return spikes
        counted = self.steps.sum()
        signal = rate_signal(self.totals.sum(0) / counted, self.target, self.weight, counted)
        return AddSignal.apply(spikes, signal)  # type: ignore[no-any-return]

    def through_chunk(self, spikes: Tensor, chunk: Chunk) -> Tensor:
        """Return the spikes [K B, *units] of a chunk, counted step by step."""
        counted = []
        for t, now in enumerate(chunk.unfolded(spikes).unbind()):
            rows = chunk.rows_at(t)
            if rows is not None:
                self.reset(rows)
            counted.append(self(now))
        return torch.cat(counted)


__all__ = ["AddSignal", "RateRegulariser"]
