"""`notela prepare`, `train`, `predict`, `adapt`: from options to a finished folder and a table."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from notela.bioacoustics import model, prepared, target_sets
from notela.bioacoustics import predict as predicting
from notela.bioacoustics import prepare as preparing
from notela.bioacoustics import train as training
from notela.bioacoustics.about import read as read_about
from notela.bioacoustics.adapt import adapt_to_recordings
from notela.bioacoustics.annotations import read as read_annotations
from notela.bioacoustics.audio import BadRecording
from notela.bioacoustics.model import BirdClassifier
from notela.bioacoustics.taxonomy import Species, read_classes, read_species_list
from notela.engines.local import Local
from notela.errors import NotelaError

LOG_EVERY = 30.0  # seconds
STOPPED = "Stopped. What is done is kept; the same command goes on from there."


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
        seconds=defaults.seconds if protocol == "peaks" else 5.0,
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
    _tell_failures(console, report.failures, to / "failures.csv")
    if report.names is not None:
        console.print(report.names.summary(), highlight=False, markup=False)
    tell(console, report.missing, "recordings that the annotations name are not there")
    tell(console, report.bare, "recordings have no annotation")
    tell(console, [f"{name} ({n})" for name, n in report.ignored.most_common()], "species are not in the species list")
    if report.beyond:
        console.print(f"{report.beyond} boxes are not within their recording", highlight=False)
    made, seconds = report.prepared, time.monotonic() - start
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
        f"sound, {seconds:.0f} s; windows left out: {left_out or 'none'}",
        highlight=False,
    )


def train(data: Path, to: Path, settings: training.Settings, *, noise: Path | None, device: str | None) -> None:
    """Windows → source classifier."""
    console, start = Console(), time.monotonic()
    if to.suffix != ".safetensors":
        raise NotelaError(f"--to {to} must end in .safetensors, such as birds.safetensors")
    windows = prepared.read(data)
    background, bad = (None, []) if noise is None else training.read_noise(noise, settings.window)
    _tell_failures(console, bad)
    run_dir = to.with_suffix(".training")
    with stoppable(), bar("epoch") as show:

        def told(epoch: int, done: int, total: int, loss: float) -> None:
            show((epoch - 1) * total + done, settings.epochs * total, f"epoch {epoch}, loss {loss:.4f}")

        trained = training.train(windows, run_dir, settings, noise=background, device=device, progress=told)
    model.save(trained.model, to)
    tell(console, trained.unheard, "species are in no training window; their scores mean nothing")
    shown = Table(title=f"{to}: held-out recordings")
    for name in trained.history[0]:
        shown.add_column(name, justify="right")
    for line in trained.history:
        best = line["epoch"] == trained.best
        cells = [f"{v:.0f}" if name == "epoch" else f"{v:.4f}" for name, v in line.items()]
        shown.add_row(*(f"[bold]{cell}[/bold]" if best else cell for cell in cells))
    console.print(shown)
    console.print(
        f"{len(trained.model.classes)} species; epoch {trained.best} was best and is in {to} "
        f"({time.monotonic() - start:.0f} s; {run_dir} can go)",
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
    classes = _classes(console, classifier, species, strict)
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
    _tell_failures(console, found.failures, to / "failures.csv")
    shown = Table(title=f"Windows with a score of at least {threshold:g}")
    shown.add_column("species")
    shown.add_column("detections", justify="right")
    named = {one.code: one for one in classifier.classes}
    for code, n in found.detections.most_common(20):
        shown.add_row(f"{named[code].scientific} ({named[code].common})", f"{n:,}")
    console.print(shown)
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
    if to.suffix != ".safetensors":
        raise NotelaError(f"--to {to} must end in .safetensors, such as adapted.safetensors")
    classifier = model.load(source)
    classes = _classes(console, classifier, species, strict)
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
    model.save(adapted.model, to)
    _tell_failures(console, adapted.report.failures, run_dir / "windows" / "failures.csv")
    for note in adapted.result.notes:
        console.print(note, highlight=False, markup=False)
    kept = range(len(classifier.classes)) if classes is None else classes
    counts = [(scores >= threshold).sum(0).tolist() for scores in (adapted.before, adapted.after)]
    rows = sorted(zip(*counts, kept, strict=True), key=lambda row: -max(row[:2]))
    shown = Table(title=f"Windows with a score of at least {threshold:g}, of {len(adapted.before):,}")
    for name in ("species", "before", "after"):
        shown.add_column(name, justify="left" if name == "species" else "right")
    for before, after, c in rows[:20]:
        one = classifier.classes[c]
        shown.add_row(f"{one.scientific} ({one.common})", f"{before:,}", f"{after:,}")
    console.print(shown)
    console.print(
        f"The adapted classifier is {to} ({time.monotonic() - start:.0f} s; {run_dir} holds windows and history). "
        "Without labels nobody can say from these counts alone whether it is better: listen to some of what changed.",
        highlight=False,
    )


# ---- their parts


def _classes(console: Console, classifier: BirdClassifier, species: Path | None, strict: bool) -> list[int] | None:
    """The places of a species list's species in the model."""
    if species is None:
        return None
    names = read_species_list(species)
    classes, unknown = predicting.species_in(classifier, names)
    console.print(f"{len(names) - len(unknown)} of {len(names)} names in {species} are in the model", highlight=False)
    tell(console, unknown, "are not")
    if not classes:
        raise NotelaError(
            f"none of the species in {species} is in the model; it knows {len(classifier.classes)} others, such as "
            f"{classifier.classes[0].scientific}"
        )
    if strict and unknown:
        raise NotelaError(
            f"{species} names {unknown[0]!r}, which is not in the model; correct it, or do without --strict"
        )
    return classes


def tell(console: Console, names: list[str], what: str) -> None:
    """How many, and the first of them: enough to see what is the matter."""
    if names:
        some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        console.print(f"{len(names)} {what}: {some}", highlight=False, markup=False)


def _tell_failures(console: Console, failures: list[BadRecording], path: Path | None = None) -> None:
    for one in failures[:5]:
        console.print(f"not used: {one}", highlight=False, markup=False)
    if failures:
        listed = "" if path is None else f"; all are in {path}"
        console.print(f"{len(failures)} recordings could not be used{listed}", highlight=False)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C is a way to end: it says that nothing is lost, without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print(f"\n{STOPPED}", highlight=False)
        raise SystemExit(130) from None


@contextlib.contextmanager
def bar(what: str) -> Iterator[Callable[..., None]]:
    """Progress on stderr, so that what is printed can be piped: a bar on a terminal, elsewhere a line now and then."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task, last = shown.add_task(what, total=None), time.monotonic()

        def show(done: int, total: int | None, text: str = what) -> None:
            nonlocal last
            shown.update(task, completed=done, total=total, description=text)
            if not console.is_terminal and time.monotonic() - last > LOG_EVERY:
                last, whole = time.monotonic(), "" if total is None else f" of {total:,}"
                print(time.strftime("%H:%M:%S"), f"{text}: {done:,}{whole}", file=sys.stderr, flush=True)

        yield show
