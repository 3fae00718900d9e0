"""Spiking self-attention: the product by hand, and its projections against BPTT with the later edges cut."""

import pytest
import torch
from oracles.networks import error, labels, lively, online_gradients, oracle, sequence
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    BPTT,
    DRTRL,
    LIF,
    OTTT,
    SLTT,
    ETBlock,
    ETLinear,
    LearningRule,
    OnlineLearner,
    Readout,
    SpikingSelfAttention,
    StateShapeError,
    attach,
    reset,
)
from snnlearn.functional import spike_attention

EXACT = 1e-12
FEATURES, TOKENS = 6, 4
LATER = {
    "0": ["1", "2"],
    **{f"1.{part}": ["1.attention_neuron", "1.output", "2"] for part in ("query", "key", "value")},
    "1.output": ["2"],
    "2": [],
    "4": [],
}


class Tokens(nn.Module):
    """Mean over the tokens: a static layer between blocks."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def network(norm: bool = False) -> nn.Module:
    """A block, attention, a block that its output feeds, and a readout of the tokens' mean."""
    attention = SpikingSelfAttention(
        FEATURES,
        2,
        lambda: LIF(decay=0.7),
        scale=2.0,
        attention_neuron=lambda: LIF(decay=0.6, threshold=0.5),
        norm=(lambda: nn.LayerNorm(FEATURES)) if norm else None,
    )
    blocks: list[nn.Module] = [ETBlock(ETLinear(5, FEATURES), LIF(decay=0.6)), attention]
    blocks += [ETBlock(ETLinear(FEATURES, 7), LIF(decay=0.5)), Tokens(), Readout(nn.Linear(7, 3))]
    return nn.Sequential(*blocks).double()


def owner(parameter: str) -> str:
    return max((name for name in LATER if parameter.startswith(name + ".")), key=len)


def by_heads(q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float) -> Tensor:
    """Head by head and token by token, with loops."""
    out, share = torch.zeros_like(q), q.shape[-1] // heads
    for head in range(heads):
        part = slice(head * share, (head + 1) * share)
        for i in range(q.shape[1]):
            for j in range(q.shape[1]):
                weight = (q[:, i, part] * k[:, j, part]).sum(-1, keepdim=True)
                out[:, i, part] += scale * weight * v[:, j, part]
    return out


@pytest.mark.parametrize("tokens", [2, 5])
@pytest.mark.parametrize("heads", [1, 2, 6])
def test_the_product_by_hand(tokens: int, heads: int, device: torch.device) -> None:
    """Both orders of the product: more tokens than features of a head, and fewer."""
    q, k, v = ((torch.rand(3, tokens, 6, device=device) < 0.5).double() for _ in range(3))
    torch.testing.assert_close(spike_attention(q, k, v, heads, 0.25), by_heads(q, k, v, heads, 0.25))
    assert not torch.allclose(spike_attention(q, k, v, heads, 0.25), by_heads(k, q, v, heads, 0.25))


@pytest.mark.parametrize("tokens", [2, 5])
def test_gradcheck(tokens: int) -> None:
    parts = [torch.randn(2, tokens, 4, dtype=torch.float64).requires_grad_() for _ in range(3)]
    assert torch.autograd.gradcheck(lambda q, k, v: spike_attention(q, k, v, 2, 0.3), parts)


def test_heads_share_the_features() -> None:
    x = torch.ones(1, 2, 6)
    with pytest.raises(ValueError, match=r"heads=4 for 6 features.*divisor of 6"):
        spike_attention(x, x, x, 4, 1.0)
    for heads in (0, 4):
        with pytest.raises(ValueError, match=rf"features=6, heads={heads}.*divisor"):
            SpikingSelfAttention(6, heads, LIF)


