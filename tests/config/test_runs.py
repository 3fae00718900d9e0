"""Whole runs inside this process: a summary, a resume, a mismatch, a sweep's table, an evaluation."""

import csv
import json
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from snnlearn.config import Config, ConfigError, Problem, load, plain
from snnlearn.config.evaluate import evaluate, evaluate_checkpoint, parse_words
from snnlearn.config.resume import check_same_run, find_latest, stored_config
from snnlearn.config.run import finished_before, run, summary_line
from snnlearn.config.sweep import Job, SweepTable
from snnlearn.data import DataError
from snnlearn.training import CheckpointError, Interrupted, MetricLog, load_checkpoint

Small = Callable[..., Config]


def figures(folder: Path) -> list[dict[str, Any]]:
    lines = MetricLog(folder / "metrics.jsonl").read()
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    model: dict[str, torch.Tensor] = load_checkpoint(folder / "checkpoints" / "last.pt")["model"]
    return model


def test_a_run_leaves_what_it_should(small: Small, tmp_path: Path) -> None:
    config = small("trainer.epochs=2", "optimizer.lr=0.01")
    summary = run(config, tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert summary["samples"] == 20
    assert summary["test_accuracy"] == summary["correct"] / 20
    assert load(stored_config(tmp_path / "checkpoints" / "best.pt")) == config
    assert load_checkpoint(tmp_path / "checkpoints" / "last.pt")["record"]["classes"] == [str(d) for d in range(10)]
    assert f"root: {config.dataset.root}" in (tmp_path / "config.yaml").read_text()  # type: ignore[union-attr]
    assert summary_line(summary).startswith("test accuracy ")
    assert "| ottt on nmnist | 2 epochs |" in summary_line(summary)


def test_the_same_seed_gives_the_same_bits(small: Small, tmp_path: Path) -> None:
    for name, words in {"a": [], "b": [], "c": ["seed=2"]}.items():
        run(small(*words), tmp_path / name)
    assert figures(tmp_path / "a") == figures(tmp_path / "b") != figures(tmp_path / "c")
    assert all(torch.equal(value, weights(tmp_path / "b")[name]) for name, value in weights(tmp_path / "a").items())


def test_interrupted_and_resumed_run(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout and a schedule: what comes out is what the uninterrupted run has, in the same folder."""
    words = ["trainer.epochs=2", "scheduler=cosine", "model.dropout=0.2"]
    whole = run(small(*words), tmp_path / "whole")
    from snnlearn.data import NMNIST

    events, calls = NMNIST.events, iter(range(1000))

    def interrupting(self: NMNIST, index: int) -> Any:
        if next(calls) == 35:  # inside the second epoch
            signal.raise_signal(signal.SIGINT)
        return events(self, index)

    monkeypatch.setattr(NMNIST, "events", interrupting)
    with pytest.raises(Interrupted, match="epoch 2, batch"):
        run(small(*words), tmp_path / "broken")
    monkeypatch.setattr(NMNIST, "events", events)
    assert not (tmp_path / "broken" / "summary.json").exists()
    with pytest.raises(ConfigError, match=r"go on with it by trainer\.resume"):
        run(small(*words), tmp_path / "broken")  # never over an earlier run by accident
    resumed = run(small(*words, f"trainer.resume={tmp_path / 'broken'}"), tmp_path / "broken")
    assert figures(tmp_path / "broken") == figures(tmp_path / "whole")
    assert resumed["test_accuracy"] == whole["test_accuracy"]
    theirs = weights(tmp_path / "broken")
    assert all(torch.equal(value, theirs[name]) for name, value in weights(tmp_path / "whole").items())


def test_resume_for_more_epochs_in_another_folder(small: Small, tmp_path: Path) -> None:
    run(small("trainer.epochs=2"), tmp_path / "whole")
    run(small(), tmp_path / "first")
    run(small("trainer.epochs=2", f"trainer.resume={tmp_path / 'first'}"), tmp_path / "second")
    assert figures(tmp_path / "second") == figures(tmp_path / "whole")
    assert len(figures(tmp_path / "first")) < len(figures(tmp_path / "second"))


def test_a_resume_writes_over_no_other_run(small: Small, tmp_path: Path) -> None:
    """Into its own folder or an empty one it goes; a third run's folder stays as it is, and the message says how."""
    run(small(), tmp_path / "first")
    run(small("seed=2"), tmp_path / "other")
    before = {path: path.read_bytes() for path in (tmp_path / "other").rglob("*") if path.is_file()}
    again = small("trainer.epochs=2", f"trainer.resume={tmp_path / 'first'}")
    with pytest.raises(ConfigError, match=r"hydra\.run\.dir: .*/other; .*go on with it by trainer\.resume=.*/other"):
        run(again, tmp_path / "other")
    assert {path: path.read_bytes() for path in (tmp_path / "other").rglob("*") if path.is_file()} == before
    assert run(again, tmp_path / "first")["epochs"] == 2


def test_another_network_cannot_be_resumed(small: Small, tmp_path: Path) -> None:
    """C03: both sides are listed, before any data is read."""
    run(small(), tmp_path)
    other = small(f"trainer.resume={tmp_path}", "model.hidden=[9]", "seed=5", "dataset.root=/nowhere")
    with pytest.raises(CheckpointError, match=r"model.hidden: \[8\] in the checkpoint, \[9\] now") as caught:
        run(other, tmp_path)
    assert "seed: 1 in the checkpoint, 5 now" in str(caught.value)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("neuron.tau=4", "neuron.tau: 2.0 in the checkpoint, 4.0 now"),
        ("rule=sltt", "rule.name: 'ottt' in the checkpoint, 'sltt' now"),
        ("surrogate=triangle", "surrogate.name: 'arctan' in the checkpoint, 'triangle' now"),
        ("loss=mse", "loss.name: 'cross_entropy' in the checkpoint, 'mse' now"),
        ("dataset.steps=5", "dataset.steps: 4 in the checkpoint, 5 now"),
        ("dataset.binary=true", "dataset.binary: False in the checkpoint, True now"),
    ],
)
def test_another_neuron_rule_loss_or_encoding_cannot_be_resumed(small: Small, word: str, text: str) -> None:
    """C03: tau = 2, resumed with tau = 4."""
    with pytest.raises(CheckpointError, match=r"start a fresh run without trainer\.resume") as caught:
        check_same_run(plain(small()), plain(small(word)))
    assert text in str(caught.value)


