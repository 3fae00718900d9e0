"""What the machine says of its memory and its caches, with stated numbers where it says nothing."""

import os
from contextlib import suppress
from pathlib import Path

import torch

UNKNOWN_MEMORY = 2**30
"""What counts as free memory (bytes) where the system does not tell."""

UNKNOWN_CACHE = 8 * 2**20
"""What counts as the last cache (bytes) where the system does not tell."""


def cache_size(device: torch.device | None = None) -> int:
    """Return the bytes of the last cache of the processor that `device` is, `UNKNOWN_CACHE` where nobody tells.

    >>> cache_size() > 0
    True
    """
    if device is not None and device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [_size(path.read_text()) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    sizes += [_asked(f"SC_LEVEL{level}_CACHE_SIZE") for level in (2, 3)]
    return max(sizes, default=0) or UNKNOWN_CACHE


def _size(text: str) -> int:
    """Return the bytes in a text such as 32K, 0 for one that says something else."""
    number, unit = text.strip()[:-1], text.strip()[-1:]
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(unit, 0)
    return int(number) * scale if number.isdigit() else 0


def free_memory(device: torch.device | None = None) -> int:
    """Return the bytes of memory that are free on `device`, `UNKNOWN_MEMORY` where nobody tells.

    >>> free_memory() > 0
    True
    """
    if device is not None and device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _asked("SC_AVPHYS_PAGES") * _asked("SC_PAGE_SIZE") or UNKNOWN_MEMORY


def _asked(name: str) -> int:
    """Return what the system says of itself, 0 where it does not."""
    with suppress(AttributeError, ValueError, OSError):  # no sysconf, no such name, no answer
        return max(0, os.sysconf(name))
    return 0


__all__ = ["UNKNOWN_CACHE", "UNKNOWN_MEMORY", "cache_size", "free_memory"]
