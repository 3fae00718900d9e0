"""Sequential MNIST: pixels in order, one permutation for all digits, damaged files, and the real test images."""

import gzip
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from snnlearn.data import DataError, SequentialMNIST

NAMES = {"train": "train", "test": "t10k"}
# Two digits that say where each of their pixels was: its row and its column.
ROWS, COLUMNS = np.indices((28, 28)).astype(np.uint8)


def encoded(values: np.ndarray) -> bytes:
    """Bytes in the format of MNIST's files: type, number of dimensions, sizes, values."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()


def paths(folder: Path, split: str, end: str = "") -> tuple[Path, Path]:
    """Where images and labels lie."""
    return folder / f"{NAMES[split]}-images-idx3-ubyte{end}", folder / f"{NAMES[split]}-labels-idx1-ubyte{end}"


def write(folder: Path, split: str, images: np.ndarray, labels: np.ndarray, zipped: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path, values in zip(paths(folder, split, ".gz" if zipped else ""), (images, labels), strict=True):
        path.write_bytes(gzip.compress(encoded(values)) if zipped else encoded(values))


def digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, 28, 28)), np.arange(count) % 10


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """Both parts: 20 random digits and the two that say where they were; 10 others for test."""
    images, labels = digits(20, seed=0)
    write(tmp_path, "train", np.concatenate([images, [ROWS, COLUMNS]]), np.append(labels, [3, 8]))
    write(tmp_path, "test", *digits(10, seed=1))
    return tmp_path


def test_rows_come_one_by_one(whole: Path) -> None:
    data = SequentialMNIST(whole)
    images, labels = digits(20, seed=0)
    assert (len(data), data.channels, data.title, data.name) == (22, 28, "smnist", "smnist train")
    for index in range(20):
        x, label = data[index]
        assert (tuple(x.shape), x.dtype, label) == ((28, 28), torch.float32, labels[index])
        np.testing.assert_array_equal(x.numpy(), images[index].astype(np.float32) / 255)
    np.testing.assert_array_equal(data[20][0].numpy() * 255, ROWS)


@pytest.mark.parametrize("chunk", [1, 7, 56, 784])
def test_a_chunk_is_so_many_pixels_in_reading_order(whole: Path, chunk: int) -> None:
    data = SequentialMNIST(whole, "test", chunk=chunk)
    images, _ = digits(10, seed=1)
    x, _ = data[4]
    assert (tuple(x.shape), data.channels) == ((784 // chunk, chunk), chunk)
    for place, grey in enumerate(x.flatten().tolist()):
        row, column = divmod(place, 28)
        assert grey == pytest.approx(images[4, row, column] / 255)


def test_the_order_is_the_same_for_every_digit_and_a_permutation(whole: Path) -> None:
    """Two digits whose pixels are their rows and columns say where each step's pixel came from."""
    data = SequentialMNIST(whole, chunk=1, permuted=True)
    rows, columns = (np.rint(data[index][0].numpy()[:, 0] * 255).astype(int) for index in (20, 21))
    order = rows * 28 + columns
    assert sorted(order.tolist()) == list(range(784))
    assert (order != np.arange(784)).mean() > 0.95
    images, _ = digits(20, seed=0)
    for index in range(20):
        expected = images[index].reshape(784)[order].astype(np.float32) / 255
        np.testing.assert_array_equal(data[index][0].numpy()[:, 0], expected)
    np.testing.assert_array_equal(SequentialMNIST(whole, "test", permuted=True).order, order)
    assert data.title == "psmnist"


