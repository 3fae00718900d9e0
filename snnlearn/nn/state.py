"""Transient state: what a module carries from one timestep to the next and forgets between sequences.

Such state is neither parameter nor buffer: it never enters a `state_dict`, no DDP broadcast touches it,
its shape follows the input. It moves with the module, copies with it, and is stashed and put back whole.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from snnlearn.nn.eager import EagerModule

_probes = itertools.count(1)


class StateShapeError(ValueError):
    """An input does not fit the state carried from the step before: in mid-sequence shapes stay the same."""


class Stateful(EagerModule):
    """Base of every module that carries transient state.

    `transient` names the attributes: each a tensor whose first dimension is the batch, a tuple of such
    tensors, a plain number, or None before the first step. `reset` forgets them; `stash` and `restore` take
    them out and put them back by reference, so a running stream survives an evaluation in between.

    >>> class Counter(Stateful):
    ...     transient = ("count",)
    ...     count = None
    >>> Counter().stash()
    {'count': None}
    """

    transient: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set transient state and what `plain` names as they are, without torch's search for parameters in them."""
        if name in self.transient or name in self.plain:
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def reset(self, rows: Bool[Tensor, " batch"] | None = None) -> None:
        """Forget the state of the whole batch, or zero it for the rows where `rows` [B] is true."""
        for name in self.transient:
            value = getattr(self, name)
            setattr(self, name, None if rows is None else self._map(value, lambda t: zero_rows(t, rows)))

    def stash(self) -> dict[str, Any]:
        """Return the transient state by reference."""
        return {name: getattr(self, name) for name in self.transient}

    def watched(self) -> dict[str, Any]:
        """Return what a look for NaN has to see; the transient state unless overridden."""
        return self.stash()

    def restore(self, state: dict[str, Any]) -> None:
        """Put back what `stash` returned."""
        for name, value in state.items():
            setattr(self, name, value)

    @staticmethod
    def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
        if isinstance(value, tuple):
            return tuple(map(change, value))
        return change(value) if isinstance(value, Tensor) else value

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "Stateful":
        super()._apply(fn, recurse)
        keeps_values = _keeps_values(fn)
        for name in self.transient:
            value = getattr(self, name)
            setattr(self, name, self._map(value, fn) if keeps_values else None)
        return self

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse torch.jit.script, which cannot follow state that appears with the first input."""
        raise RuntimeError(
            f"torch.jit.script got a {type(self).__name__}, whose state appears with the first input and has no "
            f"place in a script; run the network eagerly or under torch.compile, or export a module whose "
            f"forward calls neuron.step(y, state), where the state is an explicit input and output"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return attributes for copies and pickles: state without its graph, which no copy could follow."""
        attributes = dict(self.__dict__)
        for name in self.transient:
            attributes[name] = self._map(attributes.get(name), lambda t: t.detach())
        return attributes


def _keeps_values(fn: Callable[..., Any]) -> bool:
    """Tell a move or a cast from `to_empty`, which leaves memory uninitialised and must drop state.

    Each probe spells another number in bits, so that stale memory cannot hold the values expected of it.
    """
    serial = next(_probes)
    probe = torch.tensor([float(serial >> bit & 1) for bit in range(64)])
    moved = fn(probe)
    return not moved.is_meta and torch.equal(moved.float().cpu(), probe)


def zero_rows(values: Tensor, rows: Bool[Tensor, " batch"]) -> Tensor:
    """Return `values` [B, ...] with the rows where `rows` [B] is true set to zero.

    Raises StateShapeError when the mask does not have one entry per row.

    >>> zero_rows(torch.ones(2, 1), torch.tensor([True, False])).flatten()
    tensor([0., 1.])
    """
    if rows.shape != values.shape[:1]:
        raise StateShapeError(
            f"reset(rows=...) got a mask of shape {list(rows.shape)} while the running batch has "
            f"{values.shape[0]} rows: the mask says for each row whether to reset it; pass bool [{values.shape[0]}]"
        )
    mask = rows.to(values.device).reshape(-1, *(1,) * (values.dim() - 1))
    return values.masked_fill(mask, 0)


def stateful_modules(net: nn.Module) -> Iterator[Stateful]:
    """Yield every module of `net` that carries transient state, each once.

    >>> list(stateful_modules(nn.Linear(1, 1)))
    []
    """
    return (module for module in net.modules() if isinstance(module, Stateful))


def non_finite_state(net: nn.Module) -> list[str]:
    """Return the names of the modules of `net` whose state holds a NaN or an infinity; one pass over every state.

    >>> non_finite_state(nn.Linear(1, 1))
    []
    """
    held = [
        (name, tensor.detach())
        for name, module in net.named_modules()
        if isinstance(module, Stateful)
        for value in module.watched().values()
        for tensor in (value if isinstance(value, tuple) else (value,))
        if isinstance(tensor, Tensor) and tensor.is_floating_point()
    ]
    # a sum is finite unless it met such a number, or overflowed, which a second look tells apart
    suspects = [(name, tensor) for name, tensor in held if not math.isfinite(tensor.sum())]
    return list(dict.fromkeys(name for name, tensor in suspects if not bool(torch.isfinite(tensor).all())))


def reset(net: nn.Module, rows: Bool[Tensor, " batch"] | None = None) -> None:
    """Forget the neuron states, traces and dropout masks of `net`: call it between sequences.

    With `rows` [B] only the rows where it is true start afresh, in mid-sequence. Legal at any time, before
    the first step too; a backward still waiting for the old trace then raises StaleTraceError. Raises
    StateShapeError for a mask of another length, TypeError for a mask that is not boolean.

    >>> reset(nn.Linear(1, 1))
    """
    if rows is not None and rows.dtype != torch.bool:
        raise TypeError(
            f"reset(rows=...) got dtype {rows.dtype}: rows is a boolean mask [B], true where a row starts afresh; "
            f"write e.g. rows=torch.isin(torch.arange(B), indices)"
        )
    for module in stateful_modules(net):
        module.reset(rows)


def detach_state(net: nn.Module) -> None:
    """Cut the state of `net` from the graph that made it and keep its values; legal at any time.

    >>> detach_state(nn.Linear(1, 1))
    """
    for module in stateful_modules(net):
        module.restore({name: module._map(value, lambda t: t.detach()) for name, value in module.stash().items()})


@contextmanager
def stashed_state(net: nn.Module) -> Iterator[None]:
    """Run the body with fresh state and put the running state back afterwards, also after an error.

    >>> with stashed_state(nn.Linear(1, 1)):
    ...     pass
    """
    kept = [(module, module.stash()) for module in stateful_modules(net)]
    for module, _ in kept:
        module.restore(dict.fromkeys(module.transient))
    try:
        yield
    finally:
        for module, state in kept:
            module.restore(state)


__all__ = [
    "StateShapeError",
    "Stateful",
    "detach_state",
    "non_finite_state",
    "reset",
    "stashed_state",
    "stateful_modules",
    "zero_rows",
]
