"""A network with traces, all of which move, and its input."""

from __future__ import annotations

import pytest
import torch
from nets import live_input, live_net
from torch import Tensor, nn

from snnlearn import OTTT, attach


@pytest.fixture
def net(device: torch.device) -> nn.Sequential:
    """A hidden block and a readout that follow OTTT."""
    built = live_net(device)
    attach(built, OTTT())
    return built


@pytest.fixture
def x(device: torch.device) -> Tensor:
    """Five steps of four samples."""
    return live_input(5, 4, device=device)