def test_the_order_comes_from_the_seed(whole: Path) -> None:
    first, again, other = (SequentialMNIST(whole, permuted=True, seed=seed).order for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert (first == other).mean() < 0.05
    np.testing.assert_array_equal(SequentialMNIST(whole, seed=5).order, np.arange(784))


def test_train_and_test_are_the_published_files(whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="snnlearn.data"):
        train, test = SequentialMNIST(whole), SequentialMNIST(whole, "test")
    assert (len(train), len(test), test.chance, test.classes) == (22, 10, 0.1, tuple("0123456789"))
    np.testing.assert_array_equal(test.images.reshape(10, 28, 28), digits(10, seed=1)[0])
    assert [line.levelno for line in caplog.records] == [logging.INFO] * 2
    assert f"28 steps of 28 pixels; from {whole}" in test.describe()
    assert "TEST images" not in test.describe()


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("level", ["", "raw", "MNIST/raw"])
def test_files_are_found_plain_and_gzipped(tmp_path: Path, level: str, zipped: bool) -> None:
    write(tmp_path / level, "train", *digits(12, seed=2), zipped=zipped)
    data = SequentialMNIST(tmp_path)
    np.testing.assert_array_equal(data.images.reshape(12, 28, 28), digits(12, seed=2)[0])
    assert data.labels.tolist() == [*range(10), 0, 1]


def test_test_images_alone_are_split_and_called_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images, labels = digits(200, seed=3)
    write(tmp_path, "test", images, labels)
    with caplog.at_level(logging.INFO, logger="snnlearn.data"):
        train, test = SequentialMNIST(tmp_path), SequentialMNIST(tmp_path, "test", permuted=True)
    assert (train.title, test.title) == ("smnist-t10k", "psmnist-t10k")
    assert [line.levelno for line in caplog.records] == [logging.WARNING] * 2
    assert "9,000 + 1,000 of the 10,000 TEST images" in caplog.text
    assert (np.bincount(train.labels).tolist(), np.bincount(test.labels).tolist()) == ([18] * 10, [2] * 10)
    found = [image.tobytes() for part in (train, test) for image in part.images]
    assert len(set(found)) == 200
    assert set(found) == {image.astype(np.uint8).tobytes() for image in images}
    label_of = {image.astype(np.uint8).tobytes(): label for image, label in zip(images, labels, strict=True)}
    assert [label_of[image] for image in found] == [*train.labels, *test.labels]


@pytest.mark.parametrize("chunk", [0, -28, 3, 785])
def test_a_chunk_that_does_not_divide_is_refused(whole: Path, chunk: int) -> None:
    with pytest.raises(DataError, match=f"chunk={chunk}: .* so it divides 784; write 28, or 1"):
        SequentialMNIST(whole, chunk=chunk)


def test_missing_files_say_what_to_do(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(DataError, match=f"there is no folder {tmp_path / 'nowhere'}. Nothing is ever downloaded"):
        SequentialMNIST(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty has no MNIST/raw/\*-images-idx3-ubyte"):
        SequentialMNIST(tmp_path / "empty")
    with pytest.raises(DataError, match="split='validation'"):
        SequentialMNIST(whole, "validation")
    images, labels = paths(whole, "test")
    labels.unlink()
    with pytest.raises(DataError, match=r"has no t10k-labels-idx1-ubyte or \.gz beside its images"):
        SequentialMNIST(whole, "test")
    images.unlink()
    with pytest.raises(DataError, match=r"has no t10k-images-idx3-ubyte or \.gz"):
        SequentialMNIST(whole, "test")
    assert len(SequentialMNIST(whole)) == 22


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


IMAGES = encoded(digits(5, seed=4)[0])
ZIPPED = gzip.compress(IMAGES, mtime=0)
DAMAGED = {
    "empty": b"",
    "no header": b"\0\0",
    "another kind of number": flipped(IMAGES, 2),
    "cut": IMAGES[:-1],
    "too long": IMAGES + b"\0",
    "labels in the place of images": encoded(np.arange(5)),
    "empty.gz": b"",
    "not zipped.gz": IMAGES,
    "cut.gz": ZIPPED[:-100],
    "cut in the check sum.gz": ZIPPED[:-4],
    "another check sum.gz": flipped(ZIPPED, len(ZIPPED) - 6),
    "no blocks.gz": flipped(ZIPPED, 10),
    "cut before it was zipped.gz": gzip.compress(IMAGES[:-1]),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_images_are_named(tmp_path: Path, kind: str) -> None:
    write(tmp_path, "train", *digits(5, seed=4))
    images, _ = paths(tmp_path, "train")
    assert len(SequentialMNIST(tmp_path)) == 5
    images.unlink()
    broken = images.with_name(images.name + ".gz") if kind.endswith(".gz") else images
    broken.write_bytes(DAMAGED[kind])
    with pytest.raises(DataError, match=f"{broken.name} is damaged or no file of MNIST"):
        SequentialMNIST(tmp_path)


def test_damaged_labels_are_named(tmp_path: Path) -> None:
    images, labels = digits(5, seed=4)
    write(tmp_path, "train", images, labels)
    paths(tmp_path, "train")[1].write_bytes(encoded(labels)[:-1])
    with pytest.raises(DataError, match="train-labels-idx1-ubyte is damaged"):
        SequentialMNIST(tmp_path)
    for wrong, message in (
        ((images, labels[:4]), r"4 labels for train images of shape \(5, 28, 28\)"),
        ((images[:, :27], labels), r"5 labels for train images of shape \(5, 27, 28\)"),
        ((images, np.array([0, 1, 10, 2, 3])), "a label 10 for a train image; MNIST has 0 to 9"),
    ):
        write(tmp_path, "train", *wrong)
        with pytest.raises(DataError, match=message):
            SequentialMNIST(tmp_path)


def test_the_real_test_images(shared_data: Path) -> None:
    """Read by hand: 16 bytes of header before the pixels, 8 before the labels."""
    folder = shared_data / "mnist" / "MNIST" / "raw"
    if not folder.is_dir():
        pytest.skip(f"real images are not at {folder}")
    raw = [gzip.decompress((folder / f"t10k-{kind}-ubyte.gz").read_bytes()) for kind in ("images-idx3", "labels-idx1")]
    images = [raw[0][start : start + 784] for start in range(16, len(raw[0]), 784)]
    label_of = dict(zip(images, raw[1][8:], strict=True))
    train, test = (SequentialMNIST(shared_data / "mnist", split, chunk=1) for split in ("train", "test"))
    assert (len(train), len(test), train.title) == (9000, 1000, "smnist-t10k")
    found = [image.tobytes() for part in (train, test) for image in part.images]
    assert sorted(found) == sorted(images)
    assert [label_of[image] for image in found] == [*train.labels, *test.labels]
    counts = np.bincount([*train.labels, *test.labels])
    assert counts.tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    x, label = test[17]
    assert (np.rint(x.numpy() * 255).astype(np.uint8).tobytes(), label) == (found[9017], label_of[found[9017]])
