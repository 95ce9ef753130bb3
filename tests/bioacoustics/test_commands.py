"""`notela prepare`, `train`, `predict`, `adapt` as they are typed: from recordings to detections."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from safetensors import safe_open
from typer.testing import CliRunner, Result

import notela
from notela.bioacoustics import annotations, model, prepared
from notela.bioacoustics import predict as predicting
from notela.bioacoustics import train as training
from notela.cli import app
from notela.errors import NotelaError
from sounds import focal, sing


def typed(*words: object) -> Result:
    """What the terminal shows; wide, so that lines are not broken."""
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})


def done(*words: object) -> str:
    shown = typed(*words)
    assert shown.exit_code == 0, shown.output + repr(shown.exception)
    return shown.output


def refused(*words: object) -> str:
    """The one sentence, which `main` prints."""
    shown = typed(*words)
    assert isinstance(shown.exception, NotelaError), shown.output
    return str(shown.exception)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Focal recordings, prepared and trained on by typing the commands; a place with its soundscapes."""
    here = tmp_path_factory.mktemp("here")
    focal(here / "birds")
    (here / "birds" / "Parus_major" / "bad.wav").write_text("no sound")
    sing(here / "noise" / "wind.wav", 6, [(1, 300)])
    sing(here / "site" / "a.wav", 23, [(4, 2000), (16, 4500)])
    sing(here / "site" / "b.wav", 12, [(6, 900)])
    (here / "about.csv").write_text("path,licence,xc\nbirds/Parus_major/XC100.wav,CC0,9\nXC101,CC BY,9\n")
    shown = done(
        *("prepare", here / "birds", "--to", here / "focal", "--focal", "--workers", 1),
        *("--about", here / "about.csv", "--about-columns", "licence=licence,group=xc"),
    )
    assert "3 of 3 names matched to 3 species" in shown
    assert "bad.wav: it is not a sound file" in shown
    assert "1 recordings could not be used; all are in" in shown
    assert "19 recordings (0 were done before), 0.07 h of sound" in shown
    shown = done(
        *("train", here / "focal", "--to", here / "birds.safetensors", "--noise", here / "noise"),
        *("--front-end", "logmel", "--epochs", 3, "--batch-size", 16, "--device", "cpu"),
    )
    assert "3 species; epoch" in shown
    return here


def test_prepare_says_what_it_did_and_does_it_once(here: Path) -> None:
    data = prepared.read(here / "focal")
    licences = dict(zip(data.table["recording"], data.table["licence"], strict=True))
    assert licences["Parus_major/XC100.wav"] == "CC0"
    assert licences["Parus_major/XC101.wav"] == "CC BY"
    assert licences["Parus_major/XC102.wav"] == ""
    parts = dict(zip(data.table["recording"], data.table["split"], strict=True))
    assert parts["Parus_major/XC100.wav"] == parts["Parus_major/XC101.wav"]  # one group
    shown = done(
        *("prepare", here / "birds", "--to", here / "focal", "--focal", "--workers", 1),
        *("--about", here / "about.csv", "--about-columns", "licence=licence,group=xc"),
    )
    assert "19 recordings (18 were done before)" in shown
    assert prepared.read(here / "focal").manifest == data.manifest


