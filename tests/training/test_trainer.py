"""The trainer: resume to the same bits, interruption, batches that are not finite or empty, warnings."""

import json
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from snnlearn import FPTT
from snnlearn.training import CheckpointError, Interrupted, MetricLog, Trainer, TrainingError, load_checkpoint

MakeTrainer = Callable[..., Trainer]


def figures(trainer: Trainer) -> list[dict[str, Any]]:
    """Lines of metrics without the times, which differ between any two runs."""
    return [{key: value for key, value in line.items() if key != "seconds"} for line in trainer.metrics.read()]


def same_state(first: Trainer, second: Trainer) -> bool:
    ours, theirs = first.learner.net.state_dict(), second.learner.net.state_dict()
    moments = [trainer.learner.optimizer.state_dict()["state"] for trainer in (first, second)]
    equal = all(torch.equal(ours[name], theirs[name]) for name in ours)
    return equal and all(
        torch.equal(moments[0][index][name], moments[1][index][name])
        for index in moments[0]
        for name in moments[0][index]
    )


def test_learns_and_writes(trainer_in: MakeTrainer) -> None:
    trainer = trainer_in(epochs=12)
    trainer.fit()
    lines = figures(trainer)
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert len(epochs) == 12
    assert len(lines) == 12 + 12 * 3  # ten recordings in batches of four
    assert epochs[-1]["validation"]["loss"] < 0.8 * epochs[0]["validation"]["loss"]
    assert [line["step"] for line in epochs] == [3 * epoch for epoch in range(1, 13)]
    assert {"firing_rates", "trace_norms", "gradient_norm", "accuracy_last"} <= epochs[0]["train"].keys()
    assert trainer.position.best == max(line["validation"]["accuracy"] for line in epochs)
    assert load_checkpoint(trainer.best)["position"]["best_epoch"] == trainer.position.best_epoch
    stored = load_checkpoint(trainer.best)["model"]
    trainer.test(trainer.validation)  # type: ignore[arg-type]
    assert all(torch.equal(value, stored[name]) for name, value in trainer.learner.net.state_dict().items())


def stop_after(count: int) -> Callable[[int], None]:
    """Send this process a Ctrl-C while the given recording is read."""
    seen = iter(range(1, 1000))

    def visit(index: int) -> None:
        if next(seen) == count:
            signal.raise_signal(signal.SIGINT)

    return visit


@pytest.mark.parametrize("recordings", [1, 6, 10, 15, 20])
def test_interrupted_and_resumed_is_uninterrupted(trainer_in: MakeTrainer, recordings: int) -> None:
    """To the bit: weights, optimizer, learning rate and every figure; Ctrl-C in the first batch, inside an
    epoch, in its last batch (so before validation) and in the last batch of all."""
    whole = trainer_in("whole")
    whole.fit()
    broken = trainer_in("broken", visit=stop_after(recordings))
    with pytest.raises(Interrupted, match="epoch"):
        broken.fit()
    assert broken.position.step < 7
    torch.rand(100)  # another process would have another state
    resumed = trainer_in("broken")
    resumed.resume(resumed.last)
    assert resumed.position.step == broken.position.step > 0
    resumed.fit()
    assert same_state(whole, resumed)
    assert figures(whole) == figures(resumed)
    assert whole.learner.optimizer.param_groups[0]["lr"] == resumed.learner.optimizer.param_groups[0]["lr"]


def test_resume_that_forgets_something_is_noticed(trainer_in: MakeTrainer) -> None:
    """Negative control: without the random state the dropout masks differ, and so does everything after."""
    whole = trainer_in("whole")
    whole.fit()
    broken = trainer_in("broken", visit=stop_after(6))
    with pytest.raises(Interrupted):
        broken.fit()
    resumed = trainer_in("broken")
    resumed.resume(resumed.last)
    torch.manual_seed(99)
    resumed.fit()
    assert not same_state(whole, resumed)


def test_more_epochs_after_the_end(trainer_in: MakeTrainer) -> None:
    whole = trainer_in("whole", epochs=4)
    whole.fit()
    trainer_in("short", epochs=2).fit()
    longer = trainer_in("short", epochs=4)
    longer.resume(longer.last)
    longer.fit()
    assert same_state(whole, longer)
    assert figures(whole) == figures(longer)


def test_crash_after_a_checkpoint_leaves_no_double_lines(trainer_in: MakeTrainer) -> None:
    """A kill leaves lines of metrics from after the checkpoint; a resume writes them anew, not twice."""
    whole = trainer_in("whole")
    whole.fit()
    trainer = trainer_in("killed", visit=stop_after(14))
    with pytest.raises(Interrupted):
        trainer.fit()
    step = trainer.position.step
    for extra in range(1, 3):
        trainer.metrics.write({"kind": "batch", "epoch": 2, "step": step + extra, "loss": 0.0})
    with trainer.metrics.path.open("a") as file:
        file.write('{"kind": "bat')  # cut off in mid-write
    resumed = trainer_in("killed")
    resumed.resume(resumed.last)
    resumed.fit()
    assert figures(resumed) == figures(whole)


def test_second_interrupt_stops_at_once(trainer_in: MakeTrainer) -> None:
    def visit(index: int) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trainer_in(visit=visit).fit()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_terminate_is_an_interrupt(trainer_in: MakeTrainer) -> None:
    sent: list[int] = []

    def visit(index: int) -> None:
        if not sent:
            sent.append(index)
            signal.raise_signal(signal.SIGTERM)

    trainer = trainer_in(visit=visit)
    with pytest.raises(Interrupted, match="epoch 1, batch 1 of 3"):
        trainer.fit()
    assert trainer.last.is_file()


