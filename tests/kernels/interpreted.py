"""The Triton twins against their references, on the CPU under Triton's interpreter; run by `test_interpreted.py`.

Steps, batch and units are 1, 2, 63 and 129 in the pairs that `SHAPES` lists; what else varies (layout, dtype, reset,
constants per unit, restarts) goes round with them. Memory that a kernel has yet to write holds NaN.
Tolerance of floats: 1e-5 of the largest value. Decisions are equal where rounding cannot matter; see
`assert_same_decisions`, which counts the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from kernel_work import learned
from torch import Tensor

from snnlearn.functional import ArcTan, Jacobian, chunk, chunk_roll, neuron_scan
from snnlearn.functional.cut_step import cut_gradient, spike_gate
from snnlearn.functional.dynamics import RESETS, LeakTransition
from snnlearn.functional.neuron_scan import NeuronConstants
from snnlearn.functional.surrogates import SURROGATES, Constant, Surrogate
from snnlearn.kernels import dispatch, gated_scan, leak_scan
from snnlearn.kernels import neuron_scan as twin_neuron_scan

SIZES = (1, 2, 63, 129)
# (steps, batch, units): every pair of batch and units, which make the grid, and every number of steps, which loop.
SHAPES = [(1 + (i + j) % 2, SIZES[i], SIZES[j]) for i in range(4) for j in range(4)]
SHAPES += [(63, 2, 129), (129, 129, 1)]
CASES = list(enumerate(SHAPES))
TWINS_OF = {
    "ottt by single steps": {"cut_gradient"},
    "ottt": {"lif_scan", "spike_gate", "scan_leak", "roll_leak_trace"},
    "d_rtrl": {"alif_scan", "scan_chunk", "roll_eligibility"},
    "e_prop": {"lif_scan", "spike_gate", "scan_chunk", "scan_leak", "roll_eligibility", "roll_leak_trace"},
    "e_prop behind a hard reset": {"lif_scan", "scan_chunk", "scan_leak", "roll_eligibility"},
    "cuba": {"cuba_lif_scan", "scan_chunk", "roll_eligibility"},
}
# (steps, batch, units, inputs) of the fold, whose grid has a program for every row: the interpreter is slow.
FOLDS = list(
    enumerate([(1, 1, 129, 63), (2, 63, 1, 2), (63, 2, 63, 129), (129, 1, 2, 63), (129, 2, 129, 1), (2, 1, 2, 2)])
)
LEAKS = [
    LeakTransition(((0.7,),), (1.0,), (1.0,)),
    LeakTransition(((0.3, 0.0), (0.3, 0.6)), (1.0, 1.0), (0.0, 1.0)),
    LeakTransition(((0.5, 0.1, 0.0), (0.2, 0.4, 0.1), (0.0, 0.3, 0.6)), (1.0, 0.5, 0.2), (0.3, 1.0, 0.5)),
]


@pytest.fixture(autouse=True)
def _triton_and_nothing_else() -> Iterator[None]:
    with dispatch.use("triton"):
        yield


@pytest.fixture(autouse=True)
def _wide_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter pays by the program: few wide ones, of which none fits."""
    for module in (twin_neuron_scan, leak_scan, gated_scan):
        monkeypatch.setattr(module, "BLOCK", 2048)


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """Memory without a value holds NaN, which torch sees to when it is to be deterministic."""
    torch.use_deterministic_algorithms(True)
    assert bool(torch.empty(3).isnan().all())
    yield
    torch.use_deterministic_algorithms(False)


def laid_out(values: Tensor, number: int) -> Tensor:
    """The same values [K, B, U]: contiguous, batch first in memory, or every second unit of a wider tensor."""
    if number % 3 == 1:
        return values.transpose(0, 1).contiguous().transpose(0, 1)
    if number % 3 == 2:
        wide = torch.full((*values.shape[:-1], 2 * values.shape[-1]), torch.nan, dtype=values.dtype)
        wide[..., ::2] = values
        return wide[..., ::2]
    return values


