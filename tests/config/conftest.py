"""A configuration of a run of a second or two."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from runs import composed, small_words, write_nmnist

from snnlearn.config import Config, load


@pytest.fixture(scope="session")
def nmnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small N-MNIST in the true format."""
    return write_nmnist(tmp_path_factory.mktemp("nmnist"))


@pytest.fixture
def small(nmnist: Path) -> Callable[..., Config]:
    """Make a checked configuration of a run on the small N-MNIST."""

    def make(*words: str) -> Config:
        return load(composed(*small_words(nmnist), *words))

    return make


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Nets this small only wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
