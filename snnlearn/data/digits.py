"""The embedded default: real handwritten digits, seen by a *simulated* event camera.

The digits are scikit-learn's 1,797 (8 x 8 pixels, 17 grey levels): the test part of "Optical Recognition of
Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI, 1998), from 13 writers.
They are drawn 20 pixels high and recorded by ``camera``.  Event statistics are near those of N-MNIST; the
digits are not: accuracies here do not compare with accuracies there.
"""

import hashlib
import logging
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64

from snnlearn.data import camera as simulator
from snnlearn.data.binning import Binning
from snnlearn.data.cache import Arrays, cache_folder, cached_arrays
from snnlearn.data.camera import MARGIN_PX, SENSOR, SIDE, Camera
from snnlearn.data.dataset import EventDataset
from snnlearn.data.errors import DataError
from snnlearn.data.loading import stratified_split
from snnlearn.data.samples import EventSample

logger = logging.getLogger("snnlearn.data")

SOURCE_PX = 8
DRAWN_PX = 20
CORNER_PX = 12
EDGE = (0.35, 0.8)
BLUR_PX = 0.5
TEST_COUNT = 397
SPLIT_SEED = 0


class Digits(EventDataset):
    """Serve scikit-learn's 1,797 handwritten digits as recordings of a simulated event camera.

    The split is fixed: 1,400 for training, 397 for test, each class in proportion (``split_indices``; its
    digest is published in ``docs/data.md``).  It is not by writer, since scikit-learn does not tell who wrote
    what.  The whole set is simulated once, in about ten seconds, and kept on disk.

    Args:
        split: "train" or "test".
        binning: how events become frames; 20 steps over 310 ms by default.
        cache_dir: where the recordings are kept; ``$XDG_CACHE_HOME/snnlearn`` or ``~/.cache/snnlearn`` by
            default.
        camera: the simulated sensor.
        seed: of the simulation; the split does not depend on it.

    Raises:
        DataError: a split of another name; a cache folder that cannot be written.

    Example:
        >>> data = Digits(split="test")
        >>> frames, label = data[0]
        >>> tuple(frames.shape)
        (20, 2, 34, 34)
    """

    def __init__(
        self,
        split: str = "train",
        binning: Binning | None = None,
        cache_dir: str | Path | None = None,
        camera: Camera | None = None,
        seed: int = 0,
    ) -> None:
        if split not in ("train", "test"):
            raise DataError(
                f"split={split!r}: digits has 'train' and 'test'; cut a validation set from train by stratified_split"
            )
        self.split = split
        images, targets = load_images()
        self.indices = split_indices(targets)[split]
        self._keep(recordings(images, targets, camera or Camera(), seed, cache_folder(cache_dir)))
        names = tuple(str(digit) for digit in range(10))
        super().__init__(f"digits {split}", SENSOR, names, targets[self.indices], binning or Binning())
        logger.info("%s", self.describe())

    def _keep(self, arrays: Arrays) -> None:
        """Keep the recordings of this split alone, one after the other."""
        bounds = arrays["bounds"]
        spans = [slice(bounds[index], bounds[index + 1]) for index in self.indices]
        self._time = np.concatenate([arrays["time_us"][span] for span in spans])
        self._channel = np.concatenate([arrays["channel"][span] for span in spans])
        self._bounds = np.concatenate([[0], np.cumsum(np.diff(bounds)[self.indices])])
        self._length = arrays["length_us"][self.indices]

    def events(self, index: int) -> EventSample:
        """Return recording ``index`` as events."""
        span = slice(self._bounds[index], self._bounds[index + 1])
        channel = self._channel[span].astype(np.int32)
        return EventSample(self._time[span], channel, int(self._length[index]), int(self.labels[index]))

    def describe(self) -> str:
        """Say what this is, and that it is a simulation."""
        return (
            f"{super().describe()}\n  a SIMULATED event camera looking at scikit-learn's real handwritten digits: "
            "not N-MNIST, not a recording, and figures do not compare with it"
        )


