"""Write down the order of phases, for a test or for the curious."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from snnlearn.nn.block import ETBlock
from snnlearn.nn.phases import Listener, Phase


@dataclass(frozen=True)
class PhaseEvent:
    """One phase of one block at one step, counted from 0 where the recording began.

    >>> PhaseEvent("hidden", 0, Phase.FORWARD).phase.value
    'forward'
    """

    block: str
    step: int
    phase: Phase


@contextmanager
def record_phases(net: nn.Module) -> Iterator[list[PhaseEvent]]:
    """Record what every block of `net` does while the context lasts; yield the growing list of events.

    Raises ValueError when `net` has no block.

    >>> import torch
    >>> from snnlearn.nn import ETLinear, LIF
    >>> block = ETBlock(ETLinear(2, 1), LIF())
    >>> with record_phases(block) as events:
    ...     _ = block(torch.zeros(1, 2))
    >>> [event.phase.name for event in events]
    ['FORWARD']
    """
    blocks = {name: module for name, module in net.named_modules() if isinstance(module, ETBlock)}
    if not blocks:
        raise ValueError(f"{type(net).__name__} has no ETBlock, so there are no phases to record")
    events: list[PhaseEvent] = []
    forwards: Counter[str] = Counter()

    def listener_of(name: str) -> Listener:
        def listen(phase: Phase) -> None:
            forwards[name] += phase is Phase.FORWARD
            events.append(PhaseEvent(name, forwards[name] - 1, phase))

        return listen

    for name, block in blocks.items():
        block.listener = listener_of(name)
    try:
        yield events
    finally:
        for block in blocks.values():
            block.listener = None


__all__ = ["PhaseEvent", "record_phases"]
