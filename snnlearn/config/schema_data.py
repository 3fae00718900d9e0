"""Knobs of the group `dataset`: which recordings, and how they are cut into steps."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from snnlearn.config.knob import knob

__all__ = ["DatasetConfig", "DigitsConfig", "NMNISTConfig"]


@dataclass(frozen=True, kw_only=True)
class _Recordings:
    sensor: ClassVar[tuple[int, int, int]] = (2, 34, 34)  # polarities, rows, columns
    classes: ClassVar[int] = 10

    by: Literal["number", "duration"] = knob("cut time into a fixed number of bins, or into bins of fixed length")
    steps: int | None = knob(
        "bins of a recording; null (only by duration): as many as it lasts", unit="steps", at_least=1
    )
    window_us: int = knob("the time that a fixed number of bins shares", unit="microseconds", at_least=1)
    bin_us: int = knob("length of a bin of fixed length", unit="microseconds", at_least=1)
    binary: bool = knob("keep only whether a bin has an event, not how many; this loses events")
    validation: float = knob(
        "share of the training data kept for validation, evenly over the classes", at_least=0, below=1
    )
    shift: int = knob(
        "move each training recording by up to so many pixels in x and y, anew in every epoch; 0: not at all",
        unit="pixels",
        at_least=0,
        below=34,
    )
    limit: int | None = knob(
        "use only so many recordings of each split, evenly over the classes; null: all", at_least=1
    )


@dataclass(frozen=True, kw_only=True)
class DigitsConfig(_Recordings):
    """Real handwritten digits seen by a simulated event camera."""

    name: Literal["digits"] = knob("scikit-learn's handwritten digits, seen by a simulated event camera")
    cache_dir: Path | None = knob(  # noqa: RUF009
        "folder that keeps the simulated recordings; null: the cache folder of the user"
    )


@dataclass(frozen=True, kw_only=True)
class NMNISTConfig(_Recordings):
    """The real N-MNIST recordings."""

    name: Literal["nmnist"] = knob("the real N-MNIST recordings, from files on disk")
    root: Path = knob("folder that holds Train/0 ... Test/9")  # noqa: RUF009


DatasetConfig = DigitsConfig | NMNISTConfig