def test_another_training_does_not_write_over_a_classifier(here: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.safetensors").write_bytes(b"precious")
    assert "is there already" in refused("train", here / "focal", "--to", tmp_path / "mine.safetensors")
    assert (tmp_path / "mine.safetensors").read_bytes() == b"precious"


def test_a_trained_classifier_is_one_file_and_a_second_command_finds_it_done(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (here / "birds.safetensors").read_bytes()
    monkeypatch.setattr(training, "_batches", None)  # training again would stumble over it
    done(
        *("train", here / "focal", "--to", here / "birds.safetensors", "--noise", here / "noise"),
        *("--front-end", "logmel", "--epochs", 3, "--batch-size", 16, "--device", "cpu"),
    )
    assert (here / "birds.safetensors").read_bytes() == before
    assert {one.code for one in model.load(here / "birds.safetensors").classes} == {"eurbla", "gretit1", "carcro1"}


@pytest.mark.parametrize("format", ["csv", "raven", "audacity", "kaleidoscope", "parquet"])
def test_predict_writes_tables_that_can_be_read(here: Path, tmp_path: Path, format: str) -> None:
    (tmp_path / "list.txt").write_text("# of the pond\ngretit1\nTurdus merula_Eurasian Blackbird\nErithacus rubecula\n")
    shown = done(
        *("predict", here / "birds.safetensors", here / "site", "--to", tmp_path / "out", "--format", format),
        *("--threshold", 0, "--species", tmp_path / "list.txt"),
    )
    assert "2 of 3 names in" in shown
    assert "1 are not: Erithacus rubecula" in shown
    assert "16 detections of 2 species in 8 windows of 2 recordings" in shown
    tables = sorted((tmp_path / "out" / "recordings").iterdir())
    assert [len(annotations.read(table)) for table in tables] == [10, 6]
    assert "not in the model" in refused(
        *("predict", here / "birds.safetensors", here / "site", "--to", tmp_path / "b"),
        *("--species", tmp_path / "list.txt", "--strict"),
    )


def test_adapt_shows_counts_before_and_after(here: Path, tmp_path: Path) -> None:
    words = (
        *("adapt", here / "birds.safetensors", here / "site", "--to", tmp_path / "adapted.safetensors"),
        *("--epochs", 1, "--threshold", 0.1, "--workers", 1, "--device", "cpu", "--method", "notela"),
    )
    shown = done(*words)
    assert "before" in shown
    assert "after" in shown
    assert "Turdus merula (Eurasian Blackbird)" in shown
    source, adapted = model.load(here / "birds.safetensors"), model.load(tmp_path / "adapted.safetensors")
    assert adapted.classes == source.classes
    with safe_open(tmp_path / "adapted.safetensors", framework="pt") as file:
        run = json.loads(file.metadata()["notela.birds"])["run"]
    assert (run["settings"]["method"], run["settings"]["epochs"]) == ("notela", 1)
    moved = {n for n, v in adapted.state_dict().items() if not v.equal(source.state_dict()[n])}
    assert moved
    assert not any(name.startswith(("front_end", "heads")) for name in moved)  # the preset moves norm layers
    again = done(*words)
    assert again.splitlines()[:5] == shown.splitlines()[:5]


def test_adapt_decides_by_itself_and_says_why(here: Path, tmp_path: Path) -> None:
    to = tmp_path / "adapted.safetensors"
    words = ("adapt", here / "birds.safetensors", here / "site", "--to", to, "--epochs", 2, "--workers", 1)
    shown = " ".join(done(*words).split())
    assert "statistics of norm layers" in shown
    verdict = notela.provenance(to.with_suffix(".run") / "adaptation")["verdict"]
    assert verdict["text"] in shown
    source, adapted = model.load(here / "birds.safetensors"), model.load(to)
    same = all(v.equal(source.state_dict()[n]) for n, v in adapted.state_dict().items())
    assert same == verdict["text"].startswith("The result is the model as it was")


def test_annotated_soundscapes_through_a_column_map(here: Path, tmp_path: Path) -> None:
    boxes = tmp_path / "boxes.csv"
    boxes.write_text("file,t0,t1,what\na.wav,4,4.5,Turdus merula\na.wav,16,16.5,Dinosaur\ngone.wav,1,2,Parus major\n")
    words = ("prepare", here / "site", "--to", tmp_path / "out", "--workers", 1, "--annotations", boxes)
    columns = ("--columns", "recording=file,start=t0,end=t1,label=what")
    shown = done(*words, *columns)
    assert "1 of 2 names matched to 1 species" in shown
    assert "unmatched: 'Dinosaur'" in shown
    assert "1 recordings that the annotations name are not there: gone.wav" in shown
    assert "1 recordings have no annotation: b.wav" in shown
    assert "'Dinosaur'" in refused(*words, *columns, "--strict")
    assert "begins with 'file', 't0', 't1', 'what', which is no known table" in refused(*words)
    own = tmp_path / "own.csv"
    own.write_text("code,scientific,common,genus,family,order\ndino,Dino saurus,Dinosaur,Dino,Sauridae,Sauria\n")
    shown = done(*words, *columns, "--species", own)
    assert "1 species are not in the species list: Turdus merula (1)" in shown
    assert [tuple(one) for one in prepared.read(tmp_path / "out").classes] == [
        ("dino", "Dino saurus", "Dinosaur", "Dino", "Sauridae", "Sauria")
    ]


def test_a_target_set_brings_its_annotations_and_its_classes(here: Path, tmp_path: Path) -> None:
    folder = tmp_path / "SSW"
    sing(folder / "soundscape_data" / "SSW_001.flac", 23, [(4, 2000), (16, 4500)])
    header = "Filename,Start Time (s),End Time (s),Low Freq (Hz),High Freq (Hz),Species eBird Code"
    (folder / "annotations.csv").write_text(f"{header}\nSSW_001.flac,4,4.5,1000,3000,reevir\n")
    (folder / "species.csv").write_text("Species eBird Code\nbkcchi\nreevir\n????\n")
    done("prepare", folder, "--to", tmp_path / "out", "--target", "ssw", "--workers", 1)
    data = prepared.read(tmp_path / "out")
    assert [one.code for one in data.classes] == ["bkcchi", "reevir1"]
    assert {code for codes in data.table["species"] for code in codes} == {"reevir1"}
    (folder / "species.csv").unlink()
    assert "species.csv" in refused("prepare", folder, "--to", tmp_path / "b", "--target", "SSW", "--workers", 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("prepare", "nowhere", "--to", "out"), "nowhere does not exist; check the path"),
        (("prepare", "birds", "--to", "out", "--columns", "start"), "--columns start is not of the form"),
        (("prepare", "birds", "--to", "out", "--target", "XYZ"), "'XYZ' is not a target set; known are SSW"),
        (("prepare", "birds", "--to", "out", "--protocol", "tiles"), "protocol='tiles' is not one of"),
        (("prepare", "birds", "--to", "out", "--columns", "start=a"), "--columns means nothing without --annotations"),
        (("prepare", "birds", "--to", "out", "--about-columns", "group=a"), "nothing without --about;"),
        (
            ("prepare", "birds", "--to", "out", "--protocol", "tiles-5s", "--most", "3"),
            "nothing without --protocol peaks",
        ),
        (("adapt", "birds.safetensors", "site", "--to", "birds.safetensors"), "is the model to be adapted"),
        (("predict", "birds/model.pt", "site", "--to", "out"), "birds/model.pt does not exist"),
        (("train", "nowhere", "--to", "x.safetensors"), "is not a prepared data set: manifest.json is missing"),
        (("train", "focal", "--to", "x.pt"), "must end in .safetensors"),
        (("train", "focal", "--to", "x.safetensors", "--device", "abacus"), "device='abacus' cannot be used here"),
        (("train", "focal", "--to", "x.safetensors", "--noise", "empty"), "empty does not exist"),
        (("predict", "nowhere.safetensors", "site", "--to", "out"), "nowhere.safetensors does not exist"),
        (("predict", "birds.safetensors", "site", "--to", "out", "--format", "xls"), "format='xls' is not one of"),
        (("predict", "birds.safetensors", "site", "--to", "out", "--species", "no.txt"), "no.txt cannot be read"),
        (("adapt", "birds.safetensors", "site", "--to", "x.safetensors", "--method", "tint"), "method='tint' is not"),
        (("adapt", "birds.safetensors", "site", "--to", "x.safetensors", "--method", "lame"), "nothing to save"),
        (("adapt", "birds.safetensors", "site", "--to", "x"), "must end in .safetensors"),
    ],
)
def test_mistakes_are_one_sentence(
    here: Path, words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    said = refused(*words)
    assert message in said
    assert "\n" not in said
    assert not (here / "out").exists()


def test_ctrl_c_keeps_what_is_done(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = predicting.listen

    def stopped(*given: object) -> object:
        yield next(real(*given))  # type: ignore[arg-type]
        raise KeyboardInterrupt

    words = ("predict", here / "birds.safetensors", here / "site", "--to", tmp_path / "out", "--threshold", 0)
    with monkeypatch.context() as patch:
        patch.setattr(predicting, "listen", stopped)
        shown = typed(*words)
    assert shown.exit_code == 130
    assert "Stopped. What is done is kept; the same command goes on from there." in shown.output
    seen: list[list[Path]] = []
    monkeypatch.setattr(
        predicting, "listen", lambda m, paths, *rest: (seen.append(list(paths)), real(m, paths, *rest))[1]
    )
    done(*words)
    assert [[path.name for path in paths] for paths in seen] == [["b.wav"]]
    with open(tmp_path / "out" / "detections.csv", newline="") as file:
        assert {row["File"] for row in csv.DictReader(file)} == {"a.wav", "b.wav"}
