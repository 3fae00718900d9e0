"""The recurrent connection: values by hand, life of its state, gradients against BPTT with the recurrent spike cut."""

import copy
import pickle

import pytest
import torch
from oracles.networks import error, online_gradients, oracle, problem, scaled, sequence
from torch import Tensor, nn

from snnlearn import (
    ALIF,
    DRTRL,
    LI,
    LIF,
    OTTT,
    SLTT,
    ETBlock,
    ETLinear,
    ETRecurrent,
    LearningRule,
    Readout,
    StateShapeError,
    bptt_gradients,
    reset,
)

EXACT = 1e-12


def recurrent(kind=LIF, **options) -> nn.Sequential:  # type: ignore[no-untyped-def]
    own = options.pop("self_connections", False)
    block = ETBlock(ETRecurrent(7, 9, self_connections=own), kind(**options))
    return scaled(nn.Sequential(block, Readout(nn.Linear(9, 3))))


@pytest.mark.parametrize("own", [True, False])
def test_the_spikes_of_the_step_before_come_back(own: bool) -> None:
    net, x, _ = problem(recurrent(self_connections=own), sequence(7))
    connection, v = net[0].connection, torch.zeros(5, 9, dtype=torch.float64)
    spikes = torch.zeros_like(v)
    mask = torch.ones(9, 9, dtype=torch.float64) if own else 1 - torch.eye(9, dtype=torch.float64)
    for x_t in x:
        y = x_t @ connection.weight.T + spikes @ (connection.recurrent_weight * mask).T + connection.bias
        v = 0.5 * v + y
        spikes = (v >= 1).to(v)
        v = v - spikes
        torch.testing.assert_close(net[0](x_t), spikes)


@pytest.mark.parametrize("kind", [LIF, ALIF])
@pytest.mark.parametrize(("how", "detach"), [("soft", True), ("soft", False), ("hard", False), ("none", True)])
def test_o10_per_synapse_is_bptt_with_the_recurrent_spike_cut(kind, how: str, detach: bool) -> None:  # type: ignore[no-untyped-def]
    net, x, y = problem(recurrent(kind, reset=how, detach_reset=detach), sequence(7))
    mine = online_gradients(net, DRTRL(), x, y)
    true = bptt_gradients(net, x, y, cut_recurrent=True)
    full = oracle(net, x, y)
    for name, gradient in mine.items():
        assert error(gradient, true[name]) < EXACT, name
    assert error(mine["0.connection.recurrent_weight"], full["0.connection.recurrent_weight"]) > 1e-3


@pytest.mark.parametrize("rule", [OTTT(), SLTT()], ids=lambda rule: rule.name)
def test_factored_rules(rule: LearningRule) -> None:
    net, x, y = problem(recurrent(), sequence(7))
    mine = online_gradients(net, rule, x, y)
    cut = "all" if rule.transition == "none" else ()
    true = bptt_gradients(net, x, y, cut=cut, cut_recurrent=True)
    for name, gradient in mine.items():
        assert error(gradient, true[name]) < EXACT, name


def test_the_mask_holds_the_diagonal() -> None:
    net, x, y = problem(recurrent(), sequence(7))
    gradient = online_gradients(net, DRTRL(), x, y)["0.connection.recurrent_weight"]
    assert float(gradient.diagonal().abs().max()) == 0.0
    free, x, y = problem(recurrent(self_connections=True), sequence(7))
    gradient = online_gradients(free, DRTRL(), x, y)["0.connection.recurrent_weight"]
    assert float(gradient.diagonal().abs().max()) > 0.0


def test_two_recurrent_layers_and_a_leaky_readout() -> None:
    blocks = [
        ETBlock(ETRecurrent(7, 9), LIF(reset="hard")),
        ETBlock(ETRecurrent(9, 8), LIF()),
        ETBlock(ETLinear(8, 3), LI()),
    ]
    net, x, y = problem(scaled(nn.Sequential(*blocks)), sequence(7))
    mine = online_gradients(net, DRTRL(), x, y)
    for name, gradient in mine.items():
        later = [str(i) for i in range(int(name[0]) + 1, 3)]
        true = bptt_gradients(net, x, y, cut=later, cut_recurrent=True)
        assert error(gradient, true[name]) < EXACT, name


def test_life_of_the_state() -> None:
    net, x, _ = problem(recurrent(), sequence(7))
    first = [net(x_t).detach() for x_t in x]
    with pytest.raises(StateShapeError, match="spikes of the step before"):
        net[0].connection(x[0, :2])
    copies = [copy.deepcopy(net), pickle.loads(pickle.dumps(net))]  # noqa: S301
    after = net(x[0]).detach()
    for twin in copies:
        assert torch.equal(twin(x[0]), after)
    reset(net)
    assert all(torch.equal(net(x_t), output) for x_t, output in zip(x, first, strict=True))
    assert not torch.equal(first[0], after)
    rows = torch.tensor([True, False, False, False, False])
    reset(net, rows)
    again = net(x[0]).detach()
    assert torch.equal(again[0], first[0][0])
    assert not torch.equal(again, first[0])
    assert net.float()(x[0].float()).dtype == torch.float32
    reset(net)
    assert net[0].connection.spikes is None
    assert set(net.state_dict()) == set(recurrent().state_dict())


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="out_features=0"):
        ETRecurrent(3, 0)


def test_a_changed_input_goes_to_every_part() -> None:
    """Control: the recurrent weights matter."""
    net, x, _ = problem(recurrent(), sequence(7))

    def outputs() -> Tensor:
        reset(net)
        return torch.stack([net(x_t).detach() for x_t in x])

    before = outputs()
    with torch.no_grad():
        net[0].connection.recurrent_weight.add_(0.5)
    assert not torch.equal(before, outputs())
