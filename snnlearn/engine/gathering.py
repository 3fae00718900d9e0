"""Sum the weight gradients of the steps of one update inside the traces, and hand them over at its end.

Autograd would write every step's product to fresh memory and then add it to `.grad`; one accumulating product
does both. The numbers are the same sums. Only the learner uses this, around its own backward, since between its steps
nobody reads `.grad`.
"""

from collections.abc import Iterator

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from snnlearn.nn.block import ETBlock
from snnlearn.nn.connection import ETLinear
from snnlearn.nn.trace_buffer import TraceBuffer


def _gatherers(net: nn.Module) -> Iterator[tuple[nn.Parameter, TraceBuffer]]:
    """Yield linear connections with a trace whose weight is a plain parameter that nobody listens to."""
    if any(isinstance(module, DistributedDataParallel) for module in net.modules()):
        return  # its hooks wait for autograd's own gradients
    for module in net.modules():
        connection = module.connection if isinstance(module, ETBlock) else None
        trace = connection.trace if isinstance(connection, ETLinear) else None
        if isinstance(connection, ETLinear) and isinstance(trace, TraceBuffer):
            weight = connection._parameters.get("weight")
            if weight is not None and not (weight._backward_hooks or _accumulation_hooks(weight)):
                yield weight, trace


def _accumulation_hooks(weight: nn.Parameter) -> object:
    return getattr(weight, "_post_accumulate_grad_hooks", None)


class Gathering:
    """Lets the traces of `net` gather the gradients of their weights while its context lasts.

    Enter it around a backward, and call `hand_over` before an update; a weight that is not the one the forward used,
    or that somebody listens to, stays with autograd.

    >>> with Gathering(nn.Linear(1, 1)) as gathering:
    ...     gathering.hand_over()
    """

    def __init__(self, net: nn.Module) -> None:
        self.chosen = list(_gatherers(net))

    def __enter__(self) -> "Gathering":
        for weight, trace in self.chosen:
            trace.gathering = weight
        return self

    def __exit__(self, *_: object) -> None:
        for _weight, trace in self.chosen:
            trace.gathering = None

    def hand_over(self) -> None:
        """Add what was gathered to the gradients of the weights, and start a new sum."""
        for weight, trace in self.chosen:
            total = trace.take_gathered()
            if total is not None:
                weight.grad = total if weight.grad is None else weight.grad.add_(total)

    def drop(self) -> None:
        """Forget what was gathered and not handed over."""
        for _weight, trace in self.chosen:
            trace.gathered = trace.gathered_by_input = None


__all__ = ["Gathering"]
