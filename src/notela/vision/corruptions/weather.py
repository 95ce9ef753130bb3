"""Weather: something falls, lies or hangs in front of an image."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from notela.errors import NotelaError
from notela.vision.corruptions.arrays import Array, Images, smooth, to_bytes
from notela.vision.corruptions.blur import smear, sum_of_zooms
from notela.vision.corruptions.draws import Draws
from notela.vision.corruptions.relief import relief

_WATER = np.array([175, 238, 238]) / 255
_MUD = np.array([63, 42, 20]) / 255


def snow(
    images: Images,
    draws: Draws,
    mean: float,
    spread: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    share: float,
) -> Images:
    """Flakes are bright spots of smeared noise; they fall twice, the second time upside down, on a whitened image."""
    _, height, width, _ = images.shape
    flakes = mean + spread * draws.normal(height, width, 1)
    flakes = sum_of_zooms(flakes, (zoom,))
    flakes[flakes < threshold] = 0
    angles = np.pi / 4 * (2 * draws.uniform(1)[:, 0] - 3)
    layer = np.rint(smear(to_bytes(flakes), int(radius), sigma, angles)) / 255
    x = images / 255
    grey = x @ np.array([[0.299], [0.587], [0.114]])
    whitened = share * x + (1 - share) * np.maximum(x, grey * 1.5 + 0.5)
    return to_bytes(whitened + layer + layer[:, ::-1, ::-1])


def frost(
    layers: Sequence[Images], images: Images, draws: Draws, image_share: float, frost_share: float, step: float
) -> Images:
    """A piece of one of the frost images, laid over."""
    _, height, width, _ = images.shape
    u = draws.uniform(3)
    choice = (u[:, 0] * len(layers)).astype(int)
    pieces = np.empty_like(images)
    for k, layer in enumerate(layers):
        mine = choice == k
        top, left = ((u[mine, 1:] * np.subtract(layer.shape[:2], (height, width))).astype(int)).T
        windows = np.lib.stride_tricks.sliding_window_view(layer, (height, width), (0, 1))
        pieces[mine] = windows[top, left].transpose(0, 2, 3, 1)
    return (image_share * images + frost_share * pieces).clip(0, 255).astype(np.uint8)


def frost_layers(frost: Sequence[Images] | None, step: int, size: tuple[int, ...]) -> list[Images]:
    """The frost images at the size they are used: every `step`-th pixel is what bilinear shrinking takes."""
    if frost is None or len(frost) == 0:
        raise NotelaError(
            "name='frost' needs the benchmark's six frost images: read frost1.png to frost6.jpg as RGB arrays and hand "
            "them in, frost=[np.asarray(Image.open(path).convert('RGB')) for path in paths]"
        )
    layers = [np.asarray(layer)[step // 2 :: step, step // 2 :: step] for layer in frost]
    for i, layer in enumerate(layers):
        if layer.dtype != np.uint8 or layer.ndim != 3 or layer.shape[2] != 3:
            raise NotelaError(
                f"frost[{i}] has shape {np.shape(frost[i])} and dtype {layer.dtype}: uint8 (H, W, 3) is needed"
            )
        if layer.shape[0] <= size[0] or layer.shape[1] <= size[1]:
            raise NotelaError(
                f"frost[{i}] has {layer.shape[0]}×{layer.shape[1]} pixels where it is used (every {step}th is taken): "
                f"more than the images' {size[0]}×{size[1]} are needed"
            )
    return layers


def fog(images: Images, draws: Draws, thickness: float, decay: float) -> Images:
    _, height, width, _ = images.shape
    x = images / 255
    brightest = x.max((1, 2, 3), keepdims=True)
    clouds = plasma(draws, 2 ** math.ceil(math.log2(max(height, width))), decay)[:, :height, :width, None]
    return to_bytes((x + thickness * clouds) * brightest / (brightest + thickness))


def plasma(draws: Draws, size: int, decay: float) -> Array:
    """Clouds in [0, 1] by the diamond-square algorithm on a torus (n, size, size); `size` is a power of two.

    Each midpoint is the mean of its four neighbours and noise that shrinks with the distance.
    """
    step, roughness = size, 100.0
    clouds = np.zeros((len(draws), size, size))

    def midpoints(neighbours: Array) -> Array:
        noise = 2 * draws.uniform(*neighbours.shape[1:]) - 1
        return neighbours / 4 + roughness**2 * noise

    while step >= 2:
        at, between = slice(0, size, step), slice(step // 2, size, step)
        corners = clouds[:, at, at]
        pairs = corners + np.roll(corners, -1, 1)
        clouds[:, between, between] = midpoints(pairs + np.roll(pairs, -1, 2))
        middles = clouds[:, between, between]
        clouds[:, at, between] = midpoints(middles + np.roll(middles, 1, 1) + corners + np.roll(corners, -1, 2))
        clouds[:, between, at] = midpoints(middles + np.roll(middles, 1, 2) + corners + np.roll(corners, -1, 1))
        step, roughness = step // 2, roughness / decay
    clouds -= clouds.min((1, 2), keepdims=True)
    clouds /= clouds.max((1, 2), keepdims=True)
    return clouds


def spatter(
    images: Images,
    draws: Draws,
    mean: float,
    spread: float,
    smoothness: float,
    threshold: float,
    strength: float,
    mud: float,
) -> Images:
    """Drops where smooth noise is high: of water, lit from one side, or of mud."""
    _, height, width, _ = images.shape
    liquid = smooth(mean + spread * draws.normal(height, width, 1), smoothness)
    x = images / 255
    if mud:
        cover = smooth((liquid > threshold).astype(float), strength)
        cover[cover < 0.8] = 0
        return to_bytes(x * (1 - cover) + _MUD * cover)
    liquid[liquid < threshold] = 0
    drops = to_bytes(liquid)[..., 0]
    water = drops * relief(drops)
    most = water.max((1, 2), keepdims=True)
    share = strength * np.divide(water, most, out=np.zeros_like(water), where=most > 0)
    return to_bytes(x + share[..., None] * _WATER)
