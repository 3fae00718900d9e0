"""The oracles on every topology users build: convolution, pooling, dropout, residual sums, branches, readouts."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles.networks import error, lively, online_gradients, oracle, problem, sequence
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    LIF,
    OTTT,
    SLTT,
    CubaLIF,
    ETBlock,
    ETConv1d,
    ETConv2d,
    ETLinear,
    Readout,
    TimeConstantDropout,
    WeightStandardizedETConv2d,
    attach,
    bptt_gradients,
)

EXACT = 1e-12
# torch's own note about asymmetric padding='same', from its plain convolution
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning"),
    pytest.mark.usefixtures("unchecked"),
]


def leaky() -> LIF:
    return LIF(decay=0.7)


def convolutional(first: nn.Module, between: nn.Module, flat: int, second: nn.Module | None = None) -> nn.Module:
    layers = [("first", ETBlock(first, leaky())), ("between", between)]
    if second is not None:
        layers.append(("second", ETBlock(second, leaky())))
    layers += [("flatten", nn.Flatten()), ("readout", Readout(nn.Linear(flat, 3)))]
    return nn.Sequential(OrderedDict(layers)).double()


CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv 2d, average pool": (
        lambda: convolutional(ETConv2d(2, 4, 3, padding=1), nn.AvgPool2d(2), 4 * 9, ETConv2d(4, 4, 2, padding="same")),
        (2, 6, 6),
    ),
    "conv 2d, max pool": (
        lambda: convolutional(ETConv2d(2, 4, 3, stride=2), nn.MaxPool2d(2), 3 * 6, ETConv2d(4, 3, 2, padding=1)),
        (2, 9, 7),
    ),
    "conv 2d, groups, dilation, reflect": (
        lambda: convolutional(
            ETConv2d(2, 4, 3, padding=2, dilation=2, groups=2, padding_mode="reflect"),
            nn.Identity(),
            4 * 30,
            ETConv2d(4, 4, (3, 1), padding=(1, 0), bias=False),
        ),
        (2, 6, 5),
    ),
    "conv 1d": (
        lambda: convolutional(ETConv1d(3, 4, 3, padding=1), nn.AvgPool1d(2), 5 * 4, ETConv1d(4, 5, 2)),
        (3, 10),
    ),
    "weight standardised": (
        lambda: convolutional(
            WeightStandardizedETConv2d(2, 4, 3, padding=1),
            nn.AvgPool2d(2),
            4 * 9,
            WeightStandardizedETConv2d(4, 4, 3, padding=1),
        ),
        (2, 6, 6),
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    """O1, O2, O3 for weights, biases and gains; pooling sits between blocks and the trace behind it."""
    build, shape = CONVOLUTIONS[name]
    net, x, y = problem(build(), sequence(*shape))
    spatial, all_cut = online_gradients(net, SLTT(), x, y), oracle(net, x, y, "all")
    mine, full, above_cut = online_gradients(net, OTTT(), x, y), oracle(net, x, y), oracle(net, x, y, ["second"])
    for parameter in mine:
        true = above_cut if parameter.startswith("first") else full
        assert error(mine[parameter], true[parameter]) < EXACT, parameter
        assert error(spatial[parameter], all_cut[parameter]) < EXACT, parameter
    assert error(spatial["second.connection.weight"], full["second.connection.weight"]) > 1e-2
    assert error(mine["first.connection.weight"], full["first.connection.weight"]) > 1e-3


def test_a_trace_taken_before_max_pooling_would_be_wrong() -> None:
    """Pooling the trace instead of tracing the pooled input: a large error, which the block does not make."""
    build, shape = CONVOLUTIONS["conv 2d, max pool"]
    net, x, y = problem(build(), sequence(*shape))
    full = oracle(net, x, y)["second.connection.weight"]
    attach(net, OTTT())
    net.zero_grad(set_to_none=True)
    pooled_trace, decay = None, 0.7
    for x_t in x:
        spikes = net.first(x_t)
        pooled_trace = spikes.detach() if pooled_trace is None else decay * pooled_trace + spikes.detach()
        output = net.readout(net.flatten(net.second(net.between(spikes))))
        net.second.connection.trace.values[0].copy_(F.max_pool2d(pooled_trace, 2))
        (F.cross_entropy(output, y) / len(x)).backward()
    assert error(net.second.connection.weight.grad, full) > 0.02
    assert error(online_gradients(net, OTTT(), x, y)["second.connection.weight"], full) < EXACT


def test_dropout_with_one_mask_per_sequence() -> None:
    def build() -> nn.Module:
        layers: list[nn.Module] = [ETBlock(ETLinear(7, 20), leaky()), TimeConstantDropout(0.4)]
        return nn.Sequential(*layers, ETBlock(ETLinear(20, 9), leaky()), Readout(nn.Linear(9, 3))).double()

    net, x, y = problem(build(), sequence(7))
    torch.manual_seed(3)
    mine = online_gradients(net, OTTT(), x, y)
    torch.manual_seed(3)
    full = oracle(net, x, y)
    torch.manual_seed(4)
    other_mask = oracle(net, x, y)
    assert error(mine["2.connection.weight"], full["2.connection.weight"]) < EXACT
    assert error(mine["2.connection.weight"], other_mask["2.connection.weight"]) > 1e-2


class Residual(nn.Module):
    """Two blocks in a residual sum, a branch beside them, and two readouts."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ETBlock(ETLinear(7, 8), leaky())
        self.left = ETBlock(ETLinear(8, 8), leaky())
        self.right = ETBlock(ETLinear(8, 8), CubaLIF(decay=0.6, decay_synapse=0.4))
        self.top = ETBlock(ETLinear(8, 9), leaky())
        self.head, self.side = Readout(nn.Linear(9, 3)), Readout(nn.Linear(8, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        stem = self.stem(x)
        summed = stem + 0.5 * self.left(stem)
        branch = self.right(stem)
        return self.head(self.top(summed + branch)), self.side(branch)


def two_losses(outputs: Any, target: Tensor) -> Tensor:
    return F.cross_entropy(outputs[0], target) + 0.5 * F.cross_entropy(outputs[1], target)


def test_residual_sum_branches_and_two_readouts() -> None:
    net, x, y = problem(Residual().double(), sequence(7))
    mine = online_gradients(net, OTTT(), x, y, two_losses)
    cuts = {"stem": ["left", "right", "top"], "left": ["top"], "right": ["top"], "top": [], "head": [], "side": []}
    for block, cut in cuts.items():
        true = oracle(net, x, y, cut, two_losses)
        for name in mine:
            if name.startswith(block + "."):
                assert error(mine[name], true[name]) < EXACT, name
    full = oracle(net, x, y, (), two_losses)
    assert error(mine["stem.connection.weight"], full["stem.connection.weight"]) > 1e-3
    spatial, cut_all = online_gradients(net, SLTT(), x, y, two_losses), oracle(net, x, y, "all", two_losses)
    for name in spatial:
        assert error(spatial[name], cut_all[name]) < EXACT, name


def test_two_blocks_that_share_a_weight_both_contribute() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = ETBlock(ETLinear(6, 8), leaky()), ETBlock(ETLinear(6, 8), LIF(decay=0.4))
            self.b.connection.weight = self.a.connection.weight
            self.head = Readout(nn.Linear(8, 3))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.head(self.a(x) + self.b(x.flip(-1)))
            return output

    net, x, y = problem(Shared().double(), sequence(6))
    mine, full = online_gradients(net, OTTT(), x, y), oracle(net, x, y)
    assert error(mine["a.connection.weight"], full["a.connection.weight"]) < EXACT
    alone = oracle(net, x, y, ["b"])
    assert error(mine["a.connection.weight"], alone["a.connection.weight"]) > 1e-3


def test_batch_normalisation_under_sltt_is_exact_and_under_ottt_says_it_is_not() -> None:
    """O1 holds with batch statistics; a factored trace does not know that they tie the samples together."""

    def build() -> nn.Module:
        block = ETBlock(ETLinear(7, 9, bias=False), leaky(), nn.BatchNorm1d(9))  # the mean removes any bias
        return nn.Sequential(block, Readout(nn.Linear(9, 3))).double()

    net = build()
    with torch.no_grad():
        net[0].norm.bias.fill_(0.6)
    x, y = sequence(7), torch.randint(3, (5,))
    spatial, cut_all = online_gradients(net, SLTT(), x, y), oracle(net, x, y, "all")
    assert "0.norm.weight" in spatial
    for name in spatial:
        assert error(spatial[name], cut_all[name]) < 1e-10, name
    traced, full = online_gradients(net, OTTT(), x, y), oracle(net, x, y)
    report = attach(net, OTTT())
    assert error(traced["0.connection.weight"], full["0.connection.weight"]) > 1e-2
    assert not report["0.connection.weight"].exact


def test_unequal_decays_are_approximate_and_said_to_be() -> None:
    decays = torch.linspace(0.3, 0.9, 9, dtype=torch.float64)
    net = nn.Sequential(ETBlock(ETLinear(7, 9), LIF(decay=decays)), Readout(nn.Linear(9, 3))).double()
    net, x, y = problem(net, sequence(7))
    mine, true = online_gradients(net, OTTT(), x, y), oracle(net, x, y)
    assert error(mine["0.connection.weight"], true["0.connection.weight"]) > 1e-2
    row = attach(net, OTTT())["0.connection.weight"]
    assert not row.exact
    assert "differs per unit" in row.why
    net[0].neuron = LIF(decay=torch.full((9,), 0.7, dtype=torch.float64))  # per unit, but equal
    lively(net, x)
    mine, true = online_gradients(net, OTTT(), x, y), oracle(net, x, y)
    assert error(mine["0.connection.weight"], true["0.connection.weight"]) < EXACT
    assert attach(net, OTTT())["0.connection.weight"].exact


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_every_exactness_claim_of_the_report_holds(name: str) -> None:
    """Where `attach` says exact, the named yardstick is met; where it does not, it is missed."""
    build, shape = CONVOLUTIONS[name]
    for neuron in (leaky(), LIF(decay=0.7, reset="hard")):
        net = build()
        net.first.neuron = neuron
        net, x, y = problem(net, sequence(*shape))
        mine, report = online_gradients(net, OTTT(), x, y), attach(net, OTTT())
        true = oracle(net, x, y, ["second"])
        for parameter in (p for p in mine if p.startswith("first")):
            assert (error(mine[parameter], true[parameter]) < EXACT) == report[parameter].exact, parameter


def test_plain_layers_beside_blocks_learn_in_space_and_the_report_says_so() -> None:
    net = nn.Sequential(nn.Linear(7, 7), ETBlock(ETLinear(7, 9), leaky()), Readout(nn.Linear(9, 3))).double()
    net, x, y = problem(net, sequence(7))
    mine, full = online_gradients(net, OTTT(), x, y), oracle(net, x, y)
    report = attach(net, OTTT())
    assert not report["0.weight"].exact
    assert error(mine["0.weight"], full["0.weight"]) > 1e-2
    assert report["2.connection.weight"].exact
    assert error(mine["2.connection.weight"], full["2.connection.weight"]) < EXACT


def test_the_oracle_leaves_the_network_as_it_found_it() -> None:
    net = nn.Sequential(ETBlock(ETLinear(7, 9), leaky(), nn.BatchNorm1d(9)), Readout(nn.Linear(9, 3))).double()
    attach(net, OTTT())
    x, y = sequence(7), torch.randint(3, (5,))
    for x_t in x[:4]:
        net(x_t)
    trace = net[0].connection.trace
    before = (trace.values.clone(), trace.tick, net[0].neuron.state[0].clone(), net[0].norm.running_mean.clone())
    bptt_gradients(net, x, y)
    after = (trace.values, trace.tick, net[0].neuron.state[0], net[0].norm.running_mean)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(torch.as_tensor(old), torch.as_tensor(new))
    assert net[0].connection.trace is trace
    assert net[0].connection.weight.grad is None
    with pytest.raises(ValueError, match=r"cut names 'nope'.*0\.neuron"):
        bptt_gradients(net, x, y, cut=["nope"])
    with pytest.raises(ValueError, match=r"write 'all', or a collection"):
        bptt_gradients(net, x, y, cut="0")
