"""Checks of what a learner is built from."""

import torch
from torch import nn


def check_optimizer(net: nn.Module, optimizer: object) -> None:
    """Raise TypeError unless `optimizer` is one, ValueError unless it holds a parameter of `net`.

    >>> net = nn.Linear(1, 1)
    >>> check_optimizer(net, torch.optim.SGD(net.parameters(), lr=0.1))
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        got = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else f"a {type(optimizer).__name__}"
        raise TypeError(
            f"OnlineLearner got {got} as optimizer: it takes a torch optimizer over the network's parameters; write "
            f"optimizer=torch.optim.Adam(net.parameters())"
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(p) in held for p in net.parameters()):
        raise ValueError(
            "the optimizer holds none of the network's parameters, so nothing would be learned; build it from "
            "net.parameters() of the network you pass"
        )


def check_loss(loss: object) -> None:
    """Raise TypeError unless `loss` can be called, and is no class still to be built.

    >>> check_loss(nn.functional.cross_entropy)
    """
    if not callable(loss) or isinstance(loss, type):
        hint = f"{loss.__name__}()" if isinstance(loss, type) else "torch.nn.functional.cross_entropy"
        raise TypeError(
            f"loss={loss!r}: it takes a function of (output, target), or an object that is one; write {hint}"
        )


__all__ = ["check_loss", "check_optimizer"]
