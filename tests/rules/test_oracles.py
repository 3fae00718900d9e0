"""The rules against BPTT: O1-O5 and O18, float64, each with a control that must differ."""

import itertools

import pytest
import torch
from oracles import by_hand
from oracles.networks import error, labels, lively, mlp, online_gradients, oracle, problem, sequence
from torch.nn import functional as F

from snnlearn import ALIF, BPTT, IF, LI, LIF, OTTT, SLTT, CubaLIF, ETBlock, ETLinear, OnlineLearner, attach
from snnlearn.functional import RESETS

EXACT = 1e-12
RESET_CASES = list(itertools.product(RESETS, (True, False)))
NAMES = ["0.connection.weight", "0.connection.bias", "1.connection.weight", "1.connection.bias"]
NAMES += ["2.connection.weight", "2.connection.bias"]


def hand_weights(net: torch.nn.Module) -> by_hand.Weights:
    parameters = dict(net.named_parameters())
    return by_hand.Weights(*[parameters[name].detach() for name in NAMES])


@pytest.mark.parametrize("cut", [(), (1,), (2,), (1, 2)])
@pytest.mark.parametrize("reset", ["soft", "hard"])
def test_the_oracle_equals_bare_tensors(cut: tuple[int, ...], reset: str) -> None:
    """`bptt_gradients` against a network that shares no line with the package."""
    net, x, y = problem(mlp(lambda: LIF(decay=0.7, reset=reset)), sequence(7))
    mine = oracle(net, x, y, cut=[str(layer - 1) for layer in cut])
    true = by_hand.bptt(hand_weights(net), x, y, 0.7, cut, reset)
    other = by_hand.bptt(hand_weights(net), x, y, 0.7, () if cut else (1, 2), reset)
    for name, gradient in zip(NAMES, true, strict=True):
        assert error(mine[name], gradient) < EXACT, name
    assert error(mine["0.connection.weight"], other[0]) > 1e-3


def test_ottt_equals_its_equations_without_autograd() -> None:
    net, x, y = problem(mlp(lambda: LIF(decay=0.7)), sequence(7))
    mine = online_gradients(net, OTTT(), x, y)
    true, wrong = (by_hand.ottt(hand_weights(net), x, y, 0.7, wrong_sign=w) for w in (False, True))
    for name, gradient in zip(NAMES, true, strict=True):
        assert error(mine[name], gradient) < EXACT, name
    assert error(mine["1.connection.weight"], wrong[2]) > 0.1  # a planted sign is seen


@pytest.mark.parametrize(("reset", "detach"), RESET_CASES)
@pytest.mark.parametrize("kind", [LIF, CubaLIF, ALIF, IF])
def test_o1_sltt_is_bptt_with_every_temporal_edge_cut(kind, reset: str, detach: bool) -> None:  # type: ignore[no-untyped-def]
    net, x, y = problem(mlp(lambda: kind(reset=reset, detach_reset=detach)), sequence(7))
    mine, true, full = online_gradients(net, SLTT(), x, y), oracle(net, x, y, "all"), oracle(net, x, y)
    assert mine.keys() == true.keys()
    for name in mine:
        assert error(mine[name], true[name]) < EXACT, name
    assert error(mine["0.connection.weight"], full["0.connection.weight"]) > 1e-2


@pytest.mark.parametrize("reset", ["soft", "none"])
@pytest.mark.parametrize("kind", [LIF, CubaLIF])
def test_o2_ottt_is_full_bptt_for_the_last_hidden_layer(kind, reset: str) -> None:  # type: ignore[no-untyped-def]
    """O2 and, for the current-based neuron with its two cascaded traces, O18."""
    net, x, y = problem(mlp(lambda: kind(reset=reset)), sequence(7))
    mine, true = online_gradients(net, OTTT(), x, y), oracle(net, x, y)
    for name in NAMES[2:]:
        assert error(mine[name], true[name]) < EXACT, name
    assert error(mine[NAMES[0]], true[NAMES[0]]) > 1e-3  # the first layer has a layer with memory above
    untraced = online_gradients(net, SLTT(), x, y)
    assert error(untraced[NAMES[2]], true[NAMES[2]]) > 1e-2


@pytest.mark.parametrize("kind", [LIF, CubaLIF, IF])
def test_o3_ottt_layer_l_is_bptt_with_the_layers_above_cut(kind) -> None:  # type: ignore[no-untyped-def]
    net, x, y = problem(mlp(kind, sizes=(7, 9, 8, 8)), sequence(7))
    mine = online_gradients(net, OTTT(), x, y)
    for layer in range(3):
        above = [str(m) for m in range(layer + 1, 3)]
        true = oracle(net, x, y, above)
        below_too = oracle(net, x, y, above + [str(m) for m in range(layer)])
        for part in ("weight", "bias"):
            name = f"{layer}.connection.{part}"
            assert error(mine[name], true[name]) < EXACT, name
            assert error(below_too[name], true[name]) < EXACT, "cuts below make no difference"
    wrong = oracle(net, x, y, ["0", "1", "2"])
    assert error(mine["0.connection.weight"], wrong["0.connection.weight"]) > 1e-3


def test_leaky_readout_is_exact_and_hidden_layer_is_bptt_with_it_cut() -> None:
    net = mlp(lambda: LIF(decay=0.7), sizes=(7, 9))
    net[1] = ETBlock(ETLinear(9, 3), LI(decay=0.6)).double()
    x, y = sequence(7), labels()
    lively(net, x)
    mine, full, cut = online_gradients(net, OTTT(), x, y), oracle(net, x, y), oracle(net, x, y, ["1"])
    for name in ("1.connection.weight", "1.connection.bias"):
        assert error(mine[name], full[name]) < EXACT
    for name in ("0.connection.weight", "0.connection.bias"):
        assert error(mine[name], cut[name]) < EXACT
        assert error(mine[name], full[name]) > 1e-3


