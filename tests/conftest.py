"""Shared fixtures: run-time shape checks for the whole package, seeds, devices, and the real recordings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch
from jaxtyping import install_import_hook

# The hook checks every jaxtyping annotation of the package while tests run; users never pay for it.
# torch cannot compile a function that is wrapped in a check.
if os.environ.get("SNNLEARN_KERNELS") != "compiled":
    hook = install_import_hook("snnlearn", "beartype.beartype")

from snnlearn.kernels import dispatch

# The tests' tensors are small: a second thread costs more than it brings, and the suite shares its cores.
torch.set_num_threads(1)

SHARED = Path(os.environ.get("SNNLEARN_SHARED", Path(__file__).resolve().parents[2] / "shared"))
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device of this machine, one after the other."""
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    """Run by the path that SNNLEARN_KERNELS names wherever it can: the suite tests more than any kernel can take."""
    with dispatch.use(dispatch.path_in_use(), strict=False):
        yield


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """Start every test from the same random state, and leave the default dtype as it was."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def shared_data() -> Path:
    """Folder of real recordings; the test skips where they are not at hand."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"real recordings are not at {folder}")
    return folder


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switch the run-time shape checks off: users have none, and long runs need none."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
