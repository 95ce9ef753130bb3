"""Corruptions against closed forms, slow doubles, Pillow, OpenCV and the package `imagecorruptions-imaug`.

The package draws the same random numbers here: its calls of `np.random` are answered from the same generators.
"""

from __future__ import annotations

import colorsys
import io
import itertools
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage, stats

from cifar10c_check import MEAN, STD, resnet20
from notela.errors import NotelaError
from notela.vision import corruptions, relief
from notela.vision.corruptions import CONSTANTS, EXTRA, NAMES, Draws, corrupt

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10"
needs_data = pytest.mark.skipif(not DATA.exists(), reason=f"real data not present: {DATA.name}")
ALL = NAMES + EXTRA
WITHOUT_DRAWS = {
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
}


def pictures(n: int, side: int, width: int | None = None) -> np.ndarray:
    """Smooth coloured shapes with some grain, some values at 0 and 255."""
    rng = np.random.default_rng(n + side)
    x = ndimage.gaussian_filter(rng.normal(size=(n, side, width or side, 3)), (0, side / 12, side / 12, 0.4))
    x = 0.5 + 0.3 * x / x.std() + rng.normal(scale=0.03, size=x.shape)
    return (x.clip(0, 1) * 255).astype(np.uint8)


@lru_cache
def ice() -> list[np.ndarray]:
    return list(pictures(3, 220))


@pytest.fixture(scope="module")
def small() -> np.ndarray:
    return pictures(12, 32)


@pytest.fixture(scope="module")
def large() -> np.ndarray:
    return pictures(1, 224)


@pytest.fixture(scope="module")
def cifar() -> np.ndarray:
    with np.load(DATA / "cifar10_test.npz") as file:
        return np.asarray(file["images"][:1000])


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(float) - b).mean())


# What holds for all.


