"""The fidelity report meets every kind of rule: with state of its own, with a refusal, with a shared weight."""

import pytest
import torch
from oracles.networks import labels, lively, scaled, sequence
from torch import nn
from torch.nn import functional as F

from snnlearn import (
    ELL,
    LI,
    LIF,
    NDOT,
    OPZO,
    OTTT,
    EProp,
    ETBlock,
    ETConv2d,
    ETLinear,
    LearningRule,
    OnlineLearner,
    StateShapeError,
    fidelity,
)


def plain(middle: nn.Module | None = None) -> nn.Sequential:
    parts: list[nn.Module] = [ETBlock(ETLinear(7, 9), LIF())]
    return scaled(nn.Sequential(*parts, *([] if middle is None else [middle]), ETBlock(ETLinear(9, 3), LI())))


@pytest.mark.parametrize("rule", [ELL(), OPZO(), EProp(broadcast="adaptive")], ids=lambda rule: rule.name)
def test_a_rule_that_brought_state_of_its_own(rule: LearningRule) -> None:
    x, y = sequence(7), labels()
    net = lively(plain(), x)
    learner = OnlineLearner(net, rule, F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.01))
    learner.learn(x, y)
    kept = {name: value for name, value in net.state_dict().items() if "signal" in name}
    assert kept
    report = fidelity(learner.net, (x, y), [rule], lengths=[len(x)])
    assert not report.broken
    assert not any(row.exact for row in learner.report if rule.signal == "noise")


def test_a_rule_that_a_network_refuses_while_it_runs_becomes_a_note() -> None:
    x, y = sequence(7), labels()
    net = lively(plain(nn.GELU()), x)
    report = fidelity(net, (x, y), [OTTT(), NDOT()], strict=False, lengths=[len(x)])
    assert any("NDOT" in note and "membranes" in note for note in report.notes)
    assert {row.rule for row in report} == {"OTTT"}


def test_a_shared_weight_is_exact_only_where_it_is_in_all_blocks() -> None:
    x, y = sequence(9), labels()
    net = scaled(
        nn.Sequential(ETBlock(ETLinear(9, 9), LIF()), ETBlock(ETLinear(9, 9), LIF()), ETBlock(ETLinear(9, 3), LI()))
    )
    net[1].connection.weight = net[0].connection.weight
    lively(net, x)
    assert not NDOT().attach(net)["0.connection.weight"].exact
    assert "shared with '1'" in NDOT().attach(net)["0.connection.weight"].why
    assert not fidelity(net, (x, y), [NDOT()], lengths=[len(x)]).broken
    assert OTTT().attach(net)["0.connection.weight"].exact  # control


def test_arguments_of_the_learner(unchecked: None) -> None:
    net, x, y = plain(), sequence(7), labels()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with pytest.raises(TypeError, match=r"with parentheses; write OTTT\(\)"):
        OnlineLearner(net, OTTT, F.cross_entropy, optimizer)  # type: ignore[arg-type]
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, optimizer)
    with pytest.raises(StateShapeError, match="has 4 values and the layer takes 7"):
        learner.learn(x[..., :4], y)
    with pytest.raises(TypeError, match=r"write x.to\(torch.float64\)$"):
        learner.learn(x.long(), y)
    with pytest.raises(StateShapeError, match="dimension 1 has 3 values and the layer takes 2"):
        ETBlock(ETConv2d(2, 4, 3), LIF())(torch.zeros(1, 3, 8, 8))
