"""Annotations: boxes in time, with a label, out of the tables that people and programs write.

Detections are boxes too; `notela.bioacoustics.detections` writes them, and what it writes is read here.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from notela.errors import NotelaError, check_choice


class Box(NamedTuple):
    """A stretch of a recording, in seconds, and what is heard in it. A list of boxes is a table."""

    recording: str
    """As the table says it: a path or a bare name, with or without its ending."""
    start: float
    end: float
    label: str
    """A species as it is written; nothing at all means unidentified."""
    confidence: float | None = None
    low: float | None = None
    """Hz, and so is `high`."""
    high: float | None = None
    common: str = ""


FIELDS = (*Box._fields, "duration", "offset", "folder", "root")
"""What a column can hold. `duration` stands in for `end`; `offset` is the time in the file where `start` counts on over
several files; `folder` and `root` go before `recording`."""

COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "cornell": {
        "recording": ("Filename",),
        "start": ("Start Time (s)",),
        "end": ("End Time (s)",),
        "low": ("Low Freq (Hz)",),
        "high": ("High Freq (Hz)",),
        "label": ("Species eBird Code",),
    },
    "caples": {
        "recording": ("fid",),
        "start": ("start_time_s",),
        "end": ("end_time_s",),
        "label": ("ebird_codes",),
    },
    "csv": {
        "recording": ("File",),
        "start": ("Start (s)",),
        "end": ("End (s)",),
        "label": ("Scientific name",),
        "common": ("Common name",),
        "confidence": ("Confidence",),
    },
    "kaleidoscope": {
        "root": ("INDIR",),
        "folder": ("FOLDER",),
        "recording": ("IN FILE",),
        "start": ("OFFSET",),
        "duration": ("DURATION",),
        "label": ("scientific_name", "MANUAL ID"),
        "common": ("common_name",),
        "confidence": ("confidence",),
    },
    "raven": {
        "recording": ("Begin Path", "Begin File"),
        "start": ("Begin Time (s)",),
        "end": ("End Time (s)",),
        "offset": ("File Offset (s)",),
        "low": ("Low Freq (Hz)",),
        "high": ("High Freq (Hz)",),
        "label": ("Species Code", "Species eBird Code", "Species", "Annotation", "Label", "Common Name"),
        "common": ("Common Name",),
        "confidence": ("Confidence",),
    },
}
"""By format, the columns of each field; of several, the first one that a table has."""

FORMATS = (*COLUMNS, "audacity", "parquet")

_RAVEN = [
    *("Selection", "View", "Channel", "Begin Time (s)", "End Time (s)"),
    *("Low Freq (Hz)", "High Freq (Hz)", "Species"),
]
"""The columns of a Raven table without a header."""
_TABLE_NAME = re.compile(
    r"(\.BirdNET)?(\.Table\.\d+)?(\.selections?(\.table)?|\.results|\.labels|\.audacity)?\.(txt|tsv|csv|parquet)$",
    re.IGNORECASE,
)
_SOUND = re.compile(r"\.(wave?|flac|mp3|ogg|oga|opus|w64|rf64|aiff?|aifc|au|caf|m4a|wma|wac)$", re.IGNORECASE)

_Row = tuple[int, list[str]]
"""A line's number and its fields."""


def read(path: str | Path, format: str | None = None, columns: Mapping[str, str] | None = None) -> list[Box]:
    """The boxes of a table, or of every table below a folder.

    The format is found from the content, or named: see `FORMATS`. A CSV of any other kind is read with a column map:
    `{"recording": "path", "start": "start_s", "end": "end_s", "label": "code"}`; with a format, a column map replaces
    single columns of it. Tables that do not name their recording belong to the one that they are called after.
    """
    path = Path(path)
    if format is not None:
        check_choice("format", format, FORMATS)
    for field in columns or ():
        check_choice("a field in the column map", field, FIELDS)
    if not path.is_dir():
        return _read_file(path, recording_of(path), format, columns)
    boxes = []
    for table in _tables_in(path):
        own_name = (table.parent.relative_to(path) / recording_of(table)).as_posix()
        boxes += _read_file(table, own_name, format, columns)
    return boxes


def recording_of(table: str | Path) -> str:
    """The recording that a table is called after.

    >>> recording_of("annotations/Recording_1_Segment_05.Table.1.selections.txt")
    'Recording_1_Segment_05'
    """
    return _TABLE_NAME.sub("", Path(table).name)


def stem(recording: str | Path) -> str:
    r"""A recording's name without folders (of any system) and without the ending of a sound file.

    >>> stem(r"C:\site 1\2021.06.01.WAV"), stem("SSW_001")
    ('2021.06.01', 'SSW_001')
    """
    return _SOUND.sub("", re.split(r"[/\\]", str(recording))[-1])


