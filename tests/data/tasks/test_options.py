"""What all made-up tasks share: seeds, order of access, splits, and options that cannot be."""

import dataclasses
import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from snnlearn.config import schema_tasks
from snnlearn.config.schema_tasks import TaskConfig
from snnlearn.data import (
    Copy,
    CopyOptions,
    DataError,
    DelayedXor,
    DelayedXorOptions,
    EvidenceAccumulation,
    EvidenceAccumulationOptions,
    PatternGeneration,
    PatternGenerationOptions,
    SequenceDataset,
    StepTargets,
    StoreRecall,
    StoreRecallOptions,
    TaskOptions,
    collate_sequences,
)
from snnlearn.data.tasks.options import check_split, generator_of, spikes

SIZES: dict[str, int] = {"train": 24, "test": 8}
# Of each task: its dataset, its options, and settings that make it small and every sequence another one.
TASKS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "delayed_xor": (DelayedXor, DelayedXorOptions, {"delay": 4}),
    "copy": (Copy, CopyOptions, {"symbols": 4, "length": 8}),
    "store_recall": (StoreRecall, StoreRecallOptions, {"period_steps": 4}),
    "evidence_accumulation": (EvidenceAccumulation, EvidenceAccumulationOptions, {"dt_ms": 10, "delay_ms": 50}),
    "pattern_generation": (PatternGeneration, PatternGenerationOptions, {"length": 30, "drop": 0.3}),
}
every_task = pytest.mark.parametrize("name", TASKS)


def made(name: str, split: str = "train", **words: Any) -> SequenceDataset:
    kind, options, small = TASKS[name]
    data: SequenceDataset = kind(split, options(**{**SIZES, **small, **words}))
    return data


def content(data: SequenceDataset) -> list[tuple[bytes, bytes]]:
    """Every input and its target, as bytes."""
    return [(x.numpy().tobytes(), torch.as_tensor(y).numpy().tobytes()) for x, y in (data[i] for i in range(len(data)))]


@every_task
def test_shapes_and_types(name: str) -> None:
    for split, size in SIZES.items():
        data = made(name, split)
        options = data.options  # type: ignore[attr-defined]
        assert len(data) == len(data.labels) == size == options.count(split)
        assert (data.channels, data.title, data.name) == (options.channels, name, f"{name} {split}")
        for x, y in (data[index] for index in range(size)):
            assert (tuple(x.shape), x.dtype) == ((options.steps, options.channels), torch.float32)
            assert x.unique().tolist() == [0, 1]
            assert isinstance(y, Tensor) == data.per_step
            if data.numbers:
                assert (tuple(y.shape), y.dtype) == ((options.steps, len(data.classes)), torch.float32)
            elif data.per_step:
                assert (tuple(y.shape), y.dtype) == ((options.steps,), torch.int64)
                assert set(y.tolist()) <= {-100, *range(len(data.classes))}
            else:
                assert type(y) is int
                assert 0 <= y < len(data.classes)


@every_task
def test_a_seed_makes_a_set(name: str) -> None:
    assert content(made(name)) == content(made(name))
    first, other = content(made(name)), content(made(name, seed=1))
    assert not {x for x, _ in first} & {x for x, _ in other}


@every_task
def test_train_and_test_share_no_sequence(name: str) -> None:
    train, test = content(made(name)), content(made(name, "test"))
    assert (len({x for x, _ in train}), len({x for x, _ in test})) == (24, 8)
    assert not {x for x, _ in train} & {x for x, _ in test}


@every_task
def test_a_sequence_does_not_depend_on_the_others(name: str) -> None:
    forward, backward = content(made(name)), made(name)
    for index in [5, *reversed(range(24)), 5, 5]:
        x, y = backward[index]
        assert (x.numpy().tobytes(), torch.as_tensor(y).numpy().tobytes()) == forward[index]
        x.fill_(9)  # what a reader does to its own copy stays there
        torch.as_tensor(y).fill_(9)
    assert content(backward) == forward
    longer = made(name, test=9)
    assert content(longer) == forward


@every_task
def test_indices_count_from_both_ends(name: str) -> None:
    data = made(name)
    assert torch.equal(data[-1][0], data[23][0])
    assert torch.equal(data[int(np.int64(3))][0], data[3][0])
    for index in (24, -25):
        with pytest.raises(IndexError, match=f"{name} train has 24 sequences, asked for number {index}"):
            data[index]


@every_task
def test_sequences_become_batches(name: str) -> None:
    data = made(name)
    loader: DataLoader[Any] = DataLoader(data, batch_size=10, collate_fn=collate_sequences)
    batches = list(loader)
    assert [x.shape[1] for x, _, _ in batches] == [10, 10, 4]
    x, y, lengths = batches[1]
    assert torch.equal(x[:, 3], data[13][0])
    assert lengths.tolist() == [len(x)] * 10
    if data.per_step:
        assert isinstance(y, StepTargets)
        assert torch.equal(y.values[:, 3], torch.as_tensor(data[13][1]))
    else:
        assert torch.equal(y, torch.from_numpy(data.labels[10:20]))


