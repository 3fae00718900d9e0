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
    local_loss,
    project_target,
    sinusoids,
)
from snnlearn.functional.trace import advance_leak_trace_, read_leak_trace
from snnlearn.nn.signal_hub import Signal, SignalError, SignalHub, target_of

GRID = 4
"""Side of the grid that a map of spikes is pooled to before a local readout."""


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

    plain: tuple[str, ...] = (*Signal.plain, "feedback")

    def __init__(self, hub: SignalHub, seed: int) -> None:
        super().__init__(hub)
        self.seed = seed
        self.feedback: Tensor | None = None

    def matrix(self, units: torch.Size, like: Tensor) -> Tensor:
        """Return B [*units, C] on the device and in the dtype of `like` [B, C]."""
        if self.feedback is None or self.feedback.shape[:-1] != units:
            self.feedback = fixed_feedback(units, like.shape[-1], self.seed)
        self.feedback = self.feedback.to(like.device)
        return self.feedback.to(like.dtype)

    def respond(self, error: Tensor, spikes: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return B e."""
        return broadcast_error(error, self.matrix(spikes.shape[1:], error)), ()


class TargetSignal(RandomSignal):
    """u = -B y / n: the target of the step, projected by a fixed random B.

    >>> hub = SignalHub(); hub.target = torch.tensor([1])
    >>> TargetSignal(hub, 7).respond(torch.ones(1, 2), torch.zeros(1, 3), hub)[0].shape
    torch.Size([1, 3])
    """

    def respond(self, error: Tensor, spikes: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return -B y / n."""
        target = as_values(target_of(hub), error.shape[-1], error.dtype)
        return project_target(target, self.matrix(spikes.shape[1:], error)), ()


class SymmetricSignal(Signal):
    """u = W_out^T e with the weights of the `readout` connection, as they are: e-prop's symmetric broadcast.

    >>> signal = SymmetricSignal(SignalHub(), nn.Linear(3, 2))
    >>> signal.respond(torch.ones(1, 2), torch.zeros(1, 3), signal.hub)[0].shape
    torch.Size([1, 3])
    """

    plain: tuple[str, ...] = (*Signal.plain, "readout")

    def __init__(self, hub: SignalHub, readout: nn.Module) -> None:
        super().__init__(hub)
        self.readout = (readout,)  # in a tuple: it is the network's module, not a part of this one

    def respond(self, error: Tensor, spikes: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return W_out^T e."""
        weight = self.readout[0].weight
        assert isinstance(weight, Tensor)
        return broadcast_error(error, weight.detach().T), ()


class AdaptiveSignal(Signal):
    """u = B e with a learned B [units, C], whose gradient is that of the transposed readout weights.

    `units`, `outputs` its sizes; `leak` the readout's own transition, None for a static one: the spikes are filtered by
    it as the readout's trace is. Add the parameter to the optimizer with weight decay, and B and W_out^T become one
    (Kolen and Pollack 1994, doi:10.1109/ICNN.1994.374486). `OnlineLearner` adds it by itself.

    >>> signal = AdaptiveSignal(SignalHub(), 3, 2, 7, None)
    >>> u, (gradient,) = signal.respond(torch.ones(1, 2), torch.ones(1, 3), signal.hub); gradient.shape
    torch.Size([3, 2])
    """

    transient: tuple[str, ...] = ("values",)
    values: Tensor | None = None

    def __init__(self, hub: SignalHub, units: int, outputs: int, seed: int, leak: LeakTransition | None) -> None:
        super().__init__(hub)
        drawn = fixed_feedback(torch.Size([units]), outputs, seed)
        self.feedback = nn.Parameter(drawn.to(torch.get_default_dtype()))
        self.leak = leak

    def emit(self, spikes: Tensor) -> Tensor:
        """Take the spikes into the readout's trace of them, and offer them."""
        if self.leak is not None:
            now = spikes.detach()
            if self.values is None:
                self.values = now.new_zeros((now.shape[0], len(self.leak.drive), *now.shape[1:]))
            kept = self.values.transpose(0, 1).contiguous()
            self.values = advance_leak_trace_(kept, now, self.leak).transpose(0, 1)
        return super().emit(spikes)

    def respond(self, error: Tensor, spikes: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return B e, and the gradient of B."""
        filtered = spikes if self.leak is None else self._filtered()
        gradient = filtered.to(error.dtype).T @ error
        return broadcast_error(error, self.feedback.detach()), (gradient.to(self.feedback.dtype),)

    def _filtered(self) -> Tensor:
        assert self.values is not None
        assert self.leak is not None
        return read_leak_trace(self.values.transpose(0, 1), self.leak)


class LocalReadoutSignal(Signal):
    """u = dl(G s, y)/ds for a readout G [C, D] of the block's own; maps of spikes are pooled to a 4 by 4 grid first.

    `features` D after pooling; `outputs` C; `kind` random, trained or sinusoid; `loss` one of
    `snnlearn.functional.signals.LOCAL_LOSSES`; `seed` of the drawn ones. A trained G has the gradient of the same loss.

    >>> hub = SignalHub(); hub.target = torch.tensor([1])
    >>> signal = LocalReadoutSignal(hub, 3, 2, "random", "cross_entropy", 7)
    >>> signal.respond(torch.ones(1, 2), torch.ones(1, 3), hub)[0].shape
    torch.Size([1, 3])
    """

    def __init__(self, hub: SignalHub, features: int, outputs: int, kind: str, loss: str, seed: int) -> None:
        super().__init__(hub)
        self.kind, self.loss = kind, loss
        drawn = fixed_feedback(torch.Size([features]), outputs, seed).T.contiguous()
        head = sinusoids(outputs, features) if kind == "sinusoid" else drawn.to(torch.get_default_dtype())
        if kind == "trained":
            self.head = nn.Parameter(head)
        else:
            self.register_buffer("head", head, persistent=False)

    def respond(self, error: Tensor, spikes: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the gradient of the block's own loss, for its spikes and for a trained G."""
        target = target_of(hub)
        with torch.enable_grad():
            leaf, head = spikes.detach().requires_grad_(), self.head.detach().requires_grad_()
            value = local_loss(F.linear(pooled(leaf), head.to(leaf.dtype)), target, self.loss)
            signal, by_head = torch.autograd.grad(value, [leaf, head])
        return signal, (by_head,) if self.kind == "trained" else ()


def pooled(spikes: Tensor) -> Tensor:
    """Return spikes [B, D] as they are, and maps [B, C, ...] averaged over a grid of 4 per dimension, flattened.

    >>> pooled(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 48])
    """
    places = spikes.dim() - 2
    if places == 0:
        return spikes
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

    plain: tuple[str, ...] = (*Signal.plain, "estimate", "noise")

    def __init__(self, hub: SignalHub, scale: float, momentum: float, seed: int) -> None:
        super().__init__(hub)
        self.scale, self.momentum, self.seed, self.drawn = scale, momentum, seed, 0
        self.estimate: Tensor | None = None
        self.noise: Tensor | None = None

    def emit(self, spikes: Tensor) -> Tensor:
        """Offer the spikes and return them with noise."""
        sent = super().emit(spikes)
        self.drawn += 1
        generator = torch.Generator().manual_seed((self.seed << 32) + self.drawn)
        self.noise = torch.randn(sent.shape, generator=generator).to(sent) * self.scale
        return sent + self.noise

    def see_output(self, output: Tensor) -> None:
        """Take this step's output and noise into the estimate."""
        assert self.noise is not None
        if self.estimate is None:
            self.estimate = output.new_zeros((output.shape[-1], *self.noise.shape[1:]))
        self.estimate = advance_output_estimate(
            self.estimate.to(output.device), output, self.noise, self.scale, self.momentum
        )
        self.noise = None

    def respond(self, error: Tensor, spikes: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return M^T e."""
        assert self.estimate is not None
        return broadcast_error(error, self.estimate.movedim(0, -1)), ()

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

    def respond(self, error: Tensor, spikes: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return -r / n for every unit."""
        if hub.reward is None:
            raise SignalError(
                "this rule learns from a reward and none was shown; call show_reward(net, r) with one number per "
                "sample [B] before backward, or pass reward=r to OnlineLearner.step"
            )
        reward = hub.reward.to(device=spikes.device, dtype=spikes.dtype).reshape(-1, *(1,) * (spikes.dim() - 1))
        return (-reward / spikes.shape[0]).expand(spikes.shape), ()


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
]
