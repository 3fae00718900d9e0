"""Rules that learn from a loss of the block's own (O16), from noise, from a reward, or towards a firing rate."""

import pytest
import torch
from nets import show
from oracles.by_hand import HandSpike
from oracles.networks import error, labels, lively, mlp, online_gradients, oracle, problem, scaled, sequence
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    DECOLLE,
    ELL,
    ETLP,
    IF,
    LI,
    LIF,
    OPZO,
    OTTT,
    TESS,
    CubaLIF,
    ETBlock,
    ETConv2d,
    ETLinear,
    LearningRule,
    OnlineLearner,
    RateTarget,
    Readout,
    RewardModulated,
    RuleChoiceError,
    attach,
    reset,
    show_reward,
)
from snnlearn.engine.sequence import Meter
from snnlearn.functional.signals import sinusoids
from snnlearn.nn.signal import LocalReadoutSignal, NoiseSignal

EXACT = 1e-12


def learn(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Learn by a plain loop, each step's own loss undivided; return the sum of the steps' gradients."""
    reset(net)
    net.zero_grad(set_to_none=True)
    show(net, y)
    with Meter(net) as meter:
        for x_t in x:
            F.cross_entropy(net(x_t), y).backward()
    for name, rate in meter.firing_rates().items():
        assert 0.02 < rate < 0.8, f"{name} fires at {rate:.3f}: the comparison would be empty"
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def by_hand(
    weights: list[tuple[Tensor, Tensor]],
    heads: list[Tensor],
    x: Tensor,
    loss,  # type: ignore[no-untyped-def]
    decay: float = 0.5,
    attached: bool = False,
    cut: bool = False,
) -> list[Tensor]:
    """Autograd through the unrolled blocks, each with its own summed loss and detached input; (W, b, G) per block."""
    leaves = [tuple(t.detach().clone().requires_grad_() for t in pair) for pair in weights]
    readouts = [head.detach().clone().requires_grad_() for head in heads]
    membranes = [torch.zeros(x.shape[1], len(b), dtype=x.dtype) for _, b in leaves]
    total = torch.zeros((), dtype=x.dtype)
    for x_t in x:
        below = x_t
        for number, (weight, bias) in enumerate(leaves):
            before = membranes[number].detach() if cut else membranes[number]
            v = decay * before + below @ weight.T + bias
            s = HandSpike.apply(v - 1)
            membranes[number] = v - (s if attached else s.detach())
            total = total + loss(s @ readouts[number].T)
            below = s.detach()
    flat = [t for pair, head in zip(leaves, readouts, strict=True) for t in (*pair, head)]
    return list(torch.autograd.grad(total, flat))


def parts(net: nn.Sequential, blocks: int = 2) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
    pairs = [(net[i].connection.weight, net[i].connection.bias) for i in range(blocks)]
    return pairs, [net[i].signal.head for i in range(blocks)]


@pytest.mark.parametrize("kind", ["smooth_l1", "mse", "cross_entropy"])
def test_o16_decolle_is_bptt_of_its_own_loss(kind: str) -> None:
    net, x, y = problem(mlp(LIF), sequence(7))
    attach(net, DECOLLE(loss=kind))
    mine = learn(net, x, y)
    one_hot = F.one_hot(y, 3).double()

    def loss(output: Tensor) -> Tensor:
        if kind == "cross_entropy":
            return F.cross_entropy(output, y)
        return F.mse_loss(output, one_hot) if kind == "mse" else F.smooth_l1_loss(output, one_hot)

    true = by_hand(*parts(net), x, loss)
    attached = by_hand(*parts(net), x, loss, attached=True)
    instant = by_hand(*parts(net), x, loss, cut=True)
    for block in (0, 1):
        for place, part in enumerate(("weight", "bias")):
            gradient = mine[f"{block}.connection.{part}"]
            assert gradient.norm() > 1e-3
            assert error(gradient, true[3 * block + place]) < EXACT
            assert error(gradient, attached[3 * block + place]) > 1e-2  # control: the reset's own gradient
            assert error(gradient, instant[3 * block + place]) > 1e-2  # control: time matters
    assert "0.signal.head" not in mine  # the readout is fixed
    report = attach(net, DECOLLE())
    assert "own readout" in report["0.connection.weight"].why


def test_decolle_with_two_cascaded_traces() -> None:
    """The paper's neuron: a filtered current drives the membrane."""
    net, x, y = problem(mlp(CubaLIF, sizes=(7, 9)), sequence(7))
    attach(net, DECOLLE(loss="mse"))
    mine = learn(net, x, y)
    head, one_hot = net[0].signal.head, F.one_hot(y, 3).double()
    true = oracle(nn.Sequential(net[0]), x, y, loss=lambda s, _: F.mse_loss(s @ head.T, one_hot))
    for part in ("weight", "bias"):
        assert error(mine[f"0.connection.{part}"], true[f"0.connection.{part}"] * len(x)) < EXACT


@pytest.mark.parametrize("kind", ["mse", "cross_entropy"])
def test_ell_learns_its_readouts_too(kind: str) -> None:
    net, x, y = problem(mlp(LIF), sequence(7))
    attach(net, ELL(loss=kind))
    mine = learn(net, x, y)
    one_hot = F.one_hot(y, 3).double()

    def loss(output: Tensor) -> Tensor:
        return F.mse_loss(output, one_hot) if kind == "mse" else F.cross_entropy(output, y)

    true, whole = by_hand(*parts(net), x, loss, cut=True), by_hand(*parts(net), x, loss)
    for block in (0, 1):
        for place, name in enumerate(("connection.weight", "connection.bias", "signal.head")):
            gradient = mine[f"{block}.{name}"]
            assert gradient.norm() > 1e-3
            assert error(gradient, true[3 * block + place]) < EXACT, name
        assert error(mine[f"{block}.connection.weight"], whole[3 * block]) > 1e-2  # control: no time in it


def test_tess_on_a_map_by_autograd() -> None:
    """Without its acausal half it is the local loss's gradient met by a trace of the rule's own decay."""
    net = scaled(nn.Sequential(ETBlock(ETConv2d(2, 3, 3, padding=1), LIF()), nn.Flatten(), Readout(nn.Linear(240, 3))))
    net, x, y = problem(net, sequence(2, 10, 8))
    attach(net, TESS(acausal=0.0, causal_decay=0.5))
    mine = learn(net, x, y)
    basis = sinusoids(3, 3 * 16).double()

    def loss(spikes: Tensor, _: Tensor) -> Tensor:
        return F.cross_entropy(F.adaptive_avg_pool2d(spikes, 4).flatten(1) @ basis.T, y)

    true = oracle(nn.Sequential(net[0]), x, y, loss=loss)
    for part in ("weight", "bias"):
        assert mine[f"0.connection.{part}"].norm() > 1e-6
        assert error(mine[f"0.connection.{part}"], true[f"0.connection.{part}"] * len(x)) < 1e-6  # basis in float32
    attach(net, TESS(acausal=1.0))
    assert error(learn(net, x, y)["0.connection.weight"], mine["0.connection.weight"]) > 1e-2
    attach(net, TESS(acausal=0.0, square=True))
    assert error(learn(net, x, y)["0.connection.weight"], mine["0.connection.weight"]) > 1e-2


def test_tess_acausal_half_by_hand() -> None:
    net, x, y = problem(mlp(LIF, sizes=(7, 9)), sequence(7))
    attach(net, TESS(acausal=-0.7, causal=0.3, acausal_decay=0.2, causal_decay=0.8))
    mine = learn(net, x, y)
    weight, bias, head = net[0].connection.weight.detach(), net[0].connection.bias.detach(), net[0].signal.head
    v, post, trace = torch.zeros(5, 9).double(), torch.zeros(5, 9).double(), torch.zeros(5, 7).double()
    total = torch.zeros_like(weight)
    for x_t in x:
        v = 0.5 * v + x_t @ weight.T + bias
        psi, s = 1 / (1 + (torch.pi * (v - 1)) ** 2), (v >= 1).double()
        v = v - s
        u = (torch.softmax(s @ head.T, 1) - F.one_hot(y, 3)) @ head / 5
        trace = 0.8 * trace + x_t
        total += (0.3 * u * psi).T @ trace - 0.7 * (u * post).T @ x_t
        post = 0.2 * post + psi
    assert error(mine["0.connection.weight"], total) < EXACT


def test_a_local_readout_averages_over_the_places_of_a_dense_block() -> None:
    """[B, S, O]: one neuron per place and unit; the readout sees the mean over places."""
    net = scaled(nn.Sequential(ETBlock(ETLinear(4, 9), LIF()), MeanOverPlaces(), Readout(nn.Linear(9, 3))))
    net, x, y = problem(net, sequence(6, 4))
    attach(net, DECOLLE(loss="cross_entropy"))
    mine = learn(net, x, y)
    head = net[0].signal.head
    true = oracle(nn.Sequential(net[0]), x, y, loss=lambda s, _: F.cross_entropy(s.mean(1) @ head.T, y))
    assert error(mine["0.connection.weight"], true["0.connection.weight"] * len(x)) < EXACT


class MeanOverPlaces(nn.Module):
    """[B, S, O] to [B, O]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


# Noise.


def linear_toy(batch: int) -> tuple[nn.Sequential, Tensor, Tensor]:
    net = scaled(nn.Sequential(ETBlock(ETLinear(7, 9), LIF()), Readout(nn.Linear(9, 3))))
    return problem(net, sequence(7, batch=batch))


@pytest.mark.parametrize("batch", [1, 2, 16])
def test_noise_finds_the_derivative_of_the_output(batch: int) -> None:
    """do/ds is the readout's weight; the mean of many single estimates meets it within four standard errors."""
    net, x, _ = linear_toy(batch)
    attach(net, OPZO(scale=0.5, momentum=0.0, seed=batch))
    signal = net[0].signal
    assert isinstance(signal, NoiseSignal)
    estimates = []
    for step in range(200):
        net(x[step % len(x)])
        estimates.append(signal.estimate)
    found = torch.stack([e for e in estimates if e is not None])
    assert len(found) == 200
    standard_error = found.std(0) / len(found) ** 0.5
    distance = (found.mean(0) - net[1].connection.weight.detach()) / standard_error
    assert float(distance.abs().max()) < 4.0
    assert float(((found.mean(0) + net[1].connection.weight.detach()) / standard_error).abs().max()) > 8.0  # wrong sign


def test_the_gradient_from_noise_points_uphill() -> None:
    net, x, y = linear_toy(16)
    true = online_gradients(net, OTTT(), x, y)
    attach(net, OPZO(scale=0.2, momentum=0.99))
    with Meter(net) as meter:
        for step in range(400):
            net(x[step % len(x)])
    assert 0.02 < meter.firing_rates()["0"] < 0.8
    mine = learn(net, x, y)
    for name in ("0.connection.weight", "0.connection.bias"):
        assert float(F.cosine_similarity(mine[name].flatten(), true[name].flatten(), dim=0)) > 0.7
    net[0].signal.estimate = -net[0].signal.estimate
    opposed = learn(net, x, y)["0.connection.weight"]
    assert float(F.cosine_similarity(opposed.flatten(), true["0.connection.weight"].flatten(), dim=0)) < 0.0  # control


def test_noise_is_the_seeds_and_leaves_evaluation_alone() -> None:
    net, x, _ = linear_toy(4)

    def outputs(seed: int) -> Tensor:
        attach(net, OPZO(seed=seed))
        return torch.stack([net(x_t).detach() for x_t in x])

    assert torch.equal(outputs(1), outputs(1))
    assert not torch.equal(outputs(1), outputs(2))
    attach(net, OTTT())
    plain = torch.stack([net(x_t).detach() for x_t in x])
    attach(net, OPZO())
    net.eval()
    assert torch.equal(torch.stack([net(x_t).detach() for x_t in x]), plain)
    for wrong in ({"scale": 0.0}, {"momentum": 1.0}):
        with pytest.raises(RuleChoiceError, match="write"):
            OPZO(**wrong)
    OPZO(seed=2**40).attach(net.train())
    assert torch.isfinite(net(x[0])).all()  # a large seed is no overflow


# Reward, teacher and rate.


def test_a_reward_per_sample_by_hand() -> None:
    net, x, y = problem(mlp(IF, sizes=(7, 9)), sequence(7, steps=1))
    attach(net, RewardModulated())
    reward = torch.tensor([1.0, -2.0, 0.0, 0.5, 3.0]).double()
    show_reward(net, reward)
    mine = learn(net, x, y)
    v = x[0] @ net[0].connection.weight.detach().T + net[0].connection.bias.detach()
    psi = 1 / (1 + (torch.pi * (v - 1)) ** 2)
    true = -(reward[:, None] / 5 * psi).T @ x[0]
    assert error(mine["0.connection.weight"], true) < EXACT
    show_reward(net, -reward)
    assert error(learn(net, x, y)["0.connection.weight"], -true) < EXACT


def test_the_teacher_of_etlp_fires_now_and_then() -> None:
    net, x, y = problem(mlp(LIF, sizes=(7, 9)), sequence(7, steps=20))
    learner = OnlineLearner(net, ETLP(steps=4), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=1e-4), update=1)
    updates = [learner.learn(x, y).updates for _ in range(8)]
    mean = sum(updates) / len(updates)
    assert abs(mean - 5) < 4 * (20 * 0.25 * 0.75 / 8) ** 0.5
    assert len(set(updates)) > 1


