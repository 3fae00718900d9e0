"""The fidelity report: figures by hand, a network left as it was, and the report on paper."""

import csv
import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles import by_hand
from oracles.by_hand import NAMES
from oracles.networks import mlp, sequence
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    BPTT,
    DRTRL,
    LI,
    LIF,
    OTTT,
    SLTT,
    ETBlock,
    ETConv2d,
    ETLinear,
    FidelityReport,
    OnlineLearner,
    Readout,
    RuleChoiceError,
    SequenceLoss,
    TimeConstantDropout,
    fidelity,
)
from snnlearn.engine import fidelity_plot
from snnlearn.engine.agreement import compare
from snnlearn.engine.fidelity_report import COLUMNS

Case = tuple[nn.Module, tuple[Tensor, Tensor]]
RULES = [SLTT(), OTTT(), DRTRL(), BPTT()]


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
    weights = by_hand.weights_of(net)
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
    mine, true = (
        by_hand.bptt(by_hand.weights_of(net), x, y, 0.7, (1, 2)),
        by_hand.bptt(by_hand.weights_of(net), x, y, 0.7),
    )
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
