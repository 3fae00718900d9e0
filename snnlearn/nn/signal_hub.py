"""Learning signals other than backpropagation through space: equations in `snnlearn.functional.signals`.

A block under such a signal hands its spikes on without their graph, so nothing comes back to it from above; it offers
them to the `SignalHub` of the network instead. The hub joins all spikes to the network's output, as a node that leaves
the value alone and in backward gives each block its own signal, made from the output's error and from what the network
was shown; a block with a loss that has a graph of its own joins that loss in place of its spikes. A signal made from
the target, a reward or a loss of the block's own does not see the network's loss: what the loop divides, scales or
leaves out there changes the readout's gradient alone.
"""

import math
import numbers
from typing import Any

import torch
from torch import Tensor, nn

from snnlearn.functional.eligibility import refuse_second_order
from snnlearn.nn.chunk import Chunk
from snnlearn.nn.state import Stateful


class SignalError(RuntimeError):
    """A signal or a trace lacks what it is made from: a target, a reward, an output it can read, a membrane."""


class SignalHub:
    """Where the blocks of one network offer their spikes, and where target and reward are shown.

    `begin` and `join` are hooks around the network's forward: `join` returns the output with every offered spike joined
    to it. In a chunk of K steps `target` is [K B, ...] like everything else, unless `targets` has one for each step;
    `learning` says which steps learn, empty for all.

    >>> SignalHub().target is None
    True
    """

    def __init__(self) -> None:
        self.target: Tensor | None = None
        self.reward: Tensor | None = None
        self.chunk: Chunk | None = None
        self.targets: list[Tensor | None] = []
        self.learning: list[bool] = []
        self.offered: dict[int, tuple[Signal, Tensor]] = {}
        self.joins = 0

    def begin(self, _module: nn.Module, _inputs: Any) -> None:
        """Forget what a forward that failed had offered."""
        self.offered = {}

    def offer(self, signal: "Signal", spikes: Tensor) -> None:
        """Note a block's spikes [B, *units] of the step; raise SignalError where those of a step before still wait."""
        if id(signal) in self.offered:
            raise SignalError(
                "a block ran twice before the network's output was made, so one of its steps would get no learning "
                "signal: call the module that the rule was attached to as a whole, and give each block one place in it"
            )
        self.offered[id(signal)] = (signal, spikes)

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
        self.joins += 1
        signals, joined = [signal for signal, _ in offered], self._joined(offered)
        seen = self._seen(signals, [spike.detach() for _, spike in offered], output.detach())
        parameters = [parameter for signal in signals for parameter in signal.parameters()]
        return Join.apply(self, signals, seen, output, *joined, *parameters)

    def _joined(self, offered: "list[tuple[Signal, Tensor]]") -> list[Tensor]:
        """Return what each signal joins to the output; a loss of its own in a chunk is one number for each step [K]."""
        if self.chunk is None:
            return [signal.joined(spike) for signal, spike in offered]
        own = [(signal, self.chunk.unfolded(spike).unbind()) for signal, spike in offered if signal.has_loss]
        losses: dict[int, list[Tensor]] = {id(signal): [] for signal, _ in own}
        kept = self.target
        for t in range(self.chunk.steps if own else 0):
            rows, self.target = self.chunk.rows_at(t), self.target_at(t, self.chunk.steps)
            for signal, spikes in own:
                if rows is not None:
                    signal.reset(rows)
                losses[id(signal)].append(signal.joined(spikes[t]))
            self.target = kept
        return [torch.stack(losses[id(signal)]) if signal.has_loss else spike for signal, spike in offered]

    def target_at(self, t: int, steps: int) -> Tensor | None:
        """Return the target of step t of a chunk of `steps` K: from `targets`, or the rows of one that was shown."""
        if self.targets:
            return self.targets[t]
        return None if self.target is None else Chunk(steps).unfolded(self.target)[t]

    def _seen(self, signals: "list[Signal]", spikes: list[Tensor], output: Tensor) -> list[Tensor]:
        """Return what each signal observes in its spikes, having seen the output; in a chunk step by step."""
        if self.chunk is None:
            seen = [signal.observe(spike) for signal, spike in zip(signals, spikes, strict=True)]
            for signal in signals:
                signal.see_output(output)
            return seen
        by_step = []
        steps, outputs = [self.chunk.unfolded(spike) for spike in spikes], self.chunk.unfolded(output)
        for t in range(self.chunk.steps):
            rows = self.chunk.rows_at(t)
            for signal in signals if rows is not None else ():
                if not signal.has_loss:
                    signal.reset(rows)
            by_step.append([signal.observe(spike[t]) for signal, spike in zip(signals, steps, strict=True)])
            for signal in signals:
                signal.see_output(outputs[t])
        return [torch.cat(values) for values in zip(*by_step, strict=True)]

    def respond(
        self, signal: "Signal", error: Tensor, seen: Tensor, steps: int | None
    ) -> tuple[Tensor | None, tuple[Tensor | None, ...]]:
        """Return the signal [B, *units] for the errors [B, C], or [K B, ...] for those of a chunk of `steps` K.

        Steps of a chunk that do not learn get zeros, whatever the signal is made from.
        """
        if steps is None:
            return signal.respond(error, seen, self)
        learning = self.learning or [True] * steps
        if signal.has_loss:
            return seen.new_tensor(learning), (None,) * len(list(signal.parameters()))
        answers: list[Tensor] = []
        sums: list[Tensor | None] = [None for _ in signal.parameters()]
        pieces = zip(error.unflatten(0, (steps, -1)), seen.unflatten(0, (steps, -1)), strict=True)
        kept = self.target
        for t, (error_t, seen_t) in enumerate(pieces):
            if not learning[t]:
                answers.append(torch.zeros_like(seen_t, dtype=error.dtype))
                continue
            self.target = self.target_at(t, steps)
            answer, gradients = signal.respond_at(t, error_t, seen_t, self)
            answers.append(answer.to(error.dtype))
            sums = [g if total is None or g is None else total + g for total, g in zip(sums, gradients, strict=True)]
            self.target = kept
        return torch.cat(answers), tuple(sums)

    def __getstate__(self) -> dict[str, Any]:
        """Return attributes for copies and pickles, without what was offered in this step."""
        return {**self.__dict__, "offered": {}}


