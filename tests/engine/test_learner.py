"""The learner on whole sequences: what an update is, what it leaves alone, and what it refuses."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from nets import assert_alive, assert_same, furthest, gradients, labels, live_input, live_net, loop_gradients
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    BPTT,
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
    RuleChoiceError,
    SequenceLoss,
    StateShapeError,
    bptt_gradients,
)

RULES = [OTTT(), SLTT(), BPTT()]
EVERY_RULE = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
ONLINE = pytest.mark.parametrize("rule", RULES[:2], ids=lambda rule: rule.name)
SUMMED: dict[str, Any] = {"reduction": "sum"}


class Recorder(torch.optim.SGD):
    """Plain descent that keeps the gradients it was given, one dictionary per update."""

    def __init__(self, net: nn.Module, lr: float = 0.0, **options: Any) -> None:
        super().__init__(net.parameters(), lr=lr, **options)
        self.net, self.seen = net, list[dict[str, Tensor]]()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.seen.append(gradients(self.net))
        super().step(closure)


def learner_of(
    net: nn.Module, rule: LearningRule, loss: Any = F.cross_entropy, lr: float = 0.0, **options: Any
) -> tuple[OnlineLearner, Recorder]:
    optimizer = Recorder(net, lr)
    return OnlineLearner(net, rule, loss, optimizer, **options), optimizer


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def assert_untouched(net: nn.Module, before: dict[str, Tensor]) -> None:
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name


# The gradient of an update.


@EVERY_RULE
def test_the_update_is_the_gradient_of_the_mean_loss(rule: LearningRule, device: torch.device) -> None:
    net = live_net(device)
    x, y = live_input(6, 5, device=device), labels(5, device=device)
    assert_alive(net, x)
    learner, optimizer = learner_of(net, rule)
    result = learner.learn(x, y)
    assert result.updates == len(optimizer.seen) == 1
    expected = loop_gradients(net, x, y) if rule.online else bptt_gradients(net, x, y)
    assert_same(optimizer.seen[0], expected, 1e-12)
    norm = math.sqrt(sum(float(g.square().sum()) for g in expected.values()))
    assert result.gradient_norm == pytest.approx(norm, rel=1e-12)


@EVERY_RULE
@pytest.mark.parametrize("batch", [1, 2, 3, 7])
def test_batch_gradient_is_the_mean_of_single_sample_gradients(
    rule: LearningRule, batch: int, device: torch.device
) -> None:
    """G30."""
    net = live_net(device)
    x, y = live_input(4, batch, device=device), labels(batch, device=device)
    assert_alive(net, x, low=0.01)
    learner, optimizer = learner_of(net, rule)
    together = learner.learn(x, y)
    singles = [learner.learn(x[:, b : b + 1], y[b : b + 1]) for b in range(batch)]
    mean = {name: sum(seen[name] for seen in optimizer.seen[1:]) / batch for name in optimizer.seen[0]}
    assert_same(optimizer.seen[0], mean, 1e-12)
    assert together.output.shape == (batch, 3)
    assert all(single.output.shape == (1, 3) for single in singles)
    assert together.loss == pytest.approx(sum(s.loss for s in singles) / batch, rel=1e-12)
    torch.testing.assert_close(together.output, torch.cat([s.output for s in singles]), rtol=0, atol=1e-12)


@EVERY_RULE
def test_a_sample_twice_is_the_sample_once_and_order_is_nothing(rule: LearningRule, device: torch.device) -> None:
    """G30: the mean loss does not notice, the sum doubles, a permutation permutes."""
    net = live_net(device)
    x, y = live_input(3, 1, 6, device=device), labels(1, device=device)
    x[0] = 1.0
    learner, optimizer = learner_of(net, rule)
    learner.learn(x, y)
    learner.learn(x.repeat(1, 2, 1), y.repeat(2))
    assert_same(optimizer.seen[1], optimizer.seen[0], 1e-12)
    learner.loss = lambda output, target: F.cross_entropy(output, target, **SUMMED)
    learner.learn(x.repeat(1, 2, 1), y.repeat(2))
    assert_same(optimizer.seen[2], {name: 2 * g for name, g in optimizer.seen[0].items()}, 1e-12)
    x, y, order = live_input(3, 5, device=device), labels(5, device=device), torch.tensor([3, 1, 4, 0, 2])
    first, second = learner.learn(x, y), learner.learn(x[:, order], y[order])
    assert_same(optimizer.seen[4], optimizer.seen[3], 1e-12)
    torch.testing.assert_close(second.output, first.output[order.to(device)], rtol=0, atol=1e-12)


@ONLINE
def test_two_sequences_equal_two_runs(rule: LearningRule, device: torch.device) -> None:
    net = live_net(device)
    x, y = live_input(5, 4, device=device), labels(4, device=device)
    other = live_input(7, 4, device=device)
    learner, optimizer = learner_of(net, rule)
    learner.learn(x, y)
    learner.learn(other, y)
    learner.learn(x, y)
    fresh, alone = learner_of(copy.deepcopy(net), rule)
    fresh.learn(other, y)
    assert_same(optimizer.seen[1], alone.seen[0], 1e-14)
    assert_same(optimizer.seen[2], optimizer.seen[0], 1e-14)
    assert furthest(optimizer.seen[0], optimizer.seen[1]) > 1e-4


@EVERY_RULE
def test_same_seed_same_bits(rule: LearningRule) -> None:
    def weights_after_training(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        net = live_net(dtype=torch.float32)
        learner = OnlineLearner(net, rule, SequenceLoss("mix"), torch.optim.Adam(net.parameters(), 0.01), clip_norm=1.0)
        for _ in range(3):
            learner.learn(live_input(5, 4, dtype=torch.float32), labels(4))
        return [parameter.detach() for parameter in net.parameters()]

    first, second, third = weights_after_training(0), weights_after_training(0), weights_after_training(1)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, third, strict=True))


# G03: updates every step and every sequence, whatever the last layer.


@pytest.mark.parametrize("update", ["sequence", 1])
@pytest.mark.parametrize("last", ["LIF", "LI", "readout"])
@ONLINE
def test_two_epochs_with_any_last_layer(rule: LearningRule, last: str, update: str | int, device: torch.device) -> None:
    layers: dict[str, nn.Module] = {
        "LIF": ETBlock(ETLinear(4, 2), LIF()),
        "LI": ETBlock(ETLinear(4, 2), LI()),
        "readout": Readout(nn.Linear(4, 2)),
    }
    net = nn.Sequential(ETBlock(ETLinear(8, 4), LIF()), layers[last]).to(device)
    before = weights(net)
    learner, optimizer = learner_of(net, rule, lr=0.1, update=update)
    for _ in range(2):
        result = learner.learn(live_input(4, 2, 8, device=device, dtype=torch.float32), labels(2, 2, device))
    assert result.updates == (4 if update == 1 else 1)
    assert len(optimizer.seen) == 2 * result.updates
    assert not any(torch.equal(value, before[name]) for name, value in net.state_dict().items())


# G14: the order within a step.


@pytest.mark.parametrize(
    ("rule", "traces"), [(OTTT(), [1.0, 1.5, 0.75, 1.375]), (SLTT(), [1.0, 1.0, 0.0, 1.0])], ids=["OTTT", "SLTT"]
)
@pytest.mark.parametrize("chosen", range(4))
def test_a_signal_at_one_step_meets_the_trace_of_that_step(
    rule: LearningRule, traces: list[float], chosen: int, device: torch.device
) -> None:
    """x = 1, 1, 0, 1 and decay 0.5, signal 1 at one step: the gradient is the trace, updated before its use."""
    net = ETBlock(ETLinear(1, 1), LI(decay=0.5)).to(device, torch.float64)
    learner, optimizer = learner_of(net, rule, loss=lambda output, _: output.sum())
    x = torch.tensor([1.0, 1.0, 0.0, 1.0], device=device, dtype=torch.float64).reshape(4, 1, 1)
    result = learner.learn(x, [1 if t == chosen else None for t in range(4)], per_step_target=True)
    assert float(optimizer.seen[0]["connection.weight"]) == traces[chosen]
    assert result.updates == 1
    learner.reset()
    for t, x_t in enumerate(x):
        learner.step(x_t, 1 if t == chosen else None)
    assert len(optimizer.seen) == 2
    assert float(optimizer.seen[1]["connection.weight"]) == traces[chosen]


# N10: losses are means over steps.


@EVERY_RULE
@pytest.mark.parametrize("steps", [1, 4])
def test_mean_over_steps_times_steps_is_the_sum(rule: LearningRule, steps: int, device: torch.device) -> None:
    net = live_net(device)
    x, y = live_input(steps, 4, device=device), labels(4, device=device)
    x[0] = 1.0
    learner, optimizer = learner_of(net, rule)
    learner.learn(x, y)
    net.zero_grad()
    learner.reset()
    outputs = []
    for x_t in x:
        outputs.append(F.cross_entropy(net(x_t), y))
        if rule.online:
            outputs[-1].backward()
    if not rule.online:
        torch.stack(outputs).sum().backward()
    assert_same({name: steps * g for name, g in optimizer.seen[0].items()}, gradients(net), 1e-10)


@ONLINE
@pytest.mark.parametrize(
    ("steps", "k", "lengths"), [(6, 1, [1] * 6), (6, 2, [2, 2, 2]), (7, 3, [3, 3, 1]), (3, 5, [3])]
)
def test_an_update_every_k_steps_is_the_mean_over_its_steps(
    rule: LearningRule, steps: int, k: int, lengths: list[int], device: torch.device
) -> None:
    net = live_net(device)
    x, y = live_input(steps, 4, device=device), labels(4, device=device)
    x[0] = 1.0
    learner, optimizer = learner_of(net, rule, update=k)
    result = learner.learn(x, y)
    assert result.updates == len(optimizer.seen) == len(lengths)
    learner.reset()
    start = 0
    for seen, length in zip(optimizer.seen, lengths, strict=True):
        net.zero_grad()
        for x_t in x[start : start + length]:
            (F.cross_entropy(net(x_t), y) / length).backward()
        assert_same(seen, gradients(net), 1e-12)
        start += length


@ONLINE
def test_updates_count_the_steps_that_had_a_loss(rule: LearningRule, device: torch.device) -> None:
    net, y = live_net(device), labels(4, device=device)
    learner, optimizer = learner_of(net, rule, update=2)
    targets = [None, y, None, None, y, None, y]
    result = learner.learn(live_input(7, 4, device=device), targets, per_step_target=True)
    assert result.updates == len(optimizer.seen) == 2
    assert result.steps == 7


@EVERY_RULE
def test_an_update_changes_weights_by_the_learning_rate(rule: LearningRule, device: torch.device) -> None:
    net = live_net(device)
    before = weights(net)
    learner, optimizer = learner_of(net, rule, lr=0.5)
    learner.learn(live_input(5, 4, device=device), labels(4, device=device))
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, before[name] - 0.5 * optimizer.seen[0][name], rtol=0, atol=1e-14)
        assert not torch.equal(value, before[name])


# Clipping.


@pytest.mark.parametrize("update", ["sequence", 2])
def test_the_norm_is_clipped_once_per_update(update: str | int, device: torch.device) -> None:
    net = live_net(device)
    x, y = live_input(6, 4, device=device), labels(4, device=device)
    x[0] = 1.0
    free, unclipped = learner_of(copy.deepcopy(net), OTTT(), update=update)
    free.learn(x, y)
    norms = [math.sqrt(sum(float(g.square().sum()) for g in seen.values())) for seen in unclipped.seen]
    bound = sorted(norms)[len(norms) // 2] * 0.9
    learner, optimizer = learner_of(net, OTTT(), update=update, clip_norm=bound)
    result = learner.learn(x, y)
    assert result.gradient_norm == pytest.approx(norms[-1], rel=1e-12)  # before clipping
    for seen, whole, norm in zip(optimizer.seen, unclipped.seen, norms, strict=True):
        scale = min(1.0, bound / norm)
        assert_same(seen, {name: scale * g for name, g in whole.items()}, 1e-5)
    assert any(norm > bound for norm in norms)


# G16: `.grad` is autograd's, so micro-batches add up in a plain loop.


@ONLINE
@pytest.mark.parametrize("set_to_none", [True, False])
def test_micro_batches_accumulate(rule: LearningRule, set_to_none: bool, device: torch.device) -> None:
    net = live_net(device)
    rule.attach(net)
    x, y = live_input(5, 4, device=device), labels(4, device=device)
    assert_alive(net, x)
    whole = loop_gradients(net, x, y)
    net.zero_grad(set_to_none=set_to_none)
    assert all((p.grad is None) == set_to_none for p in net.parameters())
    for rows in (slice(0, 2), slice(2, 4)):
        for module in net:
            module.neuron.reset()
            if module.connection.trace is not None:
                module.connection.trace.reset()
        for x_t in x[:, rows]:
            (F.cross_entropy(net(x_t), y[rows]) / len(x) / 2).backward()
    assert_same(gradients(net), whole, 1e-10)


# G17: frozen parameters (the gradients themselves are in test_layers.py).


@EVERY_RULE
@pytest.mark.parametrize("frozen", ["hidden", "output"])
def test_a_frozen_block_is_bit_identical_under_weight_decay(
    rule: LearningRule, frozen: str, device: torch.device
) -> None:
    net = live_net(device)
    block = net.get_submodule(frozen).requires_grad_(False)
    before = weights(net)
    learner = OnlineLearner(net, rule, F.cross_entropy, torch.optim.AdamW(net.parameters(), 0.1, weight_decay=0.1))
    for _ in range(3):
        learner.learn(live_input(4, 4, device=device), labels(4, device=device))
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]) == name.startswith(frozen)
    assert all(parameter.grad is None for parameter in block.parameters())
    block.requires_grad_(True)
    learner.learn(live_input(4, 4, device=device), labels(4, device=device))
    assert not any(torch.equal(value, before[name]) for name, value in net.state_dict().items())


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
    with pytest.raises(NonFiniteError, match=r"non-finite value|no weight was changed"):
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


def test_large_but_finite_inputs_are_not_taken_for_infinite(device: torch.device) -> None:
    """Their sum overflows, they do not: what is refused is what the network makes of them."""
    net = live_net(device, torch.float32)
    learner, _ = learner_of(net, SLTT(), loss=lambda output, _: output.sum())
    x = torch.full((2, 2, 6), 3e38, device=device)
    assert not bool(torch.isfinite(x[0].sum()))
    with pytest.raises(NonFiniteError, match="no weight was changed"):
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
    first, second = learner.learn(x[:4], y), learner.learn(x[4:], y, keep_state=True)
    assert torch.equal(second.last_output, whole.last_output)
    torch.testing.assert_close((first.output + second.output) / 2, whole.output, rtol=0, atol=1e-12)
    assert second.trace_norms == whole.trace_norms
    mean = {name: (optimizer.seen[1][name] + optimizer.seen[2][name]) / 2 for name in optimizer.seen[0]}
    if rule.online:
        assert_same(mean, optimizer.seen[0], 1e-12)
    else:
        assert furthest(mean, optimizer.seen[0]) > 1e-6  # cut at the seam
    learner.learn(x[4:], y)
    assert furthest(optimizer.seen[3], optimizer.seen[2]) > 1e-6  # negative control: without the state


# Figures, modes and running streams.


def test_figures_by_hand(device: torch.device) -> None:
    net = live_net(device, output=LIF)
    x, y = live_input(6, 4, device=device), labels(4, device=device)
    assert_alive(net, x, low=0.0)
    learner, _ = learner_of(net, OTTT())
    outputs, hidden = [], []
    handle = net.hidden.register_forward_hook(lambda *args: hidden.append(args[2].detach()))
    with torch.no_grad():
        for x_t in x:
            outputs.append(net(x_t))
    handle.remove()
    result, stacked = learner.learn(x, y), torch.stack(outputs)
    torch.testing.assert_close(result.output, stacked.mean(0))
    assert torch.equal(result.last_output, stacked[-1])
    assert result.loss == pytest.approx(float(torch.stack([F.cross_entropy(o, y) for o in outputs]).mean()))
    assert result.accuracy == pytest.approx(float((stacked.sum(0).argmax(-1) == y).double().mean()))
    assert result.accuracy_last == pytest.approx(float((stacked[-1].argmax(-1) == y).double().mean()))
    assert result.firing_rates["hidden"] == pytest.approx(float(torch.stack(hidden).mean()))
    assert result.firing_rates["output"] == pytest.approx(float(stacked.mean()))
    assert result.steps == 6
    assert result.batch_size == 4
    assert set(result.trace_norms) == {"hidden", "output"}
    assert all(norm > 0 for norm in result.trace_norms.values())


def test_accuracy_per_step_counts_the_steps_that_have_a_target(device: torch.device) -> None:
    net = Readout(nn.Linear(3, 3, bias=False)).to(device)
    nn.init.eye_(net.connection.weight)
    learner, _ = learner_of(net, SLTT())
    x = torch.eye(3, device=device)[:, None]  # the output at step t is class t
    targets = [torch.tensor([c], device=device) for c in (0, 1, 0)]
    assert learner.learn(x, targets, per_step_target=True).accuracy == pytest.approx(2 / 3)
    result = learner.learn(x, [targets[0], None, targets[2]], per_step_target=True)
    assert result.accuracy == 0.5
    assert result.accuracy_last == 0.0
    result = learner.learn(x, [targets[0], targets[1], None], per_step_target=True)
    assert result.accuracy == 1.0
    assert result.accuracy_last is None


def test_figures_of_a_half_precision_network_do_not_stall(device: torch.device) -> None:
    """N02's kind: 1,000 outputs of 1 + 2^-7 summed in bfloat16 would stop at 256."""
    net = Readout(nn.Linear(1, 2)).to(device, torch.bfloat16)
    nn.init.zeros_(net.connection.weight)
    with torch.no_grad():
        net.connection.bias.copy_(torch.tensor([1.0078125, 0.0]))
    learner = OnlineLearner(net, SLTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), 0.0))
    x, y = torch.zeros(1000, 1, 1, dtype=torch.bfloat16, device=device), torch.zeros(1, dtype=torch.long, device=device)
    result = learner.evaluate(x, y)
    assert float(result.output[0, 0]) == pytest.approx(1.0078125, rel=1e-5)
    assert result.loss == pytest.approx(math.log1p(math.exp(-1.0078125)), rel=5e-3)
    running = OnlineLearner(
        net, SLTT(), SequenceLoss(readout="running_mean"), torch.optim.SGD(net.parameters(), 0.0)
    ).evaluate(x, y)
    assert running.loss == pytest.approx(math.log1p(math.exp(-1.0078125)), rel=1e-4)


