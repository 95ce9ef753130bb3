"""What a table says about recordings: where they come from, under which licence, and which belong together."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from notela.bioacoustics.annotations import stem
from notela.errors import NotelaError, check_choice


class About(NamedTuple):
    """One recording; `recording` as the table says it, a path or a bare name."""

    recording: str
    source: str = ""
    licence: str = ""
    group: str = ""
    """Recordings of one group stay in one part of a split."""


def read(path: Path, columns: Mapping[str, str] | None = None) -> list[About]:
    """The rows of a CSV. `columns` says which of its columns hold what, if not `path`, `source`, `licence`, `group`."""
    for name in columns or ():
        check_choice("a field in the column map", name, About._fields)
    wanted = {"recording": "path", "source": "source", "licence": "licence", "group": "group", **(columns or {})}
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            for name in ("recording", *(columns or ())):
                if wanted[name] not in (reader.fieldnames or ()):
                    has = ", ".join(reader.fieldnames or ())
                    raise NotelaError(f"{path} has no column {wanted[name]!r}; it has {has}: name another for {name}")
            return [About(*(row.get(wanted[name]) or "" for name in About._fields)) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise NotelaError(f"{path} cannot be read as a CSV in UTF-8 ({error}); check its name") from error


def match(recordings: Iterable[str], table: Iterable[About]) -> dict[str, About]:
    """What is said about each recording, if anything: the row of its name (without ending) that agrees with most of
    its folders. A row of another folder is taken only if no other recording has that name. Of two rows that agree
    equally, and say different things, nobody knows which is meant."""
    recordings = list(recordings)
    times = Counter(map(stem, recordings))
    rows: dict[str, list[About]] = {}
    for row in table:
        rows.setdefault(stem(row.recording), []).append(row)
    found = {}
    for recording in recordings:
        mine = rows.get(stem(recording), [])
        agree = [_agreeing(_folders(recording), _folders(row.recording)) for row in mine]
        best = [row for row, folders in zip(mine, agree, strict=True) if folders == max(agree)]
        if not best or (max(agree) == 0 and times[stem(recording)] > 1):
            continue
        if len({row[1:] for row in best}) > 1:
            raise NotelaError(
                f"{recording} could be {best[0].recording} or {best[1].recording} of the table about recordings; give "
                "their folders there"
            )
        found[recording] = best[0]
    return found


def _folders(recording: str) -> list[str]:
    """From the innermost to the outermost."""
    return re.split(r"[/\\]", recording)[-2::-1]


def _agreeing(left: list[str], right: list[str]) -> float:
    """How many folders are the same, from the innermost; without folders there is nothing to disagree about."""
    same = [a == b for a, b in zip(left, right, strict=False)]
    return [*same, False].index(False) if same else 0.5
