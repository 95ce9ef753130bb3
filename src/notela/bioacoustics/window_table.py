"""What sets of windows have in common: a table with a row for each window, and a manifest of how they were made.

folder/manifest.json         settings, protocol, split, classes, counts, fingerprint
folder/windows.parquet       recording, start, end, species, split, source, licence, and where the window is
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from notela.bioacoustics.taxonomy import Species
from notela.errors import NotelaError, check_choice
from notela.runs import replacing

FORMAT = 1
COLUMNS = ("recording", "start", "end", "species", "split", "source", "licence", "peak", "part", "row")
"""`peak` is the window's in the recording, before it was scaled to 1."""
_NUMBERS = {"start": "float64", "end": "float64", "peak": "float64", "row": "int64"}


@dataclass(frozen=True)
class WindowTable:
    """A set of windows, read from its folder."""

    folder: Path
    manifest: dict[str, Any]
    table: dict[str, list[Any]]

    @property
    def classes(self) -> tuple[Species, ...]:
        """In the order of the labels' columns."""
        return tuple(Species(*species) for species in self.manifest["classes"])

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


def read(folder: str | os.PathLike[str], kind: str, make: str) -> tuple[Path, dict[str, Any], dict[str, list[Any]]]:
    """Folder, manifest and table of a set of this kind; `make` says how to get one."""
    import pyarrow.parquet

    folder, manifest = Path(folder), read_manifest(folder, kind, make)
    with _named(folder, kind, make):
        table = pyarrow.parquet.read_table(folder / "windows.parquet").to_pydict()
    return folder, manifest, table


def read_manifest(folder: str | os.PathLike[str], kind: str, make: str) -> dict[str, Any]:
    """How a set of this kind was made, without what is in it."""
    with _named(Path(folder), kind, make):
        manifest: dict[str, Any] = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] > FORMAT:
            raise NotelaError(f"{folder} was made by a newer notela; update this one")
        found = manifest.get("kind", "prepared data set")
        if found != kind:
            raise NotelaError(f"{folder} holds a {found}, not a {kind}; {make}")
    return manifest


@contextlib.contextmanager
def _named(folder: Path, kind: str, make: str) -> Iterator[None]:
    """What goes wrong in a folder, in a sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotelaError(f"{folder} is not a {kind}: {Path(error.filename).name} is missing; {make}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, NotelaError):
            raise
        raise NotelaError(f"{folder} cannot be read as a {kind} ({error}); make it again") from error


def write(folder: Path, manifest: dict[str, Any], table: dict[str, list[Any]]) -> None:
    """Table and manifest, which gets a fingerprint; the manifest last, for it says that the set is complete."""
    import pyarrow
    import pyarrow.parquet

    manifest["fingerprint"] = fingerprint(manifest, table)
    kinds = {name: pyarrow.type_for_alias(_NUMBERS.get(name, "string")) for name in COLUMNS}
    kinds["species"] = pyarrow.list_(pyarrow.string())
    arrow = pyarrow.table({name: pyarrow.array(table[name], kinds[name]) for name in COLUMNS})
    with replacing(folder / "windows.parquet") as aside:
        pyarrow.parquet.write_table(arrow, aside)
    with replacing(folder / "manifest.json") as aside:
        aside.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def fingerprint(manifest: dict[str, Any], table: dict[str, list[Any]]) -> str:
    """A hash of everything that a user of the set can see: windows, labels, classes and their order, split, samples."""
    whole = {**{key: value for key, value in manifest.items() if key != "fingerprint"}, "table": table}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
