"""Filtered eligibilities against BPTT: O8, O9, O12 to O15, the rate term; float64, each with a control."""

import copy
from collections.abc import Callable

import pytest
import torch
from oracles.networks import error, mlp, online_gradients, oracle, problem, scaled, sequence
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    ALIF,
    BPTT,
    DRTRL,
    LI,
    LIF,
    OTPE,
    CubaLIF,
    EProp,
    ETBlock,
    ETLinear,
    ETRecurrent,
    LearningRule,
    Neuron,
    Readout,
    SuperSpike,
    TimeConstantDropout,
    attach,
    bptt_gradients,
    reset,
)

EXACT = 1e-12
FIRST = "0.connection.weight"


def leaky(kind: Callable[[], Neuron], recurrent: bool = False, kappa: float = 0.8) -> nn.Module:
    """One hidden block and a readout that integrates with a leak of its own."""
    first = ETRecurrent(7, 9) if recurrent else ETLinear(7, 9)
    return scaled(nn.Sequential(ETBlock(first, kind()), ETBlock(ETLinear(9, 3), LI(decay=kappa))))


@pytest.mark.parametrize("kind", [lambda: LIF(decay=0.7), ALIF, lambda: LIF(reset="hard", detach_reset=False)])
@pytest.mark.parametrize("broadcast", ["symmetric", "spatial"])
def test_o8_o12_eprop_is_bptt_but_for_the_recurrent_spike(kind: Callable[[], Neuron], broadcast: str) -> None:
    net, x, y = problem(leaky(kind, recurrent=True), sequence(7))
    mine = online_gradients(net, EProp(broadcast), x, y)
    assert all(row.exact for row in attach(net, EProp(broadcast)))
    true, full = bptt_gradients(net, x, y, cut_recurrent=True), oracle(net, x, y)
    for name, gradient in mine.items():
        assert error(gradient, true[name]) < EXACT, name
    assert error(mine[FIRST], full[FIRST]) > 1e-3  # control: the recurrent spike is missing
    unfiltered = online_gradients(net, DRTRL(), x, y)
    assert error(unfiltered[FIRST], true[FIRST]) > 1e-2  # control: the filter matters


@pytest.mark.parametrize("how", ["soft", "hard", "none"])
def test_o9_with_the_total_derivative_the_factorisation_is_full_bptt(how: str) -> None:
    """Eligibility with the spikes held, times dL/ds through everything later, recurrence and reset included."""
    net, x, y = problem(
        scaled(
            nn.Sequential(
                ETBlock(ETRecurrent(7, 9), LIF(decay=0.7, reset=how, detach_reset=False)), Readout(nn.Linear(9, 3))
            )
        ),
        sequence(7),
    )
    full = oracle(net, x, y)
    attach(net, BPTT())
    spikes = [net[0](x_t) for x_t in x]  # type: ignore[index]
    loss = torch.stack([F.cross_entropy(net[1](s), y) for s in spikes]).mean()  # type: ignore[index]
    direct = torch.autograd.grad(loss, spikes, retain_graph=True)
    assert float(direct[0].norm()) > 0
    block = copy.deepcopy(net[0])  # type: ignore[index]
    block.neuron = LIF(decay=0.7, reset=how)
    attach(block, DRTRL())
    local = [
        torch.autograd.grad(F.cross_entropy(net[1](s), y) / len(x), s, retain_graph=True)[0]  # type: ignore[index]
        for s in spikes
    ]
    assert error(with_signal(block, x, local)["connection.recurrent_weight"], full["0.connection.recurrent_weight"]) > (
        1e-2  # control: the direct derivative alone is e-prop
    )
    mine = with_signal(block, x, list(direct))
    for name, gradient in mine.items():
        assert error(gradient, full[f"0.{name}"]) < EXACT, name


