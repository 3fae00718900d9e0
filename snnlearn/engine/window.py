"""Backward for whole windows of steps: all of a sequence under BPTT, the last few under truncated BPTT."""

import torch
from torch import Tensor, nn

from snnlearn.engine.losses import LossRun
from snnlearn.nn.state import detach_state


class Window:
    """Keep the losses of the present window, and walk back through it where it ends.

    `net` carries its graph from step to step; `run` is the loss of its sequence. A window is `steps` long, or lasts
    until `close` with None. What a window leaves behind, state and running mean, is a constant to the next.

    >>> window = Window(nn.Linear(1, 1), LossRun(nn.functional.mse_loss, None, True), steps=2)
    >>> window.add(None), window.add(torch.ones(1, requires_grad=True).sum()), window.add(None)
    (False, True, False)
    """

    def __init__(self, net: nn.Module, run: LossRun, steps: int | None) -> None:
        self.net, self.run, self.steps = net, run, steps
        self.seen = 0
        self.losses: list[Tensor] = []

    def add(self, loss: Tensor | None) -> bool:
        """Take in a step and its loss, if it has one; close the window when it is full and return whether it was."""
        self.seen += 1
        if loss is not None:
            self.losses.append(loss)
        if self.seen == self.steps:
            self.close()
            return True
        return False

    def close(self) -> None:
        """Walk back through the steps of the window, then begin a new one."""
        if self.losses:
            torch.stack(self.losses).sum().backward()
        self.drop()

    def drop(self) -> None:
        """Learn nothing from the present window, cut what it leaves behind, and begin a new one."""
        self.seen, self.losses = 0, []
        detach_state(self.net)
        self.run.detach()


__all__ = ["Window"]
