"""`scripts/train.py` and `scripts/evaluate.py` as a user runs them, in processes of their own.

Most of these are forked with the libraries loaded (`runs.call`); the first run of each kind, Ctrl-C and the closed pipe
start from nothing.
"""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import ROOT, call, small_words, write_nmnist

TRAIN, EVALUATE = str(ROOT / "scripts" / "train.py"), str(ROOT / "scripts" / "evaluate.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def call_from_nothing(script: str, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, script, *words]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=170)


@pytest.fixture(scope="module")
def nmnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nmnist(tmp_path_factory.mktemp("recordings") / "n=mnist")


def only_run(cwd: Path) -> Path:
    (folder,) = (path.parent for path in cwd.glob("outputs/*/*/config.yaml"))
    return folder


def figures(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def rows(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "summary.csv").open(newline="") as file:
        return {row["job"]: row for row in csv.DictReader(file)}


def test_digits_end_to_end_and_evaluation(tmp_path: Path) -> None:
    done = call_from_nothing(TRAIN, tmp_path, "debug=fast", "model.hidden=[16]")
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert re.fullmatch(
        r"test accuracy \d+\.\d\d % \(\d+ of 60\) \| ottt on digits \| 1 epoch \| \d+ s \| outputs/\S+", last
    )
    assert "SIMULATED" in done.stderr
    assert "epoch 1/1 | train loss" in done.stderr
    folder = only_run(tmp_path)
    names = {"summary.json", "metrics.jsonl", "config.yaml", "train.log", "checkpoints"}
    assert names <= {path.name for path in folder.iterdir()}
    evaluated = call_from_nothing(EVALUATE, tmp_path, f"checkpoint={folder}")
    assert evaluated.returncode == 0, evaluated.stderr
    assert evaluated.stdout.startswith(" ".join(last.split()[:3]))
    assert (folder / "checkpoints" / "evaluation.json").is_file()


def test_interrupt_and_resume(tmp_path: Path, nmnist: Path) -> None:
    """H10: Ctrl-C saves, says how to go on, ends with 130; going on that way gives the uninterrupted numbers."""
    words = [*small_words(nmnist), "trainer.epochs=60", "model.dropout=0.1", "logger=tensorboard", "logger.log_every=1"]
    (tmp_path / "broken").mkdir()
    command = [sys.executable, TRAIN, *words]
    with subprocess.Popen(
        command, cwd=tmp_path / "broken", env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 120
        saved = "broken/outputs/*/*/checkpoints/last.pt"
        while time.monotonic() < deadline and process.poll() is None and not list(tmp_path.glob(saved)):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    folder = only_run(tmp_path / "broken")
    assert "Traceback" not in said
    assert f"trainer.resume={folder}" in said
    assert not (folder / "summary.json").exists()
    epochs = 2 + max(line["epoch"] for line in figures(folder))
    resumed = call(TRAIN, tmp_path / "broken", f"trainer.resume={folder}", f"trainer.epochs={epochs}")
    assert resumed.returncode == 0, resumed.stderr
    (tmp_path / "whole").mkdir()
    whole = call(TRAIN, tmp_path / "whole", *words, f"trainer.epochs={epochs}")
    assert whole.returncode == 0, whole.stderr
    assert only_run(tmp_path / "broken") == folder  # no second folder was made
    assert figures(folder) == figures(only_run(tmp_path / "whole"))
    states = [torch.load(run / "checkpoints" / "last.pt")["model"] for run in (folder, only_run(tmp_path / "whole"))]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_a_finished_run_is_resumed_to_no_effect(tmp_path: Path, nmnist: Path) -> None:
    """Neither another neuron nor nothing at all changes a file of it, Hydra's own included."""
    first = call(TRAIN, tmp_path, *small_words(nmnist))
    assert first.returncode == 0, first.stderr
    folder = only_run(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = call(TRAIN, tmp_path, f"trainer.resume={folder}", "neuron.tau=4")
    assert other.returncode == 2
    assert "neuron.tau: 2.0 in the checkpoint, 4.0 now" in other.stderr
    assert "Traceback" not in other.stderr
    again = call(TRAIN, tmp_path, f"trainer.resume={folder}")
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout.splitlines(keepends=True)[-1]
    assert "the run is finished already, and nothing was changed" in again.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_sweep(tmp_path: Path, nmnist: Path) -> None:
    """Folder, seed and row for every job; wrong ones are named and stop nothing; a rerun repeats nothing (H06)."""
    words = ["-m", *small_words(nmnist), "rule=ottt,slt", "seed=1,2", "hydra.sweep.dir=sweep"]
    first = call(TRAIN, tmp_path, *words, "trainer.epochs=1,-1")
    assert first.returncode == 1
    assert "Traceback" not in first.stderr
    table = rows(tmp_path / "sweep")
    finished = {name: row for name, row in table.items() if row["status"] == "finished"}
    failed = {name: row for name, row in table.items() if row["status"] == "failed"}
    assert (len(finished), len(failed)) == (2, 6)
    assert sorted(row["seed"] for row in finished.values()) == ["1", "2"]
    reasons = " ".join(row["reason"] for row in failed.values())
    assert "trainer.epochs: got -1" in reasons
    assert "did you mean sltt?" in reasons
    assert all(name in first.stderr for name in failed)
    kept = {name: (tmp_path / "sweep" / name / "summary.json").stat().st_mtime_ns for name in finished}
    assert len({(tmp_path / "sweep" / name / "config.yaml").read_text() for name in finished}) == 2
    again = call(TRAIN, tmp_path, *[word.replace("ottt,slt", "ottt") for word in words], "trainer.epochs=1")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("is finished already") == 2
    assert kept == {name: (tmp_path / "sweep" / name / "summary.json").stat().st_mtime_ns for name in finished}


def test_a_bug_in_one_job_shows_its_traceback_and_stops_nothing(tmp_path: Path, nmnist: Path) -> None:
    """The bug is planted: summary.json of the first job is no JSON, which nothing of ours writes."""
    words = ["-m", *small_words(nmnist), "seed=1,2", "hydra.sweep.dir=sweep", "hydra.sweep.subdir=job${seed}"]
    (tmp_path / "sweep" / "job1").mkdir(parents=True)
    (tmp_path / "sweep" / "job1" / "summary.json").write_text("{not json")
    done = call(TRAIN, tmp_path, *words)
    assert done.returncode == 1
    assert "JSONDecodeError" in done.stderr
    assert "Traceback" in done.stderr
    assert "Traceback" in (tmp_path / "sweep" / "job1" / "train.log").read_text()
    assert {name: row["status"] for name, row in rows(tmp_path / "sweep").items()} == {
        "job1": "failed",
        "job2": "finished",
    }


def test_relative_paths_count_from_where_the_user_stands(tmp_path: Path, nmnist: Path) -> None:
    """H01: also with a change of folder; one data folder, an absolute path in the saved configuration."""
    (tmp_path / "data").symlink_to(nmnist)
    given = [word for word in small_words(nmnist) if not word.startswith("dataset.root")]
    done = call(TRAIN, tmp_path, *given, "dataset.root=./data", "hydra.job.chdir=true")
    assert done.returncode == 0, done.stderr
    assert f"root: {nmnist}" in (only_run(tmp_path) / "config.yaml").read_text().replace("'", "")
    assert {path.name for path in tmp_path.iterdir()} == {"data", "outputs"}


def test_missing_recordings_are_told_without_a_traceback(tmp_path: Path) -> None:
    done = call(TRAIN, tmp_path, "dataset=nmnist")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert str(tmp_path / "data" / "nmnist") in done.stderr
    assert "dataset=digits" in done.stderr


def test_experiment_beats_groups_and_the_command_line_beats_it(tmp_path: Path) -> None:
    """H09, with a recipe of the user's own."""
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    recipe = "# @package _global_\ndefaults:\n  - override /rule: sltt\ntrainer:\n  epochs: 3\n  batch_size: 5\n"
    (tmp_path / "mine" / "experiment" / "tiny.yaml").write_text(recipe)
    done = call(TRAIN, tmp_path, "--config-dir", "mine", "+experiment=tiny", "trainer.epochs=1", "--cfg", "job")
    assert done.returncode == 0, done.stderr
    for line in ("  name: sltt", "  epochs: 1", "  batch_size: 5"):
        assert f"{line}\n" in done.stdout


def test_scripts_are_thin() -> None:
    for script in (TRAIN, EVALUATE):
        assert len(Path(script).read_text().splitlines()) <= 40


def test_help_into_a_pipe_that_closes_early(tmp_path: Path) -> None:
    """`train.py --help | head -1`: no traceback."""
    reader, writer = os.pipe()
    os.close(reader)  # the other end has read enough
    with os.fdopen(writer, "w") as out:
        done = subprocess.run([sys.executable, TRAIN, "--help"], cwd=tmp_path, stdout=out, stderr=subprocess.PIPE)
    assert done.stderr == b""
    assert done.returncode == 0


def test_rule_comparison(tmp_path: Path) -> None:
    """The recipe's axes are a sweep; a word takes the place of one; the table is written, printed, and made again."""
    sizes = ["dataset.train=20", "dataset.test=8", "trainer.epochs=1", "model.hidden=[6]", "trainer.batch_size=6"]
    axes = ["rule=sltt,bptt", "dataset=delayed_xor", "seed=1", "hydra.sweep.dir=sweep"]
    done = call(TRAIN, tmp_path, "-m", "experiment=rule_comparison", *sizes, *axes)
    assert done.returncode == 0, done.stderr
    table = rows(tmp_path / "sweep")
    assert sorted((row["rule"], row["status"]) for row in table.values()) == [
        ("bptt", "finished"),
        ("sltt", "finished"),
    ]
    by_rule = {row["rule"]: row for row in table.values()}
    assert int(by_rule["bptt"]["kept_bytes"]) > 3 * int(by_rule["sltt"]["kept_bytes"]) > 0
    assert float(by_rule["bptt"]["fidelity"]) == pytest.approx(1, abs=1e-9)
    assert -1 <= float(by_rule["sltt"]["fidelity"]) < 0.99
    text = (tmp_path / "sweep" / "comparison.md").read_text()
    assert "| test accuracy, % | delayed_xor (chance 50.0) |" in text
    assert text in done.stdout
    again = call(TRAIN, tmp_path, "-m", "experiment=rule_comparison", *sizes, *axes)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("is finished already") == 2
    assert (tmp_path / "sweep" / "comparison.md").read_text() == text


def test_every_job_of_a_recipe_is_checked(tmp_path: Path) -> None:
    """The axes come from the recipe alone, and a value that is wrong in all of their jobs stops the sweep."""
    done = call(TRAIN, tmp_path, "-m", "experiment=rule_comparison", "dataset=copy", "model.hidden=[0]")
    assert done.returncode == 2
    assert "model.hidden: got [0]" in done.stderr
    assert list(tmp_path.iterdir()) == []