@pytest.mark.parametrize("name", ALL)
def test_seeds_severities_and_batches(name: str, small: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    before = small.copy()
    whole = corrupt(small, name, 3, seed=1, frost=ice())
    assert whole.shape == small.shape
    assert whole.dtype == np.uint8
    assert not np.array_equal(whole, small)
    np.testing.assert_array_equal(small, before)
    parts = [
        corrupt(small[:5], name, 3, seed=1, frost=ice()),
        corrupt(small[5:], name, 3, seed=1, frost=ice(), first=5),
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    monkeypatch.setattr(corruptions, "_BLOCK_VALUES", 5 * 32 * 32 * 3)
    np.testing.assert_array_equal(corrupt(small, name, 3, seed=1, frost=ice()), whole)
    other = corrupt(small, name, 3, seed=2, frost=ice())
    assert np.array_equal(other, whole) == (name in WITHOUT_DRAWS)
    assert len(corrupt(small[:0], name, 3, frost=ice())) == 0


@pytest.mark.parametrize("name", sorted(set(ALL) - WITHOUT_DRAWS))
def test_images_of_one_set_get_different_numbers(name: str, small: np.ndarray) -> None:
    same = np.repeat(small[:1], 6, 0)
    out = corrupt(same, name, 5, frost=ice())
    assert all(not np.array_equal(a, b) for a, b in itertools.pairwise(out))


@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", ALL)
def test_any_shape(name: str, constants: corruptions.Constants) -> None:
    for side, width in ((8, 8), (40, 24)):
        images = pictures(2, side, width)
        for severity in range(1, 6):
            assert corrupt(images, name, severity, constants=constants, frost=ice()).shape == images.shape


# With the others a higher severity is another kind of damage: first less then more saturation, water then mud, a wide
# shift then a fine tremble, more shuffling and less blur, less of the image and more of the frost.
RISING = ("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "zoom_blur", "brightness", "contrast")
RISING += ("pixelate", "jpeg_compression", "speckle_noise", "gaussian_blur")
ROUGHLY = ("motion_blur", "snow", "fog")  # random angles, flakes and clouds outweigh a single step


@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", RISING + ROUGHLY)
def test_higher_severity_is_farther_from_clean(name: str, constants: corruptions.Constants) -> None:
    images = pictures(40, 32) if constants == "cifar" else pictures(4, 96)
    steps = (1, 5) if name in ROUGHLY else range(1, 6)
    far = [distance(corrupt(images, name, s, constants=constants), images) for s in steps]
    assert far == sorted(far), far


@needs_data
@pytest.mark.parametrize("name", RISING + ROUGHLY)
def test_higher_severity_is_farther_from_clean_on_real_images(name: str, cifar: np.ndarray) -> None:
    steps = (1, 3, 5) if name in ROUGHLY else range(1, 6)
    far = [distance(corrupt(cifar[:200], name, s), cifar[:200]) for s in steps]
    assert far == sorted(far), far


@needs_data
@pytest.mark.parametrize(("name", "accuracy"), [("gaussian_noise", 0.236), ("contrast", 0.276)])
def test_a_real_network_fails_as_much_as_elsewhere(name: str, accuracy: float, cifar: np.ndarray) -> None:
    x = torch.from_numpy(corrupt(cifar, name, 5)).permute(0, 3, 1, 2) / 255
    x = (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    with np.load(DATA / "cifar10_test.npz") as file:
        labels = file["labels"][:1000]
    with torch.no_grad():
        found = resnet20()(x).argmax(1).numpy()
    assert abs((found == labels).mean() - accuracy) < 0.05


def test_every_table_has_five_severities() -> None:
    assert set(CONSTANTS) == set(ALL)
    assert set(corruptions.FUNCTIONS) | {"frost"} == set(ALL)
    for tables in CONSTANTS.values():
        assert set(tables) == {"cifar", "imagenet"}
        for table in tables.values():
            assert len(table) == 5
            assert len({len(strength) for strength in table}) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "rain"}, "name='rain' is not one of 'gaussian_noise'"),
        ({"severity": 0}, "severity=0 is not one of 1, 2, 3, 4, 5"),
        ({"severity": 6}, "severity=6 is not one of"),
        ({"severity": 2.0}, "severity=2.0 is not one of"),
        ({"constants": "mnist"}, "constants='mnist' is not one of 'cifar', 'imagenet'"),
        ({"seed": -1}, "seed=-1 must be a whole number"),
        ({"first": -1}, "first=-1 must be a whole number"),
        ({"images": np.zeros((1, 32, 32, 3))}, "dtype float64: a NumPy array of uint8"),
        ({"images": [1]}, "images are list: a NumPy array"),
        ({"images": np.zeros((32, 32, 3), np.uint8)}, r"shape \(32, 32, 3\): \(N, H, W, 3\)"),
        ({"images": np.zeros((1, 3, 32, 32), np.uint8)}, r"shape \(1, 3, 32, 32\)"),
        ({"images": np.zeros((1, 32, 7, 3), np.uint8)}, "at least 8 pixels"),
        ({"name": "frost"}, "six frost images.*hand them in, frost="),
        ({"name": "frost", "frost": []}, "six frost images"),
        ({"name": "frost", "frost": [np.zeros((300, 300), np.uint8)]}, r"frost\[0\] has shape \(300, 300\) and dtype"),
        ({"name": "frost", "frost": [np.zeros((300, 300, 3))]}, "dtype float64: uint8"),
        ({"name": "frost", "frost": [np.zeros((160, 300, 3), np.uint8)]}, "32×60 pixels.*more than the images' 32×32"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], message: str, small: np.ndarray) -> None:
    call: dict[str, Any] = {"images": small, "name": "fog", "severity": 1, **change}
    with pytest.raises(NotelaError, match=message):
        corrupt(**call)


# Noise: its distribution, where nothing is cut off.


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


# Closed forms.


def test_brightness_adds_to_the_value_of_hsv() -> None:
    images = pictures(1, 16)
    images[0, 0, :3] = [[0, 0, 0], [255, 255, 255], [90, 90, 90]]
    out = corrupt(images, "brightness", 4)[0]
    for pixel, found in zip(images[0].reshape(-1, 3), out.reshape(-1, 3), strict=True):
        h, s, v = colorsys.rgb_to_hsv(*(pixel / 255))
        expected = 255 * np.array(colorsys.hsv_to_rgb(h, s, min(v + 0.2, 1)))
        assert (np.abs(found + 0.5 - expected) < 0.5 + 1e-6).all()


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_saturate_changes_the_saturation_of_hsv(severity: int) -> None:
    images = pictures(1, 16)
    images[0, 0, :3] = [[0, 0, 0], [255, 255, 255], [90, 90, 90]]
    factor, summand = CONSTANTS["saturate"]["cifar"][severity - 1]
    out = corrupt(images, "saturate", severity)[0]
    for pixel, found in zip(images[0].reshape(-1, 3), out.reshape(-1, 3), strict=True):
        h, s, v = colorsys.rgb_to_hsv(*(pixel / 255))
        expected = 255 * np.array(colorsys.hsv_to_rgb(h, min(s * factor + summand, 1), v))
        assert (np.abs(found + 0.5 - expected) < 0.5 + 1e-6).all()


def test_contrast_shrinks_towards_each_channels_mean(small: np.ndarray) -> None:
    out = corrupt(small, "contrast", 5)
    for image, found in zip(small, out, strict=True):
        for c in range(3):
            mean = image[..., c].mean()
            assert np.abs(found[..., c] + 0.5 - (mean + 0.15 * (image[..., c] - mean))).max() < 0.5 + 1e-6


@pytest.mark.parametrize("severity", range(1, 6))
def test_pixelate_and_jpeg_are_pillows(severity: int, small: np.ndarray) -> None:
    side = int(32 * (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1])
    quality = (80, 65, 58, 50, 40)[severity - 1]
    blocks, coded = corrupt(small, "pixelate", severity), corrupt(small, "jpeg_compression", severity)
    for i, image in enumerate(small):
        picture = Image.fromarray(image)
        coarse = picture.resize((side, side), Image.Resampling.BOX).resize((32, 32), Image.Resampling.BOX)
        np.testing.assert_array_equal(blocks[i], np.asarray(coarse))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=quality)
        np.testing.assert_array_equal(coded[i], np.asarray(Image.open(file)))


