"""Which trace and which signal each block gets under a rule: everything about it that is decided at attach."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from snnlearn.functional.cuba_lif import cuba_lif_leak_transition
from snnlearn.functional.dynamics import LeakTransition
from snnlearn.functional.lif import lif_leak_transition
from snnlearn.functional.weighted_map import Dense
from snnlearn.nn.block import ETBlock, Readout
from snnlearn.nn.connection import is_described
from snnlearn.nn.contrastive_signal import ContrastiveSignal
from snnlearn.nn.factored_trace import FactoredTrace, RankOneTrace, RatioTrace
from snnlearn.nn.filtered_trace import FilteredTrace
from snnlearn.nn.normed_step import is_followed
from snnlearn.nn.probe import caveats_of, leak_of
from snnlearn.nn.recurrent import ETRecurrent
from snnlearn.nn.signal import (
    GRID,
    AdaptiveSignal,
    LocalReadoutSignal,
    NoiseSignal,
    RandomSignal,
    RewardSignal,
    SymmetricSignal,
    TargetSignal,
)
from snnlearn.nn.signal_hub import Signal, SignalHub
from snnlearn.nn.step_trace import StepTrace
from snnlearn.nn.synaptic_trace import SynapticTrace
from snnlearn.nn.trace_buffer import TraceBuffer
from snnlearn.nn.within_chunk import WithinChunkTrace
from snnlearn.rules.axes import Contrast, LearningRule, LocalHead, NoiseEstimate
from snnlearn.rules.legality import RuleChoiceError

SEEDS_PER_RULE = 1000
"""Seeds between two rules, so that every block of each draws its own numbers."""


@dataclass(frozen=True)
class Place:
    """A block and where it stands: `name`, the next block or readout in the network's order, whether it is a readout.

    `next` is None for the last one; `chained` whether the next block is fed by this one alone, with nothing but
    averages, reshapes and masks that last a sequence between them; `direct` whether there is no mask either.
    """

    name: str
    block: ETBlock
    next: nn.Module | None
    is_readout: bool
    chained: bool
    direct: bool


STILL = (nn.Flatten, nn.Unflatten, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.Identity)
"""Modules that do to a trace what they do to its input."""


def places_of(net: nn.Module) -> list[Place]:
    """Return the blocks of `net` in order, each with what follows it.

    A readout is a static `Readout`, or a block whose neuron does not fire; where there is none, the last block is it.

    >>> from snnlearn.nn import LIF, ETLinear
    >>> [place.is_readout for place in places_of(nn.Sequential(ETBlock(ETLinear(2, 2), LIF())))]
    [True]
    """
    steps = [(name, m) for name, m in net.named_modules() if isinstance(m, ETBlock | Readout)]
    readouts = [m for _, m in steps if isinstance(m, Readout) or not m.neuron.spiking]
    if not readouts and steps:
        readouts = [steps[-1][1]]
    chain = _chain(net)
    places = []
    for number, (name, module) in enumerate(steps):
        follower = steps[number + 1][1] if number + 1 < len(steps) else None
        if isinstance(module, ETBlock):
            masked = chain.get((module, follower))
            places.append(
                Place(
                    name=name,
                    block=module,
                    next=follower,
                    is_readout=any(module is r for r in readouts),
                    chained=masked is not None,
                    direct=masked is False,
                )
            )
    return places


def _chain(net: nn.Module) -> dict[tuple[nn.Module, nn.Module | None], bool]:
    """Map the pairs of blocks of a Sequential that only still modules part to whether a mask is among these."""
    from snnlearn.nn.dropout import TimeConstantDropout

    pairs: dict[tuple[nn.Module, nn.Module | None], bool] = {}
    if type(net) is not nn.Sequential:
        return pairs
    before: nn.Module | None = None
    masked = False
    for module in net:
        if isinstance(module, ETBlock | Readout):
            if before is not None:
                pairs[before, module] = masked
            before, masked = module, False
        elif isinstance(module, TimeConstantDropout):
            masked = True
        elif not isinstance(module, STILL):
            before = None
    return pairs


def filter_for(place: Place, places: Sequence[Place], rule: LearningRule) -> LeakTransition | None:
    """Return the filter of a block's eligibility, None where nothing above remembers, or the block is a readout.

    `places` those of the whole network.
    """
    if rule.trace_filter == "none" or place.is_readout:
        return None
    if isinstance(rule.filter_decay, tuple):
        return cuba_lif_leak_transition(*rule.filter_decay)
    if rule.filter_decay is not None:
        return lif_leak_transition(rule.filter_decay)
    source = filter_source(place, places, rule)
    return None if source is None else leak_of(source.neuron)


def filter_source(place: Place, places: Sequence[Place], rule: LearningRule) -> ETBlock | None:
    """Return the block whose leak is the filter: the next one, or for kappa the leaky readout."""
    if rule.trace_filter == "above":
        return place.next if isinstance(place.next, ETBlock) else None
    leaky = [p.block for p in places if p.is_readout and not p.block.neuron.spiking]
    return leaky[-1] if leaky else None


def leak_for(block: ETBlock, rule: LearningRule) -> LeakTransition:
    """Return the transition of a factored trace: the rule's own decay, or the leak of the block's neuron."""
    if rule.transition == "none":
        return lif_leak_transition(0.0)
    return leak_of(block.neuron) if rule.trace_decay is None else lif_leak_transition(rule.trace_decay)


def trace_for(place: Place, places: Sequence[Place], rule: LearningRule) -> TraceBuffer | StepTrace | None:
    """Return the trace of one block under `rule`, None for none; it keeps up with a leak that is learned."""
    trace = _made(place, places, rule)
    has_leak = isinstance(trace, FactoredTrace | FilteredTrace | RankOneTrace | TraceBuffer)
    has_leak |= isinstance(trace, WithinChunkTrace) and trace.leak is not None
    if trace is not None and has_leak and rule.transition != "none" and rule.trace_decay is None:
        trace.follow("leak", place.block.neuron)
    if isinstance(trace, StepTrace):
        if trace.mean_leak is not None:
            trace.follow("mean_leak", place.block.neuron)
        source = filter_source(place, places, rule)
        if trace.filter is not None and rule.filter_decay is None and source is not None:
            trace.follow("filter", source.neuron)
    return trace


def _made(place: Place, places: Sequence[Place], rule: LearningRule) -> TraceBuffer | StepTrace | None:
    block, name = place.block, place.name or "the block"
    bias = block.connection.bias is not None
    if not rule.online or (rule.transition == "none" and rule.signal != "alignment"):
        return None
    further = filter_for(place, places, rule)
    averaged = rule.relay == "mean" and not place.is_readout and (further is not None or rule.trace_filter == "none")
    mean_leak = leak_of(block.neuron) if averaged else None
    if rule.storage == "synaptic" and not is_dense(block):
        constant = leak_for(block, rule) if rule.transition == "leak" else None
        return WithinChunkTrace(name, further, bias, mean_leak, constant, rule.truncate_trace)
    if rule.transition == "local" and rule.storage == "rank_one":
        return RankOneTrace(leak_for(block, rule), rule.forgetting, name, bias)
    if rule.transition == "local" and further is not None and follows_its_leak(block):
        return FilteredTrace(leak_for(block, rule), further, name, bias, mean_leak)
    if rule.transition == "local":
        return SynapticTrace(name, further, bias, mean_leak)
    leak = leak_for(block, rule)
    if rule.storage == "synaptic":
        return FilteredTrace(leak, further, name, bias, mean_leak)
    if rule.transition == "ratio":
        is_first = place.block is places[0].block
        if isinstance(block.connection, ETRecurrent) and not is_first:
            raise RuleChoiceError(
                f"{rule.name} decays a trace by the membranes of the neurons of the block before, and {name!r} has its "
                f"own spikes as inputs too; put ETLinear() there, or attach OTTT()"
            )
        if len(leak.drive) != 1:
            raise RuleChoiceError(
                f"{rule.name} decays a trace by one membrane per sending neuron, and the {type(block.neuron).__name__} "
                f"of {name!r} has {len(leak.drive)} hidden values that decay; take LIF(), or attach OTTT()"
            )
        ratio = RatioTrace(leak, name, None, bias, mean_leak)
        ratio.is_first = is_first
        return ratio
    post = None if place.is_readout else rule.post
    as_step = not has_norm(block) or is_followed(block.norm)
    learned = next(block.neuron.parameters(), None) is not None and as_step
    plain = further is None and mean_leak is None and post is None and rule.signal != "alignment" and not learned
    return TraceBuffer(leak, name) if plain else FactoredTrace(leak, name, further, bias, mean_leak, post)


def has_norm(block: ETBlock) -> bool:
    """Return whether a module stands between the weights and the neuron.

    >>> from snnlearn.nn import LIF, ETLinear
    >>> has_norm(ETBlock(ETLinear(2, 2), LIF()))
    False
    """
    return not (block.norm is None or isinstance(block.norm, nn.Identity))


def follows_its_leak(block: ETBlock) -> bool:
    """Return whether the eligibility before a filter is one trace of the inputs, the same for all units of the block.

    That is where the neuron's Jacobian is a constant: no path through a reset, no constant that differs or is learned.

    >>> from snnlearn.nn import LIF, ETLinear
    >>> follows_its_leak(ETBlock(ETLinear(2, 2), LIF())), follows_its_leak(ETBlock(ETLinear(2, 2), LIF(reset="hard")))
    (True, False)
    """
    neuron = block.neuron
    constant = next(neuron.parameters(), None) is None and not caveats_of(neuron)
    return constant and not has_norm(block) and is_dense(block)


def is_dense(block: ETBlock) -> bool:
    """Return whether each weight of the block is one synapse.

    >>> from snnlearn.nn import LIF, ETLinear
    >>> is_dense(ETBlock(ETLinear(2, 2), LIF()))
    True
    """
    return isinstance(block.connection.weighted_map(), Dense)


def signal_for(
    place: Place, places: Sequence[Place], rule: LearningRule, hub: SignalHub, net: nn.Module
) -> Signal | None:
    """Return the signal of one block in place of dL/ds, None where it keeps what comes from above."""
    if place.is_readout or rule.signal in ("spatial", "alignment"):
        return None
    seed = rule.seed * SEEDS_PER_RULE + [p.block for p in places].index(place.block)
    block = place.block
    if rule.signal == "random":
        return RandomSignal(hub, seed)
    if rule.signal == "target":
        return TargetSignal(hub, seed)
    if rule.signal == "reward":
        return RewardSignal(hub)
    if rule.signal == "noise":
        estimate = rule.noise or NoiseEstimate()
        return NoiseSignal(hub, estimate.scale, estimate.momentum, seed)
    outputs, readout = readout_of(net, places)
    like = block.connection.effective_weight().detach()
    if rule.signal == "contrastive":
        below, path = _target_path_below(place, places, rule), rule.contrast or Contrast()
        signal = ContrastiveSignal(hub, block, below, outputs, seed, path.decay, path.temperature, path.trained)
        return signal.to(like)
    if rule.signal == "symmetric":
        return SymmetricSignal(hub, _direct_readout(place, readout, rule))
    if rule.signal == "adaptive":
        leaky = [p.block for p in places if p.is_readout and not p.block.neuron.spiking]
        units = _dense_units(place, rule)
        return AdaptiveSignal(hub, units, outputs, seed, leak_of(leaky[-1].neuron) if leaky else None).to(like)
    head = rule.head or LocalHead()
    shape = block.connection.unit_shape
    features = shape[0] * GRID ** (len(shape) - 1)
    return LocalReadoutSignal(hub, features, outputs, head.kind, head.loss, seed, is_dense(block)).to(like)


def _target_path_below(place: Place, places: Sequence[Place], rule: LearningRule) -> ETBlock | None:
    """Return the hidden block whose target spikes `place` takes, None for the first; refuse what is no dense chain."""
    hidden = [p for p in places if not p.is_readout]
    number = [p.block for p in hidden].index(place.block)
    block, where = place.block, f"block {place.name!r}" if place.name else "the block"
    kind = type(block.connection).__name__
    if not (is_dense(block) or (number == 0 and len(block.connection.unit_shape) == 1)):
        raise RuleChoiceError(
            f"{rule.name} compares whole samples unit by unit, and {where} is an {kind}, whose units stand at many "
            f"places; attach DECOLLE(), whose readout averages over them, or take ETLinear() layers"
        )
    if has_norm(block):
        raise RuleChoiceError(
            f"{rule.name} lets two paths through {where}, and its {type(block.norm).__name__} has statistics of one; "
            f"move it before the block, or attach DECOLLE()"
        )
    if number == 0:
        return None
    if not is_described(block.connection):
        raise RuleChoiceError(
            f"{rule.name} sends the target through the {kind} of {where}, which has a forward of its own that its "
            f"weighted_map does not tell; write weighted_map for it, or attach DECOLLE()"
        )
    below, size = hidden[number - 1], block.connection.input_size
    fits = size is not None and below.block.connection.unit_shape == (size[1],)
    if not (below.next is block and below.chained and fits):
        raise RuleChoiceError(
            f"{rule.name} sends the target from one hidden block straight into the next, and {where} is not fed by "
            f"{below.name!r} alone: write the blocks in one nn.Sequential, without branches, or attach DECOLLE()"
        )
    return below.block


def readout_of(net: nn.Module, places: Sequence[Place]) -> tuple[int, nn.Module]:
    """Return the number of outputs and the connection of the last readout."""
    static = [module.connection for module in net.modules() if isinstance(module, Readout)]
    connection = static[-1] if static else [p.block.connection for p in places if p.is_readout][-1]
    weight = connection.weight
    assert isinstance(weight, torch.Tensor)
    return weight.shape[0], connection


def _direct_readout(place: Place, readout: nn.Module, rule: LearningRule) -> nn.Module:
    weight, units = readout.weight, place.block.connection.unit_shape
    assert isinstance(weight, torch.Tensor)
    follower = place.next.connection if isinstance(place.next, ETBlock | Readout) else None
    if follower is not readout or weight.dim() != 2 or (weight.shape[1],) != units:
        raise RuleChoiceError(
            f"{rule.name}: the symmetric broadcast takes the readout's own weights, and block {place.name!r} with "
            f"units {list(units)} does not feed the readout {list(weight.shape)} directly; write signal='spatial', "
            f"which is the same for the block that does, or signal='random'"
        )
    return readout


def _dense_units(place: Place, rule: LearningRule) -> int:
    if not is_dense(place.block):
        raise RuleChoiceError(
            f"{rule.name}: an adaptive broadcast learns one number per unit and output, and the units of block "
            f"{place.name!r}, a {type(place.block.connection).__name__}, are not known before its input is; write "
            f"signal='random'"
        )
    return place.block.connection.unit_shape[0]


def feedback_for(weight: torch.Tensor, rule: LearningRule, number: int) -> torch.Tensor | None:
    """Return the fixed random weights that carry the signal down in place of `weight`, under feedback alignment.

    `number` tells the layers of one rule apart.
    """
    if rule.signal != "alignment":
        return None
    generator = torch.Generator().manual_seed(rule.seed * SEEDS_PER_RULE + number)
    bound = weight[0].numel() ** -0.5
    drawn = torch.rand(weight.shape, generator=generator, dtype=torch.float64).mul_(2).sub_(1).mul_(bound)
    return drawn.to(weight)


def is_linear_leak(block: ETBlock) -> bool:
    """Return whether one constant leak is all the memory that a gradient through the block's neuron has.

    >>> from snnlearn.nn import LIF, ETLinear
    >>> is_linear_leak(ETBlock(ETLinear(2, 2), LIF())), is_linear_leak(ETBlock(ETLinear(2, 2), LIF(reset="hard")))
    (True, False)
    """
    return not caveats_of(block.neuron)


__all__ = [
    "SEEDS_PER_RULE",
    "Place",
    "feedback_for",
    "filter_for",
    "filter_source",
    "has_norm",
    "is_dense",
    "is_linear_leak",
    "leak_for",
    "places_of",
    "readout_of",
    "signal_for",
    "trace_for",
]
