"""Embeddings that another program wrote, brought into the form of ours (see `embeddings`).

An `.npz` file, or a Parquet table with the same names for columns, where a row of `embeddings` is a list:

embeddings            (windows, dimensions)
recording, start, end where each window is, in seconds; optional, all three
species               what it holds, names joined by ";" (in Parquet also lists); optional
split                 "adapt" or "test"; optional, by a hash of the recording without it

and, in an `.npz` file, the model's own last layer:

classes               names of its outputs
weights, bias         (classes, dimensions), (classes,)
logits                (windows, classes); optional: compared with embeddings @ weights.T + bias
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from notela.bioacoustics import window_table
from notela.bioacoustics.embed import same_settings
from notela.bioacoustics.embeddings import KIND, Embedded, Rows
from notela.bioacoustics.head import Head, own_head
from notela.bioacoustics.labels import UNKNOWN, split
from notela.bioacoustics.taxonomy import Resolved, Species, nameless, release, resolve
from notela.bioacoustics.window_table import COLUMNS, FORMAT
from notela.errors import NotelaError
from notela.lock import only_one

ENDINGS = (".npz", ".parquet")
BATCH = 4096
_PLACE = ("recording", "start", "end")
_COLUMNS = ("embeddings", *_PLACE, "species", "split")
_LAYER = ("classes", "weights", "bias")

Columns = Mapping[str, Any]
Floats = npt.NDArray[np.float32]


class Layer(NamedTuple):
    """A model's last layer: logits = embeddings @ weights.T + bias."""

    names: list[str]
    weights: Floats
    bias: Floats


def bring(path: Path, to: Path, model: str) -> tuple[Embedded, Head | None, Resolved]:
    """A file's embeddings as a set in `to`, filed under the name of the model that made them; the model's last layer as
    a head, if the file has it; and what became of the species' names."""
    if not path.is_file():
        raise NotelaError(f"{path} does not exist; expected embeddings in a file (.npz, .parquet)")
    with only_one(to):
        aside = to / "bringing"  # what is in the folder stays as it is until all of the file was read
        aside.mkdir(exist_ok=True)
        try:
            layer, table, width = _read(path, aside)
            with open(path, "rb") as file:
                state = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            settings = {"model": model, "identity": f"{model}, {width} numbers", "windows": f"brought along: {state}"}
            same_settings(to, settings)
            (to / "manifest.json").unlink(missing_ok=True)
            for name in ("embeddings.npy", "logits.npy"):
                os.replace(aside / name, to / name)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        resolved = resolve(dict.fromkeys(name for mine in table["species"] for name in mine))
        codes = {name: species.code for name, species in resolved.matched.items()}
        table["species"] = [sorted({codes.get(name, name) for name in mine}) for mine in table["species"]]
        known = {species.code: species for species in resolved.matched.values()}
        classes = sorted({code for mine in table["species"] for code in mine})
        outputs = [] if layer is None else _outputs(layer.names)
        own = bool(table["split"][0])
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "kind": KIND,
            **settings,
            "split": "as it came along" if own else "by-recording",
            "taxonomy": release(),
            "classes": [list(known.get(code) or nameless(code)) for code in classes],
            "window": float(np.median(np.array(table["end"]) - np.array(table["start"]))),
            "dimensions": width,
            "outputs": [list(one) for one in outputs],
        }
        rows: dict[str, list[Any]] = {
            **{name: [""] * len(table["start"]) for name in COLUMNS},
            **table,
            "peak": [None] * len(table["start"]),
            "row": list(range(len(table["start"]))),
        }
        if not own:
            adapt = split(table["recording"], table["start"], "by-recording").tolist()
            rows["split"] = ["adapt" if yes else "test" for yes in adapt]
        window_table.write(to, manifest, rows)
    head = None if layer is None else own_head(layer.weights, layer.bias, outputs, settings["identity"])
    return Embedded(to, manifest, rows), head, resolved


