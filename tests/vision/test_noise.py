"""Noise: its distribution, where nothing is cut off."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from notela.vision.corruptions import corrupt
from notela.vision.severities import CONSTANTS


def noise(name: str, level: int, severity: int) -> np.ndarray:
    images = np.full((40, 32, 32, 3), level, np.uint8)
    return corrupt(images, name, severity).astype(float)


@pytest.mark.parametrize("severity", [1, 5])
def test_gaussian_and_speckle_noise_are_normal(severity: int) -> None:
    for name, share in (("gaussian_noise", 1.0), ("speckle_noise", 128 / 255)):
        out = noise(name, 128, severity)
        scale = CONSTANTS[name]["cifar"][severity - 1][0] * 255 * share
        z = (out + 0.5 - 128) / np.hypot(scale, 1 / np.sqrt(12))  # cutting moves by a half and spreads by a twelfth
        assert abs(z.mean()) < 0.01
        assert abs(z.std() - 1) < 0.01
        assert abs(stats.skew(z, axis=None)) < 0.03
        assert abs(stats.kurtosis(z, axis=None)) < 0.06
        assert abs(np.corrcoef(z[..., 0].ravel(), z[..., 1].ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("severity", [1, 5])
def test_shot_noise_counts_photons(severity: int) -> None:
    photons = CONSTANTS["shot_noise"]["cifar"][severity - 1][0]
    out = noise("shot_noise", 100, severity)
    assert abs(out.mean() + 0.5 - 100) < 0.6
    assert out.std() == pytest.approx(255 * np.sqrt(100 / 255 / photons), rel=0.02)
    assert set(np.unique(out)) <= set(np.floor(np.arange(photons + 1) / photons * 255))
    assert not noise("shot_noise", 0, severity).any()


@pytest.mark.parametrize("severity", [1, 5])
def test_impulse_noise_is_salt_and_pepper_in_equal_parts(severity: int) -> None:
    share = CONSTANTS["impulse_noise"]["cifar"][severity - 1][0]
    out = noise("impulse_noise", 77, severity)
    for value in (0, 255):
        assert (out == value).mean() == pytest.approx(share / 2, rel=0.1)
    assert np.isin(out, (0, 77, 255)).all()