class Join(torch.autograd.Function):
    """The output, unchanged; in backward what each block joined to it, its spikes or a loss, gets its signal."""

    @staticmethod
    def forward(
        ctx: Any, hub: SignalHub, signals: "list[Signal]", seen: list[Tensor], output: Tensor, *_joined: Tensor
    ) -> Tensor:
        """Return the output [B, C]; `seen` is what each signal observed at this step."""
        ctx.hub, ctx.signals, ctx.steps = hub, signals, None if hub.chunk is None else hub.chunk.steps
        ctx.save_for_backward(*seen)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor | None, ...]:
        """Return the error for the output, the signals of the blocks, and the gradients of the signals' parameters."""
        refuse_second_order("a learning signal of a block's own")
        by_joined: list[Tensor | None] = []
        by_parameter: list[Tensor | None] = []
        needs = list(ctx.needs_input_grad[4:])
        with torch.autocast(error.device.type, enabled=False):
            for number, (signal, seen) in enumerate(zip(ctx.signals, ctx.saved_tensors, strict=True)):
                own = len(list(signal.parameters()))
                start = len(ctx.signals) + len(by_parameter)
                if needs[number] or any(needs[start : start + own]):
                    wide = error.to(torch.promote_types(error.dtype, seen.dtype))
                    answer, gradients = ctx.hub.respond(signal, wide, seen, ctx.steps)
                else:
                    answer, gradients = None, (None,) * own
                by_joined.append(answer)
                by_parameter.extend(gradients)
        return None, None, None, error, *by_joined, *by_parameter