@EVERY_RULE
def test_predict_and_evaluate_agree_with_learn_and_touch_nothing(rule: LearningRule, device: torch.device) -> None:
    net = live_net(device)
    net.add_module("drop", nn.Dropout(0.9))
    net.hidden.eval()
    net.hidden.train()
    x, y = live_input(5, 4, device=device), labels(4, device=device)
    learner, optimizer = learner_of(net, rule, lr=0.1)
    before = weights(net)
    modes = {name: module.training for name, module in net.named_modules()}
    figures, prediction = learner.evaluate(x, y), learner.predict(x)
    assert_untouched(net, before)
    assert not optimizer.seen
    assert figures.gradient_norm == 0.0
    assert figures.updates == 0
    assert {name: module.training for name, module in net.named_modules()} == modes
    torch.testing.assert_close(prediction.mean_output, figures.output)
    assert torch.equal(prediction.last_output, figures.last_output)
    assert prediction.steps == figures.steps == 5
    assert not prediction.mean_output.requires_grad
    assert all(parameter.grad is None for parameter in net.parameters())
    del net.drop
    learned = learner.learn(x, y)
    assert learned.loss == pytest.approx(figures.loss, rel=1e-12)
    assert learned.accuracy == figures.accuracy
    assert learned.firing_rates == pytest.approx(figures.firing_rates)


