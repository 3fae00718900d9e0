"""The figures of a sequence, running streams beside evaluations, and refusals of the learner."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
    gradients,
    labels,
    learner_of,
    live_input,
    live_net,
    weights,
)
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    BPTT,
    LIF,
    OTTT,
    SLTT,
    LearningRule,
    OnlineLearner,
    Readout,
    RuleChoiceError,
    SequenceLoss,
    StateShapeError,
    bptt_gradients,
)

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
