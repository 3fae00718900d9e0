"""The four phases of a timestep, and the place where blocks announce them to whoever listens."""

import enum
from collections.abc import Callable

import torch
from torch import Tensor


class Phase(enum.Enum):
    """A timestep of one block, in order.

    >>> [phase.name for phase in Phase]
    ['FORWARD', 'TRACE_UPDATE', 'NEURON_BACKWARD', 'ET_BACKWARD']
    """

    FORWARD = "forward"
    TRACE_UPDATE = "trace update"
    NEURON_BACKWARD = "neuron backward"
    ET_BACKWARD = "ET backward"


Listener = Callable[[Phase], None]


def announce_backward(y: Tensor, listener: Listener) -> None:
    """Have `listener` told when dL/dy of the connection's output y is known, and when it has been used.

    The first is the end of the neuron's backward, the second of the connection's own.

    >>> y, told = torch.ones(1, requires_grad=True) * 2, []
    >>> announce_backward(y, told.append)
    >>> y.sum().backward(); [phase.name for phase in told]
    ['NEURON_BACKWARD', 'ET_BACKWARD']
    """
    if not (torch.is_grad_enabled() and y.requires_grad and y.grad_fn is not None):
        return
    y.register_hook(lambda _: listener(Phase.NEURON_BACKWARD))
    y.grad_fn.register_hook(lambda *_: listener(Phase.ET_BACKWARD))


__all__ = ["Listener", "Phase", "announce_backward"]
