"""ECG recordings as spikes, with the wave that the heart is in as a label at every step.

The QT Database (Laguna et al. 1997, doi:10.1109/CIC.1997.648140) as encoded by Yin, Corradi and Bohté 2021,
doi:10.1038/s42256-021-00397-w: two leads, each with a channel of rises and one of falls.
"""

import logging
import zlib
from pathlib import Path

import numpy as np

from snnlearn.data.errors import DataError
from snnlearn.data.sequences import MISSING, SequenceDataset
from snnlearn.data.tasks.options import check_split

logger = logging.getLogger("snnlearn.data")

CLASSES = ("P", "PQ", "QR", "RS", "ST", "TP")
PUBLISHED = {"train": 618, "test": 141}
CHANNELS = 4
UNLABELLED = {"left_out": 0.336, "P": 0.301}
"""What becomes of steps without a label, and what naming the most frequent wave earns on the test steps then."""


class QTDB(SequenceDataset):
    """Serve ECG segments of 1,301 steps as spikes [1301, 4], with one of six waves as label of every step.

    Steps whose wave nobody annotated have no label: 8.2 % of the training steps, 10.4 % of the test steps, where
    the one-hot rows of the files are all zero.  (An argmax over them would call these steps P.)  Chance is 33.6 %:
    what always naming the most frequent wave of the training steps (TP, 35.6 % there) earns on the test steps.
    The last step of channel 0 is -1 in every segment, as the files have it.

    The figure published with the files (85.9 %) counts every step, since its labels are that argmax:
    ``unlabelled="P"`` gives the same labels, for comparison with it; chance is 30.1 % then.

    Args:
        root: folder with ``QTDB_train.mat`` and ``QTDB_test.mat``.
        split: "train" (618 segments) or "test" (141).
        unlabelled: "left_out", or "P" to take the steps that nobody annotated for P waves.

    Raises:
        DataError: a file that is missing, or does not hold x [N, T, 4] and y [N, T, 6].
        ValueError: another word for ``unlabelled``.

    Example:
        >>> QTDB("/nowhere")
        Traceback (most recent call last):
        snnlearn.data.errors.DataError: there is no file /nowhere/QTDB_train.mat: ...
    """

    def __init__(self, root: str | Path, split: str = "train", unlabelled: str = "left_out") -> None:
        if unlabelled not in UNLABELLED:
            raise ValueError(f"unlabelled={unlabelled!r}: 'left_out', or 'P' as in the published figure")
        self.split = check_split(split, "qtdb")
        self.root = Path(root).expanduser().resolve()
        self.inputs, self.step_labels = _read(self.root / f"QTDB_{split}.mat")
        if unlabelled == "P":
            self.step_labels = np.where(self.step_labels == MISSING, CLASSES.index("P"), self.step_labels)
        labels = np.zeros(len(self.inputs), np.int64)
        chance = UNLABELLED[unlabelled]
        super().__init__(f"qtdb {split}", "qtdb", CHANNELS, CLASSES, labels, chance=chance, per_step=True)
        log = logger.info if len(self) == PUBLISHED[split] else logger.warning
        log("%s", self.describe())

    def sequence(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the spikes [T, 4] and the labels [T] of segment ``index``."""
        return self.inputs[index].astype(np.float32), self.step_labels[index].astype(np.int64)

    def describe(self) -> str:
        """Say what was found, how often each wave comes, and what guessing earns."""
        present = self.step_labels[self.step_labels != MISSING]
        counts = np.bincount(present, minlength=len(CLASSES))
        shares = ", ".join(f"{name} {n / counts.sum():.1%}" for name, n in zip(CLASSES, counts, strict=True))
        published = PUBLISHED[self.split]
        note = "all there" if len(self) == published else f"{len(self)} found: figures do not compare"
        missing = 1 - len(present) / self.step_labels.size
        what = f"{self.inputs.shape[1]} steps, {missing:.1%} of them without a label; {shares}".replace("%", " %")
        return f"{super().describe()}\n  {what}\n  from {self.root}; {published} segments were published, {note}"


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the spikes [N, T, 4] and the labels [N, T] in a file."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    if not path.is_file():
        raise DataError(
            f"there is no file {path}: give dataset.root (or root) the folder that holds QTDB_train.mat and "
            "QTDB_test.mat, from data/ of github.com/byin-cwi/Efficient-spiking-networks; nothing is downloaded"
        )
    damaged = (MatReadError, zlib.error, ValueError, OSError, EOFError, LookupError, TypeError, NotImplementedError)
    try:
        content = loadmat(path)
        inputs, labels = content["x"], content["y"]
    except damaged as error:
        raise DataError(f"{path} is damaged, or no MATLAB file with x and y ({error}): get it again") from error
    fits = inputs.ndim == labels.ndim == 3 and inputs.shape[:2] == labels.shape[:2]
    if not fits or not inputs.size or inputs.shape[2] != CHANNELS or labels.shape[2] != len(CLASSES):
        raise DataError(
            f"{path} holds x {inputs.shape} and y {labels.shape}; x is [N, T, {CHANNELS}] and y [N, T, {len(CLASSES)}] "
            "of one segment at least: get the file again"
        )
    named = labels.sum(axis=2)
    if named.max() > 1 or labels.min() < 0:
        raise DataError(f"{path}: a step with two labels; the rows of y are one-hot or all zero: get the file again")
    return inputs.astype(np.int8), np.where(named == 1, labels.argmax(axis=2), MISSING).astype(np.int8)


__all__ = ["QTDB"]
