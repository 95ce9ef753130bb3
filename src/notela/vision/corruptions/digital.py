"""Digital: colours, shape and coding of an image are changed.

Brightness, which the benchmark counts as weather, is here with the other change in HSV.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
from PIL import Image
from scipy import ndimage

from notela.vision.corruptions.arrays import Array, Images, pixels_at, to_bytes
from notela.vision.corruptions.draws import Draws


def brightness(images: Images, draws: Draws, summand: float) -> Images:
    value, saturation, hue = _hsv(images)
    return np.moveaxis(to_bytes(np.minimum(value + summand, 1) * (1 - saturation * hue)), 0, 3)


def saturate(images: Images, draws: Draws, factor: float, summand: float) -> Images:
    value, saturation, hue = _hsv(images)
    return np.moveaxis(to_bytes(value * (1 - np.clip(saturation * factor + summand, 0, 1) * hue)), 0, 3)


def _hsv(images: Images) -> tuple[Array, Array, Array]:
    """Value, saturation (n, H, W) and hue (3, n, H, W) of images that are value · (1 - saturation · hue).

    The hue is 0 for the largest channel and 1 for the smallest: no angle, so no six cases. That of a grey pixel is red.
    """
    x = np.ascontiguousarray(np.moveaxis(images, 3, 0)) / 255
    value = x.max(0)
    spread = value - x.min(0)
    saturation = np.divide(spread, value, out=np.zeros_like(value), where=value > 0)
    red = np.ones_like(x)
    red[0] = 0
    return value, saturation, np.divide(value - x, spread, out=red, where=spread > 0)


def contrast(images: Images, draws: Draws, share: float) -> Images:
    x = images / 255
    mean = x.mean((1, 2), keepdims=True)
    return to_bytes((x - mean) * share + mean)


def elastic_transform(images: Images, draws: Draws, displacement: float, smoothness: float, shift: float) -> Images:
    """A random affine map, then a smooth random displacement of every pixel."""
    _, height, width, _ = images.shape
    y, x = np.mgrid[:height, :width]
    centre, third = np.array([width // 2, height // 2]), min(height, width) // 3
    corners = centre + third * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = corners + shift * (2 * draws.uniform(3, 2) - 1)
    back = np.linalg.solve(np.concatenate([moved, np.ones_like(moved[..., :1])], 2), corners[None])
    warped_from = np.stack([x, y, np.ones_like(x)], 2).reshape(1, -1, 3) @ back
    warped = _sampled(images / 255, warped_from[..., 1], warped_from[..., 0], _mirrored)
    fields = displacement * ndimage.gaussian_filter(
        2 * draws.uniform(2, height, width) - 1, (0, 0, smoothness, smoothness), mode="reflect", truncate=3
    )
    pixels = (len(images), height * width)
    rows, columns = (y + fields[:, 1]).reshape(pixels), (x + fields[:, 0]).reshape(pixels)
    return to_bytes(_sampled(warped, rows, columns, _reflected))


def _sampled(x: Array, rows: Array, columns: Array, border: Callable[[Array, int], Array]) -> Array:
    """Images (n, H, W, C) at fractional positions (n, H·W), linearly between pixels."""
    _, height, width, channels = x.shape
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    down, right = (np.repeat(part[..., None], channels, 2) for part in (rows - top, columns - left))
    above, below = (border(top + i, height) * width for i in (0, 1))
    west, east = (border(left + i, width) for i in (0, 1))
    upper = pixels_at(x, above + west) * (1 - right) + pixels_at(x, above + east) * right
    lower = pixels_at(x, below + west) * (1 - right) + pixels_at(x, below + east) * right
    sampled: Array = upper * (1 - down) + lower * down
    return sampled.reshape(x.shape)


def _mirrored(index: Array, size: int) -> Array:
    """Beyond the border the image runs back, without its last pixel again: c b | a b c | b a."""
    around = index % (2 * size - 2)
    return np.asarray(np.minimum(around, 2 * size - 2 - around))


def _reflected(index: Array, size: int) -> Array:
    """Beyond the border the image runs back, with its last pixel again: b a | a b c | c b."""
    around = index % (2 * size)
    return np.asarray(np.minimum(around, 2 * size - 1 - around))


def pixelate(images: Images, draws: Draws, share: float) -> Images:
    _, height, width, _ = images.shape
    small = int(width * share), int(height * share)
    box = Image.Resampling.BOX
    return np.stack([np.asarray(Image.fromarray(x).resize(small, box).resize((width, height), box)) for x in images])


def jpeg_compression(images: Images, draws: Draws, quality: float) -> Images:
    return np.stack([_through_jpeg(x, int(quality)) for x in images])


def _through_jpeg(image: Images, quality: int) -> Images:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))
