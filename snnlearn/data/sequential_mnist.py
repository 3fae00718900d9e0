"""MNIST read in pieces: the pixels of a digit, row by row or one by one, in their order or in a fixed other one.

The permuted form is that of Le, Jaitly and Hinton 2015, doi:10.48550/arXiv.1504.00941.
"""

import gzip
import logging
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import Tensor

from snnlearn.data.errors import DataError, check_flag
from snnlearn.data.loading import stratified_split
from snnlearn.data.sequences import SequenceDataset
from snnlearn.data.tasks.options import Split, check_split

logger = logging.getLogger("snnlearn.data")

PIXELS = 28 * 28
CLASSES = 10
HELD_OUT = 0.1
FILES = {"train": "train", "test": "t10k"}


class SequentialMNIST(SequenceDataset):
    """Serve the digits of MNIST as sequences [784 / chunk, chunk] of grey levels 0..1, one label each.

    Where the training images are not on disk, the 10,000 test images are split: 9,000 for training, 1,000 for
    test, each class in proportion and the same on every machine.  The set is then called ``smnist-t10k``: its
    figures do not compare with those of MNIST.  Nothing is ever downloaded.

    Chance is 10 %; always naming the most frequent class earns 11.4 % on the published test images.

    Args:
        root: folder with the files of MNIST, plain or gzipped, in it, in ``MNIST/raw`` or in ``raw``.
        split: "train" or "test".
        chunk: pixels of a step, a divisor of 784: 28 reads row by row, 1 pixel by pixel.
        permuted: whether the pixels come in another order, the same for every digit.
        seed: of that order.

    Raises:
        DataError: no files, damaged ones, a chunk that does not divide 784.
        ValueError: a flag that is no bool.

    Example:
        >>> SequentialMNIST("/nowhere")
        Traceback (most recent call last):
        snnlearn.data.errors.DataError: no MNIST images: there is no folder /nowhere. ...
    """

    def __init__(
        self, root: str | Path, split: str = "train", chunk: int = 28, permuted: bool = False, seed: int = 0
    ) -> None:
        if chunk < 1 or PIXELS % chunk:
            raise DataError(f"chunk={chunk!r}: a step has so many of 784 pixels, so it divides 784; write 28, or 1")
        check_flag("permuted", permuted)
        self.split = check_split(split, "sequential MNIST")
        self.root = Path(root).expanduser().resolve()
        self.chunk = chunk
        images, labels, self.only_test_images = _read(self.root, self.split)
        self.order = np.random.default_rng(seed).permutation(PIXELS) if permuted else np.arange(PIXELS)
        self.images = images.reshape(len(images), PIXELS)
        title = f"{'psmnist' if permuted else 'smnist'}{'-t10k' if self.only_test_images else ''}"
        super().__init__(f"{title} {split}", title, chunk, tuple(map(str, range(CLASSES))), labels, chance=0.1)
        log = logger.warning if self.only_test_images else logger.info
        log("%s", self.describe())

    def sequence(self, index: int) -> tuple[np.ndarray, int]:
        """Return the grey levels [784 / chunk, chunk], 0..1, and the label of digit ``index``."""
        pixels = self.images[index][self.order].astype(np.float32) / 255
        return pixels.reshape(-1, self.chunk), int(self.labels[index])

    def describe(self) -> str:
        """Say what was found, how it is read, and whether figures compare with the whole set's."""
        lines = [super().describe(), f"  {PIXELS // self.chunk} steps of {self.chunk} pixels; from {self.root}"]
        if self.only_test_images:
            lines.append(
                "  the training images are not there: 9,000 + 1,000 of the 10,000 TEST images, which does not compare "
                "with figures on MNIST"
            )
        return "\n".join(lines)


def _read(root: Path, split: Split) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return images [N, 28, 28], labels [N], and whether they are a part of the test images alone."""
    from torchvision.datasets.mnist import read_image_file, read_label_file

    folder = _folder(root)
    alone = _file(folder, "train", "images-idx3") is None
    prefix = "t10k" if alone else FILES[split]
    images = _tensor(folder, prefix, "images-idx3", read_image_file).numpy()
    labels = _tensor(folder, prefix, "labels-idx1", read_label_file).numpy().astype(np.int64)
    if len(images) != len(labels) or images.shape[1:] != (28, 28):
        raise DataError(
            f"{folder}: {len(labels)} labels for {prefix} images of shape {images.shape}; MNIST has one label for each "
            "of its images of 28 x 28: get the files again"
        )
    if labels.max() >= CLASSES:
        raise DataError(f"{folder}: a label {labels.max()} for a {prefix} image; MNIST has 0 to 9: get the files again")
    if not alone:
        return images, labels, False
    train, test = stratified_split(labels, HELD_OUT, seed=0)
    chosen = train if split == "train" else test
    return images[chosen], labels[chosen], True


def _folder(root: Path) -> Path:
    for folder in (root / "MNIST" / "raw", root / "raw", root):
        if any(_file(folder, prefix, "images-idx3") is not None for prefix in FILES.values()):
            return folder
    problem = f"there is no folder {root}" if not root.is_dir() else f"{root} has no MNIST/raw/*-images-idx3-ubyte"
    raise DataError(
        f"no MNIST images: {problem}. Nothing is ever downloaded; `torchvision.datasets.MNIST({str(root)!r}, "
        "download=True)` puts them there, or copy the four files, gzipped or not, to MNIST/raw in it"
    )


def _file(folder: Path, prefix: str, kind: str) -> Path | None:
    for name in (f"{prefix}-{kind}-ubyte", f"{prefix}-{kind}-ubyte.gz"):
        if (folder / name).is_file():
            return folder / name
    return None


def _tensor(folder: Path, prefix: str, kind: str, read: Callable[[str], Tensor]) -> Tensor:
    path = _file(folder, prefix, kind)
    if path is None:
        raise DataError(f"{folder} has no {prefix}-{kind}-ubyte or .gz beside its images: copy it there too")
    try:
        if path.suffix != ".gz":
            return read(str(path))
        with tempfile.NamedTemporaryFile() as plain:  # torchvision's reader takes the name of a plain file
            plain.write(gzip.decompress(path.read_bytes()))
            plain.flush()
            return read(plain.name)
    except (OSError, EOFError, zlib.error, ValueError, TypeError, AssertionError, RuntimeError, KeyError) as error:
        raise DataError(f"{path} is damaged or no file of MNIST ({error}): get it again") from error


__all__ = ["SequentialMNIST"]
