"""CIFAR-10's test images and CIFAR-10-C, in the forms in which they are passed around."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from PIL import Image

from notela.errors import NotelaError
from notela.vision.corruptions import Images, corrupt
from notela.vision.folders import labelled_images

Labels = npt.NDArray[np.int64]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
WHERE = "https://www.cs.toronto.edu/~kriz/cifar.html"
WHERE_C = "https://zenodo.org/records/2535967"
WHERE_FROST = "https://github.com/hendrycks/robustness (ImageNet-C/create_c)"
_ENDINGS = (".png", ".jpg", ".jpeg")


def test_set(folder: Path) -> tuple[Images, Labels]:
    """Images (N, 32, 32, 3) and class numbers, from the first of these that the folder holds: `cifar10_test.npz`
    (images, labels), `cifar-10-batches-py/test_batch`, `test_batch`, or `test/<class>/*.png`."""
    archive, images = folder / "cifar10_test.npz", folder / "test"
    batches = [path for path in (folder / "cifar-10-batches-py" / "test_batch", folder / "test_batch") if path.exists()]
    if archive.exists():
        found = _from_archive(archive)
    elif batches:
        found = _from_batch(batches[0])
    elif images.is_dir():
        found = _from_folders(images)
    else:
        raise NotelaError(
            f"{folder} holds no CIFAR-10 test images: expected cifar-10-batches-py/test_batch (from {WHERE}), "
            "cifar10_test.npz with images and labels, or test/<class>/*.png; --data names another folder"
        )
    _check(folder, *found)
    return found


def published_corruption(folder: Path, name: str, severity: int) -> tuple[Images, Labels]:
    """The files of CIFAR-10-C as they are: `<name>.npy` and `labels.npy`, five severities one after another."""
    try:
        images, labels = (np.load(folder / f"{stem}.npy", mmap_mode="r") for stem in (name, "labels"))
    except FileNotFoundError as error:
        raise NotelaError(
            f"{error.filename} does not exist; CIFAR-10-C's files are <corruption>.npy and labels.npy, from {WHERE_C}"
        ) from None
    except (OSError, ValueError, EOFError) as error:
        raise NotelaError(f"{folder / name}.npy or labels.npy cannot be read ({error}); download it again") from error
    _check(folder / f"{name}.npy", images, labels)
    if len(images) % 5:
        raise NotelaError(f"{folder / name}.npy holds {len(images)} images; five severities need a multiple of 5")
    size = len(images) // 5
    part = slice((severity - 1) * size, severity * size)
    return np.asarray(images[part]), np.asarray(labels[part]).astype(np.int64)


def corrupted(folder: Path, name: str, severity: int, seed: int = 0) -> tuple[Images, Labels]:
    """The test set under a corruption: CIFAR-10-C's own file where the folder holds `CIFAR-10-C`, otherwise made."""
    if (folder / "CIFAR-10-C").is_dir():
        return published_corruption(folder / "CIFAR-10-C", name, severity)
    images, labels = test_set(folder)
    frost = frost_images(folder / "frost") if name == "frost" else None
    return corrupt(images, name, severity, seed=seed, frost=frost), labels


def frost_images(folder: Path) -> list[Images]:
    """The benchmark's pictures of frost, without the sixth, which its program never drew."""
    paths = sorted(p for p in folder.glob("frost*") if p.suffix.lower() in _ENDINGS) if folder.is_dir() else []
    if len(paths) < 5:
        raise NotelaError(
            f"{folder} holds {len(paths)} of the pictures frost1.png to frost6.jpg, which the corruption frost lays "
            f"over images; they are in {WHERE_FROST}"
        )
    return [_pixels(path) for path in paths[:5]]


def _check(place: Path, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
    fits = images.ndim == 4 and images.shape[1:] == (32, 32, 3) and images.dtype == np.uint8
    if not fits or labels.shape != images.shape[:1] or not len(images):
        raise NotelaError(
            f"{place} holds images {images.shape} of {images.dtype} and labels {labels.shape}; expected uint8 "
            "(N, 32, 32, 3) and one label an image"
        )
    if labels.min() < 0 or labels.max() >= len(CLASSES):
        wrong = labels.max() if labels.min() >= 0 else labels.min()
        raise NotelaError(f"{place} holds the label {wrong}; CIFAR-10 has 0 to 9")


def _from_archive(path: Path) -> tuple[Images, Labels]:
    try:
        with np.load(path) as file:
            return file["images"], file["labels"].astype(np.int64)
    except Exception as error:  # zip, NumPy and missing keys each raise their own
        _unreadable(path, error)


def _from_batch(path: Path) -> tuple[Images, Labels]:
    try:
        content = _Safe(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        pixels = np.asarray(content[b"data"], dtype=np.uint8)
        labels = np.asarray(content[b"labels"], dtype=np.int64)
        return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels
    except Exception as error:  # whatever a damaged pickle raises
        _unreadable(path, error)


def _from_folders(root: Path) -> tuple[Images, Labels]:
    missing = [name for name in CLASSES if not (root / name).is_dir()]
    if missing:
        raise NotelaError(f"{root} has no folder {missing[0]!r}; expected {', '.join(CLASSES)}")
    found = labelled_images(root, CLASSES)
    images = [_pixels(path) for path in sorted(found)]
    if len({image.shape for image in images}) > 1:
        raise NotelaError(f"{root} holds images of several sizes; CIFAR-10's have 32×32 pixels")
    return np.stack(images), np.array([found[path] for path in sorted(found)])


def _pixels(path: Path) -> Images:
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except Exception as error:  # Pillow's plugins raise whatever they like
        _unreadable(path, error)


def _unreadable(path: Path, error: Exception) -> NoReturn:
    reason = " ".join(str(error).split())
    raise NotelaError(f"{path} cannot be read ({type(error).__name__}: {reason}); download it again") from error


class _Safe(pickle.Unpickler):
    """A pickle from the web may run code; one of arrays and lists needs these names only."""

    _ARRAYS = ("_reconstruct", "ndarray", "dtype", "_frombuffer")

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in self._ARRAYS:
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no list of images needs")
