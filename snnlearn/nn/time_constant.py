"""From the time constants people write to the decay per step that the equations use."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

TimeConstant = float | Tensor | Sequence[float]


def resolve_decay(
    tau: TimeConstant | None, dt: float | None, decay: TimeConstant | None, name: str = "tau"
) -> float | Tensor:
    """Return the decay per step: 1 - 1/tau, exp(-dt/tau) when `dt` is given, or `decay` as it is.

    `tau` (steps, above 1; with `dt` any positive time in the unit of `dt`), or `decay` in (0, 1): one number
    or one per unit. Raises ValueError outside these ranges or unless exactly one of the two is given,
    TypeError for a Parameter, since time constants are not learned.

    >>> resolve_decay(2.0, None, None), resolve_decay(None, None, 0.9), round(resolve_decay(20.0, 1.0, None), 4)
    (0.5, 0.9, 0.9512)
    """
    other = name.replace("tau", "decay")
    if (tau is None) == (decay is None):
        raise ValueError(
            f"got {name}={tau!r} and {other}={decay!r}: give exactly one of them, since each fixes the other; "
            f"write {name}=2.0 or {other}=0.5"
        )
    given = tau if decay is None else decay
    if isinstance(given, nn.Parameter):
        raise TypeError(
            f"{name if decay is None else other} is a Parameter: time constants are fixed here, since a learned "
            f"one needs a trace of its own; pass parameter.detach()"
        )
    values = _as_tensor(given)
    keep = given.dtype if isinstance(given, Tensor) and given.is_floating_point() else torch.get_default_dtype()
    if decay is not None:
        if dt is not None:
            raise ValueError(f"got {other} and dt={dt!r}: a decay per step needs no dt; leave dt out")
        _require(bool(((values > 0) & (values < 1)).all()), other, decay, "in (0, 1)", f"{other}=0.5")
        return _number_or_tensor(values, keep)
    if dt is None:
        legal = bool(((values > 1) & values.isfinite()).all())
        _require(legal, name, tau, "finite and above 1 (steps), so that 1 - 1/tau lies in (0, 1)", f"{name}=2.0")
        return _number_or_tensor(1 - 1 / values, keep)
    _require(math.isfinite(dt) and dt > 0, "dt", dt, "finite and above 0", "dt=1.0")
    legal = bool(((values > 0) & values.isfinite()).all())
    _require(legal, name, tau, "finite and above 0, in the unit of dt", f"{name}=20.0, dt=1.0")
    return _number_or_tensor(torch.exp(-dt / values), keep)


def _as_tensor(value: TimeConstant | None) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64).detach().clone()


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


__all__ = ["TimeConstant", "describe_decay", "mean_decay", "resolve_decay", "unequal_decay_caveats"]
