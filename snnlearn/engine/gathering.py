"""Sum the weight gradients of the steps of one update inside the traces, and hand them over at its end.

Autograd would write every step's product to fresh memory and then add it to `.grad`; one accumulating product
does both. The numbers are the same sums. Only the learner uses this, since between its steps nobody reads `.grad`.
A gradient handed over is valid until the next update writes over it, as with `zero_grad(set_to_none=False)`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from snnlearn.nn.block import ETBlock
from snnlearn.nn.connection import ETLinear
from snnlearn.nn.trace_buffer import TraceBuffer


def _gatherers(net: nn.Module) -> Iterator[tuple[ETLinear, TraceBuffer]]:
    """Yield linear connections with a trace whose weight is a plain parameter that nobody listens to."""
    if any(isinstance(module, DistributedDataParallel) for module in net.modules()):
        return  # its hooks wait for autograd's own gradients
    for module in net.modules():
        connection = module.connection if isinstance(module, ETBlock) else None
        trace = connection.trace if isinstance(connection, ETLinear) else None
        if isinstance(connection, ETLinear) and isinstance(trace, TraceBuffer):
            weight = connection.weight
            heard = weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None)
            if weight.is_leaf and not heard:
                yield connection, trace


@contextmanager
def gathering(net: nn.Module) -> Iterator[None]:
    """Let the traces of `net` gather weight gradients while the context lasts; call `hand_over` before an update.

    >>> with gathering(nn.Linear(1, 1)):
    ...     pass
    """
    chosen = list(_gatherers(net))
    for connection, trace in chosen:
        trace.gathering = connection.weight.dtype
    try:
        yield
    finally:
        for _, trace in chosen:
            trace.gathering = trace.gathered = None


def hand_over(net: nn.Module) -> None:
    """Add what the traces of `net` have gathered to the gradients of their weights, and start a new sum.

    >>> hand_over(nn.Linear(1, 1))
    """
    for connection, trace in _gatherers(net):
        if trace.gathered is not None:
            weight = connection.weight
            weight.grad = trace.gathered if weight.grad is None else weight.grad.add_(trace.gathered)
            trace.gathered = None


__all__ = ["gathering", "hand_over"]
