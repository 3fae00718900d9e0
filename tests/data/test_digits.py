"""The simulated digits: published split, sane events, determinism, and a cache that cannot serve the wrong thing."""

import logging
import pickle
import re
import time
from pathlib import Path

import numpy as np
import pytest

from snnlearn.data import Binning, Camera, DataError, Digits
from snnlearn.data import cache as cache_module
from snnlearn.data.cache import cache_folder, cached_arrays
from snnlearn.data.camera import SENSOR, path_px, record
from snnlearn.data.digits import digest, draw, load_images, recordings, split_indices

PIXELS = 34 * 34
DOCS = Path(__file__).resolve().parents[2] / "docs" / "data.md"


def few(count: int = 3) -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_images()
    return images[:count], labels[:count]


def test_published_split(digits: dict[str, Digits]) -> None:
    parts = split_indices(load_images()[1])
    assert (len(parts["train"]), len(parts["test"])) == (1400, 397)
    assert sorted([*parts["train"], *parts["test"]]) == list(range(1797))
    for name, indices in parts.items():
        assert digest(indices) in DOCS.read_text(), f"the {name} split is not the one that docs/data.md publishes"
        np.testing.assert_array_equal(digits[name].indices, indices)
        np.testing.assert_array_equal(digits[name].labels, load_images()[1][indices])
    assert np.bincount(digits["test"].labels).min() >= 39


def test_frames_and_labels(digits: dict[str, Digits]) -> None:
    data = digits["test"]
    frames, label = data[5]
    assert tuple(frames.shape) == (20, 2, 34, 34)
    assert frames.sum() == len(data.events(5))
    assert label == data.labels[5]
    assert data.class_to_index == {str(digit): digit for digit in range(10)}
    again = pickle.loads(pickle.dumps(data))  # noqa: S301
    np.testing.assert_array_equal(again[5][0].numpy(), frames.numpy())


def test_it_says_that_it_is_a_simulation(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="snnlearn.data"):
        Digits("test")
    assert "SIMULATED" in caplog.text
    assert "not N-MNIST" in caplog.text


def test_unknown_split_is_refused() -> None:
    with pytest.raises(DataError, match="'validation'"):
        Digits("validation")


def test_event_statistics_are_near_those_of_real_recordings(digits: dict[str, Digits]) -> None:
    samples = [digits["train"].events(index) for index in range(200)]
    counts = np.array([len(sample) for sample in samples])
    on = np.concatenate([sample.channel >= PIXELS for sample in samples])
    gaps = np.concatenate([np.diff(sample.time_us) for sample in samples])
    pixels = np.concatenate([np.bincount(sample.channel % PIXELS, minlength=PIXELS) for sample in samples])
    last = np.mean([sample.time_us[-1] for sample in samples])
    assert 3500 < counts.mean() < 4500  # real: 3,856
    assert 300 < counts.std() < 1200  # real: 1,109; all these digits are of one size
    assert 0.47 < on.mean() < 0.51  # real: 0.494
    assert gaps.min() >= 0
    assert 25 < np.median(gaps) < 50  # real: 36
    assert 295_000 < last < 330_000  # real: 308,000
    assert 300 < (pixels > 0).mean() * PIXELS < 500  # real: 408
    assert all(sample.time_us[0] < 20_000 for sample in samples)


def test_events_come_in_three_saccades(digits: dict[str, Digits]) -> None:
    frames = np.mean([digits["train"][index][0].sum((1, 2, 3)).numpy() for index in range(100)], axis=0)
    moving, still = frames[[2, 3, 8, 9, 16, 17]], frames[[6, 13]]  # steps of 15.5 ms; still at 93 and 202..217 ms
    assert moving.min() > 4 * still.max()


def test_camera_path_visits_its_corners() -> None:
    assert path_px(-10.0) == (0.3, 0.4)
    assert path_px(90.0) == pytest.approx((1.9, 6.1))
    assert path_px(200.0) == pytest.approx((5.3, 0.8))
    assert path_px(400.0) == pytest.approx((0.7, 0.4))
    assert path_px(42.0) == pytest.approx((1.1, 3.25))  # half way in time is half way in space


