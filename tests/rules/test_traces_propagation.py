"""Traces propagation: the layers' own losses by autograd with every other edge cut."""

import copy
from typing import Any

import pytest
import torch
from nets import furthest
from oracles.by_hand import HandSpike
from oracles.contrastive import CLASSES, EXACT, HIDDEN, RULE, learn, network, prepared
from oracles.networks import error, lively, problem, scaled, sequence
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    ALIF,
    LIF,
    SLTT,
    Contrast,
    CubaLIF,
    ETBlock,
    ETLinear,
    ETRecurrent,
    LearningRule,
    OnlineLearner,
    Readout,
    TimeConstantDropout,
    TracesPropagation,
    attach,
    reset,
    show_target,
)
from snnlearn.functional.contrastive import contrastive_loss, likeness_of_targets


def by_hand(
    net: Any,
    x: Tensor,
    y: Tensor,
    target_path: bool = True,
    in_time: bool = False,
    between: bool = False,
    in_student: bool = False,
    wrong_sign: bool = False,
    beta: float = 0.8,
    tau: float = 2.0,
) -> dict[str, Tensor]:
    """Autograd through bare tensors of the summed losses of both layers; the flags leave edges uncut.

    `target_path` False makes it a constant; `in_time` keeps every temporal edge, `in_student` those of the membranes of
    the input's path; `between` keeps the edges between layers.
    """
    named = {name: net.get_parameter(name).detach().clone().requires_grad_() for name in HIDDEN}
    w1, b1, w2, b2, s_label = named.values()
    n, widths, one_hot = len(y), (9, 8), F.one_hot(y, CLASSES).double()
    zeros = [torch.zeros(n, width, dtype=x.dtype) for width in widths]
    v, v_target, e, f = (list(zeros) for _ in range(4))
    label_trace, total, rates = torch.zeros(n, CLASSES, dtype=x.dtype), torch.zeros((), dtype=x.dtype), []
    for x_t in x:
        label_trace = beta * label_trace + one_hot
        below, below_target, reference = x_t, one_hot, label_trace
        for layer, (w, b) in enumerate(((w1, b1), (w2, b2))):
            past = [t if in_time else t.detach() for t in (v[layer], v_target[layer], e[layer], f[layer])]
            past[0] = v[layer] if in_student else past[0]
            membrane = 0.5 * past[0] + below @ w.T + b
            current = below_target @ s_label.T if layer == 0 else below_target @ w.T + b
            target_membrane = 0.5 * past[1] + (current if target_path else current.detach())
            s, s_target = HandSpike.apply(membrane - 1), HandSpike.apply(target_membrane - 1)
            rates.append(s_target.detach().mean())
            v[layer], v_target[layer] = membrane - s.detach(), target_membrane - s_target.detach()
            e[layer], f[layer] = beta * past[2] + s, beta * past[3] + s_target
            pairs = ((reference[:, None] - reference[None]) ** 2).sum(-1).sqrt().detach()
            likeness = torch.exp(-pairs) / torch.exp(-pairs).sum(1, keepdim=True)
            z = e[layer] @ f[layer].T / tau
            z = z - torch.logsumexp(z, 1, keepdim=True)
            total = total + (likeness * z).sum() / n * (1 if wrong_sign else -1)
            below, below_target = (t if between else t.detach() for t in (s, s_target))
            reference = f[layer]
    assert 0.02 < float(torch.stack(rates).mean()) < 0.8, "the target path is silent"
    found = torch.autograd.grad(total, list(named.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(named, found, strict=True))


def test_the_layers_own_losses_are_exact() -> None:
    net, x, y = prepared()
    mine, true = learn(net, x, y), by_hand(net, x, y)
    for name in HIDDEN:
        assert mine[name].norm() > 1e-3, name
        assert error(mine[name], true[name]) < EXACT, name
        assert error(mine[name], by_hand(net, x, y, wrong_sign=True)[name]) > 1.0


@pytest.mark.parametrize(
    ("control", "moved"),
    [
        ({"target_path": False}, ("1.connection.weight", "1.connection.bias", "0.signal.projection")),
        ({"in_time": True}, HIDDEN),
        ({"between": True}, ("0.connection.weight", "0.connection.bias", "0.signal.projection")),
        ({"beta": 0.5}, HIDDEN),
        ({"tau": 1.0}, HIDDEN),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_cut_would_change_it(control: dict[str, Any], moved: tuple[str, ...]) -> None:
    """Negative controls: without the target path, with an edge left, with another constant."""
    net, x, y = prepared()
    mine, other = learn(net, x, y), by_hand(net, x, y, **control)
    for name in moved:
        assert float((mine[name] - other[name]).norm() / mine[name].norm()) > 1e-2, name


def test_the_loss_meets_a_trace_of_the_membrane_too() -> None:
    """With another transition the input's path is BPTT of the own loss; the path of the target stays instantaneous."""
    rule = LearningRule(signal="contrastive", contrast=Contrast(decay=0.8, temperature=2.0), seed=3)
    net, x, y = prepared(rule)
    mine, true, instant = learn(net, x, y), by_hand(net, x, y, in_student=True), by_hand(net, x, y)
    for name in HIDDEN:
        assert error(mine[name], true[name]) < EXACT, name
    assert error(mine["1.connection.weight"], instant["1.connection.weight"]) > 1e-2


def test_the_readout_keeps_its_rule() -> None:
    net, x, y = prepared()
    mine, twin = learn(net, x, y), copy.deepcopy(net)
    attach(twin, SLTT())
    theirs = learn(twin, x, y)
    for name in ("2.connection.weight", "2.connection.bias"):
        assert error(mine[name], theirs[name]) < EXACT
    assert error(mine["0.connection.weight"], theirs["0.connection.weight"]) > 1e-2


def test_a_fixed_projection_is_the_seeds() -> None:
    net, x, y = prepared(TracesPropagation(decay=0.8, temperature=2.0, trained=False, seed=3))
    learned, *_ = prepared()
    assert not any("signal" in name for name, _ in net.named_parameters())
    assert not any("signal" in name for name in net.state_dict())
    torch.testing.assert_close(net[0].signal.projection, learned[0].signal.projection.detach())
    learned.load_state_dict(net.state_dict(), strict=False)
    mine, theirs = learn(net, x, y), learn(learned, x, y)
    assert theirs.keys() - mine.keys() == {"0.signal.projection"}
    assert furthest(mine, theirs) < EXACT
    attach(net, TracesPropagation(trained=False, seed=4))
    assert not torch.equal(net[0].signal.projection, learned[0].signal.projection)


@pytest.mark.parametrize("neuron", [ALIF, CubaLIF, lambda: LIF(learn=("decay", "threshold", "initial_membrane"))])
def test_recurrent_blocks_and_other_neurons_learn_from_both_paths(neuron: Any) -> None:
    """Against finite graphs of the modules themselves: the target's share is what a constant target path lacks."""
    blocks = [ETBlock(ETLinear(7, 9), neuron()), ETBlock(ETRecurrent(9, 8), neuron())]
    net, x, y = problem(scaled(nn.Sequential(*blocks, Readout(nn.Linear(8, CLASSES)))), sequence(7))
    attach(net, RULE)
    with torch.no_grad():
        net[0].signal.projection.mul_(2.0)
    learn(net, x[:-1], y)
    signals = [net[i].signal for i in (0, 1)]
    past = [copy.deepcopy(signal.stash()) for signal in signals]
    states = [(block.neuron.state, getattr(block.connection, "spikes", None)) for block in net[:2]]
    mine = learn(net, x[-1:], y)
    reference, total = None, torch.zeros(())
    below, below_target = x[-1], F.one_hot(y, CLASSES).double()
    for block, signal, before, (state, own) in zip(net[:2], signals, past, states, strict=True):
        linear = block.connection
        if own is None:
            current, target_current = F.linear(below, linear.weight, linear.bias), below_target @ signal.projection.T
            reference = 0.8 * before["label_trace"] + below_target
        else:
            free = linear.recurrent_weight * (1 - torch.eye(8).double())
            current = F.linear(below, linear.weight, linear.bias) + own @ free.T
            target_current = F.linear(below_target, linear.weight, linear.bias) + before["target_spikes"] @ free.T
        s, _ = block.neuron.step(current, tuple(value.detach() for value in state))
        s_target, _ = block.neuron.step(target_current, before["state"])
        e, f = 0.8 * before["trace"] + s, 0.8 * before["target_trace"] + s_target
        total = total + contrastive_loss(e, f, likeness_of_targets(reference), 2.0)
        below, below_target, reference = s.detach(), s_target.detach(), f
    names = [name for name, _ in net.named_parameters() if name[0] in "01"]
    found = torch.autograd.grad(total, [net.get_parameter(name) for name in names], materialize_grads=True)
    for name, gradient in zip(names, found, strict=True):
        if "initial_membrane" not in name:
            assert gradient.norm() > 1e-6, name
            assert error(mine[name], gradient) < EXACT, name


# Learning.


def clusters(batch: int = 24, steps: int = 8) -> tuple[Tensor, Tensor]:
    """Two classes that no single input tells apart: the class is whether two groups of inputs are on together."""
    first, second = torch.randint(2, (batch,)), torch.randint(2, (batch,))
    on = torch.stack([first, 1 - first, second, 1 - second], dim=1).repeat_interleave(3, dim=1)
    return (torch.rand(steps, batch, 12) < 0.05 + 0.7 * on).float(), (first ^ second).long()


def taught(rule: LearningRule, frozen: bool) -> tuple[float, float, float]:
    """Accuracy on new samples, and how far the hidden block's loss is above its least value, before and after."""
    torch.manual_seed(1)
    x, y = clusters(256)
    net = lively(nn.Sequential(ETBlock(ETLinear(12, 20), LIF()), Readout(nn.Linear(20, 2))), x[:, :16])
    learner = OnlineLearner(net, rule, F.cross_entropy, torch.optim.Adam(net.parameters(), lr=0.02))
    net[0].requires_grad_(not frozen)
    before = excess(net, x[:, :64], y[:64])
    for _ in range(10):
        for rows in torch.arange(256).split(32):
            learner.learn(x[:, rows], y[rows])
    after = excess(net, x[:, :64], y[:64])
    return learner.evaluate(*clusters(256)).accuracy or 0.0, before, after


def excess(net: Any, x: Tensor, y: Tensor) -> float:
    """The first block's loss less the entropy of its targets, which it cannot fall below, summed over a sequence."""
    twin, total = copy.deepcopy(net), 0.0
    reset(twin)
    show_target(twin, y)
    for x_t in x:
        twin(x_t)
        signal, likeness = twin[0].signal, likeness_of_targets(twin[0].signal.label_trace)
        loss = contrastive_loss(signal.trace, signal.target_trace, likeness, signal.temperature)
        total += float(loss + torch.xlogy(likeness, likeness).sum(1).mean())
    return total


def test_it_learns(unchecked: None) -> None:
    """A hidden layer taught by its own loss solves what a frozen one does not, and its loss falls."""
    rule = TracesPropagation(decay=0.8, temperature=5.0)
    mine, frozen = taught(rule, frozen=False), taught(rule, frozen=True)
    assert mine[0] > 0.9
    assert mine[0] > frozen[0] + 0.05
    assert mine[2] < 0.5 * mine[1]
    assert frozen[2] == frozen[1] > 0


def test_dropout_thins_the_input_alone() -> None:
    net = nn.Sequential(*network()[:1], TimeConstantDropout(0.5), *network()[1:])
    attach(net, RULE)
    show_target(net, torch.tensor([0, 1, 2]))
    F.cross_entropy(net(torch.rand(3, 7).double()), torch.tensor([0, 1, 2])).backward()
    assert float(net[2].connection.weight.grad.norm()) > 0