class Signal(Stateful):
    """Base of a block's own learning signal; `hub` the one of its network.

    A subclass gives `respond(error, seen, hub)`: the signal [B, *units] for error dL/do [B, C], and a gradient for each
    of its own parameters. `seen` is what `observe` made of the step's spikes: the spikes themselves, unless a subclass
    filters them. A subclass whose loss has a graph of its own gives that loss in `joined`, in place of the spikes.

    >>> Signal(SignalHub()).emit(torch.ones(1, 2))
    tensor([[1., 1.]])
    """

    plain: tuple[str, ...] = ("hub",)
    has_loss = False
    """Whether it joins a loss of its own, with a graph of the step, which a chunk makes step by step."""
    reads: tuple[str, ...] = ("target", "reward")
    """What the signal may be made from besides the output's error: a subclass that needs less says so."""

    def __init__(self, hub: SignalHub) -> None:
        super().__init__()
        self.hub = hub

    def emit(self, spikes: Tensor) -> Tensor:
        """Offer the spikes [B, *units] to the hub and return what goes on to the next layer, without their graph."""
        self.hub.offer(self, spikes)
        return spikes.detach()

    def joined(self, spikes: Tensor) -> Tensor:
        """Return what the signal is the gradient of, for the step's spikes [B, *units]: these, with their graph."""
        return spikes

    def observe(self, spikes: Tensor) -> Tensor:
        """Return what the signal is made from at this step, for the step's spikes [B, *units]."""
        return spikes

    def see_output(self, output: Tensor) -> None:
        """Look at the network's output [B, C] of the step."""

    def respond_at(
        self, t: int, error: Tensor, seen: Tensor, hub: SignalHub
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Return `respond` for step t of a chunk."""
        return self.respond(error, seen, hub)

    def respond(self, error: Tensor, seen: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Return the signal and the gradients of this module's parameters, None for one with a graph of its own."""
        raise TypeError(f"{type(self).__name__} must define respond(error, seen, hub)")


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


def readers_of(net: nn.Module, what: str) -> list[SignalHub]:
    """Return the hubs of the signals in `net` that are made from `what`, target or reward, each once.

    >>> readers_of(nn.Linear(1, 1), "target")
    []
    """
    return list({id(m.hub): m.hub for m in net.modules() if isinstance(m, Signal) and what in m.reads}.values())


def _show(net: nn.Module, what: str, value: Tensor | None, remedy: str) -> None:
    """Set `what` in every hub that a signal in `net` reads it from; the hub may be that of a larger network."""
    hubs = readers_of(net, what)
    if value is not None and not hubs:
        raise SignalError(
            f"a {what} was shown to a {type(net).__name__} of which no block learns from a {what}, so it would be "
            f"lost; {remedy}, pass the network (or a part of it) that the rule was attached to, or leave this call out"
        )
    for hub in hubs:
        setattr(hub, what, value)


def show_target(net: nn.Module, target: Tensor | None) -> None:
    """Show the step's target to the blocks that learn from it: labels [B] or numbers [B, C]; None takes it away.

    `net` may be a part of the network that the rule was attached to: its blocks share what they are shown. Raises
    SignalError where no block of `net` learns from a target, TypeError for what is no tensor.

    >>> from snnlearn import ETBlock, ETLinear, LI, LIF, OSTTP, attach
    >>> net = nn.Sequential(ETBlock(ETLinear(2, 3), LIF()), ETBlock(ETLinear(3, 2), LI()))
    >>> _ = attach(net, OSTTP()); show_target(net, torch.tensor([1]))
    >>> hubs_of(net)[0].target
    tensor([1])
    """
    if not isinstance(target, Tensor | None):
        raise TypeError(
            f"the target shown is a {type(target).__name__}: pass a tensor of labels [B] or numbers [B, C], or None to "
            f"take it away; write torch.as_tensor(y)"
        )
    _show(net, "target", target, "attach OSTTP(), DECOLLE() or another rule with a target or a local readout")


def show_reward(net: nn.Module, reward: Tensor | float | None) -> None:
    """Show the step's reward, one number per sample [B] or one for all, to the blocks that learn from it.

    None takes it away. `net` and SignalError as for `show_target`; raises TypeError for what is no number.

    >>> from snnlearn import ETBlock, ETLinear, LI, LIF, RewardModulated, attach
    >>> net = nn.Sequential(ETBlock(ETLinear(2, 3), LIF()), ETBlock(ETLinear(3, 2), LI()))
    >>> _ = attach(net, RewardModulated()); show_reward(net, 1.0)
    >>> hubs_of(net)[0].reward
    tensor(1.)
    """
    value = None if reward is None else as_reward(reward)
    _show(net, "reward", value, "attach RewardModulated(), EProp(broadcast='reward') or another with signal='reward'")


def as_reward(reward: Tensor | float) -> Tensor:
    """Return a reward as a tensor; raise TypeError for what is no number, ValueError for one that is not finite.

    >>> as_reward(1.0)
    tensor(1.)
    """
    if isinstance(reward, Tensor):
        return reward
    if not isinstance(reward, numbers.Real):
        raise TypeError(
            f"the reward is {reward!r}: pass one number, or a tensor with one per sample [B]; write e.g. reward=1.0"
        )
    if not math.isfinite(reward):
        raise ValueError(f"the reward is {reward!r}: every weight would become that; pass a finite number")
    return torch.as_tensor(reward)


__all__ = [
    "Join",
    "Signal",
    "SignalError",
    "SignalHub",
    "as_reward",
    "hubs_of",
    "readers_of",
    "show_reward",
    "show_target",
    "target_of",
]
