"""Training, detections and adaptation on small recordings: learnt, resumed bit for bit, written and read back."""

from __future__ import annotations

import csv
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from conftest import Here
from notela.bioacoustics import annotations, model, prepared
from notela.bioacoustics import predict as predicting
from notela.bioacoustics import train as training
from notela.bioacoustics.adapt import adapt_to_recordings
from notela.bioacoustics.audio import SAMPLE_RATE
from notela.bioacoustics.model import BirdClassifier
from notela.bioacoustics.predict import predict
from notela.bioacoustics.prepare import prepare
from notela.bioacoustics.prepared import Prepared
from notela.bioacoustics.taxonomy import Species, places_of, resolve
from notela.bioacoustics.train import Settings, train
from notela.errors import NotelaError
from sounds import PITCH, focal, sing

QUICK = Settings(front_end="logmel", epochs=2, batch_size=16)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = focal(tmp_path_factory.mktemp("birds"), each=8)
    return prepare(folder, tmp_path_factory.mktemp("ready"), Here(), focal=True).prepared


@pytest.fixture(scope="module")
def untrained(data: Prepared) -> BirdClassifier:
    torch.manual_seed(0)
    return BirdClassifier(data.classes, front_end_name="logmel").eval()


@pytest.fixture
def scape(tmp_path: Path) -> Path:
    sing(tmp_path / "in" / "site 1" / "a.wav", 23, [(4, 2000), (16, 4500)])
    sing(tmp_path / "in" / "b.flac", 3, [(1, 900)], rate=SAMPLE_RATE)
    return tmp_path / "in"


# ---- training


def test_species_are_learnt(data: Prepared, tmp_path: Path) -> None:
    trained = train(data, tmp_path / "run", replace(QUICK, epochs=12, learning_rate=3e-3, mix=0.2))
    assert trained.history[trained.best - 1]["map"] == max(line["map"] for line in trained.history)
    assert trained.history[trained.best - 1]["map"] > 0.9
    again = training.evaluate(trained.model, data, data.rows("test"))
    assert again["map"] == pytest.approx(trained.history[trained.best - 1]["map"])


