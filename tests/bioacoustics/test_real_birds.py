"""Real focal recordings and real soundscapes, a few of each, through the commands; the tables opened as programs do."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from notela.bioacoustics import annotations, prepared
from notela.cli import app

BIRDS = Path(__file__).parents[3] / "shared" / "data" / "birds"
SPECIES = ("Erithacus_rubecula", "Parus_major", "Turdus_merula")

pytestmark = pytest.mark.skipif(not BIRDS.is_dir(), reason="the real recordings are not here")


def typed(*words: object) -> str:
    shown = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})
    assert shown.exit_code == 0, shown.output + repr(shown.exception)
    return shown.output


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Links to some of the recordings, the focal ones prepared and trained on."""
    here = tmp_path_factory.mktemp("real")
    for species in SPECIES:
        (here / "focal" / species).mkdir(parents=True)
        for path in sorted((BIRDS / "focal" / species).iterdir())[:7]:
            (here / "focal" / species / path.name).symlink_to(path)
    (here / "scapes").mkdir()
    for path in sorted((BIRDS / "soundscapes").iterdir())[:40]:
        (here / "scapes" / path.name).symlink_to(path)
    about = ("--about", BIRDS / "manifest.csv", "--about-columns", "recording=path,licence=licence,group=xc_id")
    shown = typed("prepare", here / "focal", "--to", here / "ready", "--focal", "--workers", 1, *about)
    assert "3 of 3 names matched to 3 species" in shown
    typed(
        *("train", here / "ready", "--to", here / "birds.safetensors", "--front-end", "logmel", "--epochs", 2),
        *("--device", "cpu"),
    )
    return here


def test_focal_windows_carry_their_licence(here: Path) -> None:
    data = prepared.read(here / "ready")
    assert len(set(data.table["recording"])) == 21
    with open(BIRDS / "manifest.csv", newline="") as file:
        licences = {Path(row["path"]).name: row["licence"] for row in csv.DictReader(file)}
    for recording, licence in zip(data.table["recording"], data.table["licence"], strict=True):
        assert licence == licences[Path(recording).name]


def test_soundscapes_are_labelled_by_the_boxes_that_their_windows_overlap(here: Path, tmp_path: Path) -> None:
    columns = "recording=path,start=start_s,end=end_s,label=species"
    typed(
        *("prepare", here / "scapes", "--to", tmp_path / "ready", "--workers", 1),
        *("--annotations", BIRDS / "annotations.csv", "--columns", columns),
    )
    data = prepared.read(tmp_path / "ready")
    with open(BIRDS / "annotations.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    name = {one.code: one.scientific for one in data.classes}
    moved = {"Sylvia melanocephala": "Curruca melanocephala", "Sylvia cantillans": "Curruca cantillans"}
    moved |= {"Sylvia undata": "Curruca undata", "Regulus ignicapillus": "Regulus ignicapilla"}
    assert len(data) > 20
    for i in range(len(data)):
        start, end = data.table["start"][i], data.table["end"][i]
        here_ = [row for row in rows if Path(row["path"]).name == data.table["recording"][i]]
        over = [row["species"] for row in here_ if float(row["start_s"]) <= end and float(row["end_s"]) >= start]
        assert "" not in over  # nothing unidentified
        assert {name[code] for code in data.table["species"][i]} == {moved.get(one, one) for one in over}


def test_raven_and_audacity_open_what_was_written(here: Path, tmp_path: Path) -> None:
    """Columns and times, read without any code of ours: a Raven table is tab-separated with a header; Audacity's labels
    are start, end and text without one."""
    words = ("predict", here / "birds.safetensors", here / "scapes", "--to", tmp_path / "out", "--threshold", 0.2)
    typed(*words, "--format", "raven")
    typed(*words, "--format", "audacity")
    clips = sorted((here / "scapes").iterdir())
    lengths = {clip.name: soundfile.info(clip).duration for clip in clips}
    begins = dict(zip(lengths, np.cumsum([0.0, *lengths.values()]), strict=False))
    with open(tmp_path / "out" / "detections.txt", newline="") as file:
        table = list(csv.DictReader(file, delimiter="\t"))
    assert len(table) > 20
    assert [int(row["Selection"]) for row in table] == list(range(1, len(table) + 1))
    of_clip: dict[str, list[tuple[float, float, str]]] = {clip.name: [] for clip in clips}
    names = {"eurrob1": "Erithacus rubecula", "gretit1": "Parus major", "eurbla": "Turdus merula"}
    for row in table:
        assert Path(row["Begin Path"]).exists()
        clip, offset = Path(row["Begin Path"]).name, float(row["File Offset (s)"])
        begin, end = float(row["Begin Time (s)"]), float(row["End Time (s)"])
        assert begin - begins[clip] == pytest.approx(offset, abs=1e-5)
        assert 0 <= offset < offset + (end - begin) <= lengths[clip] + 1e-5
        assert 0 <= float(row["Low Freq (Hz)"]) < float(row["High Freq (Hz)"]) <= 16_000
        assert 0.2 <= float(row["Confidence"]) <= 1
        of_clip[clip].append((offset, offset + (end - begin), names[row["Species Code"]]))
    for clip in clips:
        lines = (tmp_path / "out" / "recordings" / f"{clip.stem}.labels.txt").read_text().splitlines()
        labels = [line.split("\t") for line in lines]
        assert [(float(a), float(b), text) for a, b, text in labels] == [
            (pytest.approx(a, abs=1e-5), pytest.approx(b, abs=1e-5), text) for a, b, text in of_clip[clip.name]
        ]
        own = annotations.read(tmp_path / "out" / "recordings" / f"{clip.stem}.Table.1.selections.txt")
        assert [box.start for box in own] == pytest.approx([a for a, _, _ in of_clip[clip.name]], abs=1e-5)
