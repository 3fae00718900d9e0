"""A neuron the library has never seen: resonate-and-fire, in ten lines, under every rule."""

import math

import torch
from oracles.networks import error, mlp, online_gradients, oracle, problem, sequence
from torch import Tensor
from torch.nn import functional as F

from snnlearn import BPTT, DRTRL, LIF, OTTT, SLTT, ETBlock, ETLinear, Neuron, OnlineLearner, Readout, attach, reset


class ResonateAndFire(Neuron):
    """A membrane that rotates and decays: two hidden values, firing on the real part, no reset."""

    state_names = ("real", "imag")

    def __init__(self, damping: float = 0.8, angle: float = 0.5) -> None:
        super().__init__()
        self.cos, self.sin = damping * math.cos(angle), damping * math.sin(angle)

    def step(self, y: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        real, imag = state
        real, imag = self.cos * real - self.sin * imag + y, self.sin * real + self.cos * imag
        return self.spike(real - 1.0), (real, imag)


class Resetting(ResonateAndFire):
    """The same with a soft reset that the gradient sees: its Jacobian depends on the state."""

    def step(self, y: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        spike, (real, imag) = super().step(y, state)
        return spike, (real - spike, imag)


class FiringOnMixture(ResonateAndFire):
    """Fires on a mixture that is no function of the next state, so the trace needs a row of its own."""

    def step(self, y: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        _, after = super().step(y, state)
        return self.spike(0.7 * y + 0.9 * state[0] - 0.2 * state[1] - 1.0), after


def test_ottt_follows_a_custom_neuron_exactly() -> None:
    for kind in (ResonateAndFire, FiringOnMixture):
        net, x, y = problem(mlp(kind), sequence(7))
        mine, full, cut = online_gradients(net, OTTT(), x, y), oracle(net, x, y), oracle(net, x, y, ["1"])
        for part in ("weight", "bias"):
            assert error(mine[f"1.connection.{part}"], full[f"1.connection.{part}"]) < 1e-12, kind
            assert error(mine[f"0.connection.{part}"], cut[f"0.connection.{part}"]) < 1e-12, kind
        assert error(online_gradients(net, SLTT(), x, y)["1.connection.weight"], full["1.connection.weight"]) > 1e-2
        assert attach(net, OTTT())["1.connection.weight"].exact


def test_a_custom_neuron_with_attached_reset_is_reported_approximate() -> None:
    net, x, y = problem(mlp(Resetting), sequence(7))
    mine, full = online_gradients(net, OTTT(), x, y), oracle(net, x, y)
    assert error(mine["1.connection.weight"], full["1.connection.weight"]) > 1e-2
    row = attach(net, OTTT())["1.connection.weight"]
    assert not row.exact
    assert "changes with its state" in row.why


def tone_task(steps: int = 30, batch: int = 64) -> tuple[Tensor, Tensor]:
    """Two tones: the class is the frequency, so a resonator can tell and an instantaneous unit can not."""
    y = torch.arange(batch) % 2
    frequency = torch.tensor([0.5, 1.4])[y]
    phase = 2 * math.pi * torch.rand(batch)
    t = torch.arange(steps)[:, None]
    return torch.sin(frequency * t + phase)[..., None], y


def test_a_custom_neuron_learns_under_ottt_and_bptt() -> None:
    for rule in (OTTT(), BPTT()):
        torch.manual_seed(1)
        net = torch.nn.Sequential(ETBlock(ETLinear(1, 40), ResonateAndFire(0.9, 0.5)), Readout(torch.nn.Linear(40, 2)))
        with torch.no_grad():
            net[0].connection.weight.mul_(1.5)
        learner = OnlineLearner(net, rule, F.cross_entropy, torch.optim.Adam(net.parameters(), lr=0.02))
        first = learner.learn(*tone_task())
        for _ in range(40):
            learner.learn(*tone_task())
        held_out = learner.evaluate(*tone_task())
        assert 0.02 < held_out.firing_rates["0"] < 0.8
        assert held_out.accuracy is not None
        assert held_out.accuracy > 0.9, f"{rule.name}: {held_out.accuracy}"
        assert held_out.loss < 0.7 * first.loss
        reset(net)
        shuffled = learner.evaluate(tone_task()[0], torch.randint(2, (64,)))
        assert shuffled.accuracy is not None
        assert shuffled.accuracy < 0.75  # control: against random labels it stays near chance


class Fading(LIF):
    """LIF whose subclass leaks once more: what LIF says of its own step no longer holds."""

    def step(self, y: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        return super().step(y, (0.9 * state[0],))


def test_a_subclass_that_changes_the_step_is_followed_as_it_is() -> None:
    """Its trace decays by 0.9 * 0.7, and so does D-RTRL's; a trace by LIF's own 0.7 would be wrong."""
    net, x, y = problem(mlp(lambda: Fading(decay=0.7)), sequence(7))
    true, wrong = oracle(net, x, y), online_gradients(lookalike(net), OTTT(), x, y)
    for rule in (OTTT(), DRTRL()):
        mine = online_gradients(net, rule, x, y)
        assert error(mine["1.connection.weight"], true["1.connection.weight"]) < 1e-12
    assert "0.63" in attach(net, OTTT())["1.connection.weight"].trace
    assert error(wrong["1.connection.weight"], true["1.connection.weight"]) > 1e-3


def lookalike(net: torch.nn.Sequential) -> torch.nn.Sequential:
    """The same weights on plain LIF neurons."""
    twin = mlp(lambda: LIF(decay=0.7))
    twin.load_state_dict(net.state_dict())
    return twin
