"""`notela prepare`, `train`, `predict`, `adapt`: from options to a finished folder and a table."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from notela.bioacoustics import model, prepared, target_sets
from notela.bioacoustics import predict as predicting
from notela.bioacoustics import prepare as preparing
from notela.bioacoustics import train as training
from notela.bioacoustics.about import read as read_about
from notela.bioacoustics.adapt import adapt_to_recordings
from notela.bioacoustics.annotations import read as read_annotations
from notela.bioacoustics.taxonomy import Species, read_classes
from notela.bioacoustics.terminal import (
    LISTEN,
    bar,
    check_new_model,
    classes_of,
    show_counts,
    show_history,
    stoppable,
    tell,
    tell_failures,
    tell_verdict,
)
from notela.bioacoustics.windows import tiles
from notela.engines.local import Local
from notela.errors import NotelaError


def prepare(
    folder: Path,
    to: Path,
    *,
    focal: bool,
    table: Path | None,
    table_format: str | None,
    columns: Mapping[str, str],
    target: str | None,
    protocol: str,
    seconds: float | None,
    most: int | None,
    storage: str,
    single_label: bool,
    split: str,
    species: Path | None,
    strict: bool,
    about: Path | None,
    about_columns: Mapping[str, str],
    workers: int | None,
) -> None:
    """Recordings → windows."""
    console, start = Console(), time.monotonic()
    boxes = None
    for option, given, needs, there in (
        ("--columns", columns, "--annotations", table or target),
        ("--format", table_format, "--annotations", table or target),
        ("--about-columns", about_columns, "--about", about),
        ("--most", most and protocol != "peaks", "--protocol peaks", None),
    ):
        if given and not there:
            raise NotelaError(f"{option} means nothing without {needs}; add that, or leave it out")
    if target is not None:
        wanted = target_sets.target_set(target)
        table, table_format = table or target_sets.annotations_in(target, folder), table_format or wanted.annotations
    classes: Sequence[str | Species] | None = None if species is None else read_classes(species)
    if target is not None and classes is None:
        classes = target_sets.class_list(target, folder)
    if table is not None:
        boxes = read_annotations(table, table_format, columns or None)
    defaults = preparing.FOCAL if focal else preparing.SOUNDSCAPE
    settings = preparing.Settings(
        protocol=protocol,
        seconds=seconds or (tiles(protocol) or (defaults.seconds,))[0],
        most=defaults.most if most is None else most,
        storage=storage,  # type: ignore[arg-type]  # checked there
        single_label=single_label,
    )
    with stoppable(), bar("recordings") as show:
        report = preparing.prepare(
            folder,
            to,
            Local(workers),
            settings=settings,
            focal=focal,
            boxes=boxes,
            species=classes,
            strict=strict,
            split_by=split,
            about=() if about is None else read_about(about, about_columns),
            progress=show,
        )
    tell_failures(console, report.failures, to / "failures.csv")
    if report.names is not None:
        console.print(report.names.summary(), highlight=False, markup=False)
    if report.listed is not None and (report.listed.unmatched or report.listed.ambiguous):
        console.print(f"Of the species list, {report.listed.summary()}", highlight=False, markup=False)
    tell(console, report.undescribed, f"recordings are not in {about}")
    tell(console, report.missing, "recordings that the annotations name are not there")
    tell(console, report.bare, "recordings have no annotation")
    tell(console, [f"{name} ({n})" for name, n in report.ignored.most_common()], "species are not in the species list")
    if report.beyond:
        console.print(f"{report.beyond} boxes are not within their recording", highlight=False)
    made, took = report.prepared, time.monotonic() - start
    shown = Table(title=f"{to}, protocol {protocol}, split {split}")
    for name in ("", "windows", "recordings", "species"):
        shown.add_column(name, justify="left" if not name else "right")
    for part in ("adapt", "test"):
        rows = made.rows(part)
        codes = {code for row in rows for code in made.table["species"][row]}
        recordings = {made.table["recording"][row] for row in rows}
        shown.add_row(part, f"{len(rows):,}", f"{len(recordings):,}", str(len(codes)))
    console.print(shown)
    left_out = ", ".join(f"{n:,} {reason}" for reason, n in report.dropped.most_common())
    console.print(
        f"{report.recordings:,} recordings ({report.done_before:,} were done before), {report.seconds / 3600:.2f} h of "
        f"sound, {took:.0f} s; windows left out: {left_out or 'none'}",
        highlight=False,
    )


def train(
    data: Path,
    to: Path,
    settings: training.Settings,
    *,
    noise: Path | None,
    start: str | None,
    device: str | None,
) -> None:
    """Windows → source classifier."""
    console, began = Console(), time.monotonic()
    check_new_model(to, "birds.safetensors")
    run_dir = to.with_suffix(".training")
    if to.exists() and not run_dir.exists():
        raise NotelaError(f"{to} is there already, from another training; remove it, or choose another name")
    windows = prepared.read(data)
    background, bad = (None, []) if noise is None else training.read_noise(noise, settings.window)
    tell_failures(console, bad)
    with stoppable(), bar("epoch") as show:

        def told(epoch: int, done: int, total: int, loss: float) -> None:
            show((epoch - 1) * total + done, settings.epochs * total, f"epoch {epoch}, loss {loss:.4f}")

        trained = training.train(
            windows,
            run_dir,
            settings,
            noise=background,
            start=None if start is None else model.load(start),
            device=device,
            progress=told,
        )
    model.save(trained.model, to)
    tell(console, trained.unheard, "species are in no training window; their scores mean nothing")
    show_history(console, to, trained.history, trained.best)
    console.print(
        f"{len(trained.model.classes)} species; epoch {trained.best} was best and is in {to} "
        f"({time.monotonic() - began:.0f} s; {run_dir} can go)",
        highlight=False,
    )


def predict(
    source: str,
    folder: Path,
    to: Path,
    *,
    format: str,
    threshold: float,
    species: Path | None,
    strict: bool,
    device: str | None,
) -> None:
    """Recordings → detections."""
    console, start = Console(), time.monotonic()
    classifier = model.load(source)
    classes = classes_of(console, classifier.classes, species, strict)
    with stoppable(), bar("recordings") as show:

        def told(done: int, total: int, windows: int) -> None:
            show(done, total, f"recordings ({windows:,} windows)")

        found = predicting.predict(
            classifier,
            folder,
            to,
            format=format,
            threshold=threshold,
            classes=classes,
            device=device,
            progress=told,
        )
    tell_failures(console, found.failures, to / "failures.csv")
    named = {one.code: one for one in classifier.classes}
    counts = [(named[code], n) for code, n in found.detections.most_common()]
    show_counts(console, threshold, found.windows, counts)
    where = found.tables[0] if format != "audacity" else to / "recordings"
    console.print(
        f"{found.detections.total():,} detections of {len(found.detections)} species in {found.windows:,} windows of "
        f"{found.recordings:,} recordings ({found.seconds / 3600:.2f} h of sound, {time.monotonic() - start:.0f} s): "
        f"{where}\nScores are not probabilities, and a threshold does not travel from one place to another.",
        highlight=False,
    )


def adapt(
    source: str,
    folder: Path,
    to: Path,
    *,
    method: str,
    species: Path | None,
    epochs: int | None,
    seed: int,
    threshold: float,
    strict: bool,
    device: str | None,
    workers: int | None,
) -> None:
    """A classifier and unlabelled recordings → an adapted classifier."""
    console, start = Console(), time.monotonic()
    check_new_model(to, "adapted.safetensors", Path(source))
    classifier = model.load(source)
    classes = classes_of(console, classifier.classes, species, strict)
    settings = {} if epochs is None else {"epochs": epochs}
    run_dir = to.with_suffix(".run")
    with stoppable(), bar("recordings") as show:
        adapted = adapt_to_recordings(
            classifier,
            folder,
            run_dir,
            Local(workers),
            method=method,
            classes=classes,
            seed=seed,
            device=device,
            progress=show,
            **settings,
        )
    model.save(adapted.model, to, made_by=adapted.result.description)
    tell_failures(console, adapted.report.failures, run_dir / "windows" / "failures.csv")
    kept = range(len(classifier.classes)) if classes is None else classes
    before, after = ((scores >= threshold).sum(0).tolist() for scores in (adapted.before, adapted.after))
    rows = [(classifier.classes[c], *pair) for c, *pair in zip(kept, before, after, strict=True)]
    show_counts(
        console, threshold, len(adapted.before), sorted(rows, key=lambda row: -max(row[1:])), ("before", "after")
    )
    tell_verdict(console, adapted.result)
    console.print(
        f"The adapted classifier is {to} ({time.monotonic() - start:.0f} s; {run_dir} holds windows and history). "
        f"{LISTEN}",
        highlight=False,
    )
