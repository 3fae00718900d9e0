"""The learner shows targets and rewards by itself; a run under any signal resumes as if it had never stopped."""

import copy
import io
from typing import Any

import pytest
import torch
from nets import assert_same, assert_untouched, labels, learner_of, live_input, live_net, show, weights
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    DECOLLE,
    DFA,
    ELL,
    ETLP,
    OPZO,
    OSTTP,
    OTTT,
    FeedbackAlignment,
    LearningRule,
    OnlineLearner,
    RewardModulated,
    RuleChoiceError,
    SignalError,
    TracesPropagation,
    attach,
    reset,
    show_reward,
)

ADAPTIVE = LearningRule(signal="adaptive", title="adaptive")
EVERY = pytest.mark.parametrize(
    "rule",
    [DFA(), FeedbackAlignment(), ADAPTIVE, OSTTP(), DECOLLE(), ELL(), OPZO(), TracesPropagation()],
    ids=lambda rule: rule.name,
)


def loop(net: nn.Module, rule: LearningRule, x: Tensor, targets: list[Any], loss: Any) -> dict[str, Tensor]:
    """The plain loop over steps that may have no target: the mean of the steps' gradients."""
    attach(net, rule)
    net.zero_grad(set_to_none=True)
    learned = 0
    for x_t, target in zip(x, targets, strict=True):
        show(net, target)
        output = net(x_t)
        if target is not None:
            loss(output, target).backward()
            learned += 1
    return {name: p.grad / learned for name, p in net.named_parameters() if p.grad is not None}


@EVERY
def test_the_learner_shows_the_target_of_each_step(rule: LearningRule) -> None:
    net, x = live_net(), live_input(5, 4)
    targets = [labels(4), None, (labels(4) + 1) % 3, None, labels(4)]
    expected = loop(copy.deepcopy(net), rule, x, targets, F.cross_entropy)
    learner, recorder = learner_of(net, rule)
    assert learner.learn(x, targets, per_step_target=True).updates == 1
    assert_same(recorder.seen[0], expected)
    same = loop(copy.deepcopy(net), rule, x, [labels(4)] * 5, F.cross_entropy)
    if rule.signal != "noise":
        assert any(not torch.allclose(same[name], expected[name]) for name in same)  # control: the target matters


@EVERY
def test_targets_that_are_numbers(rule: LearningRule) -> None:
    net, x, y = live_net(), live_input(4, 4), torch.rand(4, 3, dtype=torch.float64)
    expected = loop(copy.deepcopy(net), rule, x, [y] * 4, F.mse_loss)
    learner, recorder = learner_of(net, rule, loss=F.mse_loss)
    learner.learn(x, y)
    assert_same(recorder.seen[0], expected)


@EVERY
def test_an_update_every_step(rule: LearningRule) -> None:
    net, x, y = live_net(), live_input(4, 4), labels(4)
    learner, recorder = learner_of(net, rule, update=1)
    assert learner.learn(x, y).updates == 4
    assert len(recorder.seen) == 4
    whole, other = learner_of(live_like(net), rule)
    whole.learn(x, y)
    mean = {name: sum(seen[name] for seen in recorder.seen) / 4 for name in recorder.seen[0]}
    assert_same(mean, other.seen[0])


def live_like(net: nn.Module) -> nn.Module:
    """A network with the weights of `net` and no rule."""
    fresh = live_net()
    fresh.load_state_dict({key: value for key, value in net.state_dict().items() if ".signal." not in key})
    return fresh


@EVERY
def test_evaluation_in_between_changes_nothing(rule: LearningRule) -> None:
    net, x, y = live_net(), live_input(6, 4), labels(4)
    twin = copy.deepcopy(net)
    learner, recorder = learner_of(net, rule, update=6)
    other, undisturbed = learner_of(twin, rule, update=6)
    for step, x_t in enumerate(x):
        learner.step(x_t, y)
        other.step(x_t, y)
        if step == 2:
            before = copy.deepcopy(net.state_dict())
            learner.evaluate(x, (y + 1) % 3)
            learner.predict(x[:2])
            for key, value in net.state_dict().items():
                if isinstance(value, dict):
                    assert value["drawn"] == before[key]["drawn"] > 0
                    assert torch.equal(value["estimate"], before[key]["estimate"])
                else:
                    assert torch.equal(value, before[key]), key
    assert_same(recorder.seen[0], undisturbed.seen[0])
    plain = live_net()
    attach(plain, OTTT())
    plain.load_state_dict(live_like(net).state_dict())
    plain.eval()
    reset(plain)
    with torch.no_grad():
        outputs = torch.stack([plain(x_t) for x_t in x])
    torch.testing.assert_close(learner.predict(x).mean_output, outputs.mean(0))  # no noise, no signal in it


