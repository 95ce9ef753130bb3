"""Annotations in every form in which people have them, and what is said about broken ones."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from notela.bioacoustics.annotations import Box, read, recording_of, stem
from notela.errors import NotelaError

BIRDS = Path(__file__).resolve().parents[3] / "shared" / "data" / "birds"
RAVEN = "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\tSpecies"


def put(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


CORNELL = (
    "Filename,Start Time (s),End Time (s),Low Freq (Hz),High Freq (Hz),Species eBird Code\n"
    "SSW_001_20170225_010000Z.flac,62.01,62.4,1500.0,3000.0,reevir1\n"
    "SSW_001_20170225_010000Z.flac,62.01,62.4,,,????\n"
)
CORNELL_BOXES = [
    Box("SSW_001_20170225_010000Z.flac", 62.01, 62.4, "reevir1", None, 1500.0, 3000.0),
    Box("SSW_001_20170225_010000Z.flac", 62.01, 62.4, "????"),
]


@pytest.mark.parametrize(
    "content",
    [
        CORNELL.encode(),
        CORNELL.replace("\n", "\r\n").encode(),
        CORNELL.replace("\n", "\r").encode(),
        CORNELL.encode("utf-8-sig"),
        CORNELL.encode("utf-16"),
        CORNELL.replace(",", "\t").encode("utf-16"),
        ("\n" + CORNELL.replace("\n", "\n\n") + ",,,,,\n").encode(),
        CORNELL.replace(",", ";").replace(".4;", ",4;").replace("62.01", "62,01").encode(),
        CORNELL.replace("reevir1", '" reevir1"').replace("Filename", '"Filename"').encode(),
        (CORNELL + CORNELL.splitlines()[0] + "\n").encode(),
        CORNELL.upper().split("\n")[0].encode() + b"\n" + CORNELL.split("\n", 1)[1].encode(),
    ],
)
def test_cornell_in_many_encodings(content: bytes, tmp_path: Path) -> None:
    assert read(put(tmp_path / "annotations.csv", content)) == CORNELL_BOXES
    assert read(tmp_path / "annotations.csv", "cornell") == CORNELL_BOXES


def test_caples_has_several_codes_in_a_row(tmp_path: Path) -> None:
    text = "fid,start_time_s,end_time_s,ebird_codes\nrec_7,5,10,amerob  moudov\nrec_7,10,15,\n"
    expected = [Box("rec_7", 5, 10, "amerob"), Box("rec_7", 5, 10, "moudov"), Box("rec_7", 10, 15, "")]
    assert read(put(tmp_path / "caples.csv", text)) == expected


POWDERMILL = "1\tSpectrogram 1\t1\t154.387792767\t154.911598217\t2878.2\t4049.0\tEATO\r\n"


@pytest.mark.parametrize("content", [RAVEN + "\r\n" + POWDERMILL, POWDERMILL])
def test_powdermill_tables_are_called_after_their_segment(content: str, tmp_path: Path) -> None:
    name = "Recording_1_Segment_05"
    path = put(tmp_path / "Recording_1" / f"{name}.Table.1.selections.txt", content)
    box = Box(name, 154.387792767, 154.911598217, "EATO", None, 2878.2, 4049.0)
    assert read(path) == [box]
    put(tmp_path / "Recording_2" / "Recording_2_Segment_01.Table.1.selections.txt", RAVEN + "\n")  # no birds
    put(tmp_path / "Recording_2" / "Recording_2_Segment_02.Table.1.selections.txt", "")
    put(tmp_path / "README.txt", "what this is")
    assert read(tmp_path) == [box._replace(recording=f"Recording_1/{name}")]


def test_a_folder_of_other_tables(tmp_path: Path) -> None:
    put(tmp_path / "b.txt", "0.5\t1\twren\n")
    put(tmp_path / "a.csv", CORNELL)
    put(tmp_path / ".hidden.txt", "x")
    assert read(tmp_path) == [*CORNELL_BOXES, Box("b", 0.5, 1, "wren")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotelaError, match=r"empty holds no annotations; expected tables such as"):
        read(tmp_path / "empty")


def test_raven_tables_over_several_files_give_the_time_in_the_file(tmp_path: Path) -> None:
    header = RAVEN + "\tBegin File\tFile Offset (s)\tConfidence\tNotes"
    rows = (
        "1\tSpectrogram 1\t1\t3.25\t4.5\t100\t200\twren\ta.wav\t3.25\t0.75\t\n"
        '2\tSpectrogram 1\t1\t3601.1\t3603.4\t100\t200\twren\tb.wav\t1.1\t\t6" snow, "quiet\n'
    )
    assert read(put(tmp_path / "all.txt", f"{header}\n{rows}")) == [
        Box("a.wav", 3.25, 4.5, "wren", 0.75, 100, 200),
        Box("b.wav", 1.1, 3.4, "wren", None, 100, 200),
    ]
    path = put(
        tmp_path / "path.txt", f"{header}\n{rows}".replace("Begin File", "Begin Path").replace("b.wav", r"D:\b.wav")
    )
    assert [box.recording for box in read(path)] == ["a.wav", r"D:\b.wav"]


def test_a_raven_selection_in_two_views_is_one_box(tmp_path: Path) -> None:
    rows = (
        "1\tWaveform 1\t1\t3.25\t4.5\t\t\twren\n1\tSpectrogram 1\t1\t3.25\t4.5\t100\t200\twren\n"
        "2\tWaveform 1\t1\t3.25\t4.5\t\t\trobin\n"
    )
    expected = [Box("x", 3.25, 4.5, "wren", None, 100, 200), Box("x", 3.25, 4.5, "robin")]
    assert read(put(tmp_path / "x.txt", f"{RAVEN}\n{rows}")) == expected
    assert read(put(tmp_path / "x.txt", rows)) == expected


def test_a_raven_label_column_of_any_name(tmp_path: Path) -> None:
    path = put(tmp_path / "x.txt", RAVEN.replace("Species", "Rufart") + "\n1\tSpectrogram 1\t1\t3\t4\t1\t2\tsong\n")
    assert read(path, columns={"label": "rufart"}) == [Box("x", 3, 4, "song", None, 1, 2)]
    with pytest.raises(NotelaError, match=r"no column for label \('Species Code' or .*it has 'Selection', .* 'Rufart'"):
        read(path)


def test_audacity_labels(tmp_path: Path) -> None:
    text = (
        "0.0\t0.77\tSIL\r\n0,5\t1,25\tcall, loud\r\n\\\t1500.5\t-1.000000\r\n2.5\t2.5\r\n3\t4\tTurdus merula\t0.9\r\n"
    )
    assert read(put(tmp_path / "rec 1.labels.txt", text)) == [
        Box("rec 1", 0.0, 0.77, "SIL"),
        Box("rec 1", 0.5, 1.25, "call, loud", None, 1500.5, None),
        Box("rec 1", 2.5, 2.5, ""),
        Box("rec 1", 3, 4, "Turdus merula", 0.9),
    ]
    with pytest.raises(NotelaError, match=r"x\.txt, line 1: frequencies without a label"):
        read(put(tmp_path / "x.txt", "\\\t1\t2\n"), "audacity")


def test_a_column_map(tmp_path: Path) -> None:
    path = put(tmp_path / "x.csv", 'what;from;for;where;who\n"a;b";1,5;0,3;site/a.wav;Amsel\n')
    columns = {"recording": "where", "start": "from", "duration": "for", "label": "What", "common": "who"}
    assert read(path, columns=columns) == [Box("site/a.wav", 1.5, 1.8, "a;b", common="Amsel")]
    del columns["recording"]
    assert read(path, columns=columns)[0].recording == "x"
    with pytest.raises(NotelaError, match=r"no column for confidence \('score'\); it has 'what', 'from'"):
        read(path, columns={**columns, "confidence": "score"})
    with pytest.raises(NotelaError, match="a field in the column map='begin' is not one of 'recording', 'start'"):
        read(path, columns={"begin": "from"})


def test_field_notes_in_latin_1(tmp_path: Path) -> None:
    path = put(tmp_path / "x.txt", "1\t2\tRüppellseeschwalbe\n".encode("latin-1"))
    assert read(path) == [Box("x", 1, 2, "Rüppellseeschwalbe")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CORNELL.replace("62.4,,", "soon,,"), r"x\.csv, line 3: end is 'soon'; expected a number"),
        (CORNELL.replace("62.4,,", "nan,,"), r"x\.csv, line 3: end is 'nan'; expected a number"),
        (CORNELL.replace("62.4,,", "6_3,,"), r"x\.csv, line 3: end is '6_3'; expected a number"),
        (CORNELL.replace("62.4,,", ",,"), r"x\.csv, line 3: end is ''; expected a number"),
        (CORNELL.replace("3000.0", "high"), r"x\.csv, line 2: high is 'high'; expected a number"),
        (CORNELL.replace("62.4,,", "60,,"), r"x\.csv, line 3: the end, 60 s, is before the start, 62\.01 s"),
        (CORNELL + ",1,2,,,x\n", r"x\.csv, line 4: no recording is named"),
        (CORNELL + "a.wav\n", r"x\.csv, line 4: start is ''"),
        (CORNELL.replace("Filename", "Name"), r"x\.csv has no column for recording \('Filename'\); it has 'Name'"),
        ("a,b\n1,2\n", r"x\.csv begins with 'a', 'b', which is no known table of annotations \(cornell, caples"),
        ("", r"x\.csv are empty; expected a header"),
        (b"RIFF\x00\x00\x00\x00WAVE", r"x\.csv is not a table of annotations: it is not text"),
        (b"PAR1 and then nothing", r"x\.csv cannot be read as Parquet"),
    ],
)
def test_broken_tables_are_named(content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match=message):
        read(put(tmp_path / "x.csv", content))


def test_wrong_calls(tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match=r"nowhere\.csv cannot be read \(No such file"):
        read(tmp_path / "nowhere.csv")
    with pytest.raises(NotelaError, match="format='praat' is not one of 'cornell', 'caples'"):
        read(tmp_path / "nowhere.csv", "praat")


@pytest.mark.parametrize(
    ("table", "recording"),
    [
        ("a/b.Table.1.selections.txt", "b"),
        ("b.selections.txt", "b"),
        ("b.BirdNET.selection.table.txt", "b"),
        ("b.BirdNET.results.csv", "b"),
        ("b.2021.labels.txt", "b.2021"),
        ("b.audacity.txt", "b"),
        ("b.c.txt", "b.c"),
    ],
)
def test_the_recording_that_a_table_is_called_after(table: str, recording: str) -> None:
    assert recording_of(table) == recording


@pytest.mark.parametrize(
    ("name", "expected"),
    [("x/a.b.FLAC", "a.b"), (r"C:\x\a.wav", "a"), ("a.20", "a.20"), ("a.wav.wav", "a.wav"), ("wav", "wav")],
)
def test_stems(name: str, expected: str) -> None:
    assert stem(name) == expected


@pytest.mark.skipif(not BIRDS.exists(), reason="the real recordings are not here")
def test_the_annotations_of_the_real_soundscapes() -> None:
    columns = {"recording": "path", "start": "start_s", "end": "end_s", "label": "species", "common": "english"}
    boxes = read(BIRDS / "annotations.csv", columns=columns)
    with open(BIRDS / "annotations.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(boxes) == len(rows) == 5775
    for box, row in zip(boxes, rows, strict=True):
        assert box == Box(
            row["path"], float(row["start_s"]), float(row["end_s"]), row["species"], common=row["english"]
        )
    assert len({box.recording for box in boxes}) == 569  # of 674 annotated clips: the others hold nothing