def with_signal(block: nn.Module, x: Tensor, signals: list[Tensor]) -> dict[str, Tensor]:
    block.zero_grad(set_to_none=True)
    reset(block)
    for x_t, signal in zip(x, signals, strict=True):
        (block(x_t) * signal.detach()).sum().backward()
    return {name: p.grad.clone() for name, p in block.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("below", [LIF, CubaLIF, ALIF, lambda: LIF(reset="hard", detach_reset=False)])
@pytest.mark.parametrize("recurrent", [False, True])
def test_o13_o14_otpe_cuts_from_the_second_block_above(below: Callable[[], Neuron], recurrent: bool) -> None:
    """The block under the last one with memory is full BPTT; a further one has the third block cut."""
    first = ETRecurrent(7, 9) if recurrent else ETLinear(7, 9)
    blocks = [ETBlock(first, below()), ETBlock(ETLinear(9, 8), LIF(decay=0.7)), ETBlock(ETLinear(8, 8), CubaLIF())]
    net, x, y = problem(scaled(nn.Sequential(*blocks, Readout(nn.Linear(8, 3)))), sequence(7))
    mine = online_gradients(net, OTPE(), x, y)
    assert all(row.exact for row in attach(net, OTPE()))
    full, beyond = oracle(net, x, y), bptt_gradients(net, x, y, cut=["2"], cut_recurrent=True)
    later = bptt_gradients(net, x, y, cut=["1", "2"], cut_recurrent=True)
    for part in ("weight", "bias"):
        assert error(mine[f"0.connection.{part}"], beyond[f"0.connection.{part}"]) < EXACT
        for layer in "12":
            assert error(mine[f"{layer}.connection.{part}"], full[f"{layer}.connection.{part}"]) < EXACT
    assert error(mine[FIRST], later[FIRST]) > 1e-3  # control: the next block's memory is in it
    assert error(mine[FIRST], full[FIRST]) > 1e-3  # control: that of the one after is not


def test_the_mean_relay_is_not_exact_below_a_filtered_block_and_the_report_says_so() -> None:
    net, x, y = problem(mlp(lambda: LIF(decay=0.7), sizes=(7, 9, 8, 8)), sequence(7))
    mine, beyond = online_gradients(net, OTPE("mean"), x, y), oracle(net, x, y, ["2"])
    report = attach(net, OTPE("mean"))
    assert error(mine[FIRST], beyond[FIRST]) > 1e-2
    assert "leaky mean" in report[FIRST].why
    assert not report[FIRST].exact
    name = "1.connection.weight"
    assert report[name].exact
    assert error(mine[name], oracle(net, x, y)[name]) < EXACT


def test_o15_otpe_under_a_leaky_readout_is_eprop_and_bptt() -> None:
    net, x, y = problem(leaky(lambda: LIF(decay=0.7), kappa=0.7), sequence(7))
    mine, true = online_gradients(net, OTPE(), x, y), oracle(net, x, y)
    other = online_gradients(net, EProp(), x, y)
    for name, gradient in mine.items():
        assert error(gradient, true[name]) < EXACT, name
        assert error(gradient, other[name]) < EXACT, name
    wrong = online_gradients(net, EProp(kappa=0.3), x, y)
    assert error(wrong[FIRST], true[FIRST]) > 0.1
    assert not attach(net, EProp(kappa=0.3))[FIRST].exact


def test_eprop_without_a_filter_is_d_rtrl() -> None:
    """Kappa 0, or a static readout, which remembers nothing."""
    net, x, y = problem(mlp(lambda: ALIF(), sizes=(7, 9)), sequence(7))
    reference = online_gradients(net, DRTRL(), x, y)
    for rule in (EProp(), EProp("spatial"), EProp(kappa=0.0), EProp("spatial", kappa=0.0)):
        for name, gradient in online_gradients(net, rule, x, y).items():
            assert error(gradient, reference[name]) < EXACT, (rule, name)
    other = online_gradients(net, EProp(kappa=0.5), x, y)
    assert error(other[FIRST], reference[FIRST]) > 1e-2


def test_the_random_broadcast_with_the_readouts_weights_is_the_symmetric_one() -> None:
    net, x, y = problem(leaky(lambda: LIF(decay=0.7)), sequence(7))
    for rule, exact in ((EProp("random"), EProp()), (SuperSpike(), SuperSpike(broadcast="symmetric"))):
        wrong = online_gradients(net, rule, x, y)
        attach(net, rule)
        net.zero_grad(set_to_none=True)
        net[0].signal.feedback = net[1].connection.weight.detach().T.clone()  # type: ignore[index, union-attr]
        for x_t in x:
            (F.cross_entropy(net(x_t), y) / len(x)).backward()
        mine = net[0].connection.weight.grad.clone()  # type: ignore[index, union-attr]
        reference = online_gradients(net, exact, x, y)
        assert error(mine, reference[FIRST]) < EXACT
        assert error(wrong[FIRST], reference[FIRST]) > 1e-2
        assert attach(net, rule)[FIRST].yardstick == "no gradient"


def test_dropout_between_the_block_and_the_readout_is_not_in_the_symmetric_broadcast() -> None:
    blocks = [ETBlock(ETLinear(7, 9), LIF()), TimeConstantDropout(0.3), Readout(nn.Linear(9, 3))]
    net = scaled(nn.Sequential(*blocks))
    assert not attach(net, EProp())[FIRST].exact
    assert attach(net, EProp("spatial"))[FIRST].exact


@pytest.mark.parametrize("kind", [LIF, ALIF])
def test_the_rate_term_is_the_gradient_of_an_explicit_loss(kind: Callable[[], Neuron]) -> None:
    """Autograd on c/2 sum_j (f_j - f*)^2, the spikes of the steps before being constants."""
    net, x, y = problem(mlp(kind, sizes=(7, 9)), sequence(7))
    rule = EProp("spatial", rate=0.1, rate_weight=3.0)
    mine, without = online_gradients(net, rule, x, y), online_gradients(net, EProp("spatial"), x, y)
    attach(net, BPTT())
    loss, total = torch.zeros((), dtype=x.dtype), torch.zeros(9, dtype=x.dtype)
    for number, x_t in enumerate(x, start=1):
        spikes = net[0](x_t)
        rate = (total + spikes.sum(0)) / (number * x.shape[1])
        loss = loss + F.cross_entropy(net[1](spikes), y) / len(x) + 1.5 * ((rate - 0.1) ** 2).sum()
        total = total + spikes.sum(0).detach()
    names, parameters = zip(*net.named_parameters(), strict=True)
    for name, true in zip(names, torch.autograd.grad(loss, parameters), strict=True):
        assert error(mine[name], true) < EXACT, name
    assert error(without[FIRST], mine[FIRST]) > 1e-2
    assert not attach(net, rule)[FIRST].exact


def test_the_oracle_leaves_signals_and_feedback_aside() -> None:
    net, x, y = problem(leaky(lambda: LIF(decay=0.7)), sequence(7))
    attach(net, DRTRL())
    true = oracle(net, x, y)
    for rule in (EProp("random"), EProp("adaptive", rate=0.1), EProp(), LearningRule(signal="noise")):
        attach(net, rule)
        found, kept = oracle(net, x, y), net[0].signal  # type: ignore[index, union-attr]
        assert all(torch.equal(found[name], true[name]) for name in true), rule
        assert net[0].signal is kept  # type: ignore[index, union-attr]


def test_single_precision() -> None:
    net, x, y = problem(leaky(lambda: LIF(decay=0.7), recurrent=True), sequence(7))
    for rule in (EProp(), OTPE()):
        double = online_gradients(net.double(), rule, x, y)
        single = online_gradients(net.float(), rule, x.float(), y)
        for name, gradient in double.items():
            assert error(single[name].double(), gradient) < 1e-5, name
