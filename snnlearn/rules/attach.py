"""Attach a rule to a network: the one place where a rule meets modules."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from snnlearn.functional.arguments import is_whole
from snnlearn.nn.block import Readout
from snnlearn.nn.connection import is_described
from snnlearn.nn.neuron import Neuron
from snnlearn.nn.norm_trace import norm_trace_for
from snnlearn.nn.normed_step import FOLLOWED, is_followed
from snnlearn.nn.probe import refuse_mixing
from snnlearn.nn.rate import RateRegulariser
from snnlearn.nn.signal_hub import Signal, SignalHub
from snnlearn.nn.state import reset
from snnlearn.nn.step_trace import StepTrace
from snnlearn.rules.axes import LearningRule
from snnlearn.rules.legality import RuleChoiceError
from snnlearn.rules.report import AttachReport, notes_of
from snnlearn.rules.rows import rows_of
from snnlearn.rules.wiring import (
    SEEDS_PER_RULE,
    Place,
    feedback_for,
    has_norm,
    is_dense,
    places_of,
    signal_for,
    trace_for,
)


def attach(net: nn.Module, rule: LearningRule, chunk: int | None = 1) -> AttachReport:
    """Make `net` learn by `rule` and return a report with one row per parameter.

    Every `ETBlock` gets the trace and the signal of the rule, every `Neuron` its graph cut between steps (or kept, for
    BPTT), and running state is dropped. Attach again to change the rule; attach to a part of a network to mix rules
    (signals other than spatial are made at the output of what they are attached to, so they take the whole network).
    `chunk` how many steps are run at once (`snnlearn.in_chunk`), None where that is settled later, as
    `OnlineLearner(chunk="auto")` does: only a rule per synapse asks, and only of a convolution, whose trace reaches no
    further than a chunk. Raises RuleChoiceError when the rule needs what `net` does not have, ValueError for a `chunk`
    that is no whole number from 1.

    >>> from snnlearn.nn import ETBlock, ETLinear, LIF
    >>> from snnlearn.rules import OTTT
    >>> attach(ETBlock(ETLinear(2, 3), LIF()), OTTT())["connection.weight"].trace
    'decay 0.5'
    """
    check_types(net, rule)
    _check_chunk(chunk)
    places = places_of(net)
    _refuse_sharing(places, rule)
    if rule.storage != "none" and not places:
        raise RuleChoiceError(
            f"{rule.name} keeps traces in ETBlocks and this {type(net).__name__} has none: weights outside a "
            f"block have no neuron to take a leak from; write ETBlock(ETLinear(...), LIF()), or attach SLTT() or BPTT()"
        )
    for place in places:
        place.block.neuron.unit_shape = place.block.connection.unit_shape
    hub = SignalHub()
    traces = [trace_for(place, places, rule) for place in places]
    for place, trace in zip(places, traces, strict=True):
        _refuse_unfit(place, rule, isinstance(trace, StepTrace), chunk)
    signals = _signals(net, places, rule, hub)
    for module in net.modules():
        if isinstance(module, Neuron):
            module.carry_graph = not rule.online
        hooks: tuple[dict[int, Any], ...] = (module._forward_hooks, module._forward_pre_hooks)
        for held in hooks:
            for key in [k for k, hook in held.items() if isinstance(getattr(hook, "__self__", None), SignalHub)]:
                del held[key]
    for place, trace, signal in zip(places, traces, signals, strict=True):
        block = place.block
        block.connection.hold_trace(trace)
        block.connection.train(block.connection.training)
        block.hold_norm_trace(norm_trace_for(block.norm, trace))
        block.signal = signal
        block.rate = _rate(place, rule)
        block.shows_membrane = rule.transition == "ratio"
    _set_feedback(net, places, rule)
    if any(signals):
        net.register_forward_pre_hook(hub.begin)
        net.register_forward_hook(hub.join)
    reset(net)
    return AttachReport(rule.name, tuple(rows_of(net, places, rule)), notes_of(net) if rule.online else ())


def _rate(place: Place, rule: LearningRule) -> RateRegulariser | None:
    if rule.rate is None or place.is_readout:
        return None
    return RateRegulariser(rule.rate.rate, rule.rate.weight).train(place.block.training)


def _signals(net: nn.Module, places: Sequence[Place], rule: LearningRule, hub: SignalHub) -> list[Signal | None]:
    if rule.signal not in ("spatial", "alignment") and all(place.is_readout for place in places):
        raise RuleChoiceError(
            f"{rule.name} gives hidden blocks a signal of their own, and this {type(net).__name__} has only a readout; "
            f"attach it to the whole network, or write signal='spatial'"
        )
    signals: list[Signal | None] = []
    for place in places:
        signal = signal_for(place, places, rule, hub, net)
        signals.append(None if signal is None else signal.train(place.block.training))
    return signals


def _set_feedback(net: nn.Module, places: Sequence[Place], rule: LearningRule) -> None:
    """Give blocks and static readouts the matrices of feedback alignment, or take them away."""
    for number, place in enumerate(places):
        place.block.feedback = feedback_for(place.block.connection.effective_weight(), rule, number)
    for number, module in enumerate(m for m in net.modules() if isinstance(m, Readout)):
        weight = getattr(module.connection, "weight", None)
        if rule.signal == "alignment" and not isinstance(module.connection, nn.Linear):
            raise RuleChoiceError(
                f"{rule.name} carries the error down by a fixed matrix, and this Readout has a "
                f"{type(module.connection).__name__}; write Readout(nn.Linear(...)), or signal='spatial'"
            )
        module.feedback = None if weight is None else feedback_for(weight, rule, SEEDS_PER_RULE // 2 + number)


def _refuse_unfit(place: Place, rule: LearningRule, is_step_trace: bool, chunk: int | None) -> None:
    """Refuse, before anything is changed, a block that the rule's trace cannot serve."""
    block, where = place.block, f"block {place.name!r}" if place.name else "the block"
    if not is_step_trace:
        return
    if not is_described(block.connection):
        raise RuleChoiceError(
            f"{rule.name} runs a block as one step, and the {type(block.connection).__name__} of {where} has a forward "
            f"of its own that its weighted_map does not tell; write weighted_map for it, or attach OTTT() or SLTT()"
        )
    if rule.storage == "synaptic" and not is_dense(block) and chunk == 1 and not rule.truncate_trace:
        kind = type(block.connection).__name__
        raise RuleChoiceError(
            f"{rule.name} keeps one number per synapse, and {where} is an {kind}, whose every weight has as many "
            f"synapses as there are places, so that it is exact only where one chunk is the whole sequence: write "
            f"OnlineLearner(..., chunk=T) or attach(net, rule, chunk=T) for sequences of T steps, give the rule "
            f"truncate_trace=True to drop what came before each chunk, or attach OTTT() to that block, "
            f"attach(net.get_submodule({place.name!r}), OTTT()), and {rule.name} to the linear ones"
        )
    if has_norm(block) and not is_followed(block.norm):
        raise RuleChoiceError(
            f"{rule.name} follows the step from the weights to the neuron, and {where} has a "
            f"{type(block.norm).__name__} between them, whose derivative it does not know; write norm=nn.BatchNorm1d("
            f"...) or another of {', '.join(kind.__name__ for kind in FOLLOWED)}, move it before the block, or attach "
            f"OTTT() or SLTT() to it"
        )
    shape = block.connection.unit_shape
    for parameter_name, parameter in block.neuron.named_parameters():
        per_unit = parameter.shape == shape if is_dense(block) else parameter.shape[:1] == shape[:1]
        if parameter.numel() != 1 and not (per_unit and parameter.dim() == len(shape)):
            raise RuleChoiceError(
                f"{rule.name} keeps a trace for a neuron's parameter that is one number or one per unit "
                f"{list(shape)}, and {parameter_name!r} in {where} has shape {list(parameter.shape)}; give "
                f"it one of these shapes, or attach BPTT()"
            )
    refuse_mixing(block.neuron, shape)


