"""`scripts/fidelity.py` as a user runs it, and its words."""

import csv
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from runs import CONFIGS, ROOT, call, small_words, write_nmnist

from snnlearn.config import ConfigError
from snnlearn.config.fidelity import measure, parse_fidelity_words, run_fidelity
from snnlearn.kernels import use
from snnlearn.training import CheckpointError

SCRIPT, TRAIN = str(ROOT / "scripts" / "fidelity.py"), str(ROOT / "scripts" / "train.py")


@pytest.fixture(scope="module")
def nmnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nmnist(tmp_path_factory.mktemp("recordings") / "n=mnist")


def test_a_fresh_and_a_trained_network_end_to_end(tmp_path: Path, nmnist: Path) -> None:
    words = [*small_words(nmnist), "rules=[sltt,ottt]", "sequences=3", "lengths=[2,4]", "bias_pairs=16", "folder=out"]
    done = call(SCRIPT, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "fidelity to BPTT over 4 steps, batch of 3, in float64" in done.stdout
    assert "BPTT against the slope of the spiking loss, 16 pairs" in done.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"table.csv", "surrogate_bias.csv", "heatmap.png"}
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["rule"], row["steps"]) for row in rows} == {(r, s) for r in ("SLTT", "OTTT") for s in ("2", "4")}
    assert {row["claim"] for row in rows} <= {"holds", "nothing to check"}
    assert "holds" in {row["claim"] for row in rows}
    trained = call(TRAIN, tmp_path, *small_words(nmnist), "hydra.run.dir=run", "rule=sltt")
    assert trained.returncode == 0, trained.stderr
    again = call(SCRIPT, tmp_path, "checkpoint=run", "sequences=3")
    assert again.returncode == 0, again.stderr
    assert "\nSLTT " in again.stdout
    assert (tmp_path / "run" / "fidelity" / "table.csv").is_file()
    with (tmp_path / "run" / "fidelity" / "table.csv").open(newline="") as file:
        after = {row["parameter"]: row for row in csv.DictReader(file) if row["steps"] == "4"}
    before = {row["parameter"]: row for row in rows if (row["rule"], row["steps"]) == ("SLTT", "4")}
    assert after.keys() == before.keys()
    assert any(after[name]["bptt_norm"] != before[name]["bptt_norm"] for name in after)  # the weights are the trained


def test_wrong_words_are_told_without_a_traceback(
    tmp_path: Path, nmnist: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong: list[tuple[list[str], str]] = [
        (["rules=[slt]"], "did you mean sltt?"),
        (["sequences=0"], "sequences: got 0; legal: a whole number >= 1"),
        (["checkpoint=nowhere"], "no such run folder"),
        (["neuron.tua=3"], "did you mean neuron.tau?"),
        (["sequence=3"], "did you mean sequences?"),
        ([*small_words(nmnist), "lengths=[9]"], "at most the sequence's 4 steps"),
        ([*small_words(nmnist), "bias_pairs=3"], "at least 16"),
        (["rules=[drtrl]", "model=convolutional"], "trainer.chunk: got 1; legal: auto, or at least"),
    ]
    for words, message in wrong:
        with pytest.raises(SystemExit) as ended:
            run_fidelity(CONFIGS, words)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err, words
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_that_cannot_run_is_told_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["dataset=copy", "model.hidden=[8]", "rules=[sltt]", "sequences=2"]
    with use("triton"), pytest.raises(SystemExit) as ended:
        run_fidelity(CONFIGS, words)
    assert ended.value.code == 2
    assert re.search(r"error: \w+ was to run as triton, by use\('triton'\), and cannot: ", capsys.readouterr().err)


def test_help_names_every_knob(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_fidelity(CONFIGS, ["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} = " in text for name in ("rules", "checkpoint", "sequences", "lengths", "bias_pairs"))


def test_words_become_options_and_rules(nmnist: Path, tmp_path: Path) -> None:
    options, config, rules = parse_fidelity_words(CONFIGS, [*small_words(nmnist), "rules=ottt", "trainer.update=2"])
    assert (options.rules, list(rules)) == (("ottt",), ["ottt"])
    assert config.trainer.update == "sequence"
    _, _, configured = parse_fidelity_words(CONFIGS, [*small_words(nmnist), "rule=bptt"])
    assert [rule.name for rule in configured.values()] == ["BPTT"]
    report, bias = measure(options, config, rules)
    same, _ = measure(options, config, rules)
    assert report.rows == same.rows  # fresh weights are the seed's
    assert bias is None
    with pytest.raises(ConfigError, match=r"neuron\.tau"):
        parse_fidelity_words(CONFIGS, ["neuron.tau=-1"])
    with pytest.raises(CheckpointError):
        parse_fidelity_words(CONFIGS, [f"checkpoint={tmp_path}"])


def test_a_task_with_a_target_at_every_step() -> None:
    options, config, rules = parse_fidelity_words(
        CONFIGS, ["dataset=copy", "model.hidden=[8]", "rules=[sltt]", "sequences=4"]
    )
    report, _ = measure(options, config, rules)
    assert report.batch_size == 4
    assert {row.claim for row in report} <= {"holds", "nothing to check"}
    assert "holds" in {row.claim for row in report}


def test_a_broken_claim_ends_with_one(
    tmp_path: Path, nmnist: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: a gradient that is twice its own."""
    module = sys.modules["snnlearn.engine.fidelity"]
    real: Callable[..., tuple[dict[str, torch.Tensor], object, object]] = module.rule_gradients  # type: ignore[attr-defined]

    def doubled(*args: object) -> tuple[dict[str, torch.Tensor], object, object]:
        gradients, report, rates = real(*args)
        return {name: 2 * gradient for name, gradient in gradients.items()}, report, rates

    monkeypatch.setattr(module, "rule_gradients", doubled)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run_fidelity(CONFIGS, [*small_words(nmnist), "rules=[sltt]", "folder=out"])
    assert ended.value.code == 1
    assert "BROKEN CLAIM" in capsys.readouterr().out.splitlines()[0]
    assert (tmp_path / "out" / "table.csv").is_file()


def test_the_script_is_thin() -> None:
    assert len(Path(SCRIPT).read_text().splitlines()) <= 40