def test_a_held_rate_by_autograd() -> None:
    """The term c/2 sum (f - f*)^2, the past of f a constant, added to the loss of every step."""
    rate, strength = 0.05, 3.0
    net, x, y = problem(mlp(LIF), sequence(7))
    rule = LearningRule(rate=RateTarget(rate=rate, weight=strength))
    attach(net, rule)
    mine, plain = learn(net, x, y), online_gradients(net, OTTT(), x, y)
    pairs = [(net[i].connection.weight.detach(), net[i].connection.bias.detach()) for i in (0, 1)]
    leaves = [t.clone().requires_grad_() for pair in pairs for t in pair]
    v = [torch.zeros(5, 9).double(), torch.zeros(5, 8).double()]
    counts = [torch.zeros(9).double(), torch.zeros(8).double()]
    total = torch.zeros(()).double()
    for step, x_t in enumerate(x, 1):
        below = x_t
        for i in (0, 1):
            v[i] = 0.5 * v[i] + below @ leaves[2 * i].T + leaves[2 * i + 1]
            s = HandSpike.apply(v[i] - 1)
            v[i] = v[i] - s.detach()
            f = (counts[i] + s.sum(0)) / (5 * step)
            counts[i] = (counts[i] + s.sum(0)).detach()
            total = total + strength / 2 * ((f - rate) ** 2).sum()
            below = s.detach()
    true = torch.autograd.grad(total, leaves)
    for i, name in ((2, "1.connection.weight"), (3, "1.connection.bias")):
        assert error(mine[name] - len(x) * plain[name], true[i]) < 1e-10
        assert true[i].norm() > 1e-4
    assert error(mine["0.connection.weight"], len(x) * plain["0.connection.weight"]) > 1e-3