# Slow doubles.


@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("severity", [1, 3, 4, 5])
def test_defocus_is_a_convolution_with_a_disk(severity: int, constants: corruptions.Constants) -> None:
    radius, rim = CONSTANTS["defocus_blur"][constants][severity - 1]
    kernel = corruptions.disk(radius, rim)
    # From radius 8 on the disk touches the border of its array, where blurring does not keep the sum (the original too)
    assert kernel.sum() == pytest.approx(1, abs=1e-6 if radius < 8 else 0.014)
    np.testing.assert_allclose(kernel, kernel.T)
    np.testing.assert_allclose(kernel, kernel[::-1, ::-1])
    images = pictures(1, 24)
    out = corrupt(images, "defocus_blur", severity, constants=constants)[0]
    half = len(kernel) // 2
    padded = np.pad(images[0].astype(float), ((half, half), (half, half), (0, 0)), "reflect")
    for y, x in itertools.product(range(0, 24, 5), range(0, 24, 5)):
        window = padded[y : y + len(kernel), x : x + len(kernel)]
        expected = min((window * kernel[..., None].astype(float)).sum((0, 1)).max(), 255)
        assert abs(out[y, x].max() + 0.5 - expected) < 0.5 + 1e-4


@pytest.mark.parametrize(("constants", "severity"), [("cifar", 3), ("cifar", 5), ("imagenet", 2), ("imagenet", 5)])
def test_glass_blur_copies_pixel_by_pixel(constants: corruptions.Constants, severity: int, small: np.ndarray) -> None:
    sigma, reach, times = CONSTANTS["glass_blur"][constants][severity - 1]
    reach, times = int(reach), int(times)
    side = 32 - 2 * reach
    steps = Draws(7, "glass_blur", severity, range(12)).steps(reach, times, side, side, 2)
    out = corrupt(small, "glass_blur", severity, constants=constants, seed=7)
    for i, image in enumerate(small[:4]):
        x = (ndimage.gaussian_filter(image / 255, (sigma, sigma, 0), mode="nearest") * 255).astype(np.uint8)
        for turn in range(times):
            for a, h in enumerate(range(32 - reach, reach, -1)):
                for b, w in enumerate(range(32 - reach, reach, -1)):
                    dx, dy = steps[i, turn, a, b]
                    x[h, w] = x[h + dy, w + dx]
        expected = ndimage.gaussian_filter(x / 255, (sigma, sigma, 0), mode="nearest")
        np.testing.assert_array_equal(out[i], (expected * 255).astype(np.uint8))


