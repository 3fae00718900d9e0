"""The fidelity report: figures by hand, claims that hold and one that does not, and a network left as it was."""

import copy
import csv
import dataclasses
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nets import assert_alive
from oracles import by_hand
from oracles.networks import mlp, problem, sequence
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    BPTT,
    DRTRL,
    LI,
    LIF,
    OTTT,
    SLTT,
    BrokenClaimError,
    ETBlock,
    ETConv2d,
    ETLinear,
    ETRecurrent,
    FidelityReport,
    LearningRule,
    OnlineLearner,
    Readout,
    ReportRow,
    RuleChoiceError,
    SequenceLoss,
    TimeConstantDropout,
    fidelity,
)
from snnlearn.engine import fidelity_plot
from snnlearn.engine.agreement import BOUNDS, compare
from snnlearn.engine.fidelity_report import COLUMNS
from snnlearn.engine.yardsticks import Problem, Yardsticks
from snnlearn.rules.yardsticks import CUT_BEYOND, CUT_LATER, FULL, RECURRENT_CUT

NAMES = ["0.connection.weight", "0.connection.bias", "1.connection.weight", "1.connection.bias"]
NAMES += ["2.connection.weight", "2.connection.bias"]
RULES = [SLTT(), OTTT(), DRTRL(), BPTT()]
Case = tuple[nn.Module, tuple[Tensor, Tensor]]


@pytest.fixture(scope="module")
def lively_case() -> Case:
    torch.manual_seed(0)
    net, x, y = problem(mlp(lambda: LIF(decay=0.7)), sequence(7))
    assert_alive(net, x)
    return net, (x, y)


@pytest.fixture
def case(lively_case: Case) -> Case:
    """Two hidden layers and a static readout, all of which fire."""
    return copy.deepcopy(lively_case)


def hand_weights(net: nn.Module) -> by_hand.Weights:
    parameters = dict(net.named_parameters())
    return by_hand.Weights(*[parameters[name].detach() for name in NAMES])


def figures(mine: Tensor, true: Tensor) -> tuple[float, float, float]:
    """Cosine, relative error and norm ratio, by loops over numbers."""
    a, b = mine.flatten().tolist(), true.flatten().tolist()
    size_a, size_b = (math.sqrt(sum(v * v for v in values)) for values in (a, b))
    difference = math.sqrt(sum((u - v) ** 2 for u, v in zip(a, b, strict=True)))
    return sum(u * v for u, v in zip(a, b, strict=True)) / size_a / size_b, difference / size_b, size_a / size_b


@pytest.mark.parametrize(("rule", "cut"), [("SLTT", (1, 2)), ("OTTT", None), ("D-RTRL", None)])
def test_figures_of_every_parameter_by_hand(case: Case, rule: str, cut: tuple[int, ...] | None) -> None:
    """Against a network in bare tensors that shares no line with the package."""
    net, (x, y) = case
    weights = hand_weights(net)
    mine = by_hand.bptt(weights, x, y, 0.7, cut) if cut else by_hand.ottt(weights, x, y, 0.7)
    report = fidelity(net, (x, y), RULES, lengths=[10])
    for name, gradient, true in zip(NAMES, mine, by_hand.bptt(weights, x, y, 0.7), strict=True):
        found = report.row(rule, name).agreement
        assert (found.cosine, found.error, found.norm_ratio) == pytest.approx(figures(gradient, true), abs=1e-10), name
        assert found.norm == pytest.approx(float(gradient.norm()), rel=1e-10)
        assert found.reference_norm == pytest.approx(float(true.norm()), rel=1e-10)


