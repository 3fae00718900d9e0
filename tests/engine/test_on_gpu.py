"""What only a GPU can show: graphs, autocast, sparse events and kernels on the device. Skipped where there is none."""

import importlib
import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import ALIF, LI, LIF, ETBlock, ETConv2d, ETLinear, ETRecurrent, OnlineLearner
from snnlearn.data import SparseSequence
from snnlearn.engine import GraphedLearner
from snnlearn.rules import RULES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
    pytest.mark.usefixtures("unchecked"),
]
STEPS, BATCH, INPUTS, UNITS, CLASSES = 12, 8, 24, 32, 4
CLOSE = 1e-4


def linear() -> nn.Sequential:
    return nn.Sequential(
        ETBlock(ETLinear(INPUTS, UNITS), ALIF(threshold=0.3)),
        ETBlock(ETLinear(UNITS, UNITS), LIF(threshold=0.3)),
        ETBlock(ETLinear(UNITS, CLASSES), LI(decay=0.8)),
    )


def recurrent() -> nn.Sequential:
    return nn.Sequential(
        ETBlock(ETRecurrent(INPUTS, UNITS), LIF(threshold=0.3)), ETBlock(ETLinear(UNITS, CLASSES), LI(decay=0.8))
    )


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 6)),
        ETBlock(ETConv2d(1, UNITS, 3), LIF(threshold=0.3)),
        nn.Flatten(),
        ETBlock(ETLinear(UNITS * 8, CLASSES), LI(decay=0.8)),
    )


def learned(
    make: Any, rule: str, where: str, chunk: int = 4, graph: bool = False, sparse: bool = False
) -> list[Tensor]:
    """The weights after two sequences; they begin as multiples of 1/64, so that products of spikes have no rounding."""
    torch.manual_seed(0)
    net = make()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_((2 * parameter * 64).round() / 64)
    net.to(where)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=where == "cuda")
    learner = OnlineLearner(net, RULES[rule](), F.cross_entropy, optimizer, chunk=chunk, update=12)
    generator = torch.Generator().manual_seed(1)
    x = (torch.rand(STEPS, BATCH, INPUTS, generator=generator) < 0.3).float()
    y = torch.randint(CLASSES, (BATCH,), generator=generator).to(where)
    given: Any = events(x).to(torch.device(where)) if sparse else x.to(where)
    runner: Any = GraphedLearner(learner, given, y) if graph else learner
    for _ in range(2):
        rates = runner.learn(given, y).firing_rates
        assert all(0.02 < rate < 0.8 for rate in rates.values()), rates
    return [parameter.detach().cpu() for parameter in net.parameters()]


def events(x: Tensor) -> SparseSequence:
    rows = x.flatten(0, 1)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), (rows != 0).sum(1).cumsum(0)]).int()
    return SparseSequence(ends, rows.nonzero()[:, 1].int(), rows[rows != 0], x.shape[1], x.shape[2])


def assert_close(mine: list[Tensor], other: list[Tensor]) -> None:
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, rtol=CLOSE, atol=CLOSE)


NETS = {"ottt": linear, "sltt": linear, "drtrl": linear, "eprop": recurrent, "es_drtrl": linear, "dfa": linear}


@pytest.mark.parametrize("rule", NETS)
@pytest.mark.parametrize("chunk", [1, 4])
def test_a_graph_has_the_numbers_of_eager_learning(rule: str, chunk: int) -> None:
    eager = learned(NETS[rule], rule, "cuda", chunk)
    assert_close(learned(NETS[rule], rule, "cuda", chunk, graph=True), eager)
    assert_close(eager, learned(NETS[rule], rule, "cpu", chunk))


def test_convolutions_in_a_graph() -> None:
    assert_close(learned(convolutional, "ottt", "cuda", graph=True), learned(convolutional, "ottt", "cuda"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("graph", [False, True])
def test_autocast_on_the_device(dtype: torch.dtype, graph: bool) -> None:
    exact = learned(linear, "ottt", "cuda")
    with torch.autocast("cuda", dtype=dtype):
        low = learned(linear, "ottt", "cuda", graph=graph)
    assert all(value.dtype == torch.float32 for value in low)
    moved = torch.cat([(a - b).flatten() for a, b in zip(exact, low, strict=True)]).norm()
    assert 0 < float(moved) < 0.02


def test_sparse_events_on_the_device() -> None:
    assert_close(learned(linear, "ottt", "cuda", sparse=True), learned(linear, "ottt", "cuda"))


@pytest.mark.skipif(
    importlib.util.find_spec("snnlearn.kernels.dispatch") is None, reason="there are no kernels in this tree"
)
@pytest.mark.parametrize("rule", ["ottt", "drtrl", "eprop"])
@pytest.mark.parametrize("graph", [False, True])
def test_kernels_on_the_device(rule: str, graph: bool) -> None:
    use = importlib.import_module("snnlearn.kernels.dispatch").use
    with use("reference"):
        reference = learned(NETS[rule], rule, "cuda")
    with use("auto"):
        assert_close(learned(NETS[rule], rule, "cuda", graph=graph), reference)
