"""The target sets: the table, fetching from a server that plays Zenodo, and checking folders."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from local_server import Answer, Server, serving
from notela.bioacoustics.download import Patience
from notela.bioacoustics.target_sets import TARGET_SETS, class_list, fetch, target_set, verify
from notela.errors import NotelaError

HEADER = ["Filename", "Start Time (s)", "End Time (s)", "Low Freq (Hz)", "High Freq (Hz)", "Species eBird Code"]
QUICK = Patience(attempts=2, sleep=lambda seconds: None)


def as_csv(rows: list[list[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def as_zip(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as opened:
        for name, data in files.items():
            opened.writestr(name, data)
    return content.getvalue()


SOUND = {f"TST_{i:03d}.flac": bytes([i]) * 1000 for i in range(3)}
BOXES = [
    ["TST_000.flac", 0.5, 2.0, 100, 9000, "amerob"],
    ["TST_000.flac", 3.0, 4.0, 100, 9000, "bkcchi"],
    ["TST_001.flac", 3.0, 4.0, 100, 9000, "????"],
    ["TST_001.flac", 5.0, 6.0, 100, 9000, "amerob"],
]
FILES = {
    "annotations.csv": as_csv([HEADER, *BOXES]),
    "species.csv": as_csv([[HEADER[-1], "Scientific Name", "Common Name"], ["amerob", "T", "R"], ["bkcchi", "P", "C"]]),
    "soundscape_data.zip": as_zip(SOUND),
}
MD5 = {name: hashlib.md5(data).hexdigest() for name, data in FILES.items()}
RECORD = 12345


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small set among the real ones; the MD5 of its list of species is not known, as with most."""
    one = replace(
        TARGET_SETS["SSW"],
        name="TST",
        record=RECORD,
        files={**MD5, "species.csv": None},
        recordings=3,
        boxes=3,
        species=(2,),
    )
    monkeypatch.setitem(TARGET_SETS, "TST", one)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def zenodo() -> Iterator[Server]:
    with serving() as server:
        publish(server, FILES)
        yield server


def publish(server: Server, files: dict[str, bytes], listed: dict[str, bytes] | None = None) -> None:
    """The files of a record, and what the API says of them."""
    for name, data in files.items():
        server.put_file(f"/records/{RECORD}/files/{name}", data)
    entries = [
        {"key": name, "size": len(data), "checksum": f"md5:{hashlib.md5(data).hexdigest()}"}
        for name, data in (files if listed is None else listed).items()
    ]
    answer = {"metadata": {"license": {"id": "cc-by-4.0"}}, "files": entries}
    server.put(f"/api/records/{RECORD}", Answer(json.dumps(answer).encode()))


def files_asked(server: Server) -> list[str]:
    return [match[1] for path in server.paths if (match := re.search(r"/files/(.*)\?download=1$", path))]


# ---- the table


def test_the_table_is_complete() -> None:
    names = [name for name in TARGET_SETS if name != "TST"]
    assert names == ["SSW", "SNE", "UHH", "POW", "HSN", "NES", "PER", "Caples"]
    sets = [TARGET_SETS[name] for name in names[:-1]]
    assert [one.record for one in sets] == [7079380, 7050014, 7078499, 4656848, 7525805, 7525349, 7079124]
    known = [md5 for one in sets for md5 in one.files.values() if md5]
    assert all(re.fullmatch("[0-9a-f]{32}", md5) for md5 in known)
    assert len(set(known)) == len(known)
    assert all(md5 for one in sets for file, md5 in one.files.items() if file.endswith(".zip"))
    assert (
        TARGET_SETS["SSW"].url("annotations.csv")
        == "https://zenodo.org/records/7079380/files/annotations.csv?download=1"
    )


def test_names() -> None:
    assert target_set("ssw") is TARGET_SETS["SSW"]
    assert target_set("caples") is TARGET_SETS["Caples"]
    with pytest.raises(
        NotelaError, match="'SWS' is not a target set; known are SSW, SNE, UHH, POW, HSN, NES, PER, Caples"
    ):
        target_set("SWS")


def test_caples_needs_a_path(tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match="Caples has no public record to fetch; .* give the path of its folder"):
        fetch("Caples", tmp_path)


# ---- fetching


