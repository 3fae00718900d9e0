"""Constants of the built-in neurons: learned inside their range, per unit, copied, moved, reset and refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snnlearn import (
    ALIF,
    DRTRL,
    IF,
    LI,
    LIF,
    OTTT,
    SLTT,
    CubaLIF,
    ETBlock,
    ETLinear,
    Neuron,
    StateShapeError,
    attach,
    reset,
)
from snnlearn.functional import fraction_of_logit, inverse_softplus, logit_of_fraction, positive_of_softplus
from snnlearn.nn.constant import learnable_constants
from snnlearn.nn.membrane import MembraneNeuron
from snnlearn.nn.probe import initial_derivatives, parameter_derivatives

UNITS = 4
CONSTANTS: dict[type[MembraneNeuron], tuple[str, ...]] = {
    IF: ("threshold", "initial_membrane"),
    LIF: ("decay", "threshold", "initial_membrane"),
    CubaLIF: ("decay", "decay_synapse", "threshold", "initial_membrane"),
    ALIF: ("decay", "decay_adaptation", "adaptation", "threshold", "initial_membrane"),
    LI: ("decay", "initial_membrane"),
}
START = {
    "decay": 0.7,
    "decay_synapse": 0.4,
    "decay_adaptation": 0.9,
    "adaptation": 0.3,
    "threshold": 0.8,
    "initial_membrane": 0.35,
}
EACH = [(kind, name) for kind, names in CONSTANTS.items() for name in names]


def built(kind: Callable[..., Any], names: tuple[str, ...], per_unit: bool = False, learn: bool = True) -> Any:
    """A neuron with other constants than the default, given as numbers or, the named ones, per unit."""
    values: dict[str, Any] = {name: START[name] for name in CONSTANTS[kind]}  # type: ignore[index]
    for name in names:
        if per_unit:
            values[name] = values[name] * torch.linspace(0.9, 1.08, UNITS, dtype=torch.float64)
    return kind(**values, learn=names if learn else ())


def outputs(neuron: Neuron, y: Tensor) -> Tensor:
    """Outputs for y [T, B, units]."""
    reset(neuron)
    return torch.stack([neuron(y_t) for y_t in y])


@pytest.mark.parametrize("kind", CONSTANTS)
def test_what_can_be_learned(kind: type[MembraneNeuron]) -> None:
    assert sorted(learnable_constants(kind)) == sorted(CONSTANTS[kind])
    assert list(kind().parameters()) == []
    assert list(kind().state_dict()) == []
    assert kind().learned == {}
    neuron = kind(learn=CONSTANTS[kind])
    assert list(neuron.learned) == list(neuron.state_dict()) == [n for n, _ in neuron.named_parameters()]
    assert sorted(neuron.learned.values()) == sorted(CONSTANTS[kind])
    suffix = {"threshold": "_inverse_softplus", "adaptation": "_inverse_softplus", "initial_membrane": ""}
    assert all(key == name + suffix.get(name, "_logit") for key, name in neuron.learned.items())
    assert list(Neuron.learned.__get__(neuron)) == []  # what a neuron of a user's own has


@pytest.mark.parametrize("per_unit", [False, True])
@pytest.mark.parametrize(("kind", "name"), EACH)
def test_a_learned_constant_is_the_fixed_one_until_it_learns(kind: Any, name: str, per_unit: bool) -> None:
    y = torch.rand(12, 3, UNITS, dtype=torch.float64)
    fixed, learned = built(kind, (name,), per_unit, learn=False), built(kind, (name,), per_unit)
    learned.double()
    before, after = getattr(fixed, name), getattr(learned, name)
    assert isinstance(after, Tensor)
    assert tuple(after.shape) == ((UNITS,) if per_unit else ())
    torch.testing.assert_close(after.detach(), torch.as_tensor(before, dtype=torch.float64), rtol=1e-6, atol=0)
    expected = outputs(fixed, y)
    assert float(expected.mean()) > 0.02
    torch.testing.assert_close(outputs(learned, y).detach(), expected, rtol=1e-5, atol=1e-6)
    moved = copy.deepcopy(learned)
    with torch.no_grad():
        next(moved.parameters()).add_(1.0)
    assert not torch.equal(outputs(moved, y), expected)  # control: the constant matters
    if per_unit:
        assert list(fixed.state_dict()) == [name]


def range_of(name: str) -> tuple[float, float]:
    low = float("-inf") if name == "initial_membrane" else 0.0
    return low, 1.0 if name.startswith("decay") else float("inf")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "name"), EACH)
def test_no_step_of_an_optimizer_leaves_the_range(kind: Any, name: str, dtype: torch.dtype) -> None:
    low, high = range_of(name)
    for sign in (1.0, -1.0):
        neuron = built(kind, (name,), per_unit=True).to(dtype)
        (parameter,) = neuron.parameters()
        size = 1e3 if dtype == torch.float16 else 1e6
        optimizer = torch.optim.SGD([parameter], lr=size)
        parameter.grad = torch.full_like(parameter, sign)
        optimizer.step()
        value = getattr(neuron, name).detach()
        assert value.dtype == dtype
        assert bool(value.isfinite().all())
        assert bool((value > low).all()), value
        assert bool((value < high).all()), value
        y = torch.rand(6, 2, UNITS).to(dtype)
        loss = outputs(neuron, y).sum()
        loss.backward()
        assert bool(loss.isfinite())
        if dtype != torch.float16:  # its largest number is 65504, which the square of u passes
            assert bool(parameter.grad.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_maps_are_inverse_and_stay_inside_at_both_ends(dtype: torch.dtype) -> None:
    inside = torch.tensor([1e-6, 0.1, 0.5, 0.99], dtype=dtype)
    torch.testing.assert_close(fraction_of_logit(logit_of_fraction(inside)), inside)
    positive = torch.tensor([1e-6, 0.1, 1.0, 30.0, 80.0], dtype=dtype)
    torch.testing.assert_close(positive_of_softplus(inverse_softplus(positive)), positive)
    ends = torch.tensor([-torch.inf, torch.inf], dtype=dtype)
    low, high = fraction_of_logit(ends).tolist()
    assert 0 < low < high < 1
    low, high = positive_of_softplus(ends).tolist()
    assert 0 < low < high < float("inf")
    assert torch.sigmoid(ends)[1] == 1  # control: the plain map leaves the range


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("how", ["soft", "hard", "none"])
@pytest.mark.parametrize("per_unit", [False, True])
@pytest.mark.parametrize("kind", CONSTANTS)
def test_derivatives_by_hand_are_those_of_forward_mode(kind: Any, per_unit: bool, how: str, detach: bool) -> None:
    neuron = built(kind, CONSTANTS[kind], per_unit).double()
    if kind is not LI:
        neuron.reset_kind, neuron.detach_reset = how, detach
    y = torch.randn(5, UNITS, dtype=torch.float64)
    state = tuple(torch.randn_like(y) for _ in neuron.state_names)
    mine, true = neuron.direct_derivatives(y, state), parameter_derivatives(neuron, y, state)
    starts = dict(zip(neuron.learned, initial_derivatives(neuron, y), strict=True))
    assert len(mine) == len(true) == len(CONSTANTS[kind])
    for (name, constant), one, other in zip(neuron.learned.items(), mine, true, strict=True):
        torch.testing.assert_close(one.spike, other.spike, rtol=1e-12, atol=1e-14, msg=name)
        torch.testing.assert_close(one.state, other.state, rtol=1e-12, atol=1e-14, msg=name)
        start = starts[name]
        assert torch.equal(start if one.initial is None else one.initial, start)
        assert bool(start.any()) is (one.initial is not None) is (constant == "initial_membrane")
        assert bool(other.state.any() or other.spike.any()) is (constant != "initial_membrane")


def test_a_step_of_a_users_own_is_differentiated_anew() -> None:
    """A subclass that changes the step or adds a parameter is not described by the hand-written derivatives."""

    class Faded(LIF):
        def step(self, y: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
            return super().step(y, (0.5 * state[0],))

    class Scaled(LIF):
        def __init__(self) -> None:
            super().__init__(learn=("decay",))
            self.gain = nn.Parameter(torch.tensor(2.0))

        def step(self, y: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
            return super().step(self.gain * y, state)

    y = torch.rand(2, 3)
    state = (torch.rand(2, 3),)
    by_decay = LIF(learn=("decay",)).direct_derivatives(y, state)[0].state
    assert not torch.allclose(Faded(learn=("decay",)).direct_derivatives(y, state)[0].state, by_decay)
    assert len(Scaled().direct_derivatives(y, state)) == 2


# The membrane before the first step.


@pytest.mark.parametrize("learn", [(), ("initial_membrane",)])
@pytest.mark.parametrize("per_unit", [False, True])
@pytest.mark.parametrize("kind", CONSTANTS)
def test_rows_restart_at_the_initial_membrane(kind: Any, per_unit: bool, learn: tuple[str, ...]) -> None:
    start = torch.linspace(0.1, 0.4, UNITS) if per_unit else 0.3
    neuron, fresh = (kind(initial_membrane=start, learn=learn) for _ in range(2))
    y = torch.rand(6, 3, UNITS)
    for y_t in y[:3]:
        neuron(y_t)
    rows = torch.tensor([False, True, False])
    kept = [value.detach().clone() for value in neuron.state]
    reset(neuron, rows)
    place = neuron.state_names.index("v")
    for index, (value, old) in enumerate(zip(neuron.state, kept, strict=True)):
        assert torch.equal(value[~rows], old[~rows])
        expected = torch.as_tensor(start).expand(UNITS) if index == place else torch.zeros(UNITS)
        assert torch.equal(value[rows][0].detach(), expected)
    for y_t in y[3:]:
        assert torch.equal(neuron(y_t)[1:2], fresh(y_t[1:2]))
    with pytest.raises(StateShapeError, match="mask of shape"):
        reset(neuron, torch.tensor([True]))
    reset(neuron)
    assert neuron.state is None


def test_a_custom_start_is_kept_by_rows_too() -> None:
    class Charged(Neuron):
        state_names = ("v",)

        def step(self, y: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
            v = 0.5 * state[0] + y
            return self.spike(v - 1), (v,)

        def initial_state(self, y: Tensor) -> tuple[Tensor, ...]:
            return (torch.full_like(y, 0.7),)

    neuron = Charged()
    neuron(torch.zeros(2, 1))
    reset(neuron, torch.tensor([True, False]))
    assert neuron.state is not None
    torch.testing.assert_close(neuron.state[0].flatten(), torch.tensor([0.7, 0.35]))


@pytest.mark.parametrize("kind", CONSTANTS)
def test_where_the_eligibility_of_the_initial_membrane_starts(kind: Any) -> None:
    neuron = kind(learn=CONSTANTS[kind])
    y = torch.zeros(2, UNITS)
    found = neuron.initial_derivatives(y)
    assert len(found) == len(CONSTANTS[kind])
    for name, derivative in zip(neuron.learned.values(), found, strict=True):
        assert derivative.shape == (len(neuron.state_names), 2, UNITS)
        expected = torch.zeros_like(derivative)
        if name == "initial_membrane":
            expected[neuron.state_names.index("v")] = 1
        assert torch.equal(derivative, expected)
    assert initial_derivatives(kind(), y) == ()


# Copies, files, casts, repr.


@pytest.mark.parametrize("per_unit", [False, True])
@pytest.mark.parametrize("kind", CONSTANTS)
def test_copies_files_and_casts(kind: Any, per_unit: bool) -> None:
    names = CONSTANTS[kind]
    neuron = built(kind, names, per_unit)
    with torch.no_grad():
        for parameter in neuron.parameters():
            parameter.add_(0.2)
    y = torch.rand(8, 3, UNITS)
    expected = outputs(neuron, y).detach()
    copied, loaded = copy.deepcopy(neuron), built(kind, names, per_unit)
    unpickled = pickle.loads(pickle.dumps(neuron))  # noqa: S301
    loaded.load_state_dict(neuron.state_dict())
    for other in (copied, unpickled, loaded):
        assert torch.equal(outputs(other, y), expected)
        assert repr(other) == repr(neuron)
    with torch.no_grad():
        next(copied.parameters()).add_(1.0)
    assert torch.equal(outputs(neuron, y), expected)  # a copy has parameters of its own
    neuron.double()
    assert all(getattr(neuron, name).dtype == torch.float64 for name in names)
    with pytest.raises(RuntimeError, match="Missing key"):
        neuron.load_state_dict({})


def test_repr_prints_the_values_in_effect() -> None:
    neuron = LIF(decay=0.5, threshold=[0.5, 1.5], initial_membrane=0.25, learn=("decay",))
    assert "decay=0.5 (learned), threshold=0.5..1.5 per unit [2], initial_membrane=0.25, reset" in repr(neuron)
    with torch.no_grad():
        neuron.get_parameter("decay_logit").fill_(1.0)
    assert "decay=0.731059 (learned)" in repr(neuron)
    assert "LI(decay=0.5 (learned))" in repr(LI(learn=["decay"]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", CONSTANTS)
def test_everything_follows_the_dtype_of_the_input(kind: Any, dtype: torch.dtype) -> None:
    for learn in (True, False):
        neuron = built(kind, CONSTANTS[kind], per_unit=True, learn=learn)
        output = outputs(neuron, torch.rand(4, 2, UNITS).to(dtype))
        assert output.dtype == dtype
        assert all(value.dtype == dtype for value in neuron.state)


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("how", ["soft", "hard", "none"])
@pytest.mark.parametrize("kind", [IF, LIF, CubaLIF, ALIF])
def test_threshold_and_adaptation_per_unit(kind: Any, how: str, detach: bool) -> None:
    """Each unit is a neuron of its own; the gradient too."""
    y = (torch.rand(10, 3, 2, dtype=torch.float64) * 1.2).requires_grad_()
    thresholds, adaptations = [0.6, 0.9], [0.1, 0.5]

    def of(threshold: Any, adaptation: Any) -> Any:
        extra = {"adaptation": adaptation} if kind is ALIF else {}
        return kind(threshold=threshold, reset=how, detach_reset=detach, **extra)

    together = outputs(of(thresholds, adaptations).double(), y)
    (gradient,) = torch.autograd.grad(together.sum(), y)
    for unit in range(2):
        one = y[..., unit : unit + 1].detach().requires_grad_()
        alone = outputs(of(thresholds[unit], adaptations[unit]), one)
        assert 0.02 < float(alone.detach().mean()) < 0.98
        torch.testing.assert_close(together[..., unit : unit + 1], alone, rtol=1e-6, atol=0)
        (expected,) = torch.autograd.grad(alone.sum(), one)
        torch.testing.assert_close(gradient[..., unit : unit + 1], expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(together, outputs(of(0.6, 0.1), y))


# One autograd node for a fixed neuron, none for a learned one.


@pytest.mark.parametrize("rule", [OTTT(), SLTT()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("kind", [IF, LIF, CubaLIF, ALIF])
def test_the_fast_step_is_for_fixed_constants_alone(kind: Any, rule: Any) -> None:
    fixed = ETBlock(ETLinear(3, UNITS), kind(threshold=torch.linspace(0.5, 1.5, UNITS), initial_membrane=0.2))
    learned = ETBlock(ETLinear(3, UNITS), kind(learn=CONSTANTS[kind]))
    for block, fast in ((fixed, True), (learned, False)):
        attach(block, rule)
        assert block.neuron.cuts_its_past is fast
        for x in torch.rand(4, 5, 3) * 3:
            block(x).sum().backward()
        assert block.is_one_node() is (fast and rule.storage != "none")
        for parameter, name in block.neuron.learned.items():
            share = block.neuron.get_parameter(parameter).grad
            # the adaptation's decay acts on later steps alone: without a trace no step has a share of it
            traced = rule.storage != "none" or name != "decay_adaptation"
            assert (share is not None and bool(share.any())) is traced, name


def test_the_leak_follows_a_learned_decay_and_says_where_it_is_approximate() -> None:
    neuron = LIF(decay=0.5, learn=("decay",))
    assert neuron.leak_transition().transition == ((0.5,),)
    with torch.no_grad():
        neuron.get_parameter("decay_logit").fill_(1.0)
    assert neuron.leak_transition().transition[0][0] == pytest.approx(0.7310586)
    assert neuron.leak_caveats() == LI(learn=["decay"]).leak_caveats() == []
    per_unit = torch.full((UNITS,), 0.5)
    told = "is learned per unit: the factored trace decays with the mean, 0.5"
    assert LIF(decay=per_unit, learn=("decay",)).leak_caveats() == [f"decay {told}"]
    assert CubaLIF(decay_synapse=per_unit, learn=["decay_synapse"]).leak_caveats() == [f"decay_synapse {told}"]
    assert LIF(decay=per_unit).leak_caveats() == []
    assert ALIF(adaptation=0.0).leak_caveats() == []
    assert "adaptive threshold" in ALIF(adaptation=0.1, learn=("adaptation",)).leak_caveats()[0]


def test_attaching_a_rule_reports_learned_constants() -> None:
    block = ETBlock(ETLinear(3, UNITS), LIF(learn=("decay", "threshold")))
    assert attach(block, DRTRL())["neuron.decay_logit"].exact
    assert attach(block, OTTT())["neuron.threshold_inverse_softplus"].trace == "per unit"
    assert attach(block, SLTT())["neuron.threshold_inverse_softplus"].trace == "none"


# What is refused, and what to write.

REFUSALS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: LIF(learn="decay"), TypeError, r"learn='decay': pass a list.*learn=\('decay',\)"),
    (lambda: LIF(learn=5), TypeError, r"learn=5"),
    (lambda: LIF(learn=(nn.Parameter(torch.ones(1)),)), TypeError, r"pass a list of names"),
    (lambda: LIF(learn=("tau",)), ValueError, r"LIF has no constant 'tau'.*learned as its decay; write 'decay'"),
    (lambda: ALIF(learn=("tau_adaptation",)), ValueError, r"write 'decay_adaptation'"),
    (lambda: LIF(learn=("adaptation",)), ValueError, r"only decay, threshold, initial_membrane; write learn="),
    (lambda: IF(learn=("decay",)), ValueError, r"IF has no constant 'decay' to learn, only threshold"),
    (lambda: LI(learn=("threshold",)), ValueError, r"LI has no constant 'threshold'"),
    (lambda: ALIF(adaptation=0.0, learn=("adaptation",)), ValueError, r"edge.*adaptation=0\.1.*out of learn"),
    (lambda: LIF(initial_membrane=float("nan")), ValueError, r"initial_membrane=nan: .*finite"),
    (lambda: LIF(initial_membrane="0"), TypeError, r"initial_membrane='0': pass one number"),
    (lambda: LIF(threshold=[1.0, -1.0], learn=("threshold",)), ValueError, r"threshold=\[1\.0, -1\.0\]: .*above 0"),
    (lambda: ALIF(adaptation=[0.1, -1.0]), ValueError, r"adaptation=\[0\.1, -1\.0\]: .*at least 0"),
    (lambda: LIF(decay=1.0, learn=("decay",)), ValueError, r"decay=1\.0"),
    (lambda: LI(learn=("decay",), tau=1.0), ValueError, r"tau=1\.0"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("position", range(len(REFUSALS)))
def test_illegal_arguments_are_refused_in_words(position: int) -> None:
    build, error, words = REFUSALS[position]
    with pytest.raises(error, match=words):
        build()
