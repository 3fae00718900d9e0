"""Convolutions under rules per synapse in the configuration: one chunk for the sequence, or `rule.truncate_trace`."""

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from runs import CONFIGS, composed, small_words

from snnlearn.config import Config, load, plain, validate
from snnlearn.config.build import build_learner, build_network, build_rule
from snnlearn.config.resume import check_same_run, differences, only_if_relevant, stored_config
from snnlearn.config.run import run
from snnlearn.config.schema_rules import PER_SYNAPSE, RuleConfig
from snnlearn.config.validate import choices, fields
from snnlearn.engine import auto_chunk
from snnlearn.training import load_checkpoint
from snnlearn.training.checkpoint import save_checkpoint
from snnlearn.training.errors import CheckpointError

Convolved = Callable[..., Config]
CONVOLUTION = ["model=convolutional", "model.channels=[2]", "neuron.threshold=0.3", "trainer.batch_size=10"]
BASE = composed(*CONVOLUTION)  # composing takes longer than a run


def changed(values: dict[str, Any], *words: str) -> dict[str, Any]:
    """The configuration with other values, or the shipped choice of another rule."""
    values = copy.deepcopy(values)
    for word in words:
        path, _, value = word.partition("=")
        group, _, name = path.partition(".")
        if name:
            values[group][name] = yaml.safe_load(value)
        else:
            values[group] = dict(OmegaConf.load(CONFIGS / group / f"{value}.yaml"))
    return values


@pytest.fixture(scope="module")
def short(nmnist: Path) -> dict[str, Any]:
    """A short run of a convolution over four steps."""
    words = [word for word in small_words(nmnist) if not word.startswith(("model.", "trainer.batch_size"))]
    return composed(*words, *CONVOLUTION)


@pytest.fixture
def convolved(short: dict[str, Any]) -> Convolved:
    """Make a checked configuration of that run with other values."""
    return lambda *words: load(changed(short, *words))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    model: dict[str, torch.Tensor] = load_checkpoint(folder / "checkpoints" / "last.pt")["model"]
    return model


def moved(one: Path, other: Path) -> float:
    theirs = weights(other)
    return max(float((value - theirs[name]).abs().max()) for name, value in weights(one).items())


def told(*words: str) -> dict[str, str]:
    return {problem.path: str(problem) for problem in validate(changed(BASE, *words))}


def test_the_knob_is_where_the_rules_per_synapse_are() -> None:
    having = {name for name, kind in choices(RuleConfig).items() if "truncate_trace" in {f[0] for f in fields(kind)}}
    assert having == set(PER_SYNAPSE)
    for name in choices(RuleConfig):
        shipped = dict(OmegaConf.load(CONFIGS / "rule" / f"{name}.yaml"))
        assert shipped.get("truncate_trace") is (False if name in PER_SYNAPSE else None)
    assert set(told("rule=ottt", "rule.truncate_trace=true")) == {"rule.truncate_trace"}


@pytest.mark.parametrize("name", PER_SYNAPSE)
def test_whatever_passes_the_checks_can_be_built(name: str) -> None:
    """Each rule: refused at one step, built where one chunk is the sequence or where it truncates, and says which."""
    words = ["model.channels=[2, 3]", f"rule={name}"]
    if name == "eprop":
        assert "random or spatial while model is convolutional" in told("trainer.chunk=20", *words)["rule.broadcast"]
        words.append("rule.broadcast=random")
    assert set(told(*words)) == {"trainer.chunk"}
    for more in (["trainer.chunk=20"], ["trainer.chunk=auto"], ["rule.truncate_trace=true"]):
        config = load(changed(BASE, *words, *more))
        truncates = more == ["rule.truncate_trace=true"]
        assert build_rule(config).truncate_trace == truncates
        row = build_learner(config, build_network(config)).report["convolution_1.connection.weight"]
        assert ("what came before each chunk is dropped" in row.why) == truncates
        assert not (row.exact and truncates)


def test_what_is_refused_is_told_at_once_with_the_way_out() -> None:
    found = told("rule=drtrl", "trainer.chunk=4", "trainer.update=4", "optimizer.lr=-1")
    assert set(found) == {"trainer.chunk", "trainer.update", "optimizer.lr"}
    assert found["trainer.chunk"] == (
        "trainer.chunk: got 4; legal: auto, or at least 20 (dataset.steps), while rule is drtrl and model is "
        "convolutional, whose trace is kept within one chunk alone; write trainer.chunk=20; or "
        "rule.truncate_trace=true drops what came before each chunk"
    )
    assert "legal: sequence, or 20 (dataset.steps), while" in found["trainer.update"]
    assert "rule.truncate_trace=true" in found["trainer.update"]
    assert set(told("rule=drtrl", "trainer.chunk=auto", "trainer.update=4")) == {"trainer.update"}
    for more in (["trainer.chunk=20", "trainer.update=20"], ["trainer.chunk=64"], ["trainer.chunk=auto"]):
        assert told("rule=drtrl", *more) == {}
    unknown = ["rule=drtrl", "dataset.by=duration", "dataset.steps=null"]
    problem = told(*unknown, "trainer.chunk=20")["trainer.chunk"]
    assert "legal: auto while rule is drtrl" in problem
    assert "dataset.steps=T with trainer.chunk=T" in problem
    assert told(*unknown, "trainer.chunk=auto") == {}
    assert set(told(*unknown, "trainer.chunk=auto", "trainer.update=2")) == {"trainer.update"}
    for more in ([], ["trainer.chunk=2", "trainer.update=4"], ["trainer.chunk=auto", "trainer.update=4"]):
        assert told("rule=drtrl", "rule.truncate_trace=true", *more) == {}
    assert set(told("rule=drtrl", "rule.truncate_trace=3")) == {"rule.truncate_trace"}


