"""A trace keeps up with a leak that an optimizer changes; one that did not would report itself exact and be wrong."""

import pytest
import torch
from oracles.networks import error, online_gradients, oracle, problem, scaled, sequence
from torch import nn
from torch.nn import functional as F

from snnlearn import LI, LIF, OTTT, ETBlock, ETLinear, LearningRule, OnlineLearner, Readout, reset

OTPE = LearningRule(transition="local", storage="synaptic", trace_filter="above", title="OTPE")


def net(readout: nn.Module) -> nn.Sequential:
    return scaled(
        nn.Sequential(
            ETBlock(ETLinear(7, 9), LIF(learn=("decay",))), ETBlock(ETLinear(9, 8), LIF(learn=("decay",))), readout
        )
    )


@pytest.mark.parametrize("rule", [OTTT(), OTPE], ids=lambda rule: rule.name)
def test_the_leak_follows_the_optimizer(rule: LearningRule) -> None:
    network, x, y = problem(net(Readout(nn.Linear(8, 3))), sequence(7))
    before = online_gradients(network, rule, x, y)
    last = "1.connection.weight" if rule is not OTPE else "0.connection.weight"
    assert error(before[last], oracle(network, x, y)[last]) < 1e-12
    learner = OnlineLearner(network, rule, F.cross_entropy, torch.optim.SGD(network.parameters(), lr=0.0))
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("decay_logit"):
                parameter.add_(0.7)  # in place, as an optimizer does it, after attach
    network.zero_grad()
    reset(network)
    for x_t in x:
        (F.cross_entropy(learner.net(x_t), y) / len(x)).backward()
    true = oracle(network, x, y)[last]
    gradient = network.get_parameter(last).grad
    assert gradient is not None
    assert error(gradient, true) < 1e-12
    assert error(before[last], true) > 1e-2  # control: the leak did change


def test_a_leaky_readout_that_learns_its_leak() -> None:
    network, x, y = problem(
        scaled(nn.Sequential(ETBlock(ETLinear(7, 9), LIF()), ETBlock(ETLinear(9, 3), LI(learn=("decay",))))),
        sequence(7),
    )
    mine = online_gradients(network, OTTT(), x, y)
    true = oracle(network, x, y)
    for name in ("1.connection.weight", "1.connection.bias", "1.neuron.decay_logit"):
        assert error(mine[name], true[name]) < 1e-12, name