def test_a_set_is_fetched_taken_apart_and_right(zenodo: Server, tmp_path: Path) -> None:
    seen: dict[str, tuple[int, int | None]] = {}
    folder = fetch(
        "tst", tmp_path, base=zenodo.url, progress=lambda what, done, total: seen.update({what: (done, total)})
    )
    assert folder == tmp_path / "TST"
    assert {path.name: path.read_bytes() for path in (folder / "soundscape_data").iterdir()} == SOUND
    assert json.loads((folder / "record.json").read_text())["metadata"]["license"]["id"] == "cc-by-4.0"
    assert seen["TST: soundscape_data.zip"] == (len(FILES["soundscape_data.zip"]),) * 2
    assert seen["TST: taking soundscape_data.zip apart"] == (3000, 3000)
    report = verify("TST", folder)
    assert report.same, report
    assert class_list("TST", folder) == ("amerob", "bkcchi")


def test_again_fetches_nothing_even_without_the_archive(zenodo: Server, tmp_path: Path) -> None:
    folder = fetch("TST", tmp_path, base=zenodo.url)
    (folder / "soundscape_data.zip").unlink()
    zenodo.asked.clear()
    assert fetch("TST", tmp_path, base=zenodo.url) == folder
    assert files_asked(zenodo) == []
    (folder / "soundscape_data" / "TST_001.flac").write_bytes(b"short")
    fetch("TST", tmp_path, base=zenodo.url)
    assert files_asked(zenodo) == ["soundscape_data.zip"]
    assert (folder / "soundscape_data" / "TST_001.flac").read_bytes() == SOUND["TST_001.flac"]


def test_a_newer_archive_replaces_what_the_old_one_held(
    zenodo: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetch("TST", tmp_path, base=zenodo.url)
    newer = {name: data[::-1].replace(b"\x01", b"\x07") for name, data in SOUND.items()}  # of the same lengths
    packed = as_zip(newer)
    known = {**MD5, "soundscape_data.zip": hashlib.md5(packed).hexdigest()}
    monkeypatch.setitem(TARGET_SETS, "TST", replace(TARGET_SETS["TST"], files=known))
    publish(zenodo, {**FILES, "soundscape_data.zip": packed})
    fetch("TST", tmp_path, base=zenodo.url)
    assert {path.name: path.read_bytes() for path in (folder / "soundscape_data").iterdir()} == newer


def test_a_cut_line_and_a_damaged_list_of_contents(zenodo: Server, tmp_path: Path) -> None:
    path = f"/records/{RECORD}/files/soundscape_data.zip"
    zenodo.put_file(path, FILES["soundscape_data.zip"], cuts=[500, 700])
    folder = fetch("TST", tmp_path, base=zenodo.url, patience=QUICK)
    assert len(files_asked(zenodo)) == 5
    (folder / "soundscape_data.zip.contents").write_text("nonsense\nwithout numbers\n")
    fetch("TST", tmp_path, base=zenodo.url, patience=QUICK)
    assert verify("TST", folder).same
    assert len(files_asked(zenodo)) == 5


def test_an_archive_that_brings_its_own_folder(zenodo: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = as_zip({f"soundscape_data/{name}": data for name, data in SOUND.items()})
    files = {**FILES, "soundscape_data.zip": packed}
    known = {**MD5, "soundscape_data.zip": hashlib.md5(packed).hexdigest()}
    monkeypatch.setitem(TARGET_SETS, "TST", replace(TARGET_SETS["TST"], files=known))
    publish(zenodo, files)
    folder = fetch("TST", tmp_path, base=zenodo.url)
    assert sorted(path.name for path in (folder / "soundscape_data").iterdir()) == sorted(SOUND)


def test_the_record_s_documents_come_along_but_nothing_that_reaches_outside(zenodo: Server, tmp_path: Path) -> None:
    more = {
        "recording_location.txt": b"here",
        "a description.pdf": b"%PDF",
        "mp3_Files.zip": b"PK",
        "../evil.csv": b"evil",
    }
    publish(zenodo, {**FILES, **more})
    zenodo.put_file(f"/records/{RECORD}/files/a%20description.pdf", b"%PDF")
    folder = fetch("TST", tmp_path, base=zenodo.url)
    assert (folder / "recording_location.txt").read_bytes() == b"here"
    assert (folder / "a description.pdf").read_bytes() == b"%PDF"
    assert not (folder / "mp3_Files.zip").exists()
    assert not (tmp_path / "evil.csv").exists()


def test_another_checksum_at_zenodo_names_both_and_fetches_nothing(zenodo: Server, tmp_path: Path) -> None:
    publish(zenodo, FILES, {**FILES, "annotations.csv": b"changed"})
    other = hashlib.md5(b"changed").hexdigest()
    with pytest.raises(
        NotelaError, match=f"gives MD5 {other} for annotations.csv, and {MD5['annotations.csv']} is known"
    ):
        fetch("TST", tmp_path, base=zenodo.url)
    assert files_asked(zenodo) == []
    assert list(tmp_path.iterdir()) == []


def test_a_checksum_that_only_zenodo_knows_is_used(zenodo: Server, tmp_path: Path) -> None:
    publish(zenodo, {**FILES, "species.csv": b"damaged on the way"}, FILES)
    with pytest.raises(NotelaError, match=r"species.csv has 18 bytes where \d+ were expected"):
        fetch("TST", tmp_path, base=zenodo.url)
    same_length = FILES["species.csv"].replace(b"amerob", b"amerxx")
    publish(zenodo, {**FILES, "species.csv": same_length}, FILES)
    with pytest.raises(NotelaError, match=f"species.csv came with MD5 .*, expected MD5 {MD5['species.csv']}"):
        fetch("TST", tmp_path, base=zenodo.url)


def test_a_file_that_zenodo_no_longer_lists(zenodo: Server, tmp_path: Path) -> None:
    publish(zenodo, FILES, {"annotations.csv": FILES["annotations.csv"]})
    with pytest.raises(NotelaError, match=r"records/12345 lists no species.csv, only annotations.csv"):
        fetch("TST", tmp_path, base=zenodo.url)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"", 503),
        Answer(b"no", 404),
        Answer(b"<html>busy"),
        Answer(b"[]"),
        Answer(b'{"files": [{}]}'),
        Answer(b'{"a": 1}'),
    ],
)
def test_without_zenodo_s_list_the_set_is_fetched_with_what_is_known(
    answer: Answer, zenodo: Server, tmp_path: Path
) -> None:
    zenodo.put(f"/api/records/{RECORD}", answer)
    with pytest.warns(UserWarning, match=r"files of TST cannot be read \(.*\): without a checksum: species.csv"):
        folder = fetch("TST", tmp_path, base=zenodo.url, patience=QUICK)
    assert verify("TST", folder).same
    assert not (folder / "record.json").exists()


