"""Detections: boxes into the tables that field biologists' programs open.

Rows are written as they come, aside, and the file takes its name once it is whole. `notela.bioacoustics.annotations`
reads each of these formats.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from notela.bioacoustics.annotations import Box, stem
from notela.bioacoustics.taxonomy import Species
from notela.errors import NotelaError, check_choice
from notela.runs import replacing

CSV = ("Start (s)", "End (s)", "Scientific name", "Common name", "Confidence", "File")
KALEIDOSCOPE = (
    *("INDIR", "FOLDER", "IN FILE", "OFFSET", "DURATION"),
    *("scientific_name", "common_name", "confidence"),
)
RAVEN = (
    *("Selection", "View", "Channel", "Begin Time (s)", "End Time (s)", "Low Freq (Hz)", "High Freq (Hz)"),
    *("Common Name", "Species Code", "Confidence", "Begin Path", "File Offset (s)"),
)

FORMATS = {
    "csv": ".results.csv",
    "raven": ".Table.1.selections.txt",
    "audacity": ".labels.txt",
    "kaleidoscope": ".kaleidoscope.csv",
    "parquet": ".parquet",
}
"""The formats, and what a recording's own table ends with."""

COMBINED = {
    "csv": "detections.csv",
    "raven": "detections.txt",
    "kaleidoscope": "detections.kaleidoscope.csv",
    "parquet": "detections.parquet",
}
"""What a table of many recordings is called; Audacity's labels have no place for a recording's name."""

_CHUNK = 2**16  # rows of Parquet that are in memory at a time
_ODD = "backslashreplace"  # for file names that are no valid text: a day's detections must not be lost to one of them


def write(
    boxes: Iterable[Box],
    path: str | Path,
    format: str = "csv",
    *,
    species: Mapping[str, Species] | None = None,
    durations: Mapping[str, float] | None = None,
    root: str | None = None,
) -> int:
    """Write boxes into one table and return how many there were.

    `species` (`taxonomy.resolve(labels).matched`) says what to write for a label: its scientific name, common name and
    code; other labels are written as they are. A Raven table of many recordings needs `durations`, in seconds, of all
    of them in the order in which Raven will have them open: there, times count on from one to the next. Raven expects
    `low` and `high` of every box. Audacity's labels hold one recording, and neither confidence nor frequencies. `root`:
    the folder of the recordings, which goes before their names where a program opens the sound by them (Raven,
    Kaleidoscope).
    """
    check_choice("format", format, tuple(FORMATS))
    path, species = Path(path), species or {}
    with _new_file(path) as aside:
        if format == "parquet":
            return _write_parquet(boxes, aside, species)
        with open(aside, "w", encoding="utf-8", errors=_ODD, newline="") as file:
            if format == "raven":
                rows = _raven(boxes, species, durations, root)
                return _write_rows(rows, csv.writer(file, "excel-tab", lineterminator="\n"))
            if format == "audacity":
                bare = csv.writer(file, "excel-tab", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None)
                return _write_rows(_audacity(boxes, species), bare) + 1  # there is no header
            rows = _csv(boxes, species) if format == "csv" else _kaleidoscope(boxes, species, root)
            return _write_rows(rows, csv.writer(file, lineterminator="\n"))


def tables_for(recordings: Iterable[str], format: str = "csv") -> dict[str, str]:
    """Where each recording's own table goes: its sub-folder, its name and the format's ending. Recordings that differ
    in their endings alone keep them.

    >>> tables_for(["site 1/20210601.WAV", "a.wav", "a.mp3"], "audacity")  # doctest: +NORMALIZE_WHITESPACE
    {'site 1/20210601.WAV': 'site 1/20210601.labels.txt', 'a.wav': 'a.wav.labels.txt', 'a.mp3': 'a.mp3.labels.txt'}
    """
    check_choice("format", format, tuple(FORMATS))
    folders = {name: name.rpartition("/")[0] for name in recordings}
    plain = {name: str(PurePosixPath(folder, stem(name))) for name, folder in folders.items()}
    times = Counter(path.casefold() for path in plain.values())  # some disks do not tell capitals from small letters
    return {name: (path if times[path.casefold()] == 1 else name) + FORMATS[format] for name, path in plain.items()}


def _write_rows(rows: Iterable[Sequence[object]], writer: Any) -> int:
    """Write a header and rows, and return how many rows there were."""
    count = -1
    for count, row in enumerate(rows):  # noqa: B007
        writer.writerow(row)
    return count


