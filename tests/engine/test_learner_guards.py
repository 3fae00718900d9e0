"""The learner on what goes wrong, and its figures: empty and poisoned batches, readouts, modes, refusals."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nets import (
    EVERY_RULE,
    ONLINE,
    assert_alive,
    assert_same,
    assert_untouched,
    furthest,
    labels,
    learner_of,
    live_input,
    live_net,
    loop_gradients,
    weights,
)
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    LI,
    LIF,
    OTTT,
    SLTT,
    ArcTan,
    ETBlock,
    ETLinear,
    LearningRule,
    NonFiniteError,
    OnlineLearner,
    Readout,
    attach,
    bptt_gradients,
)

# G31: nothing in a batch.


@EVERY_RULE
@pytest.mark.parametrize("update", ["sequence", 1])
def test_an_empty_batch_changes_nothing(
    rule: LearningRule, update: str | int, device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    if not rule.online and update == 1:
        update = "sequence"
    net = live_net(device)
    optimizer = torch.optim.AdamW(net.parameters(), 0.1, weight_decay=0.1)
    learner = OnlineLearner(net, rule, F.cross_entropy, optimizer, update=update)
    x, y = live_input(4, 3, device=device), labels(3, device=device)
    learner.learn(x, y)
    before = weights(net)
    result = learner.learn(x[:, :0], y[:0])
    assert_untouched(net, before)
    assert result.updates == 0
    assert result.batch_size == 0
    assert result.output.shape == (0, 3)
    assert result.accuracy is None
    assert all(math.isfinite(rate) for rate in result.firing_rates.values())
    assert "empty batch" in caplog.text
    learner.evaluate(x[:, :0], y[:0])
    learner.learn(x, y)
    assert not any(torch.equal(value, before[name]) for name, value in net.state_dict().items())


# N05: non-finite numbers, at each place.


def poisoned_input(net: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
    x = x.clone()
    x[2, 1, 3] = math.nan
    return x, F.cross_entropy


def infinite_input(net: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
    x = x.clone()
    x[2, 0, 0], x[2, 0, 1] = math.inf, -math.inf
    return x, F.cross_entropy


def nan_loss(net: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
    return x, lambda output, target: F.cross_entropy(output, target) * math.nan


def infinite_loss_with_a_finite_gradient(net: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
    return x, lambda output, target: F.cross_entropy(output, target) + math.inf


def infinite_gradient_of_a_finite_loss(net: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
    return x, lambda output, target: (output - output.detach()).abs().add(0.0).sqrt().sum() * 1.0


POISONS = [
    poisoned_input,
    infinite_input,
    nan_loss,
    infinite_loss_with_a_finite_gradient,
    infinite_gradient_of_a_finite_loss,
]


@EVERY_RULE
@pytest.mark.parametrize("poison", POISONS)
def test_a_non_finite_number_reaches_no_weight(
    rule: LearningRule, poison: Callable[[nn.Module, Tensor], tuple[Tensor, Any]], device: torch.device
) -> None:
    """Caught, weights and moments bit-identical, and the next batch is clean."""
    net = live_net(device)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    learner = OnlineLearner(net, rule, F.cross_entropy, optimizer, clip_norm=1.0)
    x, y = live_input(5, 4, device=device), labels(4, device=device)
    learner.learn(x, y)
    twin = copy.deepcopy(net)
    moments = copy.deepcopy(optimizer.state_dict())
    before = weights(net)
    bad, loss = poison(net, x)
    learner.loss = loss
    with pytest.raises(NonFiniteError, match=r"non-finite value|changes no weight"):
        learner.learn(bad, y)
    assert_untouched(net, before)
    assert all(parameter.grad is None for parameter in net.parameters())
    assert str(optimizer.state_dict()) == str(moments)
    learner.loss = F.cross_entropy
    fresh, recorder = learner_of(twin, rule)
    fresh.learn(x, y)
    recording, seen = learner_of(net, rule)
    recording.learn(x, y)
    assert_same(seen.seen[0], recorder.seen[0], 1e-14)


@ONLINE
def test_a_poisoned_step_of_a_stream_leaves_no_trace(rule: LearningRule, device: torch.device) -> None:
    net = live_net(device)
    learner, _ = learner_of(net, rule, lr=0.1)
    x, y = live_input(3, 2, device=device), labels(2, device=device)
    learner.step(x[0], y)
    before = weights(net)
    with pytest.raises(NonFiniteError, match=r"1 non-finite value.*torch\.nan_to_num"):
        learner.step(x[1].masked_fill(torch.arange(12, device=device).reshape(2, 6) == 5, math.nan), y)
    assert_untouched(net, before)
    assert bool(learner.step(x[2], y).isfinite().all())
    assert bool(next(net.parameters()).isfinite().all())


@EVERY_RULE
@pytest.mark.parametrize("streamed", [False, True])
def test_a_poisoned_input_leaves_no_running_statistic(rule: LearningRule, streamed: bool) -> None:
    """It is refused before any module, a norm with running statistics among them, has seen it."""
    hidden, norm = ETBlock(ETLinear(6, 16), LIF()), nn.BatchNorm1d(16)
    net = nn.Sequential(hidden, norm, ETBlock(ETLinear(16, 4), LI())).double()
    learner, _ = learner_of(net, rule)
    x, y = live_input(5, 4), labels(4)
    learner.learn(x, y)
    bad = x.clone()
    bad[0, 0, 0] = math.nan
    before = {name: value.clone() for name, value in net.named_buffers()}
    with pytest.raises(NonFiniteError, match=r"1 non-finite value.*torch\.nan_to_num"):
        learner.learn(iter(bad) if streamed else bad, y)
    assert all(torch.equal(value, before[name]) for name, value in net.named_buffers())


def test_a_parameter_of_the_loss_gets_the_mean_too() -> None:
    """Six steps, so a sum would be six times as much."""
    net, x, y = live_net(), live_input(6, 4), labels(4)
    temperature = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    optimizer = torch.optim.SGD([*net.parameters(), temperature], lr=1.0)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(temperature * output, target)

    attach(net, OTTT())
    torch.stack([loss(net(x_t).detach(), y) for x_t in x]).mean().backward()
    true = temperature.grad
    assert true is not None
    assert float(true.abs()) > 1e-6
    temperature.grad = None
    OnlineLearner(net, OTTT(), loss, optimizer).learn(x, y)
    torch.testing.assert_close(1.0 - temperature.detach(), true)


def test_large_but_finite_inputs_are_not_taken_for_infinite(device: torch.device) -> None:
    """Their sum overflows, they do not: what is refused is what the network makes of them."""
    net = live_net(device, torch.float32)
    learner, _ = learner_of(net, SLTT(), loss=lambda output, _: output.sum())
    x = torch.full((2, 2, 6), 3e38, device=device)
    assert not bool(torch.isfinite(x[0].sum()))
    with pytest.raises(NonFiniteError, match="changes no weight"):
        learner.learn(x, None)


# N06: a silent network.


def test_a_silent_network_shows_its_rates_and_still_has_a_gradient(device: torch.device) -> None:
    """Three layers, weights times 1e-4: loss ln(10) at zero logits."""
    wide = ArcTan(alpha=0.5)
    net = nn.Sequential(
        ETBlock(ETLinear(6, 16), LIF(surrogate=wide)),
        ETBlock(ETLinear(16, 16), LIF(surrogate=wide)),
        ETBlock(ETLinear(16, 10), LI()),
    ).to(device, torch.float64)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1e-4)
        for parameter in net[2].parameters():
            parameter.zero_()
    learner, optimizer = learner_of(net, OTTT())
    x, y = live_input(5, 4, device=device), labels(4, 10, device)
    result = learner.learn(x, y)
    assert result.loss == pytest.approx(2.302585, abs=1e-6)
    assert not result.output.any()
    assert result.firing_rates == {"0": 0.0, "1": 0.0}
    assert float(optimizer.seen[0]["2.connection.bias"].abs().max()) > 1e-3
    nn.init.normal_(net[2].connection.weight, std=1e-4)
    learner.learn(x, y)
    silent_inputs = {"1.connection.weight", "2.connection.weight"}
    for name, gradient in optimizer.seen[1].items():
        assert bool(gradient.any()) == (name not in silent_inputs), name


# P04, P07 at the learner.


class TwoHeads(nn.Module):
    """A trunk and two readouts that come out as a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = ETBlock(ETLinear(6, 12), LIF())
        self.a = ETBlock(ETLinear(12, 3), LI())
        self.b = Readout(nn.Linear(12, 5))
        with torch.no_grad():
            self.trunk.connection.weight.mul_(3)

    def forward(self, x_t: Tensor) -> tuple[Tensor, Tensor]:
        spikes = self.trunk(x_t)
        return self.a(spikes), self.b(spikes)


