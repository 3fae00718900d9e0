"""Evidence accumulation: cues counted from the spikes, their side, and how often it is the majority's."""

import math

import numpy as np
import pytest

from snnlearn.data import EvidenceAccumulation, EvidenceAccumulationOptions

# One spike in every step of a channel that is on: the sequence can be written down.
SHARP = {"dt_ms": 10, "rate_hz": 100.0, "noise_hz": 0.0}
SHORT = EvidenceAccumulationOptions(dt_ms=5, delay_ms=100)


def count(data: EvidenceAccumulation, index: int) -> list[int]:
    """The side of every cue from the spikes alone: the one group of the two that fires in its slot."""
    options, x = data.options, data[index][0].numpy()
    slot = options.spacing_ms // options.dt_ms
    sides = []
    for number in range(options.cues):
        seen = x[number * slot : (number + 1) * slot]
        left, right = seen[:, : options.group].any(), seen[:, options.group : 2 * options.group].any()
        assert left != right
        sides.append(int(right))
    return sides


def test_a_sequence_by_hand() -> None:
    """Two steps of silence, one of cue, three times; two steps of delay; one of recall."""
    times = {"cues": 3, "cue_ms": 10, "spacing_ms": 30, "delay_ms": 20, "recall_ms": 10}
    data = EvidenceAccumulation("train", EvidenceAccumulationOptions(train=2, group=1, bias=1.0, **times, **SHARP))
    silence, recall = [0, 0, 0, 0], [0, 0, 1, 0]
    for index, cue in enumerate(([1, 0, 0, 0], [0, 1, 0, 0])):
        x, label = data[index]
        assert x.tolist() == [*[silence, silence, cue] * 3, silence, silence, recall]
        assert label == index


def test_groups_and_phases() -> None:
    options = EvidenceAccumulationOptions(train=30, cue_ms=40, group=2, delay_ms=60, **SHARP)
    assert (options.steps, options.channels, options.answer_steps) == (105 + 6 + 15, 8, 15)
    data = EvidenceAccumulation("train", options)
    for index in range(30):
        expected = np.zeros((126, 4))
        for number, side in enumerate(data.sides(index)):
            expected[15 * number + 11 : 15 * number + 15, side] = 1
        expected[111:, 2] = 1
        np.testing.assert_array_equal(data[index][0].numpy(), np.repeat(expected, 2, axis=1))


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_label_is_the_majority_of_the_cues_that_are_seen(split: str) -> None:
    data = EvidenceAccumulation(split, SHORT)
    for index in range(100):
        sides = count(data, index)
        assert sides == data.sides(index).tolist()
        assert data[index][1] == data.labels[index] == (sides.count(1) > sides.count(0))


def test_no_place_of_a_cue_gives_the_label_away() -> None:
    """The reader above is no wiser than what it reads: each single cue is wrong now and then."""
    data = EvidenceAccumulation("train", SHORT)
    sides = np.stack([data.sides(index) for index in range(300)])
    right = (sides == data.labels[:300, None]).mean(axis=0)
    assert (right > 0.55).all()
    assert (right < 0.9).all()


def test_chance_is_a_half() -> None:
    data = EvidenceAccumulation("test", SHORT)
    assert data.chance == np.bincount(data.labels).max() / len(data) == 0.5
    assert data.labels[:4].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("bias", [0.5, 0.7, 1.0])
def test_cues_are_on_the_side_of_the_majority_as_often_as_they_should(bias: float) -> None:
    """By the binomial law: k of 7 cues on a side with probability `bias`, turned round where k is below 4."""
    data = EvidenceAccumulation("train", EvidenceAccumulationOptions(train=2000, bias=bias))
    law = [math.comb(7, k) * bias**k * (1 - bias) ** (7 - k) for k in range(8)]
    expected = sum(chance * max(k, 7 - k) / 7 for k, chance in enumerate(law))
    share = np.mean([data.sides(index) == data.labels[index] for index in range(2000)])
    assert abs(share - expected) <= 4 * np.sqrt(expected * (1 - expected) / 2000)


def test_channels_fire_at_their_rates_and_are_silent_while_off() -> None:
    options = EvidenceAccumulationOptions(train=60, delay_ms=300)
    data = EvidenceAccumulation("train", options)
    x = np.stack([data[index][0].numpy() for index in range(60)]).reshape(60, 1500, 4, 10)
    cued = (np.arange(1050) % 150 >= 50).nonzero()[0]
    for index in range(60):
        on = np.repeat(data.sides(index), 100)
        assert not x[index, cued, 1 - on].any()
    between = np.setdiff1d(np.arange(1350), cued)
    assert not x[:, between, :2].any()
    assert not x[:, 1350:, :2].any()
    assert not x[:, :1350, 2].any()
    # Spikes a second in steps of 1 ms, within four standard deviations of a Bernoulli count.
    for seen, hertz in ((x[:, cued, :2].sum(axis=2), 40), (x[:, 1350:, 2], 40), (x[:, :, 3], 10)):
        assert abs(seen.mean() * 1000 - hertz) < 4000 * np.sqrt(hertz / 1000 / seen.size)


def test_the_published_lengths() -> None:
    options = EvidenceAccumulationOptions()
    assert (options.cues, options.cue_ms, options.spacing_ms, options.recall_ms) == (7, 100, 150, 150)
    assert (options.steps, options.channels) == (2250, 40)
    said = EvidenceAccumulation("test", EvidenceAccumulationOptions(test=3, dt_ms=10)).describe()
    assert "left: 2, right: 1" in said
    assert "225 steps of 10 ms: 7 cues of 100 ms every 150 ms, 1050 ms of delay, 150 ms of recall" in said
