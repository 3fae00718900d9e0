"""What attaching a rule finds out by itself: shared parts, neurons that are not elementwise, arguments mixed up."""

import inspect

import pytest
import torch
from oracles.networks import error, mlp, online_gradients, oracle, problem, sequence
from torch import Tensor, nn

from snnlearn import (
    BPTT,
    LIF,
    OTTT,
    SLTT,
    ETBlock,
    ETConv2d,
    ETLinear,
    LearningRule,
    Neuron,
    Readout,
    RuleChoiceError,
    attach,
)
from snnlearn.nn import PostTrace
from snnlearn.rules import LocalHead, NoiseEstimate, RateTarget

State = tuple[Tensor, ...]


@pytest.mark.parametrize("chunk", [0, -1, 2.5, True, "auto"])
def test_attach_takes_a_number_of_steps(chunk: object) -> None:
    net = ETBlock(ETLinear(2, 3), LIF())
    told = "which measures" if chunk == "auto" else "write chunk=16$"
    with pytest.raises(ValueError, match=rf"chunk={chunk!r}: the number of steps run at once, from 1; .*{told}"):
        inspect.unwrap(attach)(net, OTTT(), chunk)  # as users have it, without the tests' checks
    assert net.connection.trace is None


class OneMembrane(Neuron):
    state_names = ("v",)


class Mixing(OneMembrane):
    def step(self, y: Tensor, state: State) -> tuple[Tensor, State]:
        v = 0.5 * state[0] + y + 0.3 * torch.roll(state[0], 1, -1)
        return self.spike(v - 1), (v,)


class MixingBatch(OneMembrane):
    def step(self, y: Tensor, state: State) -> tuple[Tensor, State]:
        v = 0.5 * state[0] + y - y.mean(0, keepdim=True)
        return self.spike(v - 1), (v,)


class MixingThroughSpikes(OneMembrane):
    """Lateral inhibition: only the spike carries the influence."""

    def step(self, y: Tensor, state: State) -> tuple[Tensor, State]:
        v = 0.5 * state[0] + y
        spike = self.spike(v - 1)
        return spike, (v - 0.2 * spike.sum(-1, keepdim=True),)


@pytest.mark.parametrize("neuron", [Mixing, MixingBatch, MixingThroughSpikes])
def test_a_neuron_that_mixes_units_is_refused_a_trace(neuron: type[Neuron]) -> None:
    net = nn.Sequential(ETBlock(ETLinear(7, 9), neuron()), Readout(nn.Linear(9, 3))).double()
    with pytest.raises(ValueError, match=rf"{neuron.__name__}\.step mixes units or samples.*SLTT\(\) or BPTT\(\)"):
        attach(net, OTTT())
    for rule in (SLTT(), BPTT()):
        attach(net, rule)


class LearnedLeak(OneMembrane):
    def __init__(self, shape: tuple[int, ...] = (8,), spread: float = 0.0) -> None:
        super().__init__()
        slope = torch.linspace(-1, 1, shape[0]).view(-1, *[1] * (len(shape) - 1))
        self.leak = nn.Parameter(torch.full(shape, 0.6) + spread * slope)

    def step(self, y: Tensor, state: State) -> tuple[Tensor, State]:
        v = state[0] * self.leak + y
        return self.spike(v - 1), (v,)


class Tanh(OneMembrane):
    def step(self, y: Tensor, state: State) -> tuple[Tensor, State]:
        v = 0.9 * torch.tanh(state[0]) + y
        return self.spike(v - 1), (v,)


class FlatAtRest(OneMembrane):
    def step(self, y: Tensor, state: State) -> tuple[Tensor, State]:
        v = 0.5 * state[0] + torch.relu(y) * y
        return self.spike(v - 1), (v,)


def test_constants_per_unit_are_taken_as_they_are() -> None:
    """A learned leak per unit: exact while all are equal, else reported; its own gradient is exact either way."""
    net, x, y = problem(mlp(lambda: LearnedLeak((8,)), sizes=(7, 8)), sequence(7))
    mine, full = online_gradients(net, OTTT(), x, y), oracle(net, x, y)
    report = attach(net, OTTT())
    assert report["0.connection.weight"].exact
    assert error(mine["0.connection.weight"], full["0.connection.weight"]) < 1e-12
    assert report["0.neuron.leak"].exact
    assert error(mine["0.neuron.leak"], full["0.neuron.leak"]) < 1e-12
    assert error(oracle(net, x, y, cut="all")["0.neuron.leak"], full["0.neuron.leak"]) > 1e-2
    uneven, x, y = problem(mlp(lambda: LearnedLeak((8,), spread=0.3), sizes=(7, 8)), sequence(7))
    mine, full = online_gradients(uneven, OTTT(), x, y), oracle(uneven, x, y)
    row = attach(uneven, OTTT())["0.connection.weight"]
    assert not row.exact
    assert "differ per unit" in row.why
    assert error(mine["0.connection.weight"], full["0.connection.weight"]) > 1e-3
    assert error(mine["0.neuron.leak"], full["0.neuron.leak"]) < 1e-12


