"""Pattern generation: curves of four sines with mean 0 and variance 1, and a raster that is fixed or thinned."""

import numpy as np
import pytest
import torch

from snnlearn.data import PatternGeneration, PatternGenerationOptions

every_length = pytest.mark.parametrize("length", [11, 50, 100])


def curves(length: int = 100, **words: int) -> np.ndarray:
    data = PatternGeneration("train", PatternGenerationOptions(length=length, **words))
    return torch.as_tensor(data[0][1]).numpy().astype(np.float64)


@every_length
def test_chance_is_the_error_of_the_best_constant(length: int) -> None:
    """Least squares over constants, by the normal equation: its error is 1, and it is the constant 0."""
    data = PatternGeneration("train", PatternGenerationOptions(length=length))
    y = curves(length)
    best, error, *_ = np.linalg.lstsq(np.ones((length, 1)), y, rcond=None)
    np.testing.assert_allclose(best, np.zeros((1, 3)), atol=1e-6)
    np.testing.assert_allclose(error / length, np.ones(3), atol=1e-6)
    assert data.chance == pytest.approx(error.mean() / length, abs=1e-6)
    assert ((y - 0.3) ** 2).mean() > 1.05  # another constant is worse


@every_length
def test_curves_are_sines_of_1_2_3_and_5_cycles(length: int) -> None:
    """Projected on sines and cosines of these frequencies nothing is left, and no amplitude is four times another."""
    turns = 2 * np.pi * np.arange(length)[:, None] * np.array([1, 2, 3, 5]) / length
    waves = np.concatenate([np.sin(turns), np.cos(turns)], axis=1)
    for seed in range(5):
        weights = np.linalg.lstsq(waves, curves(length, seed=seed), rcond=None)[0]
        np.testing.assert_allclose(waves @ weights, curves(length, seed=seed), atol=1e-5)
        amplitudes = np.hypot(weights[:4], weights[4:])
        assert (amplitudes.max(axis=0) / amplitudes.min(axis=0) < 4.001).all()
        assert (amplitudes > 0.1).all()
        missing = np.linalg.lstsq(np.delete(waves, [3, 7], axis=1), curves(length, seed=seed), rcond=None)[1]
        assert (missing > 1e-2).all()  # the fifth harmonic is needed


def test_curves_come_from_the_seed_and_differ_among_each_other() -> None:
    np.testing.assert_array_equal(curves(seed=3), curves(seed=3))
    assert np.abs(curves(seed=3) - curves(seed=4)).max() > 0.5
    together = np.corrcoef(np.concatenate([curves(seed=3), curves(seed=4)], axis=1).T)
    assert np.abs(together - np.eye(6)).max() < 0.999


def test_without_drop_all_sequences_of_both_splits_are_the_same() -> None:
    train, test = (PatternGeneration(split) for split in ("train", "test"))
    assert (len(train), len(test)) == (16, 4)
    x, y = train[0]
    for data, index in ((train, 7), (train, 15), (test, 0), (test, 3)):
        assert torch.equal(data[index][0], x)
        assert torch.equal(torch.as_tensor(data[index][1]), torch.as_tensor(y))
    assert "every sequence is the same, of training and of test alike" in train.describe()


def test_the_raster_fires_at_its_rate() -> None:
    x, _ = PatternGeneration("train", PatternGenerationOptions(length=200, inputs=100, rate=0.3))[0]
    assert tuple(x.shape) == (200, 100)
    assert abs(float(x.mean()) - 0.3) < 4 * np.sqrt(0.3 * 0.7 / x.numel())


def test_drop_leaves_out_its_share_anew_in_every_sequence() -> None:
    words = {"length": 200, "inputs": 100, "rate": 0.3}
    whole = PatternGeneration("train", PatternGenerationOptions(**words))[0][0]
    for split in ("train", "test"):
        data = PatternGeneration(split, PatternGenerationOptions(drop=0.25, **words))
        spikes = torch.stack([data[index][0] for index in range(4)])
        assert (spikes <= whole).all()  # nothing but spikes of the raster
        shares = 1 - spikes.sum((1, 2)) / whole.sum()
        assert ((shares - 0.25).abs() < 4 * np.sqrt(0.25 * 0.75 / float(whole.sum()))).all()
        # A spike is left out of two sequences as often as 0.25 squared says: they do not go together.
        both = ((whole - spikes[0]) * (whole - spikes[1])).sum() / whole.sum()
        assert abs(float(both) - 0.0625) < 4 * np.sqrt(0.0625 / float(whole.sum()))
        assert torch.equal(torch.as_tensor(data[2][1]), torch.from_numpy(data.curves))
        assert "25 % of the raster's spikes are missing, others in every sequence" in data.describe()


def test_outputs_and_words() -> None:
    data = PatternGeneration("test", PatternGenerationOptions(outputs=2, length=40))
    assert data.classes == ("curve 1", "curve 2")
    assert (data.numbers, data.per_step) == (True, True)
    assert "2 numbers to follow at every step" in data.describe()
    assert "40 steps" in data.describe()
