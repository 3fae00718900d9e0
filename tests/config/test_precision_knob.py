"""The knob `trainer.precision`: what it takes, that it arrives, and what it changes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from runs import composed

from snnlearn.config import Config, plain, validate
from snnlearn.config.evaluate import evaluate_checkpoint
from snnlearn.config.resume import differences, only_if_relevant, stored_config
from snnlearn.config.run import run
from snnlearn.training import load_checkpoint
from snnlearn.training.checkpoint import save_checkpoint

Small = Callable[..., Config]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    model: dict[str, torch.Tensor] = load_checkpoint(folder / "checkpoints" / "last.pt")["model"]
    return model


def test_other_precisions_are_told() -> None:
    (problem,) = validate(composed("trainer.precision=int8"))
    assert "trainer.precision: got 'int8'; legal: one of: float32, bfloat16, float16" in str(problem)
    for name in ("float32", "bfloat16", "float16"):
        assert validate(composed(f"trainer.precision={name}")) == []


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_run_in_low_precision_is_nearly_the_same_run(small: Small, tmp_path: Path, chunk: int) -> None:
    words = ["model.hidden=[8]", "neuron.threshold=0.3", "optimizer=sgd", f"trainer.chunk={chunk}"]
    folders = {}
    for name, more in {"full": [], "bfloat16": ["trainer.precision=bfloat16"], "seed": ["seed=2"]}.items():
        folders[name] = tmp_path / name
        run(small(*words, *more), folders[name])
    full, low, other = (weights(folder) for folder in folders.values())
    size = torch.cat([value.flatten() for value in full.values()]).norm()

    def apart(theirs: dict[str, torch.Tensor]) -> float:
        return float(torch.cat([(theirs[name] - value).flatten() for name, value in full.items()]).norm() / size)

    assert {value.dtype for value in low.values()} == {torch.float32}
    assert 0 < apart(low) < 0.02
    assert apart(other) > 0.1


def test_a_checkpoint_is_evaluated_in_the_precision_of_its_run(small: Small, tmp_path: Path) -> None:
    summary = run(small("trainer.precision=bfloat16", "model.hidden=[8]", "neuron.threshold=0.3"), tmp_path)
    best = tmp_path / "checkpoints" / "best.pt"
    assert evaluate_checkpoint(best, {})["loss"] == pytest.approx(summary["test_loss"], rel=1e-6)
    content = load_checkpoint(best)
    content["record"]["config"]["trainer"]["precision"] = "float32"
    save_checkpoint(best, content)
    assert evaluate_checkpoint(best, {})["loss"] != pytest.approx(summary["test_loss"], rel=1e-6)


def test_a_resume_in_another_precision_is_another_run(small: Small, tmp_path: Path) -> None:
    (found,) = differences(plain(small()), plain(small("trainer.precision=bfloat16")))
    assert only_if_relevant(found, plain(small()))
    run(small(), tmp_path)
    path = tmp_path / "checkpoints" / "last.pt"
    content = load_checkpoint(path)
    del content["record"]["config"]["trainer"]["precision"]  # a run from before the knob
    save_checkpoint(path, content)
    assert stored_config(path)["trainer"]["precision"] == "float32"
