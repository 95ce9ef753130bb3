"""What the suites of recordings share: a set of windows, a model, and a domain that is made of both.

A classifier's front end has neither norm layers nor noise, and with its filters as they were learnt its pictures never
change: they are made once and kept (float16), which leaves the network for every epoch. So in these suites "all" moves
all weights of the network and the head, and not the filters. A head on embeddings takes these as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from notela.bench.suite import Domain
from notela.bioacoustics import embeddings, head, prepared, window_table
from notela.bioacoustics import model as models
from notela.bioacoustics.annotations import stem
from notela.bioacoustics.audio import SAMPLE_RATE
from notela.bioacoustics.head import Head
from notela.bioacoustics.labels import SPLITS
from notela.bioacoustics.model import BirdClassifier, OnPictures, at_peak
from notela.bioacoustics.prepared import Prepared
from notela.bioacoustics.taxonomy import Species, outputs_of
from notela.bioacoustics.window_table import WindowTable
from notela.bioacoustics.windows import samples_in
from notela.data import Unlabelled
from notela.errors import NotelaError
from notela.lock import only_one
from notela.runs import fingerprint, replacing
from notela.stable import stable_share
from notela.task import Task

BATCH = 32
NOTHING = (0, 0)
"""No part of a set is held out."""
_IN_MEMORY = 2**31  # bytes of inputs; more stay on the disk, and batches are read from there


def source(path: str) -> BirdClassifier | Head:
    """A bird classifier, or a head on embeddings, from its file; or a classifier of BirdSet's."""
    file = Path(path)
    return _source(path, file.stat().st_mtime_ns if file.is_file() else 0)


@lru_cache(maxsize=1)
def _source(path: str, changed: int) -> BirdClassifier | Head:
    """`changed`: one that was trained anew is loaded anew."""
    return head.load(path) if changed and head.is_head(path) else models.load(path)


def network(path: str) -> nn.Module:
    """What of it is adapted."""
    model = source(path)
    return model if isinstance(model, Head) else OnPictures(model)


def place(
    path: str, folder: Path, task: Task, *, held_out: tuple[int, int] | None = None, score_empty: bool = True
) -> Domain:
    """A folder that `notela prepare` or, for a head, `notela embed` wrote, as a domain of the model in a file."""
    model, make = source(path), partial(domain, task=task, held_out=held_out, score_empty=score_empty)
    if isinstance(model, Head):
        heard = embeddings.read(folder)
        return make(heard, model.classes, torch.from_numpy(heard.embeddings))
    windows = prepared.read(folder)
    return make(windows, model.classes, pictures(windows, model, folder.with_name(f"{folder.name}.pictures")))


def describe(path: str, folders: Mapping[str, Path], task: Task, score_empty: bool) -> str:
    """Windows, split and classes of the domains in these folders, for captions. Manifests are looked at and nothing
    else, so that what cannot be used is known before anything is run."""
    kinds: dict[str, list[str]] = {}
    for name, folder in folders.items():
        kinds.setdefault(_kind(source(path), folder), []).append(name)
    told = [kind if len(kinds) == 1 else f"{', '.join(names)}: {kind}" for kind, names in kinds.items()]
    which = "; scored where a species is there" if not score_empty else ""
    if task == "singlelabel":
        which = "; windows with exactly one species"
    front_end = "" if isinstance(source(path), Head) else "; the front end stays as it is"
    return f"{'; '.join(told)}{which}; outputs cut to each place's species{front_end}"


def _kind(model: BirdClassifier | Head, folder: Path) -> str:
    """What windows a folder holds, if they are such as the model takes."""
    if isinstance(model, Head):
        manifest = window_table.read_manifest(folder, embeddings.KIND, embeddings.MAKE)
        model.check(embeddings.Embedded(folder, manifest, {}))
        of, seconds = f" as embeddings of {manifest['model']}", float(manifest["window"])
        protocol = str(manifest["windows"]).partition(":")[0]  # what follows is the hash of a file
    else:
        manifest = window_table.read_manifest(folder, prepared.KIND, prepared.MAKE)
        of, seconds = "", manifest["length"] / SAMPLE_RATE
        protocol = manifest["settings"]["protocol"]
        if manifest["length"] != samples_in(model.window):  # labels are of the whole window
            raise NotelaError(
                f"{folder} has windows of {seconds:g} s and the model listens to {model.window:g} s; prepare it with "
                f"--seconds {model.window:g}"
            )
    columns(folder, [Species(*one) for one in manifest["classes"]], model.classes)
    part = f"split {'75 / 25 ' if manifest['split'] in SPLITS else ''}{manifest['split']}"
    return f"windows of {seconds:g} s{of}, protocol {protocol}, {part}"