def test_blank_paper_gives_noise_alone() -> None:
    blank = np.zeros((4, 42, 42), np.float32)
    silent = list(record(blank, np.arange(4), Camera(noise_events=0.0), seed=0))
    noisy = list(record(blank, np.arange(4), Camera(), seed=0))
    assert [len(sample) for sample in silent] == [0, 0, 0, 0]
    assert all(50 < len(sample) < 140 for sample in noisy)  # 0.08 per pixel are 92
    assert [sample.label for sample in noisy] == [0, 1, 2, 3]


def test_a_pixel_alternates_with_the_light() -> None:
    """A bar that moves over a pixel darkens it, then brightens it again: OFF first, then ON, as many of both."""
    bar = np.zeros((1, 42, 42), np.float32)
    bar[0, 25:27] = 1.0
    camera = Camera(noise_events=0.0, latency_ms=0.0, jitter_ms=0.0, threshold_spread=0.0)
    (sample,) = record(bar, np.array([0]), camera, seed=0)
    first_saccade = sample.time_us < 90_000
    p, y, x = np.unravel_index(sample.channel[first_saccade], SENSOR)
    crossed = (x == 15) & (y == 20)  # the bar goes from rows 17.4, 18.4 to 23.1, 24.1
    polarity = p[crossed]
    assert 4 <= (polarity == 0).sum() <= 10  # ln(1 / 0.15) / 0.235 = 8 at full depth
    assert abs((polarity == 0).sum() - (polarity == 1).sum()) <= 1
    assert polarity.tolist() == sorted(polarity.tolist())


def test_same_bits_each_time_whatever_the_company() -> None:
    images, labels = few(70)  # two chunks
    ink = draw(images)
    all_of_them = list(record(ink, labels, Camera(), seed=0))
    alone = list(record(ink[:2], labels[:2], Camera(), seed=0))
    other = list(record(ink[:2], labels[:2], Camera(), seed=1))
    for one, two in zip(alone, all_of_them, strict=False):
        np.testing.assert_array_equal(one.time_us, two.time_us)
        np.testing.assert_array_equal(one.channel, two.channel)
    assert not np.array_equal(alone[0].time_us, other[0].time_us)


def test_cached_set_is_what_the_simulator_makes_now(digits: dict[str, Digits]) -> None:
    """Fails where the simulator was changed and its VERSION was not."""
    images, labels = few(1797)
    fresh = list(record(draw(images[:6]), labels[:6], Camera(), seed=0))
    where = {int(index): (part, place) for part in digits for place, index in enumerate(digits[part].indices)}
    for index, sample in enumerate(fresh):
        part, place = where[index]
        np.testing.assert_array_equal(digits[part].events(place).time_us, sample.time_us)
        np.testing.assert_array_equal(digits[part].events(place).channel, sample.channel)


@pytest.mark.parametrize(
    "option", ["contrast", "threshold", "threshold_spread", "low_pass_ms", "latency_ms", "jitter_ms"]
)
def test_every_option_of_the_camera_matters(option: str) -> None:
    images, labels = few(1)
    plain = next(record(draw(images), labels, Camera(), seed=0))
    value = getattr(Camera(), option) * 0.9
    changed = next(record(draw(images), labels, Camera(**{option: value}), seed=0))
    assert not np.array_equal(plain.time_us, changed.time_us)


@pytest.mark.parametrize(
    "options", [{"contrast": 1.0}, {"threshold": 0.0}, {"jitter_ms": -1.0}, {"low_pass_ms": float("nan")}]
)
def test_impossible_cameras_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Camera(**options)


def test_pictures_of_another_size_are_refused() -> None:
    with pytest.raises(DataError, match="42 x 42"):
        next(record(np.zeros((1, 34, 34), np.float32), np.array([0]), Camera(), seed=0))


def test_cache_covers_every_option(tmp_path: Path) -> None:
    images, labels = few()
    cameras = [Camera(), Camera(contrast=0.8), Camera(noise_events=0.0)]
    for camera in cameras:
        recordings(images, labels, camera, 0, tmp_path)
    recordings(images, labels, Camera(), 1, tmp_path)
    recordings(images[:2], labels[:2], Camera(), 0, tmp_path)
    assert len(list(tmp_path.glob("digits-*.npz"))) == 5
    start = time.perf_counter()
    again = recordings(images, labels, Camera(), 0, tmp_path)
    assert time.perf_counter() - start < 1
    assert len(again["bounds"]) == 4
    assert len(list(tmp_path.glob("*"))) == 5  # nothing is left beside them