def a_third_of_cases(hidden: int) -> list[tuple[int, tuple[int, int, int]]]:
    """Other cases for each number of hidden values, all of them together; what goes round with them is mixed."""
    return [case for case in CASES if (case[0] + case[0] // 3) % 3 == hidden - 1]


def some_restarts(number: int, steps: int, batch: int) -> Tensor | None:
    return torch.rand(steps, batch) < 0.1 if number // 4 % 2 else None


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == torch.float32
    scale = max(float(expected.abs().max()), 1e-30)
    torch.testing.assert_close(found, expected.float(), rtol=0, atol=1e-5 * scale)


def ulp(values: Tensor) -> Tensor:
    """The distance from each number to the next larger in magnitude."""
    return torch.nextafter(values.abs(), torch.tensor(torch.inf)) - values.abs()


def assert_same_decisions(
    found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], slack: float | Tensor
) -> tuple[int, Tensor]:
    """Hold spikes and u of a twin against the reference's; return how many decisions differ, and which units never do.

    Where a unit's decisions first differ, its u may be at most `slack` from zero; after that its membrane is another.
    """
    differs = found[0] != expected[0]
    first = differs & (differs.cumsum(0) == 1)
    assert bool((expected[1].abs() <= slack)[first].all())
    return int(first.sum()), ~differs.any(0)


def test_the_comparison_of_decisions_sees_a_flip() -> None:
    u = torch.tensor([[-0.5], [1e-8]])
    spikes = (u >= 0).float()
    assert assert_same_decisions((spikes, u), (spikes, u), 1e-7)[0] == 0
    near = torch.tensor([[0.0], [0.0]])
    assert assert_same_decisions((near, u), (spikes, u), 1e-7)[0] == 1
    with pytest.raises(AssertionError):
        assert_same_decisions((1 - spikes, u), (spikes, u), 1e-7)


def constant(number: int, low: float, high: float, units: int) -> float | Tensor:
    """One number, or one per unit."""
    return torch.linspace(low, high, units) if number % 2 else low


@pytest.mark.parametrize("neuron", ["lif", "alif", "cuba_lif"])
def test_neuron_scans(neuron: str) -> None:
    """Resets, dtypes, layouts and kinds of constant go round over the cases, and begin elsewhere for each neuron."""
    offset = ["lif", "alif", "cuba_lif"].index(neuron)
    flipped = decided = 0
    rates = []
    for number, (steps, batch, units) in CASES:
        reset = RESETS[(number + offset) % 3]
        drive = (1.3, 1.4, 0.8)[offset] * (0.6 if reset == "none" else 1.0)
        y = (drive * torch.rand(steps, batch, units) - 0.1).to(torch.bfloat16 if number // 2 % 2 else torch.float32)
        hidden = [0.5 * torch.rand(batch, units) for _ in range(1 if neuron == "lif" else 2)]
        decays = [constant(number, low, high, units) for low, high in ((0.6, 0.9), (0.4, 0.8))]
        threshold = constant(number + number // 4, 0.9, 1.3, units)
        constants = NeuronConstants(decays[0], threshold, reset, ArcTan(), 0.05)
        if neuron == "alif":
            rise = constant(number, 0.1, 0.3, units)
            constants = constants._replace(decay_adaptation=decays[1], adaptation=rise)
        if neuron == "cuba_lif":
            constants = constants._replace(decay_synapse=decays[1])
        restarts = some_restarts(number, steps, batch)
        arguments = (laid_out(y, number), tuple(hidden), constants, restarts)
        room = [None] * 2 if number % 3 else [tuple(torch.empty(steps, *h.shape) for h in hidden) for _ in range(2)]
        reference: Any = getattr(neuron_scan, f"{neuron}_scan")
        expected, found = reference(*arguments, room[0]), dispatch.run(reference, *arguments, room[1])
        scale = float(expected[1].abs().max()) + 1.3
        slack = float(ulp(torch.tensor(scale))) / (1 - 0.9)  # one rounding a step, of which a tenth decays
        flips, same = assert_same_decisions(found[:2], expected[:2], slack)
        kept = [() if values is None else tuple(value.movedim(0, -1) for value in values) for values in room]
        for ours, theirs in zip((found[1], *found[2]), (expected[1], *expected[2]), strict=True):
            assert_close(ours[..., same], theirs[..., same])
        for ours, theirs in zip(*kept, strict=True):
            assert_close(ours[same], theirs[same])
        flipped, decided = flipped + flips, decided + expected[0].numel()
        rates += [float(expected[0].mean())] if expected[0].numel() > 100 else []
    assert max(rates) < 0.8
    assert sum(rates) / len(rates) > 0.05
    print(f"{neuron}: {flipped} of {decided} decisions differ")
    assert flipped <= 1e-4 * decided


@pytest.mark.parametrize("per", ["number", "unit"])
def test_decisions_on_the_edge(per: str) -> None:
    """Every threshold is the very membrane it meets: the twin may decide otherwise within one ulp of it, no further."""
    y, v = torch.rand(1, 16, 129) + 0.1, torch.rand(16, 129)
    decay = 0.3 if per == "number" else torch.rand(129)
    threshold = (torch.as_tensor(decay).double() * v.double() + y[0].double()).float()
    arguments = (y, (v,), NeuronConstants(decay, threshold, "soft", ArcTan()))
    expected = neuron_scan.lif_scan(*arguments)
    found = dispatch.run(neuron_scan.lif_scan, *arguments)
    assert bool((expected[1].abs() <= ulp(threshold)).all())
    flips, _ = assert_same_decisions(found[:2], expected[:2], ulp(threshold))
    print(f"on the edge, one constant per {per}: {flips} of {y.numel()} decisions differ")
    assert 0 < flips < y.numel() / 2  # the interpreter rounds twice where torch rounds once, so some do
    assert float(expected[0].mean()) > 0.2


@pytest.mark.parametrize("reset", RESETS)
def test_decisions_where_nothing_is_rounded(reset: str) -> None:
    """On multiples of 2^-10 every sum is exact, u = 0 included, which fires: nothing may differ."""
    y, v = torch.randint(0, 8, (4, 8, 63)) / 8, torch.randint(0, 8, (8, 63)) / 8
    arguments = (y, (v,), NeuronConstants(0.5, 1.0, reset, ArcTan()))
    expected, found = neuron_scan.lif_scan(*arguments), dispatch.run(neuron_scan.lif_scan, *arguments)
    assert int((expected[1] == 0).sum()) > 20
    assert bool((expected[0][expected[1] == 0] == 1).all())
    for ours, theirs in zip((*found[:2], *found[2]), (*expected[:2], *expected[2]), strict=True):
        assert torch.equal(ours, theirs)


def test_a_state_below_the_limit_is_flushed_and_nan_stays() -> None:
    v = torch.tensor([[4e-30, 1.0, torch.nan]])
    constants = NeuronConstants(0.5, 2.0, "soft", ArcTan())
    *_, (found,) = dispatch.run(neuron_scan.lif_scan, torch.zeros(3, 1, 3), (v,), constants)
    assert found[0, :2].tolist() == [0.0, 0.125]
    assert bool(found[0, 2].isnan())


@pytest.mark.parametrize(
    "surrogate", [*(make() for make in SURROGATES.values()), Constant(0.3), ArcTan(alpha=5.0)], ids=str
)
def test_surrogate_derivatives(surrogate: Surrogate) -> None:
    for shape, dtype in (((129, 3), torch.float32), ((1,), torch.bfloat16), ((63, 2, 2), torch.float32)):
        u, signals = 2 * torch.randn(shape), torch.randn(shape).to(dtype)
        expected = cut_gradient(signals, u, surrogate)
        assert float(expected.abs().max()) > 0 or u.numel() == 1
        strided = dispatch.run(cut_gradient, signals.movedim(0, -1), u.movedim(0, -1), surrogate)
        assert_close(strided, expected.movedim(0, -1))
        gate = dispatch.run(spike_gate, u.movedim(0, -1), surrogate)
        assert_close(gate, spike_gate(u, surrogate).movedim(0, -1))


@pytest.mark.parametrize("leak", LEAKS, ids=["H1", "H2", "H3"])
def test_leak_scan_and_roll(leak: LeakTransition) -> None:
    for number, (steps, batch, inputs) in a_third_of_cases(len(leak.drive)):
        x = torch.randn(steps, batch, inputs).to(torch.bfloat16 if number // 2 % 2 else torch.float32)
        restarts = some_restarts(number, steps, batch)
        traces = torch.rand(len(leak.drive), batch, inputs) if number % 2 else None
        expected = chunk.scan_leak(x.float(), leak, restarts)
        found = dispatch.run(chunk.scan_leak, laid_out(x, number), leak, restarts)
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs)
        rolled = chunk.roll_leak_trace(traces, x.float(), leak, restarts)
        assert_close(dispatch.run(chunk.roll_leak_trace, traces, laid_out(x, number), leak, restarts), rolled)
    assert float(rolled.abs().max()) > 0


@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_gated_scan(hidden: int) -> None:
    for number, (steps, batch, units) in a_third_of_cases(hidden):
        dtype = torch.bfloat16 if number // 2 % 2 else torch.float32
        sides = ((hidden, hidden), (hidden,), (hidden,), ())
        parts = [torch.rand(*side, batch, steps, units).transpose(-3, -2) / hidden for side in sides]
        jacobian = Jacobian(*parts)
        signals = torch.randn(steps, batch, units).to(dtype)
        restarts = some_restarts(number, steps, batch)
        expected = chunk.scan_chunk(jacobian, signals.float(), restarts)
        found = dispatch.run(chunk.scan_chunk, jacobian, laid_out(signals, number), restarts)
        assert float(expected[1].abs().max()) > 0 or restarts is not None
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs)


@pytest.mark.parametrize("kind", ["H1", "H2", "H2 with a part of all units"])
def test_fold(kind: str) -> None:
    hidden = 1 if kind == "H1" else 2
    for number, (steps, batch, units, inputs) in FOLDS:
        x = (torch.rand(steps, batch, inputs) < 0.3).to(torch.bfloat16 if number // 2 % 2 else torch.float32)
        product, weights = torch.rand(hidden, hidden, batch, units), torch.randn(hidden, steps, batch, units)
        widths = [1 if kind.endswith("units") and row == 0 else units for row in range(hidden)]
        parts = None if number % 3 == 0 else [torch.rand(batch, width, inputs) for width in widths]
        if parts is not None and number % 2:  # rows that begin where a cache line does
            parts = [chunk_roll.empty_eligibility(1, part.shape[:2], inputs, part)[0].copy_(part) for part in parts]
        copies = None if parts is None else [part.clone() for part in parts]
        expected = chunk_roll.roll_eligibility(copies, product, weights, x.float())
        found = dispatch.run(chunk_roll.roll_eligibility, parts, product, weights, laid_out(x, number))
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs)
        if parts is not None:
            assert all(ours is part for ours, part in zip(found, parts, strict=True))


@pytest.mark.parametrize("name", TWINS_OF)
def test_a_learner_runs_on_the_kernels_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing falls back, since `triton` is chosen; gradients and losses are those of the references."""
    monkeypatch.setattr(dispatch, "_said", set())
    found = learned(name)
    ran = {function for function, path, _ in dispatch._said if path == "triton"}
    assert ran == TWINS_OF[name]
    with dispatch.use("reference"):
        expected = learned(name)
    for ours, theirs in zip(found, expected, strict=True):
        assert float(theirs.abs().max()) > 0
        assert_close(ours, theirs)
