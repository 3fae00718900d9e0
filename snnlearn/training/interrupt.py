"""Ctrl-C as a request: the first one is noted, the second one stops at once."""

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["StopRequest"]


class StopRequest:
    """Note SIGINT and SIGTERM while the `with` block runs; `requested` tells whether one came.

    The first signal only sets `requested`, so that the running batch can end; a second one raises
    KeyboardInterrupt where it arrives. Outside the main thread, where Python allows no handlers, it notes nothing.

    >>> with StopRequest() as stop:
    ...     signal.raise_signal(signal.SIGINT)
    ...     stop.requested
    True
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
