"""Embeddings that another program wrote, brought into the form of ours (see `embeddings`).

An `.npz` file, or a Parquet table with the same names for columns, where a row of `embeddings` is a list:

embeddings            (windows, dimensions)
recording, start, end where each window is, in seconds; optional, all three
species               what it holds, names joined by ";" (in Parquet also lists); optional
split                 "adapt" or "test"; optional, by a hash of the recording without it

and, in an `.npz` file, the model's own last layer, logits = embeddings @ weights.T + bias:

classes               names of its outputs
weights, bias         (classes, dimensions), (classes,)
logits                (windows, classes); optional, made with that layer without it
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from notela.bioacoustics import window_table
from notela.bioacoustics.embed import same_settings
from notela.bioacoustics.embeddings import KIND, Embedded, Rows
from notela.bioacoustics.head import Head, own_head
from notela.bioacoustics.labels import split
from notela.bioacoustics.taxonomy import Resolved, Species, nameless, release, resolve
from notela.bioacoustics.window_table import COLUMNS, FORMAT
from notela.errors import NotelaError
from notela.lock import only_one

ENDINGS = (".npz", ".parquet")
BATCH = 4096
_TEXTS, _NUMBERS = ("recording", "species", "split"), ("start", "end")
_LAYER = ("classes", "weights", "bias")

Columns = Mapping[str, Any]


def bring(path: Path, to: Path, model: str) -> tuple[Embedded, Head | None, Resolved]:
    """A file's embeddings as a set in `to`, filed under the name of the model that made them; the model's last layer as
    a head, if the file has it; and what became of the species' names."""
    read = _npz if path.suffix == ".npz" else _parquet
    with only_one(to):
        layer: Columns = {}
        table: dict[str, list[Any]] = {name: [] for name in (*_TEXTS, *_NUMBERS)}
        writing: tuple[Rows, Rows] | None = None
        for columns, layer in read(path):
            embeddings = _matrix(columns["embeddings"], "embeddings", path)
            _check_finite(embeddings, 0 if writing is None else writing[0].count, path)
            if writing is None:
                width = embeddings.shape[1]
                with open(path, "rb") as file:
                    state = hashlib.file_digest(file, "sha256").hexdigest()[:16]
                settings = {"model": model, "identity": f"{model}, {width} numbers", "windows": f"brought: {state}"}
                same_settings(to, settings)
                (to / "manifest.json").unlink(missing_ok=True)  # until the end, table and arrays do not belong together
                writing = (
                    Rows(to / "embeddings.npy", width, "<f4", 0),
                    Rows(to / "logits.npy", len(layer.get("classes", ())), "<f2", 0),
                )
            elif embeddings.shape[1] != width:
                raise NotelaError(
                    f"{path} has embeddings of {width} and of {embeddings.shape[1]} numbers; use one model"
                )
            writing[0].append(embeddings)
            writing[1].append(_logits(embeddings, columns, layer, path))
            _add(table, columns, len(embeddings), path)
        if writing is None or not writing[0].count:
            raise NotelaError(f"{path} holds no embeddings; expected at least one row")
        for array in writing:
            array.keep()
        outputs, labels = _names(layer.get("classes", ())), _split_names(table["species"])
        resolved = resolve(dict.fromkeys(name for mine in labels for name in mine))
        known = {name: species.code for name, species in resolved.matched.items()}
        named = {species.code: species for species in resolved.matched.values()}
        codes = [sorted({known.get(name, name) for name in mine}) for mine in labels]
        classes = [named.get(code) or nameless(code) for code in sorted({code for mine in codes for code in mine})]
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "kind": KIND,
            **settings,
            "windows": "brought along",
            "split": "as brought along" if table["split"][0] else "by-recording",
            "taxonomy": release(),
            "classes": [list(one) for one in classes],
            "window": float(np.median(np.array(table["end"]) - np.array(table["start"]))),
            "dimensions": width,
            "outputs": [list(one) for one in outputs],
        }
        window_table.write(to, manifest, rows := _rows(table, codes))
    head = None
    if layer:
        weights, bias = (np.asarray(layer[name], np.float32) for name in ("weights", "bias"))
        head = own_head(weights, bias, outputs, settings["identity"])
    return Embedded(to, manifest, rows), head, resolved


# ---- files


def _npz(path: Path) -> Iterator[tuple[Columns, Columns]]:
    """All of it at once: so it was written."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise NotelaError(
            f"{path} cannot be read as .npz ({error}); write it with np.savez, without objects"
        ) from error
    _check_names(found, (*_LAYER, "logits"), path)
    layer = {name: found[name] for name in _LAYER if name in found}
    for name in (name for name in _LAYER if layer and name not in layer):
        raise NotelaError(
            f"{path} has {next(iter(layer))!r} without {name!r}; a last layer is classes, weights and bias"
        )
    if layer:
        _check_layer(layer, found, path)
    yield {name: value for name, value in found.items() if name not in _LAYER}, layer


def _parquet(path: Path) -> Iterator[tuple[Columns, Columns]]:
    """Some rows at a time."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _check_names(dict.fromkeys(file.schema_arrow.names), (), path)
            for batch in file.iter_batches(BATCH):
                yield {name: batch.column(name).to_pylist() for name in batch.schema.names}, {}
    except (OSError, pyarrow.ArrowException) as error:
        raise NotelaError(f"{path} cannot be read as Parquet ({error}); write it again") from error


