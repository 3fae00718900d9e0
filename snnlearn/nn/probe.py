"""Find out by differentiation what a neuron's step is made of: its constant part, and what else there is."""

from collections.abc import Callable
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from snnlearn.functional.dynamics import Jacobian, LeakTransition, State, forward_derivative, jacobian_of
from snnlearn.functional.surrogates import SURROGATES, Constant, Surrogate
from snnlearn.functional.traced_step import DirectDerivative

if TYPE_CHECKING:
    from snnlearn.nn.neuron import Neuron

Result = TypeVar("Result")
SAMPLES = 16
STEP_NAMES = ("step", "step_with", "spike")
"""What a neuron's step is made of."""


def is_outdated(neuron: "Neuron", *methods: str) -> bool:
    """Say whether `methods`, which describe the step, were written for one that a subclass or the instance replaced.

    >>> from snnlearn.nn import LIF
    >>> class Faded(LIF):
    ...     def step(self, y, state):
    ...         return super().step(y, (0.9 * state[0],))
    >>> is_outdated(LIF(), "jacobian"), is_outdated(Faded(), "jacobian")
    (False, True)
    """
    below = list(takewhile(lambda kind: vars(kind).keys().isdisjoint(methods), type(neuron).__mro__))
    replaced = any(name in vars(kind) for kind in below for name in STEP_NAMES)
    called = type(neuron.surrogate).__call__ is not Surrogate.__call__
    return replaced or called or not neuron.__dict__.keys().isdisjoint(STEP_NAMES)


def leak_of(neuron: "Neuron") -> LeakTransition:
    """Return the neuron's `leak_transition`, derived anew where it was written for another step.

    >>> from snnlearn.nn import LIF
    >>> leak_of(LIF(decay=0.5)).transition
    ((0.5,),)
    """
    outdated = is_outdated(neuron, "leak_transition")
    return probe_leak(neuron, neuron.unit_shape) if outdated else neuron.leak_transition()


def caveats_of(neuron: "Neuron") -> list[str]:
    """Return the neuron's `leak_caveats`, derived anew where they were written for another step.

    >>> from snnlearn.nn import LIF
    >>> caveats_of(LIF(decay=0.5))
    []
    """
    outdated = is_outdated(neuron, "leak_caveats", "leak_transition")
    return probe_caveats(neuron, neuron.unit_shape) if outdated else neuron.leak_caveats()


def jacobian_at(neuron: "Neuron", y: Tensor, state: State) -> Jacobian:
    """Return the neuron's `jacobian` at (y, state), by differentiation where it was written for another step.

    >>> from snnlearn.nn import LIF
    >>> jacobian_at(LIF(decay=0.5), torch.zeros(1, 1), (torch.zeros(1, 1),)).transition.flatten()
    tensor([0.5000])
    """
    return jacobian_of(neuron.step, y, state) if is_outdated(neuron, "jacobian") else neuron.jacobian(y, state)


def probe_leak(neuron: "Neuron", unit_shape: tuple[int, ...]) -> LeakTransition:
    """Return the constant part of a neuron's step: its derivative at rest, with all paths through the spike cut.

    `unit_shape` the shape of one sample. Where units differ the mean stands for them. Raises ValueError when the
    input does not reach the spike within the step, since dL/dy is then zero and no trace could learn from it,
    or when one unit's state depends on another's, since a trace belongs to one unit.

    >>> from snnlearn.nn import LIF
    >>> probe_leak(LIF(decay=0.5), (3,)).transition
    ((0.5,),)
    """
    refuse_mixing(neuron, unit_shape)
    random, name = _random_point(neuron, unit_shape), type(neuron).__name__
    point = tuple(torch.zeros_like(value) for value in random)
    if _number(_jacobian(neuron, Constant(1.0), point).spike_input) == 0.0:
        point = random  # a step that is flat at rest is taken where it is not
    silent, open_ = _jacobian(neuron, Constant(0.0), point), _jacobian(neuron, Constant(1.0), point)
    spike_by_input = _number(open_.spike_input)
    if spike_by_input == 0.0:
        raise ValueError(
            f"{name}: the input y does not reach the spike within one step, so dL/dy is zero and a trace rule cannot "
            f"learn; fire from the membrane after y was added, or attach BPTT()"
        )
    hidden = len(neuron.state_names)
    matrix = [[_number(silent.transition[i, j]) for j in range(hidden)] for i in range(hidden)]
    drive = [_number(silent.drive[i]) for i in range(hidden)]
    reads = [_number(open_.spike_state[j]) / spike_by_input for j in range(hidden)]
    return _with_readout(matrix, drive, reads)