class Poisoned(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Recordings of which one has a NaN in one pixel of one step."""

    def __init__(self, inner: Any, bad: int) -> None:
        self.inner, self.bad = inner, bad

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        frames, label = self.inner[index]
        if index == self.bad:
            frames = frames.clone()
            frames[2, 0, 0, 0] = float("nan")
        return frames, label


def test_nan_stops_with_the_place_and_a_checkpoint(trainer_in: MakeTrainer) -> None:
    """N05: epoch and batch are named, weights are those before the batch."""
    clean = trainer_in("clean")
    trainer = trainer_in("bad", dataset=Poisoned(clean.train.dataset, bad=3))
    order = [index for x, y in trainer.train.epoch(1) for index in y.tolist()]
    assert len(order) == 10
    before = {name: value.clone() for name, value in trainer.learner.net.state_dict().items()}
    with pytest.raises(TrainingError, match=r"epoch 1, batch \d"):
        trainer.fit()
    stored = load_checkpoint(trainer.last)
    assert all(bool(torch.isfinite(value).all()) for value in stored["model"].values())
    if stored["position"]["batch"] == 0:
        assert all(torch.equal(before[name], value) for name, value in stored["model"].items())
    assert stored["position"]["step"] == len(figures(trainer))


def test_nan_can_be_skipped_and_counted(trainer_in: MakeTrainer, caplog: pytest.LogCaptureFixture) -> None:
    clean = trainer_in("clean")
    trainer = trainer_in("bad", dataset=Poisoned(clean.train.dataset, bad=3), nonfinite="skip")
    trainer.fit()
    epochs = [line for line in figures(trainer) if line["kind"] == "epoch"]
    assert [line["train"]["nonfinite_batches"] for line in epochs] == [1, 1]
    assert all(line["train"]["samples"] < 10 for line in epochs)
    assert all(bool(torch.isfinite(value).all()) for value in trainer.learner.net.state_dict().values())
    assert "skipped" in caplog.text


def test_empty_batches_are_skipped_and_counted(trainer_in: MakeTrainer) -> None:
    """G31: no weight moves, nothing becomes NaN."""
    trainer = trainer_in()
    before = {name: value.clone() for name, value in trainer.learner.net.state_dict().items()}

    def epoch(epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        yield torch.zeros(3, 0, 1, 2, 3), torch.zeros(0, dtype=torch.int64)

    trainer.train.epoch = epoch  # type: ignore[method-assign]
    trainer.train.max_batches = 1
    trainer.fit()
    assert all(torch.equal(before[name], value) for name, value in trainer.learner.net.state_dict().items())
    epochs = [line for line in figures(trainer) if line["kind"] == "epoch"]
    assert [line["train"]["empty_batches"] for line in epochs] == [1, 1]


def test_silent_layer_is_warned_of_once(trainer_in: MakeTrainer, caplog: pytest.LogCaptureFixture) -> None:
    """N06: weights * 1e-4 never reach the threshold."""
    trainer = trainer_in(scale=1e-4, epochs=1)
    trainer.fit()
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage().split(":")[0] for record in warned] == ["1 is silent"]
    caplog.clear()
    healthy = trainer_in("healthy", epochs=1)
    healthy.fit()
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]


def test_full_disk_keeps_the_earlier_checkpoint(trainer_in: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_in(epochs=1)
    trainer.fit()
    kept = trainer.last.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    longer = trainer_in(epochs=2)
    longer.resume(longer.last)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(TrainingError, match=r"No space left on device.*earlier one at .* is kept"):
        longer.fit()
    assert trainer.last.read_bytes() == kept
    assert sorted(path.name for path in trainer.last.parent.iterdir()) == ["best.pt", "last.pt"]
    assert [line["epoch"] for line in figures(longer) if line["kind"] == "epoch"] == [1, 2]


def test_resume_without_a_checkpoint(trainer_in: MakeTrainer) -> None:
    trainer = trainer_in()
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        trainer.resume(trainer.last)


def test_save_every_few_batches(trainer_in: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_in(epochs=1, save_every=1)
    steps: list[int] = []
    save = trainer.save
    monkeypatch.setattr(trainer, "save", lambda *paths: (steps.append(trainer.position.step), save(*paths)))
    trainer.fit()
    assert steps == [1, 2, 3, 3]


def test_metrics_are_valid_json(trainer_in: MakeTrainer, tmp_path: Path) -> None:
    log = MetricLog(tmp_path / "metrics.jsonl")
    log.write({"kind": "batch", "step": 1, "loss": float("inf"), "nested": {"a": float("nan")}})
    line = json.loads(log.path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert line == {"kind": "batch", "step": 1, "loss": None, "nested": {"a": None}}


def test_an_epoch_of_fptt_begins_at_the_average(trainer_in: MakeTrainer) -> None:
    """At the start of an epoch, not where a resume falls into the middle of one."""
    trainer = trainer_in(epochs=2, scheduler=False)
    optimizer = trainer.learner.optimizer = FPTT(trainer.learner.optimizer)
    begun: list[int] = []
    begin = optimizer.begin_epoch
    optimizer.begin_epoch = lambda: (begun.append(trainer.position.epoch), begin())[0]  # type: ignore[method-assign]
    trainer.fit()
    assert begun == [1, 2]
    halfway = trainer_in("halfway", epochs=1, scheduler=False)
    halfway.learner.optimizer = FPTT(halfway.learner.optimizer)
    halfway.position.batch = 1
    halfway.learner.optimizer.begin_epoch = lambda: begun.append(0)  # type: ignore[method-assign]
    halfway.fit()
    assert begun == [1, 2]