@ONLINE
def test_a_generator_equals_a_tensor(rule: LearningRule, device: torch.device) -> None:
    net = live_net(device)
    x, y = live_input(5, 4, device=device), labels(4, device=device)
    learner, optimizer = learner_of(net, rule)
    pulled = []

    def camera() -> Iterator[Tensor]:
        for t, x_t in enumerate(x):
            pulled.append(t)
            yield x_t

    results = [learner.learn(x, y), learner.learn(list(x), y), learner.learn(camera(), y)]
    assert pulled == list(range(5))
    for result, seen in zip(results[1:], optimizer.seen[1:], strict=True):
        assert_same(seen, optimizer.seen[0], 1e-14)
        assert result.loss == results[0].loss
    assert torch.equal(learner.predict(camera()).mean_output, learner.predict(x).mean_output)
    assert learner.evaluate(camera(), y).loss == learner.evaluate(x, y).loss


@EVERY_RULE
def test_a_target_per_step(rule: LearningRule, device: torch.device) -> None:
    net = live_net(device)
    x = live_input(5, 4, device=device)
    y = torch.stack([labels(4, device=device).roll(t) for t in range(5)])
    learner, optimizer = learner_of(net, rule)
    result = learner.learn(x, y, per_step_target=True)
    if rule.online:
        net.zero_grad()
        learner.reset()
        for x_t, y_t in zip(x, y, strict=True):
            (F.cross_entropy(net(x_t), y_t) / 5).backward()
        assert_same(optimizer.seen[0], gradients(net), 1e-12)
    else:
        assert_same(optimizer.seen[0], bptt_gradients(net, x, y, per_step_target=True), 1e-12)
    learner.learn(x, y[0])
    assert furthest(optimizer.seen[1], optimizer.seen[0]) > 1e-5
    assert learner.evaluate(x, iter(y), per_step_target=True).loss == pytest.approx(result.loss)
    for wrong in (y[:4], torch.cat([y, y])):
        with pytest.raises(ValueError, match=r"targets ended after 4 steps|more targets"):
            learner.learn(x, wrong, per_step_target=True)
    learner.learn(x, y[0])  # the failure left nothing behind
    assert_same(optimizer.seen[-1], optimizer.seen[1], 1e-14)


