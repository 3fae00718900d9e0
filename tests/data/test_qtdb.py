"""The ECG set: files made by hand, damaged ones, and the figures of the real one counted again."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from snnlearn.data import QTDB, DataError, StepTargets, collate_sequences

WAVES = ("P", "PQ", "QR", "RS", "ST", "TP")
# Two segments of five steps; 9 is a step that nobody annotated.
LABELS = np.array([[0, 1, 9, 5, 5], [9, 9, 4, 3, 2]])
SPIKES = np.arange(40).reshape(2, 5, 4) % 3 - 1


def one_hot(labels: np.ndarray) -> np.ndarray:
    return (labels[..., None] == np.arange(6)).astype(np.uint8)


def write(folder: Path, split: str = "train", **content: Any) -> Path:
    path = folder / f"QTDB_{split}.mat"
    savemat(path, {"x": SPIKES.astype(np.int16), "y": one_hot(LABELS), **content}, do_compression=True)
    return path


def test_segments_by_hand(tmp_path: Path) -> None:
    write(tmp_path)
    data = QTDB(tmp_path)
    assert (len(data), data.channels, data.classes, data.title, data.name) == (2, 4, WAVES, "qtdb", "qtdb train")
    for index in range(2):
        x, y = data[index]
        assert isinstance(y, torch.Tensor)
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        np.testing.assert_array_equal(x.numpy(), SPIKES[index])
        assert y.tolist() == [-100 if label == 9 else label for label in LABELS[index].tolist()]
    assert data[0][0][0].tolist() == [-1, 0, 1, -1]  # a fall is no spike less: it is a channel's own -1


def test_what_is_read_is_not_what_is_kept(tmp_path: Path) -> None:
    write(tmp_path)
    for unlabelled in ("left_out", "P"):
        data = QTDB(tmp_path, unlabelled=unlabelled)
        x, y = data[1]
        before = x.clone(), torch.as_tensor(y).clone()
        x.fill_(9)
        torch.as_tensor(y).fill_(9)
        assert torch.equal(data[1][0], before[0])
        assert torch.equal(torch.as_tensor(data[1][1]), before[1])


def test_unlabelled_steps_are_left_out_or_taken_for_p(tmp_path: Path) -> None:
    """P gives what an argmax over the rows gives, an all-zero row being 0."""
    write(tmp_path)
    left_out, as_p = QTDB(tmp_path), QTDB(tmp_path, unlabelled="P")
    assert (left_out.chance, as_p.chance) == (0.336, 0.301)
    for index in range(2):
        np.testing.assert_array_equal(torch.as_tensor(as_p[index][1]).numpy(), one_hot(LABELS)[index].argmax(axis=1))
    assert torch.as_tensor(as_p[1][1]).tolist() == [0, 0, 4, 3, 2]
    assert torch.as_tensor(left_out[1][1]).tolist() == [-100, -100, 4, 3, 2]
    with pytest.raises(ValueError, match="unlabelled='TP': 'left_out', or 'P' as in the published figure"):
        QTDB(tmp_path, unlabelled="TP")


def test_a_batch_has_no_target_where_no_segment_has_one(tmp_path: Path) -> None:
    labels = LABELS.copy()
    labels[0, 1] = 9
    write(tmp_path, y=one_hot(labels))
    data = QTDB(tmp_path)
    x, y, lengths = collate_sequences([data[0], data[1]])
    assert isinstance(y, StepTargets)
    assert (tuple(x.shape), lengths.tolist()) == ((5, 2, 4), [5, 5])
    assert [None if step is None else step.tolist() for step in y] == [[0, -100], None, [-100, 4], [5, 3], [5, 2]]


def test_a_part_is_reported_against_the_published_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "test")
    with caplog.at_level(logging.INFO, logger="snnlearn.data"):
        data = QTDB(tmp_path, "test")
    (line,) = caplog.records
    assert (line.levelno, line.getMessage()) == (logging.WARNING, data.describe())
    for part in (
        "qtdb test: 2 sequences of 4 channels",
        "5 steps, 30.0 % of them without a label",
        "P 14.3 %, PQ 14.3 %, QR 14.3 %, RS 14.3 %, ST 14.3 %, TP 28.6 %",
        f"from {tmp_path}; 141 segments were published, 2 found: figures do not compare",
    ):
        assert part in data.describe()


def test_missing_files_and_splits(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(DataError, match=f"there is no file {tmp_path}/QTDB_test.mat: .* nothing is downloaded"):
        QTDB(tmp_path, "test")
    with pytest.raises(DataError, match="split='validation': qtdb has 'train' and 'test'"):
        QTDB(tmp_path, "validation")


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((2, 5, 4), (2, 5, 5)),
        ((2, 5, 3), (2, 5, 6)),
        ((2, 5, 4), (2, 4, 6)),
        ((3, 5, 4), (2, 5, 6)),
        ((5, 4), (5, 6)),
        ((0, 5, 4), (0, 5, 6)),
        ((2, 0, 4), (2, 0, 6)),
    ],
)
def test_other_shapes_are_refused(tmp_path: Path, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    path = write(tmp_path, x=np.zeros(x, np.int16), y=np.zeros(y, np.uint8))
    with pytest.raises(DataError) as error:
        QTDB(tmp_path)
    assert f"{path} holds x {x} and y {y}; x is [N, T, 4] and y [N, T, 6]" in str(error.value)


def test_two_labels_at_a_step_are_refused(tmp_path: Path) -> None:
    twice, negative = one_hot(LABELS), one_hot(LABELS).astype(np.int16)
    twice[1, 2, 0] = 1
    negative[0, 0, 3] = -1
    for wrong in (twice, negative):
        path = write(tmp_path, y=wrong)
        with pytest.raises(DataError, match=f"{path}: a step with two labels; the rows of y are one-hot or all zero"):
            QTDB(tmp_path)


@pytest.mark.parametrize("keep", [0, 3, 60, 127, 140, 200, -10, -1])
def test_cut_files_are_named(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path)
    whole = path.read_bytes()
    assert len(whole) > 230
    path.write_bytes(whole[:keep])
    with pytest.raises(DataError, match=f"{path} is damaged, or no MATLAB file with x and y"):
        QTDB(tmp_path)


def test_other_damage_is_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    whole = bytearray(path.read_bytes())
    whole[160] ^= 0xFF  # inside what is compressed
    for content in (bytes(whole), b"no MATLAB file at all " * 20, b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"{path} is damaged, or no MATLAB file with x and y"):
            QTDB(tmp_path)
    savemat(path, {"x": SPIKES})
    with pytest.raises(DataError, match=r"no MATLAB file with x and y \('y'\): get it again"):
        QTDB(tmp_path)


@pytest.fixture
def real(shared_data: Path) -> dict[str, QTDB]:
    folder = shared_data / "qtdb_ecg"
    if not folder.is_dir():
        pytest.skip(f"the real segments are not at {folder}")
    return {split: QTDB(folder, split) for split in ("train", "test")}


def test_the_real_segments(real: dict[str, QTDB]) -> None:
    for (split, data), count, unlabelled in zip(real.items(), (618, 141), ("8.2 %", "10.4 %"), strict=True):
        labels = np.stack([torch.as_tensor(data[index][1]).numpy() for index in range(count)])
        assert (len(data), labels.shape) == (count, (count, 1301))
        assert f"{(labels == -100).mean():.1%}".replace("%", " %") == unlabelled
        assert f"1301 steps, {unlabelled} of them without a label" in data.describe()
        assert f"{count} segments were published, all there" in data.describe()
        spikes = np.stack([data[index][0].numpy() for index in range(count)])
        assert (spikes[:, -1, 0] == -1).all()
        assert np.unique(spikes[:, :-1]).tolist() == [0, 1], split


def test_the_real_chance_levels(real: dict[str, QTDB]) -> None:
    """The most frequent wave of the training steps is TP both ways; on the test steps it earns 33.6 and 30.1 %."""
    for unlabelled, chance in (("left_out", 0.336), ("P", 0.301)):
        train, test = (QTDB(data.root, split, unlabelled).step_labels for split, data in real.items())
        named = np.bincount(train[train >= 0]).argmax()
        assert WAVES[named] == "TP"
        assert round(float((test[test >= 0] == named).mean()), 3) == chance
        assert QTDB(real["test"].root, "test", unlabelled).chance == chance
        assert (train >= 0).all() == (unlabelled == "P")
