"""From the time constants people write to the decay per step that the equations use."""

import math
import numbers
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

TimeConstant = float | Tensor | Sequence[float]


class TimeScale(NamedTuple):
    """A time constant as an argument list has it: `tau` or `decay`, its name, and tau (steps) if neither is given.

    >>> TimeScale(None, 0.5).name
    'tau'
    """

    tau: TimeConstant | None
    decay: TimeConstant | None
    name: str = "tau"
    default: float = 2.0


def resolve_decays(dt: float | None, *scales: TimeScale) -> list[float | Tensor]:
    """Return the decay per step of every time scale: 1 - 1/tau, exp(-dt/tau) when `dt` is given, or `decay` as it is.

    `tau` (steps, above 1; with `dt` any positive time in the unit of `dt`), or `decay` in (0, 1): one number or one
    per unit. Raises ValueError outside these ranges, for both at once, and for a `dt` that has no tau to go with;
    TypeError for what is no number and for a Parameter, since time constants are not learned.

    >>> resolve_decays(1.0, TimeScale(None, 0.9), TimeScale(20.0, None))
    [0.9, 0.951229424500714]
    """
    if dt is not None and all(scale.decay is not None for scale in scales):
        names = " and ".join(_decay_name(scale) for scale in scales)
        raise ValueError(f"got {names} and dt={dt!r}: a decay per step needs no dt; leave dt out")
    return [_resolve(scale, dt) for scale in scales]


def _decay_name(scale: TimeScale) -> str:
    return scale.name.replace("tau", "decay")


def _resolve(scale: TimeScale, dt: float | None) -> float | Tensor:
    tau, decay, name, default = scale
    if tau is not None and decay is not None:
        raise ValueError(
            f"got {name}={tau!r} and {_decay_name(scale)}={decay!r}: give exactly one of them, since each fixes the "
            f"other; write {name}={default} or {_decay_name(scale)}={1 - 1 / default}"
        )
    if decay is not None:
        values, keep = _as_tensor(decay, _decay_name(scale), "0.5")
        legal = bool(((values > 0) & (values < 1)).all())
        _require(legal, _decay_name(scale), decay, "in (0, 1)", f"{_decay_name(scale)}=0.5")
        return _number_or_tensor(values, keep)
    if tau is None and dt is not None:
        raise ValueError(
            f"got dt={dt!r} without {name}: the default of {default} counts steps, not the unit of dt; write e.g. "
            f"{name}=20.0, dt=1.0"
        )
    tau = default if tau is None else tau
    values, keep = _as_tensor(tau, name, "2.0")
    if dt is None:
        legal = bool(((values > 1) & values.isfinite()).all())
        _require(legal, name, tau, "finite and above 1 (steps), so that 1 - 1/tau lies in (0, 1)", f"{name}=2.0")
        return _number_or_tensor(1 - 1 / values, keep)
    _require(math.isfinite(dt) and dt > 0, "dt", dt, "finite and above 0", "dt=1.0")
    legal = bool(((values > 0) & values.isfinite()).all())
    _require(legal, name, tau, "finite and above 0, in the unit of dt", f"{name}=20.0, dt=1.0")
    return _number_or_tensor(torch.exp(-dt / values), keep)


def _as_tensor(value: TimeConstant, name: str, example: str) -> tuple[Tensor, torch.dtype]:
    if isinstance(value, nn.Parameter):
        raise TypeError(
            f"{name} is a Parameter: time constants are fixed here, since a learned one needs a trace of its own; pass "
            f"parameter.detach()"
        )
    if isinstance(value, str) or not isinstance(value, numbers.Real | Tensor | Sequence):
        raise TypeError(f"{name}={value!r}: pass a number, or one number per unit; write {name}={example}")
    keep = value.dtype if isinstance(value, Tensor) and value.is_floating_point() else torch.get_default_dtype()
    return torch.as_tensor(value, dtype=torch.float64).detach().clone(), keep


def _number_or_tensor(values: Tensor, dtype: torch.dtype) -> float | Tensor:
    return float(values) if values.dim() == 0 else values.to(dtype)


def _require(legal: bool, name: str, got: object, allowed: str, example: str) -> None:
    if not legal:
        raise ValueError(f"{name}={got!r}: {name} must be {allowed}; write {example}")


def describe_decay(decay: float | Tensor) -> str:
    """Return the decay in effect for a repr: the number, or the range over units.

    >>> describe_decay(0.5), describe_decay(torch.tensor([0.5, 0.9]))
    ('0.5', '0.5..0.9 per unit [2]')
    """
    if isinstance(decay, Tensor):
        return f"{float(decay.min()):.6g}..{float(decay.max()):.6g} per unit {list(decay.shape)}"
    return f"{decay:.6g}"


def mean_decay(decay: float | Tensor) -> float:
    """Return the one decay that stands for all units: the number itself, or the mean.

    >>> mean_decay(0.5)
    0.5
    """
    return float(decay.double().mean()) if isinstance(decay, Tensor) else decay


def unequal_decay_caveats(**decays: float | Tensor) -> list[str]:
    """Return, for each named decay that differs between units, why a trace with one decay is approximate.

    >>> unequal_decay_caveats(decay=torch.tensor([0.5, 0.7]))
    ['decay differs per unit: the factored trace decays with the mean, 0.6']
    """
    return [
        f"{name} differs per unit: the factored trace decays with the mean, {mean_decay(decay):.4g}"
        for name, decay in decays.items()
        if isinstance(decay, Tensor) and bool((decay != decay.flatten()[0]).any())
    ]


__all__ = ["TimeConstant", "TimeScale", "describe_decay", "mean_decay", "resolve_decays", "unequal_decay_caveats"]
