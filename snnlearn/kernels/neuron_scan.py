"""Twins of `snnlearn.functional.neuron_scan`: one pass over the inputs of a chunk, the state in registers.

Each program takes a block of units through all steps. Products and sums fuse where torch's do, so that on a GPU the
spikes are those of the reference; where they are rounded otherwise (Triton's interpreter rounds twice where the CPU
rounds once) a decision may differ if u is within rounding of zero.
"""

from dataclasses import astuple

import torch
from torch import Tensor

from snnlearn.functional.chunk import Restarts
from snnlearn.functional.dynamics import RESETS, Decay, State, check_reset
from snnlearn.functional.neuron_scan import NeuronConstants
from snnlearn.functional.surrogates import SURROGATES, Constant, Surrogate
from snnlearn.kernels.language import FP_FUSION, constexpr, jit, tl, triton
from snnlearn.kernels.layout import (
    FLUSH,
    block_of,
    by_row,
    constant_of,
    flushed,
    kept_dtype,
    marked,
    marks,
    per_element,
)

BLOCK = 256
NEURONS = ("lif", "alif", "cuba_lif")
BUMPS = {**SURROGATES, "constant": Constant}
"""Every surrogate that `psi` knows, by name."""


@jit
def store(v_at, other_at, v, other, inside, NEURON: constexpr):  # type: ignore[no-untyped-def]
    """Write the membrane, and the other hidden value of a neuron that has one."""
    tl.store(v_at, v, mask=inside)
    if NEURON > 0:
        tl.store(other_at, other, mask=inside)


@jit
def after_spike(v, spike, threshold, RESET: constexpr):  # type: ignore[no-untyped-def]
    """Return the membrane after the reset."""
    if RESET == 0:
        v = v - spike * threshold
    if RESET == 1:
        v = v - v * spike
    return v