def test_smear_walks_along_a_line() -> None:
    images = pictures(3, 12)
    angles = np.array([0.3, -0.7, -1.9])
    weights = np.exp(-(np.arange(9) ** 2) / (2 * 1.5**2))
    out = corruptions.smear(images, 4, 1.5, angles)
    for i, y, x in itertools.product(range(3), range(12), range(12)):
        expected = np.zeros(3)
        for step, weight in enumerate(weights / weights.sum()):
            row = y + int(np.ceil(step * np.sin(angles[i]) - 0.5))
            column = x + int(np.ceil(step * np.cos(angles[i]) - 0.5))
            expected += weight * images[i, min(max(row, 0), 11), min(max(column, 0), 11)]
        np.testing.assert_allclose(out[i, y, x], expected, atol=1e-3)


def test_motion_blur_at_most_45_degrees_off_level() -> None:
    images = np.zeros((200, 33, 33, 3), np.uint8)
    images[:, 16, 16] = 255
    out = corrupt(images, "motion_blur", 5)[..., 0].astype(float)
    y, x = np.mgrid[:33, :33]
    trail = out / out.sum((1, 2), keepdims=True)
    down, right = (trail * (16 - y)).sum((1, 2)), (trail * (16 - x)).sum((1, 2))
    angles = np.rad2deg(np.arctan2(down, right))
    assert 40 < angles.max() < 50
    assert -50 < angles.min() < -40
    assert abs(np.abs(angles).mean() - 22.5) < 3


def zoomed(image: np.ndarray, factor: float) -> np.ndarray:
    """SciPy's zoom of the middle, cut to size."""
    height, width = image.shape[:2]
    part = [int(np.ceil(side / factor)) for side in (height, width)]
    top, left = (height - part[0]) // 2, (width - part[1]) // 2
    out = ndimage.zoom(image[top : top + part[0], left : left + part[1]], (factor, factor, 1), order=1)
    top, left = (out.shape[0] - height) // 2, (out.shape[1] - width) // 2
    return np.asarray(out[top : top + height, left : left + width])


@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("severity", [1, 2, 5])
def test_zoom_blur_is_a_mean_of_zooms(severity: int, constants: corruptions.Constants) -> None:
    images = pictures(2, 32, 40)
    largest, step = CONSTANTS["zoom_blur"][constants][severity - 1]
    factors = np.arange(1, largest, step)
    out = corrupt(images, "zoom_blur", severity, constants=constants)
    for image, found in zip(images / 255, out, strict=True):
        mean = (image + sum(zoomed(image, z) for z in factors)) / (len(factors) + 1)
        assert np.abs(found + 0.5 - 255 * mean).max() < 0.5 + 1e-6


@pytest.mark.parametrize("factor", [1, 1.25, 1.75, 2.25, 4.5])
def test_zoom_of_snow(factor: float) -> None:
    layer = np.random.default_rng(0).normal(size=(32, 32, 1))
    matrix = corruptions.zoom_matrix(32, factor)
    np.testing.assert_allclose((matrix @ (matrix @ layer[..., 0]).T).T, zoomed(layer, factor)[..., 0], atol=1e-12)


