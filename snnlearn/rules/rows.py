"""The rows of an attach report: for each parameter how its gradient arises, exact for what, and why not."""

from collections.abc import Iterator, Sequence

from torch import nn

from snnlearn.nn.block import ETBlock, Readout
from snnlearn.nn.factored_trace import FactoredTrace, RankOneTrace, RatioTrace
from snnlearn.nn.filtered_trace import FilteredTrace
from snnlearn.nn.neuron import Neuron
from snnlearn.nn.norm_trace import NormTrace
from snnlearn.nn.probe import caveats_of, leak_of
from snnlearn.nn.recurrent import ETRecurrent
from snnlearn.nn.step_trace import StepTrace
from snnlearn.nn.synaptic_trace import SynapticTrace
from snnlearn.nn.trace_buffer import TraceBuffer
from snnlearn.nn.within_chunk import WithinChunkTrace
from snnlearn.rules.axes import LearningRule
from snnlearn.rules.norms import AFFINE_WHY, FOLLOWED_WHY, FROZEN_WHY, NORMED_WHY, is_frozen, norm_caveats
from snnlearn.rules.report import ReportRow
from snnlearn.rules.wiring import Place, filter_source, has_norm, is_linear_leak
from snnlearn.rules.yardsticks import CUT_ALL, CUT_BEYOND, CUT_LATER, CUT_WINDOWS, FULL, NOTHING, RECURRENT_CUT

EXACT_WHY = "one constant decay for the layer is the neuron's whole memory"
JACOBIAN_WHY = "the neuron's own Jacobian is followed, reset included"
UNIT_WHY = "a parameter of the neuron, followed like a weight"
TRUNCATED = "what came before each chunk is dropped, by truncate_trace=True"
NOISY_WHY = "noise on the spikes of the hidden blocks reaches it, so that it learns in another network"
SIGNALS = {
    "random": "a fixed random broadcast of the output's error stands for dL/ds",
    "adaptive": "a learned broadcast of the output's error stands for dL/ds",
    "target": "a projection of the target stands for dL/ds",
    "local_readout": "the loss of the block's own readout stands for the network's",
    "contrastive": "the contrastive loss of the block, which two paths reach, stands for the network's",
    "noise": "dL/ds is estimated from noise",
    "reward": "the reward stands for dL/ds",
    "alignment": "fixed random matrices carry the error down in place of the weights",
}


def rows_of(net: nn.Module, places: Sequence[Place], rule: LearningRule) -> Iterator[ReportRow]:
    """Yield the row of every parameter of `net`, whose blocks are `places`, as `rule` was attached to it."""
    owners, by_block = _owners(net), {id(place.block): place for place in places}
    recurrent = any(isinstance(module, ETRecurrent) for module in net.modules())
    for name, _ in net.named_parameters():
        role, block = owners[name]
        place = None if block is None else by_block[id(block)]
        row = _row(name, role, place, places, rule)
        if rule.learn_on != "all" and row.yardstick != NOTHING:
            row = ReportRow(row.parameter, row.trace, False, row.yardstick, f"{_steps_in_words(rule)}; {row.why}")
        if row.exact and place is not None:
            row = _shared(net, row, name, place, places, rule)
        if rule.signal == "noise" and row.exact:
            row = ReportRow(row.parameter, row.trace, False, row.yardstick, NOISY_WHY)
        if recurrent and row.yardstick in (CUT_LATER, CUT_BEYOND):
            row = ReportRow(row.parameter, row.trace, row.exact, row.yardstick + RECURRENT_CUT, row.why)
        yield row


def _shared(
    net: nn.Module, row: ReportRow, name: str, place: Place, places: Sequence[Place], rule: LearningRule
) -> ReportRow:
    """Return the row of a weight that other blocks use too, exact only where it is in all of them."""
    weight = net.get_parameter(name)
    for other in places:
        if other.block is not place.block and any(weight is p for p in other.block.connection.parameters()):
            twin = _row(name, "connection", other, places, rule)
            if not twin.exact:
                return ReportRow(name, row.trace, False, row.yardstick, f"shared with {other.name!r}: {twin.why}")
    return row


