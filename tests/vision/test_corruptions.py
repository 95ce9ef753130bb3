"""What holds for all corruptions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from corruption_cases import DATA, cifar, distance, ice, needs_data, pictures, small
from notela.errors import NotelaError
from notela.vision import corruptions
from notela.vision.corruptions import Constants, corrupt
from notela.vision.networks import CifarResNet, load_weights
from notela.vision.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from notela.vision.severities import CONSTANTS, EXTRA, NAMES

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


@pytest.mark.parametrize("name", ALL)
def test_seeds_severities_and_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images = small()
    before = images.copy()
    whole = corrupt(images, name, 3, seed=1, frost=ice())
    assert whole.shape == images.shape
    assert whole.dtype == np.uint8
    assert not np.array_equal(whole, images)
    np.testing.assert_array_equal(images, before)
    parts = [
        corrupt(images[:5], name, 3, seed=1, frost=ice()),
        corrupt(images[5:], name, 3, seed=1, frost=ice(), first=5),
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    monkeypatch.setattr(corruptions, "_BLOCK_VALUES", 5 * 32 * 32 * 3)
    np.testing.assert_array_equal(corrupt(images, name, 3, seed=1, frost=ice()), whole)
    other = corrupt(images, name, 3, seed=2, frost=ice())
    assert np.array_equal(other, whole) == (name in WITHOUT_DRAWS)
    assert len(corrupt(images[:0], name, 3, frost=ice())) == 0


@pytest.mark.parametrize("name", sorted(set(ALL) - WITHOUT_DRAWS))
def test_images_of_one_set_get_different_numbers(name: str) -> None:
    same = np.repeat(small()[:1], 6, 0)
    out = corrupt(same, name, 5, frost=ice())
    assert all(not np.array_equal(a, b) for a, b in itertools.pairwise(out))


@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", ALL)
def test_any_shape(name: str, constants: Constants) -> None:
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
def test_higher_severity_is_farther_from_clean(name: str, constants: Constants) -> None:
    images = pictures(40, 32) if constants == "cifar" else pictures(4, 96)
    steps = (1, 5) if name in ROUGHLY else range(1, 6)
    far = [distance(corrupt(images, name, s, constants=constants), images) for s in steps]
    assert far == sorted(far), far


@needs_data
@pytest.mark.parametrize("name", RISING + ROUGHLY)
def test_higher_severity_is_farther_from_clean_on_real_images(name: str) -> None:
    steps = (1, 3, 5) if name in ROUGHLY else range(1, 6)
    far = [distance(corrupt(cifar()[:200], name, s), cifar()[:200]) for s in steps]
    assert far == sorted(far), far


@needs_data
@pytest.mark.parametrize(("name", "accuracy"), [("gaussian_noise", 0.236), ("contrast", 0.276)])
def test_a_real_network_fails_as_much_as_elsewhere(name: str, accuracy: float) -> None:
    x = torch.from_numpy(corrupt(cifar(), name, 5)).permute(0, 3, 1, 2) / 255
    x = (x - torch.tensor(IMAGENET_MEAN)[:, None, None]) / torch.tensor(IMAGENET_STD)[:, None, None]
    with np.load(DATA / "cifar10_test.npz") as file:
        labels = file["labels"][:1000]
    with torch.no_grad():
        found = load_weights(CifarResNet(20), DATA / "resnet20.pt")(x).argmax(1).numpy()
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
def test_mistakes_are_named(change: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {"images": small(), "name": "fog", "severity": 1, **change}
    with pytest.raises(NotelaError, match=message):
        corrupt(**call)
