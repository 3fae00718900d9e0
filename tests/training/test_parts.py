"""The trainer's parts: weighted metrics, atomic checkpoints, order of data, curves, progress."""

import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from snnlearn import SequenceResult
from snnlearn.training import (
    Batches,
    CheckpointError,
    Running,
    Trainer,
    TrainingError,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from snnlearn.training.checkpoint import random_states, restore_random_states
from snnlearn.training.progress import BarProgress, LineProgress, make_progress
from snnlearn.training.watch import RateWatch

MakeTrainer = Callable[..., Trainer]


def result(size: int, correct: int, loss: float, rate: float = 0.5) -> SequenceResult:
    output = torch.zeros(size, 2)
    return SequenceResult(
        loss=loss,
        batch_size=size,
        steps=1,
        output=output,
        last_output=output,
        accuracy=correct / size,
        accuracy_last=0.0,
        firing_rates={"hidden": rate},
        gradient_norm=1.0,
        trace_norms={"hidden": 2.0},
        updates=1,
        decisions=size,
    )


def test_means_are_weighted_by_samples() -> None:
    """C06: ten samples in batches of 4, 4, 2, of which 4, 4, 0 are right."""
    running = Running()
    for size, correct, loss, rate in ((4, 4, 1.0, 0.0), (4, 4, 1.0, 0.0), (2, 0, 6.0, 1.0)):
        running.add(result(size, correct, loss, rate))
    figures = running.figures()
    assert figures["accuracy"] == 0.8
    assert figures["accuracy"] != pytest.approx(2 / 3)
    assert figures["loss"] == 2.0
    assert figures["firing_rates"] == {"hidden": 0.2}
    assert (figures["correct"], figures["samples"]) == (8, 10)
    assert Running(**running.state()) == running


def test_order_depends_on_seed_and_epoch_alone() -> None:
    def batches(seed: int) -> Batches:
        def collate(items: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            return torch.tensor(items), torch.tensor(items), torch.tensor(items)

        return Batches(list(range(20)), range(20), 6, collate, seed=seed, shuffle=True)

    def order(seed: int, epoch: int, start: int = 0) -> list[int]:
        return [item for x, _ in batches(seed).epoch(epoch, start) for item in x.tolist()]

    state = torch.get_rng_state()
    first = order(1, 1)
    assert torch.equal(state, torch.get_rng_state())  # nothing was drawn from the global generator
    torch.rand(3)
    assert order(1, 1) == first
    assert order(1, 1, start=2) == first[12:]
    assert sorted(first) == list(range(20))
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (1, 2)}) == 4
    assert [len(x) for x, _ in batches(1).epoch(1)] == [6, 6, 6, 2]