# Refusals.


@pytest.mark.parametrize("x", [torch.zeros(0, 2, 6), [], iter(())])
def test_a_sequence_without_steps_is_refused(x: Any) -> None:
    learner, optimizer = learner_of(live_net(), OTTT())
    with pytest.raises(ValueError, match=r"T = 0.*pass T >= 1"):
        learner.learn(x, labels(2))
    with pytest.raises(ValueError, match="T = 0"):
        learner.predict(x)
    assert not optimizer.seen


@EVERY_RULE
def test_a_changed_batch_size(rule: LearningRule, device: torch.device) -> None:
    """S01: an error in mid-sequence, which leaves nothing behind; between sequences it simply works."""
    net = live_net(device)
    learner, optimizer = learner_of(net, rule)
    x, y = live_input(5, 4, device=device), labels(4, device=device)
    learner.learn(x[:, :3], y[:3])
    changing = [x[0], x[1], x[2, :1]]
    with pytest.raises(StateShapeError, match=r"\[1, 12\].*\[4, 12\].*reset\(net\)"):
        learner.learn(changing, [y, y, y[:1]], per_step_target=True)
    assert len(optimizer.seen) == 1
    learner.learn(x[:, :3], y[:3])
    assert_same(optimizer.seen[1], optimizer.seen[0], 1e-14)


@pytest.mark.usefixtures("unchecked")
def test_illegal_arguments_of_the_learner() -> None:
    net = live_net()
    build = lambda **options: learner_of(net, options.pop("rule", OTTT()), **options)  # noqa: E731
    for update in (0, -1, True, 1.5, "step"):
        with pytest.raises(ValueError, match=rf"update={update!r}: write 'sequence', or the number of steps"):
            build(update=update)
    with pytest.raises(RuleChoiceError, match=r"update=3 with BPTT.*update='sequence'"):
        build(update=3, rule=BPTT())
    for clip in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=rf"clip_norm={clip}.*above 0"):
            build(clip_norm=clip)
    with pytest.raises(ValueError, match=r"holds none of the network's parameters.*net\.parameters\(\)"):
        OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1))
    learner, _ = build(rule=BPTT())
    with pytest.raises(RuleChoiceError, match=r"step\(\) under BPTT.*OTTT\(\) or SLTT\(\).*learn\(x, y\)"):
        learner.step(live_input(1, 2)[0], labels(2))
