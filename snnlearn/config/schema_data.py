"""Knobs of the group `dataset`: event recordings, and what every dataset tells of itself."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from snnlearn.config.knob import knob
from snnlearn.data.tasks.options import TaskOptions

__all__ = ["DataConfig", "DigitsConfig", "NMNISTConfig", "Recordings"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What the rest of a run has to know of a dataset: its form, and how much of it is used."""

    per_step: ClassVar[bool] = False  # a target at every step, instead of one label each
    numbers: ClassVar[bool] = False  # the targets are numbers to follow, no labels

    validation: float = knob(
        "share of the training data kept for validation, evenly over the classes", at_least=0, below=1
    )
    limit: int | None = knob(
        "use only so many recordings of each split, evenly over the classes; null: all", at_least=1
    )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one step: (polarities, rows, columns), or (channels,)."""
        raise NotImplementedError(f"{type(self).__name__} has to define input_shape")

    @property
    def output_count(self) -> int:
        """Classes, or numbers to follow."""
        raise NotImplementedError(f"{type(self).__name__} has to define output_count")

    @property
    def total_steps(self) -> int | None:
        """Steps T; None where recordings differ or only the files know."""
        return None

    @property
    def answer_steps(self) -> int | None:
        """Steps at the end that ask for the label; None for all, or where targets are per step."""
        return None

    @property
    def step_ms(self) -> float | None:
        """Length of a step, milliseconds, where the data has one."""
        return None

    @property
    def task(self) -> TaskOptions | None:
        """What a made-up task is made from; None for recordings."""
        return None


@dataclass(frozen=True, kw_only=True)
class Recordings(DataConfig):
    """Events of a camera, as frames."""

    by: Literal["number", "duration"] = knob("cut time into a fixed number of bins, or into bins of fixed length")
    steps: int | None = knob(
        "bins of a recording; null (only by duration): as many as it lasts", unit="steps", at_least=1
    )
    window_us: int = knob("the time that a fixed number of bins shares", unit="microseconds", at_least=1)
    bin_us: int = knob("length of a bin of fixed length", unit="microseconds", at_least=1)
    binary: bool = knob("keep only whether a bin has an event, not how many; this loses events")
    sparse: bool = knob("keep recordings as lists of events, never frames: faster for few events in long chunks")
    shift: int = knob(
        "move each training recording by up to so many pixels in x and y, anew in every epoch; 0: not at all",
        unit="pixels",
        at_least=0,
        below=34,
    )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Polarities, rows, columns."""
        return (2, 34, 34)

    @property
    def output_count(self) -> int:
        """Ten digits."""
        return 10

    @property
    def total_steps(self) -> int | None:
        """Bins of a recording."""
        return self.steps


@dataclass(frozen=True, kw_only=True)
class DigitsConfig(Recordings):
    """Real handwritten digits seen by a simulated event camera."""

    name: Literal["digits"] = knob("scikit-learn's handwritten digits, seen by a simulated event camera")
    cache_dir: Path | None = knob(  # noqa: RUF009
        "folder that keeps the simulated recordings; null: the cache folder of the user"
    )


@dataclass(frozen=True, kw_only=True)
class NMNISTConfig(Recordings):
    """The real N-MNIST recordings."""

    name: Literal["nmnist"] = knob("the real N-MNIST recordings, from files on disk")
    root: Path = knob("folder that holds Train/0 ... Test/9")  # noqa: RUF009