def refuse_mixing(neuron: "Neuron", unit_shape: tuple[int, ...]) -> None:
    """Raise ValueError when one unit's step depends on another's, since a trace belongs to one unit.

    >>> from snnlearn.nn import LIF
    >>> refuse_mixing(LIF(decay=0.5), (3,))
    """
    if _is_known_to_be_elementwise(neuron):
        return
    random = _random_point(neuron, unit_shape)
    for surrogate in (neuron.surrogate, Constant(1.0)):
        if _with_surrogate(neuron, surrogate, lambda: _mixes_units(neuron, *random)):
            raise ValueError(
                f"{type(neuron).__name__}.step mixes units or samples: each unit's spike and state may depend on its "
                f"own input and state alone, since a trace belongs to one unit; move the mixing into a connection, or "
                f"attach SLTT() or BPTT(). A step that writes to y or state in place, keeps a value outside its state, "
                f"or casts to a coarser number is found here too: return new values, all that lasts in the state"
            )


def _is_known_to_be_elementwise(neuron: "Neuron") -> bool:
    """Whether a built-in neuron is as it was written: its class, its step on the instance, its surrogate."""
    plain = neuron.__dict__.keys().isdisjoint(STEP_NAMES)
    return plain and vars(type(neuron)).get("elementwise", False) and type(neuron.surrogate) in SURROGATES.values()


def parameter_derivatives(neuron: "Neuron", y: Tensor, state: State) -> tuple[DirectDerivative, ...]:
    """Return how the step at (y, state) depends on each of the neuron's own parameters at once, per unit.

    `y` and each of `state` [B, *units]; forward mode along ones, so a parameter is one number or one per unit.

    >>> from snnlearn.nn import LIF
    >>> parameter_derivatives(LIF(), torch.zeros(1, 2), (torch.zeros(1, 2),))
    ()
    """

    def stepped() -> tuple[Tensor, ...]:
        spike, after = neuron.step(y, state)
        return (spike, *after)

    found = _along_each_parameter(neuron, y.shape, stepped)
    return tuple(DirectDerivative(spike, torch.stack(after)) for spike, *after in found)


def initial_derivatives(neuron: "Neuron", y: Tensor) -> tuple[Tensor, ...]:
    """Return how the state before the first step, that of y [B, *units], depends on each of the neuron's parameters.

    One [K, B, *units] per parameter, K hidden values; forward mode along ones, as `parameter_derivatives`.

    >>> from snnlearn.nn import LIF
    >>> initial_derivatives(LIF(learn=("decay", "initial_membrane")), torch.zeros(1, 1))
    (tensor([[[1.]]]), tensor([[[0.]]]))
    """
    return tuple(
        torch.stack(list(parts)) for parts in _along_each_parameter(neuron, y.shape, lambda: neuron.initial_state(y))
    )


def _along_each_parameter(
    neuron: "Neuron", shape: torch.Size, function: Callable[[], tuple[Tensor, ...]]
) -> list[tuple[Tensor, ...]]:
    """Differentiate what `function` computes of the neuron along ones in each parameter, each result of `shape`."""
    found = []
    for name, parameter in list(neuron.named_parameters()):
        *path, leaf = name.split(".")
        owner = neuron.get_submodule(".".join(path))._parameters

        def replaced(value: Tensor, owner: dict[str, Any] = owner, leaf: str = leaf) -> tuple[Tensor, ...]:
            kept, owner[leaf] = owner[leaf], value
            try:
                return function()
            finally:
                owner[leaf] = kept

        parts = forward_derivative(replaced, [parameter], [torch.ones_like(parameter)])
        wide = torch.broadcast_shapes(shape, *(part.shape for part in parts))
        found.append(tuple(part.broadcast_to(wide) for part in parts))
    return found


