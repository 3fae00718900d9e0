"""Fidelity while training: a line and curves every so many epochs, and a run that is the same with and without."""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from snnlearn import LI, LIF, OTTT, ETBlock, ETLinear, OnlineLearner, fidelity
from snnlearn.data import MISSING, StepTargets
from snnlearn.rules.yardsticks import FULL
from snnlearn.training import Batches, Trainer
from snnlearn.training.fidelity_watch import SEQUENCES, FidelityWatch

MakeTrainer = Callable[..., Trainer]
NAMES = ["1.connection.weight", "1.connection.bias", "3.connection.weight", "3.connection.bias"]


def lines(trainer: Trainer, kind: str) -> list[dict[str, Any]]:
    return [line for line in trainer.metrics.read() if line["kind"] == kind]


def without_seconds(trainer: Trainer) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in trainer.metrics.read()]


def test_a_line_and_curves_every_second_epoch(trainer_in: MakeTrainer) -> None:
    trainer = trainer_in(epochs=4, fidelity_every=2, tensorboard=True)
    trainer.fit()
    found = lines(trainer, "fidelity")
    assert [(line["epoch"], line["step"]) for line in found] == [(2, 6), (4, 12)]
    assert found[-1]["rule"] == "OTTT"
    assert list(found[-1]["cosine"]) == NAMES
    assert found[-1]["broken"] == []
    # the last line again, by hand, on the weights that the epoch ended with
    x, y = next(iter(trainer.train.epoch(1)))
    report = fidelity(trainer.learner.net, (x, y), [trainer.learner.rule], trainer.learner.loss, lengths=[3])
    for name in NAMES:
        assert found[-1]["cosine"][name] == pytest.approx(report.row("OTTT", name).agreement.cosine, abs=1e-12)
        assert found[-1]["error"][name] == pytest.approx(report.row("OTTT", name).agreement.error, abs=1e-12)
    assert found[-1]["error"]["1.connection.weight"] > 1e-6  # the first layer is not BPTT's
    curves = EventAccumulator(str(trainer.folder / "tensorboard"))
    curves.Reload()
    for name in NAMES:
        events = curves.Scalars(f"fidelity/{name}")
        assert [event.step for event in events] == [6, 12]
        assert events[-1].value == pytest.approx(found[-1]["cosine"][name], abs=1e-6)


def test_a_run_is_the_same_with_and_without(trainer_in: MakeTrainer) -> None:
    plain = trainer_in("plain")
    plain.fit()
    state = torch.get_rng_state()
    measured = trainer_in("measured", fidelity_every=1)
    measured.fit()
    assert torch.equal(torch.get_rng_state(), state)
    ours, theirs = plain.learner.net.state_dict(), measured.learner.net.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert len(lines(measured, "fidelity")) == 2
    assert lines(plain, "fidelity") == []
    rest = [line for line in without_seconds(measured) if line["kind"] != "fidelity"]
    assert rest == without_seconds(plain)


def test_a_resumed_run_has_the_same_lines(trainer_in: MakeTrainer) -> None:
    whole = trainer_in("whole", epochs=3, fidelity_every=1)
    whole.fit()
    trainer_in("short", epochs=1, fidelity_every=1).fit()
    resumed = trainer_in("short", epochs=3, fidelity_every=1)
    resumed.resume(resumed.last)
    resumed.fit()
    assert without_seconds(resumed) == without_seconds(whole)


def test_a_broken_claim_is_logged_and_stops_nothing(
    trainer_in: MakeTrainer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = OnlineLearner.__init__

    def lie(self: OnlineLearner, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        rows = tuple(dataclasses.replace(row, yardstick=FULL) for row in self.report.rows)
        self.report = dataclasses.replace(self.report, rows=rows)

    monkeypatch.setattr(OnlineLearner, "__init__", lie)
    trainer = trainer_in(epochs=1, fidelity_every=1)
    with caplog.at_level(logging.ERROR):
        trainer.fit()
    (line,) = lines(trainer, "fidelity")
    assert "1.connection.weight" in line["broken"]
    assert "BROKEN CLAIM" in caplog.text


def test_a_network_that_is_not_finite_is_left_out(trainer_in: MakeTrainer, caplog: pytest.LogCaptureFixture) -> None:
    trainer = trainer_in(epochs=1, fidelity_every=1)
    with torch.no_grad():
        trainer.learner.net[1].connection.weight.fill_(float("inf"))
    found = trainer._fidelity.look(trainer.learner, 1)
    assert found is not None
    assert found["cosine"] == {}
    assert "was not measured" in caplog.text


def test_a_target_at_every_step() -> None:
    """Few sequences of a batch with targets per step; a step that none of these has a target for counts nothing."""
    net = nn.Sequential(ETBlock(ETLinear(3, 4), LIF()), ETBlock(ETLinear(4, 2), LI()))
    learner = OnlineLearner(net, OTTT(), nn.functional.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1))
    x, values = torch.rand(4, 12, 3) * 3, torch.randint(2, (4, 12))
    values[0] = MISSING
    values[1, :SEQUENCES] = MISSING
    batches = Batches([0] * 12, range(12), 12, lambda _: (x, StepTargets(values), None))
    found = FidelityWatch(1, batches).look(learner, 1)
    few = StepTargets(values[:, :SEQUENCES])
    report = fidelity(net, (x[:, :SEQUENCES], few), [OTTT()], per_step_target=True, lengths=[4])
    assert found is not None
    assert found["error"] == {row.parameter: row.agreement.error for row in report}
    assert list(few)[:2] == [None, None]
