"""Recordings as they come from the field, one kind of trouble a test: what `prepare` and `predict` make of them."""

from __future__ import annotations

import csv
import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import torch
from typer.testing import CliRunner

from conftest import Here
from disks import small_disk
from notela.bioacoustics import annotations, prepared
from notela.bioacoustics.audio import SAMPLE_RATE
from notela.bioacoustics.model import BirdClassifier
from notela.bioacoustics.predict import predict
from notela.bioacoustics.prepare import Settings, prepare
from notela.bioacoustics.taxonomy import Species
from notela.cli import app
from notela.errors import NotelaError
from permissions import bound_by_permissions
from sounds import sing

TILES = Settings(protocol="tiles-5s")
CLASSES = tuple(Species(f"s{i}", f"Genus s{i}", f"Bird {i}", "Genus", "Family", "Order") for i in range(40))


@pytest.fixture(scope="module")
def classifier() -> BirdClassifier:
    torch.manual_seed(0)
    return BirdClassifier(CLASSES[:3], front_end_name="logmel").eval()


def failures(folder: Path) -> dict[str, str]:
    """What `failures.csv` says: recording → reason."""
    with open(folder / "failures.csv", newline="", encoding="utf-8") as file:
        return {row["recording"]: row["reason"] for row in csv.DictReader(file)}


def used(tmp_path: Path, classifier: BirdClassifier) -> dict[str, set[str]]:
    """The recordings in `tmp_path / "in"` that each command could use; both list the others."""
    ready = prepare(tmp_path / "in", tmp_path / "ready", Here(), settings=TILES)
    found = predict(classifier, tmp_path / "in", tmp_path / "found", threshold=0.0)
    assert len(ready.failures) == len(failures(tmp_path / "ready"))
    assert len(found.failures) == len(failures(tmp_path / "found"))
    boxes = annotations.read(tmp_path / "found" / "detections.csv")
    return {"ready": set(ready.prepared.table["recording"]), "found": {box.recording for box in boxes}}


