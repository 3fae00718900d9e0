"""The order of the four phases, as recorded: for every block at every step."""

import pytest
import torch
from oracles.networks import mlp, sequence
from torch import nn
from torch.nn import functional as F

from snnlearn import BPTT, LIF, OTTT, SLTT, ETBlock, ETLinear, OnlineLearner, Phase, PhaseEvent, attach, record_phases

FORWARD, TRACE, NEURON, ET = Phase


def expected_events(blocks: int, steps: int, traced: bool) -> list[PhaseEvent]:
    """Forward and trace update first block first; then neuron and ET backward, last block first."""
    events = []
    for step in range(steps):
        for block in range(blocks):
            events.append(PhaseEvent(str(block), step, FORWARD))
            events += [PhaseEvent(str(block), step, TRACE)] * traced
        for block in reversed(range(blocks)):
            events += [PhaseEvent(str(block), step, NEURON), PhaseEvent(str(block), step, ET)]
    return events


@pytest.mark.parametrize(("rule", "traced"), [(OTTT(), True), (SLTT(), False)], ids=["ottt", "sltt"])
def test_three_layers_over_five_steps(rule, traced: bool) -> None:  # type: ignore[no-untyped-def]
    net = mlp(LIF, sizes=(7, 8, 8, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    learner = OnlineLearner(net, rule, F.cross_entropy, optimizer)
    with record_phases(net) as events:
        learner.learn(sequence(7, steps=5), torch.tensor([0, 1, 2, 0, 1]))
    assert events == expected_events(3, 5, traced)
    assert len(events) == 5 * 3 * (4 if traced else 3)
    wrong = expected_events(3, 5, traced)
    wrong[1], wrong[2] = wrong[2], wrong[1]
    assert events != wrong  # control: one exchange is seen
    with record_phases(net) as silent:
        learner.predict(sequence(7, steps=2))
    assert [e.phase for e in silent] == [FORWARD] * 6  # no trace moves in eval()


def test_the_trace_is_read_as_updated() -> None:
    """Phase 4 sees what phase 2 wrote: stale by one step would give 1.5 here, untraced 0."""
    block = ETBlock(ETLinear(1, 1, bias=False), LIF(tau=2.0)).double()
    attach(block, OTTT())
    for t, (x, delta) in enumerate(zip((1.0, 1.0, 0.0, 1.0), (0.0, 0.0, 1.0, 0.0), strict=True)):
        block(torch.full((1, 1), x, dtype=torch.float64))
        if delta:
            trace, _ = block.connection.trace.read(block.connection.trace.tick)
            assert t == 2
            assert float(trace) == 0.75


def test_bptt_runs_all_forwards_before_any_backward() -> None:
    net = mlp(LIF)
    learner = OnlineLearner(net, BPTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1))
    with record_phases(net) as events:
        learner.learn(sequence(7, steps=3), torch.tensor([0, 1, 2, 0, 1]))
    phases = [event.phase for event in events]
    assert phases[:6] == [FORWARD] * 6
    assert FORWARD not in phases[6:]


def test_recording_ends_and_a_network_without_blocks_is_refused() -> None:
    net = mlp(LIF)
    with record_phases(net) as events:
        pass
    net(sequence(7)[0])
    assert events == []
    assert net[0].listener is None
    with pytest.raises(ValueError, match="no ETBlock"), record_phases(nn.Linear(2, 2)):
        pass
