"""The norms of a network's traces, found when they are read: that of a trace per synapse is a pass over all of it."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from snnlearn.nn.block import ETBlock
from snnlearn.nn.clocked_trace import StaleTraceError
from snnlearn.nn.step_trace import StepTrace
from snnlearn.nn.trace_buffer import TraceBuffer


class TraceNorms(Mapping):  # type: ignore[type-arg]  # a run-time check of a subscripted one would read a norm
    """The Euclidean norm of the trace of every block of `net` that has one, by name, as the traces stand now.

    They are found at the first reading, all of them, and kept. Raises StaleTraceError when a trace has moved on before
    that; `dict(norms)` keeps them for good, and so does a copy.

    >>> dict(TraceNorms(nn.Linear(1, 1)))
    {}
    """

    def __init__(self, net: nn.Module) -> None:
        self._traces: dict[str, tuple[TraceBuffer | StepTrace, int]] = {
            name or "block": (module.connection.trace, module.connection.trace.tick)
            for name, module in net.named_modules()
            if isinstance(module, ETBlock) and module.connection.trace is not None
        }
        self._names = tuple(self._traces)
        self._found: dict[str, float] | None = None

    def __getitem__(self, name: str) -> float:
        """Return the norm of the trace of the block called `name`."""
        if name not in self._names:
            raise KeyError(name)
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the blocks; nothing is computed."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return the number of blocks with a trace."""
        return len(self._names)

    def __repr__(self) -> str:
        """Return the norms, or the names alone where they have not been read."""
        return repr(self._found) if self._found is not None else f"<norms of {', '.join(self._names)}, not read yet>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the norms as a plain dictionary, for copies and pickles."""
        return dict, (dict(self),)

    def _read(self) -> dict[str, float]:
        if self._found is None:
            for name, (trace, tick) in self._traces.items():
                if trace.tick != tick:
                    raise StaleTraceError(
                        f"the norm of the trace of {name!r} was read after the trace had moved on: it is found when "
                        f"it is first read; write norms = dict(result.trace_norms) before the next learn() or reset()"
                    )
            self._found = {name: trace.norm() for name, (trace, _) in self._traces.items()}
            self._traces = {}
        return self._found


__all__ = ["TraceNorms"]
