"""The learner on whole sequences: what an update is, what it leaves alone, and what it refuses."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from nets import (
    EVERY_RULE,
    ONLINE,
    SUMMED,
    assert_alive,
    assert_same,
    furthest,
    gradients,
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
    ETBlock,
    ETLinear,
    LearningRule,
    OnlineLearner,
    Readout,
    SequenceLoss,
    bptt_gradients,
)

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
