"""RTRL, SnAp-1 and UORO of one recurrent layer: held against BPTT, dense Jacobians and many draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles.networks import error, labels, lively, online_gradients, scaled, sequence
from torch import Tensor, nn
from torch.nn import functional as F

import snnlearn.engine.real_time as real_time
from snnlearn import (
    ALIF,
    DRTRL,
    LI,
    LIF,
    CubaLIF,
    ETBlock,
    ETConv2d,
    ETLinear,
    ETRecurrent,
    Neuron,
    OnlineLearner,
    Readout,
    SequenceLoss,
    bptt_gradients,
    reset,
    rtrl_gradients,
    snap_gradients,
    uoro_gradients,
)
from snnlearn.functional.real_time import rank_one_step

pytestmark = pytest.mark.usefixtures("unchecked")
INPUTS, UNITS, CLASSES, BATCH, STEPS = 3, 5, 3, 4, 8
Gradients = dict[str, Tensor]


def recurrent(neuron: Neuron, self_connections: bool = True, bias: bool = True) -> nn.Sequential:
    connection = ETRecurrent(INPUTS, UNITS, bias, self_connections=self_connections)
    net = scaled(nn.Sequential(ETBlock(connection, neuron), Readout(nn.Linear(UNITS, CLASSES))))
    assert isinstance(net, nn.Sequential)
    return net


def problem(net: nn.Sequential) -> tuple[nn.Sequential, Tensor, Tensor]:
    x = sequence(INPUTS, steps=STEPS, batch=BATCH)
    lively(net, x)
    return net, x, labels(CLASSES, BATCH)


def assert_equal(found: Gradients, expected: Gradients, tolerance: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert float(gradient.norm()) > 1e-6, name
        assert error(found[name], gradient) < tolerance, name


NEURONS: list[Any] = [
    pytest.param(lambda: LIF(detach_reset=True), id="lif-soft-detached"),
    pytest.param(lambda: LIF(detach_reset=False), id="lif-soft-attached"),
    pytest.param(lambda: LIF(reset="hard", detach_reset=False), id="lif-hard-attached"),
    pytest.param(lambda: LIF(reset="hard", detach_reset=True), id="lif-hard-detached"),
    pytest.param(lambda: LIF(decay=torch.linspace(0.3, 0.9, UNITS)), id="lif-leak-per-unit"),
    pytest.param(lambda: ALIF(detach_reset=False), id="alif-attached"),
    pytest.param(lambda: CubaLIF(), id="cuba-lif"),
]


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("self_connections", [True, False])
def test_full_rtrl_is_bptt(neuron: Callable[[], Neuron], self_connections: bool) -> None:
    """O11; what SnAp-1 or BPTT without the recurrent spikes give is something else."""
    net, x, y = problem(recurrent(neuron(), self_connections))
    expected = bptt_gradients(net, x, y)
    assert_equal(rtrl_gradients(net, x, y), expected)
    for other in (snap_gradients(net, x, y), bptt_gradients(net, x, y, cut_recurrent=True)):
        assert error(other["0.connection.weight"], expected["0.connection.weight"]) > 1e-3
        assert error(other["1.connection.weight"], expected["1.connection.weight"]) < 1e-12


def test_a_feedforward_layer_is_d_rtrl() -> None:
    """Nothing comes back, so full, sparse and D-RTRL are one."""
    net = nn.Sequential(nn.Flatten(), ETBlock(ETLinear(INPUTS, UNITS), LIF(detach_reset=False)), nn.Linear(UNITS, 3))
    _, x, y = problem(scaled(net))  # type: ignore[arg-type]
    expected = bptt_gradients(net, x, y)
    assert_equal(rtrl_gradients(net, x, y), expected)
    assert_equal(snap_gradients(net, x, y), expected)


@pytest.mark.parametrize("neuron", NEURONS)
def test_snap_without_self_connections_is_d_rtrl(neuron: Callable[[], Neuron]) -> None:
    """D-RTRL takes the spikes of the step before as a constant; a self-connection is what SnAp-1 adds."""
    for self_connections in (False, True):
        net, x, y = problem(recurrent(neuron(), self_connections))
        found, expected = snap_gradients(net, x, y), online_gradients(net, DRTRL(), x, y)
        if self_connections:
            assert error(found["0.connection.weight"], expected["0.connection.weight"]) > 1e-3
        else:
            assert_equal(found, expected)
            assert_equal(expected, bptt_gradients(net, x, y, cut_recurrent=True))


def dense_gradients(net: nn.Sequential, x: Tensor, y: Tensor, mask: bool, wrong_sign: bool = False) -> Tensor:
    """Influence matrices from autograd's dense Jacobians of the whole step, one sample at a time.

    Rows: hidden values, then spikes; columns: (W, V, b) flattened. `mask` strikes out, after every step, the entries of
    weights of other units; `wrong_sign` turns the recurrent part of the Jacobian around.
    """
    block, readout = net[0], net[1]
    connection, neuron = block.connection, block.neuron
    theta = torch.cat([connection.weight, connection.recurrent_weight, connection.bias[:, None]], 1).detach()
    units, hidden = theta.shape[0], len(neuron.state_names)
    own = torch.eye(units, dtype=torch.bool).repeat_interleave(theta.shape[1], dim=1).repeat(hidden + 1, 1)
    total = torch.zeros(theta.numel(), dtype=x.dtype)
    for n in range(x.shape[1]):

        def step(state: Tensor, weights: Tensor, x_t: Tensor) -> Tensor:
            *h, s = state.view(hidden + 1, 1, units).unbind(0)
            q = torch.cat([x_t, s[0], torch.ones(1, dtype=x.dtype)])
            spike, after = neuron.step((weights.view_as(theta) @ q)[None], tuple(h))
            return torch.cat([*after, spike]).flatten()

        state, influence = torch.zeros((hidden + 1) * units, dtype=x.dtype), torch.zeros_like(own, dtype=x.dtype)
        for x_t in x[:, n]:
            by_state, by_weight = torch.autograd.functional.jacobian(
                lambda a, b, x_t=x_t: step(a, b, x_t), (state, theta.flatten())
            )
            if wrong_sign:
                by_state[:, -units:] *= -1
            state = step(state, theta.flatten(), x_t).detach()
            influence = by_state @ influence + by_weight
            influence = influence * own if mask else influence
            spike = state[-units:].clone().requires_grad_()
            loss = F.cross_entropy(readout(spike[None]), y[n : n + 1]) / (len(x) * x.shape[1])
            total += torch.autograd.grad(loss, spike)[0] @ influence[-units:]
    return total.view_as(theta)


def joined(gradients: Gradients) -> Tensor:
    parts = [gradients[f"0.connection.{name}"] for name in ("weight", "recurrent_weight")]
    return torch.cat([*parts, gradients["0.connection.bias"][:, None]], dim=1)


@pytest.mark.parametrize("neuron", [NEURONS[1], NEURONS[5], NEURONS[6]])
def test_against_dense_jacobians(neuron: Callable[[], Neuron]) -> None:
    """SnAp-1 is the masked recursion, RTRL the whole one, and neither is what a wrong sign gives."""
    net, x, y = problem(recurrent(neuron()))
    sparse, full = joined(snap_gradients(net, x, y)), joined(rtrl_gradients(net, x, y))
    assert error(sparse, dense_gradients(net, x, y, mask=True)) < 1e-12
    assert error(full, dense_gradients(net, x, y, mask=False)) < 1e-12
    assert error(sparse, full) > 1e-3
    assert error(sparse, dense_gradients(net, x, y, mask=True, wrong_sign=True)) > 1e-3
    assert error(full, dense_gradients(net, x, y, mask=False, wrong_sign=True)) > 1e-3


def draws(net: nn.Module, x: Tensor, y: Tensor, number: int = 60, copies: int = 200) -> Tensor:
    """Estimates [number, O, Q], each the mean over `copies` samples that are all the same but for their signs."""
    generator = torch.Generator().manual_seed(1)
    many, same = x.repeat(1, copies, 1), y.repeat(copies)
    return torch.stack([joined(uoro_gradients(net, many, same, generator=generator)) for _ in range(number)])


def deviations(estimates: Tensor, expected: Tensor) -> float:
    """The largest distance of the mean from `expected`, in its own standard errors."""
    spread = estimates.std(dim=0) / len(estimates) ** 0.5
    return float(((estimates.mean(dim=0) - expected).abs() / spread.clamp(min=1e-15)).max())


def test_the_mean_of_uoro_is_rtrl(monkeypatch: pytest.MonkeyPatch) -> None:
    """12,000 draws, to 4 standard errors; SnAp-1, or signs of V or of the noise gone wrong, are told from it."""
    net = scaled(
        nn.Sequential(
            ETBlock(ETRecurrent(2, 3, self_connections=True), LIF(detach_reset=False)), Readout(nn.Linear(3, CLASSES))
        )
    )
    nn.init.uniform_(net[0].connection.weight, 0.3, 1.5)  # type: ignore[index, union-attr]
    x, y = sequence(2, steps=5, batch=1), labels(CLASSES, 1)
    with torch.no_grad():
        rates = torch.stack([net[0](x_t) for x_t in x]).mean((0, 1))  # type: ignore[index]
    reset(net)
    assert 0 < float(rates.min()) < float(rates.max()) < 1
    expected = joined(rtrl_gradients(net, x, y))
    estimates = draws(net, x, y)
    assert float(estimates.std(dim=0).min()) > 0
    assert deviations(estimates, expected) < 4
    assert deviations(estimates, joined(snap_gradients(net, x, y))) > 8

    def wrong_weights(estimate: Any, jacobian: Any, q: Any, recurrent: Any, signs: Any) -> Any:
        return rank_one_step(estimate, jacobian, q, -recurrent, signs)

    def wrong_noise(estimate: Any, jacobian: Any, q: Any, recurrent: Any, signs: Any) -> Any:
        after = rank_one_step(estimate, jacobian, q, recurrent, signs)
        return after._replace(spike=-after.spike)

    for wrong in (wrong_weights, wrong_noise):
        monkeypatch.setattr(real_time, "rank_one_step", wrong)
        assert deviations(draws(net, x, y), expected) > 8


def test_uoro_is_seeded_and_differs_from_draw_to_draw() -> None:
    net, x, y = problem(recurrent(LIF()))
    first, again, other = (
        joined(uoro_gradients(net, x, y, generator=torch.Generator().manual_seed(seed))) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert error(first, other) > 0.1


@pytest.mark.parametrize("gradients", [rtrl_gradients, snap_gradients, uoro_gradients])
def test_the_network_is_left_as_it_was(gradients: Callable[..., Gradients]) -> None:
    """In the middle of a stream under another rule: traces, state and `.grad` stay; frozen parameters have no entry."""
    net, x, y = problem(recurrent(LIF()))
    net[0].connection.bias.requires_grad_(False)
    learner = OnlineLearner(net, DRTRL(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.0))
    twice = []
    for between in (False, True):
        learner.reset()
        learner.step(x[0], y)
        if between:
            found = gradients(net, x, y)
            assert sorted(found) == sorted(name for name, p in net.named_parameters() if p.requires_grad)
            assert all(p.grad is None for p in net.parameters())
        twice.append(learner.step(x[1], y))
    assert torch.equal(*twice)


def test_losses_that_count_some_steps() -> None:
    net, x, y = problem(recurrent(LIF(), bias=False))
    late = SequenceLoss(last_steps=2)
    assert_equal(rtrl_gradients(net, x, y, late), bptt_gradients(net, x, y, late))
    targets = [None, *[y] * (STEPS - 1)]
    assert_equal(
        rtrl_gradients(net, x, targets, per_step_target=True), bptt_gradients(net, x, targets, per_step_target=True)
    )
    with pytest.raises(ValueError, match="readout='step'"):
        rtrl_gradients(net, x, y, SequenceLoss(readout="running_mean"))
    with pytest.raises(ValueError, match="no loss to differentiate"):
        rtrl_gradients(net, x, [None] * STEPS, per_step_target=True)


def test_other_networks_are_refused() -> None:
    block = ETBlock(ETRecurrent(3, 3), LIF())
    x, y = torch.rand(2, 1, 3), torch.tensor([0])
    for net in (
        nn.Linear(3, 3),
        nn.Sequential(block, ETBlock(ETLinear(3, 3), LIF())),
        ETBlock(ETConv2d(1, 1, 1), LI()),
    ):
        with pytest.raises(ValueError, match="holds exactly one"):
            rtrl_gradients(net, x, y)
    normed = ETBlock(ETRecurrent(3, 3), LIF(), norm=nn.LayerNorm(3))
    for net in (nn.Sequential(nn.Linear(3, 3), block), nn.Sequential(block, LI()), nn.Sequential(normed)):
        with pytest.raises(ValueError, match="use bptt_gradients"):
            rtrl_gradients(net, x, y)
