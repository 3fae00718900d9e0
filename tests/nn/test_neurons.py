"""Neurons as modules: published values, the forms of a time constant, every option, every refusal, every precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snnlearn import (
    ALIF,
    BPTT,
    IF,
    LI,
    LIF,
    OTTT,
    ArcTan,
    CubaLIF,
    ETBlock,
    ETLinear,
    LearningRule,
    Neuron,
    Sigmoid,
    StateShapeError,
    attach,
    bptt_gradients,
    reset,
)

NEURONS: list[Callable[..., Neuron]] = [IF, LIF, CubaLIF, ALIF, LI]


def run(neuron: Neuron, inputs: Tensor) -> Tensor:
    """Return the outputs for inputs [T, units] as one batch row."""
    reset(neuron)
    with torch.no_grad():
        return torch.stack([neuron(y[None])[0] for y in inputs])


# S07, G27: published values.


@pytest.mark.parametrize("rule", [OTTT(), BPTT()], ids=lambda rule: rule.name)
def test_scalar_run_in_double_precision(rule: LearningRule, device: torch.device) -> None:
    """R1: w = 0.6, b = 0.1, decay 0.5, loss sum (t + 1) s_t: gradient of w 7.2534060198."""
    block = ETBlock(ETLinear(1, 1), LIF(decay=0.5, surrogate=ArcTan(alpha=2.0))).to(device, torch.float64)
    nn.init.constant_(block.connection.weight, 0.6)
    nn.init.constant_(block.connection.bias, 0.1)
    attach(block, rule)
    spikes, losses, membranes = [], [], []
    for t, x_t in enumerate([1.0, 1.0, 0.0, 1.0]):
        output = block(torch.full((1, 1), x_t, device=device, dtype=torch.float64))
        assert block.neuron.state is not None
        membranes.append(float(block.neuron.state[0].detach() + output.detach()))
        spikes.append(float(output.detach()))
        losses.append((t + 1) * output.sum())
        if rule.online:
            losses[-1].backward()
    if not rule.online:
        torch.stack(losses).sum().backward()
    assert spikes == [0, 1, 0, 0]
    torch.testing.assert_close(membranes, [0.7, 1.05, 0.125, 0.7625], rtol=0, atol=1e-12)
    gradient = block.connection.weight.grad
    assert gradient is not None
    assert gradient.dtype == torch.float64
    assert f"{float(gradient):.10f}" == "7.2534060198"
    trace = block.connection.trace
    assert trace is None or (trace.values is not None and trace.values.dtype == torch.float64)


def test_oracle_of_the_scalar_run_is_the_same() -> None:
    """The bias too, whose trace is 1, 1.5, 1.75, 1.875."""
    block = ETBlock(ETLinear(1, 1), LIF()).double()
    nn.init.constant_(block.connection.weight, 0.6)
    nn.init.constant_(block.connection.bias, 0.1)
    x = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64).reshape(4, 1, 1)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    found = bptt_gradients(block, x, weights, lambda s, w: w * s.sum(), per_step_target=True)
    assert f"{4 * float(found['connection.weight']):.10f}" == "7.2534060198"
    psi = [1 / (1 + (math.pi * (v - 1)) ** 2) for v in (0.7, 1.05, 0.125, 0.7625)]
    expected = sum((t + 1) * p * c for t, (p, c) in enumerate(zip(psi, (1, 1.5, 1.75, 1.875), strict=True)))
    assert 4 * float(found["connection.bias"]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("kind", "left", "then"), [("soft", 0.0038205, 0.2130564), ("hard", 0.0, 0.21)])
def test_first_spike_and_what_a_reset_leaves(kind: str, left: float, then: float, device: torch.device) -> None:
    """G27: decay 0.8, input 0.21: v = 1.0038205 at step 14, counted from 1."""
    neuron = LIF(decay=0.8, reset=kind)
    y = torch.full((1, 1), 0.21, device=device, dtype=torch.float64)
    spikes, membrane, recursion = [], [], 0.0
    for _ in range(20):
        recursion = 0.8 * recursion + 0.21
        spikes.append(int(neuron(y)))
        assert neuron.state is not None
        membrane.append(float(neuron.state[0]))
        if recursion >= 1:
            recursion = recursion - 1 if kind == "soft" else 0.0
        assert membrane[-1] == pytest.approx(recursion, abs=1e-14)
    assert spikes.index(1) == 13
    assert sum(spikes) == 1
    assert membrane[13] == pytest.approx(left, abs=5e-8)
    assert membrane[14] == pytest.approx(then, abs=5e-8)


def test_no_reset_keeps_the_membrane(device: torch.device) -> None:
    neuron = IF(reset="none")
    assert run(neuron, torch.full((4, 1), 0.5, device=device)).flatten().tolist() == [0, 1, 1, 1]
    assert neuron.state is not None
    assert float(neuron.state[0]) == 2.0


# The forms of a time constant, and their repr.


@pytest.mark.usefixtures("unchecked")
def test_three_forms_of_one_decay() -> None:
    y = torch.rand(30, 4, dtype=torch.float64)
    by_decay = run(LIF(decay=0.75), y)
    assert 0.05 < float(by_decay.mean()) < 0.95
    assert torch.equal(by_decay, run(LIF(tau=4.0), y))
    assert torch.equal(by_decay, run(LIF(4), y))
    by_time = LIF(tau=20e-3, dt=-20e-3 * math.log(0.75))
    assert by_time.decay == pytest.approx(0.75, abs=1e-15)
    assert LIF().decay == LIF(tau=2.0).decay == 0.5
    assert not torch.equal(by_decay, run(LIF(tau=20.0, dt=1.0), y))


@pytest.mark.parametrize(
    ("neuron", "shown"),
    [
        (LIF(), "LIF(decay=0.5, threshold=1, reset=soft, detached, surrogate=ArcTan(alpha=2.0))"),
        (LIF(tau=20e-3, dt=1e-3), "LIF(decay=0.951229, "),
        (LIF(decay=0.9, reset="none"), "LIF(decay=0.9, threshold=1, reset=none, surrogate="),
        (LIF(detach_reset=False, threshold=0.5), "threshold=0.5, reset=soft, surrogate="),
        (LIF(tau=[2.0, 4.0, 3.0]), "LIF(decay=0.5..0.75 per unit [3], "),
        (IF(), "IF(decay=1, "),
        (CubaLIF(tau_synapse=4.0), "CubaLIF(decay=0.5, decay_synapse=0.75, "),
        (ALIF(tau_adaptation=10.0, adaptation=0.3), "ALIF(decay=0.5, decay_adaptation=0.9, adaptation=0.3, "),
        (LI(tau=4.0), "LI(decay=0.75)"),
        (LI(decay=torch.tensor([0.25, 0.5])), "LI(decay=0.25..0.5 per unit [2])"),
    ],
)
def test_repr_prints_the_decay_in_effect(neuron: Neuron, shown: str) -> None:
    assert shown in repr(neuron)


@pytest.mark.parametrize("form", [lambda v: v, lambda v: torch.tensor(v), lambda v: tuple(v)])
def test_decay_per_unit(form: Callable[[list[float]], Any], device: torch.device) -> None:
    """Each unit is a neuron of its own."""
    y = torch.rand(25, 3, device=device)
    together = run(LIF(tau=form([2.0, 4.0, 8.0])).to(device), y)
    for unit, tau in enumerate([2.0, 4.0, 8.0]):
        alone = run(LIF(tau=tau), y[:, unit : unit + 1])
        assert 0 < float(alone.mean()) < 1
        assert torch.equal(together[:, unit : unit + 1], alone)


def test_decay_of_one_unit_stays_per_unit_and_keeps_its_precision() -> None:
    assert LIF(decay=torch.tensor(0.3, dtype=torch.float64)).decay == 0.3
    decay = LIF(decay=torch.tensor([0.3, 0.4], dtype=torch.float64)).double().decay
    assert isinstance(decay, Tensor)
    assert decay.tolist() == [0.3, 0.4]


# S15: every option does something, and unknown ones are refused.


def drive(units: int = 8) -> Tensor:
    return torch.rand(10, units, dtype=torch.float64) * 1.2


OPTIONS: dict[str, tuple[Callable[[], Neuron], Callable[[], Neuron]]] = {
    "tau": (LIF, lambda: LIF(tau=8.0)),
    "dt": (lambda: LIF(tau=4.0), lambda: LIF(tau=4.0, dt=1.0)),
    "decay": (LIF, lambda: LIF(decay=0.9)),
    "threshold": (LIF, lambda: LIF(threshold=0.6)),
    "reset hard": (LIF, lambda: LIF(reset="hard")),
    "reset none": (LIF, lambda: LIF(reset="none")),
    "IF threshold": (IF, lambda: IF(threshold=0.6)),
    "IF reset": (IF, lambda: IF(reset="hard")),
    "IF is not LIF": (IF, LIF),
    "CUBA tau": (CubaLIF, lambda: CubaLIF(tau=8.0)),
    "CUBA dt": (lambda: CubaLIF(tau=4.0, tau_synapse=4.0), lambda: CubaLIF(tau=4.0, tau_synapse=4.0, dt=8.0)),
    "CUBA tau_synapse": (CubaLIF, lambda: CubaLIF(tau_synapse=8.0)),
    "CUBA decay": (CubaLIF, lambda: CubaLIF(decay=0.9)),
    "CUBA decay_synapse": (CubaLIF, lambda: CubaLIF(decay_synapse=0.9)),
    "CUBA threshold": (CubaLIF, lambda: CubaLIF(threshold=0.6)),
    "CUBA reset": (CubaLIF, lambda: CubaLIF(reset="hard")),
    "ALIF tau": (ALIF, lambda: ALIF(tau=8.0)),
    "ALIF dt": (lambda: ALIF(tau=4.0, tau_adaptation=2.0), lambda: ALIF(tau=4.0, tau_adaptation=2.0, dt=1.0)),
    "ALIF tau_adaptation": (lambda: ALIF(adaptation=0.5), lambda: ALIF(adaptation=0.5, tau_adaptation=1.2)),
    "ALIF adaptation": (ALIF, lambda: ALIF(adaptation=1.0)),
    "ALIF decay": (ALIF, lambda: ALIF(decay=0.9)),
    "ALIF decay_adaptation": (lambda: ALIF(adaptation=0.5), lambda: ALIF(adaptation=0.5, decay_adaptation=0.1)),
    "ALIF threshold": (ALIF, lambda: ALIF(threshold=0.6)),
    "ALIF reset": (ALIF, lambda: ALIF(reset="hard")),
    "LI tau": (LI, lambda: LI(tau=8.0)),
    "LI dt": (lambda: LI(tau=4.0), lambda: LI(tau=4.0, dt=1.0)),
    "LI decay": (LI, lambda: LI(decay=0.9)),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_changes_the_output(option: str) -> None:
    one, other = OPTIONS[option]
    y = drive()
    first, second = run(one(), y), run(other(), y)
    assert float(first.mean()) > 0.02
    assert float(second.mean()) > 0.02
    assert not torch.equal(first, second)


@pytest.mark.parametrize("neuron", [LIF, CubaLIF, ALIF, IF])
@pytest.mark.parametrize("option", [{"surrogate": Sigmoid(alpha=2.0)}, {"detach_reset": False}])
def test_every_option_of_the_gradient_changes_the_gradient(
    neuron: Callable[..., Neuron], option: dict[str, Any]
) -> None:
    def gradient(built: Neuron) -> Tensor:
        y = torch.full((1, 4), 0.9, dtype=torch.float64, requires_grad=True)
        spikes = torch.stack([built(y) for _ in range(6)])
        assert 0 < float(spikes.detach().mean()) < 1
        return torch.autograd.grad(spikes.sum(), y)[0]

    assert not torch.allclose(gradient(neuron()), gradient(neuron(**option)), rtol=1e-3)


@pytest.mark.parametrize("neuron", NEURONS)
def test_misspelt_options_are_refused(neuron: Callable[..., Neuron]) -> None:
    with pytest.raises(TypeError, match="tauu"):
        neuron(tauu=3)


# G25 and every other illegal argument: what was got, what is allowed, what to write.

REFUSALS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: LIF(threshold=0), ValueError, r"threshold=0: .*finite and above 0.*fire without input.*threshold=1\.0"),
    (lambda: LIF(threshold=-0.1), ValueError, r"threshold=-0\.1: .*above 0"),
    (lambda: IF(threshold=0.0), ValueError, r"threshold=0\.0: .*above 0"),
    (lambda: ALIF(threshold=-1.0), ValueError, r"threshold=-1\.0"),
    (lambda: CubaLIF(threshold=math.inf), ValueError, r"threshold=inf: .*finite"),
    (lambda: LIF(threshold=math.nan), ValueError, r"threshold=nan: .*finite"),
    (lambda: LIF(threshold=nn.Parameter(torch.ones(()))), TypeError, r"threshold is a Parameter.*learn=\(\.\.\.\)"),
    (lambda: LIF(threshold=torch.tensor([1.0, 0.0])), ValueError, r"threshold=tensor.*above 0.*threshold=1\.0"),
    (lambda: LIF(threshold="1"), TypeError, r"threshold='1': .*one number"),
    (lambda: LIF(tau=1.0), ValueError, r"tau=1\.0: tau must be finite and above 1 \(steps\).*tau=2\.0"),
    (lambda: LIF(tau=0.5), ValueError, r"tau=0\.5"),
    (lambda: LIF(tau=-2.0), ValueError, r"tau=-2\.0"),
    (lambda: LIF(tau=math.inf), ValueError, r"tau=inf.*finite"),
    (lambda: LIF(tau=math.nan), ValueError, r"tau=nan"),
    (lambda: LIF(tau=[2.0, 0.5]), ValueError, r"tau=\[2\.0, 0\.5\]"),
    (lambda: LIF(tau="2"), TypeError, r"tau='2': .*number.*tau=2\.0"),
    (lambda: LIF(tau=20.0, dt=0.0), ValueError, r"dt=0\.0: dt must be finite and above 0.*dt=1\.0"),
    (lambda: LIF(tau=-20.0, dt=1.0), ValueError, r"tau=-20\.0.*unit of dt"),
    (lambda: LIF(tau=20.0, decay=0.5), ValueError, r"tau=20\.0 and decay=0\.5: give exactly one"),
    (lambda: LIF(decay=0.5, dt=1.0), ValueError, r"decay and dt=1\.0.*leave dt out"),
    (lambda: LIF(dt=1.0), ValueError, r"dt=1\.0 without tau.*tau=20\.0, dt=1\.0"),
    (lambda: LI(dt=1.0), ValueError, r"dt=1\.0 without tau"),
    (lambda: CubaLIF(tau=20.0, dt=1.0), ValueError, r"dt=1\.0 without tau_synapse"),
    (lambda: ALIF(tau=20.0, dt=1.0), ValueError, r"dt=1\.0 without tau_adaptation"),
    (lambda: CubaLIF(decay=0.5, decay_synapse=0.5, dt=1.0), ValueError, r"dt=1\.0.*leave dt out"),
    (lambda: ALIF(decay=0.5, decay_adaptation=0.5, dt=1.0), ValueError, r"dt=1\.0.*leave dt out"),
    (lambda: LIF(decay=0.0), ValueError, r"decay=0\.0: decay must be in \(0, 1\).*decay=0\.5"),
    (lambda: LIF(decay=1.0), ValueError, r"decay=1\.0"),
    (lambda: LIF(decay=torch.tensor([0.5, 1.5])), ValueError, r"decay=tensor.*in \(0, 1\)"),
    (lambda: LIF(decay=nn.Parameter(torch.full((), 0.5))), TypeError, r"decay is a Parameter.*parameter\.detach"),
    (lambda: LIF(tau=nn.Parameter(torch.full((), 2.0))), TypeError, r"tau is a Parameter.*parameter\.detach.*learn="),
    (lambda: CubaLIF(tau_synapse=1.0), ValueError, r"tau_synapse=1\.0: tau_synapse must be"),
    (lambda: CubaLIF(decay_synapse=2.0), ValueError, r"decay_synapse=2\.0"),
    (lambda: ALIF(tau_adaptation=0.0), ValueError, r"tau_adaptation=0\.0"),
    (lambda: ALIF(decay_adaptation=-0.5), ValueError, r"decay_adaptation=-0\.5"),
    (lambda: ALIF(adaptation=-0.1), ValueError, r"adaptation=-0\.1: .*at least 0.*adaptation=0\.2"),
    (lambda: ALIF(adaptation=math.nan), ValueError, r"adaptation=nan"),
    (lambda: ALIF(adaptation=nn.Parameter(torch.ones(()))), TypeError, r"adaptation is a Parameter"),
    (lambda: LIF(reset="zero"), ValueError, r"reset='zero': choose one of soft, hard, none.*reset='soft'"),
    (lambda: LIF(surrogate="arctan"), TypeError, r"surrogate='arctan': pass a surrogate object.*ArcTan\(\)"),
    (lambda: LIF(surrogate=ArcTan), TypeError, r"surrogate=.*pass a surrogate object"),
    (lambda: ArcTan(alpha=0.0), ValueError, r"ArcTan\(alpha=0\.0\).*above 0"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("position", range(len(REFUSALS)))
def test_illegal_arguments_are_refused_in_words(position: int) -> None:
    build, error, words = REFUSALS[position]
    with pytest.raises(error, match=words):
        build()


def test_incomplete_custom_neurons_are_refused() -> None:
    class Nameless(Neuron):
        pass

    class Stepless(Neuron):
        state_names = ("v",)

    class Forgetful(Neuron):
        state_names = ("v", "w")

        def step(self, y: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
            return self.spike(y), (y,)

    with pytest.raises(TypeError, match=r"Nameless names no hidden value.*state_names = \('v',\)"):
        Nameless()
    with pytest.raises(TypeError, match=r"Stepless must define step\(self, y, state\) -> \(spike, state\)"):
        Stepless()(torch.zeros(1, 1))
    with pytest.raises(StateShapeError, match=r"returned 1 hidden value\(s\).*\('v', 'w'\)"):
        Forgetful()(torch.zeros(1, 1))


# N03 and other precisions.


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_everything_follows_the_dtype_of_the_input(
    neuron: Callable[[], Neuron], dtype: torch.dtype, device: torch.device
) -> None:
    built = neuron()
    y = torch.rand(2, 3, device=device).to(dtype).requires_grad_()
    for _ in range(4):
        output = built(y)
        assert output.dtype == dtype
        assert built.state is not None
        assert all(value.dtype == dtype and value.device.type == device.type for value in built.state)
    output.sum().backward()
    assert y.grad is not None
    assert y.grad.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_state_is_float32_inside_autocast(dtype: torch.dtype, device: torch.device) -> None:
    """N03: 1 halved 39 times is 2^-39, which float16 would have lost at step 25."""
    block = ETBlock(ETLinear(1, 1, bias=False), LI(decay=0.5)).to(device)
    nn.init.ones_(block.connection.weight)
    attach(block, OTTT())
    trace = block.connection.trace
    assert trace is not None
    with torch.autocast(device.type, dtype=dtype):
        for step in range(40):
            output = block(torch.full((1, 1), float(step == 0), device=device))
            assert block.neuron.state is not None
            assert block.neuron.state[0].dtype == torch.float32
            assert trace.values is not None
            assert trace.values.dtype == torch.float32
            assert float(output.detach()) == float(trace.values) == 2.0**-step
            output.sum().backward()
    weight = block.connection.weight
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert float(weight.grad) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("neuron", NEURONS)
def test_silence_in_half_precision_ends_in_zero_without_nan(
    neuron: Callable[[], Neuron], dtype: torch.dtype, device: torch.device
) -> None:
    """N03: outside autocast the state has the input's dtype; it fades to zero, never to NaN."""
    built = neuron()
    with torch.no_grad():
        for step in range(1001):
            output = built(torch.full((1, 1), 0.7 * (step == 0), device=device, dtype=dtype))
    assert built.state is not None
    assert all(bool(value.isfinite().all()) for value in built.state)
    assert bool(output.isfinite().all())
    if not isinstance(built, IF):
        assert not any(bool(value.any()) for value in built.state)


def test_gradient_accumulates_in_the_parameters_precision_under_autocast(device: torch.device) -> None:
    """N02: 10,000 additions of 1e-3 give 10, where bfloat16 gives 0.5."""
    block = ETBlock(ETLinear(1, 1, bias=False), LI(decay=1e-6)).to(device)
    attach(block, OTTT())
    x = torch.ones(1, 1, device=device)
    steps = 1000
    with torch.autocast(device.type, dtype=torch.bfloat16):
        for _ in range(steps):
            (block(x) * 1e-2).sum().backward()
    gradient = block.connection.weight.grad
    assert gradient is not None
    assert gradient.dtype == torch.float32
    assert float(gradient) == pytest.approx(10.0, rel=5e-3)
    naive = torch.zeros((), dtype=torch.bfloat16)
    for _ in range(steps):
        naive += 1e-2
    assert float(naive) < 5.0  # negative control: what accumulating in bfloat16 gives
