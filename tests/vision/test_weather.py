"""Weather against closed forms and slow doubles."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from corruption_cases import ice, pictures, small
from notela.vision.corruptions import Constants, Draws, corrupt, weather
from notela.vision.severities import CONSTANTS


def test_snow_brightens_and_falls_twice() -> None:
    black = np.zeros((4, 32, 32, 3), np.uint8)
    out = corrupt(black, "snow", 3).astype(int)
    np.testing.assert_array_equal(out, out[:, ::-1, ::-1])
    assert out.min() == int(0.1 * 0.5 * 255)
    images = pictures(4, 32)
    assert (corrupt(images, "snow", 3) >= images.astype(int) - 1).all()


@pytest.mark.parametrize(("constants", "step"), [("cifar", 5), ("imagenet", 1)])
def test_frost_is_a_piece_of_one_of_its_images(constants: Constants, step: int) -> None:
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
    np.testing.assert_allclose(weather.plasma(Draws(0, "fog", 1, range(1)), 4, 2)[0], m / m.max(), atol=1e-12)


def test_fog_of_a_flat_image_is_the_cloud() -> None:
    images = np.full((3, 32, 32, 3), 200, np.uint8)
    clouds = weather.plasma(Draws(0, "fog", 5, range(3)), 32, 1.75)[..., None]
    expected = (200 / 255 + 1.5 * clouds) * 200 / (200 / 255 + 1.5)
    assert np.abs(corrupt(images, "fog", 5) + 0.5 - expected).max() < 0.5 + 1e-6
    assert not corrupt(np.zeros_like(images), "fog", 5).any()


def test_water_leaves_an_image_without_drops_as_it_is() -> None:
    np.testing.assert_array_equal(
        weather.spatter(small(), Draws(0, "spatter", 1, range(12)), 0.1, 0.1, 1, 0.7, 0.5, 0), small()
    )
