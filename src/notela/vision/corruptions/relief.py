"""Drops of water as lit shapes, for the corruption "spatter": edges, distances, equalised heights, light.

What OpenCV does for the benchmark, written for stacks of images.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from notela.vision.corruptions.arrays import Array, Images

_FARTHEST = 20  # pixels from its edge, where a drop of water is flat


def relief(drops: Images) -> Array:
    """Light from the lower right on drops (n, H, W) as high as they are far from an edge, equalised."""
    far = _to_nearest(outlines(drops, 50, 150), _FARTHEST)
    height = _mean_of_nine(far).astype(int)
    light = np.array([[[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]])
    lit = ndimage.correlate(_equalised(height), light, mode="mirror").clip(0, 255)
    return np.rint(_mean_of_nine(lit))


def _mean_of_nine(x: Array) -> Array:
    """The mean of each pixel and its eight neighbours, in single precision: nine times 20 give 20, not a bit less."""
    sums = x.astype(np.float64)
    for axis in (1, 2):
        sums = ndimage.correlate1d(sums, [1, 1, 1], axis, mode="mirror")
    return (sums / 9).astype(np.float32)


def _to_nearest(marks: npt.NDArray[np.bool_], farthest: int) -> Array:
    """How far each pixel of (n, H, W) is from the nearest mark, at most `farthest`, on a king's and a knight's path.

    OpenCV counts 1, 1.4 and 2.1969 for the three kinds of step.
    """
    lengths = {1: 1.0, 2: 1.4, 5: 2.1969}  # by their squares
    moves = [(y, x, lengths[y * y + x * x]) for y in range(-2, 3) for x in range(-2, 3) if y * y + x * x in lengths]
    _, height, width = marks.shape
    far = np.where(marks, 0.0, farthest)
    while True:
        padded = np.pad(far, ((0, 0), (2, 2), (2, 2)), constant_values=farthest)
        nearer = far.copy()
        for y, x, length in moves:
            np.minimum(nearer, padded[:, 2 + y : 2 + y + height, 2 + x : 2 + x + width] + length, out=nearer)
        if np.array_equal(nearer, far):
            return far
        far = nearer


def _equalised(levels: Array) -> Array:
    """Whole numbers (n, H, W) up to `_FARTHEST`, spread over 0 to 255 by rank; the lowest level becomes 0."""
    counts = np.stack([(levels == level).sum((1, 2)) for level in range(_FARTHEST + 1)], 1)
    lowest = levels.min((1, 2))
    above = counts.cumsum(1) - np.take_along_axis(counts, lowest[:, None], 1)
    total = above[:, -1:]
    table = np.rint(np.divide(255 * above, total, out=np.zeros(above.shape), where=total > 0)).astype(int)
    table = np.where(total > 0, table, lowest[:, None])
    return np.take_along_axis(table, levels.reshape(len(levels), -1), 1).reshape(levels.shape)


def outlines(images: Images, low: float, high: float) -> npt.NDArray[np.bool_]:
    """Canny's edges of grey images (n, H, W): ridges of the gradient above `low` that touch one above `high`."""
    x = images.astype(int)
    across = ndimage.correlate1d(ndimage.correlate1d(x, [1, 2, 1], 1, mode="nearest"), [-1, 0, 1], 2, mode="nearest")
    along = ndimage.correlate1d(ndimage.correlate1d(x, [1, 2, 1], 2, mode="nearest"), [-1, 0, 1], 1, mode="nearest")
    steep = np.abs(across) + np.abs(along)
    _, height, width = images.shape
    padded = np.pad(steep, ((0, 0), (1, 1), (1, 1)))

    def beside(down: int, right: int) -> Array:
        return padded[:, 1 + down : 1 + down + height, 1 + right : 1 + right + width]

    flat = np.abs(along) < np.abs(across) * math.tan(math.pi / 8)
    upright = np.abs(along) > np.abs(across) / math.tan(math.pi / 8)
    same_sign = (across ^ along) >= 0
    ridge = np.select(
        [flat, upright, same_sign],
        [
            (steep > beside(0, -1)) & (steep >= beside(0, 1)),
            (steep > beside(-1, 0)) & (steep >= beside(1, 0)),
            (steep > beside(-1, -1)) & (steep > beside(1, 1)),
        ],
        (steep > beside(-1, 1)) & (steep > beside(1, -1)),
    )
    weak = ridge & (steep > low)
    pieces, count = ndimage.label(weak, np.ones((1, 3, 3)) * [[[0]], [[1]], [[0]]])
    strong = np.zeros(count + 1, bool)
    strong[pieces[weak & (steep > high)]] = True
    return np.asarray(strong[pieces])
