"""`notela data fetch`, `verify`, `xeno-canto`: recordings of others, from where they are published into a folder."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from notela.bioacoustics import target_sets, xeno_canto
from notela.bioacoustics.taxonomy import read_species_list, resolve
from notela.bioacoustics.terminal import bar, stoppable, tell
from notela.bioacoustics.xeno_canto import Fetched, Recording, XenoCanto
from notela.errors import NotelaError
from notela.lock import only_one

QUALITIES = ("A", "B", "C", "D", "E")


def fetch(name: str, to: Path) -> None:
    """A target set from its public record."""
    console = Console()
    with warnings.catch_warnings(record=True) as noted, stoppable(), _files() as show:
        warnings.simplefilter("always")
        with only_one(to / target_sets.target_set(name).name):
            folder = target_sets.fetch(name, to, progress=show, base=target_sets.ZENODO)
            report = target_sets.verify(name, folder, progress=show)
    for note in noted:  # sentences for the user, not lines of our source
        console.print(str(note.message), highlight=False, markup=False)
    console.print(str(report), highlight=False, markup=False)


def verify(name: str, folder: Path) -> None:
    """A folder that is there, compared with what was published; ends with 1 where they differ."""
    with stoppable(), _files() as show:
        report = target_sets.verify(name, folder, progress=show)
    Console().print(str(report), highlight=False, markup=False)
    if not report.same:
        raise SystemExit(1)


def fetch_focal(
    names: Sequence[str],
    to: Path,
    *,
    species: Path | None,
    most: int | None,
    quality: str | None,
    length: str | None,
    country: str | None,
    licence: str | None,
) -> None:
    """Focal recordings of species from Xeno-canto."""
    console = Console()
    searches = _searches(quality, length, country, licence)
    wanted = _wanted(console, [*names, *(read_species_list(species) if species else ())])
    client = XenoCanto(site=xeno_canto.SITE)
    fetched: dict[str, Fetched] = {}
    failures: list[str] = []
    with stoppable(), bar("recordings") as show:
        for number, (one, synonyms) in enumerate(wanted.items(), 1):
            text = f"{one}, species {number} of {len(wanted)}"
            show(0, None, text)
            found = _search(client, (one, *synonyms), searches, most)
            told = _counted(show, len(found), text)
            if found:
                with only_one(to):
                    fetched[one] = client.fetch(found, to, progress=told)
                failures += [f"XC{id} ({one}): {reason}" for id, reason in fetched[one].failed.items()]
    nothing = [one for one in wanted if one not in fetched]
    if not fetched:
        some = ", ".join(nothing[:5]) + (", ..." if len(nothing) > 5 else "")
        raise NotelaError(f"Xeno-canto has no such recordings of {some}; ask for others, or with fewer conditions")
    tell(console, nothing, "species have no such recordings at Xeno-canto")
    _tell_fetched(console, fetched, failures, to)


# ---- what to ask for


def _searches(
    quality: str | None, length: str | None, country: str | None, licence: str | None
) -> list[dict[str, str]]:
    """Tags of the searches for a species: one a quality, as the API takes one; the first named comes first."""
    if length is not None and not re.fullmatch(r"[<>]?\d+|\d+-\d+", length):
        raise NotelaError(f"--length {length!r} is not a length in seconds; write 5-60, <60 or >5")
    given = {"len": length, "cnt": country, "lic": licence}
    tags = {tag: value for tag, value in given.items() if value is not None}
    letters = [] if quality is None else [letter.strip().upper() for letter in quality.split(",")]
    for letter in letters:
        if letter not in QUALITIES:
            raise NotelaError(f"--quality {quality!r} names {letter!r}; the qualities are {', '.join(QUALITIES)}")
    return [{"q": letter, **tags} for letter in dict.fromkeys(letters)] or [tags]


def _wanted(console: Console, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """By scientific name, the names as written: Xeno-canto follows another list, and may know a species by that."""
    if not names:
        raise NotelaError("no species is named; write some, such as 'Turdus merula', or --species LIST")
    resolved = resolve(names)
    console.print(resolved.summary(), highlight=False, markup=False)
    if not resolved.matched:
        raise NotelaError("none of the names is that of a species; write scientific names, such as 'Turdus merula'")
    wanted: dict[str, tuple[str, ...]] = {}
    for written, one in resolved.matched.items():
        synonym = written.replace("_", " ")
        another = (synonym,) if len(synonym.split()) == 2 and synonym != one.scientific else ()
        wanted[one.scientific] = wanted.get(one.scientific, ()) + another
    return wanted


def _search(
    client: XenoCanto, names: Sequence[str], searches: Sequence[dict[str, str]], most: int | None
) -> list[Recording]:
    """What is found under the first name that finds anything."""
    for name in names:
        pages = (client.search(xeno_canto.query(name, **tags)) for tags in searches)
        # a tag may match the beginning of a word: Anas that of Anastomus
        exact = (one for one in chain.from_iterable(pages) if one.species.casefold() == name.casefold())
        found = list(islice(exact, most))
        if found:
            return found
    return []


# ---- what is told


def _counted(show: Callable[..., None], total: int, text: str) -> Callable[[Recording, Fetched], None]:
    return lambda _, so_far: show(so_far.new + so_far.there + len(so_far.failed), total, text)


def _tell_fetched(console: Console, fetched: dict[str, Fetched], failures: list[str], to: Path) -> None:
    shown = Table(title=f"{to}: recordings from Xeno-canto")
    for name in ("species", "new", "there before", "failed"):
        shown.add_column(name, justify="left" if name == "species" else "right")
    for one, so_far in fetched.items():
        shown.add_row(one, f"{so_far.new:,}", f"{so_far.there:,}", f"{len(so_far.failed):,}")
    console.print(shown)
    for line in failures[:5]:
        console.print(f"not fetched: {line}", highlight=False, markup=False)
    if failures:
        where = to / "failures.csv"
        console.print(f"{len(failures)} recordings could not be fetched; all are in {where}", highlight=False)
    if not any(so_far.new + so_far.there for so_far in fetched.values()):
        raise NotelaError(f"none of the {len(failures)} recordings could be fetched (first: {failures[0]})")
    manifest = to / "manifest.csv"
    console.print(
        f"Licences and recordists are in {manifest}. Windows of them: notela prepare {to} --to focal --focal "
        f"--about {manifest} --about-columns recording=file,licence=licence,group=id",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


@contextlib.contextmanager
def _files() -> Iterator[Callable[[str, int, int | None], None]]:
    """One line: the file in work. Until its first bytes are counted, the bar only shows that something happens."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        tasks: dict[str, TaskID] = {}

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                for earlier in tasks.values():
                    shown.update(earlier, visible=False)
                tasks[name] = shown.add_task(name, total=None)
            if done:
                shown.update(tasks[name], completed=done, total=total)

        yield show
