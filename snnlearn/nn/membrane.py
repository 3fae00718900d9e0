"""The base of every built-in neuron: a membrane, where it starts, and constants that can be learned."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from snnlearn.functional.dynamics import ConstantDerivatives, State, per_unit
from snnlearn.functional.surrogates import Surrogate
from snnlearn.functional.traced_step import DirectDerivative
from snnlearn.nn.constant import (
    ANY_NUMBER,
    ConstantValue,
    LearnableConstant,
    check_initial_membrane,
    check_learn,
    describe_constant,
    learnable_constants,
    slope_at,
)
from snnlearn.nn.neuron import Neuron
from snnlearn.nn.probe import is_outdated
from snnlearn.nn.state import StateShapeError
from snnlearn.nn.time_constant import mean_decay


class MembraneNeuron(Neuron):
    """Base of the built-in neurons: a hidden value v, its value before the first step, and the constants of the step.

    A subclass names those that can be learned as class attributes, `decay = LearnableConstant(FRACTION)`, and gives
    each its value by `set_constant`. `initial_membrane` (membrane units) one number or one per unit; `learn` the
    names of the constants to learn. Raises ValueError for a value outside its range and for an unknown name.

    >>> MembraneNeuron.state_names
    ('v',)
    """

    state_names: ClassVar[tuple[str, ...]] = ("v",)
    initial_membrane = LearnableConstant(ANY_NUMBER)

    def __init__(
        self,
        surrogate: Surrogate | None = None,
        initial_membrane: ConstantValue = 0.0,
        learn: Sequence[str] = (),
    ) -> None:
        super().__init__(surrogate)
        self.learn = check_learn(type(self), learn)
        self.set_constant("initial_membrane", check_initial_membrane(initial_membrane))

    def set_constant(self, name: str, value: float | Tensor) -> None:
        """Keep a constant: a number as it is, one per unit as a buffer, a learned one as the parameter behind it.

        Raises ValueError when no parameter stands for the value of a learned constant, such as an adaptation of 0.
        """
        if name in self.learn:
            constant = learnable_constants(type(self))[name]
            keep = value.dtype if isinstance(value, Tensor) else torch.get_default_dtype()
            start = constant.domain.parameter_of(torch.as_tensor(value, dtype=torch.float64)).to(keep)
            if not bool(start.isfinite().all()):
                raise ValueError(
                    f"{name}={value!r} is at the edge of what a learned {name} can be, so its gradient would be zero "
                    f"for ever; start it inside, such as {name}=0.1, or leave {name!r} out of learn"
                )
            self.register_parameter(constant.parameter_name, nn.Parameter(start))
        elif isinstance(value, Tensor):
            self.register_buffer(name, value)
        else:
            setattr(self, name, value)

    @property
    def learned(self) -> dict[str, str]:
        """The constants that are learned, by the name of the parameter behind each."""
        constants = learnable_constants(type(self))
        names = {constants[name].parameter_name: name for name in self.learn}
        return {parameter: names[parameter] for parameter, _ in self.named_parameters() if parameter in names}

    def initial_state(self, y: Tensor) -> State:
        """Return the hidden values before the first step, shaped like y [B, *units]: `initial_membrane`, else zeros."""
        self._refuse_other_units(y)
        zeros, start = super().initial_state(y), self.initial_membrane
        if not isinstance(start, Tensor) and start == 0.0:
            return zeros
        place = self.state_names.index("v")
        return (*zeros[:place], zeros[place] + per_unit(start, zeros[place]), *zeros[place + 1 :])

    def _refuse_other_units(self, y: Tensor) -> None:
        """Raise StateShapeError where a constant per unit is not one for each unit of y [B, *units]."""
        units = y.shape[1:]
        for name, constant in learnable_constants(type(self)).items():
            value = self._buffers.get(name, self._parameters.get(constant.parameter_name))
            if value is None or value.dim() == 0 or _fits(value.shape, units):
                continue
            per_unit = f"[{units[-1]}]" if len(units) == 1 else f"{list(units)}, with 1 where units share it"
            raise StateShapeError(
                f"{type(self).__name__}: {name} is given per unit as {list(value.shape)} and the layer before it has "
                f"units {list(units)}: one number stands for each unit; pass a tensor of shape {per_unit}, or one "
                f"number for all"
            )

    def constant_derivatives(self, y: Tensor, state: State) -> ConstantDerivatives:
        """Return the derivatives of the step by the constants that it uses, at (y, state); none unless overridden."""
        return {}

    def direct_derivatives(self, y: Tensor, state: State) -> tuple[DirectDerivative, ...]:
        """Return how the step at (y, state) depends on each parameter at once: analytically where that is known."""
        learned = self.learned
        if is_outdated(self, "constant_derivatives") or list(learned) != [n for n, _ in self.named_parameters()]:
            return super().direct_derivatives(y, state)
        if not learned:
            return ()
        by_constant, constants = self.constant_derivatives(y, state), learnable_constants(type(self))
        found = []
        for parameter, name in learned.items():
            if name in by_constant:
                spike, after = by_constant[name]
                slope = per_unit(slope_at(constants[name].domain, self.get_parameter(parameter)), y)
                found.append(DirectDerivative(spike * slope, after * slope))
            else:  # the membrane before the first step, which no step reads again
                never = torch.zeros_like(torch.stack(state))
                start = never.clone()
                start[self.state_names.index("v")] = 1
                found.append(DirectDerivative(torch.zeros_like(y), never, start))
        return tuple(found)

    def describe(self, *names: str) -> str:
        """Return the constants in effect, for a repr; the initial membrane only where it is not zero."""
        if isinstance(self.initial_membrane, Tensor) or self.initial_membrane != 0.0:
            names = (*names, "initial_membrane")
        learned = {name: " (learned)" if name in self.learn else "" for name in names}
        return ", ".join(f"{name}={describe_constant(getattr(self, name))}{learned[name]}" for name in names)

    def decay_caveats(self, *names: str) -> list[str]:
        """Return, for each named decay that differs or is learned per unit, why a trace with one decay is approximate.

        >>> from snnlearn.nn import LIF
        >>> LIF(decay=torch.tensor([0.5, 0.7])).decay_caveats("decay")
        ['decay differs per unit: the factored trace decays with the mean, 0.6']
        """
        caveats = []
        for name in names:
            decay = getattr(self, name)
            if not isinstance(decay, Tensor) or decay.numel() == 1:
                continue
            learned, mean = name in self.learn, mean_decay(decay)
            if learned or bool((decay != decay.flatten()[0]).any()):
                how = "is learned" if learned else "differs"
                caveats.append(f"{name} {how} per unit: the factored trace decays with the mean, {mean:.4g}")
        return caveats


def _fits(shape: torch.Size, units: torch.Size) -> bool:
    """Whether a constant of `shape` spreads over `units` and adds none."""
    if len(shape) > len(units):
        return False
    return all(own in (1, unit) for own, unit in zip(reversed(shape), reversed(units), strict=False))


__all__ = ["MembraneNeuron"]