@pytest.mark.parametrize("shape", [(3, 1, 1), (3, 4, 4)])
def test_constants_per_channel_and_per_pixel(shape: tuple[int, ...]) -> None:
    net = nn.Sequential(
        ETBlock(ETConv2d(2, 3, 3, padding=1), LearnedLeak(shape)), nn.Flatten(), Readout(nn.Linear(48, 3))
    )
    net, x, y = problem(net.double(), sequence(2, 4, 4))
    mine, full = online_gradients(net, OTTT(), x, y), oracle(net, x, y)
    assert attach(net, OTTT())["0.connection.weight"].exact
    assert error(mine["0.connection.weight"], full["0.connection.weight"]) < 1e-12


def test_nonlinear_neurons_are_approximate_with_the_right_reason() -> None:
    for neuron in (Tanh, FlatAtRest):
        report = attach(mlp(neuron), OTTT())
        assert not report["0.connection.weight"].exact, neuron
        assert "changes with its state" in report["0.connection.weight"].why, neuron


@pytest.mark.parametrize("rule", [OTTT(), SLTT(), BPTT()], ids=lambda rule: rule.name)
def test_two_blocks_with_one_neuron_are_refused(rule: LearningRule) -> None:
    shared = LIF()
    net = nn.Sequential(ETBlock(ETLinear(6, 6), shared), ETBlock(ETLinear(6, 6), shared), Readout(nn.Linear(6, 3)))
    with pytest.raises(RuleChoiceError, match=r"blocks '0' and '1' share one neuron.*a neuron of its own"):
        attach(net, rule)


def test_two_blocks_with_one_connection_are_refused_a_trace_alone() -> None:
    shared = ETLinear(6, 6)
    net = nn.Sequential(ETBlock(shared, LIF()), ETBlock(shared, LIF()))
    with pytest.raises(RuleChoiceError, match=r"share one connection.*b\.connection\.weight = a\.connection\.weight"):
        attach(net, OTTT())
    attach(net, SLTT())


def test_arguments_mixed_up(unchecked: None) -> None:
    net = ETBlock(ETLinear(2, 2), LIF())
    with pytest.raises(TypeError, match=r"with parentheses; write OTTT\(\)"):
        attach(net, OTTT)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="it takes a rule object"):
        attach(net, "ottt")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the network comes first"):
        attach(OTTT(), net)  # type: ignore[arg-type]


def test_choices_on_the_axes() -> None:
    """Misspelt and illegal are two things, each with its way out."""
    cases = {
        "did you mean 'leak'": {"transition": "leek"},
        "did you mean 'random'": {"signal": "direct"},
        "write transition='local', or storage='pre'": {"transition": "leak", "storage": "rank_one"},
        "the ratio belongs to the input": {"transition": "ratio", "storage": "synaptic"},
        "a filter acts on each synapse's own": {"transition": "ratio", "storage": "pre", "trace_filter": "kappa"},
        "it needs two decays": {"storage": "synaptic", "trace_filter": "double"},
        "one decay, or None": {"storage": "synaptic", "trace_filter": "kappa", "filter_decay": (0.5, 0.5)},
        "name the filter": {"filter_decay": 0.5},
        "the post-synaptic trace joins a trace per input": {
            "transition": "local",
            "storage": "synaptic",
            "post": PostTrace(0.5, 1.0),
        },
        "the mean is weighted like a trace": {"transition": "none", "storage": "none", "relay": "mean"},
        "only a local readout has one": {"head": LocalHead()},
        "only the noise signal has it": {"noise": NoiseEstimate()},
        "put the rate into the loss": {
            "transition": "through_time",
            "storage": "none",
            "rate": RateTarget(rate=0.1, weight=1.0),
        },
        "did you mean 'trained'": {"signal": "local_readout", "head": LocalHead(kind="traind")},
        "write learn_on='last' or 'random'": {"learn_steps": 3},
        "a whole number of steps from 1": {"learn_on": "random", "learn_steps": 0},
        "give the loss last_steps": {
            "transition": "through_time",
            "storage": "none",
            "learn_on": "last",
            "learn_steps": 1,
        },
        "only a leak takes a decay": {"transition": "local", "storage": "synaptic", "trace_decay": 0.5},
        "lies in 0 .. 1; write trace_decay": {"trace_decay": 1.5},
        "below 1; write filter_decay": {"storage": "synaptic", "trace_filter": "kappa", "filter_decay": 1.0},
        "below 1; write forgetting": {"forgetting": 1.0},
        "only rank_one forgets": {"forgetting": 0.5},
        "write storage='synaptic', or transition='leak'": {"transition": "local", "storage": "pre"},
        "there is no trace to store": {"transition": "none", "storage": "pre"},
        "there is no trace to filter": {"transition": "none", "storage": "none", "trace_filter": "kappa"},
        "a trace has to be kept somewhere": {"transition": "leak", "storage": "none"},
        "has its own signal": {"transition": "through_time", "storage": "none", "signal": "random"},
    }
    for words, choice in cases.items():
        with pytest.raises(RuleChoiceError, match=words):
            LearningRule(**choice)  # type: ignore[arg-type]
    with pytest.raises(RuleChoiceError, match="has none: weights outside a block"):
        attach(nn.Linear(2, 2), OTTT())
