"""The surrogate's bias: BPTT is right on a smooth network, a wrong surrogate is seen, and the noise is stated truly."""

import csv
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from nets import assert_alive, assert_untouched, weights
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import LI, LIF, OTTT, ArcTan, ETBlock, ETLinear, Rectangle, Surrogate, attach, surrogate_bias
from snnlearn.engine.fidelity import Pace
from snnlearn.engine.surrogate_bias import _figures, _Walk, sequence_loss
from snnlearn.engine.surrogate_report import BiasRow, SurrogateBiasReport
from snnlearn.engine.yardsticks import Problem

HIDDEN, READOUT = "0.connection.weight", "1.connection.weight"
Batch = tuple[Tensor, Tensor]

pytestmark = pytest.mark.usefixtures("unchecked")


@dataclass(frozen=True)
class Negated(ArcTan):
    """A surrogate that points the wrong way."""

    def derivative(self, u: Tensor) -> Tensor:
        return -super().derivative(u)


@dataclass(frozen=True)
class Unfounded(Surrogate):
    """A derivative without a primitive."""

    def derivative(self, u: Tensor) -> Tensor:
        return torch.exp(-u.square())


def net_of(surrogate: Surrogate, detach_reset: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        ETBlock(ETLinear(5, 6), LIF(tau=3.0, surrogate=surrogate, detach_reset=detach_reset)),
        ETBlock(ETLinear(6, 2), LI(tau=3.0)),
    ).double()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(3.0)
    return net


@pytest.fixture
def batch() -> Batch:
    torch.manual_seed(1)
    return (torch.rand(6, 8, 5) < 0.5).double(), torch.arange(8) % 2


def test_a_smooth_network_agrees_with_finite_differences(batch: Batch) -> None:
    report = surrogate_bias(net_of(ArcTan().smoothed(), detach_reset=False), batch, pairs=48, sigma=1e-3)
    for row in (*report.rows, report.total):
        assert row.cosine == pytest.approx(1.0, abs=1e-3), row.parameter
        assert row.slope_ratio == pytest.approx(1.0, abs=1e-3), row.parameter
        assert row.verdict == "agrees"
        assert row.cosine_error < 1e-3
    assert not report.wrong_yardstick
    assert report.check_error < 1e-6


def test_a_wrong_surrogate_disagrees_beyond_the_noise(batch: Batch) -> None:
    """Negated, on the smooth network and on the spiking one; the readout has no surrogate and stays right."""
    smooth = surrogate_bias(net_of(Negated().smoothed(), detach_reset=False), batch, pairs=48, sigma=1e-3)
    assert smooth.row(HIDDEN).cosine < -0.9
    assert smooth.row(HIDDEN).verdict == "differs"
    assert smooth.row(READOUT).verdict == "agrees"
    assert smooth.check_holds is False
    assert "CHECK ON THE SMOOTHED NETWORK FAILED" in str(smooth)
    spiking = surrogate_bias(net_of(Negated()), batch, pairs=100, sigma=0.1)
    row = spiking.row(HIDDEN)
    assert row.cosine + 3 * row.cosine_error < 0
    assert spiking.wrong_yardstick
    assert "BPTT ITSELF IS A BIASED YARDSTICK HERE" in str(spiking)


def test_a_spiking_network_has_a_bias_that_is_told_from_noise(batch: Batch) -> None:
    net = net_of(ArcTan())
    assert_alive(net, batch[0])
    report = surrogate_bias(net, batch, pairs=200, sigma=0.1)
    row = report.row(HIDDEN)
    assert row.cosine > 0.3  # it points roughly where the loss goes
    assert row.verdict == "differs"  # and not quite
    assert 1 - row.cosine > 3 * row.cosine_error
    assert report.check_error < 1e-6
    few = surrogate_bias(net, batch, pairs=20, sigma=0.1)
    assert few.total.slope_error > 1.5 * report.total.slope_error
    narrow = surrogate_bias(net_of(Rectangle(width=0.01)), batch, pairs=60, sigma=0.1)
    assert narrow.row(HIDDEN).cosine is None or narrow.row(HIDDEN).cosine < row.cosine


