"""Detections in the forms that other programs open, and back again."""

from __future__ import annotations

import csv
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notela.bioacoustics.annotations import Box, read
from notela.bioacoustics.detections import FORMATS, tables_for, write
from notela.bioacoustics.taxonomy import resolve
from notela.errors import NotelaError

BOXES = [
    Box("site 1/a.wav", 0.0, 3.0, "Turdus merula", 0.9876543, 60, 10000, "Eurasian Blackbird"),
    Box("site 1/a.wav", 3.0, 6.0, "Fringilla coelebs", 0.5, 60, 10000, "Common Chaffinch"),
    Box("site 2/b.flac", 1.25, 4.25, "Turdus merula", 0.25, 60, 10000, "Eurasian Blackbird"),
]
DURATIONS = {"site 1/a.wav": 3600.0, "silent.wav": 0.5, "site 2/b.flac": 60.0}


def rows(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def test_csv(tmp_path: Path) -> None:
    assert write(BOXES, tmp_path / "new" / "all.csv") == 3
    assert (tmp_path / "new" / "all.csv").read_text().splitlines()[:2] == [
        "Start (s),End (s),Scientific name,Common name,Confidence,File",
        "0,3,Turdus merula,Eurasian Blackbird,0.987654,site 1/a.wav",
    ]


def test_a_combined_raven_table_counts_on(tmp_path: Path) -> None:
    path = tmp_path / "all.txt"
    species = resolve(box.label for box in BOXES).matched
    assert write(BOXES, path, "raven", species=species, durations=DURATIONS) == 3
    assert path.read_text().splitlines()[0].split("\t") == [
        *("Selection", "View", "Channel", "Begin Time (s)", "End Time (s)", "Low Freq (Hz)", "High Freq (Hz)"),
        *("Common Name", "Species Code", "Confidence", "Begin Path", "File Offset (s)"),
    ]
    table = rows(path, "\t")
    assert [row["Selection"] for row in table] == ["1", "2", "3"]
    assert [float(row["Begin Time (s)"]) for row in table] == [0, 3, 3601.75]
    assert [float(row["End Time (s)"]) for row in table] == [3, 6, 3604.75]
    assert [float(row["File Offset (s)"]) for row in table] == [0, 3, 1.25]
    assert [row["Species Code"] for row in table] == ["eurbla", "comcha", "eurbla"]
    assert {row["View"] for row in table} == {"Spectrogram 1"}
    found = read(path)
    assert [(box.recording, box.start, box.end) for box in found] == [(b.recording, b.start, b.end) for b in BOXES]
    assert resolve(box.label for box in found).matched.keys() == {"eurbla", "comcha"}


def test_a_raven_table_of_one_recording(tmp_path: Path) -> None:
    write(BOXES[2:], tmp_path / "b.txt", "raven")
    (row,) = rows(tmp_path / "b.txt", "\t")
    assert (row["Begin Time (s)"], row["File Offset (s)"], row["Begin Path"]) == ("1.25", "1.25", "site 2/b.flac")
    for durations in (None, {"site 1/a.wav": 1.0}):
        with pytest.raises(NotelaError, match=r"needs the duration of site 2/b\.flac: give durations of all"):
            write(BOXES, tmp_path / "b.txt", "raven", durations=durations)
    assert rows(tmp_path / "b.txt", "\t") == [row]
    assert os.listdir(tmp_path) == ["b.txt"]


def test_audacity(tmp_path: Path) -> None:
    assert write(BOXES[:2], tmp_path / "a.txt", "audacity") == 2
    assert (tmp_path / "a.txt").read_text() == "0\t3\tTurdus merula\n3\t6\tFringilla coelebs\n"
    with pytest.raises(NotelaError, match=r"of one recording, and these are of site 1/a\.wav and site 2/b\.flac"):
        write(BOXES, tmp_path / "a.txt", "audacity")


def test_kaleidoscope(tmp_path: Path) -> None:
    path = tmp_path / "k.csv"
    boxes = [BOXES[0]._replace(recording="/data/site 1/a.wav"), BOXES[2], BOXES[2]._replace(recording="b.flac")]
    write(boxes, path, "kaleidoscope")
    header = "INDIR,FOLDER,IN FILE,OFFSET,DURATION,scientific_name,common_name,confidence"
    assert path.read_text().splitlines()[:2] == [
        header,
        "/data,site 1,a.wav,0,3,Turdus merula,Eurasian Blackbird,0.987654",
    ]
    assert [(row["INDIR"], row["FOLDER"]) for row in rows(path)] == [("/data", "site 1"), ("", "site 2"), ("", "")]
    assert [box.recording for box in read(path)] == [box.recording for box in boxes]


def test_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    species = {"Turdus merula": resolve(["eurbla"]).matched["eurbla"]}
    assert write(BOXES, tmp_path / "x.parquet", "parquet", species=species) == 3
    assert read(tmp_path / "x.parquet") == BOXES
    table = parquet.read_table(tmp_path / "x.parquet").to_pydict()
    assert (table["code"], table["scientific"]) == (
        ["eurbla", None, "eurbla"],
        ["Turdus merula", None, "Turdus merula"],
    )


def test_every_recording_has_a_table_of_its_own() -> None:
    names = ["site 1/a.wav", "site 2/a.wav", "site 2/A.FLAC", "site 2/a.b.wav", "c.wav"]
    for format, ending in FORMATS.items():
        tables = tables_for(names, format)
        assert list(tables) == names
        assert tables["site 1/a.wav"] == f"site 1/a{ending}"
        assert tables["site 2/a.wav"] == f"site 2/a.wav{ending}"  # a disk may not tell a.results.csv from A.results.csv
        assert tables["site 2/A.FLAC"] == f"site 2/A.FLAC{ending}"
        assert tables["site 2/a.b.wav"] == f"site 2/a.b{ending}"
        assert len({path.casefold() for path in tables.values()}) == len(names)
    with pytest.raises(NotelaError, match="format='excel' is not one of"):
        tables_for(names, "excel")


@pytest.mark.parametrize("format", FORMATS)
def test_no_detections(format: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{FORMATS[format]}"
    assert write([], path, format) == 0
    assert read(path) == []


@pytest.mark.parametrize("format", FORMATS)
def test_a_failure_leaves_what_was_there(format: str, tmp_path: Path) -> None:
    def broken() -> Iterator[Box]:
        yield BOXES[0]
        raise KeyError("a bug")

    path = tmp_path / "x"
    path.write_text("before")
    with pytest.raises(KeyError):
        write(broken(), path, format)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["x"]
    with pytest.raises(NotelaError, match="cannot make the folder"):
        write(BOXES, path / "below.csv", format)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_are_not_gathered(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notela.bioacoustics.detections._CHUNK", 10)
    alive: list[int] = []

    class Counted(Box):
        def __new__(cls, *fields: Any) -> Counted:
            alive.append(1)
            return super().__new__(cls, *fields)

        def __del__(self) -> None:
            alive.pop()

    most = 0

    def many() -> Iterator[Box]:
        nonlocal most
        for i in range(500):
            most = max(most, len(alive))
            yield Counted("a.wav", i, i + 1, "x")

    assert write(many(), tmp_path / "x", format) == 500
    assert most <= 25


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp", "Cs"]), max_size=12).map(str.strip)
MICROSECONDS = st.integers(0, 10**10).map(lambda n: n / 10**6)
PATHS = st.lists(st.text("ab c.äß,;'\"", min_size=1, max_size=5), min_size=1, max_size=4).map(
    lambda parts: "/".join("x" + part + "x" for part in parts)
)


@st.composite
def tables(draw: st.DrawFn) -> list[Box]:
    boxes = []
    for recording in draw(st.lists(PATHS, min_size=1, max_size=3, unique=True)):
        for _ in range(draw(st.integers(1, 3))):
            start, end = sorted((draw(MICROSECONDS), draw(MICROSECONDS)))
            low, high, confidence = (draw(st.none() | MICROSECONDS) for _ in range(3))
            boxes.append(Box(recording, start, end, draw(TEXT), confidence, low, high, draw(TEXT)))
    return boxes


def carried(box: Box, format: str) -> Box:
    """What is left of a box in a format."""
    if format in ("raven", "parquet"):
        return box
    box = box._replace(low=None, high=None)
    return box._replace(confidence=None, common="", recording="x") if format == "audacity" else box


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=40, deadline=None)
@given(boxes=tables())
def test_what_is_written_is_read_back(format: str, boxes: list[Box], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tables")
    if format == "audacity":
        boxes = [box._replace(label=box.label.replace('"', "")) for box in boxes if box.recording == boxes[0].recording]
        boxes = [box._replace(label=box.label.strip()) for box in boxes]
    durations = dict.fromkeys((box.recording for box in boxes), 10_000.5)
    path = folder / f"x{FORMATS[format]}"
    assert write(boxes, path, format, durations=durations) == len(boxes)
    assert read(path) == [carried(box, format) for box in boxes]
    if format == "raven":
        begins = dict(zip(durations, itertools.accumulate(durations.values(), initial=0.0), strict=False))
        for row, box in zip(rows(path, "\t"), boxes, strict=True):
            assert float(row["Begin Time (s)"]) == pytest.approx(begins[box.recording] + box.start, abs=1e-6)
            assert (row["Species Code"], row["Common Name"], row["Begin Path"]) == (
                box.label,
                box.common,
                box.recording,
            )


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_name_that_is_no_text(format: str, tmp_path: Path) -> None:
    boxes = [BOXES[0]._replace(recording=os.fsdecode(b"caf\xe9.wav"))]
    assert write(boxes, tmp_path / "x", format) == 1
    assert read(tmp_path / "x")[0].recording == ("x" if format == "audacity" else r"caf\udce9.wav")


def test_tabs_and_line_breaks_do_not_break_a_table(tmp_path: Path) -> None:
    box = Box("a.wav", 1, 2, "a\tb\nc", None, 1, 2, 'say "hi"')
    write([box], tmp_path / "x.txt", "raven")
    assert read(tmp_path / "x.txt") == [box._replace(label="a b c")]
    write([box], tmp_path / "x.csv")
    assert read(tmp_path / "x.csv") == [box._replace(low=None, high=None)]
