"""A chunk of steps that an eligibility has not taken in yet."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from snnlearn.functional.chunk import Parts, Restarts, fold_chunk, roll_leak_trace, scan_chunk, scan_leak
from snnlearn.functional.chunk_roll import read_norm, read_weights, roll_eligibility, roll_weights
from snnlearn.functional.dynamics import Jacobian, LeakTransition
from snnlearn.functional.side_by_side import SideBySide
from snnlearn.functional.sparse_eligibility import (
    fold_sparse_chunk,
    read_sparse_norm,
    roll_sparse_eligibility,
    roll_sparse_inputs,
)
from snnlearn.functional.sparse_map import is_sparse
from snnlearn.kernels import dispatch


class KeptChunk(NamedTuple):
    """A chunk that the eligibility has not taken in yet: it does when the next step needs it, and often never has to.

    `jacobian` [H, H, K, B, ...] that the eligibility follows; `filter` what follows that, None for nothing; `inputs`
    [K, B, ..., I], or sparse rows [K B, I], with the one of a bias behind; `restarts` [K, B].
    """

    jacobian: Jacobian
    filter: LeakTransition | None
    inputs: SideBySide
    restarts: Restarts

    @property
    def rows(self) -> Tensor | None:
        """The sparse rows [K B, I] that the chunk was fed with, None for dense inputs."""
        first = self.inputs.parts[0]
        return first if is_sparse(first) else None

    def joined(self) -> "KeptChunk":
        """Return the chunk with dense inputs as one tensor, its one joined to them: what is larger needs that."""
        return self if self.rows is not None else self._replace(inputs=SideBySide((self.inputs.joined(),)))

    def gradient(
        self, signals: Tensor, entering: Parts | None, product: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> Tensor:
        """Return the chunk's share of dL/dW for the signals [K, B, ..., O] and the parts that enter it."""
        received, by_part = self.received(signals)
        if self.rows is not None:
            return fold_sparse_chunk(received, by_part, self.rows, entering, self.inputs.has_one)
        return fold_chunk(received, by_part, self.inputs, entering, product)

    def received(self, signals: Tensor) -> tuple[Tensor, Tensor]:
        """Return what meets the input of each step [K, B, ..., O] and the parts that enter [P, B, ..., O]."""
        if self.filter is None:
            return dispatch.run(scan_chunk, self.jacobian, signals, self.restarts)
        filtered, by_filter = dispatch.run(scan_leak, signals, self.filter, self.restarts)
        received, by_hidden = dispatch.run(scan_chunk, self.jacobian, filtered, self.restarts)
        return received, torch.cat([by_hidden, by_filter])

    def rolled(self, entering: Parts | None, shared: int = 0, room: Tensor | None = None) -> Parts:
        """Return the parts at the end of the chunk; those that enter it are written over.

        At the start of a sequence the first `shared` of them, which are the same for all units, are left out, and the
        others may be written over `room`.
        """
        product, weights = roll_weights(self.jacobian, self.filter, self.restarts)
        if entering is None and shared:
            product, weights = product[shared:, shared:], weights[shared:]
        if self.rows is not None:
            return roll_sparse_eligibility(entering, product, weights, self.rows, self.inputs.has_one)
        return dispatch.run(roll_eligibility, entering, product, weights, self.inputs.joined(), room)

    def read_norm(self, entering: Parts | None) -> float:
        """Return the norm of what meets the signal of the chunk's last step."""
        product, weights = read_weights(self.jacobian, self.filter, self.restarts)
        if self.rows is not None:
            return read_sparse_norm(entering, product, weights, self.rows, self.inputs.has_one)
        return read_norm(entering, product, weights, self.inputs.joined())

    def rolled_inputs(self, values: Tensor | None, leak: LeakTransition) -> Tensor:
        """Return the trace of the inputs at the end of the chunk from that at its entry, None for zero."""
        if self.rows is not None:
            steps = len(self.jacobian.spike_input)
            return roll_sparse_inputs(values, self.rows, steps, leak, self.restarts, self.inputs.has_one)
        return dispatch.run(roll_leak_trace, values, self.inputs.joined(), leak, self.restarts)


__all__ = ["KeptChunk"]