def _csv(boxes: Iterable[Box], species: Mapping[str, Species]) -> Iterator[Sequence[object]]:
    yield CSV
    for box in boxes:
        _, scientific, common = _names(box, species)
        yield _digits(box.start), _digits(box.end), scientific, common, _digits(box.confidence), box.recording


def _kaleidoscope(boxes: Iterable[Box], species: Mapping[str, Species], root: str | None) -> Iterator[Sequence[object]]:
    yield KALEIDOSCOPE
    for box in boxes:
        _, scientific, common = _names(box, species)
        above, _, name = box.recording.rpartition("/")
        outer, folder = (root, above) if root else above.rpartition("/")[::2]
        offset, duration = _digits(box.start), _digits(box.end - box.start)
        yield outer, folder, name, offset, duration, scientific, common, _digits(box.confidence)


def _raven(
    boxes: Iterable[Box], species: Mapping[str, Species], durations: Mapping[str, float] | None, root: str | None
) -> Iterator[Sequence[object]]:
    """Begin and end count on over the recordings, and the offset is the time in the file."""
    yield RAVEN
    begins: dict[str, float] = {}
    if durations is not None:
        begins = dict(zip(durations, itertools.accumulate(durations.values(), initial=0.0), strict=False))
    for number, box in enumerate(boxes, 1):
        if durations is None and not begins:
            begins[box.recording] = 0.0
        if box.recording not in begins:
            raise NotelaError(
                f"the Raven table needs the duration of {box.recording}: "
                "give durations of all recordings, or write a table for each"
            )
        begin = begins[box.recording]
        code, _, common = _names(box, species)
        yield (
            number,
            "Spectrogram 1",
            1,
            _digits(begin + box.start),
            _digits(begin + box.end),
            _digits(box.low),
            _digits(box.high),
            _one_line(common),
            _one_line(code),
            _digits(box.confidence),
            _one_line(f"{root}/{box.recording}" if root else box.recording),
            _digits(box.start),
        )


def _audacity(boxes: Iterable[Box], species: Mapping[str, Species]) -> Iterator[Sequence[object]]:
    recording = None
    for box in boxes:
        if recording is not None and box.recording != recording:
            raise NotelaError(
                f"Audacity's labels are of one recording, and these are of {recording} and {box.recording}; "
                "write a table for each"
            )
        recording = box.recording
        _, scientific, _ = _names(box, species)
        yield _digits(box.start), _digits(box.end), _one_line(scientific)


def _write_parquet(boxes: Iterable[Box], path: Path, species: Mapping[str, Species]) -> int:
    """The fields of a box as columns, with code and scientific name of labels that are known species."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = dict.fromkeys(("start", "end", "confidence", "low", "high"), pa.float64())
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in (*Box._fields, "code", "scientific")])
    boxes, count = iter(boxes), 0
    with pq.ParquetWriter(path, schema) as writer:
        while rows := list(itertools.islice(boxes, _CHUNK)):
            columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
            columns[0] = [name.encode(errors=_ODD) for name in columns[0]]
            known = [species.get(box.label) for box in rows]
            columns.append([None if one is None else one.code for one in known])
            columns.append([None if one is None else one.scientific for one in known])
            writer.write_table(pa.table(columns, schema))
            count += len(rows)
    return count


def _names(box: Box, species: Mapping[str, Species]) -> tuple[str, str, str]:
    """Code, scientific name and common name; the label, where it is no known species."""
    known = species.get(box.label)
    return (box.label, box.label, box.common) if known is None else (known.code, known.scientific, known.common)


def _digits(number: float | None) -> str:
    """Millionths are enough, and more would not be read.

    >>> _digits(3.0), _digits(0.1 + 0.2), _digits(None)
    ('3', '0.3', '')
    """
    return "" if number is None else f"{number:.6f}".rstrip("0").rstrip(".")


def _one_line(text: str) -> str:
    """Text for a table that has no way to write a tab or a line break in a field."""
    return re.sub(r"[\t\r\n]+", " ", text)


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """A place to write aside, which takes the name `path` at the end and is gone if there was an error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotelaError(f"cannot make the folder {path.parent} ({error}); choose another one") from error
    with replacing(path) as aside:
        try:
            yield aside
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
