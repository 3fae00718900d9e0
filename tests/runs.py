"""What tests of whole runs share: the shipped configuration, small N-MNIST files in the true format, the scripts."""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snnlearn.config.compose import compose_values
from snnlearn.data.nmnist import encode_events

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
LIBRARIES = ["snnlearn.config.cli", "snnlearn.config.fidelity", "torch._dynamo", "torch.utils.tensorboard"]


def composed(*words: str) -> dict[str, Any]:
    """What Hydra makes of these words."""
    return compose_values(CONFIGS, words)


def write_nmnist(root: Path, train: int = 3, test: int = 2) -> Path:
    """Write so many recordings a class: class k has its events in rows 3k to 3k + 2."""
    generator = np.random.default_rng(0)
    for split, count in (("Train", train), ("Test", test)):
        for label in range(10):
            folder = root / split / str(label)
            folder.mkdir(parents=True)
            for number in range(count):
                time = np.sort(generator.integers(0, 300_000, 200)).astype(np.int32)
                rows = generator.integers(3 * label, 3 * label + 3, 200)
                channel = (generator.integers(0, 2, 200) * 34 + rows) * 34 + generator.integers(0, 34, 200)
                (folder / f"{number:05}.bin").write_bytes(encode_events(time, channel.astype(np.int32)))
    return root


def small_words(nmnist: Path) -> list[str]:
    """Words of a run of a second or two on these files."""
    words = ["debug=fast", "dataset=nmnist", f"dataset.root='{nmnist}'", "dataset.steps=4", "dataset.validation=0.34"]
    return [*words, "model.hidden=[8]", "trainer.batch_size=8", "threads=1"]


def call(script: str, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, forked from one that has loaded the libraries, which takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    command = [script, *words]
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / name for name in ("out", "err")]
        process = context.Process(target=_become, args=(command, cwd, *said))
        process.start()
        process.join(170)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(command, 170)
        return subprocess.CompletedProcess(command, process.exitcode, *(path.read_text() for path in said))


def _become(command: list[str], cwd: Path, out: Path, err: Path) -> None:
    """Become the script: its streams, its folder, its words. One thread, like the suite."""
    torch.set_num_threads(1)
    for number, path in enumerate((out, err), start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    sys.argv[:] = command
    runpy.run_path(command[0], run_name="__main__")
