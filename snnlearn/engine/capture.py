"""Capture what a function does on a device, and replay it: the same operations on the same memory, without Python.

`CudaCapture` captures a CUDA graph. `TapeCapture` does the same on any device one operation at a time: it proves that
a function can be replayed, and is no faster. Neither can capture what Python decides from a number on the device, nor
numbers that come from the host anew; both are refused with the operation's name.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from snnlearn.functional.captured import capturing

HOST_READS = {
    "aten::_local_scalar_dense": "reads a number back (item(), float(), bool() or int() of a tensor)",
    "aten::equal": "reads a number back (torch.equal)",
    "aten::lift_fresh": "makes a tensor from numbers of Python, which are copied to the device (torch.tensor)",
    "aten::masked_select": "has an output whose size depends on numbers",
    "aten::nonzero": "has an output whose size depends on numbers",
    "aten::_unique2": "has an output whose size depends on numbers",
}
"""Operations that wait for the device or the host, by name, and what each does."""

MADE_EMPTY = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty_strided")


class CaptureError(RuntimeError):
    """What was to be captured cannot be, or not on this machine."""


def is_host_read(name: str, arguments: tuple[Any, ...], result: Any) -> str:
    """Return why the operation `name` waits for host or device, or nothing where it does not.

    >>> is_host_read("aten::add", (torch.ones(1),), torch.ones(1))
    ''
    """
    if name in HOST_READS:
        return HOST_READS[name]
    given = [value for value in tree_leaves(arguments) if isinstance(value, Tensor)]
    if name.startswith("aten::index") and any(value.dtype == torch.bool for value in given[1:]):
        return "has an output whose size depends on a mask"
    sized = [value for value in given if value.dim() > 0]
    if isinstance(result, Tensor) and any(value.device.type != result.device.type for value in sized):
        return "copies between host and device"
    return ""


class WithoutHostReads(TorchDispatchMode):
    """Raise CaptureError at the first operation that waits for host or device.

    >>> with WithoutHostReads():
    ...     _ = torch.ones(2) + 1
    """

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation if it can be captured."""
        name = operation._schema.name
        self.refuse(is_host_read(name, (), None), name)  # before it runs: reading back is an error while capturing
        result = operation(*arguments, **(named or {}))
        self.refuse(is_host_read(name, arguments, result), name)
        self.note(operation, arguments, named or {}, result)
        return result

    def refuse(self, reason: str, name: str) -> None:
        """Raise where there is a reason."""
        if reason:
            raise CaptureError(
                f"{name} {reason}, and a graph is replayed without Python: nothing can be decided from a number in it. "
                f"The traceback shows who called it; change that layer, loss or rule, or learn without a graph"
            )

    def note(self, operation: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        """Take in an operation that ran."""


class Tape(WithoutHostReads):
    """Record every operation with the tensors it read and wrote, and replay them.

    >>> x, y = torch.ones(1), torch.zeros(1)
    >>> with Tape() as tape:
    ...     _ = y.copy_(x * 2)
    >>> _ = x.fill_(5.0); tape.replay(); y
    tensor([10.])
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []

    def note(self, operation: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        """Keep the operation; one that only looks at memory in another way has nothing to do again."""
        if operation._schema.name in MADE_EMPTY or torch.Tag.inplace_view in operation.tags:
            return
        given = {_place(value) for value in tree_leaves((arguments, named)) if isinstance(value, Tensor)}
        fresh = [value for value in tree_leaves(result) if isinstance(value, Tensor) and _place(value) not in given]
        if fresh or operation._schema.is_mutable:
            # as they are now: a later operation may give the same memory another shape
            self.calls.append((operation, *tree_map_only(Tensor, Tensor.detach, (arguments, named, fresh))))

    def replay(self) -> None:
        """Run what was recorded again, each result into the memory that it had."""
        with torch.no_grad():
            for operation, arguments, named, fresh in self.calls:
                result = operation(*arguments, **named)
                if fresh:
                    given = {_place(value) for value in tree_leaves((arguments, named)) if isinstance(value, Tensor)}
                    made = [v for v in tree_leaves(result) if isinstance(v, Tensor) and _place(v) not in given]
                    for kept, value in zip(fresh, made, strict=True):
                        kept.copy_(value)


def _place(value: Tensor) -> int:
    """Return what tells one piece of memory from another."""
    return value.untyped_storage().data_ptr() if value.layout == torch.strided else id(value)


@runtime_checkable
class Capture(Protocol):
    """How functions are captured."""

    def refuse(self, device: torch.device) -> None:
        """Raise CaptureError where nothing on `device` can be captured."""
        ...

    def warm_up(self, function: Callable[[], None]) -> None:
        """Run `function` before any capture; raise CaptureError where it cannot be captured.

        It runs twice: what it makes once, such as constants on the device, is there at the second time.
        """
        ...

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return what replays the operations of `function`, which may or may not have run by then."""
        ...

    def needs_capturable(self, device: torch.device) -> bool:
        """Return whether an optimizer has to keep its count of steps on the device."""
        ...


class TapeCapture:
    """Replay one operation at a time, on any device: for tests, and to see whether something can be captured.

    >>> x = torch.zeros(1)
    >>> replay = TapeCapture().capture(lambda: None if x.add_(1) is x else None)
    >>> replay(); x
    tensor([2.])
    """

    def refuse(self, device: torch.device) -> None:
        """Refuse nothing."""

    def warm_up(self, function: Callable[[], None]) -> None:
        """Run the function, and again, when host reads are refused."""
        function()
        with WithoutHostReads(), capturing():
            function()

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Run the function and return what runs its operations again."""
        tape = Tape()
        with tape, capturing():
            function()
        return tape.replay

    def needs_capturable(self, device: torch.device) -> bool:
        """Return whether torch captures an optimizer of tensors on `device` only if it is told."""
        return device.type == "cuda"


class CudaCapture:
    """Capture CUDA graphs that share their memory.

    >>> CudaCapture().needs_capturable(torch.device("cuda"))
    True
    """

    def __init__(self) -> None:
        self.pool: Any = None

    def refuse(self, device: torch.device) -> None:
        """Raise CaptureError without a CUDA device, or where the network is elsewhere."""
        if not torch.cuda.is_available():
            raise CaptureError(
                "a graph was asked for and this machine has no CUDA device: a CUDA graph needs one; learn without a "
                "graph, or pass capture=TapeCapture() to test the same steps on the CPU, no faster"
            )
        if device.type != "cuda":
            raise CaptureError(
                f"a graph was asked for and the network is on {device}: write net.to('cuda') and build the optimizer "
                f"after it"
            )

    def warm_up(self, function: Callable[[], None]) -> None:
        """Run the function twice on a stream of its own, as capturing asks; the second time host reads are refused."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function()
            with WithoutHostReads(), capturing():
                function()
        torch.cuda.current_stream().wait_stream(stream)

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Capture the function, which does not run, and return the graph's replay."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"), capturing():
            function()
        self.pool = self.pool or graph.pool()
        replay: Callable[[], None] = graph.replay
        return replay

    def needs_capturable(self, device: torch.device) -> bool:
        """Return True."""
        return True


__all__ = ["Capture", "CaptureError", "CudaCapture", "Tape", "TapeCapture", "WithoutHostReads", "is_host_read"]
