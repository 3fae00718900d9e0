"""Inputs of one linear map that stand side by side, as those of a recurrent layer do: x_t, its own spikes, and a one.

Joined, [x, s, 1] would be a copy of all of a chunk's inputs, which is larger than anything else that a chunk makes.
A gradient is a sum of products with the inputs, each column by itself, so it needs no copy:

    sum_t d_t (x) [x_t, s_{t-1}, 1]  =  [ sum_t d_t (x) x_t ,  sum_t d_t (x) s_{t-1} ,  sum_t d_t ]
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from snnlearn.functional.weighted_map import rows_of


class SideBySide(NamedTuple):
    """Inputs [..., I_1], [..., I_2], ... in a row, with a constant one behind them where `has_one`.

    >>> both = SideBySide((torch.zeros(3, 2), torch.ones(3, 1)), has_one=True)
    >>> both.shape, both.joined()[0]
    (torch.Size([3, 4]), tensor([0., 0., 1., 1.]))
    """

    parts: tuple[Tensor, ...]
    has_one: bool = False

    @property
    def shape(self) -> torch.Size:
        """The shape of all of them joined."""
        first = self.parts[0]
        return torch.Size((*first.shape[:-1], sum(self.widths)))

    @property
    def widths(self) -> list[int]:
        """How many inputs each part has, that of the one behind them."""
        return [*(part.shape[-1] for part in self.parts), *([1] if self.has_one else [])]

    def each(self, change: Callable[[Tensor], Tensor]) -> "SideBySide":
        """Return the parts, changed one by one."""
        return self._replace(parts=tuple(map(change, self.parts)))

    def joined(self) -> Tensor:
        """Return one tensor [..., I]; a part that stands alone is returned as it is."""
        one = (torch.ones_like(self.parts[0][..., :1]),) if self.has_one else ()
        return torch.cat([*self.parts, *one], dim=-1) if len(self.widths) > 1 else self.parts[0]

    def summed_products(self, d: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return the sum over rows of d [..., O] (x) inputs [O, I], where `product(d, part)` is that of one part."""
        one = (rows_of(d).sum(0).unsqueeze(-1),) if self.has_one else ()
        found = [*(product(d, part) for part in self.parts), *one]
        return torch.cat(found, dim=-1) if len(found) > 1 else found[0]


__all__ = ["SideBySide"]