@every_task
def test_the_log_says_what_was_made_and_what_guessing_earns(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="snnlearn.data"):
        data = made(name, "test")
    (line,) = caplog.records
    assert line.getMessage() == data.describe()
    earned = f"a mean squared error of {data.chance:g}" if data.numbers else f"{100 * data.chance:.1f} %"
    for part in (f"{name} test: 8 sequences of {data.channels} channels", f"chance: {earned}"):
        assert part in data.describe()


@every_task
def test_an_unknown_split_is_refused(name: str) -> None:
    with pytest.raises(DataError, match=f"split='validation': {name} has 'train' and 'test'"):
        made(name, "validation")


# One illegal value of each option that has a bound, and of each pair that does not go together.
ILLEGAL: list[tuple[str, dict[str, Any], str]] = [
    *((name, {"train": 0}, "train=0: 1 or more") for name in TASKS),
    *((name, {"test": -3}, "test=-3: 1 or more") for name in TASKS),
    *((name, {"seed": -1}, "seed=-1: 0 or more") for name in TASKS),
    ("delayed_xor", {"cue_steps": 0}, "cue_steps=0: 1 or more"),
    ("delayed_xor", {"delay": -1}, "delay=-1: 0 or more"),
    ("delayed_xor", {"answer": 0}, "answer=0: 1 or more"),
    ("delayed_xor", {"group": 0}, "group=0: 1 or more"),
    ("delayed_xor", {"rate": 1.5}, "rate=1.5: from 0 to 1"),
    ("delayed_xor", {"rate": float("nan")}, "rate=nan: from 0 to 1"),
    ("delayed_xor", {"noise": -0.1}, "noise=-0.1: from 0 to 1"),
    ("delayed_xor", {"noise": 0.6}, "noise=0.6: below rate, which is 0.6"),
    ("copy", {"symbols": 1}, "symbols=1: 2 or more"),
    ("copy", {"length": 0}, "length=0: 1 or more"),
    ("copy", {"hold": 0}, "hold=0: 1 or more"),
    ("copy", {"delay": -1}, "delay=-1: 0 or more"),
    ("copy", {"length": 3, "train": 57}, "train=57: at most 64 with test: there are 4^3 strings"),
    ("store_recall", {"periods": 1}, "periods=1: 2 or more"),
    ("store_recall", {"period_steps": 0}, "period_steps=0: 1 or more"),
    ("store_recall", {"store": 1.1}, "store=1.1: from 0 to 1"),
    ("store_recall", {"recall": -0.1}, "recall=-0.1: from 0 to 1"),
    ("store_recall", {"store": 0.75, "recall": 0.5}, "recall=0.5: at most 0.25 while store is 0.75"),
    ("store_recall", {"group": 0}, "group=0: 1 or more"),
    ("store_recall", {"rate": -1.0}, "rate=-1.0: from 0 to 1"),
    ("store_recall", {"noise": 2.0}, "noise=2.0: from 0 to 1"),
    ("store_recall", {"noise": 0.7}, "noise=0.7: below rate, which is 0.5"),
    ("evidence_accumulation", {"cues": 0}, "cues=0: 1 or more"),
    ("evidence_accumulation", {"cues": 4}, "cues=4: an odd number"),
    ("evidence_accumulation", {"cue_ms": 0}, "cue_ms=0: 1 or more"),
    ("evidence_accumulation", {"cue_ms": 25}, "cue_ms=25: a multiple of dt_ms, which is 10"),
    ("evidence_accumulation", {"spacing_ms": 0}, "spacing_ms=0: 1 or more"),
    ("evidence_accumulation", {"spacing_ms": 90}, "spacing_ms=90: at least cue_ms, which is 100"),
    ("evidence_accumulation", {"spacing_ms": 155}, "spacing_ms=155: a multiple of dt_ms"),
    ("evidence_accumulation", {"delay_ms": -10}, "delay_ms=-10: 0 or more"),
    ("evidence_accumulation", {"delay_ms": 33}, "delay_ms=33: a multiple of dt_ms"),
    ("evidence_accumulation", {"recall_ms": 0}, "recall_ms=0: 1 or more"),
    ("evidence_accumulation", {"recall_ms": 7}, "recall_ms=7: a multiple of dt_ms"),
    ("evidence_accumulation", {"dt_ms": 0}, "dt_ms=0: 1 or more"),
    ("evidence_accumulation", {"group": 0}, "group=0: 1 or more"),
    ("evidence_accumulation", {"rate_hz": -1.0}, "rate_hz=-1.0: 0 or more"),
    ("evidence_accumulation", {"rate_hz": 101.0}, "rate_hz=101.0: at most 100, one spike a step of dt_ms 10"),
    ("evidence_accumulation", {"noise_hz": -1.0}, "noise_hz=-1.0: 0 or more"),
    ("evidence_accumulation", {"noise_hz": 200.0}, "noise_hz=200.0: at most 100"),
    ("evidence_accumulation", {"bias": 0.4}, "bias=0.4: from 0.5 to 1"),
    ("pattern_generation", {"length": 0}, "length=0: 1 or more"),
    ("pattern_generation", {"length": 10}, "length=10: at least 11 steps"),
    ("pattern_generation", {"outputs": 0}, "outputs=0: 1 or more"),
    ("pattern_generation", {"inputs": 0}, "inputs=0: 1 or more"),
    ("pattern_generation", {"rate": 1.01}, "rate=1.01: from 0 to 1"),
    ("pattern_generation", {"drop": 2.0}, "drop=2.0: from 0 to 1"),
]