def test_exact_rows_are_exact_and_the_first_layer_of_sltt_is_not(case: Case) -> None:
    net, batch = case
    report = fidelity(net, batch, RULES)
    assert all(row.claim == "holds" and row.claim_error < 1e-12 for row in report)
    for rule in ("OTTT", "D-RTRL", "BPTT"):
        for name in NAMES[2:]:
            found = report.row(rule, name).agreement
            assert found.cosine == pytest.approx(1.0, abs=1e-12)
            assert found.error < 1e-12
    first = report.row("SLTT", NAMES[0]).agreement
    assert first.cosine < 0.99
    assert first.error > 0.1
    assert report.row("OTTT", NAMES[0]).agreement.error > 1e-3  # a layer with memory lies above it


def test_layers_and_lengths(case: Case) -> None:
    """A layer's figures are those of its parameters as one vector; a prefix is the batch cut by hand."""
    net, (x, y) = case
    report = fidelity(net, (x, y), [SLTT()], lengths=[3, 10])
    assert report.lengths == (3, 10)
    alone = fidelity(net, (x[:3], y), [SLTT()], lengths=[3])
    for name in NAMES:
        assert report.row("SLTT", name, 3).agreement == alone.row("SLTT", name).agreement
    assert report.row("SLTT", NAMES[0], 3).agreement != report.row("SLTT", NAMES[0], 10).agreement
    layers = [layer for layer in report.layers() if layer.steps == 10]
    assert [(layer.layer, layer.depth) for layer in layers] == [("0", 1), ("1", 2), ("2", 3)]
    mine, true = by_hand.bptt(hand_weights(net), x, y, 0.7, (1, 2)), by_hand.bptt(hand_weights(net), x, y, 0.7)
    together = [torch.cat([part.flatten() for part in gradients[:2]]) for gradients in (mine, true)]
    assert layers[0].agreement.cosine == pytest.approx(figures(together[0], together[1])[0], abs=1e-10)
    assert fidelity(net, (x, y), [SLTT()]).lengths == (2, 5, 10)


def test_depth_is_the_order_of_execution_not_of_registration() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.first = ETBlock(ETLinear(4, 2), LI()), ETBlock(ETLinear(3, 4), LIF())

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x))

    report = fidelity(Backwards(), (torch.rand(4, 2, 3), torch.tensor([0, 1])), [SLTT()])
    assert [(layer.depth, layer.layer) for layer in report.layers() if layer.steps == 4] == [(1, "first"), (2, "last")]


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


def test_a_silent_and_a_saturated_network_are_called_so(case: Case) -> None:
    net, (x, y) = case
    with torch.no_grad():
        net[0].connection.weight.mul_(0)
        net[0].connection.bias.fill_(-1)
    report = fidelity(net, (x, y), [OTTT()])
    assert report.row("OTTT", NAMES[0]).firing_rate == 0
    assert report.row("OTTT", NAMES[0]).remark.startswith("silent")
    # the layer above gets no input at all: zero against zero, which is no agreement
    assert report.row("OTTT", NAMES[2]).agreement.cosine is None
    assert report.row("OTTT", NAMES[2]).remark.startswith("no gradient")
    assert report.row("OTTT", NAMES[2]).claim == "nothing to check"
    assert "note: 0 is silent" in str(report)
    with torch.no_grad():
        net[0].connection.bias.fill_(5)
    assert fidelity(net, (x, y), [OTTT()]).row("OTTT", NAMES[0]).remark.startswith("saturated")


def test_rounding_is_not_taken_for_a_gradient() -> None:
    """A bias before batch normalisation has no gradient; what rounding leaves of it is not compared."""
    net = mlp(lambda: LIF(decay=0.7))
    net[1].norm = nn.BatchNorm1d(8).double()
    report = fidelity(net, (sequence(7), torch.tensor([0, 1, 2, 0, 1])), [SLTT()])
    assert report.row("SLTT", NAMES[3]).claim == "nothing to check"
    assert report.row("SLTT", NAMES[3]).agreement.cosine is None
    assert report.row("SLTT", NAMES[2]).agreement.cosine is not None