@pytest.mark.parametrize("shape", [(2, 6), (2, 4, 5), (1, 2, 4, 6)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(StateShapeError, match=r"\[B, N, 6\]"):
        SpikingSelfAttention(6, 2, LIF)(torch.zeros(shape))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rule", [OTTT(), DRTRL()], ids=lambda rule: rule.name)
def test_projections_are_bptt_with_the_edges_of_later_neurons_cut(rule: LearningRule) -> None:
    net, x, y = network(), sequence(TOKENS, 5), labels()
    lively(net, x)
    mine, report = online_gradients(net, rule, x, y), attach(net, rule)
    assert len(mine) == len(list(net.parameters()))
    true = {cut: oracle(net, x, y, cut) for cut in {tuple(later) for later in LATER.values()}}
    for name, gradient in mine.items():
        assert error(gradient, true[tuple(LATER[owner(name)])][name]) < EXACT, name
        assert report[name].exact, name
    beside = oracle(net, x, y, [*LATER["1.query"], "1.key", "1.value"])
    assert error(mine["1.query.connection.weight"], beside["1.query.connection.weight"]) < EXACT, "in parallel"
    uncut = oracle(net, x, y, ["1.output", "2"])
    for part in ("query", "key", "value"):
        name = f"1.{part}.connection.weight"
        assert error(mine[name], uncut[name]) > 1e-3, "the neuron of the product counts among the later ones"
    untraced = online_gradients(net, SLTT(), x, y)
    assert error(untraced["1.key.connection.weight"], mine["1.key.connection.weight"]) > 1e-2


@pytest.mark.usefixtures("unchecked")
def test_sltt_is_bptt_with_every_edge_cut() -> None:
    net, x, y = network(), sequence(TOKENS, 5), labels()
    lively(net, x)
    mine, true = online_gradients(net, SLTT(), x, y), oracle(net, x, y, "all")
    for name, gradient in mine.items():
        assert error(gradient, true[name]) < EXACT, name


@pytest.mark.usefixtures("unchecked")
def test_normalised_projections() -> None:
    """Gain and bias of each projection are traced; its weights are told to be approximate."""
    net, x, y = network(norm=True), sequence(TOKENS, 5), labels()
    for name, parameter in net.named_parameters():
        if ".norm." in name:
            nn.init.uniform_(parameter, *((0.1, 0.4) if name.endswith("bias") else (0.6, 1.2)))
    lively(net, x)
    mine, report = online_gradients(net, OTTT(), x, y), attach(net, OTTT())
    true = {cut: oracle(net, x, y, cut) for cut in {tuple(later) for later in LATER.values()}}
    for name in (name for name in mine if ".norm." in name):
        assert error(mine[name], true[tuple(LATER[owner(name)])][name]) < EXACT, name
        assert report[name].exact
    assert not report["1.query.connection.weight"].exact


def test_the_report_says_how_the_product_is_passed() -> None:
    net = network()
    report = attach(net, OTTT())
    assert len(report.notes) == 1
    assert report.notes[0].startswith("1: the product of queries, keys and values")
    assert str(report).splitlines()[-1] == "note: " + report.notes[0]
    assert attach(net[1], OTTT()).notes[0].startswith("SpikingSelfAttention: ")
    assert attach(net, BPTT()).notes == ()
    assert attach(nn.Sequential(net[0]), OTTT()).notes == ()


@pytest.mark.usefixtures("unchecked")
def test_sequences_stand_alone_and_the_learner_learns() -> None:
    net, x, y = network(), sequence(TOKENS, 5), labels()
    lively(net, x)
    attach(net, OTTT())

    def run() -> Tensor:
        reset(net)
        return torch.stack([net(x_t).detach() for x_t in x])

    assert torch.equal(run(), run())
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.05))
    before = [p.detach().clone() for p in net.parameters()]
    assert learner.learn(x, y).updates == 1
    assert "1.attention_neuron" in learner.evaluate(x, y).firing_rates
    assert all(not torch.equal(old, new) for old, new in zip(before, net.parameters(), strict=True))