def test_plasma_of_four_pixels() -> None:
    u = Draws(0, "fog", 1, range(1))
    r = iter([2 * u.uniform(*shape)[0].ravel() - 1 for shape in ((1, 1),) * 3 + ((2, 2),) * 3])
    m = np.zeros((4, 4))
    m[2, 2] = 0 / 4 + 100**2 * next(r)[0]
    m[0, 2] = (2 * m[2, 2] + 2 * m[0, 0]) / 4 + 100**2 * next(r)[0]
    m[2, 0] = (2 * m[2, 2] + 2 * m[0, 0]) / 4 + 100**2 * next(r)[0]
    for odd_row, odd_column in ((1, 1), (0, 1), (1, 0)):
        for (i, j), random in zip(itertools.product((0, 2), (0, 2)), next(r), strict=True):
            y, x = i + odd_row, j + odd_column
            near = (
                [(-1, -1), (-1, 1), (1, -1), (1, 1)] if odd_row and odd_column else [(-1, 0), (1, 0), (0, -1), (0, 1)]
            )
            m[y, x] = sum(m[(y + dy) % 4, (x + dx) % 4] for dy, dx in near) / 4 + 50**2 * random
    m -= m.min()
    np.testing.assert_allclose(corruptions.plasma(Draws(0, "fog", 1, range(1)), 4, 2)[0], m / m.max(), atol=1e-12)


def test_fog_of_a_flat_image_is_the_cloud() -> None:
    images = np.full((3, 32, 32, 3), 200, np.uint8)
    clouds = corruptions.plasma(Draws(0, "fog", 5, range(3)), 32, 1.75)[..., None]
    expected = (200 / 255 + 1.5 * clouds) * 200 / (200 / 255 + 1.5)
    assert np.abs(corrupt(images, "fog", 5) + 0.5 - expected).max() < 0.5 + 1e-6
    assert not corrupt(np.zeros_like(images), "fog", 5).any()


def elastic_double(image: np.ndarray, draws: Draws, displacement: float, smoothness: float, shift: float) -> np.ndarray:
    """The affine map and the displacement by SciPy's interpolation."""
    side = len(image)
    corners = side // 2 + side // 3 * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = corners + shift * (2 * draws.uniform(3, 2)[0] - 1)
    forward = np.linalg.lstsq(np.c_[corners, np.ones(3)], moved, rcond=None)[0].T  # (x, y) to (x, y)
    fields = 2 * draws.uniform(2, side, side)[0] - 1
    dx, dy = (
        displacement * ndimage.gaussian_filter(field, smoothness, mode="reflect", truncate=3)
        if smoothness
        else 0 * field
        for field in fields
    )
    y, x = np.mgrid[:side, :side]
    back = np.linalg.inv(forward[:, :2])
    from_x, from_y = np.tensordot(back, np.stack([x, y]) - forward[:, 2, None, None], 1)
    out = np.empty(image.shape)
    for c in range(3):
        warped = ndimage.map_coordinates(image[..., c] / 255, [from_y, from_x], order=1, mode="mirror")
        out[..., c] = ndimage.map_coordinates(warped, [y + dy, x + dx], order=1, mode="reflect")
    return 255 * out


@pytest.mark.parametrize(("constants", "severity"), [("cifar", 1), ("cifar", 2), ("cifar", 5), ("imagenet", 4)])
def test_elastic_transform_is_two_interpolations(constants: corruptions.Constants, severity: int) -> None:
    images = pictures(2, 32)
    out = corrupt(images, "elastic_transform", severity, constants=constants)
    for i, image in enumerate(images):
        draws = Draws(0, "elastic_transform", severity, range(i, i + 1))
        expected = elastic_double(image, draws, *CONSTANTS["elastic_transform"][constants][severity - 1])
        assert np.abs(out[i] + 0.5 - expected).max() < 0.5 + 1e-6


def test_snow_brightens_and_falls_twice() -> None:
    black = np.zeros((4, 32, 32, 3), np.uint8)
    out = corrupt(black, "snow", 3).astype(int)
    np.testing.assert_array_equal(out, out[:, ::-1, ::-1])
    assert out.min() == int(0.1 * 0.5 * 255)
    images = pictures(4, 32)
    assert (corrupt(images, "snow", 3) >= images.astype(int) - 1).all()


