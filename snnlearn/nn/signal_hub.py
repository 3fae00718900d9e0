"""Learning signals other than backpropagation through space: equations in `snnlearn.functional.signals`.

A block under such a signal hands its spikes on without their graph, so nothing comes back to it from above; it offers
them to the `SignalHub` of the network instead. The hub joins all spikes to the network's output, as a node that leaves
the value alone and in backward gives each block its own signal, made from the output's error and from what the network
was shown.
"""

from typing import Any

import torch
from torch import Tensor, nn

from snnlearn.nn.state import Stateful


class SignalError(RuntimeError):
    """A learning signal lacks what it is made from: a target, a reward, or an output it can read."""


class SignalHub:
    """Where the blocks of one network offer their spikes, and where target and reward are shown.

    `join` is a forward hook of the network: it returns the output with every offered spike joined to it.

    >>> SignalHub().target is None
    True
    """

    def __init__(self) -> None:
        self.target: Tensor | None = None
        self.reward: Tensor | None = None
        self.offered: dict[int, tuple[Signal, Tensor]] = {}

    def join(self, _module: nn.Module, _inputs: Any, output: Any) -> Any:
        """Return the network's output [B, C] joined to what was offered; raise TypeError for another output."""
        offered, self.offered = list(self.offered.values()), {}
        if not (offered and torch.is_grad_enabled()):
            return output
        if not (isinstance(output, Tensor) and output.dim() == 2):
            got = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise TypeError(
                f"the network's output is {got}, and a broadcast signal reads one number per sample and output "
                f"[B, C]; return a tensor [B, C], or attach a rule with signal='spatial'"
            )
        signals = [signal for signal, _ in offered]
        for signal in signals:
            signal.see_output(output.detach())
        spikes = [spike for _, spike in offered]
        parameters = [parameter for signal in signals for parameter in signal.parameters()]
        return Join.apply(self, signals, output, *spikes, *parameters)

    def __getstate__(self) -> dict[str, Any]:
        """Return attributes for copies and pickles, without what was offered in this step."""
        return {**self.__dict__, "offered": {}}


class Join(torch.autograd.Function):
    """The output, unchanged; in backward each spike gets its block's signal."""

    @staticmethod
    def forward(ctx: Any, hub: SignalHub, signals: "list[Signal]", output: Tensor, *rest: Tensor) -> Tensor:
        """Return the output [B, C]."""
        ctx.hub, ctx.signals = hub, signals
        ctx.save_for_backward(*rest[: len(signals)])
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor | None, ...]:
        """Return the error for the output, and the signals of the blocks."""
        answers = [
            signal.respond(error, spikes, ctx.hub)
            for signal, spikes in zip(ctx.signals, ctx.saved_tensors, strict=True)
        ]
        parameters = [gradient for _, gradients in answers for gradient in gradients]
        return None, None, error, *(answer for answer, _ in answers), *parameters


class Signal(Stateful):
    """Base of a block's own learning signal; `hub` the one of its network.

    A subclass gives `respond(error, spikes, hub)`: the signal [B, *units] for error dL/do [B, C] and spikes [B, *units]
    of the step, and a gradient for each of its own parameters.

    >>> Signal(SignalHub()).emit(torch.ones(1, 2))
    tensor([[1., 1.]])
    """

    plain: tuple[str, ...] = ("hub",)

    def __init__(self, hub: SignalHub) -> None:
        super().__init__()
        self.hub = hub

    def emit(self, spikes: Tensor) -> Tensor:
        """Offer the spikes [B, *units] to the hub and return what goes on to the next layer, without their graph."""
        self.hub.offered[id(self)] = (self, spikes)
        return spikes.detach()

    def see_output(self, output: Tensor) -> None:
        """Look at the network's output [B, C] of the step."""

    def respond(self, error: Tensor, spikes: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the signal and the gradients of this module's parameters."""
        raise TypeError(f"{type(self).__name__} must define respond(error, spikes, hub)")


def target_of(hub: SignalHub) -> Tensor:
    """Return the target that was shown; raise SignalError when there is none.

    >>> hub = SignalHub(); hub.target = torch.tensor([1]); target_of(hub)
    tensor([1])
    """
    if hub.target is None:
        raise SignalError(
            "this rule learns from the target itself and none was shown; call show_target(net, y) before backward, or "
            "let an OnlineLearner run the loop"
        )
    return hub.target


def hubs_of(net: nn.Module) -> list[SignalHub]:
    """Return the hubs of the signals in `net`, each once.

    >>> hubs_of(nn.Linear(1, 1))
    []
    """
    return list({id(m.hub): m.hub for m in net.modules() if isinstance(m, Signal)}.values())


def show_target(net: nn.Module, target: Any) -> None:
    """Show the step's target to the blocks that learn from it: labels [B] or numbers [B, C]; None takes it away.

    >>> show_target(nn.Linear(1, 1), torch.tensor([1]))
    """
    for hub in hubs_of(net):
        hub.target = target if isinstance(target, Tensor) else None


def show_reward(net: nn.Module, reward: Tensor | float | None) -> None:
    """Show the step's reward, one number per sample [B] or one for all, to the blocks that learn from it.

    >>> show_reward(nn.Linear(1, 1), 1.0)
    """
    for hub in hubs_of(net):
        hub.reward = None if reward is None else torch.as_tensor(reward)


__all__ = ["Join", "Signal", "SignalError", "SignalHub", "hubs_of", "show_reward", "show_target", "target_of"]