def test_cosine_and_its_error_are_calibrated() -> None:
    """A linear loss, whose gradient is known, against gradients turned away from it by a known angle."""
    net = nn.Linear(6, 4).double()
    batch = (torch.rand(1, 4, 6).double(), torch.zeros(4))
    direction = torch.randn(4, 6, dtype=torch.float64)

    def loss(output: Tensor, _: Tensor) -> Tensor:
        return (output.mean(0) * direction[:, 0]).sum()

    problem = Problem(net, batch, loss, False, torch.float64)
    true = {"weight": direction[:, :1] * batch[0].mean((0, 1)), "bias": direction[:, 0].clone()}
    distances, errors, found = [], [], []
    for seed in range(20):
        torch.manual_seed(seed)
        problem.seed = 1000 + seed
        noise = {name: torch.randn_like(g) for name, g in true.items()}
        turned = {name: g + 0.8 * noise[name] * g.norm() / noise[name].norm() for name, g in true.items()}
        walk = _Walk(problem, problem.net, turned)
        rows, _ = _figures(walk, walk.sample(100, 0.01, Pace(100, lambda _: None)))
        cosine = float(F.cosine_similarity(turned["weight"].flatten(), true["weight"].flatten(), dim=0))
        distances.append((rows[0].cosine - cosine) / rows[0].cosine_error)
        errors.append(rows[0].cosine_error)
        found.append(rows[0].cosine - cosine)
    assert abs(statistics.mean(found)) < 0.01
    assert max(errors) < 0.15
    assert 0.4 < statistics.pstdev(distances) < 1.6  # the stated error is the true one, or a little more


def test_the_network_is_left_as_it_was(batch: Batch) -> None:
    net = net_of(ArcTan())
    attach(net, OTTT())
    net(batch[0][0])
    before, state, generator = weights(net), net[0].neuron.state, torch.get_rng_state()
    trace = net[0].connection.trace
    surrogate_bias(net, batch, pairs=16)
    assert_untouched(net, before)
    assert net[0].neuron.state is state
    assert net[0].connection.trace is trace
    assert net[0].neuron.detach_reset
    assert not net[0].neuron.surrogate.smooth
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_silent_network_and_a_flat_loss_say_so(batch: Batch) -> None:
    net = net_of(Rectangle(width=0.5))
    with torch.no_grad():
        net[0].connection.weight.mul_(0.01)
        net[0].connection.bias.fill_(-20.0)
    report = surrogate_bias(net, batch, pairs=16)
    assert report.row(HIDDEN).verdict == "no slope"
    assert report.row(HIDDEN).cosine is None
    assert "note: 0 is silent" in str(report)
    flat = surrogate_bias(net, batch, lambda output, _: 0 * output.sum(), pairs=16)
    assert flat.total.verdict == "no slope"
    assert "nothing can be said" in flat.conclusion


def test_a_surrogate_without_primitive_is_not_checked(batch: Batch) -> None:
    report = surrogate_bias(net_of(Unfounded()), batch, pairs=16)
    assert report.check_error is None
    assert report.check_holds is None
    assert "not possible, Unfounded of 0.neuron has no primitive" in str(report)


def test_the_loss_is_the_mean_over_counted_steps(batch: Batch) -> None:
    x, y = batch
    net = net_of(ArcTan())
    targets = [None, None, None, y, y, y]
    problem = Problem(net, (x, targets), F.cross_entropy, True, torch.float64)
    with torch.no_grad():
        by_hand = sum(float(F.cross_entropy(net(x_t), y)) for x_t in x[:3]) * 0.0
        by_hand += sum(float(F.cross_entropy(net(x_t), y)) for x_t in x[3:]) / 3
    assert sequence_loss(problem, problem.net) == pytest.approx(by_hand, abs=1e-12)


def test_verdicts_csv_and_wrong_arguments(batch: Batch, tmp_path: Path) -> None:
    assert BiasRow("w", 0.9, 0.05, 1.0, 0.1).verdict == "agrees"
    assert BiasRow("w", 0.9, 0.2, 1.0, 0.1).verdict == "not resolved"
    assert BiasRow("w", 0.9, 0.02, 1.0, 0.1).verdict == "differs"
    assert BiasRow("w", 0.995, 1e-6, 1.0, 0.1).verdict == "agrees"
    unresolved = SurrogateBiasReport((), BiasRow("w", 0.9, 0.2, 1.0, 0.1), 8, 0.1, None, "no spikes")
    assert "take more pairs" in unresolved.conclusion
    report = surrogate_bias(net_of(ArcTan()), batch, pairs=16)
    report.to_csv(tmp_path / "bias.csv")
    with (tmp_path / "bias.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["parameter"] for line in lines] == [*[row.parameter for row in report.rows], "all together"]
    assert float(lines[0]["slope_ratio"]) == report.rows[0].slope_ratio
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: surrogate_bias(net_of(ArcTan()), batch, pairs=15), "at least 16 are needed"),
        (lambda: surrogate_bias(net_of(ArcTan()), batch, sigma=0.0), "above 0"),
        (lambda: report.row("other"), "it has"),
    ]
    for call, message in wrong:
        with pytest.raises((ValueError, KeyError), match=message):
            call()
