"""The learning signals that a block may have in place of dL/ds: equations in `snnlearn.functional.signals`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn.functional.dynamics import LeakTransition
from snnlearn.functional.signals import (
    advance_output_estimate,
    as_values,
    broadcast_error,
    labelled_rows,
    local_loss,
    project_target,
    sinusoids,
)
from snnlearn.functional.trace import advance_leak_trace_, read_leak_trace
from snnlearn.nn.signal_hub import Signal, SignalError, SignalHub, target_of

GRID = 4
"""Side of the grid that a map of spikes is pooled to before a local readout."""


STREAM = 0x9E3779B97F4A7C15
"""Odd and large: keeps the steps of one seed apart from those of the next."""


def fixed_feedback(units: torch.Size, outputs: int, seed: int) -> Tensor:
    """Return the feedback matrix [*units, C] of `seed`: uniform, with the spread of torch's own linear layers.

    >>> torch.equal(fixed_feedback(torch.Size([2]), 3, 1), fixed_feedback(torch.Size([2]), 3, 1))
    True
    """
    generator = torch.Generator().manual_seed(seed)
    bound = units.numel() ** -0.5
    return torch.rand(*units, outputs, generator=generator, dtype=torch.float64).mul_(2).sub_(1).mul_(bound)


class RandomSignal(Signal):
    """u = B e with a fixed random B, drawn from `seed` when the block's shape is seen: direct feedback alignment.

    >>> signal = RandomSignal(SignalHub(), 7)
    >>> signal.respond(torch.ones(1, 2), torch.zeros(1, 3), signal.hub)[0].shape
    torch.Size([1, 3])
    """

    reads: tuple[str, ...] = ()
    plain: tuple[str, ...] = (*Signal.plain, "feedback")

    def __init__(self, hub: SignalHub, seed: int) -> None:
        super().__init__(hub)
        self.seed = seed
        self.feedback: Tensor | None = None

    def matrix(self, units: torch.Size, like: Tensor) -> Tensor:
        """Return B [*units, C] on the device and in the dtype of `like` [B, C]."""
        if self.feedback is None or self.feedback.shape != (*units, like.shape[-1]):
            self.feedback = fixed_feedback(units, like.shape[-1], self.seed)
        self.feedback = self.feedback.to(like.device)
        return self.feedback.to(like.dtype)

    def respond(self, error: Tensor, seen: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return B e."""
        return broadcast_error(error, self.matrix(seen.shape[1:], error)), ()


