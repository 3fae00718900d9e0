"""What a fidelity report checks of the claims of a rule: yardsticks, bounds, and lies that are caught."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nets import assert_alive
from oracles import by_hand
from oracles.by_hand import NAMES
from oracles.networks import mlp, problem, sequence
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    DRTRL,
    LI,
    LIF,
    OTTT,
    SLTT,
    BrokenClaimError,
    ETBlock,
    ETLinear,
    ETRecurrent,
    LearningRule,
    OnlineLearner,
    ReportRow,
    fidelity,
)
from snnlearn.engine.agreement import BOUNDS, compare
from snnlearn.engine.yardsticks import Problem, Yardsticks
from snnlearn.rules.yardsticks import CUT_BEYOND, CUT_LATER, FULL, RECURRENT_CUT

Case = tuple[nn.Module, tuple[Tensor, Tensor]]


@pytest.fixture
def planting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[ReportRow], ReportRow]], None]:
    """Change every row of the reports that attach() makes inside the learner."""
    real = OnlineLearner.__init__

    def put(change: Callable[[ReportRow], ReportRow]) -> None:
        def build(self: OnlineLearner, *args: object, **options: object) -> None:
            real(self, *args, **options)  # type: ignore[arg-type]
            self.report = dataclasses.replace(self.report, rows=tuple(change(row) for row in self.report.rows))

        monkeypatch.setattr(OnlineLearner, "__init__", build)

    return put


def test_a_wrong_claim_is_caught(case: Case, planting: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    """Planted: SLTT's first layer said to be exact of full BPTT."""

    def lie(row: ReportRow) -> ReportRow:
        return dataclasses.replace(row, yardstick=FULL) if row.parameter == NAMES[0] else row

    planting(lie)
    net, batch = case
    with pytest.raises(BrokenClaimError, match=r"1 BROKEN CLAIM(.|\n)*SLTT, 0\.connection\.weight: off by 0") as caught:
        fidelity(net, batch, [SLTT()])
    assert {row.parameter for row in caught.value.report.broken} == {NAMES[0]}
    report = fidelity(net, batch, [SLTT()], strict=False)
    assert {row.parameter for row in report.broken} == {NAMES[0]}
    assert "BROKEN CLAIM" in str(report).splitlines()[0]
    assert any(record.levelname == "ERROR" and "BROKEN" in record.message for record in caplog.records)


def test_an_unknown_yardstick_is_not_checked_and_says_so(case: Case, planting: Callable[..., None]) -> None:
    planting(lambda row: dataclasses.replace(row, yardstick="another"))
    report = fidelity(*case, [SLTT()])
    assert {row.claim for row in report} == {"not checked"}
    assert report.broken == ()
    assert "exact of another: not checked" in str(report)


def test_an_approximate_row_shows_its_figure_beside_its_reason() -> None:
    net, x, y = problem(mlp(lambda: LIF(decay=0.7, reset="hard")), sequence(7))
    report = fidelity(net, (x, y), [OTTT(), DRTRL()])
    row = report.row("OTTT", NAMES[2])
    assert row.claim == "approximate"
    assert 1e-3 < row.agreement.error < 2
    line = next(line for line in str(report).splitlines() if line.startswith("OTTT    1") and "weight" in line)
    assert "approximate: hard reset" in line
    assert f"{row.agreement.cosine:.4f}" in line
    assert report.row("D-RTRL", NAMES[2]).claim == "holds"


def test_a_weight_shared_by_two_blocks_is_checked_block_by_block() -> None:
    net = mlp(lambda: LIF(decay=0.7), sizes=(7, 7, 7))
    net[1].connection.weight = net[0].connection.weight
    with torch.no_grad():
        net[0].connection.weight.mul_(1.5)
    x, y = sequence(7), torch.tensor([0, 1, 2, 0, 1])
    assert_alive(net, x)
    report = fidelity(net, (x, y), [SLTT(), OTTT()])
    assert report.row("OTTT", NAMES[0]).claim == "holds"
    assert report.row("OTTT", NAMES[0]).agreement.error > 1e-4


def filtered(title: str, **options: Any) -> LearningRule:
    return LearningRule(transition="local", storage="synaptic", title=title, **options)


