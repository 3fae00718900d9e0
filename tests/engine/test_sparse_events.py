"""A network learns the same from sparse events as from the dense frames, and the log says which product it took."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import LI, LIF, SLTT, CubaLIF, ETBlock, ETConv1d, ETLinear, ETRecurrent, OnlineLearner
from snnlearn.data import SparseSequence
from snnlearn.engine import NonFiniteError
from snnlearn.functional import sparse_map
from snnlearn.rules import BPTT, DRTRL, OTTT, LearningRule

STEPS, BATCH, INPUTS, CLASSES = 7, 3, 40, 3
EXACT = 1e-12
LENGTHS = [1, 3, STEPS]


@pytest.fixture(autouse=True)
def _pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sparse products be chosen however few the rows: these are tiny."""
    monkeypatch.setattr(sparse_map, "FEW_ROWS", 0)
    monkeypatch.setattr(sparse_map, "DENSE_ABOVE", 0.1)


def counts(share: float = 0.045, batch: int = BATCH) -> Tensor:
    """Counts of 1 or 2 [T, B, I]; step 2, the last step and the last of several samples are empty."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(1, 3, (STEPS, batch, INPUTS), generator=generator).double()
    x *= torch.rand(STEPS, batch, INPUTS, generator=generator) < share
    x[2] = x[-1] = 0
    if batch > 1:
        x[:, -1] = 0
    return x


def sparse(x: Tensor) -> SparseSequence:
    rows = x.flatten(0, 1)
    place = rows.nonzero()
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), (rows != 0).sum(1).cumsum(0)]).int()
    return SparseSequence(ends, place[:, 1].int(), rows[rows != 0], x.shape[1], x.shape[2])


def network(kind: Callable[[], nn.Module] = lambda: LIF(decay=0.8, threshold=0.3), flatten: bool = False) -> nn.Module:
    torch.manual_seed(0)
    first = ETLinear(INPUTS, 16)
    with torch.no_grad():
        first.weight.mul_(6.0)
    layers = [ETBlock(first, kind()), ETBlock(ETLinear(16, CLASSES), LI(decay=0.9))]
    return nn.Sequential(*([nn.Flatten()] if flatten else []), *layers).double()


def record(net: nn.Module, rule: LearningRule, chunk: int, x: Any, **options: Any) -> dict[str, Any]:
    """What two sequences leave behind."""
    update = options.pop("update", "sequence")
    learner = OnlineLearner(
        net, rule, F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1), chunk=chunk, update=update
    )
    batch = x.shape[1]
    y = torch.arange(batch) % CLASSES
    gradients: list[Tensor] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: gradients.extend(p.grad.clone() for p in net.parameters() if p.grad is not None)
    )
    learner.learn(x, y, **options)
    result = learner.learn(x, y, keep_state=True, **options)
    traces = [m.trace for m in net.modules() if isinstance(m, ETLinear) and m.trace is not None]
    return {
        "gradients": gradients,
        "parameters": [p.detach() for p in net.parameters()],
        "traces": [value for trace in traces for value in trace.stash().values() if isinstance(value, Tensor)],
        "states": [v for block in net if isinstance(block, ETBlock) for v in (block.neuron.state or ())],
        "rates": list(result.firing_rates.values()),
        "loss": result.loss,
        "output": result.output,
        "norms": list(result.trace_norms.values()),
        "entries": next(m.entries for m in net.modules() if isinstance(m, ETBlock)),
    }


def compare(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert all(0.02 < rate < 0.8 for rate in one["rates"]), one["rates"]
    assert all(float(gradient.norm()) > 0 for gradient in one["gradients"][:4])
    assert one["rates"] == other["rates"]
    for name in ("gradients", "parameters", "traces", "states", "output"):
        for mine, theirs in zip(one[name], other[name], strict=True):
            torch.testing.assert_close(theirs, mine, rtol=EXACT, atol=EXACT, msg=name)
    for name in ("loss", "norms"):
        assert one[name] == pytest.approx(other[name], rel=1e-10)


RULES: dict[str, Callable[[], LearningRule]] = {"ottt": OTTT, "sltt": SLTT}


@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("chunk", LENGTHS)
@pytest.mark.parametrize("name", RULES)
def test_sparse_and_dense_agree(name: str, chunk: int, batch: int) -> None:
    x = counts(batch=batch)
    dense = record(network(), RULES[name](), chunk, x)
    found = record(network(), RULES[name](), chunk, sparse(x))
    compare(dense, found)
    compare(record(network(), RULES[name](), 1, x), found)  # and textbook order
    assert ("step" if name == "ottt" and chunk == 1 else "sparse") in found["entries"]
    moved = x.roll(1, -1)  # control: other places
    other = record(network(), RULES[name](), chunk, sparse(moved))
    assert max(float((p - q).norm()) for p, q in zip(other["parameters"], found["parameters"], strict=True)) > 1e-3


@pytest.mark.parametrize("name", RULES)
def test_updates_restarts_and_hidden_values(name: str) -> None:
    x, restarts = counts(), torch.zeros(STEPS, BATCH, dtype=torch.bool)
    restarts[1, 0] = restarts[4, 1] = restarts[3, 0] = True
    for options in ({"update": 3}, {"restarts": restarts}):
        for kind in (lambda: LIF(decay=0.8, threshold=0.3), lambda: CubaLIF(threshold=0.3)):
            dense = record(network(kind), RULES[name](), 1, x, **options)
            compare(dense, record(network(kind), RULES[name](), 3, sparse(x), **options))


def test_single_steps_of_a_stream_and_a_leading_flatten() -> None:
    x = counts()
    dense = record(network(), OTTT(), 3, x)
    compare(dense, record(network(flatten=True), OTTT(), 3, sparse(x)))
    net, y = network(), torch.arange(BATCH)
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1), chunk=3)
    for keep in (False, True):
        learner.learn(iter(list(sparse(x))), y, keep_state=keep)
    for mine, theirs in zip(dense["parameters"], net.parameters(), strict=True):
        torch.testing.assert_close(theirs.detach(), mine, rtol=EXACT, atol=EXACT)


def test_a_weight_that_somebody_listens_to_and_a_frozen_one() -> None:
    x = counts()
    for change in (lambda w: w.register_hook(lambda gradient: None), lambda w: w.requires_grad_(False)):
        dense, events = network(), network()
        for net in (dense, events):
            change(net[0].connection.weight)
        found = [record(net, OTTT(), 3, given) for net, given in ((dense, x), (events, sparse(x)))]
        for mine, theirs in zip(found[0]["parameters"], found[1]["parameters"], strict=True):
            torch.testing.assert_close(theirs, mine, rtol=EXACT, atol=EXACT)
        assert "sparse" in found[1]["entries"]
    assert torch.equal(events[0].connection.weight, network()[0].connection.weight)
    assert events[0].connection.weight.grad is None


def test_few_rows_take_the_dense_product(monkeypatch: pytest.MonkeyPatch) -> None:
    x = counts()
    monkeypatch.setattr(sparse_map, "FEW_ROWS", BATCH * STEPS)
    assert record(network(), OTTT(), STEPS, sparse(x))["entries"] == {"dense"}


@pytest.mark.parametrize("rule", [DRTRL, BPTT])
def test_other_rules_have_the_dense_numbers(rule: Callable[[], LearningRule]) -> None:
    x = counts()
    for chunk in (1, 3) if rule is DRTRL else (1,):
        found = record(network(), rule(), chunk, sparse(x))
        compare(record(network(), rule(), chunk, x), found)
        assert found["entries"] == (
            {"step"} if rule is DRTRL and chunk == 1 else {"sparse"} | ({"step"} if chunk == 3 else set())
        )


def test_an_eval_forward_with_gradients_has_the_dense_value() -> None:
    x, outputs = counts(), []
    for given in (x[0], sparse(x).folded(0, 1)):
        net = network()
        OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1))
        outputs.append(net.eval()(given))
    torch.testing.assert_close(outputs[1], outputs[0], rtol=EXACT, atol=EXACT)
    assert outputs[0].requires_grad


@pytest.mark.parametrize("chunk", LENGTHS)
def test_predict_and_evaluate(chunk: int) -> None:
    x, net, y = counts(), network(), torch.arange(BATCH)
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1), chunk=chunk)
    events = sparse(x)
    torch.testing.assert_close(learner.predict(events).mean_output, learner.predict(x).mean_output)
    assert learner.evaluate(events, y).loss == pytest.approx(learner.evaluate(x, y).loss, rel=1e-12)


def test_dense_data_takes_the_dense_product_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "snnlearn.nn"):
        x = counts(share=0.5)
        compare(record(network(), OTTT(), STEPS, x), record(network(), OTTT(), STEPS, sparse(x)))
        record(network(), OTTT(), STEPS, sparse(counts()))
    lines = [line.getMessage() for line in caplog.records]
    assert len(lines) == 2
    assert "dense products" in lines[0]
    assert "sparse products" in lines[1]


def test_what_is_refused() -> None:
    x, y = counts(), torch.arange(BATCH)
    events = sparse(x)
    events.values[3] = float("nan")
    net = network()
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1), chunk=3)
    before = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(NonFiniteError, match="1 non-finite value"):
        learner.learn(events, y)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    for first in (ETRecurrent(INPUTS, 16), ETConv1d(1, 16, 3)):
        with pytest.raises(TypeError, match=r"ETBlock\(ETLinear\(inputs, units\)"):
            ETBlock(first, LIF()).double()(sparse(x).folded(0, 1))
    with pytest.raises(TypeError, match=r"events\.to\(dtype=torch\.float64\)"):
        learner.learn(sparse(x).to(dtype=torch.float32), y)