def test_another_update_is_warned_of(small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(small(), tmp_path)
    caplog.set_level(logging.WARNING)
    run(small(f"trainer.resume={tmp_path}", "trainer.update=1", "trainer.epochs=2"), tmp_path)
    assert "trainer.update: 'sequence' in the checkpoint, 1 now" in caplog.text


def test_a_finished_run_is_left_as_it_is(small: Small, tmp_path: Path) -> None:
    """Negative control: with one epoch more there is something to do."""
    folder = tmp_path / "a"
    summary = run(small(), folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=r"neuron\.tau"):
        run(small(f"trainer.resume={folder}", "neuron.tau=4", "trainer.epochs=2"), folder)
    assert run(small(f"trainer.resume={folder}"), folder) == summary
    assert run(small(f"trainer.resume={folder}"), tmp_path / "b") == summary
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert run(small(f"trainer.resume={folder}", "trainer.epochs=2"), folder)["epochs"] == 2


def test_what_may_differ_is_not_warned_of(small: Small) -> None:
    before = plain(small())
    now = plain(small("trainer.epochs=9", "device=cpu", "logger.log_every=3", "dataset.root=/elsewhere"))
    assert check_same_run(before, now) == []
    cosine = [plain(small("scheduler=cosine", f"trainer.epochs={epochs}")) for epochs in (2, 3)]
    assert [item.path for item in check_same_run(*cosine)] == ["trainer.epochs"]


def test_auto_finds_the_latest_unfinished_run(small: Small, tmp_path: Path) -> None:
    assert find_latest(tmp_path, plain(small())) is None
    for name, words in {"day/a": [], "day/b": ["seed=2"], "day/c": []}.items():
        run(small(*words), tmp_path / name)
    assert find_latest(tmp_path, plain(small())) is None
    (tmp_path / "day" / "a" / "summary.json").unlink()
    (tmp_path / "day" / "b" / "summary.json").unlink()
    assert find_latest(tmp_path, plain(small())) == tmp_path / "day" / "a" / "checkpoints" / "last.pt"


def test_data_errors_come_through(small: Small, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no N-MNIST train recordings"):
        run(small("dataset.root=/nowhere"), tmp_path)


def test_overfit_reaches_all(small: Small, tmp_path: Path) -> None:
    """Ten recordings again and again; negative control: with a learning rate of next to nothing it does not."""
    words = ["dataset.limit=10", "dataset.validation=0", "trainer.batch_size=10", "model.hidden=[64]"]
    run(small(*words, "trainer.epochs=40", "optimizer.lr=0.01"), tmp_path / "a")
    run(small(*words, "trainer.epochs=2", "optimizer.lr=1e-9"), tmp_path / "b")
    last = [figures(tmp_path / name)[-1]["train"]["accuracy"] for name in ("a", "b")]
    assert last[0] == 1.0
    assert last[1] < 0.5


@pytest.mark.parametrize("words", [["rule=bptt"], ["rule=sltt", "trainer.update=1"], ["model=convolutional"]])
def test_other_rules_and_models_run(small: Small, tmp_path: Path, words: list[str], nmnist: Path) -> None:
    if "model=convolutional" in words:
        from runs import composed, small_words

        kept = [word for word in small_words(nmnist) if not word.startswith("model.hidden")]
        config = load(composed(*kept, *words, "model.channels=[2]"))
    else:
        config = small(*words)
    assert run(config, tmp_path)["samples"] == 20


def test_evaluation_equals_the_run(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = run(small(), tmp_path)
    assert evaluate_checkpoint(tmp_path / "checkpoints" / "best.pt", {})["loss"] == summary["test_loss"]
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    evaluate([f"checkpoint={tmp_path}", "trainer.batch_size=3"])
    assert capsys.readouterr().out.startswith(f"test accuracy {100 * summary['test_accuracy']:.2f} % (")
    stored = json.loads((tmp_path / "checkpoints" / "evaluation.json").read_text())
    assert stored["correct"] == summary["correct"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["chekpoint=x"], "did you mean checkpoint?"),
        ([], "checkpoint: got nothing"),
        (["checkpoint=/nowhere"], "no such run folder or checkpoint"),
    ],
)
def test_wrong_evaluations(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    with pytest.raises(SystemExit) as caught:
        evaluate(words)
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_evaluation_refuses_a_knob_the_dataset_lacks(small: Small, tmp_path: Path) -> None:
    run(small(), tmp_path)
    with pytest.raises(ConfigError, match="a knob of dataset=nmnist, which lacks it"):
        evaluate_checkpoint(*parse_words([f"checkpoint={tmp_path}", "dataset.cache_dir=x"]))


def rows(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "summary.csv").open(newline="") as file:
        return {row["job"]: row for row in csv.DictReader(file)}


def test_a_table_row_for_every_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Finished, wrong, a bug (with its traceback), interrupted: each is written, and only the last one stops."""
    table = SweepTable(tmp_path)
    with Job(table, "good", ["seed=1"]) as job:
        job.finish({"seed": 1, "test_accuracy": 0.5})
    with Job(table, "wrong", ["seed=-1"]):
        raise ConfigError([Problem("seed", "-1", "a whole number >= 0")])
    assert "Traceback" not in caplog.text
    with Job(table, "bug", []):
        raise ZeroDivisionError("planted")
    assert "ZeroDivisionError: planted" in caplog.text
    assert "Traceback" in caplog.text
    for error in (Interrupted(tmp_path, "epoch 1"), KeyboardInterrupt()):
        with pytest.raises(type(error)), Job(table, "stopped", []):
            raise error
    found = rows(tmp_path)
    assert {name: row["status"] for name, row in found.items()} == {
        "good": "finished",
        "wrong": "failed",
        "bug": "failed",
        "stopped": "interrupted",
    }
    assert found["good"]["test_accuracy"] == "0.5"
    assert found["wrong"]["reason"] == "seed: got -1; legal: a whole number >= 0"
    assert found["bug"]["reason"] == "ZeroDivisionError: planted"
    assert table.failed == ["wrong", "bug"]


def test_the_row_of_a_job_that_could_not_be_composed_says_which(tmp_path: Path) -> None:
    SweepTable(tmp_path).put_lost(
        [(["rule=otttt", "seed=3", "model.hidden=[8]"], Problem("rule", "otttt", "ottt, sltt"))]
    )
    (row,) = rows(tmp_path).values()
    assert (row["status"], row["rule"], row["seed"], row["model"]) == ("failed", "otttt", "3", "")
    assert row["reason"] == "rule: got otttt; legal: ottt, sltt"


def test_a_finished_job_is_known_by_its_configuration(small: Small, tmp_path: Path) -> None:
    """H06."""
    assert finished_before(small(), tmp_path) is None
    summary = run(small(), tmp_path)
    assert finished_before(small(), tmp_path) == summary
    assert finished_before(small("logger.log_every=9"), tmp_path) == summary
    with pytest.raises(ConfigError, match=r"trainer\.epochs 1 there and 2 here"):
        finished_before(small("trainer.epochs=2"), tmp_path)


def test_an_unfinished_job_goes_on_in_its_folder(small: Small, tmp_path: Path) -> None:
    run(small(), tmp_path)
    (tmp_path / "summary.json").unlink()
    before = (tmp_path / "metrics.jsonl").read_text()
    run(small(), tmp_path, in_sweep=True)
    assert (tmp_path / "metrics.jsonl").read_text() == before
