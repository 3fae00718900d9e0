"""Whole runs by configuration: a label at every step, one a sequence, regression; each resumes to the same bits."""

import functools
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import composed

from snnlearn.config import Config, load
from snnlearn.config.build import build_dataset, build_learner, build_network, build_test
from snnlearn.config.evaluate import evaluate_checkpoint
from snnlearn.config.run import run, summary_line
from snnlearn.data import PatternGeneration, SequenceDataset, StepTargets, StoreRecall
from snnlearn.data.tasks.delayed_xor import DelayedXor
from snnlearn.nn import ALIF, ETRecurrent
from snnlearn.training import Interrupted, MetricLog, load_checkpoint

COMMON = ["trainer.epochs=2", "trainer.batch_size=6", "model.hidden=[6]", "logger=plain", "logger.log_every=1"]
TASKS: dict[str, tuple[type[SequenceDataset], list[str]]] = {
    "delayed_xor": (DelayedXor, ["dataset.delay=3"]),
    "store_recall": (StoreRecall, ["dataset.periods=4", "dataset.period_steps=3"]),
    "pattern_generation": (PatternGeneration, ["dataset.length=12", "dataset.drop=0.2", "dataset.validation=0.2"]),
}
every_task = pytest.mark.parametrize("name", TASKS)


def small(name: str, *words: str) -> Config:
    sizes = ["dataset.train=20", "dataset.test=8", "threads=1"]
    return load(composed(f"dataset={name}", *sizes, *TASKS[name][1], *COMMON, *words))


def figures(folder: Path) -> list[dict[str, Any]]:
    lines = MetricLog(folder / "metrics.jsonl").read()
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    model: dict[str, torch.Tensor] = load_checkpoint(folder / "checkpoints" / "last.pt")["model"]
    return model


WORDS = ["scheduler=cosine", "model.dropout=0.2", "model=recurrent", "rule=drtrl"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict[str, Any], Path]]:
    """Run each task once, whole: its summary and its folder."""

    @functools.cache
    def make(name: str) -> tuple[dict[str, Any], Path]:
        folder = tmp_path_factory.mktemp(name) / "whole"
        return run(small(name, *WORDS), folder), folder

    return make


@every_task
@pytest.mark.parametrize("stop", [3, 25, 38])
@pytest.mark.usefixtures("unchecked")
def test_interrupted_and_resumed_is_uninterrupted(
    name: str, stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Any
) -> None:
    """Ctrl-C in the first batch, and in the second epoch: to the bit, with dropout and a schedule."""
    whole, folder = uninterrupted(name)
    kind = TASKS[name][0]
    sequence, calls = kind.sequence, iter(range(1, 1000))

    def interrupting(self: SequenceDataset, index: int) -> Any:
        if next(calls) == stop:
            signal.raise_signal(signal.SIGINT)
        return sequence(self, index)

    monkeypatch.setattr(kind, "sequence", interrupting)
    with pytest.raises(Interrupted, match="epoch"):
        run(small(name, *WORDS), tmp_path / "broken")
    monkeypatch.setattr(kind, "sequence", sequence)
    broken = tmp_path / "broken"
    resumed = run(small(name, *WORDS, f"trainer.resume={broken}"), broken)
    assert figures(broken) == figures(folder)
    for figure in ("test_accuracy", "test_loss", "validation_loss", "decisions", "best_epoch"):
        assert resumed[figure] == whole[figure]
    theirs = weights(broken)
    assert all(torch.equal(value, theirs[key]) for key, value in weights(folder).items())


def test_labels_of_steps_are_counted_one_by_one(tmp_path: Path) -> None:
    """Recounted from the best checkpoint's own outputs; sequences ask at different steps."""
    config = small("store_recall")
    summary = run(config, tmp_path)
    test = build_test(config)
    assert all(isinstance(y, StepTargets) for _, y in test.epoch(1))
    net = build_network(config)
    net.load_state_dict(load_checkpoint(tmp_path / "checkpoints" / "best.pt")["model"])
    net.eval()
    asked = right = 0
    for index in range(8):
        inputs, labels = test.dataset[index]
        for module in net.modules():
            if hasattr(module, "reset"):
                module.reset()
        with torch.no_grad():
            answers = torch.stack([net(x_t[None])[0].argmax() for x_t in inputs])
        known = labels >= 0
        asked += int(known.sum())
        right += int((answers[known] == labels[known]).sum())
    assert (summary["decisions"], summary["correct"], summary["samples"]) == (asked, right, 8)
    assert summary["test_accuracy"] == right / asked
    said = f"test accuracy {100 * right / asked:.2f} % ({right} of {asked} steps) | ottt on store_recall | "
    assert summary_line(summary).startswith(said)
    assert evaluate_checkpoint(tmp_path / "checkpoints" / "best.pt", {})["correct"] == right


