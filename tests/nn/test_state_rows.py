"""Rows that start afresh, silences, and what may not step a network: replicas, exports, scripts."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from nets import assert_alive, assert_same, everything, gradients, live_input, live_net, maps, state_tensors
from torch import Tensor, nn

from snnlearn import (
    ALIF,
    IF,
    LI,
    LIF,
    OTTT,
    SLTT,
    CubaLIF,
    ETBlock,
    ETLinear,
    LearningRule,
    Neuron,
    StateShapeError,
    TimeConstantDropout,
    attach,
    reset,
)
from snnlearn.functional import ArcTan, flush_threshold, lif_step
from snnlearn.nn import Stateful, stashed_state

ONLINE = pytest.mark.parametrize("rule", [OTTT(), SLTT()], ids=lambda rule: rule.name)
NEURONS: list[Callable[[], Neuron]] = [IF, LIF, CubaLIF, ALIF, LI]


# Rows that start afresh in mid-sequence.


@pytest.mark.parametrize("rule", [OTTT(), SLTT()], ids=lambda rule: rule.name)
def test_a_row_reset_in_mid_sequence_equals_that_row_started_afresh(rule: LearningRule, device: torch.device) -> None:
    """Row 1 of 3 starts afresh at step 3; its gradient, of the bias too, is that of a run of its own."""
    net = live_net(device)
    alone = copy.deepcopy(net)
    attach(net, rule)
    attach(alone, rule)
    x = live_input(7, 3, device=device)
    assert_alive(net, x)
    outputs = []
    for step, x_t in enumerate(x):
        if step == 3:
            net.zero_grad()
            reset(net, torch.tensor([False, True, False], device=device))
        output = net(x_t)
        output[1].square().sum().backward()
        outputs.append(output.detach())
    expected = []
    for x_t in x[3:, 1:2]:
        output = alone(x_t)
        output.square().sum().backward()
        expected.append(output.detach())
    torch.testing.assert_close(torch.stack(outputs)[3:, 1:2], torch.stack(expected), rtol=0, atol=1e-12)
    assert_same(gradients(net), gradients(alone), 1e-12)


def test_the_other_rows_notice_nothing(device: torch.device) -> None:
    net = live_net(device)
    twin = copy.deepcopy(net)
    x = live_input(6, 3, device=device)
    for each, with_reset in ((net, True), (twin, False)):
        attach(each, OTTT())
        for step, x_t in enumerate(x):
            if step == 3 and with_reset:
                reset(each, torch.tensor([False, True, False], device=device))
            each(x_t)[[0, 2]].square().sum().backward()
    assert_same(gradients(net), gradients(twin), 1e-14)


@pytest.mark.usefixtures("unchecked")
def test_masks_that_are_no_masks() -> None:
    net = live_net()
    attach(net, OTTT())
    net(live_input(1, 3)[0]).sum().backward()
    with pytest.raises(TypeError, match=r"int64.*boolean mask \[B\].*torch\.isin"):
        reset(net, torch.tensor([0, 1, 0]))
    with pytest.raises(StateShapeError, match=r"\[2\].*3 rows.*bool \[3\]"):
        reset(net, torch.tensor([True, False]))
    dropout = TimeConstantDropout()
    dropout(torch.ones(3, 2))
    with pytest.raises(StateShapeError, match=r"\[2\].*3 rows"):
        reset(dropout, torch.tensor([True, False]))


def test_stashed_state_comes_back_after_an_error() -> None:
    net = live_net()
    attach(net, OTTT())
    net(live_input(1, 3)[0]).sum().backward()
    before = state_tensors(net)

    def fail_in_between() -> None:
        with stashed_state(net):
            net(live_input(1, 7)[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_between()
    assert all(a is b for a, b in zip(before, state_tensors(net), strict=True))


def test_every_transient_attribute_is_declared() -> None:
    """A tensor that a forward leaves on a module outside `transient` would not move, copy or stash with it."""
    net = everything()
    attach(net, OTTT())
    before = {id(module): set(vars(module)) for module in net.modules()}
    net(maps(2)).sum().backward()
    reset(net, torch.tensor([True, False]))
    for module in net.modules():
        assert set(vars(module)) == before[id(module)]
        declared = set(module.transient) if isinstance(module, Stateful) else set()
        tensors = {
            name
            for name, value in vars(module).items()
            if isinstance(value, Tensor) or (isinstance(value, tuple) and any(isinstance(v, Tensor) for v in value))
        }
        assert tensors <= declared, type(module).__name__


# Subnormal numbers.


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("neuron", NEURONS)
def test_a_long_silence_leaves_no_subnormal_number(
    neuron: Callable[[], Neuron], dtype: torch.dtype, device: torch.device
) -> None:
    """One step of input, then 1,000 silent ones, decay 0.5: no state and no trace is ever subnormal."""
    decays = {IF: {}, ALIF: {"decay": 0.5, "decay_adaptation": 0.5}, CubaLIF: {"decay": 0.5, "decay_synapse": 0.5}}
    block = ETBlock(ETLinear(4, 4), neuron(**decays.get(neuron, {"decay": 0.5}))).to(device, dtype)
    nn.init.constant_(block.connection.weight, 0.3)
    nn.init.zeros_(block.connection.bias)
    attach(block, OTTT())
    tiny = torch.finfo(dtype).tiny
    assert flush_threshold(dtype) >= tiny
    seen_small = False
    for step in range(1001):
        block(torch.full((2, 4), float(step == 0), device=device, dtype=dtype))
        sizes = torch.cat([value.detach().flatten() for value in state_tensors(block)]).abs()
        assert not bool(((sizes > 0) & (sizes < tiny)).any()), f"subnormal at step {step}"
        seen_small |= bool(((sizes > 0) & (sizes < 1e-20)).any())
    trace = block.connection.trace
    assert trace is not None
    assert trace.values is not None
    assert trace.bias_values is not None
    if neuron is not IF:
        assert seen_small  # the silence went through the range where subnormals lie ahead
        assert not trace.values.any()
        assert not state_tensors(block)[0].any()
        limit = 4.0 if neuron is CubaLIF else 2.0  # the trace of a constant one settles at 1 / (1 - decay)
        assert trace.bias_values[-1] == pytest.approx(limit, rel=1e-6)


def test_the_silence_would_leave_subnormals_without_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    monkeypatch.setattr("snnlearn.nn.lif.flush_subnormals_", lambda value: value)
    monkeypatch.setattr("snnlearn.functional.trace.flush_subnormals_", lambda value: value)
    block = ETBlock(ETLinear(1, 1, bias=False), LIF(decay=0.5))
    nn.init.constant_(block.connection.weight, 0.5)
    attach(block, OTTT())
    for step in range(130):
        block(torch.full((1, 1), float(step == 0)))
    assert block.neuron.state is not None
    assert block.connection.trace is not None
    for value in (block.neuron.state[0], block.connection.trace.values):
        assert value is not None
        assert 0 < float(value.abs().max()) < torch.finfo(torch.float32).tiny


# X06, X07: replicas, export, script.


def test_data_parallel_replicas_are_refused() -> None:
    replica = live_net()._replicate_for_data_parallel()
    neuron = replica.hidden.neuron._replicate_for_data_parallel()
    with pytest.raises(RuntimeError, match=r"DataParallel.*throw-away.*DistributedDataParallel"):
        neuron(torch.zeros(1, 12))


class ExplicitStep(nn.Module):
    """One step of a LIF neuron with its state as input and output."""

    def __init__(self, neuron: LIF) -> None:
        super().__init__()
        self.neuron = neuron

    def forward(self, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        spike, (after,) = self.neuron.step(y, (v,))
        return spike, after


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("neuron", [LIF(tau=3.0, threshold=0.7), LIF(tau=20.0, dt=1.0, threshold=1.3, reset="hard")])
def test_a_step_with_explicit_state_exports_and_round_trips(neuron: LIF, tmp_path) -> None:  # type: ignore[no-untyped-def]
    exported = torch.export.export(ExplicitStep(neuron).eval(), (torch.zeros(4, 5), torch.zeros(4, 5)))
    torch.export.save(exported, tmp_path / "step.pt2")
    loaded = torch.export.load(tmp_path / "step.pt2").module()
    state, total = torch.zeros(4, 5), 0.0
    theirs = state
    for _ in range(50):
        y = torch.rand(4, 5)
        spike, (state,) = neuron.step(y, (state,))
        their_spike, theirs = loaded(y, theirs)
        assert torch.equal(spike, their_spike)
        assert torch.equal(state, theirs)
        total += float(spike.mean()) / 50
    assert 0.1 < total < 0.9


def test_the_functional_step_is_the_modules(device: torch.device) -> None:
    neuron, v = LIF(tau=3.0, threshold=0.7), torch.zeros(2, 3, device=device)
    for _ in range(20):
        y = torch.rand(2, 3, device=device)
        spike, v = lif_step(y, v, 1 - 1 / 3, 0.7, "soft", True, ArcTan())
        assert torch.equal(neuron(y), spike)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("strict", "reason"),
    [
        (False, r"state is hidden from torch\.export.*neuron\.step\(y, state\).*explicit input and output"),
        (True, r"reason: a block writes its trace in place between forward and backward"),
    ],
)
def test_export_of_hidden_state_is_refused(strict: bool, reason: str) -> None:
    with pytest.raises(RuntimeError, match=reason):
        torch.export.export(live_net(dtype=torch.float32), (torch.zeros(2, 6),), strict=strict)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_script_of_a_network_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"torch\.jit\.script got a LIF.*torch\.compile.*neuron\.step\(y, state\)"):
        torch.jit.script(live_net())