def test_yardsticks_of_filters_and_of_recurrent_spikes() -> None:
    """OTPE is exact with the edges from the second block above on cut, and not with fewer cut or more."""
    net, x, y = problem(mlp(lambda: LIF(decay=0.7), sizes=(7, 9, 8, 8)), sequence(7))
    report = fidelity(net, (x, y), [filtered("OTPE", trace_filter="above"), DRTRL()], lengths=[10])
    row = report.row("OTPE", NAMES[0])
    assert (row.claim, row.yardstick) == ("holds", CUT_BEYOND)
    assert 1e-4 < row.agreement.error < report.row("D-RTRL", NAMES[0]).agreement.error
    recurrent = nn.Sequential(ETBlock(ETRecurrent(7, 9), LIF(decay=0.7)), ETBlock(ETLinear(9, 3), LI())).double()
    net, x, y = problem(recurrent, sequence(7))
    report = fidelity(net, (x, y), [SLTT(), OTTT(), DRTRL()], lengths=[10])
    assert {row.claim for row in report} == {"holds"}
    row = report.row("D-RTRL", "0.connection.recurrent_weight")
    assert row.yardstick == CUT_LATER + RECURRENT_CUT
    assert row.agreement.error > 1e-3
    yardsticks = Yardsticks(Problem(net, (x, y), F.cross_entropy, False, torch.float64))
    whole, cut = (yardsticks.named("0.connection.weight", CUT_LATER + end, True) for end in ("", RECURRENT_CUT))
    assert compare(whole, cut).error > 1e-3  # the cut cuts


def test_signals_other_than_spatial(case: Case) -> None:
    """Rows that claim nothing show their figure; a rule that needs a reward is named; the target reaches its rule."""
    rules = [filtered(name, signal=name) for name in ("random", "target", "adaptive", "reward")]
    report = fidelity(*case, rules, lengths=[10])
    assert report.rules == ("random", "target", "adaptive")
    assert any(note.startswith("reward was not measured") for note in report.notes)
    for rule in report.rules:
        row = report.row(rule, NAMES[0])
        assert row.claim == "approximate"
        assert abs(row.agreement.cosine) < 0.99
        assert report.row(rule, NAMES[4]).claim == "holds"
        assert {row.parameter for row in report if row.rule == rule} == set(NAMES)  # not what the rule has brought


def test_a_learned_broadcast_is_measured_as_it_is(case: Case) -> None:
    """What a rule has brought and learned in the network measured counts, not a fresh draw of it."""
    net, batch = case
    rule = filtered("adaptive", signal="adaptive")
    fresh = fidelity(net, batch, [rule], lengths=[10])
    rule.attach(net)
    assert fidelity(net, batch, [rule], lengths=[10]).rows == fresh.rows
    feedback = dict(net.named_parameters())["0.signal.feedback"]
    with torch.no_grad():
        feedback.mul_(-1)
    turned = fidelity(net, batch, [rule], lengths=[10]).row("adaptive", NAMES[0]).agreement
    assert turned.cosine == pytest.approx(-fresh.row("adaptive", NAMES[0]).agreement.cosine, abs=1e-9)
    assert dict(net.named_parameters())["0.signal.feedback"] is feedback


def test_a_rule_of_some_steps_is_checked_with_all(case: Case) -> None:
    rule = LearningRule(transition="none", storage="none", learn_on="last", learn_steps=3, title="SLTT-3")
    net, (x, y) = case
    report = fidelity(net, (x, y), [rule, SLTT()], lengths=[10])
    assert {row.claim for row in report if row.rule == "SLTT"} == {"holds"}
    assert {row.claim for row in report if row.rule == "SLTT-3"} == {"approximate"}
    assert any("SLTT-3 learns at some steps alone" in note for note in report.notes)
    mine = by_hand.bptt(by_hand.weights_of(net), x, y, 0.7, (1, 2))
    assert report.row("SLTT", NAMES[0]).agreement.norm == pytest.approx(float(mine[0].norm()), rel=1e-10)
    assert report.row("SLTT-3", NAMES[0]).agreement.norm < 0.9 * float(mine[0].norm())


def test_two_rules_of_one_name_are_told_apart(case: Case) -> None:
    assert fidelity(*case, [OTTT(), OTTT()]).rules == ("OTTT", "OTTT (2)")


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_of_float32(seed: int, unchecked: None) -> None:
    """Exact claims hold with room to spare in single precision, and what is not exact is far beyond the bound."""
    torch.manual_seed(seed)
    net, x, y = problem(mlp(lambda: LIF(decay=0.9), sizes=(12, 16, 16)), sequence(12, steps=40, batch=16))
    report = fidelity(net.float(), (x.float(), y), [SLTT(), OTTT(), DRTRL()], dtype=None, lengths=[40])
    assert report.precision == "float32"
    assert {row.claim for row in report} == {"holds"}
    worst = max(row.claim_error for row in report)
    assert 0 < worst < BOUNDS[torch.float32] / 10
    assert report.row("SLTT", NAMES[0]).agreement.error > 100 * BOUNDS[torch.float32]


def test_half_precision_has_no_bound(case: Case) -> None:
    net, (x, y) = case
    report = fidelity(net, (x, y), [SLTT()], dtype=torch.bfloat16, lengths=[10])
    assert {row.claim for row in report} == {"not checked"}
