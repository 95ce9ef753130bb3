"""Blur against slow doubles and SciPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import ndimage

from corruption_cases import pictures, small
from notela.vision.corruptions import Constants, Draws, blur, corrupt
from notela.vision.severities import CONSTANTS


@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("severity", [1, 3, 4, 5])
def test_defocus_is_a_convolution_with_a_disk(severity: int, constants: Constants) -> None:
    radius, rim = CONSTANTS["defocus_blur"][constants][severity - 1]
    kernel = blur.disk(radius, rim)
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
def test_glass_blur_copies_pixel_by_pixel(constants: Constants, severity: int) -> None:
    sigma, reach, times = CONSTANTS["glass_blur"][constants][severity - 1]
    reach, times = int(reach), int(times)
    side = 32 - 2 * reach
    steps = Draws(7, "glass_blur", severity, range(12)).steps(reach, times, side, side, 2)
    out = corrupt(small(), "glass_blur", severity, constants=constants, seed=7)
    for i, image in enumerate(small()[:4]):
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
    out = blur.smear(images, 4, 1.5, angles)
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
def test_zoom_blur_is_a_mean_of_zooms(severity: int, constants: Constants) -> None:
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
    matrix = blur.zoom_matrix(32, factor)
    np.testing.assert_allclose((matrix @ (matrix @ layer[..., 0]).T).T, zoomed(layer, factor)[..., 0], atol=1e-12)