def _read(path: Path, aside: Path) -> tuple[Layer | None, dict[str, list[Any]], int]:
    """The arrays into a folder; the last layer, the other columns, and how many numbers an embedding has."""
    layer, width = None, 0
    table: dict[str, list[Any]] = {name: [] for name in _COLUMNS[1:]}
    arrays: tuple[Rows, Rows] | None = None
    for columns, layer in _npz(path) if path.suffix.lower() == ".npz" else _parquet(path):
        embeddings = _matrix(columns["embeddings"], "embeddings", path)
        if arrays is None:
            width = embeddings.shape[1]
            outputs = 0 if layer is None else len(layer.names)
            arrays = Rows(aside / "embeddings.npy", width, "<f4", 0), Rows(aside / "logits.npy", outputs, "<f2", 0)
        elif embeddings.shape[1] != width:
            raise NotelaError(f"{path} has rows of {width} and of {embeddings.shape[1]} numbers; one model makes one")
        _check_finite(embeddings, "embeddings", path, arrays[0].count)
        _add(table, columns, len(embeddings), path)
        arrays[0].append(embeddings)
        logits = np.zeros((len(embeddings), 0)) if layer is None else embeddings @ layer.weights.T + layer.bias
        arrays[1].append(logits)
    if arrays is None or not arrays[0].count:
        raise NotelaError(f"{path} holds no embeddings; expected at least one row")
    for array in arrays:
        array.keep()
    return layer, table, width


# ---- files


def _npz(path: Path) -> Iterator[tuple[Columns, Layer | None]]:
    """All of it at once: so it was written."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except (
        OSError,
        ValueError,
        EOFError,
        KeyError,
        TypeError,
        AttributeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise NotelaError(f"{path} cannot be read as .npz ({error}); write it with np.savez, no objects") from error
    _check_names(found, (*_LAYER, "logits"), path)
    layer = None
    if any(name in found for name in _LAYER):
        layer = _layer(found, path)
    elif "logits" in found:
        raise NotelaError(f"{path} has logits and no last layer (classes, weights, bias); add it, or leave them out")
    yield {name: found[name] for name in _COLUMNS if name in found}, layer


def _parquet(path: Path) -> Iterator[tuple[Columns, None]]:
    """Some rows at a time."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _check_names(dict.fromkeys(file.schema_arrow.names), (), path)
            for batch in file.iter_batches(BATCH):
                yield {name: batch.column(name).to_pylist() for name in batch.schema.names}, None
    except (OSError, pyarrow.ArrowException) as error:
        raise NotelaError(f"{path} cannot be read as Parquet ({error}); write it again") from error


def _check_names(found: Mapping[str, Any], more: tuple[str, ...], path: Path) -> None:
    known = (*_COLUMNS, *more)
    if "embeddings" not in found:
        raise NotelaError(f"{path} has no 'embeddings', only {', '.join(found) or 'nothing'}; a row for each window")
    for name in found:
        if name not in known:
            raise NotelaError(f"{path} has {name!r}, which means nothing here; known are {', '.join(known)}")
    place = [name for name in _PLACE if name in found]
    if len(place) in (1, 2):
        raise NotelaError(f"{path} has {', '.join(place)} alone; where a window is takes recording, start and end")


def _layer(found: Columns, path: Path) -> Layer:
    """The last layer, if it fits the embeddings and makes the logits of them that are there."""
    for name in (name for name in _LAYER if name not in found):
        there = next(name for name in _LAYER if name in found)
        raise NotelaError(f"{path} has {there!r} without {name!r}; a last layer takes classes, weights, bias")
    names = _texts(_column(found["classes"], "classes", path), "classes", path)
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise NotelaError(f"classes in {path} has {twice[0]!r} twice; name every output once")
    embeddings, weights = (_matrix(found[name], name, path) for name in ("embeddings", "weights"))
    bias = _matrix([_column(found["bias"], "bias", path)], "bias", path)[0]
    wanted = (len(names), embeddings.shape[1])
    if weights.shape != wanted or bias.shape != wanted[:1]:
        raise NotelaError(
            f"{path} has weights {weights.shape} and bias {bias.shape} for {wanted[0]} classes and embeddings of "
            f"{wanted[1]} numbers; expected {wanted} and {wanted[:1]}"
        )
    _check_finite(np.column_stack([weights, bias]), "weights and bias", path)
    if "logits" in found:
        made, given = embeddings[:64] @ weights.T + bias, _matrix(found["logits"], "logits", path)[:64]
        if given.shape != made.shape or not np.allclose(made, given, rtol=1e-2, atol=1e-2 * (1 + np.abs(given).max())):
            raise NotelaError(
                f"the logits in {path} are not embeddings @ weights.T + bias; embeddings must be what enters that layer"
            )
    return Layer(names, weights, bias)