def test_rewards_on_a_stream() -> None:
    net, x, y = live_net(), live_input(3, 4), labels(4)
    twin = copy.deepcopy(net)
    learner, recorder = learner_of(net, RewardModulated())
    rewards = [torch.tensor([1.0, -1.0, 0.5, 2.0]), 1.0, torch.tensor(-3.0)]
    for x_t, reward in zip(x, rewards, strict=True):
        learner.step(x_t, y, reward=reward)
    attach(twin, RewardModulated())
    for x_t, reward, seen in zip(x, rewards, recorder.seen, strict=True):
        twin.zero_grad(set_to_none=True)
        show_reward(twin, reward)
        F.cross_entropy(twin(x_t), y).backward()
        assert_same(seen, {name: p.grad for name, p in twin.named_parameters()})
    with pytest.raises(SignalError, match="none was shown"):
        learner.step(x[0], y)
    with pytest.raises(ValueError, match="without a target"):
        learner.step(x[0], reward=1.0)
    assert learner.step(x[0]).shape == (4, 3)
    show_reward(net, 1.0)
    assert learner.learn(x, y).updates == 1  # one reward for the whole sequence
    with pytest.raises(RuleChoiceError, match="RewardModulated"):
        learner_of(live_net(), OTTT())[0].step(x[0], y, reward=1.0)


def test_a_failed_step_leaves_the_weights() -> None:
    net, x, y = live_net(), live_input(3, 4), labels(4)
    learner, _ = learner_of(net, RewardModulated(), lr=1.0)
    before = weights(net)
    with pytest.raises(SignalError):
        learner.learn(x, y)
    assert_untouched(net, before)
    assert all(p.grad is None for p in net.parameters())


# Optimizers and resuming.


def test_the_signals_parameters_join_the_optimizer_before_a_schedule() -> None:
    net = live_net()
    groups = [{"params": [*net.hidden.parameters()], "lr": 0.5}, {"params": [*net.output.parameters()]}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    learner = OnlineLearner(net, ELL(), F.cross_entropy, optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1, 0.1]
    assert optimizer.param_groups[2]["params"] == [net.hidden.signal.head]
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    head = net.hidden.signal.head.detach().clone()
    learner.learn(live_input(3, 4), labels(4))
    schedule.step()
    assert not torch.equal(net.hidden.signal.head, head)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.01, 0.01])
    OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1))
    assert len(list(net.parameters())) == 4


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
@EVERY
def test_resuming_is_as_if_it_had_never_stopped(rule: LearningRule, kind: type[torch.optim.Optimizer]) -> None:
    x, y = live_input(4, 4), labels(4)

    def begin() -> OnlineLearner:
        torch.manual_seed(3)
        net = live_net()
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        return OnlineLearner(net, rule, F.cross_entropy, kind(net.parameters(), lr=0.01, **options))

    learner = begin()
    learner.learn(x, y)
    learner.learn(x, y)
    file = io.BytesIO()
    torch.save({"net": learner.net.state_dict(), "optimizer": learner.optimizer.state_dict()}, file)
    learner.learn(x, y)
    file.seek(0)
    stored = torch.load(file, weights_only=True)
    other = begin()
    with torch.no_grad():
        for parameter in other.net.parameters():
            parameter.zero_()
    other.net.load_state_dict(stored["net"])
    other.optimizer.load_state_dict(stored["optimizer"])
    other.learn(x, y)
    for (name, mine), theirs in zip(learner.net.named_parameters(), other.net.parameters(), strict=True):
        assert torch.equal(mine, theirs), name
    assert any(not torch.equal(p, q) for p, q in zip(learner.net.parameters(), stored["net"].values(), strict=False))


def test_a_random_teacher_follows_torchs_generator() -> None:
    x, y = live_input(6, 4), labels(4)

    def updates(seed: int) -> list[int]:
        learner, _ = learner_of(live_net(), ETLP(steps=3), update=1)
        torch.manual_seed(seed)
        return [learner.learn(x, y).updates for _ in range(3)]

    assert updates(1) == updates(1)
    assert updates(1) != updates(2)
