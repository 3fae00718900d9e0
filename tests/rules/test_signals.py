"""Signals that carry the output's error (O21): set right they are the exact rule, and training brings them near it."""

import pytest
import torch
from nets import show
from oracles.networks import error, lively, mlp, online_gradients, oracle, problem, scaled, sequence
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    DFA,
    DRTRL,
    LI,
    LIF,
    OSTTP,
    OTTT,
    SLTT,
    ETBlock,
    ETConv2d,
    ETLinear,
    ETRecurrent,
    FeedbackAlignment,
    LearningRule,
    OnlineLearner,
    Readout,
    RewardModulated,
    RuleChoiceError,
    attach,
    reset,
    show_reward,
    show_target,
)
from snnlearn.engine.sequence import Meter
from snnlearn.nn.signal import AdaptiveSignal, RandomSignal

EXACT = 1e-12
ADAPTIVE = LearningRule(transition="leak", storage="pre", signal="adaptive")


def gradients_as_attached(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Learn by a plain loop with what is attached already; return the gradient of the mean step loss."""
    reset(net)
    net.zero_grad(set_to_none=True)
    show(net, y)
    with Meter(net) as meter:
        for x_t in x:
            (F.cross_entropy(net(x_t), y) / len(x)).backward()
    for name, rate in meter.firing_rates().items():
        assert 0.02 < rate < 0.8, f"{name} fires at {rate:.3f}: the comparison would be empty"
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def convolutional() -> nn.Sequential:
    net = nn.Sequential(
        ETBlock(ETConv2d(2, 3, 3, padding=1), LIF()), nn.Flatten(), Readout(nn.Linear(3 * 4 * 5, 3, bias=False))
    )
    return scaled(net, 1.5)


def leaky() -> nn.Sequential:
    return scaled(nn.Sequential(ETBlock(ETLinear(7, 9), LIF()), ETBlock(ETLinear(9, 3), LI(tau=4.0))))


# Set the matrices to the weights, and the exact rule comes back.


@pytest.mark.parametrize("transition", ["leak", "local", "none"])
def test_a_broadcast_by_the_readouts_own_weights_is_exact(transition: str) -> None:
    storage = {"leak": "pre", "local": "synaptic", "none": "none"}[transition]
    net, x, y = problem(mlp(LIF, sizes=(7, 9)), sequence(7))
    attach(net, LearningRule(transition=transition, storage=storage, signal="random"))
    drawn = gradients_as_attached(net, x, y)
    signal = net[0].signal
    assert isinstance(signal, RandomSignal)
    assert signal.feedback is not None
    assert signal.feedback.shape == (9, 3)
    signal.feedback = net[1].connection.weight.detach().T.clone()
    mine = gradients_as_attached(net, x, y)
    true = oracle(net, x, y, cut="all" if transition == "none" else ())
    for name, gradient in mine.items():
        assert error(gradient, true[name]) < EXACT, name
    assert error(drawn["0.connection.weight"], true["0.connection.weight"]) > 0.1  # control: as drawn it is not
    assert error(drawn["1.connection.weight"], true["1.connection.weight"]) < EXACT  # the readout always is


def test_a_broadcast_to_a_convolution_is_exact() -> None:
    net, x, y = problem(convolutional(), sequence(2, 4, 5))
    attach(net, DFA())
    drawn = gradients_as_attached(net, x, y)
    net[0].signal.feedback = net[2].connection.weight.detach().T.reshape(3, 4, 5, 3).clone()
    mine = gradients_as_attached(net, x, y)
    true = oracle(net, x, y)
    for name, gradient in mine.items():
        assert error(gradient, true[name]) < EXACT, name
    assert error(drawn["0.connection.weight"], true["0.connection.weight"]) > 0.1


def test_the_symmetric_broadcast_is_the_spatial_signal() -> None:
    for net, x in ((mlp(LIF, sizes=(7, 9)), sequence(7)), (leaky(), sequence(7))):
        net, x, y = problem(net, x)
        mine = online_gradients(net, LearningRule(signal="symmetric"), x, y)
        spatial = online_gradients(net, OTTT(), x, y)
        for name, gradient in mine.items():
            assert error(gradient, spatial[name]) < EXACT, name


def test_alignment_by_the_weights_themselves_is_exact() -> None:
    """Through a convolution, linear and recurrent blocks and a static readout."""
    net = scaled(
        nn.Sequential(
            ETBlock(ETConv2d(2, 3, 3, padding=1), LIF()),
            nn.AvgPool2d((2, 1)),
            nn.Flatten(),
            ETBlock(ETLinear(30, 8), LIF()),
            ETBlock(ETRecurrent(8, 6), LIF()),
            Readout(nn.Linear(6, 3)),
        )
    )
    net, x, y = problem(net, sequence(2, 4, 5))
    attach(net, FeedbackAlignment())
    drawn = gradients_as_attached(net, x, y)
    for module in net:
        if isinstance(module, ETBlock):
            module.feedback = module.connection.effective_weight().detach()
        if isinstance(module, Readout):
            module.feedback = module.connection.weight.detach()
    mine = gradients_as_attached(net, x, y)
    true = online_gradients(net, OTTT(), x, y)
    assert mine.keys() == true.keys()
    for name, gradient in mine.items():
        assert error(gradient, true[name]) < EXACT, name
    for name in ("0.connection.weight", "3.connection.weight", "4.connection.weight", "4.connection.recurrent_weight"):
        assert error(drawn[name], true[name]) > 0.1, name  # the first weights below a random matrix
    assert error(drawn["5.connection.weight"], true["5.connection.weight"]) < EXACT


@pytest.mark.parametrize("rule", [DRTRL(), SLTT()], ids=lambda rule: rule.name)
def test_alignment_goes_with_every_trace(rule: LearningRule) -> None:
    net, x, y = problem(mlp(lambda: LIF(reset="hard")), sequence(7))
    attach(net, LearningRule(transition=rule.transition, storage=rule.storage, signal="alignment"))
    drawn = gradients_as_attached(net, x, y)
    for module in (net[0], net[1], net[2]):
        module.feedback = module.connection.weight.detach()
    mine = gradients_as_attached(net, x, y)
    true = online_gradients(net, rule, x, y)
    for name, gradient in mine.items():
        assert error(gradient, true[name]) < EXACT, name
    assert error(drawn["0.connection.weight"], true["0.connection.weight"]) > 0.1


@pytest.mark.parametrize("make", [lambda: mlp(LIF, sizes=(7, 9)), leaky], ids=["static", "leaky"])
def test_an_adaptive_broadcast_learns_as_the_readout_does(make) -> None:  # type: ignore[no-untyped-def]
    net, x, y = problem(make(), sequence(7))
    attach(net, ADAPTIVE)
    signal = net[0].signal
    assert isinstance(signal, AdaptiveSignal)
    drawn = gradients_as_attached(net, x, y)
    assert error(drawn["0.signal.feedback"], drawn["1.connection.weight"].T) < EXACT
    untraced = online_gradients(net, SLTT(), x, y)["1.connection.weight"]
    if isinstance(net[1], ETBlock):
        assert error(drawn["1.connection.weight"], untraced) > 1e-2  # control: the readout's memory is in both
    attach(net, ADAPTIVE)
    with torch.no_grad():
        net[0].signal.feedback.copy_(net[1].connection.weight.T)
    mine = gradients_as_attached(net, x, y)
    true = online_gradients(net, OTTT(), x, y)
    for name, gradient in true.items():
        assert error(mine[name], gradient) < EXACT, name
    assert error(drawn["0.connection.weight"], true["0.connection.weight"]) > 0.1


def test_the_trace_under_a_constant_signal_counts_the_units_spikes() -> None:
    """A reward of -n is u = 1, so the gradient is that of the number of spikes: the trace part alone."""
    for rule in (RewardModulated(), LearningRule(transition="local", storage="synaptic", signal="reward")):
        net, x, y = problem(mlp(LIF, sizes=(7, 9)), sequence(7))
        attach(net, rule)
        show_reward(net, -float(x.shape[1]))
        mine = gradients_as_attached(net, x, y)
        true = oracle(nn.Sequential(net[0]), x, y, loss=lambda spikes, _: spikes.sum())
        for name in ("connection.weight", "connection.bias"):
            assert error(mine[f"0.{name}"], true[f"0.{name}"] * len(x)) < EXACT
        show_reward(net, float(x.shape[1]))
        opposed = gradients_as_attached(net, x, y)
        assert error(opposed["0.connection.weight"], -mine["0.connection.weight"]) < EXACT  # the sign control


def test_a_projected_target_by_hand() -> None:
    """Two steps, one unit: u = -B y / n with n = 2, D-RTRL's eligibility, no error anywhere in it."""
    net = nn.Sequential(ETBlock(ETLinear(1, 1), LIF(decay=0.5)), Readout(nn.Linear(1, 2))).double()
    with torch.no_grad():
        net[0].connection.weight.fill_(0.8)
        net[0].connection.bias.zero_()
    attach(net, OSTTP())
    net(torch.ones(2, 1, dtype=torch.float64))
    signal = net[0].signal
    signal.feedback = torch.tensor([[3.0, 5.0]], dtype=torch.float64)
    mine = gradients_as_attached(net, torch.ones(2, 2, 1, dtype=torch.float64), torch.tensor([0, 1]))
    v = 0.8  # then 0.5 * 0.8 + 0.8 = 1.2: silent, then a spike
    psi = [1 / (1 + (torch.pi * (u - 1.0)) ** 2) for u in (v, 0.5 * v + v)]
    by_hand = -(3.0 + 5.0) / 2 * (psi[0] * 1.0 + psi[1] * 1.5)
    assert float(mine["0.connection.weight"]) == pytest.approx(by_hand, rel=1e-12)
    assert float(mine["0.connection.bias"]) == pytest.approx(by_hand, rel=1e-12)


def test_targets_may_be_numbers() -> None:
    net, x, y = problem(mlp(LIF, sizes=(7, 9)), sequence(7))
    rule = LearningRule(signal="target")
    attach(net, rule)
    by_label = gradients_as_attached(net, x, y)["0.connection.weight"]
    reset(net)
    net.zero_grad(set_to_none=True)
    numbers = 2.0 * F.one_hot(y, 3).double()
    show_target(net, numbers)
    for x_t in x:
        F.mse_loss(net(x_t), numbers).backward()
    assert error(net[0].connection.weight.grad, 2 * by_label) < EXACT


# Training brings signal and weights together.


def cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0))


