"""Knobs of the group `dataset`, second part: sequences that need memory, made up or read from files."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from snnlearn.config.knob import knob
from snnlearn.config.schema_data import DataConfig, DigitsConfig, NMNISTConfig
from snnlearn.data.sequential_mnist import PIXELS
from snnlearn.data.tasks import (
    CopyOptions,
    DelayedXorOptions,
    EvidenceAccumulationOptions,
    PatternGenerationOptions,
    StoreRecallOptions,
    TaskOptions,
)

__all__ = [
    "CopyConfig",
    "DatasetConfig",
    "DelayedXorConfig",
    "EvidenceAccumulationConfig",
    "PatternGenerationConfig",
    "QTDBConfig",
    "SequentialMNISTConfig",
    "StoreRecallConfig",
    "TaskConfig",
]


@dataclass(frozen=True, kw_only=True)
class TaskConfig(DataConfig):
    """A made-up task: its knobs are the fields of `kind`, which knows what follows from them."""

    kind: ClassVar[type[TaskOptions]] = TaskOptions
    classes: ClassVar[int] = 2

    train: int = knob("training sequences, the validation set included", at_least=1)
    test: int = knob("test sequences", at_least=1)
    seed: int = knob("seed of the sequences, whatever the seed of the run", at_least=0, below=2**63)

    @property
    def task(self) -> TaskOptions:
        """The task's own options, of the type `kind`."""
        return self.kind(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self.kind)})

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Channels."""
        return (self.task.channels,)

    @property
    def output_count(self) -> int:
        """Classes, or numbers to follow."""
        return self.classes

    @property
    def total_steps(self) -> int:
        """Steps T of a sequence."""
        return self.task.steps

    @property
    def answer_steps(self) -> int | None:
        """Steps at the end that ask for the label."""
        return self.task.answer_steps


@dataclass(frozen=True, kw_only=True)
class DelayedXorConfig(TaskConfig):
    """Two cues far apart: did they differ?"""

    kind: ClassVar[type[TaskOptions]] = DelayedXorOptions

    name: Literal["delayed_xor"] = knob("two binary cues, a delay between them: did they differ? chance 50 %")
    cue_steps: int = knob("length of each of the two cues", unit="steps", at_least=1)
    delay: int = knob("from the end of the first cue to the second", unit="steps", at_least=0)
    answer: int = knob("steps at the end that ask for the answer", unit="steps", at_least=1)
    group: int = knob("channels of each group (cue 0, cue 1, answer)", at_least=1)
    rate: float = knob("spikes per step of a channel that is on", above=0, at_most=1)
    noise: float = knob("spikes per step of any other channel", at_least=0, below=1)


@dataclass(frozen=True, kw_only=True)
class CopyConfig(TaskConfig):
    """A string of symbols, to be given back after a delay."""

    kind: ClassVar[type[TaskOptions]] = CopyOptions
    per_step: ClassVar[bool] = True

    name: Literal["copy"] = knob("a string of symbols, to be given back after a delay; chance 1 / symbols")
    symbols: int = knob("number of different symbols", at_least=2)
    length: int = knob("symbols in a string", at_least=1)
    hold: int = knob("steps of each symbol", unit="steps", at_least=1)
    delay: int = knob("from the last symbol to the recall", unit="steps", at_least=0)

    @property
    def output_count(self) -> int:
        """One for each symbol."""
        return self.symbols


@dataclass(frozen=True, kw_only=True)
class StoreRecallConfig(TaskConfig):
    """A stream of bits with commands to keep one and to give it back."""

    kind: ClassVar[type[TaskOptions]] = StoreRecallOptions
    per_step: ClassVar[bool] = True

    name: Literal["store_recall"] = knob("a stream of bits with commands to keep one and to recall it; chance 50 %")
    periods: int = knob("periods of a sequence, each with a bit", at_least=2)
    period_steps: int = knob("length of a period", unit="steps", at_least=1)
    store: float = knob("share of the middle periods whose bit is stored", at_least=0, at_most=1)
    recall: float = knob("share of the middle periods that are recalls", at_least=0, at_most=1)
    group: int = knob("channels of each group (bit 0, bit 1, store, recall)", at_least=1)
    rate: float = knob("spikes per step of a channel that is on", above=0, at_most=1)
    noise: float = knob("spikes per step of any other channel", at_least=0, below=1)


@dataclass(frozen=True, kw_only=True)
class EvidenceAccumulationConfig(TaskConfig):
    """Cues on both sides, a delay: which side had more?"""

    kind: ClassVar[type[TaskOptions]] = EvidenceAccumulationOptions

    name: Literal["evidence_accumulation"] = knob("cues left and right, a delay: which side had more? chance 50 %")
    cues: int = knob("number of cues, odd", at_least=1)
    cue_ms: int = knob("length of a cue", unit="milliseconds", at_least=1)
    spacing_ms: int = knob("from the start of a cue to that of the next", unit="milliseconds", at_least=1)
    delay_ms: int = knob("from the end of the last cue to the recall", unit="milliseconds", at_least=0)
    recall_ms: int = knob("length of the recall, where the loss is", unit="milliseconds", at_least=1)
    dt_ms: int = knob("length of a step", unit="milliseconds", at_least=1)
    group: int = knob("channels of each group (left, right, recall, noise)", at_least=1)
    rate_hz: float = knob("spikes per second of a channel that is on", unit="hertz", above=0)
    noise_hz: float = knob("spikes per second of a noise channel", unit="hertz", at_least=0)
    bias: float = knob("probability that a cue is on the majority's side", at_least=0.5, at_most=1)

    @property
    def step_ms(self) -> float:
        """Length of a step, milliseconds."""
        return float(self.dt_ms)


@dataclass(frozen=True, kw_only=True)
class PatternGenerationConfig(TaskConfig):
    """Sums of sines to follow, given a fixed raster of spikes."""

    kind: ClassVar[type[TaskOptions]] = PatternGenerationOptions
    per_step: ClassVar[bool] = True
    numbers: ClassVar[bool] = True

    name: Literal["pattern_generation"] = knob("sums of sines to follow, from a fixed raster; chance: squared error 1")
    outputs: int = knob("number of curves to follow", at_least=1)
    length: int = knob("steps of the sequence", unit="steps", at_least=1)
    inputs: int = knob("channels of the raster", at_least=1)
    rate: float = knob("spikes per step of a channel", above=0, at_most=1)
    drop: float = knob(
        "share of the raster's spikes left out, anew in every sequence; 0: all are the same", at_least=0, below=1
    )

    @property
    def output_count(self) -> int:
        """One for each curve."""
        return self.outputs


@dataclass(frozen=True, kw_only=True)
class SequentialMNISTConfig(DataConfig):
    """MNIST read in pieces."""

    name: Literal["smnist"] = knob("MNIST read in pieces, row by row or pixel by pixel, from files; chance 10 %")
    root: Path = knob("folder that holds MNIST/raw/*-ubyte, plain or gzipped")  # noqa: RUF009
    chunk: int = knob("pixels of a step, a divisor of 784: 28 row by row, 1 pixel by pixel", at_least=1, at_most=784)
    permuted: bool = knob("take the pixels in another order, the same for every digit")
    seed: int = knob("seed of that order", at_least=0, below=2**63)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Pixels of a step."""
        return (self.chunk,)

    @property
    def output_count(self) -> int:
        """Ten digits."""
        return 10

    @property
    def total_steps(self) -> int:
        """Pieces of a digit."""
        return PIXELS // self.chunk


@dataclass(frozen=True, kw_only=True)
class QTDBConfig(DataConfig):
    """ECG as spikes, labelled at every step."""

    per_step: ClassVar[bool] = True

    name: Literal["qtdb"] = knob("ECG as spikes with a label at every step, from files; chance 33.6 %")
    root: Path = knob("folder that holds QTDB_train.mat and QTDB_test.mat")  # noqa: RUF009
    unlabelled: Literal["left_out", "P"] = knob(
        "what becomes of the steps without a label; P: taken for P waves, as in the published figure"
    )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Two leads, rises and falls of each."""
        return (4,)

    @property
    def output_count(self) -> int:
        """Six waves."""
        return 6


DatasetConfig = (
    DigitsConfig
    | NMNISTConfig
    | DelayedXorConfig
    | CopyConfig
    | EvidenceAccumulationConfig
    | StoreRecallConfig
    | PatternGenerationConfig
    | SequentialMNISTConfig
    | QTDBConfig
)
