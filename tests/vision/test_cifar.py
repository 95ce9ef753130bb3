"""CIFAR-10 and CIFAR-10-C in every form in which people have them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from notela.errors import NotelaError
from notela.vision.cifar import CLASSES, corrupted, frost_images, published_corruption
from notela.vision.cifar import test_set as read_test_set
from notela.vision.corruptions import corrupt

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (20, 32, 32, 3)).astype(np.uint8)
LABELS = np.arange(20) % 10


def as_archive(folder: Path) -> None:
    np.savez(folder / "cifar10_test.npz", images=IMAGES, labels=LABELS)


def as_batches(folder: Path, protocol: int = 2) -> None:
    """The published batches: a pickle with byte keys, one row of channels, rows and columns an image."""
    rows = IMAGES.transpose(0, 3, 1, 2).reshape(20, -1)
    content = {b"batch_label": b"testing batch 1 of 1", b"data": rows, b"labels": LABELS.tolist()}
    (folder / "cifar-10-batches-py").mkdir()
    with open(folder / "cifar-10-batches-py" / "test_batch", "wb") as file:
        pickle.dump(content, file, protocol)


def as_bare_batch(folder: Path) -> None:
    as_batches(folder, protocol=4)
    (folder / "cifar-10-batches-py" / "test_batch").rename(folder / "test_batch")


def as_folders(folder: Path) -> None:
    for i, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
        (folder / "test" / CLASSES[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / "test" / CLASSES[label] / f"{i:04d}.png")


@pytest.mark.parametrize("write", [as_archive, as_batches, as_bare_batch, as_folders])
def test_every_form_holds_the_same_images(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path)
    images, labels = read_test_set(tmp_path)
    order = np.argsort(labels, kind="stable"), np.argsort(LABELS, kind="stable")
    assert np.array_equal(images[order[0]], IMAGES[order[1]])
    assert np.array_equal(labels[order[0]], LABELS[order[1]])
    assert (images.dtype, labels.dtype) == (np.uint8, np.int64)


def test_a_pickle_that_would_run_code_does_not(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.mkdir, (str(tmp_path / "was here"),)

    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(NotelaError, match=r"test_batch cannot be read \(UnpicklingError: it asks for posix.mkdir"):
        read_test_set(tmp_path)
    assert not (tmp_path / "was here").exists()


@pytest.mark.parametrize("name", ["cifar10_test.npz", "test_batch", "test/airplane/1.png"])
def test_damaged_files_are_named(name: str, tmp_path: Path) -> None:
    if name.startswith("test/"):
        as_folders(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"PK not what it says")
    with pytest.raises(NotelaError, match=f"{Path(name).name} cannot be read .*download it again"):
        read_test_set(tmp_path)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES[:, :28], LABELS, r"images \(20, 28, 32, 3\)"),
        (IMAGES.astype(np.float32), LABELS, "float32"),
        (IMAGES, LABELS[:5], r"labels \(5,\)"),
        (IMAGES[:0], LABELS[:0], r"images \(0, 32, 32, 3\)"),
        (IMAGES, LABELS + 1, "holds the label 10; CIFAR-10 has 0 to 9"),
        (IMAGES, LABELS - 1, "holds the label -1"),
    ],
)
def test_other_data_is_refused(images: Any, labels: Any, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar10_test.npz", images=images, labels=labels)
    with pytest.raises(NotelaError, match=message):
        read_test_set(tmp_path)


def test_an_empty_folder_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match="holds no CIFAR-10 test images: expected cifar-10-batches-py/test_batch"):
        read_test_set(tmp_path)
    as_folders(tmp_path)
    (tmp_path / "test" / "airplane").rename(tmp_path / "test" / "plane")
    with pytest.raises(NotelaError, match="test has no folder 'airplane'; expected airplane, automobile"):
        read_test_set(tmp_path)


# ---- CIFAR-10-C


def published(folder: Path) -> Path:
    blocks = [np.clip(IMAGES.astype(int) + 10 * severity, 0, 255) for severity in range(5)]
    (folder / "CIFAR-10-C").mkdir()
    np.save(folder / "CIFAR-10-C" / "fog.npy", np.concatenate(blocks).astype(np.uint8))
    np.save(folder / "CIFAR-10-C" / "labels.npy", np.tile(LABELS, 5).astype(np.uint8))
    return folder / "CIFAR-10-C"


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_published_files_are_read_as_they_are(severity: int, tmp_path: Path) -> None:
    as_archive(tmp_path)
    folder = published(tmp_path)
    for images, labels in (published_corruption(folder, "fog", severity), corrupted(tmp_path, "fog", severity)):
        assert np.array_equal(images, np.clip(IMAGES.astype(int) + 10 * (severity - 1), 0, 255))
        assert np.array_equal(labels, LABELS)


def test_without_published_files_the_images_are_corrupted_here(tmp_path: Path) -> None:
    as_archive(tmp_path)
    images, labels = corrupted(tmp_path, "contrast", 5)
    assert np.array_equal(images, corrupt(IMAGES, "contrast", 5))
    assert np.array_equal(labels, LABELS)


def test_wrong_published_files_are_named(tmp_path: Path) -> None:
    folder = published(tmp_path)
    with pytest.raises(NotelaError, match=r"snow.npy does not exist; CIFAR-10-C's files are .* from https"):
        published_corruption(folder, "snow", 1)
    (folder / "snow.npy").write_bytes((folder / "fog.npy").read_bytes()[:1000])
    with pytest.raises(NotelaError, match="cannot be read .*download it again"):
        published_corruption(folder, "snow", 1)
    np.save(folder / "snow.npy", IMAGES)
    with pytest.raises(NotelaError, match=r"snow.npy holds images \(20, 32, 32, 3\) of uint8 and labels \(100,\)"):
        published_corruption(folder, "snow", 1)
    np.save(folder / "labels.npy", LABELS)
    np.save(folder / "snow.npy", IMAGES)
    assert published_corruption(folder, "snow", 1)[0].shape == (4, 32, 32, 3)
    np.save(folder / "labels.npy", LABELS * 10)  # CIFAR-100-C has the same names and shapes
    with pytest.raises(NotelaError, match="snow.npy holds the label 90; CIFAR-10 has 0 to 9"):
        published_corruption(folder, "snow", 1)
    np.save(folder / "snow.npy", np.float32(3))
    with pytest.raises(NotelaError, match=r"holds images \(\) of float32"):
        published_corruption(folder, "snow", 1)


def test_frost_needs_its_pictures(tmp_path: Path) -> None:
    as_archive(tmp_path)
    with pytest.raises(NotelaError, match="frost holds 0 of the pictures frost1.png to frost6.jpg"):
        corrupted(tmp_path, "frost", 5)
    (tmp_path / "frost").mkdir()
    for i in range(1, 7):
        Image.fromarray(np.full((200, 200, 3), 30 * i, np.uint8)).save(tmp_path / "frost" / f"frost{i}.png")
    assert [int(picture[0, 0, 0]) for picture in frost_images(tmp_path / "frost")] == [30, 60, 90, 120, 150]
    assert corrupted(tmp_path, "frost", 5)[0].shape == IMAGES.shape
