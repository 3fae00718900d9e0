"""TensorBoard curves; the package is imported only where they are wanted."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Board"]


class Board:
    """Write scalars to TensorBoard files in `folder`, or nowhere where `folder` is None.

    After a resume `first_step` hides what an interrupted run wrote at or after that step, so every curve has
    strictly increasing steps. Use it as a context manager: leaving it flushes the file, also after an error.

    >>> with Board(None) as board:
    ...     board.scalars({"loss/train": 1.0}, step=1)
    """

    def __init__(self, folder: Path | None, first_step: int | None = None) -> None:
        self._writer: Any = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=first_step)

    def scalars(self, values: Mapping[str, float | None], step: int) -> None:
        """Write every value that is a finite number, at the global `step` (batches seen)."""
        if self._writer is None:
            return
        for tag, value in values.items():
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(tag, value, step)

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
