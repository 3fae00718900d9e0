"""Traces propagation: what it needs and refuses, and the state its target path carries."""

import copy
from typing import Any

import pytest
import torch
from nets import furthest
from oracles.contrastive import EXACT, HIDDEN, RULE, learn, network, prepared
from oracles.networks import error, problem, sequence
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import (
    LI,
    LIF,
    SLTT,
    Contrast,
    ETBlock,
    ETConv2d,
    ETLinear,
    LearningRule,
    Readout,
    RuleChoiceError,
    SignalError,
    TracesPropagation,
    attach,
    reset,
    show_target,
)

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
