"""The constants of a built-in neuron: numbers or one per unit, fixed or learned, and the base that holds them."""

import numbers
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch
from torch import Tensor, nn

from snnlearn.functional.constants import (
    fraction_of_logit,
    inverse_softplus,
    logit_of_fraction,
    positive_of_softplus,
)

if TYPE_CHECKING:
    from snnlearn.nn.neuron import Neuron

ConstantValue = float | Tensor | Sequence[float]
"""A constant as a user writes it: one number for all units, or one per unit."""


class Domain(NamedTuple):
    """The legal values of a constant, and the parameter that is any number and stands for one of them.

    `suffix` what the parameter's name adds to the constant's; `constant_of(parameter)` and `parameter_of(constant)`.
    """

    suffix: str
    constant_of: Callable[[Tensor], Tensor]
    parameter_of: Callable[[Tensor], Tensor]


def slope_at(domain: Domain, parameter: Tensor) -> Tensor:
    """Return the derivative of the constant by the parameter behind it, elementwise.

    >>> slope_at(FRACTION, torch.zeros(2))
    tensor([0.2500, 0.2500])
    """
    with torch.enable_grad():
        at = parameter.detach().requires_grad_()
        return torch.autograd.grad(domain.constant_of(at).sum(), at)[0]


def _same(value: Tensor) -> Tensor:
    return value


FRACTION = Domain("_logit", fraction_of_logit, logit_of_fraction)
POSITIVE = Domain("_inverse_softplus", positive_of_softplus, inverse_softplus)
ANY_NUMBER = Domain("", _same, _same)


class LearnableConstant:
    """An attribute of a neuron that a user may have learned: `decay = LearnableConstant(FRACTION)` in the class.

    Fixed, the attribute is what was set, a number or a buffer, and costs nothing. Learned, it is computed from a
    parameter named after it, such as `decay_logit`, so that it is in its domain whatever an optimizer does. Raises
    AttributeError before it is set.

    >>> from snnlearn.nn import LIF
    >>> neuron = LIF(decay=0.5, learn=("decay",)); neuron.decay_logit.data.fill_(1e6); bool(neuron.decay < 1)
    tensor(1000000.)
    True
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        """Take the attribute's name."""
        self.name = name

    @property
    def parameter_name(self) -> str:
        """The name of the parameter when the constant is learned, also in a `state_dict`."""
        return self.name + self.domain.suffix

    @overload
    def __get__(self, neuron: None, owner: type) -> "LearnableConstant": ...

    @overload
    def __get__(self, neuron: nn.Module, owner: type) -> float | Tensor: ...

    def __get__(self, neuron: nn.Module | None, owner: type) -> "LearnableConstant | float | Tensor":
        """Return the value in effect; a number set on the neuron itself is found before this is asked."""
        if neuron is None:
            return self
        learned = neuron.__dict__.get("_parameters", {}).get(self.parameter_name)
        if learned is not None:
            return self.domain.constant_of(learned)
        fixed: Tensor | None = neuron.__dict__.get("_buffers", {}).get(self.name)
        if fixed is None:
            raise AttributeError(f"{type(neuron).__name__} has no constant {self.name!r}")
        return fixed


def learnable_constants(kind: "type[Neuron]") -> dict[str, LearnableConstant]:
    """Return the constants of a class of neurons that can be learned, by name, those of its bases last.

    >>> from snnlearn.nn import LIF
    >>> list(learnable_constants(LIF))
    ['decay', 'threshold', 'initial_membrane']
    """
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        for name, value in vars(base).items():
            found.setdefault(name, value)
    return {name: value for name, value in found.items() if isinstance(value, LearnableConstant)}