def _row(name: str, role: str, place: Place | None, places: Sequence[Place], rule: LearningRule) -> ReportRow:
    if role == "signal":
        return ReportRow(name, "none", False, NOTHING, "part of the learning signal: it learns by its own rule")
    if rule.window is not None:
        return ReportRow(name, "none", True, CUT_WINDOWS, f"autograd through windows of {rule.window} steps")
    if not rule.online:
        return ReportRow(name, "none", True, FULL, "autograd through the whole sequence")
    replaced = _replaced(role, place, places, rule)
    if rule.transition == "none":
        exact = not replaced
        why = "the rule takes the state of the step before as a constant"
        return ReportRow(name, "none", exact, CUT_ALL if exact else NOTHING, why if exact else "; ".join(replaced))
    if role == "readout":
        return ReportRow(name, "none", True, FULL, "static readout: it remembers nothing")
    norm_trace = None if place is None else place.block._modules.get("norm_trace")
    if role == "norm" and place is not None and isinstance(norm_trace, NormTrace):
        caveats = _leak_caveats(place.block, norm_trace, rule)
        return _judged(name, _decays(norm_trace.leak.transition), AFFINE_WHY, caveats, replaced, CUT_LATER)
    if place is None:
        return ReportRow(name, "none", False, FULL, UNTRACED[role])
    trace = place.block.connection.trace
    if role in ("neuron", "norm"):
        if not isinstance(trace, StepTrace):
            return ReportRow(name, "none", False, FULL, UNTRACED[role])
        caveats = [*_broadcast_caveats(place, places, rule), *_filter_caveats(place, places, rule)]
        caveats += _relay_caveats(place, places)
        why = _with_conditions(UNIT_WHY if role == "neuron" else FOLLOWED_WHY, place, places, rule)
        return _judged(name, "per unit", why, caveats, replaced, _yardstick(rule))
    kind, why, caveats = _trace_in_words(place, rule)
    if isinstance(trace, RatioTrace) and not trace.is_first and not name.endswith("bias"):
        caveats.append("the trace decays by the ratio of the sending neurons' membranes, not by the neuron's own leak")
    caveats = [*caveats, *_broadcast_caveats(place, places, rule)]
    if not isinstance(trace, TraceBuffer):
        caveats += _filter_caveats(place, places, rule)
        why = _with_conditions(why, place, places, rule)
    caveats += _relay_caveats(place, places)
    return _judged(name, kind, why, caveats, replaced, _yardstick(rule) if not place.is_readout else CUT_LATER)


def _steps_in_words(rule: LearningRule) -> str:
    steps = rule.learn_steps
    return {
        "last": f"only the last {steps} step(s) of a sequence learn",
        "random": f"only {steps} random step(s) of a sequence learn",
        "poisson": f"each step learns with probability 1/{steps}",
    }[rule.learn_on]


UNTRACED = {
    "norm": "normalisation inside a block: its parameter has no trace, only this step's share is learned",
    "neuron": "parameter of a neuron: it has no trace, only this step's share is learned",
    "outside": "outside any block: no trace; right only if no neuron with memory comes after it",
}


def _judged(
    name: str, kind: str, why: str, caveats: Sequence[str], replaced: Sequence[str], yardstick: str
) -> ReportRow:
    if replaced:
        return ReportRow(name, kind, False, NOTHING, "; ".join([*replaced, *caveats]))
    return ReportRow(name, kind, not caveats, yardstick, "; ".join(caveats) or why)


def _yardstick(rule: LearningRule) -> str:
    return CUT_LATER if rule.trace_filter == "none" else CUT_BEYOND


def _replaced(role: str, place: Place | None, places: Sequence[Place], rule: LearningRule) -> list[str]:
    """Return what stands in place of the derivative of the loss for this parameter; empty where nothing does."""
    if rule.signal in ("spatial", "symmetric") or role == "readout" or (place is not None and place.is_readout):
        return [] if rule.rate is None or role == "readout" or place is None or place.is_readout else [RATE]
    if place is None:
        return [f"outside any block: {SIGNALS[rule.signal]} in the blocks after it, so nothing reaches it"]
    return [SIGNALS[rule.signal]] + ([RATE] if rule.rate is not None else [])


RATE = "a firing-rate term is added to dL/ds"


def _trace_in_words(place: Place, rule: LearningRule) -> tuple[str, str, list[str]]:
    """Return what the trace of a block's weights is, why it is exact, and why it is not."""
    block, trace = place.block, place.block.connection.trace
    assert trace is not None
    if isinstance(trace, FilteredTrace):
        caveats = [*caveats_of(block.neuron), *norm_caveats(block)]
        why = FROZEN_WHY if is_frozen(block) else EXACT_WHY
        return f"{_decays(trace.leak.transition)}, filtered per synapse", why, caveats
    if isinstance(trace, WithinChunkTrace):
        return _within_chunk(block, trace)
    if isinstance(trace, SynapticTrace):
        kind = "per synapse" + ("" if trace.filter is None else ", filtered")
        return kind, NORMED_WHY if has_norm(block) else JACOBIAN_WHY, []
    if isinstance(trace, RankOneTrace):
        factors = "one factor per input and one per unit stand for the eligibility of each synapse"
        return "rank one", factors, [factors, *norm_caveats(block)]
    assert isinstance(trace, TraceBuffer | FactoredTrace)
    caveats = [*_leak_caveats(block, trace, rule), *norm_caveats(block)]
    if isinstance(trace, FactoredTrace):
        if trace.post is not None and (trace.post.acausal != 0 or trace.post.causal != 1):
            caveats.append("a post-synaptic trace joins the gradient")
        if trace.filter is not None:
            caveats.append(
                "the filter acts on the trace of the input, though it belongs to each unit's own eligibility"
            )
        if trace.mean_leak is not None:
            caveats.append("the leaky mean of ds/dy stands for ds/dy")
    return _decays(trace.leak.transition), FROZEN_WHY if is_frozen(block) else EXACT_WHY, caveats


