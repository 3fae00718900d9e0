"""The command line before Hydra: names, choices, grammar, sweeps; and `--help`."""

import sys
from pathlib import Path

import pytest
from runs import CONFIGS

from snnlearn.config import Config
from snnlearn.config.cli import train
from snnlearn.config.compose import choice_values
from snnlearn.config.folders import check_folder, job_folder
from snnlearn.config.validate import choices, fields
from snnlearn.config.words import Command, inspect
from snnlearn.rules import RULES


def told(*words: str, multirun: bool = False) -> list[str]:
    return [str(problem) for problem in inspect(CONFIGS, words, multirun).problems]


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("trainr.epochs=1", "trainr.epochs: got 1, but there is no such knob"),
        ("trainr.epochs=1", "did you mean trainer.epochs?"),
        ("trainer.epoch=1", "did you mean trainer.epochs?"),
        ("sed=1", "did you mean seed?"),
        ("rule=otttt", "did you mean ottt?"),
        ("dataset=doesnotexist", "dataset: got doesnotexist; legal: one of: copy, delayed_xor, digits"),
        ("rule=null", f"rule: got null; legal: one of: {', '.join(sorted(RULES))}"),
        ("experiment=nmnist_otttt", "did you mean nmnist_ottt?"),
        ("experiment=null", "leave experiment out for none"),
        ("optimizer.lr=0.1,0.01", "for a sweep put -m before it"),
        ("neuron.adaptation=1", "it belongs to neuron=alif"),
        ("model.channels=[4]", "it belongs to model=convolutional"),
        ("seed", "seed: got words that do not parse; legal: key=value"),
        ("a=b=c[", "words that do not parse"),
        ("hydra.rum.dir=x", "hydra.rum.dir: got x, but there is no such knob"),
    ],
)
def test_wrong_words_are_told(word: str, text: str) -> None:
    problems = told(word)
    assert len(problems) == 1
    assert text in problems[0]


@pytest.mark.parametrize(
    "words",
    [
        ["optimizer.lr=1e-3"],
        ["dataset=nmnist", "dataset.root='a=b,c'"],
        ["neuron=alif", "neuron.adaptation=1"],
        ["experiment=nmnist_ottt", "trainer.epochs=1"],
        ["+experiment=quickstart"],
        ["experiment=[quickstart,nmnist_ottt]"],
        ["debug=fast"],
        ["hydra.run.dir=/tmp/x", "hydra.job.chdir=true"],
        ["model.hidden=[8,16]"],
        ["++trainer.epochs=3"],
    ],
)
def test_right_words_pass(words: list[str]) -> None:
    assert told(*words) == []


def test_all_wrong_words_are_told_together() -> None:
    assert len(told("trainr.epochs=1", "rule=x", "seed=1,2", "[")) == 4


def test_a_sweep_loses_only_the_jobs_of_a_wrong_choice() -> None:
    command = inspect(CONFIGS, ["rule=ottt,otttt", "seed=1,2"], multirun=True)
    assert command.problems == []
    assert command.overrides == ["rule=ottt", "seed=1,2"]
    assert command.jobs() == [["rule=ottt", "seed=1"], ["rule=ottt", "seed=2"]]
    assert [job for job, _ in command.lost()] == [["rule=otttt", "seed=1"], ["rule=otttt", "seed=2"]]
    assert "did you mean ottt?" in str(command.lost()[0][1])


def test_a_sweep_of_wrong_choices_only_is_refused() -> None:
    command = inspect(CONFIGS, ["rule=a,b"], multirun=True)
    assert len(command.problems) == 2


def test_ranges_sweep() -> None:
    assert inspect(CONFIGS, ["seed=range(1,4)"], multirun=True).jobs() == [["seed=1"], ["seed=2"], ["seed=3"]]
    assert "can be counted" in told("optimizer.lr=interval(0,1)", multirun=True)[0]


def test_no_words_is_one_job() -> None:
    assert Command([], []).jobs() == [[]]


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["scripts/train.py", *words])
    with pytest.raises(SystemExit) as caught:
        train(CONFIGS)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_exit_code_and_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trainr.epochs=1", "trainer.epochs=-1", "neuron.tau=0.5", "rule=null"]
    assert run(monkeypatch, *words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    for path in ("trainr.epochs", "trainer.epochs", "neuron.tau", "rule"):
        assert f"\n  {path}: got " in said.err


def test_a_sweep_in_which_every_job_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "-m", "trainer.epochs=-1", "seed=1,2") == 2
    assert capsys.readouterr().err.count("trainer.epochs: got -1") == 1


def test_missing_checkpoint_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "dataset=nmnist", "trainer.resume=nowhere") == 2
    said = capsys.readouterr().err
    assert "nowhere: no such run folder or checkpoint" in said
    assert "N-MNIST" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["hydra.run.dir=/proc/nope"], ["-m", "seed=1,2", "hydra.sweep.dir=file/sweep"]])
def test_an_output_folder_that_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert run(monkeypatch, *words) == 2
    said = capsys.readouterr()
    key, _, folder = words[-1].partition("=")
    assert said.err.startswith(
        f"error: {key}: got {tmp_path / folder}; legal: a folder that can be made and written to"
    )
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_looking_at_an_output_folder_leaves_none_behind(tmp_path: Path) -> None:
    check_folder("hydra.run.dir", tmp_path / "a" / "b")
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--epochs", "3"], "--epochs: got no option of this script; legal: key=value; did you mean trainer.epochs=3?"),
        (["seed=1", "--trainer.epoch=3"], "did you mean trainer.epochs=3?"),
        (["--batch-size", "8", "seed=1"], "did you mean trainer.batch_size=8?"),
        (["--dataset", "nmnist"], "did you mean dataset=nmnist?"),
        (["--epochs"], "did you mean trainer.epochs=VALUE?"),
        (["--qqqqqq", "3"], "--help lists every knob"),
    ],
)
def test_unknown_options_are_told_as_knobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], hint: str
) -> None:
    assert run(monkeypatch, *words) == 2
    said = capsys.readouterr()
    assert hint in said.err
    assert "knobs are written key=value" in said.err
    assert said.out == ""


def test_a_sweep_whose_first_job_is_wrong_gets_as_far_as_its_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert run(monkeypatch, "-m", "neuron=lif,alif", "neuron.adaptation=1", "hydra.sweep.dir=file/sweep") == 2
    assert capsys.readouterr().err.startswith("error: hydra.sweep.dir: got ")


def test_help_shows_every_knob(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--help") == 0
    text = capsys.readouterr().out
    values = choice_values(CONFIGS)
    for group, kind, knob in fields(Config):
        members = choices(kind).values() if knob is None else []
        for member in members:
            for name, _, entry in fields(member):
                if name != "name":
                    assert f"\n  {group}.{name} = " in text
                assert entry is not None
                assert entry.help in " ".join(text.split())
    assert "neuron.tau = 2.0\n" in text
    assert "Legal: a number > 0" in text
    for choice in values:
        assert choice.split("/")[1] in text
    recipes = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))
    assert f"experiment={'|'.join(recipes)}" in text


def test_job_folders() -> None:
    assert job_folder("rule=ottt,seed=1") == "rule=ottt,seed=1"
    assert "/" not in job_folder("dataset.root=/data/x")
    assert job_folder("a=/x/y") != job_folder("a=/x-y")
    assert len(job_folder("a" * 500)) < 120
    assert job_folder("a" * 500) != job_folder("a" * 501)
