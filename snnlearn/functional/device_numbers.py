"""Fixed numbers as tensors, made once per device: making them anew copies from the host, which the device waits for."""

import functools

import torch
from torch import Tensor

Numbers = tuple[float, ...] | tuple[tuple[float, ...], ...]


def numbers_like(numbers: Numbers, like: Tensor) -> Tensor:
    """Return nested tuples of numbers as a tensor in the dtype and on the device of `like`; shared: never write to it.

    >>> numbers_like((1.0, 2.0), torch.zeros(1))
    tensor([1., 2.])
    """
    return _made(numbers, like.dtype, like.device)


@functools.lru_cache(maxsize=1024)
def _made(numbers: Numbers, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # who makes them first may be in it, and who asks again may learn
        return torch.tensor(numbers, dtype=dtype, device=device)


__all__ = ["Numbers", "numbers_like"]