def _outputs(names: list[str]) -> list[Species]:
    """A model's outputs; names that no list knows stay as they are, and so do two names of one species."""
    matched = resolve(names).matched
    times = Counter(matched[name].code for name in names if name in matched)
    return [matched[name] if name in matched and times[matched[name].code] == 1 else nameless(name) for name in names]


# ---- columns


def _matrix(value: Any, name: str, path: Path) -> Floats:
    try:
        found = np.asarray(value, np.float32)
    except (TypeError, ValueError) as error:
        raise NotelaError(f"{name} in {path} are not rows of equally many numbers ({error})") from error
    if found.ndim != 2 or not found.shape[1]:
        raise NotelaError(f"{name} in {path} have the shape {found.shape}; expected rows of equally many numbers")
    return found


def _check_finite(rows: Floats, name: str, path: Path, before: int = 0) -> None:
    bad = np.flatnonzero(~np.isfinite(rows).all(1))
    if len(bad):
        raise NotelaError(f"row {before + int(bad[0])} of {name} in {path} holds NaN or infinity; leave such rows out")


def _add(table: dict[str, list[Any]], columns: Columns, rows: int, path: Path) -> None:
    """Some more rows of every column, as plain values; of one that is not there, what stands for it."""
    before = len(table["start"])
    found: dict[str, list[Any]] = {name: _column(value, name, path) for name, value in columns.items() if name in table}
    for name, values in found.items():
        if len(values) != rows:
            raise NotelaError(f"{name} in {path} has {len(values)} rows and embeddings have {rows}; one a window")
    for name in ("start", "end"):
        try:
            table[name] += [float(value) for value in found.get(name, [0.0] * rows)]
        except (TypeError, ValueError) as error:
            raise NotelaError(f"{name} in {path} must hold numbers of seconds ({error})") from error
    times = np.array([table["start"][before:], table["end"][before:]])
    if not (np.isfinite(times).all() and (times[0] <= times[1]).all()):
        raise NotelaError(f"start and end in {path} must be seconds, the end not before the start")
    numbered = [f"row {before + i}" for i in range(rows)]
    table["recording"] += _texts(found.get("recording", numbered), "recording", path)
    parts = _texts(found.get("split", [""] * rows), "split", path)
    table["split"] += parts
    for value in parts:
        if value not in ("adapt", "test") and "split" in found:
            raise NotelaError(f"split in {path} holds {value!r}; each row is 'adapt' or 'test'")
    for one in found.get("species", [""] * rows):
        names = _texts(one, "species", path) if isinstance(one, list) else _texts([one], "species", path)[0].split(";")
        table["species"].append([name.strip() for name in names if name.strip().casefold() not in UNKNOWN])


def _column(value: Any, name: str, path: Path) -> list[Any]:
    if isinstance(value, list):
        return value
    if value.ndim != 1:
        raise NotelaError(f"{name} in {path} has the shape {value.shape}; expected a list, one value for each row")
    values: list[Any] = value.tolist()
    return values


def _texts(values: list[Any], name: str, path: Path) -> list[str]:
    """Text, or bytes of it; nothing is nothing."""
    found = []
    for value in values:
        if not isinstance(value, str | bytes | None):
            raise NotelaError(f"{name} in {path} holds {value!r} where a name is expected")
        found.append(value.decode(errors="replace") if isinstance(value, bytes) else value or "")
    return found
