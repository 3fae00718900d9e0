"""How far each rule's gradient is from BPTT's, on the user's own network and data, and whether its claims hold.

A rule's gradient is the plain online loop's: the learner steps through the sequence, and what it would hand to the
optimizer at the end, the mean over the counted steps, is written down instead. BPTT's is autograd's through the whole
unrolled sequence. Both start from fresh state, draw the same random numbers and compute in float64.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn.engine.agreement import BOUNDS, compare, gradient_floor, rate_remark
from snnlearn.engine.fidelity_report import (
    APPROXIMATE,
    BROKEN,
    EMPTY,
    HOLDS,
    UNCHECKED,
    BrokenClaimError,
    FidelityReport,
    FidelityRow,
)
from snnlearn.engine.learner import OnlineLearner
from snnlearn.engine.losses import SequenceLoss, StepLoss
from snnlearn.engine.yardsticks import Problem, Yardsticks, innermost, working_copy
from snnlearn.functional.arguments import is_whole
from snnlearn.nn.block import ETBlock, Readout
from snnlearn.nn.neuron import Neuron
from snnlearn.nn.signal_hub import SignalError
from snnlearn.rules.axes import LearningRule
from snnlearn.rules.legality import RuleChoiceError
from snnlearn.rules.report import AttachReport, ReportRow

log = logging.getLogger("snnlearn.engine")

QUIET_SECONDS = 3.0
"""How long a measurement runs before it says how far it is, and how often it does."""


def fidelity(
    net: nn.Module,
    batch: Sequence[Any],
    rules: Iterable[LearningRule],
    loss: StepLoss = F.cross_entropy,
    *,
    per_step_target: bool = False,
    lengths: Sequence[int] | None = None,
    dtype: torch.dtype | None = torch.float64,
    strict: bool = True,
    seed: int = 0,
    chunk: int = 1,
    progress: Callable[[str], None] | None = None,
) -> FidelityReport:
    """Measure each rule's gradient of each parameter against full BPTT, and check what `attach` claims of it.

    `batch` a pair (x, y): x [T, B, ...] or an iterable of [B, ...]; y and `per_step_target` as for
    `OnlineLearner.learn`. `lengths` the numbers of first steps to measure over (None: T/4, T/2 and T). `dtype` of the
    copies that are computed on (None: the network's own). A row that `attach` reports as exact is compared with its own
    yardstick too, up to `BOUNDS` of the precision; with `strict` a claim that does not hold raises BrokenClaimError,
    else it is logged as an error and marked. `seed` of random numbers in the network, the same in every run; `chunk`
    steps run at once (1 for rules through time), which alone decides what a rule with `truncate_trace` drops.
    `progress` is told how far it is every few seconds (None: the log). `net` is left as it was: state, mode, rule,
    `.grad`, buffers and torch's random state. BPTT's memory grows with T.

    Raises BrokenClaimError, RuleChoiceError or SignalError where no rule can be measured, ValueError or TypeError for
    a wrong argument.

    >>> from snnlearn import LI, OTTT, SLTT, ETLinear
    >>> net = nn.Sequential(ETBlock(ETLinear(3, 2), LI(tau=4.0)))
    >>> report = fidelity(net, (torch.ones(8, 2, 3), torch.tensor([0, 1])), rules=[SLTT(), OTTT()])
    >>> round(report.row("OTTT", "0.connection.weight").agreement.cosine, 6)
    1.0
    >>> report.row("SLTT", "0.connection.weight").agreement.norm_ratio < 0.5
    True
    """
    problem = Problem(net, batch, loss, per_step_target, dtype, seed)
    if not problem.learned:
        raise ValueError("no parameter of this network requires a gradient, so there is none to compare")
    named, chosen = _named(rules), _lengths(lengths, problem.steps)
    pace = Pace(len(named) * sum(chosen), progress or log.info)
    rows, notes = _measured(problem, named, chosen, pace, chunk)
    precision = str(next(problem.net.parameters()).dtype).removeprefix("torch.")
    measured = tuple(steps for steps in chosen if any(row.steps == steps for row in rows))
    notes = [*_notes_on(loss, named), *notes, *_rate_notes(rows)]
    report = FidelityReport(tuple(rows), measured, problem.batch_size, precision, tuple(notes))
    if report.broken:
        if strict:
            raise BrokenClaimError(report)
        log.error("%s", BrokenClaimError(report))
    return report


def _measured(
    problem: Problem, rules: dict[str, LearningRule], lengths: Sequence[int], pace: "Pace", chunk: int
) -> tuple[list[FidelityRow], list[str]]:
    """Return the rows, rule by rule and length by length, and notes on what was left out."""
    layers = _layers(problem)
    rows: dict[str, list[FidelityRow]] = {name: [] for name in rules}
    uncounted: dict[int, None] = {}
    refused: dict[str, RuleChoiceError | SignalError] = {}
    for steps in lengths:
        part = problem.prefix(steps)
        yardsticks = Yardsticks(part)
        for name, rule in rules.items():
            try:
                rows[name] += _rows(name, rule, part, yardsticks, layers, chunk)
            except (RuleChoiceError, SignalError) as error:
                refused[name] = error
            except NothingCountsError:
                if steps == problem.steps:
                    raise
                uncounted[steps] = None
            pace.done(steps, f"{name} over {steps} steps")
    if len(refused) == len(rules):
        raise next(iter(refused.values()))
    notes = [f"no loss counts in the first {steps} steps, so that length is left out" for steps in uncounted]
    notes += [f"{name} was not measured: {error}" for name, error in refused.items()]
    return [row for found in rows.values() for row in found], notes


class NothingCountsError(ValueError):
    """A sequence has no step whose loss counts, so it has no gradient."""


class _Recorder(torch.optim.Optimizer):
    """Holds the parameters of `net`, keeps the gradients it is handed, and changes no weight."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net.parameters(), {})
        self.net = net
        self.seen: dict[str, Tensor] = {}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Copy the gradients."""
        named = self.net.named_parameters()
        self.seen = {name: p.grad.detach().clone() for name, p in named if p.grad is not None}


def rule_gradients(
    problem: Problem, rule: LearningRule, chunk: int = 1
) -> tuple[dict[str, Tensor], AttachReport, dict[str, float]]:
    """Return the gradients that `rule` learns `problem` by, the report of its attachment, and firing rates by block.

    Raises NothingCountsError where no step has a loss, RuleChoiceError where the network refuses the rule.

    >>> from snnlearn import LI, SLTT, ETLinear
    >>> net, batch = ETBlock(ETLinear(2, 1), LI()), (torch.ones(3, 4, 2), None)
    >>> problem = Problem(net, batch, lambda output, _: output.mean(), False, None)
    >>> rule_gradients(problem, SLTT())[0]["connection.bias"]
    tensor([1.])
    """
    net = working_copy(problem.net, None)
    recorder = _Recorder(net)
    learner = OnlineLearner(net, rule, problem.loss, recorder, chunk=chunk if rule.online else 1)
    _put_back(net, problem.brought)
    with problem.drawing(), torch.enable_grad():
        result = learner.learn(problem.x, problem.y, problem.per_step_target)
    if result.updates == 0:
        raise NothingCountsError(
            f"none of these {problem.steps} steps has a target that the loss counts, so there is no gradient; give y a "
            f"target there, or measure over more steps"
        )
    return recorder.seen, learner.report, result.firing_rates


def _put_back(net: nn.Module, brought: dict[str, Any]) -> None:
    """Give `net`, if it has come by the same parts by its rule, the values that they had in the network measured."""
    values = net.state_dict()
    if all(name in values and _alike(values[name], value) for name, value in brought.items()):
        net.load_state_dict(brought, strict=False)


def _alike(own: object, other: object) -> bool:
    """Whether two entries of a state_dict fit: tensors of one shape, or extra state, which has a form of its own."""
    if isinstance(own, Tensor) and isinstance(other, Tensor):
        return own.shape == other.shape
    return type(own) is type(other)


def _rows(
    name: str,
    rule: LearningRule,
    problem: Problem,
    yardsticks: Yardsticks,
    layers: dict[str, tuple[str, int]],
    chunk: int,
) -> list[FidelityRow]:
    gradients, report, rates = rule_gradients(problem, rule, chunk)
    full = yardsticks.full
    floor = gradient_floor(gradients, full)
    claims = {row.parameter: row for row in report}
    judged = gradients
    if rule.learn_on != "all":  # a claim is about the steps that learn
        judged, _, _ = rule_gradients(problem, dataclasses.replace(rule, learn_on="all", learn_steps=None), chunk)
    rows = []
    for parameter, reference in full.items():
        gradient = gradients[parameter] if parameter in gradients else torch.zeros_like(reference)
        claimed = claims.get(parameter, ReportRow(parameter, "none", False, "none", "the report has no row for it"))
        layer, depth = layers[parameter]
        subject = judged[parameter] if parameter in judged else torch.zeros_like(reference)
        state, error = _check(claimed, subject, yardsticks, rule, floor)
        agreement = compare(gradient, reference, floor)
        rate = rates.get(layer)
        rows.append(
            FidelityRow(
                *(name, parameter, layer, depth, problem.steps, agreement, rate, state),
                *(claimed.yardstick, error, claimed.why),
            )
        )
    return rows


def _check(
    claimed: ReportRow, gradient: Tensor, yardsticks: Yardsticks, rule: LearningRule, floor: float
) -> tuple[str, float | None]:
    """Return what became of a claim, and the relative error against its yardstick."""
    if not claimed.exact:
        return APPROXIMATE, None
    bound = BOUNDS.get(gradient.dtype)
    reference = yardsticks.named(claimed.parameter, claimed.yardstick, rule.online, rule.window)
    if reference is None:
        return UNCHECKED, None
    error = compare(gradient, reference, floor).error
    if bound is None:
        return UNCHECKED, error
    if error is None:
        return EMPTY, None
    return (HOLDS if error <= bound else BROKEN), error


def _named(rules: Iterable[LearningRule]) -> dict[str, LearningRule]:
    """Return the rules by name; of several with one name the later ones are numbered."""
    if isinstance(rules, LearningRule):
        raise TypeError(f"rules is one rule, {rules.name}: pass several or a list of one; write rules=[rule]")
    if not isinstance(rules, Iterable) or isinstance(rules, str):
        raise TypeError(f"rules={rules!r}: it takes a list of rule objects; write rules=[SLTT(), OTTT()]")
    named: dict[str, LearningRule] = {}
    for rule in rules:
        if not isinstance(rule, LearningRule):
            raise TypeError(f"rules holds {rule!r}: it takes rule objects, with parentheses; write rules=[OTTT()]")
        same = sum(other.name == rule.name for other in named.values())
        named[f"{rule.name} ({same + 1})" if same else rule.name] = rule
    if not named:
        raise ValueError("rules is empty: there is nothing to measure; write rules=[SLTT(), OTTT()]")
    return named


def _lengths(lengths: Sequence[int] | None, steps: int) -> list[int]:
    if lengths is None:
        return sorted({max(1, steps // 4), max(1, steps // 2), steps})
    given = list(lengths) if isinstance(lengths, Iterable) and not isinstance(lengths, str) else []
    if not given or not all(is_whole(length, 1) and length <= steps for length in given):
        raise ValueError(
            f"lengths={lengths!r}: a list of whole numbers from 1 to T, which is {steps}, or None for T/4, T/2 and T; "
            f"write lengths=[{steps}]"
        )
    return sorted(set(map(int, given)))


def _layers(problem: Problem) -> dict[str, tuple[str, int]]:
    """Map each parameter to its layer, a block where there is one, and the layer's place in the order of execution."""
    net = working_copy(problem.net, None)
    modules = dict(net.named_modules())
    home = {}
    for parameter in problem.learned:
        block = innermost(net, parameter, (ETBlock, Readout))
        home[parameter] = parameter.rpartition(".")[0] if block is None else block
    order: dict[str, None] = {}

    def note(name: str) -> Callable[..., None]:
        return lambda *_: order.setdefault(name)

    for name in dict.fromkeys(home.values()):
        modules[name].register_forward_pre_hook(note(name))
    with problem.drawing(), torch.no_grad():
        net(problem.x[0])
    places = {name: place for place, name in enumerate(dict.fromkeys([*order, *home.values()]), 1)}
    titles = {name: name or ("neuron" if isinstance(modules[name], Neuron) else "block") for name in places}
    return {parameter: (titles[name], places[name]) for parameter, name in home.items()}


def _notes_on(loss: StepLoss, rules: dict[str, LearningRule]) -> list[str]:
    notes = [
        f"{name} learns at some steps alone: its figures are those steps', its claims are checked with all"
        for name, rule in rules.items()
        if rule.learn_on != "all"
    ]
    if isinstance(loss, SequenceLoss) and loss.readout == "running_mean":
        notes.append(
            "the loss sees a running mean, of which online rules differentiate this step's share alone and BPTT the "
            "whole: the figures include that difference, and claims are checked without it"
        )
    return notes


def _rate_notes(rows: Iterable[FidelityRow]) -> list[str]:
    found = dict.fromkeys(
        f"{row.layer} is {rate_remark(row.firing_rate)} (T = {row.steps}): a comparison there shows next to nothing"
        for row in rows
        if rate_remark(row.firing_rate)
    )
    return list(found)


class Pace:
    """Say how far a measurement is once it takes longer than a few seconds.

    `total` of the shares that `done` is told of; `tell` takes the text.

    >>> Pace(4, print).done(1, "a quarter")  # nothing so soon
    """

    def __init__(self, total: int, tell: Callable[[str], None]) -> None:
        self.total, self.tell, self.finished = total, tell, 0
        self.began = self.told = time.monotonic()

    def done(self, share: int, text: str) -> None:
        """Note that `share` of the total is finished."""
        self.finished += share
        now = time.monotonic()
        if now - self.told >= QUIET_SECONDS and self.finished < self.total:
            left = (now - self.began) / self.finished * (self.total - self.finished)
            self.tell(f"{text} done, {100 * self.finished // self.total} % of all, about {left:.0f} s left")
            self.told = now


__all__ = ["NothingCountsError", "Pace", "fidelity", "rule_gradients"]
