"""Attach a rule to a network: the one place where a rule meets modules."""

from collections.abc import Iterator

from torch import nn

from snnlearn.functional.weighted_map import Dense
from snnlearn.nn.block import ETBlock, Readout
from snnlearn.nn.connection import is_described
from snnlearn.nn.neuron import Neuron
from snnlearn.nn.norm_trace import NormTrace, norm_trace_for
from snnlearn.nn.probe import caveats_of, leak_of, refuse_mixing
from snnlearn.nn.state import reset
from snnlearn.nn.synaptic_trace import SynapticTrace
from snnlearn.nn.trace_buffer import TraceBuffer
from snnlearn.rules.axes import LearningRule, RuleChoiceError
from snnlearn.rules.norms import AFFINE_WHY, FROZEN_WHY, is_frozen, norm_caveats
from snnlearn.rules.report import AttachReport, ReportRow, notes_of

FULL = "BPTT"
CUT_ALL = "BPTT with every temporal edge cut"
CUT_LATER = "BPTT with the temporal edges of later blocks cut"
PER_SYNAPSE = ("per synapse", True, CUT_LATER, "the neuron's own Jacobian is followed, reset included")
PER_UNIT = ("per unit", True, CUT_LATER, "a parameter of the neuron, followed like a weight")


def attach(net: nn.Module, rule: LearningRule) -> AttachReport:
    """Make `net` learn by `rule` and return a report with one row per parameter.

    Every `ETBlock` gets the trace of the rule, every `Neuron` its graph cut between steps (or kept, for BPTT), and
    running state is dropped. Attach again to change the rule; attach to a part of a network to mix rules. Raises
    RuleChoiceError when the rule needs a trace and `net` has no block to hold one.

    >>> from snnlearn.nn import ETBlock, ETLinear, LIF
    >>> from snnlearn.rules import OTTT
    >>> attach(ETBlock(ETLinear(2, 3), LIF()), OTTT())["connection.weight"].trace
    'decay 0.5'
    """
    _check_types(net, rule)
    blocks = {name: module for name, module in net.named_modules() if isinstance(module, ETBlock)}
    _refuse_sharing(blocks, rule)
    if rule.transition == "local":
        _refuse_beyond_synapses(blocks, rule)
    if rule.storage != "none" and not blocks:
        raise RuleChoiceError(
            f"{rule.name} keeps traces in ETBlocks and this {type(net).__name__} has none: weights outside a "
            f"block have no neuron to take a leak from; write ETBlock(ETLinear(...), LIF()), or attach SLTT() or BPTT()"
        )
    for module in net.modules():
        if isinstance(module, Neuron):
            module.carry_graph = not rule.online
    for name, block in blocks.items():
        block.neuron.unit_shape = block.connection.unit_shape
        block.connection.hold_trace(_trace_for(block, name or "the block", rule))
        block.connection.train(block.connection.training)
        block.hold_norm_trace(norm_trace_for(block.norm, block.connection.trace))
    reset(net)
    return AttachReport(rule.name, tuple(_rows(net, rule)), notes_of(net) if rule.online else ())


def _trace_for(block: ETBlock, name: str, rule: LearningRule) -> TraceBuffer | SynapticTrace | None:
    if rule.transition == "leak":
        return TraceBuffer(leak_of(block.neuron), name)
    return SynapticTrace(name) if rule.transition == "local" else None


def _refuse_beyond_synapses(blocks: dict[str, ETBlock], rule: LearningRule) -> None:
    """Refuse, before anything is changed, a block whose weights have no affordable per-synapse trace."""
    for name, block in blocks.items():
        where = f"block {name!r}" if name else "the block"
        if not (is_described(block.connection) and isinstance(block.connection.weighted_map(), Dense)):
            kind = type(block.connection).__name__
            raise RuleChoiceError(
                f"{rule.name} keeps one number per synapse, and {where} is an {kind}, whose every weight has as "
                f"many synapses as there are places: attach OTTT() to that block, attach(net.get_submodule({name!r}), "
                f"OTTT()), and {rule.name} to the linear ones"
            )
        if not (block.norm is None or isinstance(block.norm, nn.Identity)):
            raise RuleChoiceError(
                f"{rule.name} follows the neuron's own Jacobian from the weights on, and {where} has a "
                f"{type(block.norm).__name__} between them; move it before the block, or attach OTTT() or SLTT() to it"
            )
        block.neuron.unit_shape = shape = block.connection.unit_shape
        for parameter_name, parameter in block.neuron.named_parameters():
            if parameter.numel() != 1 and parameter.shape != shape:
                raise RuleChoiceError(
                    f"{rule.name} keeps a trace for a neuron's parameter that is one number or one per unit "
                    f"{list(shape)}, and {parameter_name!r} in {where} has shape {list(parameter.shape)}; give "
                    f"it one of these shapes, or attach BPTT()"
                )
        refuse_mixing(block.neuron, shape)