@pytest.mark.parametrize(("constants", "step"), [("cifar", 5), ("imagenet", 1)])
def test_frost_is_a_piece_of_one_of_its_images(constants: corruptions.Constants, step: int) -> None:
    black, layers = np.zeros((30, 32, 32, 3), np.uint8), ice()
    share = CONSTANTS["frost"][constants][4][1]
    places: set[tuple[int, int]] = set()
    chosen: set[int] = set()
    for found in corrupt(black, "frost", 5, constants=constants, frost=layers):
        for k, layer in enumerate(layers):
            shrunk = (share * layer[step // 2 :: step, step // 2 :: step]).astype(np.uint8)
            for y, x in np.argwhere((shrunk[:-31, :-31] == found[0, 0]).all(2)):
                if np.array_equal(shrunk[y : y + 32, x : x + 32], found):
                    chosen.add(k)
                    places.add((k, y * 1000 + x))
    assert chosen == {0, 1, 2}
    assert len(places) > 15
    clean = pictures(30, 32)
    expected = (CONSTANTS["frost"][constants][4][0] * clean).astype(int)
    assert (corrupt(clean, "frost", 5, constants=constants, frost=layers) >= expected).all()


def test_water_leaves_an_image_without_drops_as_it_is(small: np.ndarray) -> None:
    np.testing.assert_array_equal(
        corruptions.spatter(small, Draws(0, "spatter", 1, range(12)), 0.1, 0.1, 1, 0.7, 0.5, 0), small
    )


# The package, with ImageNet-C's constants.


@pytest.fixture(scope="module")
def package() -> Any:
    return pytest.importorskip(
        "imagecorruptions", reason="imagecorruptions-imaug is not installed", exc_type=ImportError
    )


@pytest.fixture
def published(package: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., np.ndarray]:
    """The package's corruption of one image, with the random numbers that ours draws."""

    def run(image: np.ndarray, name: str, severity: int) -> np.ndarray:
        draws = Draws(0, name, severity, range(1))

        def uniform(low: float, high: float, size: tuple[int, ...] = (1,)) -> Any:
            out = low + (high - low) * draws.uniform(*size)[0]
            return out if size != (1,) else out[0]

        monkeypatch.setattr(np.random, "uniform", uniform)
        monkeypatch.setattr(np.random, "normal", lambda size, loc=0.0, scale=1.0: loc + scale * draws.normal(*size)[0])
        monkeypatch.setattr(np.random, "poisson", lambda mean: draws.poisson(mean[None])[0])
        if name == "glass_blur":
            _, reach, times = (int(c) for c in CONSTANTS[name]["imagenet"][severity - 1])
            side = len(image) - 2 * reach
            steps = iter(draws.steps(reach, times, side, side, 2).reshape(-1, 2).tolist())
            monkeypatch.setattr(np.random, "randint", lambda low, high, size: next(steps))
            monkeypatch.setattr(np.random, "seed", lambda seed: None)
            shuffle = package.corruptions._shuffle_pixels_njit_glass_blur
            monkeypatch.setattr(package.corruptions, "_shuffle_pixels_njit_glass_blur", shuffle.py_func)
        out = np.asarray(package.corrupt(image, severity=severity, corruption_name=name))
        monkeypatch.undo()
        return out

    return run


EXACT = ("gaussian_noise", "shot_noise", "speckle_noise", "contrast", "gaussian_blur", "jpeg_compression", "pixelate")


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", EXACT)
def test_equal_to_the_package(
    name: str, severity: int, large: np.ndarray, published: Callable[..., np.ndarray]
) -> None:
    ours = corrupt(large, name, severity, constants="imagenet")[0]
    np.testing.assert_array_equal(ours, published(large[0], name, severity))


@pytest.mark.parametrize("severity", [1, 2])
def test_glass_blur_equals_the_packages(severity: int, large: np.ndarray, published: Callable[..., np.ndarray]) -> None:
    ours = corrupt(large, "glass_blur", severity, constants="imagenet")[0]
    np.testing.assert_array_equal(ours, published(large[0], "glass_blur", severity))


# A level apart where the value is whole but for the last bits: the package takes float32 or goes through angles.
@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize(
    ("name", "apart"),
    [
        ("defocus_blur", 1e-4),
        ("zoom_blur", 0.01),
        ("fog", 1e-3),
        ("spatter", 1e-3),
        ("brightness", 0.02),
        ("saturate", 0.08),
    ],
)
def test_a_level_from_the_package(
    name: str, apart: float, severity: int, large: np.ndarray, published: Callable[..., np.ndarray]
) -> None:
    ours = corrupt(large, name, severity, constants="imagenet")[0].astype(int)
    off = np.abs(ours - published(large[0], name, severity))
    assert off.max() <= 1
    assert (off > 0).mean() < apart


def test_motion_blur_is_the_packages_rounded(large: np.ndarray, package: Any) -> None:
    for severity, angle in ((1, 0.0), (2, -45.0), (3, 17.0), (4, 44.0), (5, -31.0)):
        radius, sigma = CONSTANTS["motion_blur"]["imagenet"][severity - 1]
        ours = corruptions.smear(large, int(radius), sigma, np.deg2rad([angle]))[0]
        np.testing.assert_allclose(
            ours, package.corruptions._motion_blur(large[0], int(radius), sigma, angle), atol=1e-3
        )


@pytest.mark.parametrize("severity", range(1, 6))
def test_motion_blur_draws_the_packages_angle(
    severity: int, large: np.ndarray, published: Callable[..., np.ndarray]
) -> None:
    ours = corrupt(large, "motion_blur", severity, constants="imagenet")[0].astype(int)
    off = ours - published(large[0], "motion_blur", severity)  # the package cuts, ImageMagick rounds
    assert off.min() >= 0
    assert off.max() <= 1


@pytest.mark.parametrize("severity", range(1, 6))
def test_snow_is_the_packages_but_for_bytes(
    severity: int, large: np.ndarray, published: Callable[..., np.ndarray]
) -> None:
    ours = corrupt(large, "snow", severity, constants="imagenet")[0].astype(int)
    off = np.abs(ours - published(large[0], "snow", severity))  # the benchmark stores flakes as bytes before they fall
    assert (off > 2).mean() < 1e-3
    assert off.mean() < 0.1


@pytest.mark.parametrize("severity", range(1, 6))
def test_elastic_displacement_is_the_packages(
    severity: int, large: np.ndarray, published: Callable[..., np.ndarray]
) -> None:
    """The package leaves out the affine map and has constants of its own; its draws are the two fields alone."""
    alpha = 250 * (0.05, 0.065, 0.085, 0.1, 0.12)[severity - 1] * 224 * 0.005
    fields = Draws(0, "elastic_transform", severity, range(1))

    class WithoutAffineMap:
        def uniform(self, *shape: int) -> np.ndarray:
            if shape == (3, 2):
                return np.zeros((1, 3, 2))
            return np.stack([fields.uniform(*shape[1:]), fields.uniform(*shape[1:])], 1)

    ours = corruptions.elastic_transform(large, WithoutAffineMap(), alpha, 224 * 0.01, 0)[0].astype(int)
    off = np.abs(ours - published(large[0], "elastic_transform", severity))
    assert off.max() <= 1
    assert (off > 0).mean() < 0.01


@pytest.mark.parametrize("severity", [1, 5])
def test_impulse_noise_has_the_packages_distribution(severity: int, large: np.ndarray, package: Any) -> None:
    theirs = package.corrupt(large[0], severity=severity, corruption_name="impulse_noise")
    ours = corrupt(large, "impulse_noise", severity, constants="imagenet")[0]
    for a, b in ((ours, theirs), (ours[..., 0], theirs[..., 0])):
        assert a.mean() == pytest.approx(b.mean(), abs=0.8)
        assert a.std() == pytest.approx(b.std(), abs=0.8)
        for value in (0, 255):
            assert (a == value).mean() == pytest.approx((b == value).mean(), abs=0.005)


@needs_data
def test_frost_has_the_packages_distribution(package: Any) -> None:
    """The package enlarges the frost images by a tenth and cuts other pieces out."""
    images = np.full((60, 224, 224, 3), 60, np.uint8)
    ours = corrupt(images, "frost", 3, constants="imagenet", frost=real_frost())
    np.random.seed(0)  # noqa: NPY002 (the package draws from it)
    theirs = np.stack([package.corrupt(x, severity=3, corruption_name="frost") for x in images[:40]])
    assert ours.mean() == pytest.approx(theirs.mean(), rel=0.1)
    assert ours.std() == pytest.approx(theirs.std(), rel=0.1)
    assert slope(ours) == pytest.approx(slope(theirs), abs=0.3)


def slope(images: np.ndarray) -> float:
    """The exponent with which the spectrum falls: how smooth the images are."""
    power = (np.abs(np.fft.rfft2(images.mean(3))) ** 2).mean(0)
    frequency = np.hypot(np.fft.fftfreq(images.shape[1])[:, None], np.fft.rfftfreq(images.shape[2]))
    middle = (frequency > 0.02) & (frequency < 0.2)
    return float(np.polyfit(np.log(frequency[middle]), np.log(power[middle]), 1)[0])


def real_frost() -> list[np.ndarray]:
    return [np.asarray(Image.open(path).convert("RGB")) for path in sorted((DATA / "frost").iterdir())]


@needs_data
def test_frost_images_shrink_as_with_opencv() -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed", exc_type=ImportError)
    for image in real_frost():
        shrunk = cv2.resize(image, (0, 0), fx=0.2, fy=0.2)
        np.testing.assert_array_equal(corruptions._frost_layers([image], 5, (32, 32))[0], shrunk)


@pytest.mark.parametrize("sigma", [1, 3])
def test_outlines_are_cannys(sigma: float) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed", exc_type=ImportError)
    layers = ndimage.gaussian_filter(np.random.default_rng(1).normal(0.65, 0.3, (3, 100, 90)), (0, sigma, sigma))
    layers = (np.where(layers < 0.68, 0, layers).clip(0, 1) * 255).astype(np.uint8)
    found = relief.outlines(layers, 50, 150)
    for layer, edges in zip(layers, found, strict=True):
        np.testing.assert_array_equal(edges, cv2.Canny(layer, 50, 150) > 0)
        far = np.minimum(cv2.distanceTransform(255 - 255 * edges.astype(np.uint8), cv2.DIST_L2, 5), 20)
        np.testing.assert_allclose(relief._to_nearest(edges[None], 20)[0], far, atol=1e-4)


@needs_data
@pytest.mark.parametrize("severity", range(1, 6))
def test_defocus_of_real_images_is_opencvs(severity: int, cifar: np.ndarray, package: Any) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed", exc_type=ImportError)
    kernel = package.corruptions.disk(*CONSTANTS["defocus_blur"]["cifar"][severity - 1])
    theirs = np.stack([(cv2.filter2D(x / 255, -1, kernel).clip(0, 1) * 255).astype(int) for x in cifar[:100]])
    off = np.abs(corrupt(cifar[:100], "defocus_blur", severity) - theirs)
    assert off.max() <= 1
    assert (off > 0).mean() < 0.01  # flat regions: the kernel's last bits


def test_the_affine_map_is_opencvs(small: np.ndarray) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed", exc_type=ImportError)
    ours = corrupt(small, "elastic_transform", 1).astype(int)  # its displacement is 0
    for i, image in enumerate(small):
        corners = np.float32([[26, 26], [26, 6], [6, 6]])
        moved = corners + 32 * 0.08 * (2 * Draws(0, "elastic_transform", 1, range(i, i + 1)).uniform(3, 2)[0] - 1)
        matrix = cv2.getAffineTransform(corners, np.float32(moved))
        theirs = cv2.warpAffine(np.float32(image) / 255, matrix, (32, 32), borderMode=cv2.BORDER_REFLECT_101)
        assert distance(ours[i] + 0.5, 255 * theirs) < 0.7  # a quarter by cutting; OpenCV may round to 1/32 of a pixel
