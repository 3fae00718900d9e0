"""The signal of traces propagation: a second path, from the label, through the same weights as the input's.

Equations of the loss in `snnlearn.functional.contrastive`. The path of the target steps when the network's output is
made, block by block from below, and its loss joins the output with a graph of this step alone: it reaches the block's
spikes, the block's weights as the target path uses them, and the projection S of the label.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn.functional.contrastive import contrastive_loss, likeness_of_targets
from snnlearn.functional.dynamics import State
from snnlearn.functional.signals import as_values, labelled_rows
from snnlearn.functional.trace import flush_subnormals
from snnlearn.nn.block import ETBlock
from snnlearn.nn.recurrent import ETRecurrent
from snnlearn.nn.signal_hub import Signal, SignalError, SignalHub
from snnlearn.nn.state import zero_rows

REPORT_NOTE = (
    "the label takes a path of its own, and every hidden block learns from its own loss between the two, exactly with "
    "all edges in time and between blocks cut; batches have at least 2 samples; Euclidean distances, the projection's "
    "spread and beta are read from the benchmark neurotrain, not from the paper"
)
"""What the rule is exact for, and what of it is a reading."""


class Refusal(torch.autograd.Function):
    """Zero, in place of a loss that cannot be made: its backward raises SignalError with the reason.

    The backward of a step that does not learn, whose gradient is zero, does not.
    """

    @staticmethod
    def forward(ctx: Any, spikes: Tensor, reason: str) -> Tensor:
        """Return zero for spikes [B, H]; `reason` is what the error says."""
        ctx.reason = reason
        return torch.zeros((), dtype=spikes.dtype, device=spikes.device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        """Raise SignalError, unless the step does not learn."""
        if bool(gradient.any()):
            raise SignalError(ctx.reason)
        return None, None


def label_projection(units: int, outputs: int, seed: int) -> Tensor:
    """Return the projection S [units, C] of `seed`: normal, with variance 2 / C, so that a label makes units fire.

    >>> label_projection(3, 2, 1).shape
    torch.Size([3, 2])
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(units, outputs, generator=generator, dtype=torch.float64).mul_(math.sqrt(2 / outputs))