def test_a_training_that_was_cut_off_goes_on_bit_for_bit(data: Prepared, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(size=(3, 5 * SAMPLE_RATE)).astype(np.float16)
    whole = train(data, tmp_path / "whole", QUICK, noise=noise)

    class Cut(Exception):
        pass

    def cut(epoch: int, done: int, total: int, loss: float) -> None:
        if epoch == 2 and done > 16:
            raise Cut

    with pytest.raises(Cut):
        train(data, tmp_path / "cut", QUICK, noise=noise, progress=cut)
    resumed = train(data, tmp_path / "cut", QUICK, noise=noise)
    assert resumed.history == whole.history
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    again = train(data, tmp_path / "cut", QUICK, noise=noise)  # finished: nothing is trained
    assert again.history == whole.history
    with pytest.raises(NotelaError, match="holds a training with seed=0, now 1"):
        train(data, tmp_path / "cut", replace(QUICK, seed=1), noise=noise)
    with pytest.raises(NotelaError, match="holds a training with background="):
        train(data, tmp_path / "cut", QUICK)


def test_batches_are_cropped_mixed_and_scaled(data: Prepared) -> None:
    labels = torch.from_numpy(data.labels()).float()
    rows = data.rows("adapt")
    settings = replace(QUICK, mix=1.0, batch_size=8)
    batches = list(training._batches(data, rows, settings, None, 1))
    assert sum(len(x) for x, _ in batches) == len(rows)
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    peaks = x.abs().amax(1)
    assert x.shape[1] == 5 * SAMPLE_RATE
    assert 0.15 <= peaks.min() < peaks.max() <= 0.25 + 1e-6
    assert set(y.sum(1).tolist()) <= {1.0, 2.0}
    assert (y.sum(1) == 2).any()
    plain = torch.cat([y for _, y in training._batches(data, rows, replace(settings, mix=0.0), None, 1)])
    assert plain.sum(1).tolist() == [1.0] * len(rows)
    assert (plain.sum(0) == labels[rows].sum(0)).all()  # every window once
    other = next(training._batches(data, rows, settings, None, 2))[0]
    assert not torch.equal(other, batches[0][0])


def test_training_starts_from_another_classifier(data: Prepared, tmp_path: Path) -> None:
    torch.manual_seed(3)
    owls = list(resolve(["Strix aluco", "Bubo bubo"]).matched.values())
    other = BirdClassifier(owls, front_end_name=QUICK.front_end)
    still = replace(QUICK, learning_rate=0.0, epochs=1)
    trained = train(data, tmp_path / "still", still, start=other).model
    parameters = dict(trained.named_parameters())
    for name, value in other.named_parameters():  # at rate 0 they are what it began with
        assert name.startswith("heads.") or torch.equal(parameters[name], value)
    assert trained.classes == data.classes
    with pytest.raises(NotelaError, match="holds a training with start="):
        train(data, tmp_path / "still", still)
    with pytest.raises(NotelaError, match="the model to start from has the front end"):
        train(data, tmp_path / "x", QUICK, start=BirdClassifier(owls, front_end_name="gabor"))


def test_noise_is_added_at_the_wanted_loudness(data: Prepared) -> None:
    rows = data.rows("adapt")
    noise = np.random.default_rng(0).normal(size=(2, 5 * SAMPLE_RATE)).astype(np.float16)
    quiet, loud = (
        next(training._batches(data, rows, replace(QUICK, mix=0.0, noise=share), noise, 1))[0] for share in (0.0, 1.0)
    )
    spread = [float(x.quantile(0.5, dim=1).abs().mean()) for x in (quiet.abs(), loud.abs())]
    assert spread[1] > 3 * spread[0]  # between the calls it is not silent any more


def test_background_sounds_come_from_a_folder(tmp_path: Path) -> None:
    sing(tmp_path / "n" / "a.wav", 11, [(2, 500)])
    sing(tmp_path / "n" / "b.wav", 16, [(2, 500)])
    (tmp_path / "n" / "c.wav").write_text("no sound")
    noise, bad = training.read_noise(tmp_path / "n", 5.0)
    assert noise.shape == (5, 5 * SAMPLE_RATE)
    assert np.abs(noise).max(1) == pytest.approx(1, abs=1e-3)
    assert [problem.path.name for problem in bad] == ["c.wav"]
    few, _ = training.read_noise(tmp_path / "n", 5.0, most=3)
    assert np.array_equal(few, noise[[0, 2]])  # one of each
    (tmp_path / "n" / "a.wav").unlink()
    (tmp_path / "n" / "b.wav").unlink()
    with pytest.raises(NotelaError, match="none of the recordings .* can be used as background .*c.wav"):
        training.read_noise(tmp_path / "n", 5.0)


def test_what_cannot_be_trained_on_is_named(data: Prepared, tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match="has windows of 6 s, and 7 s are trained on"):
        train(data, tmp_path / "a", replace(QUICK, window=7.0))
    bare = Prepared(data.folder, {**data.manifest, "classes": []}, {**data.table, "species": [[]] * len(data)})
    with pytest.raises(NotelaError, match="has no labels to train on"):
        train(bare, tmp_path / "b", QUICK)
    more = Prepared(
        data.folder, {**data.manifest, "classes": [*data.manifest["classes"], ["x", "X y", "", "", "", ""]]}, data.table
    )
    assert train(more, tmp_path / "c", replace(QUICK, epochs=1)).unheard == ["X y"]
    with pytest.raises(NotelaError, match="batch_size=1 must be"):
        replace(QUICK, batch_size=1)


# ---- detections


def test_scores_are_those_of_the_windows(untrained: BirdClassifier, scape: Path, tmp_path: Path) -> None:
    """Every class of every window, against the model on windows that are cut here."""
    summary = predict(untrained, scape, tmp_path / "out", threshold=0.0)
    assert (summary.recordings, summary.windows, summary.failures) == (2, 6, [])
    boxes = annotations.read(tmp_path / "out" / "detections.csv")
    assert len(boxes) == 6 * 3 == summary.detections.total()
    sound, rate = soundfile.read(scape / "b.flac", dtype="float32")
    assert rate == SAMPLE_RATE
    left = (5 * SAMPLE_RATE - len(sound)) // 2
    padded = sound[(np.arange(5 * SAMPLE_RATE) - left) % len(sound)]
    with torch.no_grad():
        expected = untrained(torch.from_numpy(padded)[None])[0].sigmoid()
    found = {box.label: box.confidence for box in boxes if box.recording == "b.flac"}
    for one, score in zip(untrained.classes, expected.tolist(), strict=True):
        assert found[one.scientific] == pytest.approx(score, abs=2e-4)
    starts = sorted({box.start for box in boxes if box.recording == "site 1/a.wav"})
    assert starts == [0, 5, 10, 15, 18]  # the last one ends where the recording ends
    assert {box.end for box in boxes if box.recording == "b.flac"} == {3.0}


@pytest.mark.parametrize("format", ["csv", "raven", "audacity", "kaleidoscope", "parquet"])
def test_tables_are_read_back(untrained: BirdClassifier, scape: Path, tmp_path: Path, format: str) -> None:
    summary = predict(untrained, scape, tmp_path / "out", format=format, threshold=0.3)
    endings = {"csv": "csv", "raven": "txt", "kaleidoscope": "kaleidoscope.csv", "parquet": "parquet"}
    assert format == "audacity" or (tmp_path / "out" / f"detections.{endings[format]}").exists()
    boxes = [box for path in summary.tables[format != "audacity" :] for box in annotations.read(path)]
    assert len(boxes) == summary.detections.total() > 0
    if format == "raven":
        with open(tmp_path / "out" / "detections.txt", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        assert {row["Begin Path"] for row in rows} == {f"{scape}/b.flac", f"{scape}/site 1/a.wav"}
        for row in rows:  # begin times count on over the recordings, in their order
            before = 0.0 if row["Begin Path"].endswith("b.flac") else 3.0
            assert float(row["Begin Time (s)"]) == pytest.approx(before + float(row["File Offset (s)"]))


def test_running_again_listens_to_what_is_new(
    untrained: BirdClassifier, scape: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(untrained, scape, tmp_path / "whole", threshold=0.3)
    real = predicting.listen

    def dies(*given: object) -> object:
        for number, found in enumerate(real(*given)):  # type: ignore[arg-type]
            if number == 1:
                raise KeyboardInterrupt
            yield found

    with monkeypatch.context() as patch:
        patch.setattr(predicting, "listen", dies)
        with pytest.raises(KeyboardInterrupt):
            predict(untrained, scape, tmp_path / "out", threshold=0.3)
    (tmp_path / "out" / "detections.jsonl").open("ab").write(b'{"recording": "si')  # torn by a kill
    summary = predict(untrained, scape, tmp_path / "out", threshold=0.3)
    assert summary.done_before == 1
    for name in ("detections.csv", "recordings/site 1/a.results.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(NotelaError, match=r"holds detections with another threshold \(0.3, now 0.4\)"):
        predict(untrained, scape, tmp_path / "out", threshold=0.4)
    (scape / "b.flac").unlink()
    sing(scape / "c.wav", 6, [(2, 2000)])
    third = predict(untrained, scape, tmp_path / "out", threshold=0.3)
    assert (third.recordings, third.done_before) == (2, 1)
    assert "b.flac" not in (tmp_path / "out" / "detections.csv").read_text()


def test_what_lies_in_the_folder_belongs_together(untrained: BirdClassifier, scape: Path, tmp_path: Path) -> None:
    """Recordings come, change, go and lose their detections; formats are added: never a table of another state."""
    out = tmp_path / "out"
    predict(untrained, scape, out, threshold=0.3)
    predict(untrained, scape, out, format="raven", threshold=0.3)
    sing(scape / "a0.wav", 7, [(2, 2000)])  # before the others by name, after them in time
    sing(scape / "a0.flac", 4, [(2, 900)])
    (scape / "b.flac").unlink()
    (scape / "site 1" / "quiet.wav").write_text("no sound")
    summary = predict(untrained, scape, out, format="audacity", threshold=0.3)
    assert summary.done_before == 1
    again = predict(untrained, scape, tmp_path / "anew", format="audacity", threshold=0.3)
    assert again.detections == summary.detections
    for format in ("csv", "raven"):
        predict(untrained, scape, tmp_path / "anew", format=format, threshold=0.3)

    def tables(folder: Path) -> dict[str, bytes]:
        found = [*folder.glob("detections.[ct]*"), *folder.rglob("recordings/**/*.*")]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}

    assert tables(out) == tables(tmp_path / "anew")
    stems = ("a0.flac", "a0.wav", "site 1/a")
    endings = ("results.csv", "Table.1.selections.txt", "labels.txt")
    own = {f"recordings/{stem}.{ending}" for stem in stems for ending in endings}
    assert tables(out).keys() == own | {"detections.csv", "detections.txt"}
    written = {path: (out / path).stat().st_mtime_ns for path in own}
    predict(untrained, scape, out, format="csv", threshold=0.3)
    assert {path: (out / path).stat().st_mtime_ns for path in own} == written  # nothing is new, so nothing is written
    with open(out / "detections.txt", newline="") as file:
        order = [row["Begin Path"] for row in csv.DictReader(file, delimiter="\t")]
    assert order == sorted(order)
    with open(out / "detections.txt", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            before = {"a0.flac": 0.0, "a0.wav": 4.0, "a.wav": 11.0}[Path(row["Begin Path"]).name]
            assert float(row["Begin Time (s)"]) == pytest.approx(before + float(row["File Offset (s)"]))


def test_a_recording_without_detections_has_an_empty_table(
    untrained: BirdClassifier, scape: Path, tmp_path: Path
) -> None:
    summary = predict(untrained, scape, tmp_path / "out", format="raven", threshold=1.0)
    assert summary.detections.total() == 0
    assert len(summary.tables) == 3
    assert all(annotations.read(path) == [] for path in summary.tables)


def test_equal_names_sizes_and_times_at_two_sites(untrained: BirdClassifier, tmp_path: Path) -> None:
    """Recorders on one schedule: only what was recorded differs."""
    for site, pitch in (("A", 2000), ("B", 4500)):
        path = sing(tmp_path / site / "20210601_050000.WAV", 7, [(2, pitch)], seed=pitch)
        os.utime(path, (1e9, 1e9))
    predict(untrained, tmp_path / "A", tmp_path / "found", threshold=0.0)
    with pytest.raises(NotelaError, match="holds detections of other recordings, such as 20210601_050000.WAV; choose"):
        predict(untrained, tmp_path / "B", tmp_path / "found", threshold=0.0)
    prepare(tmp_path / "A", tmp_path / "ready", Here())
    samples = prepared.read(tmp_path / "ready").samples(0)
    with pytest.raises(NotelaError, match="holds windows of other recordings, such as 20210601_050000.WAV; choose"):
        prepare(tmp_path / "B", tmp_path / "ready", Here())
    assert np.array_equal(prepared.read(tmp_path / "ready").samples(0), samples)  # nothing was touched
    shutil.copytree(tmp_path / "A", tmp_path / "moved")  # the same recordings elsewhere
    assert predict(untrained, tmp_path / "moved", tmp_path / "found", threshold=0.0).done_before == 1
    assert prepare(tmp_path / "moved", tmp_path / "ready", Here()).done_before == 1


def test_progress_counts_recordings_and_windows(untrained: BirdClassifier, scape: Path, tmp_path: Path) -> None:
    shown: list[tuple[int, int, int]] = []
    predict(untrained, scape, tmp_path / "out", progress=lambda *now: shown.append(now))
    assert shown[0] == (0, 2, 0)
    assert shown[-1][1:] == (2, 6)
    with pytest.raises(NotelaError, match="device='abacus' cannot be used here"):
        predict(untrained, scape, tmp_path / "out", device="abacus")


def test_bad_recordings_are_listed_and_the_rest_goes_on(untrained: BirdClassifier, scape: Path, tmp_path: Path) -> None:
    (scape / "text.wav").write_text("no sound")
    soundfile.write(scape / "silent.wav", np.zeros(8 * SAMPLE_RATE), SAMPLE_RATE)
    for i in range(70):  # more than go into one batch
        (scape / f"x{i:02d}.mp3").write_bytes(b"")
    summary = predict(untrained, scape, tmp_path / "out", threshold=0.0)
    assert len(summary.failures) == 72
    assert summary.windows == 6
    with open(tmp_path / "out" / "failures.csv", newline="") as file:
        reasons = {row["recording"]: row["reason"] for row in csv.DictReader(file)}
    assert "silent" in reasons["silent.wav"]
    assert "silent.wav" not in (tmp_path / "out" / "detections.csv").read_text()


def test_species_lists_and_thresholds(untrained: BirdClassifier, scape: Path, tmp_path: Path) -> None:
    classes, unknown = places_of(untrained.classes, ["Parus major", "Erithacus rubecula"])
    assert [untrained.classes[c].scientific for c in classes] == ["Parus major"]
    assert unknown == ["Erithacus rubecula"]
    summary = predict(untrained, scape, tmp_path / "out", threshold=0.0, classes=classes)
    assert summary.detections == {"gretit1": 6}
    with pytest.raises(NotelaError, match="threshold=2 must be between 0 and 1"):
        predict(untrained, scape, tmp_path / "b", threshold=2)


def test_names_are_found_as_the_model_or_the_taxonomy_has_them() -> None:
    """A model keeps the codes of the release that it was trained with, and may know what no taxonomy of birds does."""
    names = [
        ("reevir", "Vireo olivaceus", "Red-eyed Vireo"),  # the code was replaced
        ("gretit1", "Parus major", "Great Tit"),
        ("frog", "Hyla arborea", "Laubfrosch"),
        ("雀", "雀", "雀"),
    ]
    classes = [Species(*one, "", "", "") for one in names]

    def found(*wanted: str) -> tuple[list[int], list[str]]:
        return places_of(classes, wanted)

    assert found("reevir1") == found("REVI") == found("vireo OLIVACEUS") == found("reevir") == ([0], [])
    assert found("Hyla arborea_Laubfrosch", "frog", "great-tit") == ([1, 2], [])
    assert found("鳥", "Larus fuscus", "gretit1") == ([1], ["鳥", "Larus fuscus"])


def test_mistakes_are_named_before_the_work(untrained: BirdClassifier, scape: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotelaError, match="format='excel' is not one of 'csv', 'raven'"):
        predict(untrained, scape, tmp_path / "a", format="excel")
    with pytest.raises(NotelaError, match="cannot be made .*choose another place"):
        predict(untrained, scape, tmp_path / "file" / "b")
    with pytest.raises(NotelaError, match="cannot be made .*choose another place"):
        prepare(scape, tmp_path / "file" / "b", Here())
    with pytest.raises(NotelaError, match="method='notla' is not one of"):
        adapt_to_recordings(untrained, scape, tmp_path / "c", Here(), method="notla")
    with pytest.raises(NotelaError, match="method='lame' corrects predictions .* nothing to save"):
        adapt_to_recordings(untrained, scape, tmp_path / "c", Here(), method="lame")
    assert not (tmp_path / "c").exists()
    predict(untrained, scape, tmp_path / "d")
    (tmp_path / "d" / "settings.json").write_text("[]")
    with pytest.raises(NotelaError, match="settings.json is not of `notela predict`"):
        predict(untrained, scape, tmp_path / "d")
    with pytest.raises(NotelaError, match="nowhere does not exist"):
        predict(untrained, tmp_path / "nowhere", tmp_path / "e", threshold=0.3)
    predict(untrained, scape, tmp_path / "e")  # the mistake has claimed nothing


def test_a_link_to_nowhere_is_listed(untrained: BirdClassifier, scape: Path, tmp_path: Path) -> None:
    (scape / "gone.wav").symlink_to(tmp_path / "nowhere.wav")
    summary = predict(untrained, scape, tmp_path / "out", threshold=0.0)
    assert [problem.path.name for problem in summary.failures] == ["gone.wav"]
    report = prepare(scape, tmp_path / "ready", Here())
    assert [problem.path.name for problem in report.failures] == ["gone.wav"]


def test_one_species_is_judged_by_auroc_and_ties_by_the_loss() -> None:
    """mAP of a single class is 1, whatever the network says."""
    old = {"map": 1.0, "auroc": 0.6, "held-out loss": 0.5}
    assert training.better({**old, "auroc": 0.7, "held-out loss": 0.9}, old, classes=1)
    assert not training.better({**old, "auroc": 0.5, "held-out loss": 0.1}, old, classes=1)
    assert training.better({**old, "held-out loss": 0.4}, old, classes=3)
    assert not training.better(old, old, classes=3)
    assert training.better({**old, "map": 1.1, "auroc": 0.1}, old, classes=3)
    assert training.better({"held-out loss": 0.4}, {"held-out loss": 0.5}, classes=1)  # no negatives: no AUROC


def test_a_full_disk_while_training_is_one_sentence(
    data: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object, path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise RuntimeError("PytorchStreamWriter failed writing file data/3: file write failed")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(NotelaError, match=r"cannot write .*checkpoint.pt \(PytorchStreamWriter failed"):
            train(data, tmp_path / "run", replace(QUICK, epochs=1))
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


# ---- adaptation


def test_adaptation_moves_a_copy_and_resumes(untrained: BirdClassifier, scape: Path, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in untrained.state_dict().items()}
    settings = {"method": "notela", "epochs": 2}
    first = adapt_to_recordings(untrained, scape, tmp_path / "run", Here(), **settings)
    assert isinstance(first.model, BirdClassifier)
    assert all(torch.equal(value, before[name]) for name, value in untrained.state_dict().items())
    moved = [name for name, value in first.model.state_dict().items() if not torch.equal(value, before[name])]
    assert moved
    assert first.before.shape == first.after.shape == (len(first.report.prepared), 3)
    model.save(first.model, tmp_path / "adapted.safetensors")
    back = model.load(tmp_path / "adapted.safetensors")
    assert back.classes == untrained.classes
    again = adapt_to_recordings(untrained, scape, tmp_path / "run", Here(), **settings)
    assert again.report.done_before == 2
    assert torch.equal(again.after, first.after)
    some = adapt_to_recordings(untrained, scape, tmp_path / "some", Here(), classes=[0, 2], epochs=1)
    assert some.after.shape[1] == 2


def test_adaptation_hears_what_prediction_hears(scape: Path, tmp_path: Path, untrained: BirdClassifier) -> None:
    """A model that does not scale its windows (BirdSet's) gets them as loud as they were recorded, from both."""
    quiet = tmp_path / "quiet"
    sound, rate = soundfile.read(scape / "b.flac", dtype="float32")
    quiet.mkdir()
    soundfile.write(quiet / "b.flac", 0.02 * sound, rate)
    torch.manual_seed(0)
    natural = BirdClassifier(untrained.classes, front_end_name="logmel", peak=None).eval()
    adapted = adapt_to_recordings(natural, quiet, tmp_path / "run", Here(), method="tent", epochs=1)
    predict(natural, quiet, tmp_path / "out", threshold=0.0)
    found = {box.label: box.confidence for box in annotations.read(tmp_path / "out" / "detections.csv")}
    for one, score in zip(natural.classes, adapted.before[0].tolist(), strict=True):
        assert found[one.scientific] == pytest.approx(score, abs=2e-4)
    data = adapted.report.prepared
    assert np.abs(data.samples(0, natural=True)).max() == pytest.approx(np.abs(0.02 * sound).max(), rel=2e-3)
    assert np.abs(data.samples(0)).max() == pytest.approx(1, rel=2e-3)


def test_a_model_file_and_a_prepared_set_say_what_they_are(data: Prepared, untrained: BirdClassifier) -> None:
    assert {one.scientific for one in untrained.classes} == {name.replace("_", " ") for name in PITCH}
    manifest = json.loads((data.folder / "manifest.json").read_text())
    assert (manifest["split"], manifest["settings"]["protocol"]) == ("by-recording", "peaks")
    assert prepared.read(data.folder).classes == untrained.classes