# ---- files that cannot be used


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cut.wav", "it is truncated: its header promises 192,000 bytes of sound, and 95,978 are there"),
        ("text.wav", "it is not a sound file that libsndfile can decode"),
        ("empty.mp3", "it is empty (0 bytes)"),
    ],
)
def test_a_broken_file_is_listed_and_the_rest_goes_on(
    name: str, reason: str, classifier: BirdClassifier, tmp_path: Path
) -> None:
    whole = sing(tmp_path / "in" / "good.wav", 6, [(3, 2000)]).read_bytes()
    content = {"cut.wav": whole[: len(whole) // 2], "text.wav": b"light rain\n" * 90, "empty.mp3": b""}
    (tmp_path / "in" / name).write_bytes(content[name])
    assert used(tmp_path, classifier) == {"ready": {"good.wav"}, "found": {"good.wav"}}
    for folder in ("ready", "found"):
        ((recording, why),) = failures(tmp_path / folder).items()
        assert (recording, why[: len(reason)]) == (name, reason)


def test_what_may_not_be_read_is_listed_and_the_rest_goes_on(classifier: BirdClassifier, tmp_path: Path) -> None:
    sing(tmp_path / "in" / "good.wav", 6, [(3, 2000)])
    closed = [sing(tmp_path / "in" / name, 6, [(3, 2000)]) for name in ("mine.wav", "site/a.wav")]
    closed[0].chmod(0)
    closed[1].parent.chmod(0)
    try:
        with bound_by_permissions():
            assert used(tmp_path, classifier) == {"ready": {"good.wav"}, "found": {"good.wav"}}
    finally:
        closed[1].parent.chmod(0o700)
    for folder in ("ready", "found"):
        assert failures(tmp_path / folder) == {
            "mine.wav": "you may not read it",
            "site": "this folder cannot be read (Permission denied)",
        }
    closed[0].chmod(0o600)
    everything = {"good.wav", "mine.wav", "site/a.wav"}
    assert used(tmp_path, classifier) == {"ready": everything, "found": everything}
    assert failures(tmp_path / "ready") == failures(tmp_path / "found") == {}


# ---- files that are unusual, and right


@pytest.mark.parametrize(
    ("subtype", "rate", "channels", "step"),
    [
        ("PCM_U8", 22_050, 1, 2**-7),
        ("PCM_24", 44_100, 2, 2**-23),
        ("FLOAT", 96_000, 1, 1e-6),
        ("PCM_16", 48_000, 7, 2**-15),
    ],
    ids=["8-bit", "24-bit", "96-kHz", "7-channel"],
)
def test_unusual_forms_sound_as_they_were_recorded(
    subtype: str, rate: int, channels: int, step: float, classifier: BirdClassifier, tmp_path: Path
) -> None:
    """Against the whole file, decoded by the library and resampled at once; and that against what was written."""
    time = np.arange(10 * rate)[:, None] / rate
    pitch = 2000 + 700 * np.arange(channels)  # each microphone hears another bird
    song = 0.6 * np.sin(2 * np.pi * (pitch + 300 * time) * time) * np.sin(np.pi * time / 10)
    (tmp_path / "in").mkdir()
    soundfile.write(tmp_path / "in" / "a.wav", song, rate, subtype=subtype)
    decoded = soundfile.read(tmp_path / "in" / "a.wav", dtype="float32", always_2d=True)[0].mean(1)
    assert np.abs(decoded - song.mean(1)).max() <= step
    halves = soxr.resample(decoded, rate, SAMPLE_RATE).reshape(2, -1)
    assert used(tmp_path, classifier) == {"ready": {"a.wav"}, "found": {"a.wav"}}
    data = prepared.read(tmp_path / "ready")
    assert (data.table["start"], data.table["end"]) == ([0.0, 5.0], [5.0, 10.0])
    for row, half in enumerate(halves):
        np.testing.assert_allclose(data.samples(row), half / np.abs(half).max(), atol=1e-3)
    with torch.no_grad():
        expected = classifier(torch.from_numpy(halves)).sigmoid()
    for box in annotations.read(tmp_path / "found" / "detections.csv"):
        assert box.confidence == pytest.approx(float(expected[int(box.start // 5), int(box.label[-1])]), abs=1e-3)


PREDICT = """
import resource, sys
from pathlib import Path
from notela.bioacoustics.model import BirdClassifier
from notela.bioacoustics.predict import predict
from notela.bioacoustics.taxonomy import Species
BirdClassifier.forward = lambda self, x: x[:, :1]  # memory is measured, not the network
model = BirdClassifier((Species("a", "A a", "", "A", "", ""),), front_end_name="logmel")
print(predict(model, Path(sys.argv[1]), Path(sys.argv[2])).windows)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_three_hours_are_listened_to_in_the_memory_of_ten_minutes(tmp_path: Path) -> None:
    """Of `predict`; `prepare` is in test_prepare.py."""
    megabytes = {}
    for minutes in (10, 180):
        folder = tmp_path / str(minutes)
        folder.mkdir()
        minute = 0.05 * np.random.default_rng(0).normal(size=60 * 8000)
        with soundfile.SoundFile(folder / "a.wav", "w", 8000, 1, "PCM_U8") as file:
            for _ in range(minutes):
                file.write(minute)
        words = [sys.executable, "-c", PREDICT, str(folder), str(tmp_path / f"found {minutes}")]
        out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        windows, peak = map(int, out.split())
        assert windows == 12 * minutes
        megabytes[minutes] = peak * (1 if sys.platform != "darwin" else 1 / 1024) / 1024
    assert megabytes[180] < megabytes[10] + 200  # decoded it has 1,382 MB


# ---- disks, annotations and names


def test_a_disk_that_fills_up_while_listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `predict`; `prepare` is in test_prepare.py."""
    monkeypatch.setattr(BirdClassifier, "forward", lambda self, x: x[:, : len(self.classes)])
    classifier = BirdClassifier(CLASSES, front_end_name="logmel")
    for i in range(12):
        sing(tmp_path / "in" / f"{i:02d}.wav", 60, [(30, 2000)], seed=i, rate=8000)
    whole = predict(classifier, tmp_path / "in", tmp_path / "whole", threshold=0.0)
    assert (tmp_path / "whole" / "detections.jsonl").stat().st_size > 80_000
    to = tmp_path / "disk" / "found"
    with small_disk(tmp_path / "disk", 64) as resize:
        with pytest.raises(NotelaError, match=f"{to}.*{os.strerror(errno.ENOSPC)}") as full:
            predict(classifier, tmp_path / "in", to, threshold=0.0)
        assert "\n" not in str(full.value)
        resize(8192)
        again = predict(classifier, tmp_path / "in", to, threshold=0.0)
        assert 0 < again.done_before < 12
        assert again.detections == whole.detections
        assert (to / "detections.csv").read_bytes() == (tmp_path / "whole" / "detections.csv").read_bytes()


def test_annotations_of_a_recording_that_is_missing_are_told(tmp_path: Path) -> None:
    sing(tmp_path / "in" / "a.wav", 12, [(6, 2000)])
    table = tmp_path / "boxes.csv"
    table.write_text("file,t0,t1,bird\na.wav,6,6.5,Turdus merula\ngone.wav,1,2,Parus major\n")
    words = ["prepare", tmp_path / "in", "--to", tmp_path / "out", "--annotations", table, "--workers", "1"]
    columns = ["--columns", "recording=file,start=t0,end=t1,label=bird"]
    shown = CliRunner().invoke(app, [*map(str, words), *columns], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "1 recordings that the annotations name are not there: gone" in shown.output
    assert set(prepared.read(tmp_path / "out").table["recording"]) == {"a.wav"}


def test_recordings_of_one_name_stay_apart_where_folders_tell_them_and_are_refused_where_nothing_does(
    classifier: BirdClassifier, tmp_path: Path
) -> None:
    names = {"Turdus_merula/a.wav", "Parus_major/a.wav", "Parus_major/a.flac"}
    for seed, name in enumerate(sorted(names)):
        sing(tmp_path / "in" / name, 6, [(1 + seed, 2000)], seed=seed)
    assert used(tmp_path, classifier) == {"ready": names, "found": names}
    data = prepared.read(tmp_path / "ready")
    parts = {name: data.samples(row) for row, name in enumerate(data.table["recording"])}
    assert len({values.tobytes() for values in parts.values()}) == 3
    focal = prepare(tmp_path / "in", tmp_path / "focal", Here(), focal=True).prepared
    codes = dict(zip(focal.table["recording"], map(tuple, focal.table["species"]), strict=True))
    assert codes == {name: ("eurbla",) if "merula" in name else ("gretit1",) for name in names}
    box = annotations.Box("a", 1.0, 2.0, "Parus major")
    with pytest.raises(NotelaError, match="recordings have one name, 'a'"):
        prepare(tmp_path / "in", tmp_path / "out", Here(), boxes=[box])
    assert not (tmp_path / "out").exists()
