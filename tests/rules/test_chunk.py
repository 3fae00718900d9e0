"""O19: a sequence cut into chunks of any length gives one gradient, which in one chunk is BPTT's."""

from collections.abc import Callable

import pytest
import torch
from oracles.networks import STEPS, error, mlp, online_gradients, oracle, problem, sequence
from test_custom_neuron import ResonateAndFire
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import ALIF, DRTRL, HYPR, LIF, CubaLIF, ETBlock, ETLinear, Neuron, reset
from snnlearn.functional import Jacobian, fold_chunk, roll_eligibility, roll_weights, scan_chunk
from snnlearn.functional.synaptic import step_eligibility, with_one

EXACT = 1e-12
KINDS: list[Callable[[], Neuron]] = [
    lambda: LIF(decay=0.7),
    lambda: LIF(decay=torch.linspace(0.3, 0.9, 9), reset="hard", detach_reset=False),
    CubaLIF,
    lambda: ALIF(reset="soft", detach_reset=False),
    ResonateAndFire,
]


def recording(net: nn.Sequential, x: Tensor, y: Tensor) -> tuple[list[Jacobian], Tensor]:
    """The Jacobians of the first block's neuron and dL/ds of every step, with no rule of the package at work."""
    block, readout = net[0], net[1].connection
    assert isinstance(block, ETBlock)
    reset(net)
    steps, signals = [], []
    for x_t in x:
        with torch.no_grad():
            step = block.neuron.advance_linearised(F.linear(x_t, block.connection.weight, block.connection.bias))
        spikes = step.spike.clone().requires_grad_()
        (signal,) = torch.autograd.grad(F.cross_entropy(readout(spikes), y) / len(x), spikes)
        steps.append(step.jacobian)
        signals.append(signal)
    reset(net)
    return steps, torch.stack(signals)


def stacked(jacobians: list[Jacobian]) -> Jacobian:
    """The Jacobians of the steps of a chunk as one, the steps in front of the units."""
    transition, drive, spike_state, spike_input = zip(*jacobians, strict=True)
    return Jacobian(
        torch.stack(transition, 2), torch.stack(drive, 1), torch.stack(spike_state, 1), torch.stack(spike_input)
    )


def by_chunks(jacobians: list[Jacobian], signals: Tensor, x: Tensor, length: int) -> Tensor:
    """The loop of a chunked rule; the last chunk is what is left over."""
    gradient, eligibility = torch.zeros(()), None
    for start in range(0, len(x), length):
        part = slice(start, start + length)
        chunk = stacked(jacobians[part])
        received, entering = scan_chunk(chunk, signals[part])
        gradient = gradient + fold_chunk(received, entering, x[part], eligibility)
        eligibility = roll_eligibility(eligibility, *roll_weights(chunk), x[part])
    return gradient


@pytest.mark.parametrize("kind", KINDS)
def test_o19_every_length_gives_the_gradient_of_bptt(kind: Callable[[], Neuron]) -> None:
    net, x, y = problem(mlp(kind, sizes=(7, 9)), sequence(7))
    jacobians, signals = recording(net, x, y)
    full = oracle(net, x, y)
    true = torch.cat([full["0.connection.weight"], full["0.connection.bias"][:, None]], dim=1)
    for length in (1, 3, 4, STEPS):
        assert error(by_chunks(jacobians, signals, with_one(x), length), true) < EXACT, length
    forgetful = sum(
        by_chunks(jacobians[t : t + 3], signals[t : t + 3], with_one(x[t : t + 3]), 3) for t in range(0, STEPS, 3)
    )
    assert error(torch.as_tensor(forgetful), true) > 1e-2  # control: the eligibility carried between chunks matters


@pytest.mark.parametrize("kind", KINDS)
def test_the_preset_has_the_numbers_of_its_chunks_and_of_d_rtrl(kind: Callable[[], Neuron]) -> None:
    net, x, y = problem(mlp(kind, sizes=(7, 9)), sequence(7))
    jacobians, signals = recording(net, x, y)
    mine, other = online_gradients(net, HYPR(), x, y), online_gradients(net, DRTRL(), x, y)
    chunked = by_chunks(jacobians, signals, with_one(x), 3)
    assert error(mine["0.connection.weight"], chunked[:, :-1]) < EXACT
    assert error(mine["0.connection.bias"], chunked[:, -1]) < EXACT
    assert all(torch.equal(mine[name], other[name]) for name in other)
    assert all(row.exact for row in HYPR().attach(net))


def test_a_roll_is_as_many_steps() -> None:
    net, x, y = problem(mlp(ALIF, sizes=(7, 9)), sequence(7))
    jacobians, _ = recording(net, x, y)
    eligibility = torch.zeros(2, x.shape[1], 9, 7, dtype=x.dtype)
    for jacobian, x_t in zip(jacobians[:4], x, strict=False):
        _, eligibility = step_eligibility(eligibility, jacobian, x_t)
    half = roll_eligibility(None, *roll_weights(stacked(jacobians[:2])), x[:2])
    rolled = torch.stack(list(roll_eligibility(half, *roll_weights(stacked(jacobians[2:4])), x[2:4])))
    torch.testing.assert_close(rolled, eligibility, rtol=1e-12, atol=1e-14)
    swapped = torch.stack(
        list(roll_eligibility(None, *roll_weights(stacked([jacobians[i] for i in (1, 0, 2, 3)])), x[:4]))
    )
    assert error(swapped, eligibility) > 1e-2  # control: the order of the steps matters


def test_further_leading_dimensions_and_single_precision() -> None:
    """[B, S, I]: one neuron per place; float32 stays within its rounding."""
    block = ETBlock(ETLinear(4, 5), LIF(decay=0.7, reset="hard")).double()
    x, signals = sequence(6, 4), torch.randn(STEPS, 5, 6, 5, dtype=torch.float64)
    with torch.no_grad():
        steps = [block.neuron.advance_linearised(block.connection(x_t)).jacobian for x_t in x]
    whole = by_chunks(steps, signals, x, STEPS)
    flat = [
        Jacobian(j.transition.flatten(2, 3), j.drive.flatten(1, 2), j.spike_state.flatten(1, 2), j[3].flatten(0, 1))
        for j in steps
    ]
    assert whole.shape == (5, 4)
    assert error(by_chunks(steps, signals, x, 3), whole) < EXACT
    assert error(by_chunks(flat, signals.flatten(1, 2), x.flatten(1, 2), 3), whole) < EXACT
    single = [Jacobian(*(part.float() for part in jacobian)) for jacobian in steps]
    assert error(by_chunks(single, signals.float(), x.float(), 3).double(), whole) < 1e-5


def test_a_chunk_has_one_signal_per_step() -> None:
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match="2 Jacobians for 1 signals"):
        scan_chunk(stacked([Jacobian(one[None], one, one, one[0])] * 2), torch.ones(1, 1))