def check_types(net: object, rule: object) -> None:
    """Raise TypeError unless `net` is a module and `rule` a rule object.

    >>> check_types(nn.Linear(1, 1), LearningRule())
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"attach(net, rule) got {type(net).__name__} as net: the network comes first, then the rule")
    if not isinstance(rule, LearningRule):
        hint = f"write {rule.__name__}()" if callable(rule) and hasattr(rule, "__name__") else "write OTTT() or SLTT()"
        raise TypeError(f"attach(net, rule) got {rule!r} as rule: it takes a rule object, with parentheses; {hint}")


def _check_chunk(chunk: object) -> None:
    if chunk is not None and not is_whole(chunk, 1):
        hint = ", or OnlineLearner(..., chunk='auto'), which measures how many" if chunk == "auto" else ""
        raise ValueError(f"chunk={chunk!r}: the number of steps run at once, from 1; write chunk=16{hint}")


def _refuse_sharing(places: Sequence[Place], rule: LearningRule) -> None:
    """Refuse two blocks with one neuron (its state would advance twice a step) or, under a trace, one connection."""
    seen: dict[int, str] = {}
    for place in places:
        name, block = place.name, place.block
        parts: list[tuple[str, nn.Module, str]] = [("neuron", block.neuron, "give each block a neuron of its own")]
        if rule.storage != "none":
            share = "make two connections and share the weight: b.connection.weight = a.connection.weight"
            parts.append(("connection", block.connection, share))
        for kind, part, remedy in parts:
            if id(part) in seen:
                raise RuleChoiceError(
                    f"blocks {seen[id(part)]!r} and {name!r} share one {kind} object, which would step twice in each "
                    f"timestep, so that its state and trace would mix both; {remedy}"
                )
            seen[id(part)] = name


__all__ = ["attach", "check_types"]
