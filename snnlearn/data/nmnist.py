"""N-MNIST: 60,000 + 10,000 recordings of handwritten digits by an event camera, read from the files you have.

G. Orchard, A. Jayawant, G. K. Cohen, N. Thakor, "Converting static image datasets to spiking neuromorphic
datasets using saccades", Frontiers in Neuroscience 9 (2015), doi:10.3389/fnins.2015.00437.  Licence of the
data: CC BY-SA 4.0.

A file is a list of events of five bytes each, without a header:

    byte 0      x
    byte 1      y
    byte 2      bit 7: polarity (1 ON); bits 6-0: time, bits 22-16
    bytes 3, 4  time, bits 15-0

with the time in microseconds, big endian.  y = 240 marks an overflow of the clock: no event, and every later
time is 2^13 us further on.
"""

import logging
import os
from pathlib import Path

import numpy as np
from jaxtyping import Int, Int32

from snnlearn.data.binning import Binning
from snnlearn.data.dataset import EventDataset
from snnlearn.data.errors import DataError
from snnlearn.data.samples import EventSample, Sensor, flatten_channels, microseconds

logger = logging.getLogger("snnlearn.data")

SENSOR: Sensor = (2, 34, 34)
PUBLISHED = {"train": 60_000, "test": 10_000}
BYTES_PER_EVENT = 5
OVERFLOW_ROW = 240
OVERFLOW_US = 1 << 13
TIME_LIMIT_US = 1 << 23


def decode_events(raw: bytes, source: str = "the bytes", sensor: Sensor = SENSOR) -> Int32[np.ndarray, "two events"]:
    """Decode the bytes of one file into times and channels: int32 [2, N].

    Args:
        raw: content of a ``.bin`` file, five bytes an event.
        source: the file's name, for the messages.
        sensor: (P, H, W); N-MNIST's by default.

    Returns:
        Row 0 the times in microseconds, row 1 the channels p * H * W + y * W + x, in the order of the file.

    Raises:
        DataError: no bytes, a number of bytes that is not a multiple of five, an event off the sensor.

    Example:
        >>> time, channel = decode_events(bytes([3, 1, 0x80 | 0x01, 0x00, 0x02]))
        >>> time.tolist(), channel.tolist() == [1 * 34 * 34 + 1 * 34 + 3]
        ([65538], True)
    """
    _check_size(len(raw), source)
    record = np.frombuffer(raw, np.uint8).reshape(-1, BYTES_PER_EVENT).astype(np.int32)
    x, y, high = record[:, 0], record[:, 1], record[:, 2]
    polarity = high >> 7
    time = (high & 0x7F) << 16 | record[:, 3] << 8 | record[:, 4]
    overflow = y == OVERFLOW_ROW
    if overflow.any():
        time = microseconds(time + OVERFLOW_US * np.cumsum(overflow), 1.0, source)
        x, y, polarity, time = (column[~overflow] for column in (x, y, polarity, time))
    return np.stack([time, flatten_channels(x, y, polarity, sensor, source)])


def encode_events(
    time_us: Int[np.ndarray, " events"], channel: Int[np.ndarray, " events"], sensor: Sensor = SENSOR
) -> bytes:
    """Encode events as N-MNIST does, five bytes each; ``decode_events`` is its inverse.

    Args:
        time_us: times [N], microseconds, 0 <= t < 2^23 (8.39 s).
        channel: p * H * W + y * W + x of each event, [N].
        sensor: (P, H, W), rows and columns below 240.

    Raises:
        DataError: a time that 23 bits do not hold, a channel off the sensor.

    Example:
        >>> encode_events(np.array([65538]), np.array([1 * 34 * 34 + 1 * 34 + 3])).hex()
        '0301810002'
    """
    polarities, height, width = sensor
    if len(time_us) and (time_us.min() < 0 or time_us.max() >= TIME_LIMIT_US):
        raise DataError(
            f"times run from {time_us.min()} to {time_us.max()} us; a record holds 0 to {TIME_LIMIT_US - 1}: cut the "
            "recording"
        )
    if len(channel) and (channel.min() < 0 or channel.max() >= polarities * height * width):
        size = polarities * height * width
        raise DataError(f"channels run from {channel.min()} to {channel.max()}; sensor {sensor} has 0 to {size - 1}")
    record = np.empty((len(time_us), BYTES_PER_EVENT), np.uint8)
    polarity, pixel = np.divmod(channel, height * width)
    record[:, 0], record[:, 1] = pixel % width, pixel // width
    record[:, 2] = polarity << 7 | time_us >> 16
    record[:, 3], record[:, 4] = time_us >> 8 & 0xFF, time_us & 0xFF
    return record.tobytes()


