"""The table of a sweep over rules, from a summary.csv written by hand; figures of a run that only it has."""

import csv
import io
import statistics
from pathlib import Path

import pytest
from runs import CONFIGS, composed

from snnlearn.config import load, validate
from snnlearn.config.build import build_network
from snnlearn.config.comparison import compare, comparison_csv, comparison_text, write_comparison
from snnlearn.config.compose import compose_values, sweep_words
from snnlearn.config.figures import epochs_to
from snnlearn.config.run import run
from snnlearn.config.sweep import SweepTable
from snnlearn.training import MetricLog

BY_HAND = """\
job,status,seed,dataset,model,rule,test_accuracy,chance,test_loss,epochs_to_threshold,seconds,kept_bytes,fidelity,overrides
a,finished,1,copy,mlp,ottt,0.5,0.125,1.2,4,10.0,1500000,0.9,dataset=copy rule=ottt seed=1 trainer.epochs=3
b,finished,2,copy,mlp,ottt,0.7,0.125,1.0,,20.0,1500000,0.7,dataset=copy rule=ottt seed=2 trainer.epochs=3
c,finished,1,copy,mlp,sltt,0.25,0.125,1.9,,5.0,500000,,dataset=copy rule=sltt seed=1 trainer.epochs=3
d,failed,2,copy,mlp,sltt,,,,,,,,dataset=copy rule=sltt seed=2 trainer.epochs=3
e,interrupted,1,delayed_xor,mlp,ottt,,,,,,,,dataset=delayed_xor rule=ottt seed=1 trainer.epochs=3
f,finished,1,pattern_generation,mlp,ottt,,1.0,0.25,,3.0,100000,,rule=ottt seed=1 trainer.epochs=3
"""

EXPECTED = """\
Mean ± standard deviation over seeds. 4 of 6 jobs finished; a cell with fewer says so.

| test accuracy, % | copy (chance 12.5) | delayed_xor |
|---|---|---|
| ottt | 60.0 ± 14.1 | none of 1 |
| sltt | 25.0 (1 of 2) |  |

| test loss | pattern_generation (chance 1) |
|---|---|
| ottt | 0.2500 |

| epochs to threshold | copy | delayed_xor |
|---|---|---|
| ottt | 4.0 (1 of 2) | never |
| sltt | never |  |

| seconds | copy | delayed_xor | pattern_generation |
|---|---|---|---|
| ottt | 15 ± 7 | none of 1 | 3 |
| sltt | 5 (1 of 2) |  |  |

| kept while learning, MB | copy | delayed_xor | pattern_generation |
|---|---|---|---|
| ottt | 1.50 | - | 0.10 |
| sltt | 0.50 |  |  |

| cosine with BPTT | copy | delayed_xor | pattern_generation |
|---|---|---|---|
| ottt | 0.80 ± 0.14 | none of 1 | - |
| sltt | - |  |  |
"""


def rows(text: str = BY_HAND) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_table_of_a_summary_written_by_hand(tmp_path: Path) -> None:
    text = write_comparison(tmp_path, rows())
    assert text == EXPECTED
    assert (tmp_path / "comparison.md").read_text() == EXPECTED
    table = rows((tmp_path / "comparison.csv").read_text())
    assert [(row["rule"], row["dataset"], row["jobs"], row["finished"]) for row in table] == [
        ("ottt", "copy", "2", "2"),
        ("sltt", "copy", "2", "1"),
        ("ottt", "delayed_xor", "1", "0"),
        ("ottt", "pattern_generation", "1", "1"),
    ]
    first = table[0]
    assert float(first["test_accuracy_mean"]) == pytest.approx(0.6)
    assert float(first["test_accuracy_std"]) == pytest.approx(statistics.stdev([0.5, 0.7]))
    assert (first["chance"], first["reached_threshold"], first["epochs_to_threshold_mean"]) == ("0.125", "1", "4.0")
    assert table[2]["test_accuracy_mean"] == table[1]["test_accuracy_std"] == ""


def test_one_rule_is_no_comparison(tmp_path: Path) -> None:
    assert write_comparison(tmp_path, [row for row in rows() if row["rule"] == "ottt"]) is None
    assert list(tmp_path.iterdir()) == []


def test_other_axes_are_not_averaged_over() -> None:
    """Only what differs is named, and two values of a knob are two rows."""
    twice = [{**row, "overrides": f"{row['overrides']} neuron.tau={tau}"} for tau in (2, 4) for row in rows()[:2]]
    cells = compare(twice)
    assert [(cell.rule, cell.jobs) for cell in cells] == [("ottt neuron.tau=2", 2), ("ottt neuron.tau=4", 2)]
    assert "| ottt neuron.tau=4 | 60.0 ± 14.1 |" in comparison_text(cells)
    assert comparison_csv(cells).count("neuron.tau=2") == 1


