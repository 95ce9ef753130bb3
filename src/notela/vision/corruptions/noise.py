"""Noise: each value of an image is changed by itself."""

from __future__ import annotations

import numpy as np

from notela.vision.corruptions.arrays import Images, to_bytes
from notela.vision.corruptions.draws import Draws


def gaussian_noise(images: Images, draws: Draws, scale: float) -> Images:
    return to_bytes(images / 255 + scale * draws.normal(*images.shape[1:]))


def shot_noise(images: Images, draws: Draws, photons: float) -> Images:
    return to_bytes(draws.poisson(images / 255 * photons) / photons)


def impulse_noise(images: Images, draws: Draws, share: float) -> Images:
    """Each value alone, not each pixel, turns black or white."""
    u = draws.uniform(*images.shape[1:])
    return np.where(u < share, np.where(u < share / 2, np.uint8(0), np.uint8(255)), images)


def speckle_noise(images: Images, draws: Draws, scale: float) -> Images:
    x = images / 255
    return to_bytes(x + x * (scale * draws.normal(*images.shape[1:])))
