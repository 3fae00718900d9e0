"""The bytes that a chunk keeps, by the shapes of the blocks.

Between its forward and its backward a chunk of K steps of a block with B samples, I inputs, O units, H
hidden values per unit (those of a filter among them) and elements of s bytes keeps

    s [ K B (I + 2 O) + 2 H B I ]                                      a trace per input, such as OTTT's
    s [ K B (I + O (H^2 + 2 H + 2)) + H B O (I + 1) ]                  a trace per synapse, such as D-RTRL's

In both, K B I are the inputs and K B O the signal that comes back to the spikes; the spikes are the inputs of the next
block. A trace per input needs ds/dy (K B O) and is there as it was before the chunk and as it is after it. A trace per
synapse is there once, its rows I + 1 rounded up to whole cache lines; it meets the inputs and the Jacobian A, p, c, r
of every step (H^2 + 2 H + 1 numbers a unit). The gradients of the weights are there whatever K is, and so is what a
block's forward needs for a moment. Nothing grows with the length of the sequence.
"""

from typing import NamedTuple

from snnlearn.functional.chunk_roll import row_length


class BlockShape(NamedTuple):
    """A block as its bytes see it: B, I, O, H, bytes of a number, and whether its trace is one per synapse.

    >>> BlockShape(2, 3, 4, 1, True).kept(5)
    1432
    """

    batch: int
    inputs: int
    outputs: int
    hidden: int
    per_synapse: bool
    element: int = 4

    def growing(self, steps: int) -> int:
        """Return the bytes that grow with the chunk of `steps`; the equation is the module's."""
        per_step = self.inputs + 2 * self.outputs
        if self.per_synapse:
            per_step = self.inputs + self.outputs * (self.hidden**2 + 2 * self.hidden + 2)
        return self.element * steps * self.batch * per_step

    def lasting(self) -> int:
        """Return the bytes of the trace; the equation is the module's."""
        wide = row_length(self.inputs + 1, self.element)
        numbers = self.outputs * wide if self.per_synapse else 2 * self.inputs
        return self.element * self.hidden * self.batch * numbers

    def kept(self, steps: int) -> int:
        """Return the bytes that are kept of a chunk of `steps`."""
        return self.growing(steps) + self.lasting()


class NetworkShape(NamedTuple):
    """The blocks of a network, and the bytes of a step that its other layers keep, which are their inputs.

    >>> NetworkShape((BlockShape(2, 3, 4, 1, False),), 100).growing(2)
    376
    """

    blocks: tuple[BlockShape, ...]
    others: int = 0

    def growing(self, steps: int) -> int:
        """Return the bytes that grow with the chunk of `steps`."""
        return sum(block.growing(steps) for block in self.blocks) + steps * self.others

    def kept(self, steps: int) -> int:
        """Return the bytes that are kept of a chunk of `steps`."""
        return self.growing(steps) + sum(block.lasting() for block in self.blocks)


__all__ = ["BlockShape", "NetworkShape"]