def test_a_rate_forgets_the_rows_that_start_afresh() -> None:
    net, x, _ = problem(mlp(LIF, sizes=(7, 9)), sequence(7))
    attach(net, LearningRule(rate=RateTarget(rate=0.1, weight=1.0)))
    for x_t in x[:4]:
        net(x_t)
    rows = torch.tensor([True, False, False, True, False])
    reset(net, rows)
    assert net[0].rate.steps.tolist() == [0, 4, 4, 0, 4]
    assert float(net[0].rate.totals[rows].abs().sum()) == 0
    assert float(net[0].rate.totals[~rows].sum()) > 0
    reset(net)
    assert net[0].rate.totals is None
    attach(net, OTTT())
    assert net[0].rate is None


def test_a_rate_is_held() -> None:
    net = lively(mlp(LIF, sizes=(7, 20)), x := sequence(7))
    y = labels()
    rule = LearningRule(rate=RateTarget(rate=0.02, weight=50.0))
    before = OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.0)).learn(x, y)
    learner = OnlineLearner(net, rule, F.cross_entropy, torch.optim.Adam(net.parameters(), lr=0.02))
    for _ in range(20):
        after = learner.learn(x, y)
    assert after.firing_rates["0"] < 0.5 * before.firing_rates["0"]


def test_a_leaky_readout_keeps_its_own_gradient() -> None:
    net = scaled(nn.Sequential(ETBlock(ETLinear(7, 9), LIF()), ETBlock(ETLinear(9, 3), LI(tau=4.0))))
    net, x, y = problem(net, sequence(7))
    attach(net, DECOLLE())
    assert isinstance(net[0].signal, LocalReadoutSignal)
    assert net[1].signal is None
    mine, true = learn(net, x, y), oracle(net, x, y)
    for name in ("1.connection.weight", "1.connection.bias"):
        assert error(mine[name], true[name] * len(x)) < EXACT
    assert error(mine["0.connection.weight"], true["0.connection.weight"] * len(x)) > 0.1