def test_the_network_is_left_as_it_was(case: Case, unchecked: None) -> None:
    """Without the run-time checks of types, which draw from Python's generator themselves."""
    net, (x, y) = case
    net = nn.Sequential(*net, TimeConstantDropout(0.3), nn.BatchNorm1d(3)).double()
    net[4].eval()  # a frozen norm stays frozen
    learner = OnlineLearner(net, DRTRL(), F.cross_entropy, torch.optim.SGD(net[:3].parameters(), lr=0.1))
    for _ in range(3):
        net(x[0])  # a running stream, with a mask and traces
    net[0].connection.weight.grad = torch.ones_like(net[0].connection.weight)
    generators = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())  # noqa: NPY002
    values = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [module.training for module in net.modules()]
    states = [{k: v for k, v in vars(m).items() if k in getattr(m, "transient", ())} for m in net.modules()]
    traces = [net[i].connection.trace for i in range(2)]
    kept = [trace.values.clone() for trace in traces[:1]]
    report = fidelity(net, (x, y), [SLTT(), OTTT(), BPTT()], loss=SequenceLoss())
    assert len(report.rows) == 3 * 3 * 8
    assert all(torch.equal(value, values[name]) for name, value in net.state_dict().items())
    assert modes == [module.training for module in net.modules()]
    assert [net[i].connection.trace for i in range(2)] == traces
    assert torch.equal(traces[0].values, kept[0])
    after = [{k: v for k, v in vars(m).items() if k in getattr(m, "transient", ())} for m in net.modules()]
    assert all(a[name] is b[name] for a, b in zip(states, after, strict=True) for name in a)
    assert torch.equal(net[0].connection.weight.grad, torch.ones_like(net[0].connection.weight))
    assert net[1].connection.weight.grad is None
    assert learner.rule == DRTRL()
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert np.array_equal(np.random.get_state()[1], generators[1])  # noqa: NPY002
    assert random.getstate() == generators[2]


def test_a_network_in_eval_is_measured_in_train_and_stays_in_eval(case: Case) -> None:
    net, batch = case
    before = fidelity(net, batch, [OTTT()])
    assert fidelity(net.eval(), batch, [OTTT()]).rows == before.rows
    assert not net.training


def test_random_masks_are_the_same_in_every_run() -> None:
    """Else exact rules would differ from BPTT by their dropout; another seed draws another mask."""
    net = mlp(lambda: LIF(decay=0.7))
    net = nn.Sequential(net[0], TimeConstantDropout(0.5), net[1], net[2])
    batch = (sequence(7), torch.tensor([0, 1, 2, 0, 1]))
    report = fidelity(net, batch, [SLTT(), BPTT()])
    assert {row.claim for row in report} == {"holds"}
    other = fidelity(net, batch, [SLTT()], seed=1)
    assert other.row("SLTT", "3.connection.weight") != report.row("SLTT", "3.connection.weight")


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


def test_targets_per_step_and_lengths_without_any(case: Case) -> None:
    net, (x, y) = case
    targets = [None] * 8 + [y, y]
    report = fidelity(net, (x, targets), [OTTT(), SLTT()], per_step_target=True)
    assert report.lengths == (10,)
    assert sum("no loss counts in the first" in note for note in report.notes) == 2
    assert {row.claim for row in report} == {"holds"}
    late = fidelity(net, (x, y), [OTTT()], loss=SequenceLoss(last_steps=2), lengths=[10])
    assert late.row("OTTT", NAMES[0]).agreement.inner == pytest.approx(report.row("OTTT", NAMES[0]).agreement.inner)
    with pytest.raises(ValueError, match="none of these 10 steps has a target"):
        fidelity(net, (x, [None] * 10), [OTTT()], per_step_target=True)


def test_a_running_mean_is_part_of_the_figures_and_not_of_the_claims(case: Case) -> None:
    report = fidelity(*case, [OTTT(), BPTT()], loss=SequenceLoss(readout="running_mean"))
    assert {row.claim for row in report} == {"holds"}
    assert report.row("OTTT", NAMES[4]).agreement.error > 0.01  # the static readout, exact with any other loss
    assert report.row("BPTT", NAMES[4]).agreement.error < 1e-12
    assert any("running mean" in note for note in report.notes)


