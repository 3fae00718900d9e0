"""The state of a network in buffers that stay where they are, for graphs that are replayed."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from snnlearn.engine.capture import CaptureError
from snnlearn.nn.state import Stateful, stateful_modules
from snnlearn.nn.step_trace import StepTrace
from snnlearn.nn.synaptic_trace import SynapticTrace
from snnlearn.nn.trace_buffer import TraceBuffer


class StaticState:
    """Buffers for everything that the modules of `net` carry from step to step.

    `take` copies what they hold into the buffers, made at the first call, and `bind` lets them hold the buffers. Raises
    CaptureError where a module carries what is no tensor, or where the state has another form than at the first call.

    >>> StaticState(nn.Linear(1, 1)).tensors()
    []
    """

    def __init__(self, net: nn.Module) -> None:
        self.modules: list[Stateful] = list(stateful_modules(net))
        self.buffers: list[dict[str, Any]] | None = None

    def is_running(self) -> bool:
        """Return whether the modules carry anything: a sequence has begun."""
        return any(True for module in self.modules for value in module.stash().values() for _ in _in(value))

    def tensors(self) -> list[Tensor]:
        """Return every buffer."""
        return (
            [] if self.buffers is None else [t for held in self.buffers for value in held.values() for t in _in(value)]
        )

    def take(self) -> None:
        """Copy the state of the modules into the buffers; with tensors alone, so that it can be captured."""
        held = [_static(module) for module in self.modules]
        if self.buffers is None:
            self.buffers = [{name: _map(value, _laid_out) for name, value in values.items()} for values in held]
            return
        buffers, values = self.tensors(), [t for state in held for value in state.values() for t in _in(value)]
        if [b.shape for b in buffers] != [v.shape for v in values]:
            raise CaptureError(
                "the state of the network has another form than when the graph was captured: a sequence goes on where "
                "the graph left it; call learn(x, y) without keep_state first"
            )
        places = {_place(buffer): number for number, buffer in enumerate(buffers)}
        # the state of one step before may be the buffer of another name, which is about to be written
        apart = [v.clone() if places.get(_place(v), n) != n else v for n, v in enumerate(values)]
        for buffer, value in zip(buffers, apart, strict=True):
            if _place(buffer) != _place(value):
                buffer.copy_(value)

    def bind(self) -> None:
        """Let the modules hold the buffers, and nothing else of the steps before."""
        assert self.buffers is not None
        for module, held in zip(self.modules, self.buffers, strict=True):
            if isinstance(module, StepTrace):
                module.forget_step()
            if isinstance(module, TraceBuffer):
                module.kept = None
            module.restore(held)


def _static(module: Stateful) -> dict[str, Any]:
    """Return the transient state of a module as tensors, None where it has none."""
    if isinstance(module, TraceBuffer) and isinstance(module.bias_values, tuple):
        assert module.values is not None
        like, batch = module.values, module.values.shape[1]
        module.bias_values = torch.stack([like.new_full((batch,), number) for number in module.bias_values])
    if isinstance(module, SynapticTrace):
        module.settle()  # without the norm that `stash` reads back before
    state = module.stash()
    for name, value in state.items():
        if not all(part is None or isinstance(part, Tensor) for part in _parts(value)):
            raise CaptureError(
                f"{type(module).__name__}.{name} is {value!r}, which Python carries from step to step: a graph would "
                f"keep it as it is; keep it in a tensor, or learn without a graph"
            )
    return {name: _map(value, lambda t: t.detach()) for name, value in state.items()}


def _laid_out(value: Tensor) -> Tensor:
    """Return a copy with the gaps between rows that the tensor has: they begin where a cache line does."""
    if value.is_contiguous() or 0 in value.stride():
        return value.clone()
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _in(value: Any) -> Iterator[Tensor]:
    return (part for part in _parts(value) if isinstance(part, Tensor))


def _map(value: Any, change: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_map(part, change) for part in value)
    return change(value) if isinstance(value, Tensor) else value


def _place(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


__all__ = ["StaticState"]