def check_learn(kind: "type[Neuron]", learn: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the constants to learn; raise unless `kind` has each of them.

    TypeError for what is no list of names, ValueError for a name that this class of neurons does not learn.

    >>> from snnlearn.nn import LIF
    >>> check_learn(LIF, ["decay"])
    ('decay',)
    """
    names, owner = list(learnable_constants(kind)), kind.__name__
    if isinstance(learn, str) or not isinstance(learn, Sequence) or not all(isinstance(name, str) for name in learn):
        raise TypeError(f"learn={learn!r}: pass a list of names out of {', '.join(names)}; write learn=({names[0]!r},)")
    for name in learn:
        if name in names:
            continue
        decay = name.replace("tau", "decay")
        hint = f"a time constant is learned as its decay; write {decay!r}" if decay in names and decay != name else ""
        raise ValueError(
            f"learn={tuple(learn)!r}: {owner} has no constant {name!r} to learn, only {', '.join(names)}; "
            f"{hint or f'write learn=({names[0]!r},)'}"
        )
    return tuple(dict.fromkeys(learn))


def read_constant(name: str, value: ConstantValue, example: str) -> tuple[Tensor, torch.dtype]:
    """Return the given constant in float64, of no dimension or one per unit, and the dtype to keep it in.

    Raises TypeError for what is no number and for a Parameter, which the neuron makes itself.

    >>> read_constant("threshold", 1.0, "1.0")
    (tensor(1., dtype=torch.float64), torch.float32)
    """
    if isinstance(value, nn.Parameter):
        raise TypeError(
            f"{name} is a Parameter: the neuron makes the parameter of a learned constant itself, so that it stays in "
            f"its range; pass {name}=parameter.detach() and name the constant in learn=(...)"
        )
    if not _is_made_of_numbers(value):
        raise TypeError(f"{name}={value!r}: pass one number, or one number per unit; write {name}={example}")
    keep = value.dtype if isinstance(value, Tensor) and value.is_floating_point() else torch.get_default_dtype()
    return torch.as_tensor(value, dtype=torch.float64).detach().clone(), keep


def _is_made_of_numbers(value: object) -> bool:
    """Whether `value` is a number, or a tensor or nested list of at least one; the range's own check looks for NaN."""
    if isinstance(value, Tensor):
        return value.numel() > 0 and value.dtype != torch.bool and not value.is_complex()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return len(value) > 0 and all(map(_is_made_of_numbers, value)) and len(set(map(_length, value))) == 1
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _length(value: object) -> int:
    return len(value) if isinstance(value, Sequence) else -1


def number_or_tensor(values: Tensor, dtype: torch.dtype) -> float | Tensor:
    """Return a tensor without dimensions as a number, and any other in `dtype`.

    >>> number_or_tensor(torch.tensor(0.5), torch.float32)
    0.5
    """
    return float(values) if values.dim() == 0 else values.to(dtype)


def check_threshold(threshold: ConstantValue) -> float | Tensor:
    """Return the threshold (membrane units), a number or one per unit; raise unless it is finite and above 0.

    >>> check_threshold(1.0)
    1.0
    """
    values, keep = read_constant("threshold", threshold, "1.0")
    if not bool(((values > 0) & values.isfinite()).all()):
        raise ValueError(
            f"threshold={threshold!r}: a threshold is finite and above 0, since a neuron at rest (v = 0) would "
            f"otherwise fire without input; write threshold=1.0"
        )
    return number_or_tensor(values, keep)


def check_adaptation(adaptation: ConstantValue) -> float | Tensor:
    """Return the rise of the threshold per spike, a number or one per unit; raise unless finite and at least 0.

    >>> check_adaptation(0.0)
    0.0
    """
    values, keep = read_constant("adaptation", adaptation, "0.2")
    if not bool(((values >= 0) & values.isfinite()).all()):
        raise ValueError(
            f"adaptation={adaptation!r}: the rise of the threshold per spike is finite and at least 0, since a "
            f"falling threshold would fire for ever; write adaptation=0.2"
        )
    return number_or_tensor(values, keep)


def check_initial_membrane(initial_membrane: ConstantValue) -> float | Tensor:
    """Return the membrane before the first step, a number or one per unit; raise unless it is finite.

    >>> check_initial_membrane(0.0)
    0.0
    """
    values, keep = read_constant("initial_membrane", initial_membrane, "0.0")
    if not bool(values.isfinite().all()):
        raise ValueError(
            f"initial_membrane={initial_membrane!r}: the membrane before the first step is finite; write "
            f"initial_membrane=0.0"
        )
    return number_or_tensor(values, keep)


def describe_constant(value: float | Tensor) -> str:
    """Return the constant in effect for a repr: the number, or the range over units.

    >>> describe_constant(0.5), describe_constant(torch.tensor([0.5, 0.9]))
    ('0.5', '0.5..0.9 per unit [2]')
    """
    if isinstance(value, Tensor) and value.dim() > 0:
        return f"{float(value.detach().min()):.6g}..{float(value.detach().max()):.6g} per unit {list(value.shape)}"
    return f"{float(value.detach() if isinstance(value, Tensor) else value):.6g}"


__all__ = [
    "ANY_NUMBER",
    "FRACTION",
    "POSITIVE",
    "ConstantValue",
    "Domain",
    "LearnableConstant",
    "check_adaptation",
    "check_initial_membrane",
    "check_learn",
    "check_threshold",
    "describe_constant",
    "learnable_constants",
    "number_or_tensor",
    "read_constant",
    "slope_at",
]
