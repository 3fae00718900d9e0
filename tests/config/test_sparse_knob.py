"""The knob `dataset.sparse`: the same run without a frame ever made, and what it does not go with."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import composed

from snnlearn.config import Config, load, plain, validate
from snnlearn.config.evaluate import evaluate_checkpoint
from snnlearn.config.fidelity import FidelityOptions, measure
from snnlearn.config.resume import check_same_run, stored_config
from snnlearn.config.run import run
from snnlearn.data import Binning, SparseSequence
from snnlearn.functional import sparse_map
from snnlearn.rules import OTTT
from snnlearn.training import load_checkpoint
from snnlearn.training.checkpoint import save_checkpoint

Small = Callable[..., Config]
SPARSE = ["dataset.sparse=true", "neuron.threshold=0.3"]
DENSE = ["dataset.sparse=false", "neuron.threshold=0.3"]


@pytest.fixture(autouse=True)
def _pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sparse products be chosen however few the rows: these are tiny."""
    monkeypatch.setattr(sparse_map, "FEW_ROWS", 0)


def no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise AssertionError("a frame was made")

    monkeypatch.setattr(Binning, "frames", refused)
    monkeypatch.setattr(SparseSequence, "to_dense", refused)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    model: dict[str, torch.Tensor] = load_checkpoint(folder / "checkpoints" / "last.pt")["model"]
    return model


def close(one: Path, other: Path) -> None:
    theirs = weights(other)
    for name, value in weights(one).items():
        torch.testing.assert_close(theirs[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "words",
    [
        ["rule=ottt", "trainer.chunk=2", "trainer.epochs=2"],
        ["rule=traces_propagation"],
        ["rule=eprop", "trainer.chunk=auto", "logger.fidelity_every=1"],
    ],
)
def test_the_run_is_the_same(
    small: Small,
    tmp_path: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Training, validation, test and a later evaluation."""
    dense = run(small(*words, *DENSE), tmp_path / "dense")
    no_frames(monkeypatch)
    caplog.set_level(logging.INFO, "snnlearn.nn")
    sparse = run(small(*words, *SPARSE), tmp_path / "sparse")
    close(tmp_path / "dense", tmp_path / "sparse")
    assert sparse["test_accuracy"] == dense["test_accuracy"]
    assert sparse["test_loss"] == pytest.approx(dense["test_loss"], rel=1e-4)
    assert evaluate_checkpoint(tmp_path / "sparse/checkpoints/best.pt", {})["loss"] == sparse["test_loss"]
    assert any("sparse products" in line.getMessage() for line in caplog.records)


def test_what_it_does_not_go_with() -> None:
    """All at once, each with what to write instead, and nothing where it is off."""
    assert validate(composed("dataset.sparse=true", "dataset=nmnist")) == []
    words = ["model=convolutional", "dataset.shift=2"]
    assert validate(composed(*words)) == []
    told = [str(problem) for problem in validate(composed(*words, "dataset.sparse=true"))]
    assert told == [
        "model: got convolutional; legal: mlp while dataset.sparse is true; the first layer of convolutional takes "
        "dense steps; or write dataset.sparse=false",
        "dataset.shift: got 2; legal: 0 while dataset.sparse is true; it moves frames; or write dataset.sparse=false",
    ]
    (problem,) = validate(composed("model=recurrent", "dataset.sparse=true"))
    assert problem.path == "model"
    (problem,) = validate(composed("dataset.sparse=1"))
    assert problem.path == "dataset.sparse"


def test_another_seed_is_another_run(small: Small, tmp_path: Path) -> None:
    """A control of the test above."""
    losses = [run(small(*SPARSE, f"seed={n}"), tmp_path / str(n))["test_loss"] for n in (1, 2)]
    assert losses[0] != pytest.approx(losses[1], rel=1e-4)


def test_a_run_goes_on_with_events(small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is the same run; one from before the knob is resumed and evaluated as what it was, a task's too."""
    run(small(*DENSE, "trainer.epochs=2"), tmp_path / "whole")
    run(small(*DENSE), tmp_path / "begun")
    for path in (tmp_path / "begun/checkpoints").glob("*.pt"):
        content = load_checkpoint(path)
        del content["record"]["config"]["dataset"]["sparse"]
        save_checkpoint(path, content)
        assert stored_config(path)["dataset"]["sparse"] is False
    caplog.set_level(logging.WARNING)
    words = [*SPARSE, "trainer.epochs=2", "trainer.chunk=2", f"trainer.resume={tmp_path / 'begun'}"]
    run(small(*words), tmp_path / "begun")
    assert "resumed with another value" not in caplog.text
    close(tmp_path / "whole", tmp_path / "begun")
    assert check_same_run(plain(small(*DENSE)), plain(small(*SPARSE))) == []
    content["record"]["config"] = plain(load(composed("dataset=delayed_xor")))
    save_checkpoint(path, content)
    assert "sparse" not in stored_config(path)["dataset"]


def test_fidelity_is_measured_on_the_frames(small: Small) -> None:
    options = FidelityOptions(
        rules=None, checkpoint=None, sequences=4, lengths=None, bias_pairs=None, bias_sigma=0.05, folder=None
    )
    cosines = []
    for words in (DENSE, SPARSE):
        report, _ = measure(options, small(*words), {"ottt": OTTT()})
        cosines.append([row.agreement.cosine for row in report])
    assert cosines[0] == cosines[1]


def test_real_recordings_in_bins_of_a_millisecond(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = shared_data / "nmnist"
    if not any(root.rglob("*.bin")):
        pytest.skip(f"no N-MNIST recordings in {root}")
    no_frames(monkeypatch)
    caplog.set_level(logging.INFO, "snnlearn.nn")
    words = ["dataset=nmnist", f"dataset.root='{root}'", "dataset.by=duration", "dataset.bin_us=1000"]
    words += ["dataset.steps=100", "dataset.limit=10", "dataset.validation=0", "dataset.sparse=true"]
    words += ["debug=fast", "trainer.chunk=50", "model.hidden=[16]", "trainer.batch_size=10", "threads=1"]
    summary = run(load(composed(*words)), tmp_path)
    assert summary["samples"] == 10
    assert any("sparse products" in line.getMessage() for line in caplog.records)
