"""Traces propagation: the layers' own losses by autograd with every other edge cut, and what the rule refuses."""

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from nets import furthest, show
from oracles.by_hand import HandSpike
from oracles.networks import error, lively, problem, scaled, sequence
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    ALIF,
    LI,
    LIF,
    SLTT,
    Contrast,
    CubaLIF,
    ETBlock,
    ETConv2d,
    ETLinear,
    ETRecurrent,
    LearningRule,
    OnlineLearner,
    Readout,
    RuleChoiceError,
    SignalError,
    TimeConstantDropout,
    TracesPropagation,
    attach,
    reset,
    show_target,
)
from snnlearn.engine.sequence import Meter
from snnlearn.functional.contrastive import contrastive_loss, likeness_of_targets

EXACT = 1e-12
SIZES, CLASSES = (7, 9, 8), 3
RULE = TracesPropagation(decay=0.8, temperature=2.0, seed=3)
HIDDEN = ("0.connection.weight", "0.connection.bias", "1.connection.weight", "1.connection.bias", "0.signal.projection")


def network(sizes: Sequence[int] = SIZES) -> nn.Sequential:
    blocks = [ETBlock(ETLinear(i, o), LIF()) for i, o in pairwise(sizes)]
    return scaled(nn.Sequential(*blocks, ETBlock(ETLinear(sizes[-1], CLASSES), LI(tau=4.0))))  # type: ignore[return-value]


def prepared(rule: LearningRule = RULE) -> tuple[Any, Tensor, Tensor]:
    net, x, y = problem(network(), sequence(7))
    attach(net, rule)
    with torch.no_grad():
        net[0].signal.projection.mul_(2.0)
    return net, x, y


def learn(net: nn.Module, x: Tensor, y: Tensor | None) -> dict[str, Tensor]:
    """Learn by a plain loop from the present state; return the sum of the steps' gradients."""
    net.zero_grad(set_to_none=True)
    show(net, y)
    with Meter(net) as meter:
        for x_t in x:
            output = net(x_t)
            F.cross_entropy(output, torch.zeros(len(output), dtype=torch.long) if y is None else y).backward()
    for name, rate in meter.firing_rates().items():
        assert 0.02 < rate < 0.8, f"{name} fires at {rate:.3f}: the comparison would be empty"
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


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


# What it needs.


def test_one_sample_is_refused() -> None:
    net, x, y = prepared()
    show_target(net, y[:1])
    loss = F.cross_entropy(net(x[0, :1]), y[:1])
    with pytest.raises(SignalError, match=r"this batch has 1: .* write a batch of at least 2.*OSTTP\(\)"):
        loss.backward()


def test_a_target_is_needed_before_the_forward() -> None:
    net, x, y = prepared()
    loss = F.cross_entropy(net(x[0]), y)
    show_target(net, y)  # too late
    with pytest.raises(SignalError, match=r"none was shown before the forward; call show_target\(net, y\)"):
        loss.backward()
    show_target(net, torch.zeros(5, 2))
    with pytest.raises(SignalError, match=r"\[5, 2\] torch.float32 for outputs \[5, 3\]"):
        net(x[0])
    show_target(net, torch.tensor([0, 1, 2, 3, 0]))
    with pytest.raises(ValueError, match="labels run from 0 to 3"):
        net(x[0])
    show_target(net, y)
    reset(net)
    assert learn(net, x, y)  # a forward that failed is forgotten


def test_samples_without_a_label_are_left_out() -> None:
    net, x, y = prepared()
    there = torch.tensor([0, 1, 3])
    alone = learn(copy.deepcopy(net), x[:, there], y[there])
    missing = y.clone()
    missing[[2, 4]] = -100
    mine = learn(copy.deepcopy(net), x, missing)
    for name in HIDDEN:
        assert error(mine[name], alone[name]) < EXACT, name
    assert error(learn(net, x, y)["0.connection.weight"], mine["0.connection.weight"]) > 1e-2


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            [ETBlock(ETConv2d(1, 3, 3), LIF()), nn.Flatten(), ETBlock(ETLinear(12, 3), LI())],
            r"ETConv2d.*attach DECOLLE",
        ),
        (
            [ETBlock(ETLinear(4, 5), LIF(), nn.BatchNorm1d(5)), ETBlock(ETLinear(5, 3), LI())],
            r"BatchNorm1d.*move it before",
        ),
        (
            [ETBlock(ETLinear(4, 5), LIF()), nn.ReLU(), ETBlock(ETLinear(5, 5), LIF()), Readout(nn.Linear(5, 3))],
            r"'2' is not fed by '0' alone.*nn\.Sequential",
        ),
    ],
    ids=["convolution", "norm", "in between"],
)
def test_other_networks_are_refused(layers: list[nn.Module], message: str) -> None:
    with pytest.raises(RuleChoiceError, match=message):
        attach(nn.Sequential(*layers), TracesPropagation())


