"""Show how far a run is and how long it will take: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Any, Literal, Protocol, runtime_checkable

__all__ = ["BarProgress", "LineProgress", "Progress", "ProgressKind", "duration", "make_progress"]

ProgressKind = Literal["auto", "bar", "lines"]


@runtime_checkable
class Progress(Protocol):
    """What the trainer tells of its progress; use it as a context manager."""

    def __enter__(self) -> "Progress": ...

    def __exit__(self, *_: Any) -> None: ...

    def batch(self, done: int, text: str) -> None:
        """Say that `done` batches of the whole run are finished; `text` is what the bar shows."""

    def line(self, done: int, text: str) -> None:
        """Print a line that stays, after `done` batches; the time left is added to it."""


def make_progress(kind: ProgressKind, total: int, done: int = 0) -> Progress:
    """Return the progress display of a run of `total` batches of which `done` were finished before.

    `auto` takes the bar where standard error is a terminal.

    >>> type(make_progress("lines", total=10)).__name__
    'LineProgress'
    """
    if kind == "bar" or (kind == "auto" and sys.stderr.isatty()):
        return BarProgress(total, done)
    return LineProgress(total, done)


def duration(seconds: int | float) -> str:
    """Write a duration in the largest fitting units.

    >>> duration(7.4), duration(84), duration(3720)
    ('7 s', '1 min 24 s', '1 h 02 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    )


class LineProgress:
    """Print one line an epoch to standard error, with the time that the rest will take at this pace."""

    def __init__(self, total: int, done: int = 0) -> None:
        self._total, self._start = total, done
        self._began = time.monotonic()

    def __enter__(self) -> "LineProgress":
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        sys.stderr.flush()

    def batch(self, done: int, text: str) -> None:
        """Do nothing: lines are for epochs."""

    def line(self, done: int, text: str) -> None:
        """Print `text` and the time left."""
        seconds = time.monotonic() - self._began
        left = seconds / max(done - self._start, 1) * (self._total - done)
        print(f"{text} | left {duration(left)}", file=sys.stderr, flush=True)


class BarProgress:
    """Draw a bar with batches, elapsed time and time left, and print the lines of epochs above it."""

    def __init__(self, total: int, done: int = 0) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("batches"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("starting", total=total, completed=done)

    def __enter__(self) -> "BarProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def batch(self, done: int, text: str) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=done, description=text)

    def line(self, done: int, text: str) -> None:
        """Print `text` above the bar."""
        self._bar.update(self._task, completed=done)
        self._bar.console.print(text, highlight=False)
