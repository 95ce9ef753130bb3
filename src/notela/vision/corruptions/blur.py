"""Blur: each pixel is mixed with, or taken from, those around it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import ndimage, sparse

from notela.vision.corruptions.arrays import Array, Images, pixels_at, smooth, to_bytes
from notela.vision.corruptions.draws import Draws


def defocus_blur(images: Images, draws: Draws, radius: float, rim: float) -> Images:
    kernel = disk(radius, rim)
    return to_bytes(ndimage.correlate(images / 255, kernel[None, :, :, None], mode="mirror"))


def disk(radius: float, rim: float) -> Array:
    """A disk whose rim is blurred: the light of one point out of focus.

    In single precision as the benchmark's, which decides to which side means that are whole numbers are cut.

    >>> disk(1, 0.2).round(2)[7:10, 7:10]
    array([[0. , 0.2, 0. ],
           [0.2, 0.2, 0.2],
           [0. , 0.2, 0. ]], dtype=float32)
    """
    half, taps = (8, 1) if radius <= 8 else (int(radius), 2)
    line = np.arange(-half, half + 1)
    flat = (line**2 + line[:, None] ** 2 <= radius**2).astype(float)
    blur = np.exp(-((np.arange(-taps, taps + 1) / rim) ** 2) / 2)
    blur /= blur.sum()
    soft = ndimage.correlate1d(flat / flat.sum(), blur, 0, mode="mirror")
    return np.asarray(ndimage.correlate1d(soft, blur, 1, mode="mirror"), np.float32)


def gaussian_blur(images: Images, draws: Draws, sigma: float) -> Images:
    return to_bytes(smooth(images / 255, sigma))


def glass_blur(images: Images, draws: Draws, sigma: float, reach: float, times: float) -> Images:
    """Blur, take every pixel from a random neighbour, blur.

    The benchmark means to swap, but its two views of one array make the swap a copy.
    """
    n, height, width, _ = images.shape
    reach = int(reach)
    rows, columns = np.arange(height - reach, reach, -1), np.arange(width - reach, reach, -1)
    steps = draws.steps(reach, int(times), len(rows), len(columns), 2)
    source = np.broadcast_to(np.arange(height * width), (n, height * width))
    for turn in range(int(times)):
        source = np.take_along_axis(source, _copies(rows, columns, steps[:, turn], (height, width)), 1)
    shuffled = pixels_at(to_bytes(smooth(images / 255, sigma)), source).reshape(images.shape)
    return to_bytes(smooth(shuffled / 255, sigma))


def _copies(rows: Array, columns: Array, steps: Array, size: tuple[int, int]) -> Array:
    """Where each pixel's value comes from (n, H·W), if all `rows` × `columns` in turn copy the pixel `steps` away.

    A pixel that copies one whose turn has been gets what that one had copied: such chains are followed by doubling.
    """
    n, (height, width) = len(steps), size
    here = rows[:, None] * width + columns
    there = here + steps[..., 1].astype(int) * width + steps[..., 0]
    own = np.tile(np.arange(height * width), (n, 1))
    copied = own.copy()
    copied[:, here.ravel()] = there.reshape(n, -1)
    turn = np.full(height * width, here.size)  # never, for the margin
    turn[here.ravel()] = np.arange(here.size)
    link = np.where(turn[copied] < turn, copied, own)
    while True:
        further = np.take_along_axis(link, link, 1)
        if np.array_equal(further, link):
            return np.take_along_axis(copied, link, 1)
        link = further


def motion_blur(images: Images, draws: Draws, radius: float, sigma: float) -> Images:
    angles = np.pi / 4 * (2 * draws.uniform(1)[:, 0] - 1)
    return np.rint(smear(images, int(radius), sigma, angles)).astype(np.uint8)


def smear(images: Array, radius: int, sigma: float, angles: Array) -> Array:
    """Each pixel a weighted mean of those ahead of it in its image's direction (radians), half a bell of weights.

    The path is rounded to whole pixels, and the border repeated beyond the image, as ImageMagick does it.
    """
    n, height, width, channels = images.shape
    along = np.arange(2 * radius + 1)
    weights = np.exp(-((along / sigma) ** 2) / 2)
    weights /= weights.sum()
    down = np.ceil(along * np.sin(angles)[:, None] - 0.5).astype(int)
    right = np.ceil(along * np.cos(angles)[:, None] - 0.5).astype(int)
    margin = 2 * radius
    padded = np.pad(images, ((0, 0), (margin, margin), (margin, margin), (0, 0)), "edge")
    lines = padded.reshape(n, height + 2 * margin, -1)  # a line of pixels in one piece is copied fastest
    windows = np.lib.stride_tricks.sliding_window_view(lines, (height, width * channels), (1, 2))
    smeared = np.zeros((n, height, width * channels), np.float32)
    for i, weight in enumerate(weights.astype(np.float32)):
        smeared += weight * windows[np.arange(n), margin + down[:, i], (margin + right[:, i]) * channels]
    return smeared.reshape(images.shape)


def zoom_blur(images: Images, draws: Draws, largest: float, step: float) -> Images:
    factors = tuple(np.arange(1, largest, step).tolist())
    return to_bytes((images / 255 + sum_of_zooms(images / 255, factors)) / (len(factors) + 1))


def sum_of_zooms(x: Array, factors: tuple[float, ...]) -> Array:
    """Images (n, H, W, C) zoomed by each of the factors, added up."""
    n, height, width, channels = x.shape
    pixels = x.reshape(n, height * width, channels).swapaxes(0, 1).reshape(height * width, -1)
    zoomed: Array = _zooms(height, width, factors) @ pixels
    return zoomed.reshape(height * width, n, channels).swapaxes(0, 1).reshape(x.shape)


@lru_cache(maxsize=8)
def _zooms(height: int, width: int, factors: tuple[float, ...]) -> Any:
    """The sum of an image's zooms as one sparse matrix (H·W, H·W): made once, it costs as much as its few entries."""
    return sum(sparse.kron(zoom_matrix(height, z), zoom_matrix(width, z), "csr") for z in factors)


def zoom_matrix(size: int, factor: float) -> Any:
    """The middle part of a line of `size` pixels, stretched by `factor` to its full length: sparse (size, size).

    >>> zoom_matrix(4, 2).toarray().round(2)
    array([[0.  , 1.  , 0.  , 0.  ],
           [0.  , 0.67, 0.33, 0.  ],
           [0.  , 0.33, 0.67, 0.  ],
           [0.  , 0.  , 1.  , 0.  ]])
    """
    part = math.ceil(size / factor)
    stretched = round(part * factor)
    position = (np.arange(size) + (stretched - size) // 2) * ((part - 1) / (stretched - 1))
    left = np.minimum(position.astype(int), part - 2)
    share = position - left
    column = left + (size - part) // 2
    row = np.arange(size)
    entries = (np.concatenate([1 - share, share]), (np.tile(row, 2), np.concatenate([column, column + 1])))
    return sparse.csr_array(entries, (size, size))
