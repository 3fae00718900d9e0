"""Recordings made by hand, and the simulated digits (made once per machine, kept in the cache folder)."""

from collections.abc import Callable

import numpy as np
import pytest

from snnlearn.data import Digits, EventSample


@pytest.fixture
def sample() -> Callable[..., EventSample]:
    """Make a recording of n random events on 2 x 34 x 34, in random order of time."""

    def make(events: int = 500, length_us: int = 300_000, label: int = 3, seed: int = 0) -> EventSample:
        random = np.random.default_rng(seed)
        time = random.integers(0, length_us, events).astype(np.int32)
        return EventSample(time, random.integers(0, 2 * 34 * 34, events).astype(np.int32), length_us, label)

    return make


@pytest.fixture(scope="session")
def digits() -> dict[str, Digits]:
    """Both parts of the simulated set, from the default cache folder."""
    return {"train": Digits("train"), "test": Digits("test")}
