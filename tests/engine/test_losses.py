"""SequenceLoss: each option against a hand computation, in O(1) of time."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from nets import assert_same, furthest, gradients, labels, live_input, live_net
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import BPTT, OTTT, SLTT, OnlineLearner, Readout, SequenceLoss, bptt_gradients

STEPS, BATCH, CLASSES = 5, 4, 3


class Echo(nn.Module):
    """A network whose output is its input, scaled by one weight, so that a loss is computed on chosen outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x_t: Tensor) -> Tensor:
        return x_t * self.scale


@pytest.fixture
def outputs(device: torch.device) -> Tensor:
    return 2 * torch.randn(STEPS, BATCH, CLASSES, dtype=torch.float64).to(device)


def loss_of(loss: SequenceLoss, outputs: Tensor, y: Tensor) -> float:
    """Return what a learner reports for a network with these outputs."""
    net = Readout(Echo()).to(outputs.device)
    learner = OnlineLearner(net, SLTT(), loss, torch.optim.SGD(net.parameters(), 0.0))
    learned, evaluated = learner.learn(outputs, y).loss, learner.evaluate(outputs, y).loss
    assert learned == pytest.approx(evaluated, rel=1e-14)
    return learned


def entropy_by_hand(output: Tensor, y: Tensor, smoothing: float = 0.0) -> float:
    total = 0.0
    for row, label in zip(output.tolist(), y.tolist(), strict=True):
        log_sum = math.log(sum(math.exp(v) for v in row))
        total += (1 - smoothing) * (log_sum - row[label]) + smoothing * sum(log_sum - v for v in row) / len(row)
    return total / len(y)


def squared_error_by_hand(output: Tensor, y: Tensor) -> float:
    total = 0.0
    for row, label in zip(output.tolist(), y.tolist(), strict=True):
        total += sum((v - (c == label)) ** 2 for c, v in enumerate(row)) / len(row)
    return total / len(y)


def test_cross_entropy(outputs: Tensor) -> None:
    y = labels(BATCH, CLASSES, outputs.device)
    expected = sum(entropy_by_hand(o, y) for o in outputs) / STEPS
    assert loss_of(SequenceLoss("cross_entropy"), outputs, y) == pytest.approx(expected, rel=1e-12)
    assert loss_of(SequenceLoss(), outputs, y) == pytest.approx(expected, rel=1e-12)


def test_label_smoothing(outputs: Tensor) -> None:
    y = labels(BATCH, CLASSES, outputs.device)
    expected = sum(entropy_by_hand(o, y, 0.2) for o in outputs) / STEPS
    assert loss_of(SequenceLoss(label_smoothing=0.2), outputs, y) == pytest.approx(expected, rel=1e-12)


def test_squared_error(outputs: Tensor) -> None:
    y = labels(BATCH, CLASSES, outputs.device)
    expected = sum(squared_error_by_hand(o, y) for o in outputs) / STEPS
    assert loss_of(SequenceLoss("mse"), outputs, y) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("weight", [0.0, 0.05, 0.5, 1.0])
def test_mix(weight: float, outputs: Tensor) -> None:
    y = labels(BATCH, CLASSES, outputs.device)
    expected = sum((1 - weight) * entropy_by_hand(o, y) + weight * squared_error_by_hand(o, y) for o in outputs) / STEPS
    assert loss_of(SequenceLoss("mix", mse_weight=weight), outputs, y) == pytest.approx(expected, rel=1e-12)
    if weight == 0.05:
        assert loss_of(SequenceLoss("mix"), outputs, y) == pytest.approx(expected, rel=1e-12)


def test_running_mean(outputs: Tensor) -> None:
    y = labels(BATCH, CLASSES, outputs.device)
    expected = sum(entropy_by_hand(outputs[: t + 1].mean(0), y) for t in range(STEPS)) / STEPS
    assert loss_of(SequenceLoss(readout="running_mean"), outputs, y) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("last", [1, 3, STEPS, STEPS + 2])
@pytest.mark.parametrize("readout", ["step", "running_mean"])
def test_last_steps(last: int, readout: str, outputs: Tensor) -> None:
    """Only the last n steps count; the running mean still takes in all of them."""
    y = labels(BATCH, CLASSES, outputs.device)
    seen = [o if readout == "step" else outputs[: t + 1].mean(0) for t, o in enumerate(outputs)]
    counted = seen[-min(last, STEPS) :]
    expected = sum(entropy_by_hand(o, y) for o in counted) / len(counted)
    assert loss_of(SequenceLoss(last_steps=last, readout=readout), outputs, y) == pytest.approx(expected, rel=1e-12)


def test_every_option_changes_the_loss(outputs: Tensor) -> None:
    y = labels(BATCH, CLASSES, outputs.device)
    variants = [
        SequenceLoss(),
        SequenceLoss("mse"),
        SequenceLoss("mix"),
        SequenceLoss("mix", mse_weight=0.2),
        SequenceLoss(label_smoothing=0.1),
        SequenceLoss(readout="running_mean"),
        SequenceLoss(last_steps=2),
    ]
    assert len({round(loss_of(loss, outputs, y), 9) for loss in variants}) == len(variants)


