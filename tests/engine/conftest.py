"""A network and a batch of the fidelity tests."""

import copy

import pytest
import torch
from nets import assert_alive
from oracles.networks import mlp, problem, sequence
from torch import Tensor, nn

from snnlearn import LIF

Case = tuple[nn.Module, tuple[Tensor, Tensor]]


@pytest.fixture(scope="module")
def lively_case() -> Case:
    torch.manual_seed(0)
    net, x, y = problem(mlp(lambda: LIF(decay=0.7)), sequence(7))
    assert_alive(net, x)
    return net, (x, y)


@pytest.fixture
def case(lively_case: Case) -> Case:
    """Two hidden layers and a static readout, all of which fire."""
    return copy.deepcopy(lively_case)
