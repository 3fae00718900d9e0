"""Store and recall: the answers of a state machine of its own, which sees nothing but the spikes."""

import numpy as np
import pytest
import torch

from snnlearn.data import StoreRecall, StoreRecallOptions

SHARP = {"rate": 1.0, "noise": 0.0}


def machine(x: np.ndarray, period_steps: int, group: int, obey: bool = True) -> list[int]:
    """Answer by remembering: a period's groups are on where they fire in more than a fifth of its places.

    With `obey` False every bit is remembered, whether the command to store it came or not.
    """
    memory, answers = -1, []
    for period in x.reshape(-1, period_steps, 4, group):
        zero, one, store, recall = (period.mean(axis=(0, 2)) > 0.2).tolist()
        assert zero != one
        assert not (store and recall)
        answers += [memory if recall else -100] * period_steps
        if store or not obey:
            memory = int(one)
    return answers


def test_a_sequence_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits 1 0 0 1 0 with the commands store, nothing, recall, store, recall: the answers are 1 and 1."""
    data = StoreRecall("train", StoreRecallOptions(train=1, periods=5, period_steps=1, group=1, **SHARP))
    stream = np.array([1, 0, 0, 1, 0]), np.array([1, 0, 2, 1, 2])
    monkeypatch.setattr("snnlearn.data.tasks.store_recall._stream", lambda options, random: stream)
    x, y = data[0]
    assert x.tolist() == [[0, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 1]]
    assert torch.as_tensor(y).tolist() == [-100, -100, 1, -100, 1]


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    "options",
    [
        StoreRecallOptions(periods=12, period_steps=2, group=1, **SHARP),
        StoreRecallOptions(store=0.5, recall=0.5, periods=9),
        StoreRecallOptions(),
    ],
    ids=["sharp", "busy", "default"],
)
def test_the_answers_are_those_of_a_state_machine(options: StoreRecallOptions, split: str) -> None:
    data = StoreRecall(split, options)
    for index in range(150):
        x, y = data[index]
        assert torch.as_tensor(y).tolist() == machine(x.numpy(), options.period_steps, options.group)


def test_a_machine_that_stores_without_command_is_at_chance() -> None:
    data = StoreRecall("train", StoreRecallOptions(periods=8, period_steps=4, store=0.0, recall=0.0, group=10))
    last = [(machine(x.numpy(), 4, 10, obey=False)[-1], int(y[-1])) for x, y in (data[i] for i in range(400))]
    assert abs(np.mean([told == right for told, right in last]) - 0.5) < 4 * 0.5 / 20


def test_the_stream_is_what_the_spikes_show() -> None:
    data = StoreRecall("test", StoreRecallOptions(periods=7, period_steps=3, group=2, **SHARP))
    for index in range(50):
        bits, commands = data.stream(index)
        expected = np.zeros((7, 4))
        expected[np.arange(7), bits] = 1
        expected[:, 2], expected[:, 3] = commands == 1, commands == 2
        x = data[index][0].numpy()
        np.testing.assert_array_equal(x, np.repeat(np.repeat(expected, 2, axis=1), 3, axis=0))


@pytest.mark.parametrize(("store", "recall"), [(0.2, 0.2), (0.0, 0.6), (0.7, 0.3), (0.0, 0.0)])
def test_commands_come_as_often_as_asked(store: float, recall: float) -> None:
    options = StoreRecallOptions(periods=20, store=store, recall=recall)
    data = StoreRecall("train", options)
    commands = np.stack([data.stream(index)[1] for index in range(500)])
    assert (commands[:, 0] == 1).all()
    assert (commands[:, -1] == 2).all()
    middle = commands[:, 1:-1]
    for command, share in ((1, store), (2, recall)):
        assert abs((middle == command).mean() - share) <= 4 * np.sqrt(share * (1 - share) / middle.size)


def test_chance_is_a_half() -> None:
    """Neither answer is the more frequent one, and the bit of the recall's own period has nothing to do with it."""
    data = StoreRecall("train", StoreRecallOptions(periods=10, period_steps=1))
    answers, own = [], []
    for index in range(1000):
        y = torch.as_tensor(data[index][1]).numpy()
        bits, _ = data.stream(index)
        answers += y[y >= 0].tolist()
        own += bits[y >= 0].tolist()
    spread = 4 * 0.5 / np.sqrt(1000)  # answers of a sequence hang together
    assert len(answers) > 2000
    assert data.chance == 0.5
    assert abs(np.mean(answers) - 0.5) < spread
    assert abs(np.mean(np.array(answers) == own) - 0.5) < spread


def test_it_says_how_it_runs() -> None:
    options = StoreRecallOptions(periods=4, period_steps=5)
    assert (options.steps, options.channels, options.answer_steps) == (20, 20, None)
    data = StoreRecall("test", options)
    assert "a label at every step that has one: 0, 1" in data.describe()
    assert "20 steps: 4 periods of 5, stored 0.2, recalled 0.2 of those in the middle" in data.describe()