@jit
def neuron_scan_kernel(  # type: ignore[no-untyped-def]
    y_at, v_at, other_at, spikes_at, u_at, v_kept_at, other_kept_at, restarts_at,
    decay, other_decay, adaptation, threshold, initial,
    steps, rows, units, y_step, y_row, y_unit, limit,
    NEURON: constexpr, RESET: constexpr, RESTARTS: constexpr, KEEP: constexpr, DECAY_IS_TENSOR: constexpr,
    OTHER_IS_TENSOR: constexpr, ADAPTATION_IS_TENSOR: constexpr, THRESHOLD_IS_TENSOR: constexpr,
    INITIAL_IS_TENSOR: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """Take a block of units through all steps; NEURON 0 is LIF, 1 ALIF, 2 CUBA-LIF; RESET counts as RESETS does."""
    total = rows * units
    element, row, unit, inside = block_of(total, units, BLOCK)
    y_at += row * y_row + unit * y_unit
    v = tl.load(v_at + element, mask=inside, other=0.0)
    other = v
    if NEURON > 0:
        other = tl.load(other_at + element, mask=inside, other=0.0)
    decay = constant_of(decay, element, inside, DECAY_IS_TENSOR)
    other_decay = constant_of(other_decay, element, inside, OTHER_IS_TENSOR)
    adaptation = constant_of(adaptation, element, inside, ADAPTATION_IS_TENSOR)
    threshold = constant_of(threshold, element, inside, THRESHOLD_IS_TENSOR)
    initial = constant_of(initial, element, inside, INITIAL_IS_TENSOR)
    for _ in range(steps):
        charge = tl.load(y_at, mask=inside, other=0.0).to(tl.float32)
        if RESTARTS:
            fresh = marked(restarts_at, row, inside)
            v = tl.where(fresh, initial, v)
            other = tl.where(fresh, 0.0, other)
            restarts_at += rows
        if KEEP:
            store(v_kept_at + element, other_kept_at + element, v, other, inside, NEURON)
            v_kept_at, other_kept_at = v_kept_at + total, other_kept_at + total
        if NEURON == 2:
            other = tl.fma(other, other_decay + tl.zeros_like(other), charge)
            charge = other
        v = tl.fma(v, decay + tl.zeros_like(v), charge)
        u = v - threshold
        if NEURON == 1:
            u = u - adaptation * other
        spike = (u >= 0.0).to(tl.float32)
        tl.store(spikes_at + element, spike, mask=inside)
        tl.store(u_at + element, u, mask=inside)
        v = after_spike(v, spike, threshold, RESET)
        if NEURON == 1:
            other = tl.fma(other, other_decay + tl.zeros_like(other), spike)
        v, other = flushed(v, limit), flushed(other, limit)
        y_at, spikes_at, u_at = y_at + y_step, spikes_at + total, u_at + total
    store(v_at + element, other_at + element, v, other, inside, NEURON)


def lif_scan(
    y: Tensor, state: State, constants: NeuronConstants, restarts: Restarts = None, entering: State | None = None
) -> tuple[Tensor, Tensor, State]:
    """Return what `snnlearn.functional.neuron_scan.lif_scan` does."""
    kept = None if entering is None else entering * 2
    spikes, u, v, _ = _scan(0, y, state, 0.0, constants, restarts, kept)
    return spikes, u, (v,)


def alif_scan(
    y: Tensor, state: State, constants: NeuronConstants, restarts: Restarts = None, entering: State | None = None
) -> tuple[Tensor, Tensor, State]:
    """Return what `snnlearn.functional.neuron_scan.alif_scan` does."""
    spikes, u, *after = _scan(1, y, state, constants.decay_adaptation, constants, restarts, entering)
    return spikes, u, tuple(after)


def cuba_lif_scan(
    y: Tensor, state: State, constants: NeuronConstants, restarts: Restarts = None, entering: State | None = None
) -> tuple[Tensor, Tensor, State]:
    """Return what `snnlearn.functional.neuron_scan.cuba_lif_scan` does."""
    kept = None if entering is None else entering[::-1]
    spikes, u, v, current = _scan(2, y, state[::-1], constants.decay_synapse, constants, restarts, kept)
    return spikes, u, (current, v)


def _scan(
    neuron: int,
    y: Tensor,
    state: State,
    other_decay: Decay,
    given: NeuronConstants,
    restarts: Restarts,
    kept: State | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the spikes, u, the membrane and the other hidden value, in fresh tensors.

    `state` and `kept` have the membrane first; a LIF's is given back in the other's place too.
    """
    check_reset(given.reset)
    spikes = torch.empty(y.shape, dtype=torch.float32, device=y.device)
    u = torch.empty_like(spikes)
    fresh = [value.expand(y.shape[1:]).clone(memory_format=torch.contiguous_format) for value in state]
    v, other = fresh[0], fresh[-1]
    seen = by_row(y)
    rows, units = seen.shape[1:]
    in_order = (given.decay, other_decay, given.adaptation, given.threshold, given.initial_membrane)
    constants = [per_element(value, v) for value in in_order]
    flags = [isinstance(value, Tensor) for value in constants]
    neuron_scan_kernel[(triton.cdiv(rows * units, BLOCK),)](
        seen, v, other, spikes, u, *(kept or (u, u)), marks(restarts, v),
        *constants, len(y), rows, units, *seen.stride(), FLUSH,
        neuron, RESETS.index(given.reset), restarts is not None, kept is not None, *flags, BLOCK,
        enable_fp_fusion=FP_FUSION,
    )  # fmt: skip
    return spikes, u, v, other


@jit
def density(u, mean, sigma):  # type: ignore[no-untyped-def]
    """Return the normal density N(u; mean, sigma^2)."""
    z = (u - mean) / sigma
    return tl.exp(-0.5 * z * z) / (sigma * 2.5066282746310002)


@jit
def psi(u, first, second, third, BUMP: constexpr):  # type: ignore[no-untyped-def]
    """Return psi(u) of the surrogate whose place in BUMPS is BUMP and whose fields are the three numbers."""
    value = tl.zeros_like(u) + first
    if BUMP == 0:
        value = 1.0 / (2.0 / first + 4.934802200544679 * first * (u * u))
    if BUMP == 1:
        value = first * tl.sigmoid(first * u) * tl.sigmoid(-first * u)
    if BUMP == 2:
        value = tl.maximum(1.0 - tl.abs(u) / first, 0.0, propagate_nan=tl.PropagateNan.ALL) / first
    if BUMP == 3:
        value = (tl.abs(u) < first / 2.0).to(tl.float32) / first
    if BUMP == 4:
        root = 1.0 + first * tl.abs(u)
        value = 1.0 / (root * root)
    if BUMP == 5:
        value = density(u, 0.0, first)
    if BUMP == 6:
        flanks = density(u, first, second * first) + density(u, -first, second * first)
        value = (1.0 + third) * density(u, 0.0, first) - third * flanks
    return value


@jit
def cut_gradient_kernel(  # type: ignore[no-untyped-def]
    signals_at, u_at, out_at, total, first, second, third, SIGNALS: constexpr, BUMP: constexpr, BLOCK: constexpr
):
    """Write psi(u), times the signal where there is one, for a block of elements."""
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = element < total
    u = tl.load(u_at + element, mask=inside, other=0.0).to(tl.float32)
    value = psi(u, first, second, third, BUMP)
    if SIGNALS:
        value = tl.load(signals_at + element, mask=inside, other=0.0).to(tl.float32) * value
    tl.store(out_at + element, value, mask=inside)


def cut_gradient(signals: Tensor, u: Tensor, surrogate: Surrogate) -> Tensor:
    """Return what `snnlearn.functional.cut_step.cut_gradient` does, in float32."""
    signals, u = torch.broadcast_tensors(signals, u)
    return _bump(signals.contiguous(), u.contiguous(), surrogate)


def spike_gate(u: Tensor, surrogate: Surrogate) -> Tensor:
    """Return what `snnlearn.functional.cut_step.spike_gate` does, in float32."""
    return _bump(None, u.contiguous(), surrogate)


def _bump(signals: Tensor | None, u: Tensor, surrogate: Surrogate) -> Tensor:
    kind = [type(surrogate) is known for known in BUMPS.values()].index(True)
    first, second, third, *_ = (*map(float, astuple(surrogate)), 0.0, 0.0)
    out = torch.empty(u.shape, dtype=kept_dtype(u.dtype), device=u.device)
    cut_gradient_kernel[(triton.cdiv(u.numel(), BLOCK),)](
        u if signals is None else signals, u, out, u.numel(), first, second, third, signals is not None, kind, BLOCK,
        enable_fp_fusion=FP_FUSION,
    )  # fmt: skip
    return out


def _graded(surrogate: Surrogate) -> str:
    """Return why the kernels cannot fire like this surrogate, or nothing."""
    if surrogate.smooth or type(surrogate).fire is not Surrogate.fire:
        return f"{surrogate}: its spikes are graded, and the kernels fire zero or one"
    return ""


def _scan_obstacle(
    y: Tensor, state: State, constants: NeuronConstants, restarts: Restarts = None, entering: State | None = None
) -> str:
    for value in (*state, *(entering or ())):
        if value.dtype != torch.float32:
            return f"a state in {value.dtype}: the kernels keep it in float32"
    if not all(value.is_contiguous() for value in entering or ()):
        return "room for the entering state that is not contiguous: it is written in place"
    return _graded(constants.surrogate) if y.numel() else "there is nothing to scan"


def _gradient_obstacle(signals: Tensor, u: Tensor, surrogate: Surrogate) -> str:
    return _gate_obstacle(u, surrogate)


def _gate_obstacle(u: Tensor, surrogate: Surrogate) -> str:
    if type(surrogate) not in BUMPS.values():
        return f"{surrogate}: the kernels know {', '.join(BUMPS)}"
    return "" if u.numel() else "there is nothing to scan"


OBSTACLES = {
    "alif_scan": _scan_obstacle,
    "cuba_lif_scan": _scan_obstacle,
    "cut_gradient": _gradient_obstacle,
    "lif_scan": _scan_obstacle,
    "spike_gate": _gate_obstacle,
}
"""Why each twin here cannot run on its arguments, as a function of them; nothing where it can."""

__all__ = ["BUMPS", "NEURONS", "OBSTACLES", "alif_scan", "cuba_lif_scan", "cut_gradient", "lif_scan", "spike_gate"]