def test_version_of_the_simulator_is_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = few(1)
    recordings(images, labels, Camera(), 0, tmp_path)
    monkeypatch.setattr("snnlearn.data.camera.VERSION", 999)
    recordings(images, labels, Camera(), 0, tmp_path)
    assert len(list(tmp_path.glob("digits-*.npz"))) == 2


def test_another_number_of_steps_is_never_served_from_the_cache(digits: dict[str, Digits]) -> None:
    four, eight = (Digits("test", Binning(steps=steps)) for steps in (4, 8))
    assert four[0][0].shape[0] == 4
    assert eight[0][0].shape[0] == 8
    assert four[0][0].sum() == eight[0][0].sum() == digits["test"][0][0].sum()


def counted(calls: list[int]) -> dict[str, np.ndarray]:
    calls.append(1)
    return {"x": np.arange(10_000)}


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "text", "unmarked"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []
    cached_arrays(tmp_path, "numbers", {"n": 1}, lambda: counted(calls))
    (path,) = tmp_path.glob("*.npz")
    content = path.read_bytes()
    if damage == "unmarked":
        np.savez(path, options=np.array('{"n": 1}'), x=np.arange(10), complete=np.array(False))
    else:
        half = len(content) // 2
        flipped = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
        path.write_bytes({"cut": content[:half], "flipped": flipped, "emptied": b"", "text": b"hello"}[damage])
    arrays = cached_arrays(tmp_path, "numbers", {"n": 1}, lambda: counted(calls))
    np.testing.assert_array_equal(arrays["x"], np.arange(10_000))
    assert len(calls) == 2
    assert "is damaged" in caplog.text
    cached_arrays(tmp_path, "numbers", {"n": 1}, lambda: counted(calls))
    assert len(calls) == 2  # and the new file is sound


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(file: object, **_: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(cache_module.np, "savez", killed)
    with pytest.raises(KeyboardInterrupt):
        cached_arrays(tmp_path, "numbers", {"n": 1}, lambda: {"x": np.arange(3)})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_costs_the_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module.np, "savez", full)
    assert cached_arrays(tmp_path, "numbers", {}, lambda: {"x": np.arange(3)})["x"].tolist() == [0, 1, 2]
    assert "No space left" in caplog.text


def test_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "snnlearn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "snnlearn"
    assert cache_folder(tmp_path / "own") == tmp_path / "own"


def test_cache_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(cache_module.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    fallback = cache_folder()
    assert fallback.parent == tmp_path / "temporary"
    assert re.search("cannot be written.*using", caplog.text)
    with pytest.raises(DataError, match="cannot be written"):  # what was asked for by name is not replaced
        cache_folder(tmp_path / "file" / "cache")


def test_a_linear_classifier_reads_the_digits(digits: dict[str, Digits]) -> None:
    """Nine in ten on the test part from 4 x 2 x 17 x 17 sums; chance with shuffled labels."""

    def sums(data: Digits) -> np.ndarray:
        frames = np.stack([Binning(steps=4).frames(data.events(index), SENSOR) for index in range(len(data))])
        return frames.reshape(len(data), 4, 2, 17, 2, 17, 2).sum((4, 6)).reshape(len(data), -1) / 50

    train, test = sums(digits["train"]), sums(digits["test"])
    middle = train.mean(0)
    kernel = (train - middle) @ (train - middle).T

    def accuracy(labels: np.ndarray) -> float:
        """Ridge regression on one-hot labels, in its dual form."""
        weight = np.linalg.solve(kernel + 10 * np.eye(len(kernel)), np.eye(10)[labels] - 0.1)
        score = (test - middle) @ (train - middle).T @ weight
        return float((score.argmax(1) == digits["test"].labels).mean())

    labels = digits["train"].labels
    assert accuracy(labels) > 0.9
    assert accuracy(np.random.default_rng(0).permutation(labels)) < 0.2