@pytest.mark.parametrize(("name", "words", "message"), ILLEGAL, ids=[f"{name} {m}" for name, _, m in ILLEGAL])
def test_an_illegal_option_is_named(name: str, words: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as error:
        made(name, **words)
    assert message in str(error.value)
    assert ";" not in str(error.value)  # this one alone: the others are legal


def test_every_option_has_an_illegal_value_above() -> None:
    tried = {(name, option) for name, words, _ in ILLEGAL for option in words}
    for name, (_, options, _) in TASKS.items():
        numbers = {field.name for field in dataclasses.fields(options)}
        assert numbers == set(options.bounds) == {option for task, option in tried if task == name}


def test_illegal_options_are_listed_all_at_once() -> None:
    """First all that are out of bounds; once none is, all that do not go together."""
    with pytest.raises(DataError) as error:
        DelayedXor("train", DelayedXorOptions(train=0, answer=0, rate=7.0, delay=-1))
    for part in ("train=0: ", "answer=0: ", "rate=7.0: ", "delay=-1: "):
        assert part in str(error.value)
    with pytest.raises(DataError) as error:
        EvidenceAccumulation("train", EvidenceAccumulationOptions(cues=2, spacing_ms=55, dt_ms=10, rate_hz=200.0))
    for part in ("cues=2: ", "spacing_ms=55: at least", "spacing_ms=55: a multiple", "rate_hz=200.0: at most 100"):
        assert part in str(error.value)


def test_the_configuration_allows_nothing_that_the_options_refuse() -> None:
    kinds = [kind for kind in vars(schema_tasks).values() if isinstance(kind, type) and issubclass(kind, TaskConfig)]
    kinds.remove(TaskConfig)
    assert len(kinds) == len(TASKS)
    for kind in kinds:
        knobs = {field.name: field.metadata.get("knob") for field in dataclasses.fields(kind)}
        for name, (lowest, highest) in kind.kind.bounds.items():
            knob = knobs[name]
            assert knob is not None
            lower = knob.above if knob.at_least is None else knob.at_least
            upper = knob.below if knob.at_most is None else knob.at_most
            assert lower is not None
            assert lower >= lowest
            assert (float("inf") if upper is None else upper) <= highest


def test_options_without_a_task_say_what_is_missing() -> None:
    TaskOptions().check()
    assert [TaskOptions(train=3, test=2).count(split) for split in ("train", "test")] == [3, 2]
    assert TaskOptions().answer_steps is None
    for name in ("steps", "channels"):
        with pytest.raises(NotImplementedError, match=f"TaskOptions has to define {name}"):
            getattr(TaskOptions(), name)


def test_generators_differ_by_seed_split_and_index() -> None:
    drawn = [
        generator_of(TaskOptions(seed=seed), check_split(split, "it"), index).random(4).tobytes()
        for seed in range(3)
        for split in ("train", "test")
        for index in range(50)
    ]
    assert len(set(drawn)) == 300
    assert generator_of(TaskOptions(train=1), "train", 7).random() == generator_of(TaskOptions(), "train", 7).random()


def test_spikes_come_at_their_probability() -> None:
    probability = np.repeat([[0.0, 0.1, 0.7, 1.0]], 20_000, axis=0)
    drawn = spikes(probability, np.random.default_rng(0))
    assert (drawn.dtype, drawn.shape) == (np.uint8, (20_000, 4))
    rates = drawn.mean(axis=0)
    assert (rates[0], rates[3]) == (0, 1)
    spread = 4 * np.sqrt(probability[0] * (1 - probability[0]) / 20_000)
    assert (np.abs(rates - probability[0]) <= spread).all()
    assert abs(np.corrcoef(drawn[1:, 2], drawn[:-1, 2])[0, 1]) < 4 / np.sqrt(20_000)
