"""A tiny learner and tiny recordings, for tests of the trainer."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snnlearn import LI, LIF, OTTT, ETBlock, ETLinear, OnlineLearner, SequenceLoss, TimeConstantDropout
from snnlearn.data import collate
from snnlearn.training import Batches, Options, Trainer

STEPS = 3


class TinyRecordings(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Frames [T, 1, 2, 3] that tell the two classes apart; `visit` is called with every index that is read."""

    def __init__(self, count: int, visit: Callable[[int], None] | None = None) -> None:
        generator = torch.Generator().manual_seed(5)
        self.labels = [index % 2 for index in range(count)]
        self.frames = torch.rand(count, STEPS, 1, 2, 3, generator=generator) * 2
        self.frames[1::2, :, :, 0] += 2
        self.visit = visit

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.visit is not None:
            self.visit(index)
        return self.frames[index], self.labels[index]


def tiny_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), ETBlock(ETLinear(6, 5), LIF()), TimeConstantDropout(0.2), ETBlock(ETLinear(5, 2), LI())
    )


def make_trainer(
    folder: Path,
    epochs: int = 2,
    count: int = 10,
    visit: Callable[[int], None] | None = None,
    dataset: Any = None,
    scheduler: bool = True,
    scale: float = 1.0,
    **options: Any,
) -> Trainer:
    """Return a trainer of the tiny learner; everything in it follows from the seed."""
    torch.manual_seed(3)
    net = tiny_net()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(scale)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    learner = OnlineLearner(net, OTTT(), SequenceLoss(), optimizer)
    data = TinyRecordings(count, visit) if dataset is None else dataset
    held_out = TinyRecordings(6)
    return Trainer(
        learner,
        Batches(data, range(len(data)), 4, collate, seed=7, shuffle=True),
        Batches(held_out, range(6), 4, collate),
        folder,
        Options(epochs=epochs, log_every=1, progress="lines", **options),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4) if scheduler else None,
        record={"config": {"seed": 3}},
    )


@pytest.fixture
def trainer_in(tmp_path: Path) -> Callable[..., Trainer]:
    """Make a trainer in a named folder below the test's own."""

    def make(name: str = "run", **options: Any) -> Trainer:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        return make_trainer(folder, **options)

    return make


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Nets this small only wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