def columns(folder: Path, species: Sequence[Species], classes: Sequence[Species]) -> dict[str, int]:
    """For each of a set's species, its output of a model with these classes."""
    if not species:
        raise NotelaError(f"{folder} has no labels to score with; prepare it with --annotations or --focal")
    outputs = outputs_of(classes, [one.code for one in species])
    for unknown in (code for code, found in outputs.items() if not found):
        raise NotelaError(
            f"{folder} has the species {unknown!r}, which the model does not know; leave it out (`notela prepare "
            "--species LIST`)"
        )
    return {code: found[0] for code, found in outputs.items()}


def domain(
    data: WindowTable,
    classes: Sequence[Species],
    x: Tensor,
    task: Task,
    *,
    held_out: tuple[int, int] | None = None,
    score_empty: bool = True,
) -> Domain:
    """Windows and their inputs `x` as a domain of a model with these classes, of which the set's own can occur.

    Held out is what the set's own split says, or the recordings of one part out of several, `held_out`=(1, 4), say;
    with `NOTHING`, all windows are adapted on and the same ones are scored. Without `score_empty`, windows that hold no
    species are not scored. Single-label domains hold windows of exactly one species.
    """
    column = columns(data.folder, data.classes, classes)
    own = data.labels()
    labels = torch.zeros(len(data), len(classes), dtype=torch.uint8)
    for i, one in enumerate(data.classes):  # two of a set's species may be one of the model's
        labels[:, column[one.code]] |= torch.from_numpy(own[:, i])
    number = labels.sum(1).numpy()
    if held_out is None:
        parts = [data.rows("adapt"), data.rows("test")]
    elif held_out == NOTHING:
        parts = [data.rows(), data.rows()]
    else:
        part, of = held_out
        mine = np.floor(of * stable_share(stem(name) for name in data.table["recording"])) == part - 1
        parts = [np.flatnonzero(~mine), np.flatnonzero(mine)]
    if task == "singlelabel":
        parts = [rows[number[rows] == 1] for rows in parts]
        labels = labels.argmax(1)
    elif not score_empty:
        parts[1] = parts[1][number[parts[1]] > 0]
    for rows, use in zip(parts, ("to adapt on", "to score"), strict=True):
        if not len(rows):
            raise NotelaError(f"{data.folder} has no windows {use}; it needs more labelled recordings")
    kept = sorted(set(column.values()))
    seen = [[data.table[name][row] for name in ("recording", "start", "species")] for row in range(len(data))]
    identity = hashlib.sha256(json.dumps([seen, Unlabelled(x).fingerprint()]).encode()).hexdigest()[:16]
    return Domain(
        adapt=_part(x, parts[0]),
        test=_part(x, parts[1]),
        test_labels=labels[parts[1]],
        adapt_labels=labels[parts[0]],
        classes=None if len(kept) == len(classes) else kept,
        identity=identity,
    )


def _part(x: Tensor, rows: npt.NDArray[np.int64]) -> Any:
    return x[rows] if x.nbytes <= _IN_MEMORY else Subset(x, rows.tolist())  # type: ignore[arg-type]


def pictures(data: Prepared, classifier: BirdClassifier, cache: Path) -> Tensor:
    """(windows, frames, bands) of a prepared set, in float16, memory-mapped; made on first use and kept in `cache`."""
    made_of = (
        f"{data.manifest['fingerprint']} {fingerprint(classifier.front_end)} {classifier.peak} {classifier.window}"
    )
    path = cache / f"{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.npy"
    if not path.exists():
        with only_one(cache):
            if not path.exists():
                _make_pictures(data, classifier, path)
    return torch.from_numpy(np.load(path, mmap_mode="c"))


@torch.no_grad()
def _make_pictures(data: Prepared, classifier: BirdClassifier, path: Path) -> None:
    length, natural = samples_in(classifier.window), classifier.peak is None
    start = (data.length - length) // 2
    header = {"descr": "<f2", "fortran_order": False}
    with replacing(path) as aside, open(aside, "wb") as file:
        for first in range(0, len(data), BATCH):
            rows = range(first, min(first + BATCH, len(data)))
            sound = torch.from_numpy(np.stack([data.samples(row, natural)[start : start + length] for row in rows]))
            found = classifier.front_end(sound if classifier.peak is None else at_peak(sound, classifier.peak)).half()
            if first == 0:
                np.lib.format.write_array_header_1_0(file, {**header, "shape": (len(data), *found.shape[1:])})
            file.write(found.numpy().tobytes())
