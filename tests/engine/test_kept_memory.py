"""Bytes that a rule keeps: counted by hand on a toy, constant in T for online rules, growing for BPTT."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    ALIF,
    BPTT,
    DRTRL,
    LI,
    OTTT,
    SLTT,
    ETBlock,
    ETLinear,
    ETRecurrent,
    LearningRule,
    OnlineLearner,
    SequenceLoss,
    TruncatedBPTT,
)
from snnlearn.engine import kept_bytes
from snnlearn.nn import TimeConstantDropout

BATCH, INPUTS, UNITS = 4, 3, 5
FILTERED = LearningRule(transition="local", trace_filter="kappa", storage="synaptic", signal="random")


def recurrent_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(ETBlock(ETRecurrent(INPUTS, UNITS), ALIF()), ETBlock(ETLinear(UNITS, 2), LI()))


def batch(steps: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return 2 * torch.rand(steps, BATCH, INPUTS, generator=generator), torch.arange(BATCH) % 2


def kept(rule: LearningRule, steps: int, update: str | int = "sequence") -> int:
    return kept_bytes(recurrent_net(), batch(steps), rule, SequenceLoss(), update=update)


class Square(nn.Module):
    """y = (w x)^2, of which autograd saves x (for w) and w x (for the square), B x I numbers each; w is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(INPUTS))

    def forward(self, x: Tensor) -> Tensor:
        return (self.w * x) ** 2


def test_by_hand_on_a_toy() -> None:
    """The loss, minus the mean, saves nothing. BPTT keeps both tensors of every step, a rule without trace of one."""

    def loss(output: Tensor, _: Tensor) -> Tensor:
        return -output.mean()

    one_step = 2 * BATCH * INPUTS * 4
    for steps in (1, 7):
        assert kept_bytes(Square(), batch(steps), SLTT(), loss) == one_step
        assert kept_bytes(Square(), batch(steps), BPTT(), loss) == steps * one_step
    assert kept_bytes(Square(), batch(6), TruncatedBPTT(3), loss) == 3 * one_step
    doubled = (batch(3)[0].double(), batch(3)[1])
    assert kept_bytes(Square().double(), doubled, SLTT(), loss) == 2 * one_step


def test_a_trace_by_hand() -> None:
    """A leaky readout: OTTT has one number for an input more than SLTT, D-RTRL one for a synapse."""
    net = ETBlock(ETLinear(INPUTS, 2), LI(tau=4.0))
    by_rule = {rule.name: kept_bytes(net, batch(5), rule, F.cross_entropy) for rule in (SLTT(), OTTT(), DRTRL())}
    loss = BATCH * 2 * 4 + BATCH * 8 + 4  # log-probabilities, labels, the number of labels
    membrane, of_inputs = BATCH * 2 * 4, BATCH * INPUTS * 4
    assert by_rule["OTTT"] == membrane + of_inputs + loss
    assert by_rule["SLTT"] == membrane + of_inputs + loss  # the input itself, in place of a trace
    assert by_rule["D-RTRL"] >= membrane + 2 * of_inputs + membrane + loss  # one for a synapse, one for a bias


@pytest.mark.parametrize("rule", [SLTT(), OTTT(), DRTRL()], ids=lambda rule: rule.name)
def test_online_rules_keep_the_same_for_any_length(rule: LearningRule) -> None:
    assert kept(rule, 5) == kept(rule, 50) == kept(rule, 50, update=1) > 0


def test_bptt_grows_by_the_same_with_every_step() -> None:
    five, ten, fifteen = (kept(BPTT(), steps) for steps in (5, 10, 15))
    assert ten - five == fifteen - ten > 5 * BATCH * UNITS * 4 * 2  # at least membrane and adaptation of every unit
    assert kept(TruncatedBPTT(5), 20) < kept(BPTT(), 20) / 2


def test_a_trace_per_synapse_is_counted() -> None:
    traced = kept(DRTRL(), 8) - kept(SLTT(), 8)
    assert traced >= 2 * BATCH * UNITS * (INPUTS + UNITS) * 4  # two hidden values of an ALIF


@pytest.mark.parametrize("rule", [SLTT(), OTTT(), DRTRL(), FILTERED], ids=lambda rule: rule.name)
def test_a_chunk_keeps_more_by_its_own_length_alone(rule: LearningRule) -> None:
    def chunked(chunk: int, steps: int) -> int:
        return kept_bytes(recurrent_net(), batch(steps), rule, SequenceLoss(), chunk=chunk)

    three, six, twelve = (chunked(chunk, 4 * chunk) for chunk in (3, 6, 12))
    assert twelve - six == 2 * (six - three) >= 6 * BATCH * (INPUTS + 2 * UNITS) * 4
    assert chunked(6, 48) == six
    assert chunked(1, 24) == kept(rule, 24) < three


def test_nothing_is_changed_and_nothing_is_left_behind() -> None:
    net = nn.Sequential(recurrent_net(), TimeConstantDropout(0.5))
    learner = OnlineLearner(net, OTTT(), SequenceLoss(), torch.optim.SGD(net.parameters(), lr=0.1))
    learner.step(batch(1)[0][0], batch(1)[1])
    before = {name: value.clone() for name, value in net.state_dict().items()}
    random, membrane = torch.get_rng_state(), net[0][0].neuron.stash()
    first = kept_bytes(net, batch(6), OTTT(), SequenceLoss())
    assert first == kept_bytes(net, batch(6), OTTT(), SequenceLoss())
    assert torch.equal(torch.get_rng_state(), random)
    assert net[0][0].neuron.stash() == membrane  # by identity: the running stream goes on
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