def test_rows_of_the_sweep_table_are_what_is_compared(tmp_path: Path) -> None:
    """Through the file and its own columns; a figure that is not there stays out."""
    table = SweepTable(tmp_path)
    figures = {"status": "finished", "dataset": "copy", "test_accuracy": 0.5, "seconds": 1.0, "kept_bytes": 1_000_000}
    table.put("x", {**figures, "rule": "ottt", "chance": 0.125, "fidelity": None, "overrides": "rule=ottt"})
    table.put("y", {**figures, "rule": "bptt", "chance": 0.125, "fidelity": 1.0, "overrides": "rule=bptt"})
    text = write_comparison(tmp_path, table.rows().values())
    assert text is not None
    assert "| ottt | 50.0 |" in text
    assert "| bptt | 1.00 |" in text
    assert "epochs to threshold" not in text


SIZES = ["dataset.train=20", "dataset.test=8", "trainer.batch_size=6", "model.hidden=[6]", "logger=plain", "threads=1"]


def test_a_run_has_the_figures(tmp_path: Path) -> None:
    words = [
        "dataset=delayed_xor",
        "dataset.delay=3",
        *SIZES,
        "trainer.epochs=2",
        "logger.fidelity_every=2",
        "neuron.threshold=0.2",
    ]
    summary = run(load(composed(*words, "trainer.threshold=0.01")), tmp_path / "a")
    lines = MetricLog(tmp_path / "a" / "metrics.jsonl").read()
    validated = [line["validation"]["accuracy"] for line in lines if line["kind"] == "epoch"]
    reached = [epoch for epoch, accuracy in enumerate(validated, start=1) if accuracy >= 0.505]
    assert summary["epochs_to_threshold"] == (reached[0] if reached else None)
    (cosines,) = (line["cosine"].values() for line in lines if line["kind"] == "fidelity")
    assert summary["fidelity"] == pytest.approx(statistics.mean(cosines))
    assert 0 < summary["fidelity"] < 1
    assert summary["chance"] == 0.5
    plain = run(load(composed(*words, "logger.fidelity_every=null")), tmp_path / "b")
    assert plain["fidelity"] is None
    assert plain["epochs_to_threshold"] is None
    assert plain["kept_bytes"] == summary["kept_bytes"] > 6 * 6 * 4
    grown = run(load(composed(*words, "rule=bptt", "trainer.epochs=1")), tmp_path / "c")
    assert grown["kept_bytes"] > 3 * summary["kept_bytes"]


def test_epochs_to_threshold_are_those_of_the_file() -> None:
    """So a resumed run, whose file has the epochs of before, counts the same; without validation training counts."""
    lines = [{"kind": "epoch", "epoch": n, "validation": {"accuracy": a}} for n, a in ((1, 0.5), (2, 0.9), (3, 0.7))]
    assert [epochs_to(goal, lines) for goal in (0.4, 0.6, 0.9, 0.95)] == [1, 2, 2, None]
    lines = [{"kind": "epoch", "epoch": 1, "validation": None, "train": {"accuracy": 0.8}}, {"kind": "batch"}]
    assert epochs_to(0.8, lines) == 1
    assert epochs_to(0.1, [{"kind": "epoch", "epoch": 1, "validation": {"accuracy": None}}]) is None


def test_part_of_a_layer_adapts() -> None:
    words = ["dataset=copy", "model=recurrent", "neuron=alif", "model.hidden=[5,4]", "neuron.adaptation=0.5"]
    net = build_network(load(composed(*words, "model.adaptive_share=0.5")))
    assert net.hidden_1.neuron.adaptation.tolist() == [0.5, 0.5, 0.0, 0.0, 0.0]
    assert net.hidden_2.neuron.adaptation.tolist() == [0.5, 0.5, 0.0, 0.0]
    assert build_network(load(composed(*words))).hidden_1.neuron.adaptation == 0.5
    for word, path in (("neuron=lif", "model.adaptive_share"), ("neuron.learn=[adaptation]", "model.adaptive_share")):
        given = [other for other in words if word != "neuron=lif" or not other.startswith("neuron.")]
        assert [p.path for p in validate(composed(*given, word, "model.adaptive_share=0.5"))] == [path]


def test_numbers_have_no_threshold() -> None:
    found = validate(composed("dataset=pattern_generation", "trainer.threshold=0.5"))
    assert [problem.path for problem in found] == ["trainer.threshold"]


def test_the_recipe_brings_its_axes() -> None:
    axes = dict(word.split("=") for word in sweep_words(CONFIGS, ["experiment=rule_comparison"]))
    assert list(axes) == ["seed", "dataset", "rule"]
    assert {"sltt", "ottt", "drtrl", "eprop", "bptt"} <= set(axes["rule"].split(","))
    assert {"delayed_xor", "store_recall", "evidence_accumulation", "copy"} <= set(axes["dataset"].split(","))
    assert sweep_words(CONFIGS, []) == []
    lengths = {
        name: compose_values(CONFIGS, ["experiment=rule_comparison", f"dataset={name}"])["trainer"]["epochs"]
        for name in axes["dataset"].split(",")
    }
    assert lengths["copy"] > lengths["evidence_accumulation"]
