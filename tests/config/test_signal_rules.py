"""Rules with a signal of their own, through whole runs: knobs arrive, checkpoints evaluate, runs resume."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from runs import composed

from snnlearn import RULES
from snnlearn.config import Config, ConfigError, load
from snnlearn.config.build import build_learner, build_network
from snnlearn.config.evaluate import evaluate_checkpoint
from snnlearn.config.run import run
from snnlearn.training import load_checkpoint

Small = Callable[..., Config]
KNOBS = {
    "dfa": "rule.seed=3",
    "feedback_alignment": "rule.seed=3",
    "osttp": "rule.seed=3",
    "etlp": "rule.steps=3",
    "decolle": "rule.loss=mse",
    "ell": "rule.loss=cross_entropy",
    "tess": "rule.acausal=0.0",
    "traces_propagation": "rule.trained=false",
    "opzo": "rule.scale=0.2",
}


@pytest.mark.parametrize("name", KNOBS)
def test_the_papers_knobs_arrive(name: str) -> None:
    """The YAML file says what the function's defaults say, and a knob that is turned makes another rule."""
    config, turned = (load(composed("model.hidden=4", f"rule={name}", *more)) for more in ([], [KNOBS[name]]))
    assert build_learner(config, build_network(config)).rule == RULES[name]()
    assert build_learner(turned, build_network(turned)).rule != RULES[name]()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("trainer.batch_size=1", "trainer.batch_size: got 1; legal: at least 2 while rule is traces_propagation"),
        ("model=convolutional", "rule: got traces_propagation; legal: another rule while model is convolutional"),
    ],
)
def test_traces_propagation_compares_whole_samples(word: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(composed("rule=traces_propagation", word))
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["osttp", "ell", "traces_propagation", "opzo"])
def test_a_run_evaluates_and_resumes(small: Small, tmp_path: Path, name: str) -> None:
    words = [f"rule={name}", "trainer.update=1", "scheduler=step"]
    run(small(*words, "trainer.epochs=2"), tmp_path / "whole")
    summary = run(small(*words), tmp_path / "first")
    best = tmp_path / "first" / "checkpoints" / "best.pt"
    assert evaluate_checkpoint(best, {})["loss"] == summary["test_loss"]
    run(small(*words, "trainer.epochs=2", f"trainer.resume={tmp_path / 'first'}"), tmp_path / "second")
    mine, theirs = (load_checkpoint(tmp_path / run / "checkpoints" / "last.pt")["model"] for run in ("whole", "second"))
    own = {key: value for key, value in mine.items() if ".signal." in key}
    assert len(own) == (name != "osttp")
    for key, value in mine.items():
        if isinstance(value, dict):
            assert value["drawn"] == theirs[key]["drawn"] > 0
            assert torch.equal(value["estimate"], theirs[key]["estimate"])
        else:
            assert torch.equal(value, theirs[key]), key