def test_variation_belongs_to_the_batch_of_the_epoch_so_a_resume_sees_the_same() -> None:
    def collate(items: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.zeros(len(items)), torch.tensor(items), torch.tensor(items)

    def noise(frames: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return frames + torch.rand(len(frames), generator=generator)

    batches = Batches(list(range(20)), range(20), 6, collate, seed=1, shuffle=True, vary=noise)
    state = torch.get_rng_state()
    whole = [x for x, _ in batches.epoch(1)]
    assert torch.equal(state, torch.get_rng_state())
    resumed = [x for x, _ in batches.epoch(1, start=2)]
    assert all(torch.equal(a, b) for a, b in zip(whole[2:], resumed, strict=True))
    assert not torch.equal(whole[0], whole[1])
    assert not torch.equal(whole[0], next(iter(batches.epoch(2)))[0])


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_give_the_same_batches(workers: int, trainer_in: MakeTrainer) -> None:
    trainer = trainer_in()
    alone = [x for x, _ in trainer.train.epoch(1)]
    trainer.train.workers = workers
    beside = [x for x, _ in trainer.train.epoch(1)]
    assert all(torch.equal(a, b) for a, b in zip(alone, beside, strict=True))


def test_checkpoint_loads_without_omegaconf(trainer_in: MakeTrainer) -> None:
    """C02: plain containers and tensors only, in a process where omegaconf cannot be imported."""
    trainer = trainer_in(epochs=1)
    trainer.fit()
    code = (
        "import sys; sys.modules['omegaconf'] = None; import torch; "
        f"print(sorted(torch.load({str(trainer.last)!r}, weights_only=True)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "optimizer" in done.stdout


def test_checkpoint_size_does_not_depend_on_the_batch(trainer_in: MakeTrainer) -> None:
    """C04: neither states nor traces are in it."""
    sizes = []
    for batch, steps in ((1, 4), (64, 100)):
        trainer = trainer_in(f"batch{batch}")
        trainer.learner.learn(torch.rand(steps, batch, 1, 2, 3), torch.zeros(batch, dtype=torch.int64))
        trainer.save(trainer.last)
        sizes.append(trainer.last.stat().st_size)
    assert abs(sizes[0] - sizes[1]) < 1024


def test_kill_in_mid_save_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """C04: kill -9 in a save loop."""
    path = tmp_path / "last.pt"
    code = (
        "import sys, torch; from pathlib import Path; from snnlearn.training import save_checkpoint\n"
        "n = 0\n"
        "while True:\n"
        f"    save_checkpoint(Path({str(path)!r}), {{'step': n, 'x': torch.full((300_000,), float(n))}}); n += 1\n"
        "    print(n, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(4):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    content = load_checkpoint(path)
    assert content["step"] >= 3
    assert bool((content["x"] == content["step"]).all())


def test_file_size_limit_is_told_and_keeps_the_old(tmp_path: Path) -> None:
    """The operating system itself refuses, as a full disk does."""
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"step": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(TrainingError, match=r"could not save the checkpoint .*kept"):
            save_checkpoint(path, {"step": 2, "x": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert load_checkpoint(path)["step"] == 1
    assert [item.name for item in tmp_path.iterdir()] == ["last.pt"]


@pytest.mark.parametrize("damage", ["empty", "text", "json", "bytes", "truncated", "foreign"])
def test_damaged_checkpoints_are_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"step": 1, "x": torch.zeros(1000)})
    whole = path.read_bytes()
    if damage == "foreign":
        torch.save({"weights": 1}, path)
    else:
        content = {"empty": b"", "text": b"hello", "json": b'{"seed": 1}', "bytes": bytes([0x80, 0x02, 0x4A])}
        path.write_bytes(content.get(damage, whole[: len(whole) // 2]))
    said = "is not a checkpoint of" if damage == "foreign" else "is truncated or not a checkpoint"
    with pytest.raises(CheckpointError, match=rf"last\.pt {said}.*; pass best\.pt or last\.pt .* \(.+\)$"):
        load_checkpoint(path)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    torch.save({"format": 1, "x": torch.nn.Linear(1, 1)}, path)
    with pytest.raises(CheckpointError, match="is truncated or not a checkpoint"):
        load_checkpoint(path)


def test_find_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"holds no checkpoints/last\.pt"):
        find_checkpoint(tmp_path / "run")
    last = tmp_path / "run" / "checkpoints" / "last.pt"
    last.touch()
    assert find_checkpoint(tmp_path / "run") == last
    assert find_checkpoint(last) == last


def test_random_states_come_back() -> None:
    import random

    import numpy as np

    state = random_states()

    def draw() -> tuple[float, float, float]:
        return float(torch.rand(())), float(np.random.rand()), random.random()  # noqa: NPY002

    first = draw()
    assert draw() != first
    restore_random_states(state)
    assert draw() == first


def curves(folder: Path) -> dict[str, list[int]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {tag: [event.step for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_curves_after_a_crash_and_a_resume_have_increasing_steps(trainer_in: MakeTrainer) -> None:
    """C05: what the killed run wrote after its checkpoint is hidden, and nothing is there twice."""
    first = trainer_in(epochs=2, tensorboard=True)
    first.fit()
    old = load_checkpoint(first.best)
    resumed = trainer_in(epochs=4, tensorboard=True)
    save_checkpoint(first.last, {k: v for k, v in old.items() if k != "format"})  # as if killed after epoch 1 or 2
    resumed.resume(resumed.last)
    resumed.fit()
    found = curves(resumed.folder / "tensorboard")
    assert found["batch/loss"] == list(range(1, 13))
    assert found["accuracy/validation"] == [3, 6, 9, 12]
    assert {"loss/train", "learning_rate", "gradient_norm", "firing_rate/1", "trace_norm/1"} <= found.keys()
    for steps in found.values():
        assert steps == sorted(set(steps))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_curves_are_written_even_after_an_error(trainer_in: MakeTrainer) -> None:
    def fail(index: int) -> None:
        if index == 9:
            raise ZeroDivisionError

    trainer = trainer_in(epochs=1, tensorboard=True, visit=fail)
    with pytest.raises(ZeroDivisionError):
        trainer.fit()
    assert trainer.position.step == 0 or curves(trainer.folder / "tensorboard")["batch/loss"]


def test_lines_tell_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with make_progress("auto", total=4) as progress:  # under pytest standard error is no terminal
        assert isinstance(progress, LineProgress)
        progress.batch(1, "epoch 1")
        progress.line(2, "epoch 1/2 | train loss 1.0")
    assert capsys.readouterr().err.startswith("epoch 1/2 | train loss 1.0 | left ")


def test_bar_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with make_progress("bar", total=4) as progress:
        assert isinstance(progress, BarProgress)
        progress.batch(1, "epoch 1")
        progress.line(4, "epoch 1/1 done")
    assert "epoch 1/1 done" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rate", "kind"), [(0.0, "silent"), (0.0009, "silent"), (0.81, "saturated"), (1.0, "saturated")]
)
def test_rates_that_are_warned_of(rate: float, kind: str) -> None:
    watch = RateWatch()
    (text,) = watch.look({"hidden": rate}, epoch=1)
    assert f"hidden is {kind}" in text
    assert watch.look({"hidden": rate}, epoch=2) == []


@pytest.mark.parametrize("rate", [0.001, 0.2, 0.8])
def test_rates_that_are_not(rate: float) -> None:
    assert RateWatch().look({"hidden": rate}, epoch=1) == []
