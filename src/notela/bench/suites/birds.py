"""The paper's bird experiment on the published recordings: a classifier of yours that was trained on focal recordings,
and soundscapes of places that it has not heard.

    notela data fetch SNE --to data                                  # likewise HSN, POW, UHH, SSW, NES
    notela prepare data/SNE --target SNE --to data/SNE.windows
    notela bench birds --data data --set model=birds.safetensors

High Sierras (HSN) validates. With a head on embeddings, the folders are `data/SNE.embedded` (`notela embed birdnet
data/SNE.windows --to data/SNE.embedded`, of windows of the model's length).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from notela.bench.suite import Suite
from notela.bench.suites import _recordings
from notela.bioacoustics.head import Head
from notela.bioacoustics.target_sets import target_set
from notela.errors import NotelaError, check_choice
from notela.task import Task

SETS = "SNE,POW,UHH,SSW,NES"
VALIDATION = "HSN"
_METHODS = ("source", "adabn", "shot", "tent", "pseudo_label", "dropout_student", "dust", "nrc", "notela")
_MAP = {
    "SNE": (56.2, 47.0, 57.8, 50.0, 62.8, 60.5, 60.4, 59.0, 66.0),
    "POW": (50.9, 38.8, 53.7, 46.6, 57.8, 49.2, 51.2, 53.9, 62.0),
    "UHH": (51.8, 30.7, 57.7, 32.4, 28.0, 62.8, 61.0, 37.8, 65.5),
    "Caples": (48.7, 41.8, 52.1, 43.7, 54.0, 56.0, 54.1, 51.0, 58.5),
    "SSW": (53.0, 49.3, 43.9, 20.2, 38.6, 59.2, 57.2, 60.0, 67.1),
}
_ACCURACY = {
    "SNE": (29.9, 14.2, 23.9, 7.3, 60.2, 62.5, 49.8, 42.8, 73.5),
    "POW": (51.4, 30.9, 15.2, 74.3, 93.1, 44.6, 62.9, 55.2, 90.5),
    "UHH": (24.0, 13.0, 6.8, 29.9, 50.0, 56.1, 44.2, 26.9, 29.1),
    "Caples": (15.4, 10.1, 17.6, 8.0, 33.7, 39.3, 34.8, 27.5, 43.9),
    "SSW": (33.5, 25.5, 21.9, 5.4, 58.7, 49.4, 43.2, 16.7, 63.3),
}
PAPER = {
    task: {place: dict(zip(_METHODS, row, strict=True)) for place, row in table.items()}
    for task, table in (("multilabel", _MAP), ("singlelabel", _ACCURACY))
}
"""The paper's tables, of the sets that are the same today; its Colombia was never released by itself (NES holds it)."""


def suite(
    data: Path = Path("data"),
    model: str = "birds.safetensors",
    sets: str = SETS,
    validation: str = VALIDATION,
    task: str = "multilabel",
) -> Suite:
    """`model` is a file in `data`, an absolute path, or a BirdSet model's hub id; `sets` and `validation` may list
    several target sets."""
    check_choice("task", task, ("multilabel", "singlelabel"))
    which: Task = "singlelabel" if task == "singlelabel" else "multilabel"
    tests, validates = ([target_set(name).name for name in given.split(",") if name] for given in (sets, validation))
    if not tests:
        raise NotelaError(f"sets={sets!r} names no target set; the paper's are {SETS}")
    path = str(data / model) if (data / model).exists() or model.endswith(".safetensors") else model
    folders = {name: _folder(path, data, name) for name in [*validates, *tests]}
    places = {name: partial(_recordings.place, path, folder, which) for name, folder in folders.items()}
    return Suite(
        name="birds",
        task=which,
        metrics=("accuracy",) if which == "singlelabel" else ("map", "cmap", "auroc", "top1"),
        protocol=_recordings.describe(path, folders, which, score_empty=True),
        class_names=tuple(one.scientific for one in _recordings.source(path).classes),
        model=partial(_recordings.network, path),
        validation={name: places[name] for name in validates},
        test={name: places[name] for name in tests},
        published={name: row for name, row in PAPER[which].items() if name in tests},
        published_by="in the paper",
        preset=f"audio-{which}",
    )


def _folder(path: str, data: Path, name: str) -> Path:
    """Where a set's windows, or embeddings, are; or how to get them there."""
    windows = data / f"{name}.windows"
    if isinstance(_recordings.source(path), Head):
        folder = data / f"{name}.embedded"
        make = f"`notela embed MODEL {windows} --to {folder}`"
    else:
        folder = windows
        make = f"`notela prepare {data / name} --target {name} --to {folder}`"
    if not folder.is_dir():
        fetched = target_set(name).record is not None
        get = f"`notela data fetch {name} --to {data}`" if fetched else "from their authors"
        raise NotelaError(f"{folder} does not exist; make it with {make} (recordings: {get})")
    return folder
