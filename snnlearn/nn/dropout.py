"""Dropout whose mask lasts a sequence, so that a trace of what passes it means what it should."""

import torch
from torch import Tensor

from snnlearn.functional.arguments import is_number
from snnlearn.nn.chunk import Chunk
from snnlearn.nn.eager import run_eagerly
from snnlearn.nn.state import Stateful, StateShapeError


class TimeConstantDropout(Stateful):
    """Zero each element with probability p for the whole sequence; scale the others by 1/(1 - p).

    One mask per sample, element and sequence, drawn at the first training step and dropped by `reset`; the
    identity in eval(). Rows that start afresh draw from a generator of the module's own, seeded at that first step, so
    that a chunk of steps draws the numbers of single ones. A mask redrawn every step would make a trace mix masks.
    Input [B, ...]. Raises ValueError for p outside [0, 1], StateShapeError when the input changes shape in
    mid-sequence. Gal and Ghahramani 2016, doi:10.48550/arXiv.1512.05287.

    >>> TimeConstantDropout(1.0)(torch.ones(1, 3))
    tensor([[0., 0., 0.]])
    """

    transient = ("mask", "redraw", "seed", "redrawn")

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not (is_number(p) and 0.0 <= p <= 1.0):
            raise ValueError(f"p={p!r}: the probability of zeroing an element lies in [0, 1]; write p=0.5")
        self.p = p
        self.mask: Tensor | None = None
        self.redraw: Tensor | None = None
        self.seed: int | None = None
        self.redrawn: int | None = None
        self.chunk: Chunk | None = None

    def extra_repr(self) -> str:
        """Return the probability."""
        return f"p={self.p:g}"

    @run_eagerly("the mask is state that lasts a sequence")
    def forward(self, x: Tensor) -> Tensor:
        """Return x times this sequence's mask, for x [B, ...]."""
        if not self.training or self.p == 0.0:
            return x
        if self.chunk is not None:
            return self._through_chunk(x, self.chunk)
        return self._masked(x)

    def _through_chunk(self, x: Tensor, chunk: Chunk) -> Tensor:
        steps = chunk.unfolded(x)
        if chunk.restarts is None:
            self._masked(steps[0].detach())
            assert self.mask is not None
            return (steps * self.mask).flatten(0, 1)
        masked = []
        for t, x_t in enumerate(steps.unbind()):
            rows = chunk.rows_at(t)
            if rows is not None:
                self.reset(rows)
            masked.append(self._masked(x_t))
        return torch.cat(masked)

    def _masked(self, x: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = self._draw(x, None)
            self.seed, self.redrawn = int(torch.randint(2**62, ())), 0
        elif self.mask.shape != x.shape or self.mask.device != x.device:
            raise StateShapeError(
                f"TimeConstantDropout: the input has shape {list(x.shape)} on {x.device}, this sequence's mask "
                f"{list(self.mask.shape)} on {self.mask.device}; call reset(net) where a new sequence begins"
            )
        if self.redraw is not None:
            rows = self.redraw.to(x.device).reshape(-1, *(1,) * (x.dim() - 1))
            self.redrawn = (self.redrawn or 0) + 1
            own = torch.Generator(x.device).manual_seed(((self.seed or 0) + self.redrawn) % 2**63)
            self.mask, self.redraw = torch.where(rows, self._draw(x, own), self.mask), None
        return x * self.mask

    def reset(self, rows: Tensor | None = None) -> None:
        """Draw a new mask at the next step, for all rows or for those where `rows` [B] is true."""
        if rows is None:
            self.mask = self.redraw = self.seed = self.redrawn = None
        elif self.mask is not None:
            if rows.shape != self.mask.shape[:1]:
                raise StateShapeError(
                    f"reset(rows=...) got a mask of shape {list(rows.shape)} while the running batch has "
                    f"{self.mask.shape[0]} rows; pass bool [{self.mask.shape[0]}]"
                )
            self.redraw = rows if self.redraw is None else self.redraw | rows

    def _draw(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        kept = torch.full_like(x, 1.0 - self.p, memory_format=torch.contiguous_format, requires_grad=False)
        return torch.bernoulli(kept, generator=generator).div_(max(1.0 - self.p, torch.finfo(x.dtype).tiny))


__all__ = ["TimeConstantDropout"]
