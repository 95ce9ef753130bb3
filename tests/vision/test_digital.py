"""Digital corruptions against colorsys, closed forms, Pillow and SciPy."""

from __future__ import annotations

import colorsys
import io

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from corruption_cases import pictures, small
from notela.vision.corruptions import Constants, Draws, corrupt
from notela.vision.severities import CONSTANTS


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


def test_contrast_shrinks_towards_each_channels_mean() -> None:
    out = corrupt(small(), "contrast", 5)
    for image, found in zip(small(), out, strict=True):
        for c in range(3):
            mean = image[..., c].mean()
            assert np.abs(found[..., c] + 0.5 - (mean + 0.15 * (image[..., c] - mean))).max() < 0.5 + 1e-6


@pytest.mark.parametrize("severity", range(1, 6))
def test_pixelate_and_jpeg_are_pillows(severity: int) -> None:
    side = int(32 * (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1])
    quality = (80, 65, 58, 50, 40)[severity - 1]
    blocks, coded = corrupt(small(), "pixelate", severity), corrupt(small(), "jpeg_compression", severity)
    for i, image in enumerate(small()):
        picture = Image.fromarray(image)
        coarse = picture.resize((side, side), Image.Resampling.BOX).resize((32, 32), Image.Resampling.BOX)
        np.testing.assert_array_equal(blocks[i], np.asarray(coarse))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=quality)
        np.testing.assert_array_equal(coded[i], np.asarray(Image.open(file)))


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
def test_elastic_transform_is_two_interpolations(constants: Constants, severity: int) -> None:
    images = pictures(2, 32)
    out = corrupt(images, "elastic_transform", severity, constants=constants)
    for i, image in enumerate(images):
        draws = Draws(0, "elastic_transform", severity, range(i, i + 1))
        expected = elastic_double(image, draws, *CONSTANTS["elastic_transform"][constants][severity - 1])
        assert np.abs(out[i] + 0.5 - expected).max() < 0.5 + 1e-6