# ---- checking a folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set that the user has, sorted in a way of their own, and without the archive."""
    (tmp_path / "my sounds").mkdir()
    for name, data in SOUND.items():
        (tmp_path / "my sounds" / name).write_bytes(data)
    for name in ("annotations.csv", "species.csv"):
        (tmp_path / name).write_bytes(FILES[name])
    (tmp_path / "my sounds" / "._TST_000.flac").write_bytes(b"what macOS leaves")
    return tmp_path


def test_a_right_folder(folder: Path) -> None:
    report = verify("TST", folder)
    assert report.same
    assert str(report).splitlines() == [
        "annotations.csv has the published MD5",
        f"species.csv has MD5 {MD5['species.csv']}; none is known here to compare it with",
        "no soundscape_data.zip: only what was taken out of it is checked",
        "3 recordings",
        "recordings without annotations: 1 (TST_002)",
        "unidentified boxes (????): 1",
        "3 boxes",
        "2 species",
    ]


def test_every_difference_is_a_sentence(folder: Path) -> None:
    (folder / "my sounds" / "TST_001.flac").unlink()
    (folder / "TST_000.wav").write_bytes(b"again")
    (folder / "TST_009.wav").write_bytes(b"another")
    (folder / "soundscape_data.zip").write_bytes(b"half of it")
    more = [["TST_000.flac", i, i + 1, 0, 1, "norcar"] for i in range(2)]
    (folder / "annotations.csv").write_bytes(as_csv([HEADER, *BOXES, *more]))
    (folder / "species.csv").unlink()
    report = verify("TST", folder)
    assert not report.same
    half = hashlib.md5(b"half of it").hexdigest()
    assert report.differences[1:] == [
        "species.csv is not there",
        f"soundscape_data.zip has MD5 {half}, published is {MD5['soundscape_data.zip']}",
        "4 recordings, expected 3",
        "recordings that are there more than once: 1 (TST_000)",
        "recordings that are annotated but not there: 1 (TST_001)",
        "5 boxes, expected 3",
        "3 species, expected 2",
    ]
    assert report.differences[0].startswith("annotations.csv has MD5 ")
    assert "differs: 4 recordings, expected 3" in str(report)


