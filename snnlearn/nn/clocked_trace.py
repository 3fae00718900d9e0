"""The clock of a trace: forward notes the tick that backward must find, every write ticks, a mismatch raises."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from snnlearn.functional.sparse_map import is_sparse
from snnlearn.nn.neuron import Neuron
from snnlearn.nn.probe import leak_of
from snnlearn.nn.state import Stateful

NO_TRACE = -1
"""The tick of a forward in eval(): no trace was kept, so backward must not ask for one."""


class StaleTraceError(RuntimeError):
    """Backward, or the next forward, found an eligibility trace that belongs to another step."""


class ClockedTrace(Stateful):
    """Base of every trace that is written in place between forward and backward; `name` is what errors call the block.

    A subclass names its tensors [K, B, ...] in `transient`, beside `skipped`, and calls `check` before it hands them
    out. Raises StaleTraceError where forward, advance and backward come in any other order than this.

    >>> ClockedTrace("a").tick
    0
    """

    transient: tuple[str, ...] = ("skipped",)
    plain: tuple[str, ...] = ("tick",)
    takes_side_by_side = False
    tick: int

    def __init__(self, name: str = "this block") -> None:
        super().__init__()
        self.name = name
        self.followed: tuple[tuple[str, Neuron], ...] = ()
        self.versions: tuple[int, ...] = ()
        self.skipped: int | None = None
        self.tick = 0

    @property
    def is_empty(self) -> bool:
        """Whether no step has been taken in since the last reset."""
        raise TypeError(f"{type(self).__name__} must say whether it is empty")

    def follow(self, attribute: str, neuron: Neuron) -> None:
        """Keep `attribute`, which holds the leak of `neuron`, up with it where its constants are learned."""
        if next(neuron.parameters(), None) is not None:
            self.followed = (*self.followed, (attribute, neuron))

    def refresh(self) -> None:
        """Read the leaks that are followed anew, if an optimizer changed a constant since the last step."""
        versions = tuple(p._version for _, neuron in self.followed for p in neuron.parameters())
        if versions != self.versions:
            self.settle()
            self.versions = versions
            for attribute, neuron in self.followed:
                setattr(self, attribute, leak_of(neuron))

    def settle(self) -> None:
        """Take in what is kept for later, by the leaks that held for it: here, nothing is."""

    def expect(self) -> int:
        """Return the tick that backward must find: the one after the coming advance."""
        if self.followed:
            self.refresh()
        if not self.training:
            return NO_TRACE
        if self.skipped:
            raise StaleTraceError(
                f"{self.name}: the neuron's state moved {self.skipped} step(s) under no_grad() or eval() while "
                f"the trace stood still, so a gradient now would miss their share. Call reset(net) before "
                f"learning goes on; to warm up with the trace, run those steps in train() with gradients "
                f"enabled and without a backward"
            )
        return self.tick + 1

    def skip(self) -> None:
        """Note that the neuron moved a step without the trace; learning on needs a reset first."""
        self.skipped = (self.skipped or 0) + 1

    def check(self, tick: int) -> None:
        """Raise StaleTraceError unless the clock stands at `tick` and there is a trace."""
        if tick == NO_TRACE:
            raise StaleTraceError(
                f"{self.name}: backward asks for a weight gradient of a forward made in eval(), where no trace "
                f"is kept. Call net.train() to learn, or net.requires_grad_(False) if only input gradients are "
                f"wanted"
            )
        if tick != self.tick or self.is_empty:
            raise StaleTraceError(
                f"{self.name}: backward expected the trace at tick {tick} and found tick {self.tick}"
                f"{' with no trace in it' if self.is_empty else ''}: {self._cause(tick)}. Run backward once "
                f"per step, after this block's forward and before its next forward or reset; for a loss over a "
                f"whole sequence attach BPTT() instead"
            )

    def check_unchanged(self, inputs: Iterable[Tensor], versions: tuple[int, ...]) -> None:
        """Raise StaleTraceError where inputs that are kept by reference have been written to since `versions_of`."""
        if versions_of(inputs) != versions:
            raise StaleTraceError(
                f"{self.name}: the input of the last chunk was changed in place before the trace had taken it in, so "
                f"the gradient would be that of other numbers. Write the next input into a tensor of its own, or hand "
                f"over a copy: x.clone()"
            )

    def _cause(self, tick: int) -> str:
        if tick > self.tick:
            return "the trace was not advanced after the forward"
        return "the block was stepped again, reset or moved between this forward and its backward"

    def reset(self, rows: Bool[Tensor, " batch"] | None = None) -> None:
        """Forget the trace, or the rows where `rows` [B] is true; a backward still pending then raises."""
        self.tick += 1
        super().reset(rows)

    @staticmethod
    def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
        """Change each of the K traces [B, ...] on its own: rows and memory formats count from the batch."""
        if isinstance(value, tuple):
            return tuple(ClockedTrace._map(part, change) for part in value)
        return torch.stack([change(trace) for trace in value]) if isinstance(value, Tensor) else value

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "ClockedTrace":
        super()._apply(fn, recurse)
        self.tick += 1
        return self


def versions_of(inputs: Iterable[Tensor]) -> tuple[int, ...]:
    """Return torch's count of writes to each tensor, sparse rows by their numbers.

    >>> x = torch.zeros(1); versions_of([x]), versions_of([x.add_(1)])
    ((0,), (1,))
    """
    return tuple((x.values() if is_sparse(x) else x)._version for x in inputs)


__all__ = ["NO_TRACE", "ClockedTrace", "StaleTraceError", "versions_of"]
