"""The fifteen image corruptions of CIFAR-10-C and ImageNet-C and the four extra ones (Hendrycks & Dietterich, 2019).

Written anew for whole sets of images, with NumPy, SciPy and Pillow alone. It does what the benchmark's program does,
not what that means to do, for the files came from it: values are cut to bytes, not rounded; glass blur copies pixels
instead of swapping them. Every image has its own generator, made from the seed, the corruption, the severity and the
image's number in the set: how a set is split into batches does not change a bit.
"""

from __future__ import annotations

import io
import math
import numbers
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage, sparse

from notela.errors import NotelaError, check_choice, check_integer
from notela.vision.relief import relief
from notela.vision.severities import CONSTANTS, EXTRA, NAMES

Images = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]
Constants = Literal["cifar", "imagenet"]

_LEAST_SIDE = 8
_BLOCK_VALUES = 2**17  # values a block: the working arrays stay in the cache, and memory does not grow with the set
_WATER = np.array([175, 238, 238]) / 255
_MUD = np.array([63, 42, 20]) / 255


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
        function: Callable[..., Images] = partial(_frost, _frost_layers(frost, int(strength[-1]), images.shape[1:3]))
    else:
        function = FUNCTIONS[name]
    corrupted = np.empty_like(images)
    size = max(1, _BLOCK_VALUES // math.prod(images.shape[1:]))
    for start in range(0, len(images), size):
        block = images[start : start + size]
        draws = Draws(seed, name, severity, range(first + start, first + start + len(block)))
        corrupted[start : start + size] = function(block, draws, *strength)
    return corrupted


class Draws:
    """Random numbers for a block of images: row i of an array comes from a generator of image i's own."""

    def __init__(self, seed: int, name: str, severity: int, image_numbers: range) -> None:
        self._key = (seed, (NAMES + EXTRA).index(name), severity)
        self._image_numbers = image_numbers

    @cached_property
    def _generators(self) -> list[np.random.Generator]:
        return [np.random.default_rng((*self._key, number)) for number in self._image_numbers]

    def __len__(self) -> int:
        return len(self._image_numbers)

    def normal(self, *shape: int) -> Array:
        out = np.empty((len(self), *shape))
        for generator, row in zip(self._generators, out, strict=True):
            generator.standard_normal(out=row)
        return out

    def uniform(self, *shape: int) -> Array:
        """In [0, 1)."""
        out = np.empty((len(self), *shape))
        for generator, row in zip(self._generators, out, strict=True):
            generator.random(out=row)
        return out

    def steps(self, reach: int, *shape: int) -> Array:
        """Whole numbers from -reach to reach - 1."""
        out = np.empty((len(self), *shape), np.int8)
        for generator, row in zip(self._generators, out, strict=True):
            row[...] = generator.integers(-reach, reach, shape, np.int8)
        return out

    def poisson(self, expected: Array) -> Array:
        out = np.empty_like(expected)
        for generator, row, mean in zip(self._generators, out, expected, strict=True):
            row[...] = generator.poisson(mean)
        return out


def gaussian_noise(images: Images, draws: Draws, scale: float) -> Images:
    return _bytes(images / 255 + scale * draws.normal(*images.shape[1:]))


def shot_noise(images: Images, draws: Draws, photons: float) -> Images:
    return _bytes(draws.poisson(images / 255 * photons) / photons)


def impulse_noise(images: Images, draws: Draws, share: float) -> Images:
    """Each value alone, not each pixel, turns black or white."""
    u = draws.uniform(*images.shape[1:])
    return np.where(u < share, np.where(u < share / 2, np.uint8(0), np.uint8(255)), images)


def speckle_noise(images: Images, draws: Draws, scale: float) -> Images:
    x = images / 255
    return _bytes(x + x * (scale * draws.normal(*images.shape[1:])))


def defocus_blur(images: Images, draws: Draws, radius: float, rim: float) -> Images:
    kernel = disk(radius, rim)
    return _bytes(ndimage.correlate(images / 255, kernel[None, :, :, None], mode="mirror"))


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
    return _bytes(_smooth(images / 255, sigma))


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
    shuffled = _pixels(_bytes(_smooth(images / 255, sigma)), source).reshape(images.shape)
    return _bytes(_smooth(shuffled / 255, sigma))


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
    zoomed = _mapped(images / 255, _zooms(*images.shape[1:3], factors))
    return _bytes((images / 255 + zoomed) / (len(factors) + 1))


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


def _mapped(x: Array, matrix: Any) -> Array:
    """A linear map of the pixels, for images (n, H, W, C)."""
    n, height, width, channels = x.shape
    pixels = x.reshape(n, height * width, channels).swapaxes(0, 1).reshape(height * width, -1)
    mapped: Array = matrix @ pixels
    return mapped.reshape(height * width, n, channels).swapaxes(0, 1).reshape(x.shape)


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
    flakes = _mapped(flakes, _zooms(height, width, (zoom,)))
    flakes[flakes < threshold] = 0
    angles = np.pi / 4 * (2 * draws.uniform(1)[:, 0] - 3)
    layer = np.rint(smear(_bytes(flakes), int(radius), sigma, angles)) / 255
    x = images / 255
    grey = x @ np.array([[0.299], [0.587], [0.114]])
    whitened = share * x + (1 - share) * np.maximum(x, grey * 1.5 + 0.5)
    return _bytes(whitened + layer + layer[:, ::-1, ::-1])


def _frost(
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


def _frost_layers(frost: Sequence[Images] | None, step: int, size: tuple[int, ...]) -> list[Images]:
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
    return _bytes((x + thickness * clouds) * brightest / (brightest + thickness))


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


def brightness(images: Images, draws: Draws, summand: float) -> Images:
    value, saturation, hue = _hsv(images)
    return np.moveaxis(_bytes(np.minimum(value + summand, 1) * (1 - saturation * hue)), 0, 3)


def saturate(images: Images, draws: Draws, factor: float, summand: float) -> Images:
    value, saturation, hue = _hsv(images)
    return np.moveaxis(_bytes(value * (1 - np.clip(saturation * factor + summand, 0, 1) * hue)), 0, 3)


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
    return _bytes((x - mean) * share + mean)


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
    return _bytes(_sampled(warped, (y + fields[:, 1]).reshape(pixels), (x + fields[:, 0]).reshape(pixels), _reflected))


def _sampled(x: Array, rows: Array, columns: Array, border: Callable[[Array, int], Array]) -> Array:
    """Images (n, H, W, C) at fractional positions (n, H·W), linearly between pixels."""
    _, height, width, channels = x.shape
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    down, right = (np.repeat(part[..., None], channels, 2) for part in (rows - top, columns - left))
    above, below = (border(top + i, height) * width for i in (0, 1))
    west, east = (border(left + i, width) for i in (0, 1))
    upper = _pixels(x, above + west) * (1 - right) + _pixels(x, above + east) * right
    lower = _pixels(x, below + west) * (1 - right) + _pixels(x, below + east) * right
    sampled: Array = upper * (1 - down) + lower * down
    return sampled.reshape(x.shape)


def _pixels(x: Array, index: Array) -> Array:
    """The pixels (n, P, C) of images (n, H, W, C) at places (n, P) counted along the rows."""
    n, height, width, channels = x.shape
    starts = np.arange(n)[:, None] * (height * width)
    pixels: Array = x.reshape(-1, channels).take(starts + index, 0)
    return pixels


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
    liquid = _smooth(mean + spread * draws.normal(height, width, 1), smoothness)
    x = images / 255
    if mud:
        cover = _smooth((liquid > threshold).astype(float), strength)
        cover[cover < 0.8] = 0
        return _bytes(x * (1 - cover) + _MUD * cover)
    liquid[liquid < threshold] = 0
    drops = _bytes(liquid)[..., 0]
    water = drops * relief(drops)
    most = water.max((1, 2), keepdims=True)
    share = strength * np.divide(water, most, out=np.zeros_like(water), where=most > 0)
    return _bytes(x + share[..., None] * _WATER)


def _smooth(x: Array, sigma: float) -> Array:
    """A Gaussian over the two sides of images (n, H, W, C), the border repeated beyond it."""
    return np.asarray(ndimage.gaussian_filter(x, (0, sigma, sigma, 0), mode="nearest"))


def _bytes(x: Array) -> Images:
    """[0, 1] to 0..255, cut and not rounded: the benchmark stores its images so."""
    return (np.clip(x, 0, 1) * 255).astype(np.uint8)


def _check_images(images: object) -> None:
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        found = f"dtype {images.dtype}" if isinstance(images, np.ndarray) else type(images).__name__
        raise NotelaError(f"images are {found}: a NumPy array of uint8 (N, H, W, 3) is needed")
    if images.ndim != 4 or images.shape[3] != 3 or min(images.shape[1:3]) < _LEAST_SIDE:
        raise NotelaError(
            f"images have shape {images.shape}: (N, H, W, 3) with sides of at least {_LEAST_SIDE} pixels is needed"
        )


FUNCTIONS: dict[str, Callable[..., Images]] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "snow": snow,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
    "speckle_noise": speckle_noise,
    "gaussian_blur": gaussian_blur,
    "spatter": spatter,
    "saturate": saturate,
}
