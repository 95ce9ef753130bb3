"""Corruptions against the package `imagecorruptions-imaug`, with ImageNet-C's constants, and against OpenCV.

The package draws the same random numbers here: its calls of `np.random` are answered from the same generators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from corruption_cases import DATA, cifar, distance, large, needs_data, small
from notela.vision.corruptions import Draws, blur, corrupt, digital, relief, weather
from notela.vision.severities import CONSTANTS


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
def test_equal_to_the_package(name: str, severity: int, published: Callable[..., np.ndarray]) -> None:
    ours = corrupt(large(), name, severity, constants="imagenet")[0]
    np.testing.assert_array_equal(ours, published(large()[0], name, severity))


@pytest.mark.parametrize("severity", [1, 2])
def test_glass_blur_equals_the_packages(severity: int, published: Callable[..., np.ndarray]) -> None:
    ours = corrupt(large(), "glass_blur", severity, constants="imagenet")[0]
    np.testing.assert_array_equal(ours, published(large()[0], "glass_blur", severity))


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
def test_a_level_from_the_package(name: str, apart: float, severity: int, published: Callable[..., np.ndarray]) -> None:
    ours = corrupt(large(), name, severity, constants="imagenet")[0].astype(int)
    off = np.abs(ours - published(large()[0], name, severity))
    assert off.max() <= 1
    assert (off > 0).mean() < apart


def test_motion_blur_is_the_packages_rounded(package: Any) -> None:
    for severity, angle in ((1, 0.0), (2, -45.0), (3, 17.0), (4, 44.0), (5, -31.0)):
        radius, sigma = CONSTANTS["motion_blur"]["imagenet"][severity - 1]
        ours = blur.smear(large(), int(radius), sigma, np.deg2rad([angle]))[0]
        np.testing.assert_allclose(
            ours, package.corruptions._motion_blur(large()[0], int(radius), sigma, angle), atol=1e-3
        )


@pytest.mark.parametrize("severity", range(1, 6))
def test_motion_blur_draws_the_packages_angle(severity: int, published: Callable[..., np.ndarray]) -> None:
    ours = corrupt(large(), "motion_blur", severity, constants="imagenet")[0].astype(int)
    off = ours - published(large()[0], "motion_blur", severity)  # the package cuts, ImageMagick rounds
    assert off.min() >= 0
    assert off.max() <= 1


@pytest.mark.parametrize("severity", range(1, 6))
def test_snow_is_the_packages_but_for_bytes(severity: int, published: Callable[..., np.ndarray]) -> None:
    ours = corrupt(large(), "snow", severity, constants="imagenet")[0].astype(int)
    # The benchmark stores flakes as bytes before they fall.
    off = np.abs(ours - published(large()[0], "snow", severity))
    assert (off > 2).mean() < 1e-3
    assert off.mean() < 0.1


@pytest.mark.parametrize("severity", range(1, 6))
def test_elastic_displacement_is_the_packages(severity: int, published: Callable[..., np.ndarray]) -> None:
    """The package leaves out the affine map and has constants of its own; its draws are the two fields alone."""
    alpha = 250 * (0.05, 0.065, 0.085, 0.1, 0.12)[severity - 1] * 224 * 0.005
    fields = Draws(0, "elastic_transform", severity, range(1))

    class WithoutAffineMap:
        def uniform(self, *shape: int) -> np.ndarray:
            if shape == (3, 2):
                return np.zeros((1, 3, 2))
            return np.stack([fields.uniform(*shape[1:]), fields.uniform(*shape[1:])], 1)

    ours = digital.elastic_transform(large(), WithoutAffineMap(), alpha, 224 * 0.01, 0)[0].astype(int)
    off = np.abs(ours - published(large()[0], "elastic_transform", severity))
    assert off.max() <= 1
    assert (off > 0).mean() < 0.01


@pytest.mark.parametrize("severity", [1, 5])
def test_impulse_noise_has_the_packages_distribution(severity: int, package: Any) -> None:
    theirs = package.corrupt(large()[0], severity=severity, corruption_name="impulse_noise")
    ours = corrupt(large(), "impulse_noise", severity, constants="imagenet")[0]
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
        np.testing.assert_array_equal(weather.frost_layers([image], 5, (32, 32))[0], shrunk)


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
def test_defocus_of_real_images_is_opencvs(severity: int, package: Any) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed", exc_type=ImportError)
    kernel = package.corruptions.disk(*CONSTANTS["defocus_blur"]["cifar"][severity - 1])
    theirs = np.stack([(cv2.filter2D(x / 255, -1, kernel).clip(0, 1) * 255).astype(int) for x in cifar()[:100]])
    off = np.abs(corrupt(cifar()[:100], "defocus_blur", severity) - theirs)
    assert off.max() <= 1
    assert (off > 0).mean() < 0.01  # flat regions: the kernel's last bits


def test_the_affine_map_is_opencvs() -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed", exc_type=ImportError)
    ours = corrupt(small(), "elastic_transform", 1).astype(int)  # its displacement is 0
    for i, image in enumerate(small()):
        corners = np.float32([[26, 26], [26, 6], [6, 6]])
        moved = corners + 32 * 0.08 * (2 * Draws(0, "elastic_transform", 1, range(i, i + 1)).uniform(3, 2)[0] - 1)
        matrix = cv2.getAffineTransform(corners, np.float32(moved))
        theirs = cv2.warpAffine(np.float32(image) / 255, matrix, (32, 32), borderMode=cv2.BORDER_REFLECT_101)
        assert distance(ours[i] + 0.5, 255 * theirs) < 0.7  # a quarter by cutting; OpenCV may round to 1/32 of a pixel
