"""What the suites of recordings share: prepared windows become pictures once, and a domain is made of these.

A classifier's front end has neither norm layers nor noise, and with its filters as they were learnt its pictures never
change: they are made once and kept (float16), which leaves the network for every epoch. So in these suites "all" moves
all weights of the network and the head, and not the filters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from notela.bench.suite import Domain
from notela.bioacoustics.model import BirdClassifier, at_peak
from notela.bioacoustics.prepared import Prepared
from notela.bioacoustics.windows import samples_in
from notela.errors import NotelaError
from notela.lock import only_one
from notela.runs import fingerprint, replacing
from notela.task import Task

BATCH = 32


def domain(data: Prepared, classifier: BirdClassifier, task: Task, kept: Sequence[str] | None, cache: Path) -> Domain:
    """The windows of a prepared set as a domain of pictures, its splits for adaptation and scoring. `kept`: codes of
    species that can occur; the set's own without them. Single-label domains hold windows of one species."""
    place = {one.code: i for i, one in enumerate(classifier.classes)}
    codes = [one.code for one in data.classes] if kept is None else kept
    unknown = [code for code in codes if code not in place]
    if unknown:
        raise NotelaError(f"{data.folder} has species that the model does not know, such as {unknown[0]!r}")
    classes = sorted(place[code] for code in codes)
    labels = torch.zeros(len(data), len(place), dtype=torch.uint8)
    for row, mine in enumerate(data.table["species"]):
        labels[row, [place[code] for code in mine]] = 1
    x = pictures(data, classifier, cache)
    parts = [torch.from_numpy(data.rows(split)) for split in ("adapt", "test")]
    if task == "singlelabel":
        parts = [rows[labels[rows].sum(1) == 1] for rows in parts]
        labels = labels.argmax(1)
    (adapt, adapt_labels), (test, test_labels) = ((x[rows], labels[rows]) for rows in parts)
    return Domain(adapt, test, test_labels, adapt_labels, None if len(classes) == len(place) else classes)


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
    length = samples_in(classifier.window)
    start = (data.length - length) // 2
    found = []
    for first in range(0, len(data), BATCH):
        rows = range(first, min(first + BATCH, len(data)))
        sound = torch.from_numpy(np.stack([data.samples(row)[start : start + length] for row in rows]))
        found.append(classifier.front_end(sound if classifier.peak is None else at_peak(sound, classifier.peak)).half())
    with replacing(path) as aside, open(aside, "wb") as file:
        np.save(file, torch.cat(found).numpy())