def _check_names(found: Mapping[str, Any], more: tuple[str, ...], path: Path) -> None:
    known = ("embeddings", *_TEXTS, *_NUMBERS, *more)
    if "embeddings" not in found:
        raise NotelaError(f"{path} has no 'embeddings', only {', '.join(found) or 'nothing'}; a row for each window")
    for name in found:
        if name not in known:
            raise NotelaError(f"{path} has {name!r}, which means nothing here; known are {', '.join(known)}")
    place = [name for name in ("recording", *_NUMBERS) if name in found]
    if len(place) in (1, 2):
        raise NotelaError(f"{path} has {', '.join(place)} alone; where a window is takes recording, start and end")


def _check_layer(layer: Columns, found: Columns, path: Path) -> None:
    """That the last layer fits the embeddings, and makes the logits of them that are there."""
    embeddings = _matrix(found["embeddings"], "embeddings", path)
    weights, bias = _matrix(layer["weights"], "weights", path), np.asarray(layer["bias"], np.float32)
    wanted = (len(layer["classes"]), embeddings.shape[1])
    if weights.shape != wanted or bias.shape != wanted[:1]:
        raise NotelaError(
            f"{path} has weights {weights.shape} and bias {bias.shape} for {wanted[0]} classes and embeddings of "
            f"{wanted[1]} numbers; expected {wanted} and {wanted[:1]}"
        )
    if "logits" in found:
        made, given = embeddings[:64] @ weights.T + bias, _matrix(found["logits"], "logits", path)[:64]
        if given.shape != made.shape or not np.allclose(made, given, rtol=1e-2, atol=1e-2 * (1 + np.abs(given).max())):
            raise NotelaError(
                f"the logits in {path} are not embeddings @ weights.T + bias; embeddings must be what enters that layer"
            )


# ---- columns


def _matrix(value: Any, name: str, path: Path) -> npt.NDArray[np.float32]:
    try:
        found = np.asarray(value, np.float32)
    except (TypeError, ValueError) as error:
        raise NotelaError(f"{name} in {path} are not rows of equally many numbers ({error})") from error
    if found.ndim != 2 or not found.shape[1]:
        raise NotelaError(f"{name} in {path} have the shape {found.shape}; expected rows of equally many numbers")
    return found


def _check_finite(embeddings: npt.NDArray[np.float32], before: int, path: Path) -> None:
    bad = np.flatnonzero(~np.isfinite(embeddings).all(1))
    if len(bad):
        raise NotelaError(
            f"row {before + int(bad[0])} of {path} holds NaN or infinity ({len(bad)} such rows here); leave them out"
        )


def _logits(
    embeddings: npt.NDArray[np.float32], columns: Columns, layer: Columns, path: Path
) -> npt.NDArray[np.float32]:
    if not layer:
        if "logits" in columns:
            raise NotelaError(
                f"{path} has logits and no last layer (classes, weights, bias); add it, or leave them out"
            )
        return np.zeros((len(embeddings), 0), np.float32)
    made: npt.NDArray[np.float32] = embeddings @ np.asarray(layer["weights"], np.float32).T + layer["bias"]
    return made


def _add(table: dict[str, list[Any]], columns: Columns, rows: int, path: Path) -> None:
    """A chunk's columns, as plain values."""
    before = len(table["start"])
    defaults: dict[str, list[Any]] = {
        "recording": [f"row {before + i}" for i in range(rows)],
        "species": [""] * rows,
        "split": [""] * rows,
        "start": [0.0] * rows,
        "end": [0.0] * rows,
    }
    for name, default in defaults.items():
        values = columns.get(name, default)
        values = values.tolist() if isinstance(values, np.ndarray) else list(values)
        if len(values) != rows:
            raise NotelaError(f"{name} in {path} has {len(values)} rows and embeddings have {rows}; one a window")
        try:
            table[name] += [_text(value) if name in _TEXTS else float(value) for value in values]
        except (TypeError, ValueError) as error:
            raise NotelaError(f"{name} in {path} must hold numbers of seconds ({error})") from error
    for value in table["split"][before:]:
        if value not in ("adapt", "test", "") or (value == "") != (table["split"][0] == ""):
            raise NotelaError(f"split in {path} holds {value!r}; each row is 'adapt' or 'test'")


def _text(value: Any) -> str:
    """A name, or several joined as in one; nothing is nothing."""
    if isinstance(value, list):
        return ";".join(map(str, value))
    return "" if value is None else str(value)


def _split_names(species: list[str]) -> list[list[str]]:
    return [[name.strip() for name in one.split(";") if name.strip()] for one in species]


def _rows(table: dict[str, list[Any]], codes: list[list[str]]) -> dict[str, list[Any]]:
    number = len(table["start"])
    rows = {
        **{name: [""] * number for name in COLUMNS},
        **{name: table[name] for name in ("recording", *_NUMBERS, "split")},
        "species": codes,
        "peak": [None] * number,
        "row": list(range(number)),
    }
    if not table["split"][0]:
        adapt = split(table["recording"], table["start"], "by-recording").tolist()
        rows["split"] = ["adapt" if yes else "test" for yes in adapt]
    return rows


def _names(names: Any) -> list[Species]:
    """A model's outputs; names that no list knows stay as they are, and so do two names of one species."""
    labels = [str(name) for name in np.asarray(names).tolist()]
    matched = resolve(labels).matched
    times = Counter(matched[name].code for name in labels if name in matched)
    return [matched[name] if name in matched and times[matched[name].code] == 1 else nameless(name) for name in labels]