def test_gradient_of_the_running_mean_online_and_through_time(device: torch.device) -> None:
    """Online a step's gradient flows through that step's share 1/t alone; BPTT's through all of them."""
    net = live_net(device)
    x, y = live_input(STEPS, BATCH, device=device), labels(BATCH, device=device)
    x[0] = 1.0
    loss = SequenceLoss(readout="running_mean")
    OTTT().attach(net)
    mean = torch.zeros(BATCH, 3, device=device, dtype=torch.float64)
    for t, x_t in enumerate(x):
        output = net(x_t)
        mean = mean.detach() + (output - mean.detach()) / (t + 1)
        (F.cross_entropy(mean, y) / STEPS).backward()
    expected = gradients(net)
    recorded: list[dict[str, Tensor]] = []
    for rule in (OTTT(), BPTT()):
        built = copy.deepcopy(net)
        optimizer = torch.optim.SGD(built.parameters(), 0.0)
        optimizer.register_step_pre_hook(lambda *_, n=built: recorded.append(gradients(n)))
        OnlineLearner(built, rule, loss, optimizer).learn(x, y)
    assert_same(recorded[0], expected, 1e-12)
    through_time = bptt_gradients(net, x, y, loss)
    assert_same(recorded[1], through_time, 1e-12)
    assert furthest(expected, through_time) > 1e-4


def test_the_last_steps_gradient_is_the_mean_over_the_counted_steps(device: torch.device) -> None:
    net = live_net(device)
    x, y = live_input(STEPS, BATCH, device=device), labels(BATCH, device=device)
    recorded: list[dict[str, Tensor]] = []
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    optimizer.register_step_pre_hook(lambda *_: recorded.append(gradients(net)))
    learner = OnlineLearner(net, OTTT(), SequenceLoss(last_steps=2), optimizer)
    learner.learn(x, y)
    learner.reset()
    net.zero_grad()
    for t, x_t in enumerate(x):
        output = net(x_t)
        if t >= STEPS - 2:
            (F.cross_entropy(output, y) / 2).backward()
    assert_same(recorded[0], gradients(net), 1e-12)


def test_one_loss_object_serves_two_learners_at_once(device: torch.device) -> None:
    """What a loss remembers belongs to the sequence, not to the object that the user passed."""
    loss, x, y = SequenceLoss(readout="running_mean"), live_input(4, 3, device=device), labels(3, device=device)
    net = live_net(device)
    first, second = copy.deepcopy(net), copy.deepcopy(net)
    learners = [OnlineLearner(n, OTTT(), loss, torch.optim.SGD(n.parameters(), 0.1)) for n in (first, second)]
    for x_t in x:
        for learner in learners:
            learner.step(x_t, y)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert loss._mean is None


def test_nothing_of_the_past_is_kept() -> None:
    """O(1): after 1,000 steps the loss holds one mean and one count, without a graph."""
    loss = SequenceLoss("mix", readout="running_mean", label_smoothing=0.1)
    loss.begin(None)
    total = torch.zeros(2, 3, dtype=torch.float64)
    for _ in range(1000):
        output = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
        seen = loss.observe(output)
        loss(seen, torch.tensor([0, 2])).backward()
        total += output.detach()
    kept = [value for value in vars(loss).values() if isinstance(value, Tensor)]
    assert sorted(value.numel() for value in kept) == [2, 6]
    torch.testing.assert_close(seen.detach(), total / 1000, rtol=0, atol=1e-12)
    assert not any(isinstance(value, list | tuple | dict) for value in vars(loss).values())
    following = loss.observe(torch.zeros(2, 3, dtype=torch.float64))
    assert following.grad_fn is None  # the graph of the step before is not carried on


def test_last_steps_of_a_stream_are_unknown() -> None:
    net = live_net()
    learner = OnlineLearner(net, OTTT(), SequenceLoss(last_steps=2), torch.optim.SGD(net.parameters(), 0.0))
    x, y = live_input(4, 3), labels(3)
    for call in (lambda: learner.step(x[0], y), lambda: learner.learn(iter(x), y)):
        with pytest.raises(ValueError, match=r"last_steps=2 needs to know where the sequence ends.*give targets late"):
            call()
    assert learner.learn(x, y).updates == 1


@pytest.mark.usefixtures("unchecked")
def test_illegal_arguments() -> None:
    for build, words in (
        (lambda: SequenceLoss("entropy"), r"criterion='entropy': choose one of cross_entropy, mse, mix"),
        (lambda: SequenceLoss(readout="mean"), r"readout='mean': choose one of step, running_mean"),
        (lambda: SequenceLoss(mse_weight=1.5), r"mse_weight=1\.5.*\[0, 1\].*0\.05"),
        (lambda: SequenceLoss(mse_weight=math.nan), r"mse_weight=nan"),
        (lambda: SequenceLoss(label_smoothing=1.0), r"label_smoothing=1\.0.*\[0, 1\).*0\.1"),
        (lambda: SequenceLoss(label_smoothing=-0.1), r"label_smoothing=-0\.1"),
        (lambda: SequenceLoss(last_steps=0), r"last_steps=0: at least one step.*None for all"),
    ):
        with pytest.raises(ValueError, match=words):
            build()
    assert repr(SequenceLoss("mse", last_steps=3)) == "SequenceLoss('mse', readout='step', last_steps=3)"