def test_regression_chooses_by_loss_and_reports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A learning rate that breaks the network after the first epoch makes that the best one."""
    summary = run(small("pattern_generation", "trainer.epochs=4", "optimizer.lr=0.01"), tmp_path / "a")
    epochs = [line for line in figures(tmp_path / "a") if line["kind"] == "epoch"]
    losses = [line["validation"]["loss"] for line in epochs]
    assert losses[-1] < losses[0]
    assert summary["best_epoch"] == 1 + losses.index(min(losses))
    assert summary["validation_loss"] == min(losses)
    assert (summary["test_accuracy"], summary["validation_accuracy"], summary["decisions"]) == (None, None, 0)
    assert [line["train"]["accuracy"] for line in epochs] == [None] * 4
    line = summary_line(summary)
    assert line.startswith(f"test loss {summary['test_loss']:.4f} (mean of 8) | ottt on pattern_generation")
    assert "accuracy" not in capsys.readouterr().err
    json.loads((tmp_path / "a" / "summary.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    worse = run(small("pattern_generation", "optimizer=sgd", "optimizer.lr=3"), tmp_path / "b")
    assert worse["best_epoch"] == 1


def test_the_answer_alone_carries_a_loss() -> None:
    """A task with an answer at the end counts its steps; the knob beats it, other tasks count all."""

    def last_steps(*words: str) -> int | None:
        config = load(composed("model.hidden=[2]", *words))
        loss: Any = build_learner(config, build_network(config)).loss
        return loss.last_steps  # type: ignore[no-any-return]

    assert last_steps("dataset=delayed_xor") == 5
    assert last_steps("dataset=evidence_accumulation", "dataset.dt_ms=10") == 15
    assert last_steps("dataset=delayed_xor", "loss.last_steps=2") == 2
    assert last_steps("dataset=copy") is last_steps() is None


def test_recurrent_network_by_configuration() -> None:
    words = ["dataset=copy", "model=recurrent", "model.hidden=[5,4]", "neuron=alif", "model.self_connections=true"]
    net = build_network(load(composed(*words)))
    shapes = [tuple(block.connection.recurrent_weight.shape) for block in (net.hidden_1, net.hidden_2)]
    assert shapes == [(5, 5), (4, 4)]
    assert isinstance(net.hidden_1.connection, ETRecurrent)
    assert net.hidden_1.connection.self_connections
    assert isinstance(net.hidden_2.neuron, ALIF)
    assert net(torch.zeros(3, 9)).shape == (3, 8)
    assert not build_network(load(composed(*words[:3]))).hidden_1.connection.self_connections


def test_every_task_reads_its_own_knobs() -> None:
    for name, (kind, words) in TASKS.items():
        config = small(name)
        data = build_dataset(config.dataset, "test")
        assert isinstance(data, kind)
        assert (len(data), words != []) == (8, True)
        x, _ = data[0]
        assert (len(x), x.shape[1:]) == (config.dataset.total_steps, config.dataset.input_shape)


def test_smnist_of_test_images_alone_is_called_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import gzip

    import numpy as np

    folder = tmp_path / "mnist" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (100, 28, 28)).astype(np.uint8)
    sizes = b"".join(size.to_bytes(4, "big") for size in images.shape)
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x03" + sizes + images.tobytes()))
    labels = b"\0\0\x08\x01" + (100).to_bytes(4, "big") + bytes(k % 10 for k in range(100))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(labels)
    words = [f"dataset.root={tmp_path / 'mnist'}", "dataset.permuted=true", *COMMON, "trainer.epochs=1", "threads=1"]
    with caplog.at_level("INFO"):
        summary = run(load(composed("dataset=smnist", *words)), tmp_path / "run")
    assert summary["dataset"] == "psmnist-t10k"
    assert "| ottt on psmnist-t10k | 1 epoch |" in summary_line(summary)
    assert "ottt on psmnist-t10k: 81 training, 9 validation, 10 test recordings" in caplog.text
