"""Delayed exclusive or: the label recomputed from the spikes alone."""

import numpy as np
import pytest

from snnlearn.data import DelayedXor, DelayedXorOptions

# A channel that is on fires at every step, any other never: the sequence can be written down.
SHARP = {"rate": 1.0, "noise": 0.0}


def cue(x: np.ndarray, start: int, steps: int, group: int) -> int:
    """Which of the first two groups fires more in steps start..start + steps."""
    zero, one = (x[start : start + steps, k * group : (k + 1) * group].sum() for k in (0, 1))
    return int(one > zero)


def read(data: DelayedXor, index: int, shift: int = 0) -> int:
    """The exclusive or of both cues, from the input alone; `shift` misplaces the second one."""
    options, x = data.options, data[index][0].numpy()
    first = cue(x, 0, options.cue_steps, options.group)
    return first ^ cue(x, options.cue_steps + options.delay + shift, options.cue_steps, options.group)


def test_sequences_by_hand() -> None:
    data = DelayedXor("train", DelayedXorOptions(train=4, cue_steps=1, delay=2, answer=1, group=1, **SHARP))
    zero, one, answer, silence = [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]
    cues = [(zero, zero), (zero, one), (one, zero), (one, one)]
    for index, ((first, second), label) in enumerate(zip(cues, [0, 1, 1, 0], strict=True)):
        x, y = data[index]
        assert (x.tolist(), y) == ([first, silence, silence, second, answer], label)


def test_groups_and_phases() -> None:
    options = DelayedXorOptions(train=8, cue_steps=3, delay=4, answer=2, group=2, **SHARP)
    assert (options.steps, options.channels, options.answer_steps) == (12, 6, 2)
    data = DelayedXor("train", options)
    for index in range(8):
        first, second = data.cues[index]
        expected = np.zeros((12, 3))
        expected[:3, first] = expected[7:10, second] = expected[10:, 2] = 1
        np.testing.assert_array_equal(data[index][0].numpy(), np.repeat(expected, 2, axis=1))


def test_no_delay_puts_the_cues_side_by_side() -> None:
    data = DelayedXor("train", DelayedXorOptions(train=4, cue_steps=1, delay=0, answer=1, group=1, **SHARP))
    assert data[2][0].tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_label_is_the_exclusive_or_of_the_cues_that_are_seen(split: str) -> None:
    data = DelayedXor(split)
    assert [read(data, index) for index in range(200)] == [data[index][1] for index in range(200)]
    assert data.labels[:200].tolist() == [data[index][1] for index in range(200)]


def test_a_reader_that_looks_elsewhere_is_wrong() -> None:
    """What would be read right whatever the input is proves nothing: the answer's steps hold no cue."""
    data = DelayedXor("train", DelayedXorOptions(train=200, noise=0.3, rate=0.9))
    late = [read(data, index, shift=5) == data[index][1] for index in range(200)]
    assert 60 < sum(late) < 140
    assert all(read(data, index) == data[index][1] for index in range(200))


def test_chance_is_a_half_and_neither_cue_tells_the_label() -> None:
    data = DelayedXor("train", DelayedXorOptions(train=400))
    seen = np.array([[cue(data[index][0].numpy(), start, 5, 5) for start in (0, 25)] for index in range(400)])
    np.testing.assert_array_equal(seen, data.cues)
    assert np.unique(seen, axis=0, return_counts=True)[1].tolist() == [100] * 4
    assert np.bincount(data.labels).max() / 400 == data.chance == 0.5
    for place in (0, 1):
        for value in (0, 1):
            assert data.labels[seen[:, place] == value].mean() == 0.5


def test_channels_fire_at_rate_and_noise() -> None:
    options = DelayedXorOptions(train=400, rate=0.7, noise=0.05)
    data = DelayedXor("train", options)
    on = np.zeros((400, 35, 3), bool)
    for index, (first, second) in enumerate(data.cues):
        on[index, :5, first] = on[index, 25:30, second] = on[index, 30:, 2] = True
    x = np.stack([data[index][0].numpy() for index in range(400)])
    for channels, rate in ((np.repeat(on, 5, axis=2), 0.7), (np.repeat(~on, 5, axis=2), 0.05)):
        assert abs(x[channels].mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / channels.sum())


def test_it_says_how_it_runs() -> None:
    data = DelayedXor("test", DelayedXorOptions(test=4))
    assert "same: 2, different: 2" in data.describe()
    assert "35 steps: two cues of 5, 20 apart, the answer in the last 5" in data.describe()
