"""Whatever the shapes, chunk length, restarts and missing targets: a chunk has the gradients of its steps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import ALIF, LI, LIF, CubaLIF, ETBlock, ETLinear, ETRecurrent, Neuron, OnlineLearner, Readout
from snnlearn.rules import DRTRL, OTPE, OTTT, SLTT, EProp, LearningRule

EXACT = 1e-10
RULES: dict[str, Callable[[], LearningRule]] = {
    "sltt": SLTT,
    "ottt": OTTT,
    "drtrl": DRTRL,
    "otpe": OTPE,
    "eprop": lambda: EProp(broadcast="random"),
}
NEURONS: dict[str, Callable[[], Neuron]] = {
    "soft": lambda: LIF(decay=0.8, threshold=0.3),
    "hard": lambda: LIF(decay=0.8, threshold=0.3, reset="hard"),
    "alif": lambda: ALIF(decay=0.8, threshold=0.3),
    "cuba": lambda: CubaLIF(threshold=0.3),
}


class Case(NamedTuple):
    """A network, a batch and how it is cut into chunks."""

    rule: str
    neuron: str
    recurrent: bool
    sizes: tuple[int, int, int]
    steps: int
    batch: int
    chunk: int
    restarts: float
    missing: float
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small cases, each dimension from 1."""
    steps = draw(st.integers(1, 9))
    return Case(
        rule=draw(st.sampled_from(sorted(RULES))),
        neuron=draw(st.sampled_from(sorted(NEURONS))),
        recurrent=draw(st.booleans()),
        sizes=(draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(2, 3))),
        steps=steps,
        batch=draw(st.integers(1, 4)),
        chunk=draw(st.integers(2, steps + 2)),
        restarts=draw(st.sampled_from([0.0, 0.2, 0.6])),
        missing=draw(st.sampled_from([0.0, 0.3, 0.8])),
        seed=draw(st.integers(0, 2**16)),
    )


def network(case: Case) -> nn.Sequential:
    torch.manual_seed(case.seed)
    inputs, units, classes = case.sizes
    connection = (ETRecurrent if case.recurrent else ETLinear)(inputs, units)
    with torch.no_grad():
        connection.weight.mul_(2.0)
    readout = Readout(nn.Linear(units, classes)) if case.rule == "otpe" else ETBlock(ETLinear(units, classes), LI())
    second = ETBlock(ETLinear(units, units), NEURONS[case.neuron]())
    return nn.Sequential(ETBlock(connection, NEURONS[case.neuron]()), second, readout).double()


def gradients(case: Case, chunk: int, keep_restarts: bool = True) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The gradients of the one update of a sequence, and the firing rates."""
    net, seen = network(case), dict[str, Tensor]()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)

    def keep(*_: Any) -> None:
        seen.update({name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None})

    optimizer.register_step_pre_hook(keep)
    learner = OnlineLearner(net, RULES[case.rule](), F.cross_entropy, optimizer, chunk=chunk)
    generator = torch.Generator().manual_seed(case.seed)

    def drawn(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    x = (drawn(case.steps, case.batch, case.sizes[0]) < 0.6).double()
    labels = (drawn(case.steps, case.batch) * case.sizes[2]).long()
    taught = drawn(case.steps) >= case.missing
    taught[-1] = True
    targets = [label if has else None for label, has in zip(labels, taught.tolist(), strict=True)]
    restarts = drawn(case.steps, case.batch) < case.restarts
    given_restarts = restarts if case.restarts and keep_restarts else None
    return seen, learner.learn(x, targets, per_step_target=True, restarts=given_restarts).firing_rates


def differ(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference of two sets of gradients, relative to the norm of the first."""
    assert one.keys() == other.keys()
    return max(float((one[n] - other[n]).norm()) / max(float(one[n].norm()), 1e-3) for n in one)


def test_a_chunk_has_the_gradients_of_its_steps(unchecked: None) -> None:
    """Controls: among the cases are those where spikes, hidden gradients and restarts matter."""
    taught, fired, moved, met = 0, 0, 0, set[tuple[str, str]]()

    @settings(max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(cases())
    def check(case: Case) -> None:
        nonlocal taught, fired, moved
        step_by_step, rates = gradients(case, 1)
        in_chunks, rates_in_chunks = gradients(case, case.chunk)
        assert differ(step_by_step, in_chunks) < EXACT, case
        assert rates == rates_in_chunks
        met.add((case.rule, case.neuron))
        taught += float(step_by_step["0.connection.weight"].norm()) > 1e-6
        fired += 0.02 < rates["0"] < 0.8
        if case.restarts and case.rule != "sltt":
            moved += differ(step_by_step, gradients(case, 1, keep_restarts=False)[0]) > 1e-3

    check()
    assert {rule for rule, _ in met} == RULES.keys()
    assert {neuron for _, neuron in met} == NEURONS.keys()
    assert taught > 20
    assert fired > 20
    assert moved > 5
