"""Rules that keep a trace per synapse, or of whole steps, learn from sparse events what they learn from frames."""

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import ALIF, LI, LIF, CubaLIF, ETBlock, ETLinear, OnlineLearner, Readout
from snnlearn.data import SparseSequence
from snnlearn.engine import bptt_gradients
from snnlearn.functional import sparse_map
from snnlearn.nn import Neuron
from snnlearn.nn.filtered_trace import FilteredTrace
from snnlearn.nn.synaptic_trace import SynapticTrace
from snnlearn.rules import DRTRL, RULES, EProp, LearningRule

pytestmark = pytest.mark.usefixtures("unchecked")
STEPS, BATCH, INPUTS, UNITS, CLASSES = 7, 3, 40, 12, 3
EXACT = 1e-12

KINDS: dict[str, Callable[[], Neuron]] = {
    "lif": lambda: LIF(decay=0.7, threshold=0.3),
    "cuba": lambda: CubaLIF(threshold=0.3),
    "alif": lambda: ALIF(decay=0.7, threshold=0.3),
    "learned": lambda: ALIF(decay=0.7, threshold=0.3, learn=("decay", "threshold", "adaptation", "initial_membrane")),
    "learned leak": lambda: LIF(decay=0.7, threshold=0.3, learn=("decay",)),
}


@pytest.fixture(autouse=True)
def _pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sparse products be chosen however few the rows: these are tiny."""
    monkeypatch.setattr(sparse_map, "FEW_ROWS", 0)
    monkeypatch.setattr(sparse_map, "DENSE_ABOVE", 0.2)


def counts(steps: int = STEPS) -> Tensor:
    """Counts of 1 or 2 [T, B, I]; step 2, the last step and the last of one sample are empty."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(1, 3, (steps, BATCH, INPUTS), generator=generator).double()
    x *= torch.rand(steps, BATCH, INPUTS, generator=generator) < 0.06
    x[2] = x[-1] = 0
    x[:, -1, :] *= torch.arange(steps)[:, None] < 2
    return x


def sparse(x: Tensor) -> SparseSequence:
    rows = x.flatten(0, 1)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), (rows != 0).sum(1).cumsum(0)]).int()
    return SparseSequence(ends, rows.nonzero()[:, 1].int(), rows[rows != 0], x.shape[1], x.shape[2])


def network(kind: str = "lif", bias: bool = True, readout: str = "leaky") -> nn.Sequential:
    torch.manual_seed(0)
    first = ETLinear(INPUTS, UNITS, bias=bias)
    with torch.no_grad():
        first.weight.mul_(6.0)
    last: nn.Module = ETBlock(ETLinear(UNITS, CLASSES, bias=bias), LI(decay=0.9))
    if readout == "static":
        last = Readout(nn.Linear(UNITS, CLASSES))
    return nn.Sequential(ETBlock(first, KINDS[kind]()), last).double()


def record(net: nn.Module, rule: LearningRule, chunk: int, x: Any, **options: Any) -> dict[str, Any]:
    """What two sequences, the second going on from the first, leave behind."""
    update = options.pop("update", "sequence")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    gradients: list[Tensor] = []
    optimizer.register_step_pre_hook(
        lambda *_: gradients.extend(p.grad.clone() for p in net.parameters() if p.grad is not None)
    )
    learner = OnlineLearner(net, rule, F.cross_entropy, optimizer, chunk=chunk, update=update)
    y = torch.arange(BATCH) % CLASSES
    learner.learn(x, y, **options)
    result = learner.learn(x, y, keep_state=True, **options)
    traces = [m.trace for m in net.modules() if isinstance(m, ETLinear) and m.trace is not None]
    return {
        "gradients": gradients,
        "parameters": [p.detach() for p in net.parameters()],
        "traces": [value for trace in traces for value in trace.stash().values() if isinstance(value, Tensor)],
        "norms": list(result.trace_norms.values()),
        "rates": result.firing_rates,
        "loss": result.loss,
        "entries": net[0].entries,  # type: ignore[index]
        "trace": type(net[0].connection.trace),  # type: ignore[index, union-attr]
    }


def compare(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert all(0.02 < rate < 0.8 for rate in one["rates"].values()), one["rates"]
    assert one["rates"] == other["rates"]
    assert len(one["gradients"]) == len(other["gradients"])
    assert any(float(gradient.norm()) > 0 for gradient in one["gradients"])
    for name in ("gradients", "parameters", "traces"):
        for mine, theirs in zip(one[name], other[name], strict=True):
            torch.testing.assert_close(theirs, mine, rtol=1e-10, atol=EXACT, msg=name)
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-10)
    assert one["norms"] == pytest.approx(other["norms"], rel=1e-9)


