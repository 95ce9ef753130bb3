"""`notela prepare`, `train`, `predict`, `adapt`, `data fetch`: from options to a finished folder and a table."""

from __future__ import annotations

import contextlib
import csv
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from notela.bioacoustics import model, prepared, target_sets
from notela.bioacoustics import predict as predicting
from notela.bioacoustics import prepare as preparing
from notela.bioacoustics import train as training
from notela.bioacoustics.adapt import adapt_to_recordings
from notela.bioacoustics.annotations import read as read_annotations
from notela.bioacoustics.annotations import stem
from notela.bioacoustics.audio import BadRecording
from notela.bioacoustics.model import BirdClassifier
from notela.bioacoustics.taxonomy import read_species_list, resolve
from notela.engines.local import Local
from notela.errors import NotelaError

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
    with _stoppable(), _bar("recordings") as show:
        report = preparing.prepare(
            folder,
            to,
            Local(workers),
            settings=settings,
            focal=focal,
            boxes=boxes,
            species=None if species is None else read_species_list(species),
            strict=strict,
            split_by=split,
            about=None if about is None else _about(about, about_columns),
            progress=show,
        )
    _tell_failures(console, report.failures, to / "failures.csv")
    if report.names is not None:
        console.print(report.names.summary(), highlight=False, markup=False)
    _tell(console, report.missing, "recordings that the annotations name are not there")
    _tell(console, report.bare, "recordings have no annotation")
    _tell(console, [f"{name} ({n})" for name, n in report.ignored.most_common()], "species are not in the species list")
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


def train(data: Path, to: Path, settings: training.Settings, noise: Path | None) -> None:
    """Windows → source classifier."""
    console, start = Console(), time.monotonic()
    if to.suffix != ".safetensors":
        raise NotelaError(f"--to {to} must end in .safetensors, such as birds.safetensors")
    windows = prepared.read(data)
    background = None if noise is None else training.read_noise(noise, settings.window)
    run_dir = to.with_suffix(".training")
    with _stoppable(), _bar("epoch") as show:

        def told(epoch: int, done: int, total: int, loss: float) -> None:
            show((epoch - 1) * total + done, settings.epochs * total, f"epoch {epoch}, loss {loss:.4f}")

        trained = training.train(windows, run_dir, settings, noise=background, progress=told)
    model.save(trained.model, to)
    _tell(console, trained.unheard, "species are in no training window; their scores mean nothing")
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


def predict(source: str, folder: Path, to: Path, *, format: str, threshold: float, species: Path | None) -> None:
    """Recordings → detections."""
    console, start = Console(), time.monotonic()
    classifier = model.load(source)
    classes = _classes(console, classifier, species)
    with _stoppable(), _bar("recordings") as show:
        found = predicting.predict(
            classifier, folder, to, format=format, threshold=threshold, classes=classes, progress=show
        )
    _tell_failures(console, found.failures, to / "failures.csv")
    shown = Table(title=f"Windows with a score of at least {threshold:g}")
    shown.add_column("species")
    shown.add_column("detections", justify="right")
    named = {one.code: one for one in classifier.classes}
    for code, n in found.detections.most_common(20):
        shown.add_row(f"{named[code].scientific} ({named[code].common})", f"{n:,}")
    console.print(shown)
    where = found.tables[0] if found.tables else to
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
    workers: int | None,
) -> None:
    """A classifier and unlabelled recordings → an adapted classifier."""
    console, start = Console(), time.monotonic()
    if to.suffix != ".safetensors":
        raise NotelaError(f"--to {to} must end in .safetensors, such as adapted.safetensors")
    classifier = model.load(source)
    classes = _classes(console, classifier, species)
    settings = {} if epochs is None else {"epochs": epochs}
    run_dir = to.with_suffix(".run")
    with _stoppable(), _bar("recordings") as show:
        adapted = adapt_to_recordings(
            classifier,
            folder,
            run_dir,
            Local(workers),
            method=method,
            classes=classes,
            seed=seed,
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


def fetch(name: str, to: Path) -> None:
    """A target set from its public record."""
    console = Console()
    with _stoppable(), _files() as show:
        folder = target_sets.fetch(name, to, progress=show)
    console.print(str(target_sets.verify(name, folder)), highlight=False, markup=False)


# ---- their parts


def _classes(console: Console, classifier: BirdClassifier, species: Path | None) -> list[int] | None:
    """The places of a species list's species in the model."""
    if species is None:
        return None
    resolved = resolve(read_species_list(species))
    console.print(resolved.summary(), highlight=False, markup=False)
    classes, unknown = predicting.species_in(classifier, resolved.matched.values())
    _tell(console, [one.scientific for one in unknown], "species of the list are not in the model")
    if not classes:
        raise NotelaError(
            f"none of the species in {species} is in the model; it knows {len(classifier.classes)} others"
        )
    return classes


def _about(path: Path, columns: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """By a recording's stem, what a table says of it: source, licence, group."""
    wanted = {"recording": "path", "licence": "licence", "source": "source", "group": "group", **columns}
    found = {}
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            for name in ("recording", *columns):
                if wanted[name] not in (reader.fieldnames or ()):
                    raise NotelaError(
                        f"{path} has no column {wanted[name]!r}; it has {', '.join(reader.fieldnames or ())}"
                    )
            for row in reader:
                found[stem(row[wanted["recording"]])] = {
                    name: row.get(wanted[name]) or "" for name in ("source", "licence", "group")
                }
    except OSError as error:
        raise NotelaError(f"{path} cannot be read ({error.strerror}); check its name") from error
    return found


def _tell(console: Console, names: list[str], what: str) -> None:
    if names:
        some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        console.print(f"{len(names)} {what}: {some}", highlight=False, markup=False)


def _tell_failures(console: Console, failures: list[BadRecording], path: Path) -> None:
    for one in failures[:5]:
        console.print(f"not used: {one}", highlight=False, markup=False)
    if failures:
        console.print(f"{len(failures)} recordings could not be used; all are in {path}", highlight=False)


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print(f"\n{STOPPED}", highlight=False)
        raise SystemExit(130) from None


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[..., None]]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, total: int, text: str = what) -> None:
            bar.update(task, completed=done, total=total, description=text)

        yield show


@contextlib.contextmanager
def _files() -> Iterator[Callable[[str, int, int | None], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, object] = {}

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done, total=total)  # type: ignore[arg-type]

        yield show