class ContrastiveSignal(Signal):
    """dE/ds for the layer's own contrastive loss E, which also reaches the weights through the path of the target.

    `block` the one that it teaches; `below` the hidden block that feeds it, None for the first; `outputs` C of the
    label; `decay` beta of the traces and `temperature` tau of the loss; `trained` whether the projection S of the
    label, first drawn from `seed`, is learned. In the first block S y stands for all that the connection sends to the
    neuron; above, the connection itself takes the target spikes of the block below (a recurrent one its own of the step
    before, too). The neuron is the block's, with a `state` of its own here. Traces, spikes and state are [B, H].

    >>> from snnlearn.nn import LIF, ETLinear
    >>> signal = ContrastiveSignal(SignalHub(), ETBlock(ETLinear(4, 3), LIF()), None, 2, 7)
    >>> signal.hub.target = torch.tensor([0, 1]); signal.joined(torch.ones(2, 3)).shape
    torch.Size([])
    """

    reads = ("target",)
    plain: tuple[str, ...] = (*Signal.plain, "block", "below", "joined_at")
    has_loss = True
    transient: tuple[str, ...] = ("trace", "target_trace", "label_trace", "target_spikes", "state")
    projection: Tensor

    def __init__(
        self,
        hub: SignalHub,
        block: ETBlock,
        below: ETBlock | None,
        outputs: int,
        seed: int,
        decay: float = 0.98,
        temperature: float = 1.0,
        trained: bool = True,
    ) -> None:
        super().__init__(hub)
        self.block, self.below = (block,), (below,)  # in tuples: they are the network's modules, not parts of this one
        self.outputs, self.decay, self.temperature = outputs, decay, temperature
        self.joined_at = 0
        self.trace: Tensor | None = None
        self.target_trace: Tensor | None = None
        self.label_trace: Tensor | None = None
        self.target_spikes: Tensor | None = None
        self.state: State | None = None
        if below is not None:
            return
        drawn = label_projection(block.connection.unit_shape[0], outputs, seed).to(torch.get_default_dtype())
        if trained:
            self.projection = nn.Parameter(drawn)
        else:
            self.register_buffer("projection", drawn, persistent=False)

    @property
    def report_note(self) -> str | None:
        """What an attach report says of the target's path, once for the network."""
        return None if self.below[0] is not None else REPORT_NOTE

    def joined(self, spikes: Tensor) -> Tensor:
        """Let the path of the target take its step beside spikes [B, H], and return E with the graph of this step."""
        if spikes.dim() != 2:
            raise SignalError(
                f"this rule compares the units of whole samples, and a hidden block sends {list(spikes.shape)}: it "
                f"takes blocks that send one number per unit [B, H]; put the mean over the other dimensions before the "
                f"block, or attach DECOLLE(), whose readout takes it"
            )
        shown = self.hub.target
        y, reference = self._from_label(shown, spikes) if self.below[0] is None else self._from_below(self.below[0])
        target_spikes = self._step(y)
        trace = self._advanced(self.trace, spikes)
        target_trace = self._advanced(self.target_trace, target_spikes)
        self.trace, self.target_trace = trace.detach(), target_trace.detach()
        self.target_spikes, self.joined_at = target_spikes.detach(), self.hub.joins
        reason = _missing(shown, len(spikes))
        if reason or shown is None:
            return Refusal.apply(spikes, reason)  # type: ignore[no-any-return]
        rows = labelled_rows(shown).to(spikes.device)
        if not bool(rows.all()):
            trace, target_trace, reference = trace[rows], target_trace[rows], reference[rows]
        with torch.autocast(spikes.device.type, enabled=False):
            return contrastive_loss(trace, target_trace, likeness_of_targets(reference), self.temperature)

    def respond(self, error: Tensor, seen: Tensor, hub: SignalHub) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Return one, the gradient of E for itself: the rest is autograd's, S included."""
        return seen.new_ones(()), (None,) * len(list(self.parameters()))

    def reset(self, rows: Bool[Tensor, " batch"] | None = None) -> None:
        """Forget traces and the state of the target path, or restart the rows where `rows` [B] is true."""
        running = self.state
        super().reset(rows)
        if rows is not None and running is not None and self.state is not None:
            start = self.block[0].neuron.initial_state(running[0])
            self.state = tuple(
                zeroed + zero_rows(value.detach().to(zeroed.dtype), ~rows)
                for zeroed, value in zip(self.state, start, strict=True)
            )

    def _from_label(self, shown: Tensor | None, spikes: Tensor) -> tuple[Tensor, Tensor]:
        """Return S y and the trace of y, for the target shown, zeros where a sample has none."""
        wanted = (len(spikes), self.outputs)
        label = self.projection.new_zeros(wanted)
        if shown is not None:
            label = as_values(shown.to(label.device), self.outputs, label.dtype)
            if label.shape != wanted:
                raise SignalError(
                    f"this rule sends the target through the network, and the one shown is {list(shown.shape)} "
                    f"{shown.dtype} for outputs {list(wanted)}: write labels [B], or one number per output [B, C]"
                )
        self.label_trace = self._advanced(self.label_trace, label)
        return F.linear(label, self.projection), self.label_trace

    def _from_below(self, below: ETBlock) -> tuple[Tensor, Tensor]:
        """Return what the connection makes of the target spikes below, and the trace of these."""
        signal = below.signal
        if (
            not isinstance(signal, ContrastiveSignal)
            or signal.hub is not self.hub
            or signal.joined_at != self.hub.joins
        ):
            raise SignalError(
                "a hidden block learns from the target spikes of the block below it, which has no target path any "
                "more, or did not run in this step: attach TracesPropagation() to the whole network, and give the "
                "lower blocks no other rule"
            )
        x, connection = signal.target_spikes, self.block[0].connection
        assert x is not None
        assert signal.target_trace is not None
        if isinstance(connection, ETRecurrent):
            own = x.new_zeros((len(x), connection.out_features)) if self.target_spikes is None else self.target_spikes
            x = torch.cat([x, own], dim=-1)
        bias = connection.bias
        assert bias is None or isinstance(bias, Tensor)
        return connection.weighted_map().value(x, connection.effective_weight(), bias), signal.target_trace

    def _step(self, y: Tensor) -> Tensor:
        """Advance the target path by y [B, H] and return its spikes, with the graph of this step."""
        neuron = self.block[0].neuron
        spikes, after = neuron.step(y, neuron.initial_state(y) if self.state is None else self.state)
        self.state = tuple(flush_subnormals(value.detach()) for value in after)
        return spikes

    def _advanced(self, trace: Tensor | None, spikes: Tensor) -> Tensor:
        """Return beta * trace + spikes [B, H], in float32 at least, with the graph of this step alone."""
        wide = spikes.to(torch.promote_types(spikes.dtype, torch.float32))
        return wide if trace is None else flush_subnormals(self.decay * trace + wide)


def _missing(shown: Tensor | None, samples: int) -> str:
    """Return why a step of so many samples has nothing to learn from, empty where it has."""
    if shown is None:
        return (
            "this rule sends the target through the network beside the input, and none was shown before the forward; "
            "call show_target(net, y) before net(x), or let an OnlineLearner run the loop"
        )
    if samples < 2:
        return (
            f"this rule learns from what sets the samples of a batch apart, and this batch has {samples}: its loss "
            f"would be zero, and the hidden blocks would learn nothing; write a batch of at least 2 (drop a last batch "
            f"of 1), or attach OSTTP() or DECOLLE(), which learn from one sample"
        )
    return ""


__all__ = ["ContrastiveSignal", "label_projection"]
