"""The knob `trainer.chunk`: what it goes with, that it arrives, and that a run with it is the same run."""

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from runs import CONFIGS, composed

from snnlearn.config import Config, ConfigError, load, plain, validate
from snnlearn.config.build import build_learner, build_network
from snnlearn.config.evaluate import evaluate_checkpoint
from snnlearn.config.resume import check_same_run, differences, only_if_relevant
from snnlearn.config.run import run
from snnlearn.config.schema import RuleConfig
from snnlearn.config.validate import choices
from snnlearn.engine import OnlineLearner, auto_chunk
from snnlearn.engine.chunked import refuse_unfoldable
from snnlearn.training import load_checkpoint
from snnlearn.training.checkpoint import save_checkpoint

Small = Callable[..., Config]
pytestmark = pytest.mark.usefixtures("unchecked")
RULES = tuple(choices(RuleConfig))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    model: dict[str, torch.Tensor] = load_checkpoint(folder / "checkpoints" / "last.pt")["model"]
    return model


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("trainer.chunk=0", "trainer.chunk: got 0; legal: a whole number >= 1, or auto"),
        ("trainer.chunk=1.5", "trainer.chunk: got 1.5; legal: a whole number >= 1"),
        ("trainer.chunk=true", "trainer.chunk: got True"),
        ("trainer.chunk=null", "trainer.chunk: got None"),
    ],
)
def test_illegal_lengths_are_told(word: str, told: str) -> None:
    (problem,) = validate(composed(word))
    assert told in str(problem)


def test_updates_come_where_a_chunk_ends() -> None:
    (problem,) = validate(composed("trainer.chunk=4", "trainer.update=6"))
    assert str(problem) == (
        "trainer.update: got 6; legal: sequence, or a multiple of trainer.chunk, which is 4; weights change only where "
        "a chunk ends"
    )
    for update in (4, 8, "sequence"):
        assert validate(composed("trainer.chunk=4", f"trainer.update={update}")) == []
    assert validate(composed("trainer.chunk=64")) == []  # longer than the sequence: all of it at once
    told = {problem.path for problem in validate(composed("trainer.chunk=4", "trainer.update=6", "neuron.tau=0.5"))}
    assert told == {"trainer.update", "neuron.tau"}
    (problem,) = validate(composed("trainer.chunk=2", "trainer.update=1", "optimizer.fptt_alpha=0.1"))
    assert problem.path == "trainer.update"


@pytest.mark.parametrize("rule", ["bptt", "tbptt"])
def test_rules_that_go_step_by_step(rule: str) -> None:
    (problem,) = validate(composed(f"rule={rule}", "trainer.chunk=4"))
    assert problem.path == "trainer.chunk"
    assert f"while rule is {rule}, which" in problem.legal
    assert str(problem).endswith("takes trainer.chunk")
    assert validate(composed(f"rule={rule}", "trainer.chunk=auto")) == []


@pytest.mark.parametrize("model", ["mlp", "recurrent", "convolutional"])
def test_whatever_passes_the_checks_can_be_folded(model: str) -> None:
    """With dropout, where the rule allows it: nothing that is built from a legal configuration is refused later."""
    size = "model.channels=[2]" if model == "convolutional" else "model.hidden=[4]"
    values = composed(f"model={model}", size, "model.readout=static", "dataset=delayed_xor", "trainer.chunk=2")
    if model == "convolutional":
        values["dataset"] = composed()["dataset"]
    built = 0
    for rule in RULES:
        values["rule"] = dict(OmegaConf.load(CONFIGS / "rule" / f"{rule}.yaml"))
        values["model"] |= {"dropout": 0.0 if rule == "ndot" else 0.1, "readout": "static"}
        if validate(values):
            continue
        learner = learner_of(values)
        if learner is None:  # a rule that wants a readout with dynamics
            values["model"]["readout"] = "leaky"
            learner = learner_of(values)
        assert learner is not None, rule
        refuse_unfoldable(learner.net)
        assert learner.chunk == 2
        built += 1
    assert built >= 12


def learner_of(values: dict[str, Any]) -> OnlineLearner | None:
    """The learner of a legal configuration, None where network and rule do not go together, whatever the chunk."""
    config = load(values)
    try:
        return build_learner(config, build_network(config))
    except ConfigError:
        alone = load({**values, "trainer": {**values["trainer"], "chunk": 1}})
        with pytest.raises(ConfigError):
            build_learner(alone, build_network(alone))
        return None


