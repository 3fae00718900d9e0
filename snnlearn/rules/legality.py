"""Which points on the axes exist; every refusal names the choice to change."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from snnlearn.functional.arguments import is_whole
from snnlearn.functional.signals import LOCAL_LOSSES

CHOICES: dict[str, tuple[str, ...]] = {
    "transition": ("none", "leak", "ratio", "local", "through_time"),
    "trace_filter": ("none", "kappa", "above", "double"),
    "signal": (
        "spatial",
        "alignment",
        "symmetric",
        "random",
        "adaptive",
        "target",
        "local_readout",
        "contrastive",
        "noise",
        "reward",
    ),
    "storage": ("none", "pre", "synaptic", "rank_one"),
    "relay": ("instantaneous", "mean"),
    "learn_on": ("all", "last", "random", "poisson"),
}
"""Every choice on every axis."""

HEADS = ("random", "trained", "sinusoid", "square")
SYNONYMS = {"direct": "random", "dfa": "random", "feedback_alignment": "alignment", "drtp": "target", "full": "local"}


class RuleChoiceError(ValueError):
    """A rule was asked for that is misspelt, illegal as a combination, or illegal for this network."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """What legality looks at; the fields are those of `snnlearn.rules.axes.LearningRule`."""

    transition: str
    trace_filter: str
    signal: str
    storage: str
    relay: str
    learn_on: str
    learn_steps: int | None
    trace_decay: float | None
    filter_decay: float | tuple[float, float] | None
    forgetting: float
    post_decay: float | None
    head: tuple[str, str] | None
    has_contrast: bool
    has_noise: bool
    has_rate: bool
    window: int | None = None
    truncates: bool = False


def check(point: Point) -> None:
    """Raise RuleChoiceError for the first thing that is wrong with `point`.

    >>> from snnlearn.rules.axes import LearningRule
    >>> LearningRule(transition="lek")
    Traceback (most recent call last):
        ...
    snnlearn.rules.legality.RuleChoiceError: transition='lek': choose one of none, leak, ...; did you mean 'leak'?
    """
    for axis, choices in CHOICES.items():
        _check_spelling(axis, getattr(point, axis), choices)
    for checks in (_storage, _filters, _signals, _schedule, _window, _numbers):
        for problem in checks(point):
            raise RuleChoiceError(problem)


def _check_spelling(axis: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        meant = SYNONYMS.get(str(value), near[0] if near else None)
        hint = f"did you mean {meant!r}?" if meant in choices else f"write {axis}={choices[0]!r}"
        raise RuleChoiceError(f"{axis}={value!r}: choose one of {', '.join(choices)}; {hint}")


def _storage(point: Point) -> Iterator[str]:
    pair = f"storage={point.storage!r} with transition={point.transition!r}"
    if point.truncates and point.storage != "synaptic":
        yield (
            f"truncate_trace=True with storage={point.storage!r}: only one number per synapse may be too many to keep "
            f"beyond a chunk; leave truncate_trace out, or write storage='synaptic'"
        )
    if point.transition in ("none", "through_time"):
        if point.storage != "none":
            yield f"{pair}: there is no trace to store; write storage='none'"
        return
    if point.storage == "none":
        yield f"{pair}: a trace has to be kept somewhere; write storage='pre' or transition='none'"
    if point.storage == "synaptic" and point.transition == "leak" and point.trace_filter == "none":
        yield (
            f"{pair}: one constant decay makes the trace the same for every unit, so this would keep the numbers of "
            f"storage='pre' once per unit; write storage='pre', or transition='local'"
        )
    if point.storage == "pre" and point.transition == "local":
        yield (
            f"{pair}: a trace per input is legal only if one scalar decays the whole layer, and the local Jacobian "
            f"differs per unit; write storage='synaptic', or transition='leak'"
        )
    if point.storage == "rank_one" and point.transition != "local":
        yield f"{pair}: the output factor follows the neuron's own Jacobian; write transition='local', or storage='pre'"
    if point.transition == "ratio" and point.storage != "pre":
        yield f"{pair}: the ratio belongs to the input, whatever unit it meets; write storage='pre'"


def _filters(point: Point) -> Iterator[str]:
    pair = f"trace_filter={point.trace_filter!r} with "
    if point.trace_filter == "none":
        if point.filter_decay is not None:
            yield f"filter_decay={point.filter_decay!r} with trace_filter='none': name the filter, trace_filter='kappa'"
    elif point.transition in ("none", "through_time"):
        yield (
            f"{pair}transition={point.transition!r}: there is no trace to filter; write trace_filter='none', or "
            f"transition='leak'"
        )
    elif point.transition == "ratio" or point.storage == "rank_one":
        which = f"transition={point.transition!r}" if point.transition == "ratio" else "storage='rank_one'"
        yield f"{pair}{which}: a filter acts on each synapse's own eligibility; write trace_filter='none'"
    elif point.trace_filter == "double" and not (
        isinstance(point.filter_decay, tuple) and len(point.filter_decay) == 2
    ):
        yield f"{pair}filter_decay={point.filter_decay!r}: it needs two decays; write filter_decay=(0.9, 0.8)"
    elif point.trace_filter != "double" and isinstance(point.filter_decay, tuple):
        yield f"{pair}filter_decay={point.filter_decay!r}: one decay, or None for the layer's own; write 0.9"
    if point.post_decay is not None and point.storage != "pre":
        yield f"post=... with storage={point.storage!r}: the post-synaptic trace joins a trace per input; write 'pre'"
    if point.relay == "mean" and point.storage not in ("pre", "synaptic"):
        yield (
            f"relay='mean' with storage={point.storage!r}: the mean is weighted like a trace of the layer; write "
            f"relay='instantaneous', or storage='synaptic'"
        )


def _signals(point: Point) -> Iterator[str]:
    if point.transition == "through_time" and point.signal != "spatial":
        yield (
            f"signal={point.signal!r} with transition='through_time': backpropagation through time has its own signal; "
            f"write signal='spatial', or transition='leak'"
        )
    if point.head is not None and point.signal != "local_readout":
        yield f"head=... with signal={point.signal!r}: only a local readout has one; write signal='local_readout'"
    if point.has_contrast and point.signal != "contrastive":
        yield f"contrast=... with signal={point.signal!r}: only that loss has it; write signal='contrastive'"
    if point.has_noise and point.signal != "noise":
        yield f"noise=... with signal={point.signal!r}: only the noise signal has it; write signal='noise'"
    if point.has_rate and point.transition == "through_time":
        yield "rate=... with transition='through_time': put the rate into the loss, which sees the whole sequence"
    if point.head is not None:
        kind, loss = point.head
        _check_spelling("head.kind", kind, HEADS)
        _check_spelling("head.loss", loss, LOCAL_LOSSES)


def _schedule(point: Point) -> Iterator[str]:
    steps = point.learn_steps
    if point.learn_on == "all":
        if steps is not None:
            yield f"learn_steps={steps!r} with learn_on='all': write learn_on='last' or 'random', or leave it out"
        return
    if point.transition == "through_time":
        yield f"learn_on={point.learn_on!r} with transition='through_time': give the loss last_steps instead"
    if not is_whole(steps, 1):
        yield f"learn_on={point.learn_on!r} with learn_steps={steps!r}: a whole number of steps from 1; write 5"


def _window(point: Point) -> Iterator[str]:
    window = point.window
    if window is None:
        return
    if not is_whole(window, 1):
        yield f"window={window!r}: a whole number of steps, at least 1; write window=10"
    if point.transition != "through_time":
        yield (
            f"window={window} with transition={point.transition!r}: only a graph that is kept through time is cut into "
            f"windows; write transition='through_time', or window=None"
        )


def _numbers(point: Point) -> Iterator[str]:
    if point.trace_decay is not None:
        if point.transition != "leak" and point.storage != "rank_one":
            yield (
                f"trace_decay={point.trace_decay!r} with transition={point.transition!r}: only a leak takes a decay of "
                f"its own, and the input factor of storage='rank_one'; write transition='leak'"
            )
        if not 0 <= point.trace_decay <= 1:
            yield f"trace_decay={point.trace_decay!r}: a decay per step lies in 0 .. 1; write trace_decay=0.5"
    given = point.filter_decay if isinstance(point.filter_decay, tuple) else (point.filter_decay,)
    if any(decay is not None and not 0 <= decay < 1 for decay in given):
        yield f"filter_decay={point.filter_decay!r}: a decay per step lies in 0 .. 1, below 1; write filter_decay=0.9"
    if point.post_decay is not None and not 0 <= point.post_decay < 1:
        yield f"post=... with decay={point.post_decay!r}: a decay per step lies in 0 .. 1, below 1; write decay=0.2"
    if not 0 <= point.forgetting < 1:
        yield f"forgetting={point.forgetting!r}: it lies in 0 .. 1, below 1; write forgetting=0.9"
    if point.forgetting and point.storage != "rank_one":
        yield f"forgetting={point.forgetting!r} with storage={point.storage!r}: only rank_one forgets; write 'rank_one'"


__all__ = ["CHOICES", "HEADS", "RuleChoiceError"]
