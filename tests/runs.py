"""What tests of whole runs share: the shipped configuration, and small N-MNIST files in the true format."""

from pathlib import Path
from typing import Any

import numpy as np

from snnlearn.config.compose import compose_values
from snnlearn.data.nmnist import encode_events

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"


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
