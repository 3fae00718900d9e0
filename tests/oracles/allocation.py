"""Peak bytes held by the process's C heap, where torch's CPU tensors live, for the memory claims.

glibc counts every byte that malloc has handed out and not got back. Sampling it inside forward and backward,
where the graph of a step is alive, sees what a profiler sees at a hundredth of its price.
"""

import ctypes
import functools
import gc
from collections.abc import Callable
from typing import cast

import pytest
from torch import Tensor, nn

from snnlearn import ETBlock


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@functools.cache
def _mallinfo() -> Callable[[], _Mallinfo]:
    """Look the function up once: every lookup makes a class, which would itself move the heap."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        pytest.skip("this C library has no mallinfo2, so the heap cannot be measured")
    mallinfo.restype = _Mallinfo
    return cast(Callable[[], _Mallinfo], mallinfo)


def heap_bytes() -> int:
    """Return bytes in use: blocks in the arenas and blocks mapped on their own."""
    info = _mallinfo()()
    return int(info.uordblks + info.hblkhd)


def peak_bytes(net: nn.Module, run: Callable[[], object]) -> int:
    """Return the peak of the heap beyond its start while `run` steps the blocks of `net`."""
    gc.collect()
    start, peak = heap_bytes(), 0

    def sample(*_: object) -> None:
        nonlocal peak
        peak = max(peak, heap_bytes() - start)

    def after_forward(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        sample()
        if output.requires_grad:
            output.register_hook(sample)

    handles = [m.register_forward_hook(after_forward) for m in net.modules() if isinstance(m, ETBlock)]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    assert peak > 0, "nothing was sampled"
    return peak