def load_images() -> tuple[Float32[np.ndarray, "images 8 8"], Int64[np.ndarray, " images"]]:
    """Load scikit-learn's digits: pictures [1797, 8, 8] from 0 (paper) to 1 (ink), and labels [1797]."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return (bunch.images / 16).astype(np.float32), bunch.target.astype(np.int64)


def split_indices(labels: Int64[np.ndarray, " images"]) -> dict[str, np.ndarray]:
    """Return the published split, as ascending indices into scikit-learn's set: 1,400 "train", 397 "test"."""
    train, test = stratified_split(labels, fraction=TEST_COUNT / len(labels), seed=SPLIT_SEED)
    return {"train": train, "test": test}


def digest(indices: np.ndarray) -> str:
    """Return the sha256 of indices written in decimal with commas between, as ``docs/data.md`` publishes it.

    Example:
        >>> digest(np.array([1, 2]))[:8] == hashlib.sha256(b"1,2").hexdigest()[:8]
        True
    """
    return hashlib.sha256(",".join(str(index) for index in indices).encode()).hexdigest()


def draw(images: Float32[np.ndarray, "images 8 8"]) -> Float32[np.ndarray, "images 42 42"]:
    """Draw the digits for the camera: enlarged by cubic interpolation, edges sharpened, slightly blurred,
    margin around.

    Args:
        images: pictures [N, 8, 8], 0..1.

    Returns:
        Ink [N, 42, 42], 0..1; the digit stands where the three saccades keep it in the middle of the
        sensor.
    """
    enlarge = _cubic(DRAWN_PX, SOURCE_PX)
    large = enlarge @ images.astype(np.float64) @ enlarge.T
    rise = np.clip((large - EDGE[0]) / (EDGE[1] - EDGE[0]), 0, 1)
    size = SIDE + MARGIN_PX
    paper = np.zeros((len(images), size, size))
    paper[:, CORNER_PX : CORNER_PX + DRAWN_PX, CORNER_PX : CORNER_PX + DRAWN_PX] = rise * rise * (3 - 2 * rise)
    blurred: np.ndarray = _gaussian(size) @ paper @ _gaussian(size).T
    ink: np.ndarray = np.clip(blurred, 0, 1).astype(np.float32)
    return ink


def recordings(images: np.ndarray, labels: np.ndarray, camera: Camera, seed: int, folder: Path) -> Arrays:
    """Simulate the whole set, or take it from the cache; the key covers camera, seed, pictures and the
    simulator's version.

    Returns:
        ``time_us`` int32 and ``channel`` int16 of all events, ``bounds`` int64 [N + 1] of the recordings in
        them, and ``length_us`` int64 [N].
    """
    options = {
        "camera": asdict(camera),
        "seed": seed,
        "version": simulator.VERSION,
        "drawing": [DRAWN_PX, CORNER_PX, *EDGE, BLUR_PX],
        "pictures": hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest(),
    }

    def make() -> Arrays:
        logger.info("simulating an event camera on %d digits, once; it takes about ten seconds", len(images))
        start = time.perf_counter()
        samples = list(simulator.record(draw(images), labels, camera, seed))
        logger.info("simulated %d recordings in %.1f s; kept in %s", len(samples), time.perf_counter() - start, folder)
        return {
            "time_us": np.concatenate([sample.time_us for sample in samples]),
            "channel": np.concatenate([sample.channel for sample in samples]).astype(np.int16),
            "bounds": np.cumsum([0, *(len(sample) for sample in samples)]),
            "length_us": np.array([sample.length_us for sample in samples]),
        }

    return cached_arrays(folder, "digits", options, make)


def _cubic(large: int, small: int) -> np.ndarray:
    """Matrix [large, small] of Catmull-Rom interpolation with nothing outside."""
    place = (np.arange(large) + 0.5) * small / large - 0.5
    away = np.abs(place[:, None] - np.arange(small))
    near = 1.5 * away**3 - 2.5 * away**2 + 1
    far = -0.5 * away**3 + 2.5 * away**2 - 4 * away + 2
    return np.where(away < 1, near, np.where(away < 2, far, 0.0))


def _gaussian(size: int) -> np.ndarray:
    """Matrix [size, size] that blurs by ``BLUR_PX``."""
    away = np.arange(size)[:, None] - np.arange(size)
    weight = np.where(np.abs(away) <= 2, np.exp(-0.5 * (away / BLUR_PX) ** 2), 0.0)
    kernel: np.ndarray = weight / weight[size // 2].sum()
    return kernel
