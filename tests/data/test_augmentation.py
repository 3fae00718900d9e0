"""Random shifts: whole recordings move, nothing else changes, and the generator decides."""

import pytest
import torch

from snnlearn.data import random_shift


def sample_frames() -> torch.Tensor:
    frames = torch.zeros(3, 40, 2, 7, 9)
    frames[:, :, :, 3:5, 4:6] = torch.randint(1, 9, (3, 40, 2, 2, 2)).float()
    return frames


def test_every_recording_moves_as_one_piece_by_its_own_amount() -> None:
    frames = sample_frames()
    kept = frames.clone()
    moved = random_shift(frames, 2, torch.Generator().manual_seed(1))
    assert torch.equal(frames, kept)
    assert moved.shape == frames.shape
    seen = set()
    for sample in range(40):
        matches = [
            (dy, dx)
            for dy in range(-2, 3)
            for dx in range(-2, 3)
            if torch.equal(torch.roll(frames[:, sample], (dy, dx), (-2, -1)), moved[:, sample])
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) > 10  # many displacements
    assert {dy for dy, _ in seen} == {dx for _, dx in seen} == set(range(-2, 3))


def test_what_leaves_the_sensor_is_gone_and_zeros_come_in() -> None:
    frames = torch.ones(1, 300, 1, 4, 4)
    counts = random_shift(frames, 2, torch.Generator().manual_seed(1)).sum((0, 2, 3, 4))
    assert counts.max() == 16
    assert counts.min() == 4


def test_the_generator_alone_decides() -> None:
    frames = sample_frames()
    before = torch.get_rng_state()
    first, again, other = (random_shift(frames, 2, torch.Generator().manual_seed(s)) for s in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


def test_degenerate_shifts() -> None:
    frames = sample_frames()
    assert random_shift(frames, 0, torch.Generator()) is frames
    assert random_shift(frames[:, :0], 2, torch.Generator()).shape == (3, 0, 2, 7, 9)
    for pixels in (-1, 7):
        with pytest.raises(ValueError, match=r"smaller than the sensor \(7 x 9\)"):
            random_shift(frames, pixels, torch.Generator())