def _check_types(net: object, rule: object) -> None:
    if not isinstance(net, nn.Module):
        raise TypeError(f"attach(net, rule) got {type(net).__name__} as net: the network comes first, then the rule")
    if not isinstance(rule, LearningRule):
        hint = f"write {rule.__name__}()" if callable(rule) and hasattr(rule, "__name__") else "write OTTT() or SLTT()"
        raise TypeError(f"attach(net, rule) got {rule!r} as rule: it takes a rule object, with parentheses; {hint}")


def _refuse_sharing(blocks: dict[str, ETBlock], rule: LearningRule) -> None:
    """Refuse two blocks with one neuron (its state would advance twice a step) or, under a trace, one connection."""
    seen: dict[int, str] = {}
    for name, block in blocks.items():
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


def _rows(net: nn.Module, rule: LearningRule) -> Iterator[ReportRow]:
    owners = _owners(net)
    for name, _ in net.named_parameters():
        role, block = owners[name]
        if not rule.online:
            yield ReportRow(name, "none", True, FULL, "autograd through the whole sequence")
        elif rule.transition == "none":
            yield ReportRow(name, "none", True, CUT_ALL, "the rule takes the state of the step before as a constant")
        else:
            yield _traced_row(name, role, block)


def _traced_row(name: str, role: str, block: ETBlock | None) -> ReportRow:
    if role == "readout":
        return ReportRow(name, "none", True, FULL, "static readout: it remembers nothing")
    if role == "connection" and block is not None:
        trace = block.connection.trace
        if isinstance(trace, SynapticTrace):
            return ReportRow(name, *PER_SYNAPSE)
        assert trace is not None
        caveats = [*caveats_of(block.neuron), *norm_caveats(block)]
        why = FROZEN_WHY if is_frozen(block) else "one constant decay for the layer is the neuron's whole memory"
        return ReportRow(name, _decays(trace), not caveats, CUT_LATER, "; ".join(caveats) or why)
    norm_trace = None if block is None else block._modules.get("norm_trace")
    if role == "norm" and block is not None and isinstance(norm_trace, NormTrace):
        caveats = caveats_of(block.neuron)
        return ReportRow(name, _decays(norm_trace), not caveats, CUT_LATER, "; ".join(caveats) or AFFINE_WHY)
    if role == "neuron" and block is not None and isinstance(block.connection.trace, SynapticTrace):
        return ReportRow(name, *PER_UNIT)
    reasons = {
        "norm": "normalisation inside a block: its parameter has no trace, only this step's share is learned",
        "neuron": "parameter of a neuron: it has no trace, only this step's share is learned",
        "outside": "outside any block: no trace; right only if no neuron with memory comes after it",
    }
    return ReportRow(name, "none", False, FULL, reasons[role])


def _decays(trace: TraceBuffer) -> str:
    return "decay " + ", ".join(f"{row[k]:.6g}" for k, row in enumerate(trace.leak.transition))


def _owners(net: nn.Module) -> dict[str, tuple[str, ETBlock | None]]:
    """Map each parameter's name to its role, the innermost block or readout deciding."""
    owners: dict[str, tuple[str, ETBlock | None]] = {name: ("outside", None) for name, _ in net.named_parameters()}
    for prefix, module in net.named_modules():
        parts: list[tuple[str, nn.Module | None, ETBlock | None]] = []
        if isinstance(module, ETBlock):
            parts = [(part, getattr(module, part), module) for part in ("connection", "neuron", "norm")]
        elif isinstance(module, Readout):
            parts = [("readout", module.connection, None)]
        elif isinstance(module, Neuron):
            parts = [("neuron", module, None)]
        for role, part, block in parts:
            child = "connection" if role == "readout" else ("" if block is None else role)
            base = ".".join(filter(None, (prefix, child)))
            for name, _ in part.named_parameters() if part is not None else ():
                full = ".".join(filter(None, (base, name)))
                if full in owners and not (role == "neuron" and block is None and owners[full][1] is not None):
                    owners[full] = (role, block)
    return owners


__all__ = ["CUT_ALL", "CUT_LATER", "FULL", "attach"]
