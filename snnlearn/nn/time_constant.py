"""From the time constants people write to the decay per step that the equations use."""

from typing import NamedTuple

import torch
from torch import Tensor

from snnlearn.functional.arguments import is_number
from snnlearn.nn.constant import ConstantValue, number_or_tensor, read_constant


class TimeScale(NamedTuple):
    """A time constant as an argument list has it: `tau` or `decay`, its name, and tau (steps) if neither is given.

    >>> TimeScale(None, 0.5).name
    'tau'
    """

    tau: ConstantValue | None
    decay: ConstantValue | None
    name: str = "tau"
    default: float = 2.0


def resolve_decays(dt: float | None, *scales: TimeScale) -> list[float | Tensor]:
    """Return the decay per step of every time scale: 1 - 1/tau, exp(-dt/tau) when `dt` is given, or `decay` as it is.

    `tau` (steps, above 1; with `dt` any positive time in the unit of `dt`), or `decay` in (0, 1): one number or one
    per unit. Raises ValueError outside these ranges, for both at once, and for a `dt` that has no tau to go with;
    TypeError for what is no number and for a Parameter.

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
        values, keep = read_constant(_decay_name(scale), decay, "0.5")
        legal = bool(((values > 0) & (values < 1)).all())
        _require(legal, _decay_name(scale), decay, "in (0, 1)", f"{_decay_name(scale)}=0.5")
        return number_or_tensor(values, keep)
    if tau is None and dt is not None:
        raise ValueError(
            f"got dt={dt!r} without {name}: the default of {default} counts steps, not the unit of dt; write e.g. "
            f"{name}=20.0, dt=1.0"
        )
    tau = default if tau is None else tau
    values, keep = read_constant(name, tau, "2.0")
    if dt is None:
        legal = bool(((values > 1) & values.isfinite()).all())
        _require(legal, name, tau, "finite and above 1 (steps), so that 1 - 1/tau lies in (0, 1)", f"{name}=2.0")
        return number_or_tensor(1 - 1 / values, keep)
    _require(is_number(dt) and dt > 0, "dt", dt, "finite and above 0", "dt=1.0")
    legal = bool(((values > 0) & values.isfinite()).all())
    _require(legal, name, tau, "finite and above 0, in the unit of dt", f"{name}=20.0, dt=1.0")
    return number_or_tensor(torch.exp(-dt / values), keep)


def _require(legal: bool, name: str, got: object, allowed: str, example: str) -> None:
    if not legal:
        raise ValueError(f"{name}={got!r}: {name} must be {allowed}; write {example}")


def mean_decay(decay: float | Tensor) -> float:
    """Return the one decay that stands for all units: the number itself, or the mean.

    >>> mean_decay(0.5)
    0.5
    """
    return float(decay.detach().double().mean()) if isinstance(decay, Tensor) else decay


__all__ = ["TimeScale", "mean_decay", "resolve_decays"]