def test_a_refused_rule_is_named_and_the_others_are_measured() -> None:
    net = nn.Sequential(ETBlock(ETConv2d(1, 2, 3), LIF()), nn.Flatten(), Readout(nn.Linear(8, 2)))
    batch = (torch.rand(4, 2, 1, 4, 4), torch.tensor([0, 1]))
    report = fidelity(net, batch, [DRTRL(), SLTT()])
    assert report.rules == ("SLTT",)
    assert any(note.startswith("D-RTRL was not measured: ") for note in report.notes)
    with pytest.raises(RuleChoiceError, match="ETConv2d"):
        fidelity(net, batch, [DRTRL()])


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
    mine = by_hand.bptt(hand_weights(net), x, y, 0.7, (1, 2))
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


def test_compare_of_zeros() -> None:
    zero, one = torch.zeros(2), torch.ones(2)
    assert (compare(zero, zero).cosine, compare(zero, zero).error) == (None, None)
    assert (compare(one, zero).cosine, compare(one, zero).error) == (None, math.inf)
    assert (compare(zero, one).cosine, compare(zero, one).error) == (None, 1.0)
    assert compare(one, zero).missing == "no gradient from BPTT"
    assert compare(zero, one).missing == "no gradient from the rule"


def test_csv_round_trip(case: Case, tmp_path: Path) -> None:
    report = fidelity(*case, [SLTT(), OTTT()])
    report.to_csv(tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(COLUMNS)
    assert len(rows) == len(report.rows) == 2 * 3 * 6
    for line, row in zip(rows, report, strict=True):
        assert (line["rule"], line["parameter"], int(line["steps"])) == (row.rule, row.parameter, row.steps)
        assert float(line["cosine"]) == row.agreement.cosine
        assert float(line["claim_error"]) == row.claim_error
        assert (line["firing_rate"] == "") == (row.firing_rate is None)


def test_a_picture_is_written_and_its_absence_explained(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = fidelity(*case, [SLTT(), OTTT()])
    report.plot(tmp_path / "new" / "heatmap.png")
    assert (tmp_path / "new" / "heatmap.png").read_bytes().startswith(b"\x89PNG")
    assert "matplotlib.pyplot" not in vars(fidelity_plot)

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        report.plot(tmp_path / "heatmap.png")
    with pytest.raises(ValueError, match="no row"):
        FidelityReport((), (1,), 1, "float64").plot(tmp_path / "heatmap.png")


def test_progress_is_told_when_it_takes_long(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["snnlearn.engine.fidelity"], "QUIET_SECONDS", 0.0)
    told: list[str] = []
    fidelity(*case, [SLTT()], progress=told.append)
    assert len(told) == 2  # the last length is the end
    assert "s left" in told[0]


def test_wrong_arguments_are_told(unchecked: None) -> None:
    net, x, y = nn.Linear(2, 2), torch.ones(3, 1, 2), torch.tensor([0])
    with pytest.raises(TypeError, match=r"rules=\[rule\]"):
        fidelity(net, (x, y), SLTT())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="with parentheses"):
        fidelity(net, (x, y), [SLTT])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="rules is empty"):
        fidelity(net, (x, y), [])
    with pytest.raises(ValueError, match="from 1 to T, which is 3"):
        fidelity(net, (x, y), [SLTT()], lengths=[4])
    with pytest.raises(ValueError, match=r"a pair \(x, y\)"):
        fidelity(net, (x, y, y), [SLTT()])
    with pytest.raises(ValueError, match="T = 0"):
        fidelity(net, (x[:0], y), [SLTT()])
    with pytest.raises(ValueError, match="requires a gradient"):
        fidelity(net.requires_grad_(False), (x, y), [SLTT()])
    with pytest.raises(KeyError, match="there are rules"):
        fidelity(nn.Linear(2, 2), (x, y), [SLTT()]).row("OTTT", "weight")