def _tables_in(folder: Path) -> list[Path]:
    """Raven's selection tables, or if there are none every text table."""
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in (".txt", ".tsv", ".csv", ".parquet")
        and not file.name.startswith(".")
        and file.is_file()
    )
    found = [file for file in files if ".selection" in file.name.lower()] or files
    if not found:
        raise NotelaError(f"{folder} holds no annotations; expected tables such as *.selections.txt or *.csv")
    return found


def _read_file(path: Path, own_name: str, format: str | None, columns: Mapping[str, str] | None) -> list[Box]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise NotelaError(f"the annotations {path} cannot be read ({error.strerror}); check the name") from error
    if format == "parquet" or content[:4] == b"PAR1":
        return _read_parquet(path, content)
    text = _decode(path, content)
    if not text.strip():
        if path.suffix.lower() in (".txt", ".tsv"):  # a label track or a table without selections
            return []
        raise NotelaError(f"the annotations {path} are empty; expected a header and a row for each box")
    rows = _rows(path, text)
    if format is None and "start" not in (columns or {}):
        format = _recognise(path, rows[0][1])
    if format == "audacity":
        return list(_audacity(path, own_name, rows))
    if format == "raven":
        rows = _one_view([(0, _RAVEN), *rows] if _is_bare_raven(rows[0][1]) else rows)
    known = COLUMNS[format] if format else {}
    wanted = {**known, **{field: (name,) for field, name in (columns or {}).items()}}
    required = {*(columns or ()), *({"recording"} if format in ("cornell", "caples", "kaleidoscope") else ())}
    at = _positions(path, rows[0][1], wanted, sorted(required))
    return list(_boxes(path, own_name, rows, at, several=format == "caples"))


def _decode(path: Path, content: bytes) -> str:
    """Text in UTF-8, in what Excel calls Unicode (UTF-16), or in the Windows code page of Western Europe."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    if b"\0" in content[:4096]:
        raise NotelaError(f"{path} is not a table of annotations: it is not text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def _rows(path: Path, text: str) -> list[_Row]:
    """Lines that hold something, as fields. Tabs divide as Raven and Audacity mean them, without quoting across lines;
    semicolons are what spreadsheets write where numbers have a decimal comma."""
    first = text.lstrip().split("\n", 1)[0]
    if "\t" in first:
        lines = re.split(r"\r\n|\r|\n", text)
        found = [(n, [_unquoted(cell) for cell in line.split("\t")]) for n, line in enumerate(lines, 1)]
    else:
        divider = ";" if first.count(";") > first.count(",") else ","
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=divider)
        try:
            found = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
        except csv.Error as error:
            raise NotelaError(f"{path}, line {reader.line_num}, cannot be read as CSV ({error})") from error
    return [(n, cells) for n, cells in found if any(cells)]


def _unquoted(cell: str) -> str:
    cell = cell.strip()
    return cell[1:-1].replace('""', '"') if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell


def _recognise(path: Path, first: list[str]) -> str:
    """The format, from a table's first line."""
    if _is_bare_raven(first):
        return "raven"
    if len(first) > 1 and _is_number(first[0]) and _is_number(first[1]):
        return "audacity"
    header = {_plain(name) for name in first}
    for format, columns in COLUMNS.items():
        # Raven's label column may have any name; in the others it tells one format from the next.
        telling = [columns[field] for field in ("start", "end", "duration", "label") if field in columns]
        telling = telling[:2] if format == "raven" else telling
        if all(any(_plain(name) in header for name in names) for names in telling):
            return format
    raise NotelaError(
        f"{path} begins with {', '.join(map(repr, first[:8]))}, which is no known table of annotations "
        f"({', '.join(FORMATS)}); say which columns hold recording, start, end and label"
    )


def _is_bare_raven(first: list[str]) -> bool:
    return len(first) >= len(_RAVEN) and first[1].startswith(("Spectrogram", "Waveform")) and _is_number(first[3])


def _one_view(rows: list[_Row]) -> list[_Row]:
    """Raven lists a selection once for each view that shows it; a waveform goes if there is a spectrogram of it."""
    header = [_plain(name) for name in rows[0][1]]
    if "view" not in header:
        return rows
    view = header.index("view")
    same = [i for i, name in enumerate(header) if name in ("selection", "begin time (s)", "end time (s)")]

    def is_wave(cells: list[str]) -> bool:
        return len(cells) > view and cells[view].startswith("Waveform")

    def selection(cells: list[str]) -> tuple[str, ...]:
        return tuple(cells[i] for i in same if i < len(cells))

    shown = {selection(cells) for _, cells in rows if not is_wave(cells)}
    return [(line, cells) for line, cells in rows if not is_wave(cells) or selection(cells) not in shown]