@EVERY_RULE
def test_several_readouts(rule: LearningRule, device: torch.device) -> None:
    net = TwoHeads().to(device, torch.float64)
    x, y = live_input(5, 4, device=device), (labels(4, 3, device), labels(4, 5, device))
    assert_alive(net, x)

    def both(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(output[0], target[0]) + F.cross_entropy(output[1], target[1])

    learner, optimizer = learner_of(net, rule, loss=both)
    result = learner.learn(x, y)
    assert_same(optimizer.seen[0], loop_gradients(net, x, y, both) if rule.online else bptt_gradients(net, x, y, both))  # type: ignore[arg-type]
    assert [tuple(part.shape) for part in result.output] == [(4, 3), (4, 5)]
    assert result.accuracy is None
    prediction = learner.predict(x)
    torch.testing.assert_close(prediction.mean_output[1], result.output[1])
    assert learner.evaluate(x, y).loss == pytest.approx(result.loss, rel=1e-12)


@EVERY_RULE
def test_an_unused_head_gets_no_gradient_and_nothing_leaks(rule: LearningRule, device: torch.device) -> None:
    """P04: loss on head A for the first batch, on B for the second."""
    net = TwoHeads().to(device, torch.float64)
    x, y = live_input(5, 4, device=device), labels(4, device=device)
    learner, optimizer = learner_of(net, rule, loss=lambda output, target: F.cross_entropy(output[0], target))
    learner.learn(x, y)
    assert not any(name.startswith("b.") for name in optimizer.seen[0])
    learner.loss = lambda output, target: F.cross_entropy(output[1], target)
    learner.learn(x, y)
    fresh, alone = learner_of(copy.deepcopy(net), rule, loss=learner.loss)
    fresh.learn(x, y)
    assert_same(optimizer.seen[1], alone.seen[0], 1e-14)


def test_a_parameter_replaced_after_the_optimizer_was_built(
    device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    """P07: its gradient is its own, and the optimizer that does not hold it is named once."""
    net = live_net(device)
    learner, optimizer = learner_of(net, OTTT(), lr=0.1)
    x, y = live_input(5, 4, device=device), labels(4, device=device)
    learner.learn(x, y)
    net.hidden.connection.weight = nn.Parameter(net.hidden.connection.weight.detach().clone())
    replaced = net.hidden.connection.weight.detach().clone()
    learner.learn(x, y)
    assert float(optimizer.seen[1]["hidden.connection.weight"].abs().max()) > 0
    assert torch.equal(net.hidden.connection.weight, replaced)
    assert "does not hold ['hidden.connection.weight']" in caplog.text
    learner.learn(x, y)
    assert caplog.text.count("does not hold") == 1


# S13: state kept on purpose.


@EVERY_RULE
def test_a_recording_in_two_parts(rule: LearningRule, device: torch.device) -> None:
    """With `keep_state`, 4 + 4 steps give the outputs of 8; online, the summed gradient too."""
    net = live_net(device)
    x, y = live_input(8, 3, device=device), labels(3, device=device)
    assert_alive(net, x)
    learner, optimizer = learner_of(net, rule)
    whole = learner.learn(x, y)
    norms = dict(whole.trace_norms)
    first, second = learner.learn(x[:4], y), learner.learn(x[4:], y, keep_state=True)
    assert torch.equal(second.last_output, whole.last_output)
    torch.testing.assert_close((first.output + second.output) / 2, whole.output, rtol=0, atol=1e-12)
    assert second.trace_norms == norms
    mean = {name: (optimizer.seen[1][name] + optimizer.seen[2][name]) / 2 for name in optimizer.seen[0]}
    if rule.online:
        assert_same(mean, optimizer.seen[0], 1e-12)
    else:
        assert furthest(mean, optimizer.seen[0]) > 1e-6  # cut at the seam
    learner.learn(x[4:], y)
    assert furthest(optimizer.seen[3], optimizer.seen[2]) > 1e-6  # negative control: without the state
