"""Copy: labels against the symbols that are seen, strings that come once, chance by counting."""

from typing import Any

import numpy as np
import pytest

from snnlearn.data import Copy, CopyOptions

# 3^4 = 81 strings (all of them are listed and shuffled), and 8^6 = 262,144 (too many: they are drawn).
FEW = {"symbols": 3, "length": 4, "train": 60, "test": 21}
MANY = {"symbols": 8, "length": 6, "train": 900, "test": 300}
both = pytest.mark.parametrize("words", [FEW, MANY], ids=["listed", "drawn"])


def parts(**words: Any) -> dict[str, Copy]:
    return {split: Copy(split, CopyOptions(**words)) for split in ("train", "test")}


def test_a_sequence_by_hand() -> None:
    data = Copy("train", CopyOptions(symbols=3, length=2, hold=2, delay=1, train=8, test=1))
    data.strings[4] = [2, 0]
    x, y = data[4]
    two, zero, recall, silence = [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]
    assert x.tolist() == [two, two, zero, zero, silence, recall, recall, recall, recall]
    assert y.tolist() == [-100] * 5 + [2, 2, 0, 0]


@both
@pytest.mark.parametrize("hold", [1, 3])
def test_the_labels_are_the_symbols_shown(words: dict[str, Any], hold: int) -> None:
    """Read step by step: what is shown goes into a queue, and every step of recall takes the first out of it."""
    for data in parts(**words, hold=hold, delay=4).values():
        assert data.options.steps == 2 * hold * words["length"] + 4
        for index in range(len(data)):
            x, y = data[index]
            queue: list[int] = []
            expected = []
            for step in x.tolist():
                assert sum(step) <= 1
                expected.append(queue.pop(0) if step[-1] else -100)
                queue += [symbol for symbol, shown in enumerate(step[:-1]) if shown]
            assert queue == []
            assert y.tolist() == expected
            assert y[y >= 0].tolist() == np.repeat(data.strings[index], hold).tolist()


@both
def test_no_string_comes_twice(words: dict[str, Any]) -> None:
    train, test = ({tuple(string) for string in data.strings.tolist()} for data in parts(**words).values())
    assert (len(train), len(test)) == (words["train"], words["test"])
    assert not train & test


def test_all_strings_that_there_are_can_be_asked_for() -> None:
    train, test = (data.strings.tolist() for data in parts(**FEW).values())
    assert sorted(train + test) == [
        [a, b, c, d] for a in range(3) for b in range(3) for c in range(3) for d in range(3)
    ]


def test_chance_is_one_over_symbols() -> None:
    """Counted over all strings exactly, over drawn ones within four standard deviations, at every place."""
    listed = np.concatenate([data.strings for data in parts(**FEW).values()])
    for place in range(4):
        assert (np.bincount(listed[:, place]) / 81 == 1 / 3).all()
    data = parts(**MANY)["train"]
    assert data.chance == 1 / 8
    labels = np.stack([y.numpy()[-6:] for _, y in (data[index] for index in range(900))])
    spread = 4 * np.sqrt(1 / 8 * 7 / 8 / 900)
    for place in range(6):
        assert np.abs(np.bincount(labels[:, place], minlength=8) / 900 - 1 / 8).max() < spread
    after = labels[:, 1:][labels[:, :-1] == 3]  # a symbol tells nothing of the next one
    assert np.abs(np.bincount(after, minlength=8) / len(after) - 1 / 8).max() < 4 * np.sqrt(7 / 64 / len(after))


def test_both_ways_to_draw_follow_the_seed() -> None:
    for words in (FEW, MANY):
        first, again, other = (parts(**words, seed=seed)["train"].strings for seed in (3, 3, 4))
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)


def test_classes_and_words() -> None:
    data = Copy("test", CopyOptions(symbols=5, length=4, hold=2, delay=7, train=100))
    assert data.classes == ("0", "1", "2", "3", "4")
    assert data.channels == 6
    assert "a label at every step that has one: 0, 1, 2, 3, 4" in data.describe()
    assert "23 steps: 4 symbols of 2, 7 of delay, then as many of recall" in data.describe()
