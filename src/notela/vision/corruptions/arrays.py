"""What the corruptions share: types, and small steps on stacks of images (n, H, W, C)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage

Images = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]


def to_bytes(x: Array) -> Images:
    """[0, 1] to 0..255, cut and not rounded: the benchmark stores its images so."""
    return (np.clip(x, 0, 1) * 255).astype(np.uint8)


def smooth(x: Array, sigma: float) -> Array:
    """A Gaussian over the two sides of images (n, H, W, C), the border repeated beyond it."""
    return np.asarray(ndimage.gaussian_filter(x, (0, sigma, sigma, 0), mode="nearest"))


def pixels_at(x: Array, index: Array) -> Array:
    """The pixels (n, P, C) of images (n, H, W, C) at places (n, P) counted along the rows."""
    n, height, width, channels = x.shape
    starts = np.arange(n)[:, None] * (height * width)
    pixels: Array = x.reshape(-1, channels).take(starts + index, 0)
    return pixels