def read_file(path: Path, label: int) -> EventSample:
    """Read one ``.bin`` file; its length is the time of the last event + 1 us.

    Raises:
        DataError: see ``decode_events``; the message names the file.
    """
    time, channel = decode_events(path.read_bytes(), str(path))
    return EventSample(time, channel, int(time.max()) + 1 if len(time) else 0, label)


def write_file(path: Path, sample: EventSample) -> None:
    """Write one recording as a ``.bin`` file, in the format of the published set; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_events(sample.time_us, sample.channel))


def class_folders(folder: Path, classes: int) -> list[tuple[int, Path]]:
    """List the label folders "0".."classes-1" of a tree in the order of their numbers, so 2 stands before 10.

    Args:
        folder: the folder of a split, such as ``NMNIST/Train``; files in it and hidden folders are passed
            over.
        classes: number of classes; a subset of the folders is enough.

    Raises:
        DataError: a folder whose name is not one of these numbers; the message names it.
    """
    found = []
    for path in folder.iterdir():
        if not path.is_dir() or path.name.startswith((".", "__")):
            continue
        if path.name not in {str(label) for label in range(classes)}:
            raise DataError(
                f"{path} is no label: the folders inside {folder.name}/ are named 0 to {classes - 1}, since the name "
                "is the digit; rename it, or move it away"
            )
        found.append((int(path.name), path))
    return sorted(found)


class NMNIST(EventDataset):
    """Read N-MNIST from the files under ``root``: the whole set or any part of it.  It never downloads.

    Accepts the official tree ``root/Train/<digit>/*.bin``, tonic's ``root/NMNIST/Train/<digit>/*.bin``, and
    the same with ``root`` set to ``NMNIST`` or to ``Train`` itself.  What was found is logged against the
    published 60,000 + 10,000.  Every file's size is checked at once; a file is decoded when it is first asked
    for, and kept.

    Args:
        root: the folder, see above; a relative path is taken from the current folder.
        split: "train" or "test".
        binning: how events become frames; 20 steps over 310 ms by default.
        keep_mb: decoded recordings kept in memory, megabytes (the whole training set needs about 2,000); the
            rest is decoded again each time, in about 0.1 ms.

    Raises:
        DataError: nothing at ``root``, no recordings in it, an empty or truncated file, a label folder that
            is not 0-9.

    Example:
        >>> import tempfile
        >>> sample = EventSample(np.array([10], np.int32), np.array([0], np.int32), length_us=11, label=7)
        >>> with tempfile.TemporaryDirectory() as root:
        ...     write_file(Path(root, "NMNIST/Train/7/00001.bin"), sample)
        ...     frames, label = NMNIST(root, split="train")[0]
        >>> tuple(frames.shape), frames.sum().item(), label
        ((20, 2, 34, 34), 1.0, 7)
    """

    def __init__(
        self, root: str | Path, split: str = "train", binning: Binning | None = None, keep_mb: int = 1024
    ) -> None:
        if split not in PUBLISHED:
            raise DataError(
                f"split={split!r}: N-MNIST has 'train' and 'test'; cut a validation set from train by stratified_split"
            )
        self.split = split
        self.root = Path(root).expanduser().resolve()
        self.folder = _split_folder(self.root, split)
        self.files, labels = _list_files(self.folder, split)
        super().__init__(
            f"N-MNIST {split}", SENSOR, tuple(str(digit) for digit in range(10)), labels, binning or Binning()
        )
        self.keep_bytes = keep_mb * 10**6
        self._forget()
        log = logger.info if len(self) == PUBLISHED[split] else logger.warning
        log("%s", self.describe())

    def events(self, index: int) -> EventSample:
        """Return recording ``index`` as events, from memory if it was read before."""
        sample = self._kept.get(index)
        if sample is None:
            sample = read_file(self.files[index], int(self.labels[index]))
            size = sample.time_us.nbytes + sample.channel.nbytes
            if self._kept_bytes + size <= self.keep_bytes:
                self._kept[index] = sample
                self._kept_bytes += size
        return sample

    def describe(self) -> str:
        """Say what was found, by class, and how that compares with the published set."""
        published = PUBLISHED[self.split]
        if len(self) == published:
            note = f"the published {published:,}, all there"
        else:
            note = f"{len(self):,} of the published {published:,}: figures do not compare with the whole set's"
        return f"{super().describe()}\n  from {self.folder}; {note}"

    def _forget(self) -> None:
        self._kept: dict[int, EventSample] = {}
        self._kept_bytes = 0

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_kept": {}, "_kept_bytes": 0}  # a worker that is spawned reads for itself


def _split_folder(root: Path, split: str) -> Path:
    """Find the folder of a split below ``root``, or say what should lie where."""
    candidates = [root, root / "NMNIST", root / "N-MNIST"]
    if root.name.lower() in PUBLISHED:
        candidates.append(root.parent)
    for base in candidates:
        for name in (split.capitalize(), split):
            if (base / name).is_dir():
                return base / name
    if not root.is_dir():
        problem = f"there is no folder {root}"
    else:
        inside = ", ".join(sorted(path.name for path in root.iterdir())[:5]) or "nothing"
        problem = f"{root} has no folder {split.capitalize()} or NMNIST/{split.capitalize()} (it holds {inside})"
    raise DataError(f"no N-MNIST {split} recordings: {problem}.\n{_how_to_get(root)}")


def _how_to_get(root: Path) -> str:
    """Say where the files come from, where they go, and what works without them."""
    return "\n".join(
        (
            "Nothing is ever downloaded.  Get Train.zip and Test.zip of N-MNIST (Orchard et al., 2015, CC BY-SA 4.0) "
            "from",
            "https://www.garrickorchard.com/datasets/n-mnist or doi:10.17632/468j46mzdv.1, and unpack them, so that "
            "there is",
            f"    {root}/Train/0/*.bin  to  {root}/Train/9/*.bin",
            f"    {root}/Test/0/*.bin   to  {root}/Test/9/*.bin",
            "Some of the files are enough, and tonic's folder NMNIST/Train/... is read as well.",
            "To train on the embedded digits instead, which need no files:  python scripts/train.py dataset=digits",
        )
    )


def _list_files(folder: Path, split: str) -> tuple[list[Path], np.ndarray]:
    """List the recordings by label and name, and check the size of each."""
    files: list[Path] = []
    labels: list[int] = []
    bad: list[str] = []
    for label, path in class_folders(folder, classes=10):
        with os.scandir(path) as entries:
            sizes = sorted((entry.name, entry.stat().st_size) for entry in entries if _is_recording(entry))
        for name, size in sizes:
            try:
                _check_size(size, str(path / name))
            except DataError as error:
                bad.append(str(error))
        files += [path / name for name, _ in sizes]
        labels += [label] * len(sizes)
    if bad:
        more = f"\n... and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise DataError("\n".join(bad[:5]) + more)
    if not files:
        problem = f"{folder} has no <digit>/*.bin in it"
        raise DataError(f"no N-MNIST {split} recordings: {problem}.\n{_how_to_get(folder.parent)}")
    return files, np.array(labels, np.int64)


def _is_recording(entry: "os.DirEntry[str]") -> bool:
    return entry.name.endswith(".bin") and not entry.name.startswith(".") and entry.is_file()


def _check_size(size: int, source: str) -> None:
    if size == 0:
        raise DataError(f"{source} is empty: a recording has five bytes an event; copy the file again, or remove it")
    if size % BYTES_PER_EVENT:
        raise DataError(
            f"{source} is truncated: {size} bytes are not a multiple of five, {size % BYTES_PER_EVENT} are left over "
            f"after event {size // BYTES_PER_EVENT}; copy the file again, or remove it"
        )