def probe_caveats(neuron: "Neuron", unit_shape: tuple[int, ...]) -> list[str]:
    """Return why the constant part of a neuron's step is not the whole of it, found at random states.

    >>> from snnlearn.nn import LIF
    >>> probe_caveats(LIF(decay=0.5), (3,))
    []
    """
    y, *state = _random_point(neuron, unit_shape)
    jacobian = jacobian_at(neuron, y, tuple(state))
    hidden = len(neuron.state_names)
    parts = torch.cat([jacobian.transition.flatten(0, 1), jacobian.drive]).detach()
    parts = parts.reshape(hidden * hidden + hidden, SAMPLES, -1)
    caveats = []
    if float((parts - parts[:, :1]).abs().max()) > 1e-12:
        caveats.append("the neuron's Jacobian changes with its state: the factored trace follows its value at rest")
    elif float((parts - parts[..., :1]).abs().max()) > 1e-12:
        caveats.append("the neuron's constants differ per unit: the factored trace follows their mean")
    return caveats


def _random_point(neuron: "Neuron", unit_shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    constants = list(chain(neuron.parameters(), neuron.buffers()))
    device = constants[0].device if constants else torch.device("cpu")
    generator = torch.Generator().manual_seed(0)
    draws = 2 * torch.randn(1 + len(neuron.state_names), SAMPLES, *unit_shape, dtype=torch.float64, generator=generator)
    return tuple(draws.to(device).unbind())


def _jacobian(neuron: "Neuron", surrogate: Surrogate, point: tuple[Tensor, ...]) -> Jacobian:
    return _with_surrogate(neuron, surrogate, lambda: jacobian_of(neuron.step, point[0], point[1:]))


def _mixes_units(neuron: "Neuron", y: Tensor, *state: Tensor) -> bool:
    """Compare a derivative along random weights with the weighted one along ones: equal if each unit is alone."""
    inputs = (y, *state)

    def flat(*values: Tensor) -> tuple[Tensor, ...]:
        spike, after = neuron.step(values[0], values[1:])
        return (spike, *after)

    weights = torch.rand(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1)).to(y.device) + 0.5
    along = [forward_derivative(flat, inputs, [t * torch.ones_like(y) for _ in inputs]) for t in (weights, 1.0)]
    return any(
        float((mixed - weights * plain).detach().abs().max()) > 1e-9 for mixed, plain in zip(*along, strict=True)
    )


def _with_surrogate(neuron: "Neuron", surrogate: Surrogate, run: Callable[[], Result]) -> Result:
    kept, neuron.surrogate = neuron.surrogate, surrogate
    try:
        return run()
    finally:
        neuron.surrogate = kept


def _number(values: Tensor) -> float:
    """Return the value all units share, or their mean when they differ (which `probe_caveats` reports)."""
    return float(values.detach().double().mean())


def _with_readout(matrix: list[list[float]], drive: list[float], reads: list[float]) -> LeakTransition:
    """Add the readout c with c @ matrix = reads and c @ drive = 1, or a row of its own when there is none."""
    system = torch.tensor([[*row, d] for row, d in zip(matrix, drive, strict=True)], dtype=torch.float64).T
    goal = torch.tensor([*reads, 1.0], dtype=torch.float64)
    readout = torch.linalg.lstsq(system, goal, driver="gelsd").solution
    if torch.allclose(system @ readout, goal, rtol=0, atol=1e-12):
        rounded = [float(r.round()) if abs(r - r.round()) < 1e-9 else float(r) for r in readout]
        return LeakTransition(tuple(map(tuple, matrix)), tuple(drive), tuple(rounded))
    widened = [(*row, 0.0) for row in matrix] + [(*reads, 0.0)]
    return LeakTransition(tuple(widened), (*drive, 1.0), (*(0.0,) * len(drive), 1.0))


__all__ = [
    "STEP_NAMES",
    "caveats_of",
    "initial_derivatives",
    "is_outdated",
    "jacobian_at",
    "leak_of",
    "parameter_derivatives",
    "probe_caveats",
    "probe_leak",
    "refuse_mixing",
]