def _within_chunk(block: ETBlock, trace: WithinChunkTrace) -> tuple[str, str, list[str]]:
    caveats = [TRUNCATED] if trace.truncates else []
    if trace.leak is not None:
        caveats += [*caveats_of(block.neuron), *norm_caveats(block)]
    followed = EXACT_WHY if trace.leak is not None else NORMED_WHY if has_norm(block) else JACOBIAN_WHY
    kind = "within a chunk" + ("" if trace.filter is None else ", filtered")
    return kind, f"{followed}; one chunk has to be the whole sequence, else it raises", caveats


def _leak_caveats(block: ETBlock, trace: TraceBuffer | FactoredTrace, rule: LearningRule) -> list[str]:
    caveats = caveats_of(block.neuron)
    if rule.trace_decay is not None and trace.leak != leak_of(block.neuron):
        caveats = [*caveats, f"the rule's own decay {rule.trace_decay:g} stands for the leak of the neuron"]
    return caveats


def _decays(transition: tuple[tuple[float, ...], ...]) -> str:
    return "decay " + ", ".join(f"{row[k]:.6g}" for k, row in enumerate(transition))


def _filter_caveats(place: Place, places: Sequence[Place], rule: LearningRule) -> list[str]:
    """Return why a filtered eligibility is not exact: the filter has to be the next block's whole memory."""
    if rule.trace_filter == "none" or place.is_readout:
        return []
    if rule.filter_decay is not None:
        return ["the filter's decay is given, not taken from the layer above"]
    source = filter_source(place, places, rule)
    if source is None and not isinstance(place.next, ETBlock):
        return []  # a static readout remembers nothing, and so does the filter
    if source is None or source is not place.next:
        return ["the leak of the readout filters what the leak of the next block should"]
    if not place.chained:
        return ["the next block may be fed by others too, or through what does not commute with a filter"]
    if not is_linear_leak(source):
        return [f"the next block's memory is more than the filter: {'; '.join(caveats_of(source.neuron))}"]
    return [f"the next block's input is more than its weights': {caveat}" for caveat in norm_caveats(source)]


def _with_conditions(why: str, place: Place, places: Sequence[Place], rule: LearningRule) -> str:
    """Return `why`, and what has to stay as it is in the block whose leak filters this one's eligibility."""
    source = None if rule.trace_filter == "none" or place.is_readout else filter_source(place, places, rule)
    return why if source is None or not is_frozen(source) else f"{why}; in the next block, {FROZEN_WHY}"


def _broadcast_caveats(place: Place, places: Sequence[Place], rule: LearningRule) -> list[str]:
    """Return why the symmetric broadcast is not the gradient that reaches the block by the readout."""
    if rule.signal != "symmetric" or place.is_readout:
        return []
    caveats = (
        [] if place.direct else ["the readout may be fed by others too, or through what the broadcast does not know"]
    )
    if any(has_norm(other.block) for other in places if other.is_readout):
        caveats.append("the broadcast goes by the readout's weights and leaves out the normalisation behind them")
    return caveats


def _relay_caveats(place: Place, places: Sequence[Place]) -> list[str]:
    hidden = [p.block for p in places if not p.is_readout]
    above = hidden[hidden.index(place.block) + 1 :] if place.block in hidden else []
    traces = [block.connection.trace for block in above]
    averaged = any(isinstance(trace, StepTrace) and trace.mean_leak is not None for trace in traces)
    return ["the blocks above relay the leaky mean of ds/dy"] if averaged else []


def _owners(net: nn.Module) -> dict[str, tuple[str, ETBlock | None]]:
    """Map each parameter's name to its role, the innermost block or readout deciding."""
    owners: dict[str, tuple[str, ETBlock | None]] = {name: ("outside", None) for name, _ in net.named_parameters()}
    for prefix, module in net.named_modules():
        parts: list[tuple[str, nn.Module | None, ETBlock | None]] = []
        if isinstance(module, ETBlock):
            roles = ("connection", "neuron", "norm", "signal")
            parts = [(part, getattr(module, part), module) for part in roles]
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


__all__ = ["rows_of"]