def test_one_chunk_is_exact_and_shorter_ones_truncate(
    convolved: Convolved, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Truncation over the whole sequence drops nothing; in shorter chunks it is another run, and says so."""
    caplog.set_level(logging.INFO)
    watched = "logger.fidelity_every=1"
    whole = run(convolved("rule=drtrl", "trainer.chunk=4", watched), tmp_path / "whole")
    assert "is dropped" not in caplog.text
    auto = run(convolved("rule=drtrl", "trainer.chunk=auto"), tmp_path / "auto")
    assert auto["chunk"] == whole["chunk"] == 4
    assert auto["kept_bytes"] == whole["kept_bytes"]
    assert len([line for line in caplog.messages if line.startswith("chunk=4: the whole sequence")]) == 1
    truncate = "rule.truncate_trace=true"
    run(convolved("rule=drtrl", truncate, "trainer.chunk=4"), tmp_path / "nothing_dropped")
    cut = run(convolved("rule=drtrl", truncate, "trainer.chunk=2", watched), tmp_path / "cut")
    assert "what came before each chunk is dropped, by truncate_trace=True" in caplog.text
    assert moved(tmp_path / "whole", tmp_path / "auto") == moved(tmp_path / "whole", tmp_path / "nothing_dropped") == 0
    assert moved(tmp_path / "whole", tmp_path / "cut") > 1e-4
    assert whole["fidelity"] > cut["fidelity"] + 1e-6


def test_recordings_of_any_length_and_truncation_up_to_an_update(convolved: Convolved, tmp_path: Path) -> None:
    lasting = ["dataset.by=duration", "dataset.bin_us=60000", "dataset.steps=null", "trainer.chunk=auto"]
    summary = run(convolved("rule=drtrl", *lasting, "logger.fidelity_every=1"), tmp_path / "lasting")
    assert summary["chunk"] == 5
    assert summary["kept_bytes"] > 0
    updates = ["rule=drtrl", "rule.truncate_trace=true", "trainer.update=2"]
    assert run(convolved(*updates, "trainer.chunk=auto"), tmp_path / "auto")["chunk"] == 2
    run(convolved(*updates, "trainer.chunk=2"), tmp_path / "two")
    assert moved(tmp_path / "auto", tmp_path / "two") == 0


def test_the_chunk_belongs_to_a_run_that_truncates(convolved: Convolved, tmp_path: Path) -> None:
    """What is dropped depends on it; a run folder from before the knob truncates nothing."""
    lossy = ["rule=drtrl", "rule.truncate_trace=true"]
    cut, other = (plain(load(changed(BASE, *lossy, f"trainer.chunk={chunk}"))) for chunk in (4, 5))
    with pytest.raises(CheckpointError, match=r"another run:\n  trainer.chunk: 4 in the checkpoint, 5 now"):
        check_same_run(cut, other)
    (found,) = differences(cut, other)
    assert only_if_relevant(found, other)
    run(convolved("rule=drtrl", "trainer.chunk=4"), tmp_path)
    path = tmp_path / "checkpoints" / "last.pt"
    content = load_checkpoint(path)
    del content["record"]["config"]["rule"]["truncate_trace"]
    save_checkpoint(path, content)
    assert check_same_run(stored_config(path), plain(convolved("rule=drtrl", "trainer.chunk=8"))) == []
    content["record"]["config"]["rule"] = {"name": "bptt"}
    save_checkpoint(path, content)
    assert stored_config(path)["rule"] == {"name": "bptt"}


def test_a_resumed_run_keeps_the_layout_that_was_chosen(
    convolved: Convolved, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a second measurement would choose: the numbers are those of one run, to the bit."""
    prefers = True

    def seconds(_: Any, chunk: int, channels_last: bool = False) -> float:
        return (1.0 if channels_last == prefers else 4.0) + abs(chunk - 2)

    monkeypatch.setattr(auto_chunk._Trial, "seconds", seconds)
    words = ["rule=ottt", "trainer.chunk=auto", "model.channels=[3, 4]", "optimizer=sgd", "optimizer.clip_norm=1.0"]
    whole = run(convolved(*words, "trainer.epochs=2"), tmp_path / "whole")
    first = run(convolved(*words), tmp_path / "begun")
    assert first["channels_last"] is whole["channels_last"] is True
    prefers = False
    begun = tmp_path / "begun"
    caplog.set_level(logging.INFO)
    again = run(convolved(*words, "trainer.epochs=2", f"trainer.resume={begun}"), begun)
    assert "weights with channels last: chosen before" in caplog.text
    assert again["channels_last"] is True
    content = load_checkpoint(begun / "checkpoints" / "last.pt")
    assert content["channels_last"] is True
    for name, value in weights(tmp_path / "whole").items():
        assert torch.equal(content["model"][name], value)
        assert content["model"][name].stride() == value.stride()
    assert run(convolved(*words), tmp_path / "other")["channels_last"] is False
