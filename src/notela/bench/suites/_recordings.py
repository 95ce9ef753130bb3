"""What the suites of recordings share: a set of windows, a model, and a domain that is made of both.

A classifier's front end has neither norm layers nor noise, and with its filters as they were learnt its pictures never
change: they are made once and kept (float16), which leaves the network for every epoch. So in these suites "all" moves
all weights of the network and the head, and not the filters. A head on embeddings takes these as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from notela.bench.suite import Domain
from notela.bioacoustics import embeddings, head, prepared
from notela.bioacoustics import model as models
from notela.bioacoustics.audio import SAMPLE_RATE
from notela.bioacoustics.embeddings import Embedded
from notela.bioacoustics.head import Head
from notela.bioacoustics.model import BirdClassifier, OnPictures, at_peak
from notela.bioacoustics.prepared import Prepared
from notela.bioacoustics.taxonomy import Species, outputs_of
from notela.bioacoustics.window_table import WindowTable
from notela.bioacoustics.windows import samples_in
from notela.errors import NotelaError
from notela.lock import only_one
from notela.runs import fingerprint, replacing
from notela.task import Task

BATCH = 32
_IN_MEMORY = 2**31  # bytes of inputs; more stay on the disk, and batches are read from there


@cache
def source(path: str) -> BirdClassifier | Head:
    """A bird classifier, or a head on embeddings, from its file."""
    return head.load(path) if Path(path).is_file() and head.is_head(path) else models.load(path)


def network(path: str) -> nn.Module:
    """What of it is adapted."""
    model = source(path)
    return model if isinstance(model, Head) else OnPictures(model)


def place(path: str, folder: Path, task: Task, *, held_out: bool = True, score_empty: bool = True) -> Domain:
    """A folder that `notela prepare` or, for a head, `notela embed` wrote, as a domain of the model in a file."""
    model, data = source(path), windows(path, folder)
    if isinstance(data, Prepared):
        assert isinstance(model, BirdClassifier)
        x = pictures(data, model, folder.with_name(f"{folder.name}.pictures"))
    else:
        x = torch.from_numpy(np.array(data.embeddings))
    return domain(data, model.classes, x, task, held_out=held_out, score_empty=score_empty)


def windows(path: str, folder: Path) -> Prepared | Embedded:
    """The set of windows in a folder, of the kind that a model takes."""
    model = source(path)
    if isinstance(model, BirdClassifier):
        return prepared.read(folder)
    heard = embeddings.read(folder)
    model.check(heard)
    return heard


def phrase(path: str, folder: Path, task: Task, score_empty: bool) -> str:
    """Windows, split and classes, for captions."""
    data = windows(path, folder)
    if isinstance(data, Prepared):
        seconds, protocol = data.length / SAMPLE_RATE, data.manifest["settings"]["protocol"]
    else:
        seconds, protocol = data.manifest["window"], data.manifest["windows"]
    of = "" if isinstance(data, Prepared) else f" as embeddings of {data.manifest['model']}"
    which = "" if score_empty else ", scored where they hold a species"
    if task == "singlelabel":
        which = ", those with exactly one species"
    return (
        f"windows of {seconds:g} s{of}, protocol {protocol}{which}; split 75 / 25 {data.manifest['split']}; "
        "outputs cut to each place's species" + ("; the front end stays as it is" if isinstance(data, Prepared) else "")
    )


def domain(
    data: WindowTable,
    classes: Sequence[Species],
    x: Tensor,
    task: Task,
    *,
    held_out: bool = True,
    score_empty: bool = True,
) -> Domain:
    """Windows and their inputs `x` as a domain of a model with these classes, of which the set's own can occur.

    Without `held_out`, all windows are adapted on and the same ones are scored; without `score_empty`, windows that
    hold no species are not scored. Single-label domains hold windows of exactly one species.
    """
    codes = [one.code for one in data.classes]
    if not codes:
        raise NotelaError(f"{data.folder} has no labels to score with; prepare it with --annotations or --focal")
    outputs = outputs_of(classes, codes)
    for unknown in (code for code, found in outputs.items() if not found):
        raise NotelaError(
            f"{data.folder} has the species {unknown!r}, which the model does not know; prepare it with --species and "
            "a list of those that it knows"
        )
    column = {code: found[0] for code, found in outputs.items()}
    labels = torch.zeros(len(data), len(classes), dtype=torch.uint8)
    for row, mine in enumerate(data.table["species"]):
        labels[row, [column[code] for code in mine]] = 1
    number = labels.sum(1).numpy()
    parts = [data.rows("adapt"), data.rows("test")] if held_out else [data.rows(), data.rows()]
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
    return Domain(
        adapt=_part(x, parts[0]),
        test=_part(x, parts[1]),
        test_labels=labels[parts[1]],
        adapt_labels=labels[parts[0]],
        classes=None if len(kept) == len(classes) else kept,
        identity=hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16],
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
    if data.length < length:
        raise NotelaError(
            f"{data.folder} has windows of {data.length / SAMPLE_RATE:g} s and the model listens to "
            f"{classifier.window:g} s; prepare it with --seconds {classifier.window:g}"
        )
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
