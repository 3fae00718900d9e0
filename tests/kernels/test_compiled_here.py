"""Run `compiled_here.py` in a process of its own, and see what happens without a C++ compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).with_name("compiled_here.py")
LACK = """
import torch
from snnlearn import ArcTan
from snnlearn.functional.cut_step import spike_gate
from snnlearn.kernels import dispatch
one = torch.ones(2)
print(dispatch.run(spike_gate, one, ArcTan()).shape)
with dispatch.use("compiled", strict=False):
    print(dispatch.run(spike_gate, one, ArcTan()).shape)
with dispatch.use("compiled"):
    try:
        dispatch.run(spike_gate, one, ArcTan())
    except dispatch.KernelUnavailableError as error:
        print(error)
"""


def run(words: list[str], **changed: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **changed}
    return subprocess.run(
        [sys.executable, *words], cwd=HERE.parents[2], env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.mark.slow
def test_what_is_compiled_equals_its_reference() -> None:
    done = run(["-m", "pytest", "--noconftest", "-p", "no:cacheprovider", "-rs", "-x", str(HERE)])
    if "torch.compile finds no C++ compiler" in done.stdout and "passed" not in done.stdout:
        pytest.skip("torch finds no C++ compiler here")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "4 passed" in done.stdout


def test_without_a_compiler_the_reference_runs_and_a_choice_raises(tmp_path: Path) -> None:
    done = run(["-W", "ignore", "-c", LACK], CXX=str(tmp_path / "no-compiler"), PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    auto, lenient, error = done.stdout.strip().splitlines()
    assert auto == lenient == "torch.Size([2])"
    assert "spike_gate was to run as compiled, by use('compiled'), and cannot: " in error
    assert "torch.compile finds no C++ compiler" in error
    assert "use('auto') runs the reference there" in error