def test_traces_decay_with_the_consumer_not_the_producer() -> None:
    """Layers with different leaks: keyed by the neuron behind the weights, every layer is exact."""
    net, x, y = problem(mlp(lambda: LIF(decay=0.7)), sequence(7))
    net[0].neuron, net[1].neuron = LIF(decay=0.3), LIF(decay=0.85)
    lively(net, x)
    mine, true = online_gradients(net, OTTT(), x, y), oracle(net, x, y)
    assert error(mine[NAMES[2]], true[NAMES[2]]) < EXACT
    net[1].connection.trace.leak = LIF(decay=0.3).leak_transition()  # the producer's leak
    net.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    for module in net.modules():
        if hasattr(module, "reset"):
            module.reset()
    for x_t in x:
        (F.cross_entropy(net(x_t), y) / len(x)).backward()
    assert error(net[1].connection.weight.grad, true[NAMES[2]]) > 1e-2


@pytest.mark.parametrize(("reset", "detach"), [("hard", True), ("hard", False), ("soft", False)])
def test_o4_hard_or_attached_reset_is_not_bptt_and_the_report_says_so(reset: str, detach: bool) -> None:
    net, x, y = problem(mlp(lambda: LIF(decay=0.7, reset=reset, detach_reset=detach)), sequence(7))
    mine, true = online_gradients(net, OTTT(), x, y), oracle(net, x, y)
    assert error(mine[NAMES[2]], true[NAMES[2]]) > 1e-2
    row = attach(net, OTTT())[NAMES[2]]
    assert not row.exact
    assert reset in row.why


def reference_ottt_errors(net: torch.nn.Sequential, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """What an implementation gets that passes (spike, trace) pairs between layers, against BPTT with cuts above."""
    p, decay = hand_weights(net), 0.7
    a1, a2 = (torch.zeros(x.shape[1], w.shape[0], dtype=x.dtype) for w in (p.w1, p.w2))
    v1, v2 = torch.zeros_like(a1), torch.zeros_like(a2)
    gw1, gb2, gwo = torch.zeros_like(p.w1), torch.zeros_like(p.b2), torch.zeros_like(p.wo)
    one_hot = F.one_hot(y, p.wo.shape[0]).to(x)
    for x_t in x:
        v1 = decay * v1 + x_t @ p.w1.T + p.b1
        psi1, s1 = 1 / (1 + (torch.pi * (v1 - 1)) ** 2), (v1 >= 1).to(x)
        v1, a1 = v1 - s1, decay * a1 + s1
        v2 = decay * v2 + s1 @ p.w2.T + p.b2
        psi2, s2 = 1 / (1 + (torch.pi * (v2 - 1)) ** 2), (v2 >= 1).to(x)
        v2, a2 = v2 - s2, decay * a2 + s2
        e = (torch.softmax(s2 @ p.wo.T + p.bo, -1) - one_hot) / (x.shape[1] * len(x))
        d2 = (e @ p.wo) * psi2
        d1 = (d2 @ p.w2) * psi1
        gw1 += d1.T @ x_t  # the first layer has no spiking neuron before it, so no trace
        gb2 += d2.sum(0)  # the bias has no pair, so no trace
        gwo += e.T @ a2  # the readout is wrapped like every layer, so it is traced
    truth = by_hand.ottt(p, x, y, decay)
    return {"first layer": error(gw1, truth[0]), "bias": error(gb2, truth[3]), "readout": error(gwo, truth[4])}


def test_o5_what_spike_trace_pairs_get_wrong_is_exact_here() -> None:
    """Untraced bias, traced static readout, untraced first layer: large errors there, none here."""
    net, x, y = problem(mlp(lambda: LIF(decay=0.7)), sequence(7))
    wrong = reference_ottt_errors(net, x, y)
    assert min(wrong.values()) > 0.2, wrong
    mine = online_gradients(net, OTTT(), x, y)
    truth = oracle(net, x, y, ["1"])
    full = oracle(net, x, y)
    assert error(mine[NAMES[0]], truth[NAMES[0]]) < EXACT
    assert error(mine[NAMES[3]], full[NAMES[3]]) < EXACT
    assert error(mine[NAMES[4]], full[NAMES[4]]) < EXACT


@pytest.mark.parametrize("rule", [SLTT, OTTT, BPTT])
def test_one_step_is_bptt_under_every_rule(rule) -> None:  # type: ignore[no-untyped-def]
    net, x, y = problem(mlp(LIF), sequence(7, steps=1) * 2)
    mine, true = online_gradients(net, rule(), x, y), oracle(net, x, y)
    for name in mine:
        assert error(mine[name], true[name]) < EXACT, name


def test_bptt_as_a_rule_is_the_oracle() -> None:
    net, x, y = problem(mlp(lambda: LIF(reset="hard", detach_reset=False)), sequence(7))
    learner = OnlineLearner(net, BPTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=1.0))
    true = oracle(net, x, y)
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    assert learner.learn(x, y).updates == 1
    for name, p in net.named_parameters():
        assert error(before[name] - p.detach(), true[name]) < EXACT, name


def test_float32_stays_within_its_rounding() -> None:
    net, x, y = problem(mlp(lambda: LIF(decay=0.7)), sequence(7))
    double = online_gradients(net, OTTT(), x, y)
    single = online_gradients(net.float(), OTTT(), x.float(), y)
    for name in NAMES:
        assert error(single[name].double(), double[name]) < 1e-5, name
