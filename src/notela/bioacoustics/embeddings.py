"""Embeddings of windows on disk, written once by a model that cannot be trained, or is too large to be.

folder/manifest.json, windows.parquet     see `window_table`; `row` is a window's place in the two arrays
folder/embeddings.npy                     float32 (rows, dimensions), memory-mapped
folder/logits.npy                         float16 (rows, the model's outputs), memory-mapped
folder/done.jsonl                         one line a recording that is done: all that is needed to go on
folder/failures.csv                       recordings that could not be used, each with its reason
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from notela.bioacoustics import window_table
from notela.bioacoustics.annotations import Box
from notela.bioacoustics.taxonomy import Species
from notela.bioacoustics.window_table import WindowTable
from notela.errors import NotelaError

KIND, MAKE = "set of embeddings", "make one with `notela embed MODEL RECORDINGS --to FOLDER`"

_HEADER = 128  # bytes before the first row, whatever the number of rows


class Embedded(WindowTable):
    """A set of embeddings, read from its folder."""

    @property
    def outputs(self) -> tuple[Species, ...]:
        """What the logits of the model stand for, in their order. (`classes` are those of the labels.)"""
        return tuple(Species(*species) for species in self.manifest["outputs"])

    @cached_property
    def embeddings(self) -> npt.NDArray[np.float32]:
        """(windows, dimensions), in the order of the table."""
        return self._rows_of("embeddings.npy")

    @cached_property
    def logits(self) -> npt.NDArray[np.float16]:
        """(windows, outputs), in the order of the table."""
        return self._rows_of("logits.npy")

    def boxes(self, scores: npt.NDArray[np.floating[Any]], names: Iterable[str], threshold: float) -> Iterator[Box]:
        """The windows in which a class scores at least `threshold` (windows, classes), recording by recording."""
        labels = list(names)
        for row, column in zip(*np.nonzero(scores >= threshold), strict=True):
            recording, start, end = (self.table[name][row] for name in ("recording", "start", "end"))
            yield Box(recording, start, end, labels[column], round(float(scores[row, column]), 4), 0.0, 16_000.0)

    def _rows_of(self, name: str) -> npt.NDArray[Any]:
        try:
            rows = np.load(self.folder / name, mmap_mode="c")  # torch warns of what cannot be written to
        except (OSError, ValueError, EOFError) as error:
            raise NotelaError(f"{self.folder / name} cannot be read ({error}); run `notela embed` again") from error
        places = np.array(self.table["row"], np.int64)
        if len(places) and places.max() >= len(rows):
            raise NotelaError(f"{self.folder / name} has only {len(rows)} rows; run `notela embed` again")
        in_order = len(places) == len(rows) and bool((places == np.arange(len(rows))).all())
        found: npt.NDArray[Any] = rows if in_order else rows[places]
        return found


def read(folder: str | os.PathLike[str]) -> Embedded:
    """A set of embeddings."""
    return Embedded(*window_table.read(folder, KIND, MAKE))


class Rows:
    """A .npy file that grows row by row. What lies beyond `count` rows, which a killed process left, is cut off."""

    def __init__(self, path: Path, width: int, kind: str, count: int) -> None:
        self.path, self._width, self._kind, self.count = path, width, kind, count
        with _writing(self.path), open(path, "ab"):
            pass
        self.cut(count)

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Some rows more; they count once `keep` was called."""
        with _writing(self.path), open(self.path, "ab") as file:
            file.write(np.ascontiguousarray(rows, self._kind).tobytes())
        self.count += len(rows)

    def cut(self, count: int) -> None:
        """Only so many rows stay."""
        with _writing(self.path):
            os.truncate(self.path, _HEADER + count * self._width * np.dtype(self._kind).itemsize)
        self.count = count

    def keep(self) -> None:
        """Say in the header how many rows there are, and see to it that all is on the disk."""
        form = f"{{'descr': '{self._kind}', 'fortran_order': False, 'shape': ({self.count}, {self._width}), }}"
        header = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little") + form.encode()
        with _writing(self.path), open(self.path, "r+b") as file:
            file.write(header.ljust(_HEADER - 1) + b"\n")
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A full disk is one sentence."""
    try:
        yield
    except OSError as error:
        raise NotelaError(
            f"cannot write {path} ({error.strerror}); make room and run the same command again, it goes on from here"
        ) from error
