"""The memory of an eligibility is used again by the next sequence, and by nobody who still holds the numbers."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import DRTRL, LI, LIF, EProp, ETBlock, ETLinear, LearningRule, OnlineLearner, reset
from snnlearn.nn.synaptic_trace import SynapticTrace

STEPS, BATCH, K = 9, 4, 3
RULES = [DRTRL(), EProp(kappa=0.6)]


def learner_of(rule: LearningRule, chunk: int = K) -> OnlineLearner:
    torch.manual_seed(0)
    net = nn.Sequential(ETBlock(ETLinear(6, 9), LIF(decay=0.8, threshold=0.3)), ETBlock(ETLinear(9, 3), LI(decay=0.7)))
    net = net.double()
    return OnlineLearner(net, rule, F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1), chunk=chunk)


def sequence(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(STEPS, BATCH, 6, generator=generator) < 0.5).double(), torch.arange(BATCH) % 3


def trace_of(learner: OnlineLearner) -> SynapticTrace:
    trace = learner.net.get_submodule("0").connection.trace
    assert isinstance(trace, SynapticTrace)
    return trace


def per_synapse(trace: SynapticTrace) -> Tensor:
    found = trace.values if trace.filtered_values is None else trace.filtered_values
    assert found is not None
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_next_sequence_writes_into_the_same_memory_and_learns_the_same(rule: LearningRule) -> None:
    again, anew = learner_of(rule), learner_of(rule)
    places = []
    for seed in (1, 2, 3):
        x, y = sequence(seed)
        result = again.learn(x, y)
        assert 0.02 < result.firing_rates["0"] < 0.8
        places.append(per_synapse(trace_of(again)).data_ptr())
        trace_of(anew).room = None
        anew.learn(x, y)
        assert all(torch.equal(p, q) for p, q in zip(again.net.parameters(), anew.net.parameters(), strict=True))
    assert len(set(places)) == 1


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_stashed_state_is_not_written_over(rule: LearningRule) -> None:
    learner = learner_of(rule)
    learner.learn(*sequence(1))
    trace = trace_of(learner)
    held = trace.stash()
    kept = {name: value.clone() for name, value in held.items() if isinstance(value, Tensor)}
    assert kept
    reset(learner.net)
    learner.learn(*sequence(2))
    assert all(torch.equal(held[name], value) for name, value in kept.items())
    trace.restore(held)
    assert torch.equal(per_synapse(trace), kept["values" if trace.filtered_values is None else "filtered_values"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_memory_is_let_go_of(rule: LearningRule) -> None:
    """By eval, by a move, by a reset of rows and by single steps; and no copy takes it along."""
    learner = learner_of(rule)

    def filled() -> SynapticTrace:
        reset(learner.net)
        learner.learn(*sequence(1))
        assert trace_of(learner).room is not None
        return trace_of(learner)

    trace = filled()
    assert trace_of(copy.deepcopy(learner)).room is None
    learner.net.eval()
    assert trace.room is None
    learner.net.train()
    filled()
    learner.net.to(torch.float64)
    assert trace.room is None
    filled()
    trace.reset(torch.tensor([True, False, False, False]))
    assert trace.room is None
    if rule.name == "D-RTRL":
        filled()
        learner.learn(sequence(2)[0][:1], sequence(2)[1], keep_state=True)  # one step, the old way
        assert trace.room is None