PER_SYNAPSE: dict[str, Callable[[], LearningRule]] = {
    "drtrl": DRTRL,
    "eprop": lambda: EProp(kappa=0.8),
    "superspike": RULES["superspike"],
}


@pytest.mark.parametrize(
    ("kind", "name", "bias"),
    [
        ("lif", "drtrl", True),
        ("alif", "drtrl", False),
        ("lif", "eprop", False),
        ("alif", "eprop", True),
        ("cuba", "superspike", False),
    ],
)
def test_rules_per_synapse(kind: str, name: str, bias: bool) -> None:
    """In chunks of any length, and with rows that restart; control: other places, other gradients."""
    x, restarts = counts(), torch.zeros(STEPS, BATCH, dtype=torch.bool)
    restarts[1, 0] = restarts[4, 1] = restarts[3, 0] = True
    rule = PER_SYNAPSE[name]()
    for options, lengths in (({}, (2, STEPS + 5)), ({"restarts": restarts}, (3,))):
        textbook = record(network(kind, bias), rule, 1, x, **options)
        for length in lengths:
            found = record(network(kind, bias), rule, length, sparse(x), **options)
            compare(textbook, found)
            assert found["entries"] - {"step"} == {"sparse"}
            constant = name == "superspike" or (name, kind) == ("eprop", "lif")
            assert found["trace"] is (FilteredTrace if constant else SynapticTrace)
    moved = record(network(kind, bias), rule, 3, sparse(x.roll(1, -1)), restarts=restarts)
    assert max(float((p - q).norm()) for p, q in zip(moved["parameters"], textbook["parameters"], strict=True)) > 1e-3


OTHERS = ("s_tllr", "ndot", "es_drtrl", "tess", "otpe", "decolle", "hypr", "superspike")


@pytest.mark.parametrize("name", OTHERS)
def test_other_rules(name: str) -> None:
    """The second sequence goes on from the first with a leak that was learned between them."""
    readout = "static" if name in ("otpe", "decolle") else "leaky"
    textbook = record(network("learned leak", readout=readout), RULES[name](), 1, counts())
    found = record(network("learned leak", readout=readout), RULES[name](), STEPS, sparse(counts()))
    compare(textbook, found)
    assert found["entries"] == {"sparse"}


def test_a_leak_that_was_learned_does_not_touch_the_chunk_before() -> None:
    """Frames too: the chunk that is kept follows the leak that it was run with."""
    textbook = record(network("learned leak"), RULES["superspike"](), 1, counts())
    compare(textbook, record(network("learned leak"), RULES["superspike"](), STEPS, counts()))


def test_updates_inside_the_sequence_and_chunks_of_both_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps with many events are made dense, in the middle of a sequence, and the eligibility goes on."""
    x = counts(12)
    for t, rule in zip((3, 0, 3), PER_SYNAPSE.values(), strict=True):
        generator = torch.Generator().manual_seed(t)
        x[t : t + 3] = (torch.rand(3, BATCH, INPUTS, generator=generator) < 0.5).double()
        textbook = record(network("alif"), rule(), 1, x, update=3)
        found = record(network("alif"), rule(), 3, sparse(x), update=3)
        compare(textbook, found)
        assert found["entries"] == {"sparse", "dense"}


def test_backpropagation_through_the_layer() -> None:
    """An oracle that knows nothing of traces: autograd through the network on frames, the readout's past cut."""
    net, x, y = network("alif"), counts(), torch.arange(BATCH) % CLASSES
    expected = bptt_gradients(copy.deepcopy(net), x, y, F.cross_entropy, cut=["1.neuron"])
    learner = OnlineLearner(net, DRTRL(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.0), chunk=3)
    found: dict[str, Tensor] = {}
    learner.optimizer.register_step_pre_hook(
        lambda *_: found.update({name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None})
    )
    learner.learn(sparse(x), y)
    for name in ("0.connection.weight", "0.connection.bias"):
        assert float(expected[name].norm()) > 1e-3
        torch.testing.assert_close(found[name], expected[name], rtol=1e-10, atol=EXACT)


def test_the_log_says_what_a_dense_trace_means(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "snnlearn.nn"):
        record(network(readout="static"), RULES["es_drtrl"](), 3, sparse(counts()))
        record(network(), DRTRL(), 3, sparse(counts()))
    lines = [line.getMessage() for line in caplog.records]
    assert [("takes in dense steps" in line, "step by step" in line) for line in lines] == [
        *[(True, False), (False, True)],
        *[(False, False), (False, True)],
    ]