def test_records_that_count_unidentified_boxes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGET_SETS, "TST", replace(TARGET_SETS["TST"], boxes=4))
    assert verify("TST", folder).same
    monkeypatch.setitem(TARGET_SETS, "TST", replace(TARGET_SETS["TST"], boxes=5))
    assert verify("TST", folder).differences == ["3 boxes, expected 5"]


def test_annotations_without_the_right_columns(folder: Path) -> None:
    (folder / "annotations.csv").write_text("file,begin\na,1\n")
    report = verify("TST", folder)
    assert "tables with the columns Filename, Start Time (s), " in str(report)
    (folder / "annotations.csv").write_bytes(b"\xff\xfe\x00")
    assert "Species eBird Code: none, expected one" in str(verify("TST", folder))
    for name in ("a.csv", "b.csv"):
        (folder / name).write_bytes(FILES["annotations.csv"])
    assert "Species eBird Code: 2 (a.csv, b.csv), expected one" in str(verify("TST", folder))


def test_a_table_that_is_damaged_further_down(folder: Path) -> None:
    (folder / "annotations.csv").write_bytes(as_csv([HEADER, *BOXES * 1000]) + b"\xff\xfe")
    assert re.search(r"annotations.csv cannot be read \(.*\); fetch it again", str(verify("TST", folder)))


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match="nowhere is not a folder; give the one that holds TST"):
        verify("TST", tmp_path / "nowhere")
    report = verify("SSW", tmp_path)
    assert "0 recordings, expected 285" in report.differences
    assert "0 boxes, expected 50,760" in report.differences


def test_powdermill_s_raven_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGET_SETS, "POW", replace(TARGET_SETS["POW"], recordings=3, boxes=5))
    header = "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\tSpecies\r\n"
    line = "{}\tSpectrogram 1\t1\t154.387792767\t154.911598217\t2878.2\t4049.0\tEATO\r\n"
    for number, text in enumerate([header + line.format(1) + line.format(2), line.format(1) * 3, header], start=1):
        sub = tmp_path / "annotation_Files" / "Recording_1"
        sub.mkdir(parents=True, exist_ok=True)
        (sub / f"Recording_1_Segment_0{number}.Table.1.selections.txt").write_text(text, newline="")
        (tmp_path / f"Recording_1_Segment_0{number}.wav").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("of mine")
    report = verify("POW", tmp_path)
    assert report.same, report
    (tmp_path / "Recording_1_Segment_04.Table.1.selections.txt").write_text("not a table\n")
    differences = verify("POW", tmp_path).differences
    assert "Recording_1_Segment_04.Table.1.selections.txt is not a Raven table: it has too few columns" in differences
    assert "recordings that are annotated but not there: 1 (Recording_1_Segment_04)" in differences
    assert class_list("POW", tmp_path) is None
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no Raven tables (*.selections.txt) are there" in verify("POW", empty).differences


def test_caples_from_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGET_SETS, "Caples", replace(TARGET_SETS["Caples"], boxes=2, species=(3,)))
    (tmp_path / "any name.csv").write_text(
        "fid,start_time_s,end_time_s,ebird_codes\nS1,0,1,amerob bkcchi\nS1.wav,2,3,norcar\n"
    )
    (tmp_path / "S1.wav").write_bytes(b"")
    report = verify("Caples", tmp_path)
    assert report.same, report


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"code,name\na,b\n", "has no column Species eBird Code"),
        (b"", "has no column"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_list_of_species_that_cannot_be_read(content: bytes, message: str, folder: Path) -> None:
    (folder / "species.csv").write_bytes(content)
    with pytest.raises(NotelaError, match=message):
        class_list("TST", folder)
    (folder / "species.csv").unlink()
    with pytest.raises(NotelaError, match="species.csv cannot be read"):
        class_list("TST", folder)