def _boxes(path: Path, own_name: str, rows: list[_Row], at: dict[str, int], several: bool) -> Iterator[Box]:
    """A box for each row; one for each label in it, if it can hold `several`."""
    for line, cells in rows[1:]:
        if cells == rows[0][1]:  # tables put one after the other
            continue
        here = _Cells(path, line, cells, at)
        start = begin = here.number("start")
        if here.text("offset"):
            start = here.number("offset")
        if "end" in at:
            end = here.number("end")
            end = end if start == begin else round(start + (end - begin), 6)
        else:
            end = round(start + here.number("duration"), 6)
        if end < start:
            raise here.reversed(start, end)
        name = here.text("recording") if "recording" in at else own_name
        if not name:
            raise here.error("no recording is named; fill it in, or remove the row")
        recording = "/".join(part for part in (here.text("root"), here.text("folder"), name) if part)
        label = here.text("label")
        for one in (label.split() or [""]) if several else [label]:
            yield Box(
                recording,
                start,
                end,
                one,
                here.number_or_none("confidence"),
                here.number_or_none("low"),
                here.number_or_none("high"),
                here.text("common"),
            )


def _positions(
    path: Path, header: list[str], wanted: Mapping[str, tuple[str, ...]], required: Iterable[str]
) -> dict[str, int]:
    """Where each field is."""
    places = {_plain(name): i for i, name in reversed(list(enumerate(header)))}
    at: dict[str, int] = {}
    for field, names in wanted.items():
        found = next((places[_plain(name)] for name in names if _plain(name) in places), None)
        if found is not None and (field != "common" or found != at.get("label")):
            at[field] = found
    either_end = "duration" if "duration" in wanted else "end"
    for field in ("start", either_end, "label", *required):
        if field not in at:
            looked_for = " or ".join(map(repr, wanted.get(field, ()))) or "none named"
            raise NotelaError(
                f"{path} has no column for {field} ({looked_for}); it has {', '.join(map(repr, header))}: "
                f"say which with a column map, {field}=..."
            )
    return at


class _Cells(NamedTuple):
    """A row's fields by name."""

    path: Path
    line: int
    cells: list[str]
    at: dict[str, int]

    def text(self, field: str) -> str:
        place = self.at.get(field, len(self.cells))
        return self.cells[place] if place < len(self.cells) else ""

    def number(self, field: str) -> float:
        value = _number(self.text(field))
        if value is None:
            raise self.error(f"{field} is {self.text(field)!r}; expected a number, such as 12.5")
        return value

    def number_or_none(self, field: str) -> float | None:
        return None if self.text(field).lower() in ("", "na", "nan", "none", "null") else self.number(field)

    def error(self, what: str) -> NotelaError:
        return NotelaError(f"{self.path}, line {self.line}: {what}")

    def reversed(self, start: float, end: float) -> NotelaError:
        return self.error(f"the end, {end:g} s, is before the start, {start:g} s; exchange or correct them")


def _audacity(path: Path, own_name: str, rows: list[_Row]) -> Iterator[Box]:
    """Start, end, label; after a label made on a spectrogram a line of backslash, low, high, with -1 for neither."""
    box = None
    for line, cells in rows:
        here = _Cells(path, line, cells, {"start": 0, "end": 1, "label": 2, "confidence": 3, "low": 1, "high": 2})
        if cells[0] == "\\":
            if box is None:
                raise here.error("frequencies without a label before them")
            low, high = here.number("low"), here.number("high")
            box = box._replace(low=None if low < 0 else low, high=None if high < 0 else high)
            continue
        if box is not None:
            yield box
        start, end = here.number("start"), here.number("end")
        if end < start:
            raise here.reversed(start, end)
        box = Box(own_name, start, end, here.text("label"), here.number_or_none("confidence"))
    if box is not None:
        yield box


def _read_parquet(path: Path, content: bytes) -> list[Box]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(content))
    except pa.ArrowException as error:
        raise NotelaError(f"{path} cannot be read as Parquet ({error}); write it again") from error
    missing = [field for field in ("recording", "start", "end", "label") if field not in table.column_names]
    if missing:
        raise NotelaError(f"{path} has no column {missing[0]!r}; it has {', '.join(table.column_names)}")
    there = [field for field in Box._fields if field in table.column_names]
    columns = [table[field].to_pylist() for field in there]
    return [Box(**dict(zip(there, values, strict=True))) for values in zip(*columns, strict=True)]


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()


def _number(text: str) -> float | None:
    """A finite number, also with a decimal comma.

    >>> _number("12.5"), _number("12,5"), _number("1,234.5"), _number("nan")
    (12.5, 12.5, None, None)
    """
    try:
        value = float(text)
    except ValueError:
        if not re.fullmatch(r"[+-]?\d+,\d+", text):
            return None
        value = float(text.replace(",", "."))
    return value if math.isfinite(value) and "_" not in text else None


def _is_number(text: str) -> bool:
    return _number(text) is not None