def agreement(net: nn.Sequential, rule: LearningRule, x: Tensor, y: Tensor, **matrices: Tensor) -> float:
    """Return the cosine of the first block's weight gradient with that of the spatial signal."""
    true = online_gradients(net, OTTT(), x, y)["0.connection.weight"]
    attach(net, rule)
    if "adaptive" in matrices:
        with torch.no_grad():
            net[0].signal.feedback.copy_(matrices["adaptive"])
    return cosine(gradients_as_attached(net, x, y)["0.connection.weight"], true)


def task() -> tuple[Tensor, Tensor]:
    """Three classes, each a pattern of its own."""
    y = torch.arange(30) % 3
    patterns = torch.randn(3, 7, dtype=torch.float64).relu() * 1.5
    return (patterns[y] + 0.3 * torch.rand(8, 30, 7, dtype=torch.float64)), y


@pytest.mark.parametrize("rule", [DFA(seed=3), FeedbackAlignment(seed=3)], ids=lambda rule: rule.name)
@pytest.mark.usefixtures("unchecked")
def test_weights_align_with_a_fixed_feedback(rule: LearningRule) -> None:
    before, after = [], []
    for seed in range(3):
        torch.manual_seed(seed)
        x, y = task()
        net = lively(scaled(nn.Sequential(ETBlock(ETLinear(7, 20), LIF()), Readout(nn.Linear(20, 3))), 1.0), x)
        with torch.no_grad():
            net[1].connection.weight.mul_(0.2)
        before.append(agreement(net, rule, x, y))
        learner = OnlineLearner(
            net, rule, F.cross_entropy, torch.optim.SGD(net.parameters(), lr=1.0, weight_decay=0.02)
        )
        first = learner.learn(x, y).loss
        losses = [learner.learn(x, y).loss for _ in range(40)]
        assert losses[-1] < 0.3 * first
        after.append(agreement(net, rule, x, y))
    assert abs(sum(before) / len(before)) < 0.2, before  # control: as drawn they have nothing to do with each other
    assert min(after) > 0.4, (before, after)