@pytest.mark.parametrize("words", [["rule=ottt"], ["rule=eprop", "model=recurrent", "neuron=alif"]])
def test_a_run_in_chunks_is_the_same_run(small: Small, tmp_path: Path, words: list[str]) -> None:
    """Negative control: another seed is another run."""
    kept = [*words, "model.dropout=0.1", "model.hidden=[8]", "neuron.threshold=0.3", "trainer.epochs=2"]
    summaries = {}
    for name, more in {"one": [], "three": ["trainer.chunk=3"], "control": ["seed=2"]}.items():
        summaries[name] = run(small(*kept, *more), tmp_path / name)
    one, three, control = (weights(tmp_path / name) for name in ("one", "three", "control"))
    for name, value in one.items():
        torch.testing.assert_close(three[name], value, rtol=1e-4, atol=1e-5)
    assert max(float((control[name] - value).abs().max()) for name, value in one.items()) > 1e-2
    assert summaries["three"]["test_accuracy"] == summaries["one"]["test_accuracy"]
    assert math.isclose(summaries["three"]["test_loss"], summaries["one"]["test_loss"], rel_tol=1e-4)


def test_a_run_goes_on_in_other_chunks(small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is the same run, so nothing is warned of; a finished job is known by its configuration all the same."""
    run(small("trainer.epochs=2"), tmp_path / "whole")
    run(small(), tmp_path / "begun")
    caplog.set_level(logging.WARNING)
    run(small("trainer.epochs=2", f"trainer.resume={tmp_path / 'begun'}", "trainer.chunk=4"), tmp_path / "begun")
    assert "resumed with another value" not in caplog.text
    begun = weights(tmp_path / "begun")
    for name, value in weights(tmp_path / "whole").items():
        torch.testing.assert_close(begun[name], value, rtol=1e-4, atol=1e-5)
    found = list(differences(plain(small()), plain(small("trainer.chunk=4"))))
    assert [item.path for item in found] == ["trainer.chunk"]
    assert not any(only_if_relevant(item, plain(small())) for item in found)


def test_a_run_from_before_the_knob_can_be_resumed_and_evaluated(small: Small, tmp_path: Path) -> None:
    summary = run(small(), tmp_path)
    for path in (tmp_path / "checkpoints").glob("*.pt"):
        content = load_checkpoint(path)
        del content["record"]["config"]["trainer"]["chunk"]
        save_checkpoint(path, content)
        assert evaluate_checkpoint(path, {})["loss"] == pytest.approx(summary["test_loss"])
    assert check_same_run(content["record"]["config"], plain(small("trainer.chunk=4"))) == []
    again = run(small("trainer.epochs=2", f"trainer.resume={tmp_path}", "trainer.chunk=2"), tmp_path)
    assert again["epochs"] == 2
    assert json.loads((tmp_path / "summary.json").read_text())["epochs"] == 2


@pytest.mark.parametrize("words", [["rule=drtrl"], ["rule=bptt"]])
def test_the_length_may_be_left_to_a_measurement(
    small: Small, tmp_path: Path, words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run(small(*words, "trainer.chunk=auto", "neuron.threshold=0.3"), tmp_path / "auto")
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("chunk=")]
    run(small(*words, "neuron.threshold=0.3"), tmp_path / "one")
    assert ("keeps its graph" in line) == (words == ["rule=bptt"])
    one = weights(tmp_path / "one")
    for name, value in weights(tmp_path / "auto").items():
        torch.testing.assert_close(one[name], value, rtol=1e-4, atol=1e-5)


def test_a_resumed_run_goes_on_in_the_chunks_that_were_chosen(
    small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a second measurement would choose: the numbers are those of one run, to the bit."""
    words = ["rule=drtrl", "trainer.chunk=auto", "neuron.threshold=0.3"]
    monkeypatch.setattr(auto_chunk, "best_of", lambda seconds: 4)
    whole = run(small(*words, "trainer.epochs=2"), tmp_path / "whole")
    first = run(small(*words), tmp_path / "begun")
    assert first["chunk"] == whole["chunk"] == 4
    monkeypatch.setattr(auto_chunk, "best_of", lambda seconds: 2)
    caplog.set_level(logging.INFO)
    begun = run(small(*words, "trainer.epochs=2", f"trainer.resume={tmp_path / 'begun'}"), tmp_path / "begun")
    assert "chunk=4: chosen before" in caplog.text
    assert begun["chunk"] == 4
    for name, value in weights(tmp_path / "whole").items():
        assert torch.equal(weights(tmp_path / "begun")[name], value)
    other = run(small(*words, "trainer.chunk=2"), tmp_path / "other")
    assert other["chunk"] == 2
    one = run(small("rule=drtrl", "neuron.threshold=0.3"), tmp_path / "one")
    assert one["chunk"] == 1
    assert first["kept_bytes"] < one["kept_bytes"]  # its bytes: a chunk that is the sequence keeps no trace per synapse
    assert other["kept_bytes"] not in (first["kept_bytes"], one["kept_bytes"])
