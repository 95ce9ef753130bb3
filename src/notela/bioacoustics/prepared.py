"""A prepared data set on disk: windows of recordings, a table of what they are, and a manifest of how they were made.

folder/manifest.json, windows.parquet      see `window_table`
folder/parts/<id>.json       one recording that is done: its windows; written after its samples, so it stands for both
folder/parts/<id>.npy        their samples, float16 (windows, samples), memory-mapped; or
folder/parts/<id>.flac       the same one after another, 16 bits
folder/failures.csv          recordings that could not be used, each with its reason
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import soundfile
import torch
from torch import Tensor
from torch.utils.data import Dataset

from notela.bioacoustics import window_table
from notela.bioacoustics.audio import Samples, write_flac
from notela.bioacoustics.window_table import WindowTable
from notela.errors import NotelaError
from notela.runs import replacing

Storage = Literal["float16", "flac"]
STORAGES = ("float16", "flac")
KIND, MAKE = "prepared data set", "make one with `notela prepare RECORDINGS --to FOLDER`"


def write_part(
    folder: Path, part: str, windows: Iterable[Samples], shape: tuple[int, int], storage: Storage
) -> list[float]:
    """The samples of a recording's windows, whole or not at all. Each is scaled to a peak of 1: a quiet recorder would
    leave few of the bits, and most models scale their input anyway. What their peaks were comes back."""
    peaks: list[float] = []

    def scale() -> Iterator[Samples]:
        for samples in windows:
            peaks.append(float(np.abs(samples).max()))
            yield samples / np.float32(max(peaks[-1], 1e-12))

    if storage == "flac":
        write_flac(folder / f"{part}.flac", scale())
        return peaks
    header = {"descr": "<f2", "fortran_order": False, "shape": shape}
    with replacing(folder / f"{part}.npy") as aside, open(aside, "wb") as file:  # a full disk kills who maps memory
        np.lib.format.write_array_header_1_0(file, header)
        for samples in scale():
            file.write(samples.astype("<f2").tobytes())
    return peaks


class Prepared(WindowTable):
    """A prepared data set, read from its folder."""

    @property
    def length(self) -> int:
        """Samples of a window."""
        return int(self.manifest["length"])

    def samples(self, row: int, natural: bool = False) -> Samples:
        """A window at 32 kHz, with a peak of 1, or `natural`ly as loud as it was recorded."""
        samples = self._scaled(row)
        return samples * np.float32(self.table["peak"][row]) if natural else samples

    def _scaled(self, row: int) -> Samples:
        path = self.folder / "parts" / self.table["part"][row]
        at = self.table["row"][row]
        try:
            if self.manifest["settings"]["storage"] == "float16":
                file_ = f"{path}.npy"
                return np.asarray(_mapped(file_, os.stat(file_).st_mtime_ns)[at], np.float32)
            with soundfile.SoundFile(f"{path}.flac") as file:
                file.seek(at * self.length)
                return np.asarray(file.read(self.length, dtype="float32"))
        except (OSError, ValueError, IndexError, soundfile.LibsndfileError) as error:
            raise NotelaError(
                f"{path}, samples of {self.table['recording'][row]}, cannot be read ({error}); run `notela prepare` on "
                f"{self.folder} again"
            ) from error


class Windows(Dataset[Tensor]):
    """Rows of a prepared data set as tensors of samples: what `notela.adapt` takes."""

    def __init__(self, prepared: Prepared, rows: Sequence[int] | npt.NDArray[np.int64], natural: bool = False) -> None:
        self._prepared, self._rows, self._natural = prepared, rows, natural

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Tensor:
        return torch.from_numpy(self._prepared.samples(int(self._rows[row]), self._natural))


def read(folder: str | os.PathLike[str]) -> Prepared:
    """A prepared data set."""
    return Prepared(*window_table.read(folder, KIND, MAKE))


def write(folder: Path, manifest: dict[str, Any], table: dict[str, list[Any]]) -> Prepared:
    """Table and manifest of a set whose samples are there."""
    window_table.write(folder, manifest, table)
    return Prepared(folder, manifest, table)


@lru_cache(maxsize=256)
def _mapped(path: str, changed: int) -> npt.NDArray[np.float16]:
    """`changed`: when it was written, so that one that was made anew is opened anew."""
    return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]