class TargetSignal(RandomSignal):
    """u = -B y / n: the target of the step, projected by a fixed random B.

    >>> hub = SignalHub(); hub.target = torch.tensor([1])
    >>> TargetSignal(hub, 7).respond(torch.ones(1, 2), torch.zeros(1, 3), hub)[0].shape
    torch.Size([1, 3])
    """

    reads = ("target",)

    def respond(self, error: Tensor, seen: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return -B y / n."""
        values, asked = shown_values(hub, error), int(labelled_rows(target_of(hub)).sum())
        return project_target(values, self.matrix(seen.shape[1:], error), asked), ()


def shown_values(hub: SignalHub, error: Tensor) -> Tensor:
    """Return the target as one number per output, for errors [B, C]; raise SignalError when it is not [B] or [B, C].

    >>> hub = SignalHub(); hub.target = torch.tensor([1])
    >>> shown_values(hub, torch.zeros(1, 2))
    tensor([[0., 1.]])
    """
    target = target_of(hub)
    values = as_values(target.to(error.device), error.shape[-1], error.dtype)
    if values.shape != error.shape:
        raise SignalError(
            f"this rule projects the target, and the one shown is {list(target.shape)} {target.dtype} for outputs "
            f"{list(error.shape)}: write labels [B], or one number per output [B, C]"
        )
    return values


def refuse_places(seen: Tensor, name: str) -> None:
    """Raise SignalError for units at several places [B, ..., O]: a readout's weights say nothing of places."""
    if seen.dim() != 2:
        raise SignalError(
            f"signal={name!r} stands for the weights of a readout, one number per unit [B, O], and the block sends "
            f"{list(seen.shape)}; write signal='random', which draws a number for every unit at every place"
        )


class SymmetricSignal(Signal):
    """u = W_out^T e with the weights of the `readout` connection, as they are: e-prop's symmetric broadcast.

    >>> signal = SymmetricSignal(SignalHub(), nn.Linear(3, 2))
    >>> signal.respond(torch.ones(1, 2), torch.zeros(1, 3), signal.hub)[0].shape
    torch.Size([1, 3])
    """

    reads = ()
    plain: tuple[str, ...] = (*Signal.plain, "readout")

    def __init__(self, hub: SignalHub, readout: nn.Module) -> None:
        super().__init__(hub)
        self.readout = (readout,)  # in a tuple: it is the network's module, not a part of this one

    def respond(self, error: Tensor, seen: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return W_out^T e."""
        refuse_places(seen, "symmetric")
        weight = self.readout[0].weight
        assert isinstance(weight, Tensor)
        return broadcast_error(error, weight.detach().T), ()


class AdaptiveSignal(Signal):
    """u = B e with a learned B [units, C], whose gradient is that of the transposed readout weights.

    `units`, `outputs` its sizes; `leak` the readout's own transition, None for a static one: the spikes are filtered by
    it as the readout's trace is. Add the parameter to the optimizer with weight decay, and where the block feeds the
    readout B and W_out^T become one (Kolen and Pollack 1994, doi:10.1109/ICNN.1994.374486). `OnlineLearner` adds it by
    itself. `values` K of [B, units].

    >>> signal = AdaptiveSignal(SignalHub(), 3, 2, 7, None)
    >>> u, (gradient,) = signal.respond(torch.ones(1, 2), torch.ones(1, 3), signal.hub); gradient.shape
    torch.Size([3, 2])
    """

    reads = ()
    transient: tuple[str, ...] = ("values",)
    values: tuple[Tensor, ...] | None = None

    def __init__(self, hub: SignalHub, units: int, outputs: int, seed: int, leak: LeakTransition | None) -> None:
        super().__init__(hub)
        drawn = fixed_feedback(torch.Size([units]), outputs, seed)
        self.feedback = nn.Parameter(drawn.to(torch.get_default_dtype()))
        self.leak = leak

    def observe(self, spikes: Tensor) -> Tensor:
        """Return the readout's trace of the spikes [B, units], this step in it; a static readout has none."""
        refuse_places(spikes, "adaptive")
        if self.leak is None:
            return spikes
        before = (torch.zeros_like(spikes),) * len(self.leak.drive) if self.values is None else self.values
        values = advance_leak_trace_(torch.stack(before), spikes, self.leak)
        self.values = values.unbind()
        return read_leak_trace(values, self.leak)

    def respond(self, error: Tensor, seen: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return B e, and the gradient of B."""
        gradient = seen.to(error.dtype).T @ error
        return broadcast_error(error, self.feedback.detach()), (gradient.to(self.feedback.dtype),)


class LocalReadoutSignal(Signal):
    """u = dl(G s, y)/ds for a readout G [C, D] of the block's own, which sees the spikes pooled.

    `features` D after pooling; `outputs` C; `kind` random, trained, sinusoid or square; `loss` one of
    `snnlearn.functional.signals.LOCAL_LOSSES`; `seed` of the drawn ones; `units_last` as in `pooled`. A trained G has
    the gradient of the same loss.

    >>> hub = SignalHub(); hub.target = torch.tensor([1])
    >>> signal = LocalReadoutSignal(hub, 3, 2, "random", "cross_entropy", 7)
    >>> signal.respond(torch.ones(1, 2), torch.ones(1, 3), hub)[0].shape
    torch.Size([1, 3])
    """

    reads = ("target",)

    def __init__(
        self, hub: SignalHub, features: int, outputs: int, kind: str, loss: str, seed: int, units_last: bool = False
    ) -> None:
        super().__init__(hub)
        self.kind, self.loss, self.units_last = kind, loss, units_last
        if kind in ("sinusoid", "square"):
            head = sinusoids(outputs, features, square=kind == "square")
        else:
            drawn = fixed_feedback(torch.Size([features]), outputs, seed).T.contiguous()
            head = drawn.to(torch.get_default_dtype())
        if kind == "trained":
            self.head = nn.Parameter(head)
        else:
            self.register_buffer("head", head, persistent=False)

    def respond(self, error: Tensor, seen: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the gradient of the block's own loss, for its spikes and for a trained G."""
        target = target_of(hub).to(seen.device)
        with torch.enable_grad():
            leaf, head = seen.detach().requires_grad_(), self.head.detach().requires_grad_()
            output = F.linear(pooled(leaf, self.units_last), head.to(leaf.dtype))
            value = local_loss(output, target, self.loss)
            signal, by_head = torch.autograd.grad(value, [leaf, head])
        return signal, (by_head,) if self.kind == "trained" else ()


def pooled(spikes: Tensor, units_last: bool = False) -> Tensor:
    """Return spikes [B, D] as they are, and maps [B, C, ...] averaged over a grid of 4 per dimension, flattened.

    With `units_last` the places of [B, ..., O] are averaged to [B, O].

    >>> pooled(torch.zeros(2, 3, 8, 8)).shape, pooled(torch.zeros(2, 5, 3), units_last=True).shape
    (torch.Size([2, 48]), torch.Size([2, 3]))
    """
    places = spikes.dim() - 2
    if places == 0:
        return spikes
    if units_last:
        return spikes.flatten(1, -2).mean(1)
    pool = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[places - 1]
    return pool(spikes, GRID).flatten(1)


class NoiseSignal(Signal):
    """u = M^T e with M = do/ds estimated from noise added to the spikes, a step at a time: OPZO.

    `scale` standard deviation of the noise; `momentum` of the running mean M [C, *units], which is kept in the
    checkpoint; `seed` of the noise.

    >>> signal = NoiseSignal(SignalHub(), 0.1, 0.9, 7)
    >>> sent = signal.emit(torch.zeros(2, 3)); signal.see_output(torch.ones(2, 4)); signal.estimate.shape
    torch.Size([4, 3])
    """

    reads = ()
    plain: tuple[str, ...] = (*Signal.plain, "estimate", "estimates", "noise", "waiting")

    def __init__(self, hub: SignalHub, scale: float, momentum: float, seed: int) -> None:
        super().__init__(hub)
        self.scale, self.momentum, self.seed, self.drawn = scale, momentum, seed, 0
        self.estimate: Tensor | None = None
        self.noise: Tensor | None = None
        self.waiting: list[Tensor] = []
        self.estimates: list[Tensor] = []

    def emit(self, spikes: Tensor) -> Tensor:
        """Offer the spikes and return them with noise, drawn step by step."""
        sent, chunk = super().emit(spikes), self.hub.chunk
        shape = sent.shape if chunk is None else chunk.unfolded(sent).shape[1:]
        self.waiting = [self._draw(shape).to(sent) for _ in range(1 if chunk is None else chunk.steps)]
        self.estimates = []
        return sent + torch.cat(self.waiting)

    def _draw(self, shape: torch.Size) -> Tensor:
        self.drawn += 1
        generator = torch.Generator().manual_seed((self.seed * STREAM + self.drawn) % 2**63)
        return torch.randn(shape, generator=generator) * self.scale

    def see_output(self, output: Tensor) -> None:
        """Take this step's output and noise into the estimate."""
        self.noise = self.waiting.pop(0)
        if self.estimate is None:
            self.estimate = output.new_zeros((output.shape[-1], *self.noise.shape[1:]))
        self.estimate = advance_output_estimate(
            self.estimate.to(output.device), output, self.noise, self.scale, self.momentum
        )
        self.noise = None
        if self.hub.chunk is not None:
            self.estimates.append(self.estimate)

    def respond(self, error: Tensor, seen: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return M^T e."""
        assert self.estimate is not None
        return broadcast_error(error, self.estimate.movedim(0, -1)), ()

    def respond_at(self, t: int, error: Tensor, seen: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return M^T e with the M of step t."""
        return broadcast_error(error, self.estimates[t].movedim(0, -1)), ()

    def get_extra_state(self) -> dict[str, Any]:
        """Return the estimate and the place in the stream of noise for a state_dict."""
        return {"estimate": self.estimate, "drawn": self.drawn}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take up what `get_extra_state` returned."""
        self.estimate, self.drawn = state["estimate"], state["drawn"]


class RewardSignal(Signal):
    """u = -r / n for all units: the reward of each sample, shown with `show_reward`.

    >>> hub = SignalHub(); hub.reward = torch.tensor([2.0])
    >>> RewardSignal(hub).respond(torch.ones(1, 2), torch.ones(1, 3), hub)[0]
    tensor([[-2., -2., -2.]])
    """

    reads = ("reward",)

    def respond(self, error: Tensor, seen: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return -r / n for every unit."""
        if hub.reward is None:
            raise SignalError(
                "this rule learns from a reward and none was shown; call show_reward(net, r) with one number per "
                "sample [B] before backward, or pass reward=r to OnlineLearner.step"
            )
        reward = hub.reward.to(device=seen.device, dtype=seen.dtype)
        if reward.dim() > 1 or reward.numel() not in (1, seen.shape[0]):
            raise SignalError(
                f"the reward shown is {list(reward.shape)} for a batch of {seen.shape[0]}: write one number per sample "
                f"[{seen.shape[0]}], or one for all"
            )
        return (-reward.reshape(-1, *(1,) * (seen.dim() - 1)) / seen.shape[0]).expand(seen.shape), ()


__all__ = [
    "AdaptiveSignal",
    "LocalReadoutSignal",
    "NoiseSignal",
    "RandomSignal",
    "RewardSignal",
    "SymmetricSignal",
    "TargetSignal",
    "fixed_feedback",
    "pooled",
    "refuse_places",
    "shown_values",
]
