"""A block that few spikes enter multiplies them sparsely, with the numbers of the dense product, and says so."""

import logging

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import ALIF, LI, LIF, ETBlock, ETLinear, OnlineLearner
from snnlearn.functional import sparse_map
from snnlearn.functional.sparse_map import FoundSparse, found_rows, sparse_rows, spikes_pay
from snnlearn.rules import DRTRL, OTTT, RULES, LearningRule

STEPS, BATCH, INPUTS, UNITS, CLASSES = 6, 3, 20, 16, 3


def record(rule: LearningRule, chunk: int = 4) -> tuple[list[Tensor], list[frozenset[str]]]:
    """Parameters after three sequences, and which products the blocks took."""
    torch.manual_seed(0)
    blocks = [ETBlock(ETLinear(INPUTS, UNITS), LIF(decay=0.8)), ETBlock(ETLinear(UNITS, UNITS), ALIF(decay=0.8))]
    net = nn.Sequential(*blocks, ETBlock(ETLinear(UNITS, CLASSES), LI(decay=0.9))).double()
    with torch.no_grad():
        for block in blocks:
            block.connection.weight.mul_(3.0)
    learner = OnlineLearner(net, rule, F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1), chunk=chunk)
    x = (torch.rand(3, STEPS, BATCH, INPUTS) < 0.3).double()
    x[:, 3] = 0
    restarts = torch.zeros(STEPS, BATCH, dtype=torch.bool)
    restarts[2, 1] = True
    for x_n in x:
        result = learner.learn(x_n, torch.arange(BATCH), restarts=restarts)
    assert all(0.02 < rate < 0.8 for rate in result.firing_rates.values()), result.firing_rates
    return [p.detach() for p in net.parameters()], [block.entries for block in net]


@pytest.mark.parametrize("rule", [OTTT, DRTRL, RULES["superspike"]])
def test_the_numbers_are_the_dense_ones(rule: type[LearningRule], monkeypatch: pytest.MonkeyPatch) -> None:
    dense, entries = record(rule())
    assert entries == [frozenset()] * 3
    monkeypatch.setattr(sparse_map, "LARGE", 8)
    monkeypatch.setattr(sparse_map, "FEW_SPIKES", 0.9)
    sparse, entries = record(rule())
    assert entries == [{"few spikes"}, {"few spikes"}, frozenset()]
    for mine, theirs in zip(dense, sparse, strict=True):
        torch.testing.assert_close(theirs, mine, rtol=1e-11, atol=1e-12)
    other, _ = record(rule(), chunk=1)  # and textbook order
    for mine, theirs in zip(other, sparse, strict=True):
        torch.testing.assert_close(theirs, mine, rtol=1e-10, atol=1e-12)
    assert max(float((p - q).norm()) for p, q in zip(record(RULES["sltt"]())[0], sparse, strict=True)) > 1e-4  # control


def test_many_spikes_and_small_layers_stay_dense(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sparse_map, "LARGE", 8)
    monkeypatch.setattr(sparse_map, "FEW_SPIKES", 0.15)
    with caplog.at_level(logging.INFO, "snnlearn.nn"):
        _, entries = record(OTTT())
    assert "many spikes" in entries[0]
    lines = [line.getMessage() for line in caplog.records]
    assert len(lines) == len(set(lines)) == sum(map(len, entries))
    assert "spikes -> dense products: too many of 12 x 20 inputs are not zero" in lines[0]
    x = torch.zeros(512, 512)
    assert spikes_pay(x, 512)
    assert not spikes_pay(x, 7)
    assert not spikes_pay(x + 1, 512)


def test_rows_are_found_and_the_input_gets_its_gradient() -> None:
    x = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, -3.0]])
    rows = found_rows(x)
    expected = sparse_rows([0, 1, 1, 3], [1, 0, 2], [2.0, 1.0, -3.0], 3)
    for part in ("crow_indices", "col_indices", "values"):
        assert torch.equal(getattr(rows, part)().double(), getattr(expected, part)().double())
    d, weight = torch.randn(3, 2), torch.randn(2, 3)
    torch.testing.assert_close(FoundSparse().input_gradient(d, weight, x.shape), torch.einsum("no,oi->ni", d, weight))