@pytest.mark.usefixtures("unchecked")
def test_an_adaptive_feedback_meets_the_readout() -> None:
    """With the same decay of both, what tells B from W^T can only shrink."""
    x, y = task()
    net = lively(scaled(nn.Sequential(ETBlock(ETLinear(7, 20), LIF()), Readout(nn.Linear(20, 3))), 1.0), x)
    learner = OnlineLearner(net, ADAPTIVE, F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.2, weight_decay=0.1))

    def distance() -> float:
        return error(net[0].signal.feedback.detach(), net[1].connection.weight.detach().T)

    before = distance()
    for _ in range(60):
        learner.learn(x, y)
    assert before > 0.5
    assert distance() < 0.4 * before
    frozen = OnlineLearner(net, DFA(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.2, weight_decay=0.1))
    frozen.learn(x, y)
    kept = net[0].signal.feedback.clone()
    frozen.learn(x, y)
    assert torch.equal(net[0].signal.feedback, kept)  # control: a fixed one stays


# What does not fit is refused.


def test_refusals() -> None:
    net = scaled(nn.Sequential(ETBlock(ETConv2d(2, 3, 3), LIF()), nn.Flatten(), Readout(nn.Linear(12, 3))))
    with pytest.raises(RuleChoiceError, match="signal='random'"):
        attach(net, ADAPTIVE)
    with pytest.raises(RuleChoiceError, match="does not feed the readout"):
        attach(mlp(LIF), LearningRule(signal="symmetric"))
    with pytest.raises(RuleChoiceError, match="only a readout"):
        attach(nn.Sequential(ETBlock(ETLinear(3, 2), LI())), DFA())


def test_the_report_says_that_there_is_nothing_to_be_exact_of() -> None:
    report = attach(mlp(LIF), DFA())
    assert {row.parameter for row in report.approximate} == {
        f"{block}.connection.{part}" for block in (0, 1) for part in ("weight", "bias")
    }
    assert "broadcast" in report["0.connection.weight"].why
    assert report["2.connection.weight"].exact
    assert "its own rule" in attach(mlp(LIF), ADAPTIVE)["0.signal.feedback"].why
