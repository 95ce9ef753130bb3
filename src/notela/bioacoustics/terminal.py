"""What commands on recordings show: progress, tables, what could not be used, and how to stop."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from notela.bioacoustics.audio import BadRecording
from notela.bioacoustics.taxonomy import Species, places_of, read_species_list
from notela.errors import NotelaError
from notela.loop import Result

LOG_EVERY = 30.0  # seconds
LISTEN = "Signs are not proof: listen to some of what changed."
STOPPED = "Stopped. What is done is kept; the same command goes on from there."
SHOWN = 20  # species


def check_new_model(to: Path, example: str, source: Path | None = None) -> None:
    """Refuse a place where a model cannot be written, or would be written over the one that it is made from."""
    if to.suffix != ".safetensors":
        raise NotelaError(f"--to {to} must end in .safetensors, such as {example}")
    if source is not None and source.resolve() == to.resolve():
        raise NotelaError(f"--to {to} is the model to be adapted, which would be lost; choose another name")


def classes_of(console: Console, classes: Sequence[Species], species: Path | None, strict: bool) -> list[int] | None:
    """The places of a species list's species among a model's classes; None without a list."""
    if species is None:
        return None
    names = read_species_list(species)
    found, unknown = places_of(classes, names)
    console.print(f"{len(names) - len(unknown)} of {len(names)} names in {species} are in the model", highlight=False)
    tell(console, unknown, "are not")
    if not found:
        raise NotelaError(
            f"none of the species in {species} is in the model; it knows {len(classes)} others, such as "
            f"{classes[0].scientific}"
        )
    if strict and unknown:
        raise NotelaError(
            f"{species} names {unknown[0]!r}, which is not in the model; correct it, or do without --strict"
        )
    return found


def show_counts(
    console: Console,
    threshold: float,
    windows: int,
    counts: Sequence[tuple[Any, ...]],
    columns: Sequence[str] = ("detections",),
) -> None:
    """A table of species, the first ones of `counts`: a `Species` and a number for each column."""
    shown = Table(title=f"Windows with a score of at least {threshold:g}, of {windows:,}")
    for name in ("species", *columns):
        shown.add_column(name, justify="left" if name == "species" else "right")
    for one, *numbers in counts[:SHOWN]:
        shown.add_row(f"{one.scientific} ({one.common})", *(f"{n:,}" for n in numbers))
    console.print(shown)


def show_history(console: Console, to: Path, history: Sequence[dict[str, float]], best: int) -> None:
    """A table of epochs, the best one in bold."""
    shown = Table(title=f"{to}: held-out recordings")
    for name in history[0]:
        shown.add_column(name, justify="right")
    for line in history:
        cells = [f"{v:.0f}" if name == "epoch" else f"{v:.4f}" for name, v in line.items()]
        shown.add_row(*(f"[bold]{cell}[/bold]" if line["epoch"] == best else cell for cell in cells))
    console.print(shown)


def tell(console: Console, names: Sequence[str], what: str) -> None:
    """How many, and the first of them: enough to see what is the matter."""
    if names:
        some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        console.print(f"{len(names)} {what}: {some}", highlight=False, markup=False)


def tell_failures(console: Console, failures: Sequence[BadRecording], path: Path | None = None) -> None:
    """The first recordings that could not be used, and where all are listed."""
    for one in failures[:5]:
        console.print(f"not used: {one}", highlight=False, markup=False)
    if failures:
        listed = "" if path is None else f"; all are in {path}"
        console.print(f"{len(failures)} recordings could not be used{listed}", highlight=False)


def tell_verdict(console: Console, result: Result) -> None:
    """What was decided on the way, and whether it helped as far as anybody can tell without labels."""
    for sentence in (*result.notes, result.verdict.text):
        console.print(sentence, highlight=False, markup=False)


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
