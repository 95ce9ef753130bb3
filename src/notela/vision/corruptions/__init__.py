"""The fifteen image corruptions of CIFAR-10-C and ImageNet-C and the four extra ones (Hendrycks & Dietterich, 2019).

Written anew for whole sets of images, with NumPy, SciPy and Pillow alone. It does what the benchmark's program does,
not what that means to do, for the files came from it: values are cut to bytes, not rounded; glass blur copies pixels
instead of swapping them. Every image has its own generator, made from the seed, the corruption, the severity and the
image's number in the set: how a set is split into batches does not change a bit.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np

from notela.errors import NotelaError, check_choice, check_integer
from notela.vision.corruptions import blur, digital, noise, weather
from notela.vision.corruptions.arrays import Images
from notela.vision.corruptions.draws import Draws
from notela.vision.severities import CONSTANTS, EXTRA, NAMES

__all__ = ["FUNCTIONS", "Constants", "Draws", "Images", "corrupt"]

Constants = Literal["cifar", "imagenet"]

_LEAST_SIDE = 8
_BLOCK_VALUES = 2**17  # values a block: the working arrays stay in the cache, and memory does not grow with the set

FUNCTIONS: dict[str, Callable[..., Images]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "fog": weather.fog,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": weather.spatter,
    "saturate": digital.saturate,
}


def corrupt(
    images: Images,
    name: str,
    severity: int,
    *,
    constants: Constants = "cifar",
    seed: int = 0,
    first: int = 0,
    frost: Sequence[Images] | None = None,
) -> Images:
    """The images (N, H, W, 3), corrupted as the benchmark does it; the originals are untouched.

    `first` is the number of `images[0]` in the whole set: a set handed over in parts gives the same bits as at once.
    "frost" lays a piece of one of the RGB images `frost` over each image; the benchmark's program never drew its sixth:
    `frost[:5]` is nearest to its files.

    >>> grey = np.full((1, 8, 8, 3), 100, np.uint8)
    >>> corrupt(grey, "brightness", severity=5)[0, 0, 0]
    array([176, 176, 176], dtype=uint8)
    """
    check_choice("name", name, NAMES + EXTRA)
    check_choice("constants", constants, ("cifar", "imagenet"))
    if not isinstance(severity, numbers.Integral) or isinstance(severity, bool) or not 1 <= severity <= 5:
        raise NotelaError(f"severity={severity!r} is not one of 1, 2, 3, 4, 5")
    check_integer("seed", seed, 0)
    check_integer("first", first, 0)
    _check_images(images)
    strength = CONSTANTS[name][constants][severity - 1]
    if name == "frost":
        layers = weather.frost_layers(frost, int(strength[-1]), images.shape[1:3])
        function: Callable[..., Images] = partial(weather.frost, layers)
    else:
        function = FUNCTIONS[name]
    corrupted = np.empty_like(images)
    size = max(1, _BLOCK_VALUES // math.prod(images.shape[1:]))
    for start in range(0, len(images), size):
        block = images[start : start + size]
        draws = Draws(seed, name, severity, range(first + start, first + start + len(block)))
        corrupted[start : start + size] = function(block, draws, *strength)
    return corrupted


def _check_images(images: object) -> None:
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        found = f"dtype {images.dtype}" if isinstance(images, np.ndarray) else type(images).__name__
        raise NotelaError(f"images are {found}: a NumPy array of uint8 (N, H, W, 3) is needed")
    if images.ndim != 4 or images.shape[3] != 3 or min(images.shape[1:3]) < _LEAST_SIDE:
        raise NotelaError(
            f"images have shape {images.shape}: (N, H, W, 3) with sides of at least {_LEAST_SIDE} pixels is needed"
        )
