"""The paper's bird experiment in a world that needs no download: soundscapes of seven places (see
`notela.bioacoustics.aviary`), and a small network that was trained on focal recordings of the same species.

    notela bench aviary                             # one validation place, six test places
    notela bench aviary --data data/aviary          # recordings and windows there, not in the user's cache

Recordings, windows and pictures are made on first use. Made with `python -m notela.bench.suites.aviary FOLDER`: the
source classifier, `aviary.safetensors`.
"""

from __future__ import annotations

import os
import sys
from functools import cache, partial
from pathlib import Path

from torch import nn

from notela.bench.suite import Domain, Suite
from notela.bench.suites._recordings import domain, pictures
from notela.bioacoustics import aviary, train
from notela.bioacoustics import model as models
from notela.bioacoustics.annotations import read
from notela.bioacoustics.model import BirdClassifier, OnPictures
from notela.bioacoustics.prepare import prepare
from notela.bioacoustics.prepared import Prepared
from notela.engines import Engine
from notela.engines.here import Here
from notela.engines.local import Local
from notela.lock import only_one
from notela.task import Task

WEIGHTS = Path(__file__).with_name("aviary.safetensors")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "notela" / "aviary"
RECORDINGS, MINUTES = 120, 1.0  # of each place; twice as many where settings are chosen
BATCH = 16  # places are small: batches of 64 would give only about a hundred steps in ten epochs
FOCAL = 30  # recordings of most species that the source was trained on
HELD_OUT_SEED, HELD_OUT = 1, 4  # focal recordings that it was not trained on


def suite(data: Path = CACHE) -> Suite:
    """`data`: the folder for recordings and windows."""
    return make("aviary", "multilabel", ("map", "cmap", "auroc", "top1"), data)


def make(name: str, task: Task, metrics: tuple[str, ...], data: Path) -> Suite:
    """The suite for a task."""
    places = {code: partial(_place, data, code, task) for code in aviary.DOMAINS}
    which = "windows with exactly one species" if task == "singlelabel" else "windows with at least one species"
    return Suite(
        name=name,
        task=task,
        metrics=metrics,
        protocol=f"{RECORDINGS} made-up soundscapes of {MINUTES:g} min a place, twice as many of {aviary.VALIDATION}; "
        f"5-s {which}, protocol peaks, split 75 / 25 by recording; outputs cut to each place's species; the front end "
        "stays as it is" + ("" if task == "singlelabel" else "; cmAP over species with at least 5 positives"),
        class_names=tuple(one.scientific for one in aviary.species()),
        model=network,
        validation={code: make for code, make in places.items() if code == aviary.VALIDATION},
        test={code: make for code, make in places.items() if code != aviary.VALIDATION},
        source=partial(_focal, data, task),
        overrides={"batch_size": BATCH},
        preset=f"audio-{task}",
    )


@cache
def classifier() -> BirdClassifier:
    """The source classifier, trained."""
    return models.load(WEIGHTS)


def network() -> nn.Module:
    """The source classifier behind its front end."""
    return OnPictures(classifier())


def _place(data: Path, code: str, task: Task) -> Domain:
    recordings = RECORDINGS * (2 if code == aviary.VALIDATION else 1)
    return on_pictures(soundscapes(data, code, recordings), data, task)


def on_pictures(windows: Prepared, data: Path, task: Task) -> Domain:
    """Windows as a domain of the source classifier; `data` keeps their pictures."""
    return domain(windows, classifier().classes, pictures(windows, classifier(), data / "pictures"), task)


def soundscapes(
    data: Path,
    code: str,
    recordings: int = RECORDINGS,
    minutes: float = MINUTES,
    engine: Engine | None = None,
) -> Prepared:
    """The windows of a place; made, and made ready, if they are not there."""
    engine = engine or Here()
    with only_one(data / f"{code}.making"):
        folder = aviary.write_domain(data, code, recordings, minutes, engine=engine)
        birds = [aviary.species()[number] for number in sorted(aviary.DOMAINS[code].birds())]
        boxes = read(folder / "annotations.csv", "cornell")
        return prepare(folder, data / f"{code}.windows", engine, boxes=boxes, species=birds).prepared


def _focal(data: Path, task: Task) -> Domain:
    """Focal recordings that the source has not seen."""
    with only_one(data / "focal.making"):
        folder = aviary.write_focal(data / "held-out", HELD_OUT, HELD_OUT_SEED)
        ready = prepare(folder, data / "held-out.windows", Here(), focal=True, species=aviary.species())
    return on_pictures(ready.prepared, data, task)


def train_source(data: Path) -> BirdClassifier:
    """Trained on focal recordings alone; takes half an hour on two cores."""
    folder = aviary.write_focal(data / "source", FOCAL, engine=Local())
    ready = prepare(folder, data / "source.windows", Local(), focal=True, species=aviary.species())

    def told(epoch: int, done: int, total: int, loss: float) -> None:
        if done == total:
            print(f"epoch {epoch}, loss {loss:.4f}", flush=True)

    trained = train.train(ready.prepared, data / "source.training", train.Settings(epochs=24), progress=told)
    print(trained.history[trained.best - 1])
    return trained.model


if __name__ == "__main__":
    models.save(train_source(Path(sys.argv[1])), WEIGHTS)