def test_places_are_refused() -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1)

    net = nn.Sequential(ETBlock(ETLinear(4, 9), LIF()), Mean(), Readout(nn.Linear(9, 3)))
    attach(net, TracesPropagation())
    show_target(net, torch.tensor([0, 1]))
    with pytest.raises(SignalError, match=r"sends \[2, 6, 9\].*one number per unit"):
        net(torch.rand(2, 6, 4))


def test_a_lower_block_that_left_is_an_error() -> None:
    net, x, y = prepared()
    learn(net, x[:2], y)
    attach(net[0], SLTT())
    show_target(net, y)
    with pytest.raises(SignalError, match="whole network"):
        net(x[2])


def test_wrong_knobs_are_refused() -> None:
    for wrong in ({"decay": 1.5}, {"temperature": 0.0}):
        with pytest.raises(RuleChoiceError, match="write"):
            TracesPropagation(**wrong)
    with pytest.raises(RuleChoiceError, match="write signal='contrastive'"):
        LearningRule(contrast=Contrast())


def test_the_report_says_what_is_read() -> None:
    report = attach(network(), RULE)
    hidden = [row for row in report if row.parameter[0] in "01"]
    assert len(hidden) == len(HIDDEN)
    assert not any(row.exact for row in hidden)
    assert "contrastive loss" in report["1.connection.weight"].why
    (note,) = report.notes
    assert "not from the paper" in note
    assert report["2.connection.weight"].exact


# State.


def carried(net: Any) -> list[Tensor]:
    held = []
    for block in net[:2]:
        for value in block.signal.stash().values():
            held += [] if value is None else value if isinstance(value, tuple) else [value]
    return held


def test_a_reset_and_reset_rows() -> None:
    net, x, y = prepared()
    first = learn(net, x[:4], y)
    assert furthest(first, learn(copy.deepcopy(net), x[:4], y)) > 1e-3  # control: the past matters
    whole, rows = copy.deepcopy(net), copy.deepcopy(net)
    reset(net)
    assert carried(net) == []
    assert furthest(first, learn(net, x[:4], y)) < EXACT
    reset(rows, torch.ones(5, dtype=torch.bool))
    assert len(carried(rows)) == len(carried(whole)) == 9
    assert furthest(first, learn(rows, x[:4], y)) < EXACT
    some = torch.tensor([True, False, False, True, False])
    before = carried(whole)
    reset(whole, some)
    for old, new in zip(before, carried(whole), strict=True):
        assert float(new[some].abs().sum()) == 0
        assert torch.equal(old[~some], new[~some])


def test_rows_restart_where_the_neuron_starts() -> None:
    net, x, y = problem(network(), sequence(7))
    net[0].neuron = LIF(initial_membrane=0.4)
    attach(net, RULE)
    learn(net, x[:3], y)
    reset(net, torch.tensor([True, False, False, False, False]))
    assert net[0].signal.state[0][0].unique().tolist() == [0.4]


def test_evaluation_leaves_it_alone() -> None:
    net, x, y = prepared()
    learn(net, x[:3], y)
    before = carried(net)
    with torch.no_grad():
        net(x[3])
    net.eval()
    net(x[3])
    for old, new in zip(before, carried(net), strict=True):
        assert old is new
    net.train()
    plain = copy.deepcopy(net)
    attach(plain, SLTT())
    reset(net)
    with torch.no_grad():
        assert torch.equal(net(x[0]), plain(x[0]))


def test_a_copy_goes_its_own_way() -> None:
    net, x, y = prepared()
    learn(net, x[:3], y)
    twin, stray = copy.deepcopy(net), copy.deepcopy(net)
    assert twin[1].signal.below[0] is twin[0]
    assert twin[0].signal.block[0] is twin[0]
    learn(stray, x[3:6].flip(0), y.flip(0))
    expected = learn(net, x[3:6], y)
    assert furthest(learn(twin, x[3:6], y), expected) == 0
    assert furthest(learn(stray, x[3:6], y), expected) > 1e-3


def test_a_state_that_was_stashed_goes_on() -> None:
    """What `stash` takes out and `restore` puts back is all that the target path carries."""
    net, x, y = prepared()
    learn(net, x[:3], y)
    kept = [(m, m.stash()) for m in net.modules() if hasattr(m, "stash")]
    expected = learn(copy.deepcopy(net), x[3:6], y)
    learn(net, x.flip(0), y.flip(0))
    for module, state in kept:
        module.restore(state)
    assert furthest(learn(net, x[3:6], y), expected) == 0


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
