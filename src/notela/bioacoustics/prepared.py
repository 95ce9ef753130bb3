"""A prepared data set on disk: windows of recordings, a table of what they are, and a manifest of how they were made.

folder/manifest.json         settings, protocol, split, classes, counts
folder/windows.parquet       one row a window: recording, start, end, species, split, source, licence, and where it is
folder/parts/<id>.json       one recording that is done: its windows; written after its samples, so it stands for both
folder/parts/<id>.npy        their samples, float16 (windows, samples), memory-mapped; or
folder/parts/<id>.flac       the same one after another, 16 bits
folder/failures.csv          recordings that could not be used, each with its reason
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import soundfile
import torch
from torch import Tensor
from torch.utils.data import Dataset

from notela.bioacoustics.audio import Samples, write_flac
from notela.bioacoustics.taxonomy import Species
from notela.errors import NotelaError, check_choice
from notela.runs import replacing

Storage = Literal["float16", "flac"]
STORAGES = ("float16", "flac")
FORMAT = 1
COLUMNS = ("recording", "start", "end", "species", "split", "source", "licence", "part", "row")


def write_part(folder: Path, part: str, windows: Iterable[Samples], shape: tuple[int, int], storage: Storage) -> None:
    """The samples of a recording's windows, whole or not at all. Each is scaled to a peak of 1: a quiet recorder would
    leave few of the bits, and models scale their input anyway."""
    scaled = (samples / max(float(np.abs(samples).max()), 1e-12) for samples in windows)
    if storage == "flac":
        write_flac(folder / f"{part}.flac", scaled)
        return
    header = {"descr": "<f2", "fortran_order": False, "shape": shape}
    with replacing(folder / f"{part}.npy") as aside, open(aside, "wb") as file:  # a full disk kills who maps memory
        np.lib.format.write_array_header_1_0(file, header)
        for samples in scaled:
            file.write(samples.astype("<f2").tobytes())


@dataclass(frozen=True)
class Prepared:
    """A prepared data set, read from its folder."""

    folder: Path
    manifest: dict[str, Any]
    table: dict[str, list[Any]]

    @property
    def classes(self) -> tuple[Species, ...]:
        """In the order of the labels' columns."""
        return tuple(Species(*species) for species in self.manifest["classes"])

    @property
    def length(self) -> int:
        """Samples of a window."""
        return int(self.manifest["length"])

    def __len__(self) -> int:
        return len(self.table["recording"])

    def rows(self, split: str | None = None) -> npt.NDArray[np.int64]:
        """Row numbers of a split, "adapt" or "test"; all without one."""
        if split is None:
            return np.arange(len(self))
        check_choice("split", split, ("adapt", "test"))
        return np.flatnonzero(np.array(self.table["split"]) == split)

    def labels(self, rows: Sequence[int] | npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.uint8]:
        """0/1 (rows, classes); of a long set with many species, ask for a batch at a time."""
        rows = self.rows() if rows is None else rows
        labels = np.zeros((len(rows), len(self._column)), np.uint8)
        for i, row in enumerate(rows):
            labels[i, [self._column[code] for code in self.table["species"][row]]] = 1
        return labels

    @cached_property
    def _column(self) -> dict[str, int]:
        return {species.code: i for i, species in enumerate(self.classes)}

    def samples(self, row: int) -> Samples:
        """A window at 32 kHz."""
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

    def __init__(self, prepared: Prepared, rows: Sequence[int] | npt.NDArray[np.int64]) -> None:
        self._prepared, self._rows = prepared, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Tensor:
        return torch.from_numpy(self._prepared.samples(int(self._rows[row])))


def read(folder: str | os.PathLike[str]) -> Prepared:
    """A prepared data set."""
    import pyarrow.parquet

    folder = Path(folder)
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] > FORMAT:
            raise NotelaError(f"{folder} was prepared by a newer notela; update this one")
        table = pyarrow.parquet.read_table(folder / "windows.parquet").to_pydict()
    except FileNotFoundError as error:
        raise NotelaError(
            f"{folder} is not a prepared data set: {Path(error.filename).name} is missing; make one with "
            "`notela prepare RECORDINGS --to FOLDER`"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotelaError(f"{folder} cannot be read as a prepared data set ({error}); prepare it again") from error
    return Prepared(folder, manifest, table)


def fingerprint(manifest: dict[str, Any], table: dict[str, list[Any]]) -> str:
    """A hash of everything that a user of the set can see: windows, labels, classes and their order, split, samples."""
    whole = {**{key: value for key, value in manifest.items() if key != "fingerprint"}, "table": table}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


def write(folder: Path, manifest: dict[str, Any], table: dict[str, list[Any]]) -> Prepared:
    """Table and manifest; the manifest last, for it says that the set is complete."""
    import pyarrow
    import pyarrow.parquet

    kinds = {
        "recording": pyarrow.string(),
        "start": pyarrow.float64(),
        "end": pyarrow.float64(),
        "species": pyarrow.list_(pyarrow.string()),
        "split": pyarrow.string(),
        "source": pyarrow.string(),
        "licence": pyarrow.string(),
        "part": pyarrow.string(),
        "row": pyarrow.int32(),
    }
    assert tuple(kinds) == COLUMNS
    arrow = pyarrow.table({name: pyarrow.array(table[name], kind) for name, kind in kinds.items()})
    with replacing(folder / "windows.parquet") as aside:
        pyarrow.parquet.write_table(arrow, aside)
    with replacing(folder / "manifest.json") as aside:
        aside.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return Prepared(folder, manifest, table)


@lru_cache(maxsize=256)
def _mapped(path: str, changed: int) -> npt.NDArray[np.float16]:
    """`changed`: when it was written, so that one that was made anew is opened anew."""
    return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]
