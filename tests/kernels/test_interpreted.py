"""Run `interpreted.py` in a process of its own: Triton decides when it is imported whether it interprets."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

TWINS = Path(__file__).with_name("interpreted.py")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(
    importlib.util.find_spec("snnlearn.kernels.neuron_scan") is None, reason="the kernels were taken out"
)
def test_the_twins_equal_their_references_under_the_interpreter() -> None:
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", "-s", str(TWINS)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(words, cwd=TWINS.parents[2], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout
    assert done.stdout.count("decisions differ") == 5
    print(done.stdout)  # how many decisions differ, for who asks with -rP
