"""From folders of recordings to a prepared data set: labels, splits, storage, running again, and bad input."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from conftest import Here
from notela.bioacoustics import prepare as module
from notela.bioacoustics import prepared
from notela.bioacoustics.about import About
from notela.bioacoustics.annotations import Box
from notela.bioacoustics.audio import SAMPLE_RATE, Recording
from notela.bioacoustics.prepare import FOCAL, Settings, prepare
from notela.bioacoustics.prepared import Windows
from notela.bioacoustics.taxonomy import Species
from notela.bioacoustics.windows import cut, peak_windows
from notela.engines.local import Local
from notela.errors import NotelaError
from sounds import PITCH, focal, sing

MERULA, MAJOR, CORONE = "eurbla", "gretit1", "carcro1"


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return focal(tmp_path_factory.mktemp("birds"))


@pytest.fixture(scope="module")
def ready(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> module.Report:
    return prepare(birds, tmp_path_factory.mktemp("ready"), Here(), focal=True)


# ---- what comes out


def test_focal_recordings_take_their_species_from_their_folders(birds: Path, ready: module.Report) -> None:
    data = ready.prepared
    assert [one.code for one in data.classes] == sorted([MERULA, MAJOR, CORONE])
    assert {one.scientific for one in data.classes} == {name.replace("_", " ") for name in PITCH}
    codes = {"Turdus_merula": MERULA, "Parus_major": MAJOR, "Corvus_corone": CORONE}
    for recording, species in zip(data.table["recording"], data.table["species"], strict=True):
        assert species == [codes[recording.split("/")[0]]]
    assert data.labels().sum(1).tolist() == [1] * len(data)
    assert (data.length, data.manifest["sample_rate"]) == (6 * SAMPLE_RATE, SAMPLE_RATE)
    assert ready.names is not None
    assert (ready.recordings, len(ready.failures), ready.names.unmatched) == (18, 0, [])
    assert ready.seconds == pytest.approx(18 * 14)


def test_windows_are_those_around_the_peaks(birds: Path, ready: module.Report) -> None:
    data = ready.prepared
    name = "Parus_major/XC103.wav"
    rows = [i for i, recording in enumerate(data.table["recording"]) if recording == name]
    recording = Recording(birds / name)
    starts = peak_windows(recording, FOCAL.seconds, FOCAL.most)
    assert [data.table["start"][row] for row in rows] == [start / SAMPLE_RATE for start in starts]
    assert [data.table["end"][row] - data.table["start"][row] for row in rows] == [6.0] * len(rows)
    for row, samples in zip(rows, cut(recording.blocks(), starts, data.length), strict=True):
        scaled = samples / np.abs(samples).max()
        np.testing.assert_allclose(data.samples(row), scaled, atol=5e-4)
        assert np.abs(data.samples(row)).max() == pytest.approx(1, abs=1e-3)


def test_flac_and_float16_hold_the_same(birds: Path, ready: module.Report, tmp_path: Path) -> None:
    small = prepare(birds, tmp_path / "out", Here(), focal=True, settings=Settings(seconds=6.0, most=5, storage="flac"))
    assert small.prepared.table == ready.prepared.table
    for row in (0, 7, len(ready.prepared) - 1):
        np.testing.assert_allclose(small.prepared.samples(row), ready.prepared.samples(row), atol=1e-3)
    sizes = [sum(p.stat().st_size for p in data.folder.rglob("*")) for data in (small.prepared, ready.prepared)]
    assert sizes[0] < sizes[1]


def test_read_back_and_as_a_dataset(ready: module.Report) -> None:
    back = prepared.read(ready.prepared.folder)
    assert back.manifest == ready.prepared.manifest
    assert back.table == ready.prepared.table
    rows = back.rows("test")
    windows = Windows(back, rows)
    assert len(windows) == len(rows)
    assert torch.equal(windows[0], torch.from_numpy(back.samples(int(rows[0]))))
    assert sorted([*back.rows("adapt"), *rows]) == list(range(len(back)))


def test_recordings_or_groups_stay_together_in_a_split(birds: Path, ready: module.Report, tmp_path: Path) -> None:
    def parts(report: module.Report, key: dict[str, str]) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        table = report.prepared.table
        for recording, split in zip(table["recording"], table["split"], strict=True):
            found.setdefault(key.get(Path(recording).stem, recording), set()).add(split)
        return found

    assert all(len(each) == 1 for each in parts(ready, {}).values())
    assert set.union(*parts(ready, {}).values()) == {"adapt", "test"}
    groups = {path.stem: path.stem[-1] for path in birds.rglob("*.wav")}
    about = [About(name, "here", "CC0", group) for name, group in groups.items()]
    grouped = prepare(birds, tmp_path / "grouped", Here(), focal=True, about=about)
    assert all(len(each) == 1 for each in parts(grouped, groups).values())
    assert set(grouped.prepared.table["licence"]) == {"CC0"}
    by_window = prepare(birds, tmp_path / "windows", Here(), focal=True, split_by="by-window")
    assert any(len(each) == 2 for each in parts(by_window, {}).values())
    assert by_window.prepared.manifest["split"] == "by-window"


# ---- soundscapes


@pytest.fixture(scope="module")
def scape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scape")
    sing(folder / "site" / "a.wav", 40, [(4, 2000), (20, 4500), (34, 900)])
    sing(folder / "b.flac", 12, [(6, 2000)])
    return folder


BOXES = [
    Box("a", 4.0, 4.5, "Turdus merula"),
    Box("a", 20.0, 20.5, "Parus major"),
    Box("a", 20.1, 20.4, "Corvus corone"),
    Box("a", 34.0, 34.5, "????"),
    Box("a", 41.0, 42.0, "Parus major"),
    Box("c", 1.0, 2.0, "Parus major"),
]


def test_soundscapes_take_the_union_of_overlapping_boxes(scape: Path, tmp_path: Path) -> None:
    report = prepare(scape, tmp_path / "out", Here(), boxes=BOXES)
    table = report.prepared.table
    assert set(table["recording"]) == {"site/a.wav"}
    for start, end, species in zip(table["start"], table["end"], table["species"], strict=True):
        here = {"eurbla"} if start <= 4.5 and end >= 4 else set()
        here |= {MAJOR, CORONE} if start <= 20.5 and end >= 20 else set()
        assert set(species) == here != set()
        assert end <= 34 or start > 34.5  # nothing that touches the unknown
    assert report.missing == ["c"]
    assert report.bare == ["b.flac"]
    assert report.beyond == 1
    assert report.dropped["unidentified"] >= 1
    assert report.dropped["no box"] >= 1


def test_tiles_keep_empty_windows_and_the_protocol_is_written_down(scape: Path, tmp_path: Path) -> None:
    report = prepare(scape, tmp_path / "out", Here(), boxes=BOXES, settings=Settings(protocol="tiles-5s"))
    starts = [
        s
        for r, s in zip(report.prepared.table["recording"], report.prepared.table["start"], strict=True)
        if r == "site/a.wav"
    ]
    assert starts == [0, 5, 10, 15, 20, 25, 30, 35]
    assert [] in report.prepared.table["species"]
    assert report.prepared.manifest["settings"]["protocol"] == "tiles-5s"
    with pytest.raises(NotelaError, match="the protocol tiles-5s has windows of 5 s; 6 s need another name"):
        Settings(protocol="tiles-5s", seconds=6)


def test_single_label_windows_hold_one_species(scape: Path, tmp_path: Path) -> None:
    report = prepare(scape, tmp_path / "out", Here(), boxes=BOXES, settings=Settings(single_label=True))
    assert report.prepared.table["species"]
    assert all(species == [MERULA] for species in report.prepared.table["species"])
    assert report.dropped["several species"] >= 1


def test_a_species_list_gives_the_classes_and_others_are_counted(scape: Path, tmp_path: Path) -> None:
    report = prepare(
        scape, tmp_path / "out", Here(), boxes=BOXES, species=["Parus major", "carcro1", "Erithacus rubecula"]
    )
    assert [one.code for one in report.prepared.classes] == [MAJOR, CORONE, "eurrob1"]
    assert report.ignored == {"Turdus merula": 1}
    assert report.prepared.labels().shape[1] == 3


def test_a_taxonomy_of_one_s_own(scape: Path, tmp_path: Path) -> None:
    frog = Species("frog1", "Hyla arborea", "Tree Frog", "Hyla", "Hylidae", "Anura")
    merle = Species("mine", "Turdus merula", "Blackbird", "T", "F", "O")  # goes before eBird's
    boxes = [Box("a", 4.0, 4.5, "Turdus merula"), Box("a", 20.0, 20.5, "tree-frog"), Box("a", 34, 34.5, "Parus major")]
    report = prepare(scape, tmp_path / "out", Here(), boxes=boxes, species=[merle, frog])
    assert report.prepared.classes == (merle, frog)
    assert {code for codes in report.prepared.table["species"] for code in codes} == {"mine", "frog1"}
    assert report.ignored == {"Parus major": 1}
    assert report.names is not None
    assert (set(report.names.matched), report.names.unmatched) == ({box.label for box in boxes}, [])
    mixed = prepare(scape, tmp_path / "mixed", Here(), boxes=boxes, species=["Parus major", frog])
    assert [one.code for one in mixed.prepared.classes] == [MAJOR, "frog1"]


def test_a_typo_in_the_species_list_is_told(scape: Path, tmp_path: Path) -> None:
    report = prepare(scape, tmp_path / "out", Here(), boxes=BOXES, species=["Turdus merulla", "Parus major"])
    assert report.listed is not None
    assert report.listed.unmatched == ["Turdus merulla"]
    with pytest.raises(NotelaError, match="'Turdus merulla'"):
        prepare(scape, tmp_path / "strict", Here(), boxes=BOXES, species=["Turdus merulla"], strict=True)


def test_no_window_left_is_an_error(scape: Path, tmp_path: Path) -> None:
    boxes = [Box("annotations", 1, 2, "Parus major")]  # the column of recordings was forgotten
    with pytest.raises(
        NotelaError, match=r"no window of the 2 recordings .* is left \(\d+ windows have no box\); the "
    ):
        prepare(scape, tmp_path / "out", Here(), boxes=boxes)


def test_a_table_about_other_recordings_is_refused(birds: Path, tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match="names none of those in .*; it begins with 'XC999', they with"):
        prepare(birds, tmp_path / "out", Here(), focal=True, about=[About("XC999", licence="CC0")])
    some = prepare(birds, tmp_path / "out", Here(), focal=True, about=[About("XC000", licence="CC0")])
    assert len(some.undescribed) == 17


def test_a_file_name_that_is_no_text(scape: Path, tmp_path: Path) -> None:
    here = tmp_path / "in"
    here.mkdir()
    try:
        shutil.copy(scape / "b.flac", os.fsencode(here) + b"/caf\xe9.flac")
    except OSError:
        pytest.skip("this disk takes Unicode names only")
    report = prepare(here, tmp_path / "out", Here())
    assert set(prepared.read(tmp_path / "out").table["recording"]) == {r"caf\udce9.flac"}
    assert prepare(here, tmp_path / "out", Here()).done_before == 1
    assert report.prepared.samples(0).any()


def test_unmatched_names_are_listed_or_refused(scape: Path, tmp_path: Path) -> None:
    boxes = [*BOXES, Box("b", 6.0, 6.5, "Cicadatra atra")]
    report = prepare(scape, tmp_path / "out", Here(), boxes=boxes)
    assert report.names is not None
    assert report.names.unmatched == ["Cicadatra atra"]
    assert "Cicadatra atra" in [one.code for one in report.prepared.classes]
    with pytest.raises(NotelaError, match="'Cicadatra atra'"):
        prepare(scape, tmp_path / "strict", Here(), boxes=boxes, strict=True)


def test_without_labels_every_window_stays(scape: Path, tmp_path: Path) -> None:
    report = prepare(scape, tmp_path / "out", Here())
    assert set(report.prepared.table["recording"]) == {"site/a.wav", "b.flac"}
    assert report.prepared.classes == ()
    assert report.names is None


# ---- running again


def test_running_again_does_only_what_is_missing(birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = shutil.copytree(birds, tmp_path / "birds")
    (here / "Parus_major" / "bad.wav").write_text("this is not sound")
    first = prepare(here, tmp_path / "out", Here(), focal=True)
    assert [problem.path.name for problem in first.failures] == ["bad.wav"]
    seen: list[str] = []
    real = module._prepare_one
    monkeypatch.setattr(module, "_prepare_one", lambda task: (seen.append(task.recording), real(task)))
    again = prepare(here, tmp_path / "out", Here(), focal=True)
    assert seen == ["Parus_major/bad.wav"]
    assert again.done_before == 18
    assert again.prepared.table == first.prepared.table
    seen.clear()
    sing(here / "Parus_major" / "bad.wav", 14, [(7, 4500)])
    sing(here / "Parus_major" / "XC100.wav", 14, [(5, 4500)], seed=77)
    (here / "Turdus_merula" / "XC000.wav").unlink()
    third = prepare(here, tmp_path / "out", Here(), focal=True)
    assert seen == ["Parus_major/XC100.wav", "Parus_major/bad.wav"]
    assert third.failures == []
    assert "Turdus_merula/XC000.wav" not in third.prepared.table["recording"]
    parts = {path.stem for path in (tmp_path / "out" / "parts").iterdir()}
    assert len(parts) == third.recordings == 18


def test_nobody_else_s_files_are_touched(birds: Path, tmp_path: Path) -> None:
    mine = [tmp_path / "out" / "parts" / name for name in ("mine.wav", "notes.json", "folder/x.npy")]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    gone = tmp_path / "out" / "parts" / f"{'0' * 20}.npy"
    gone.write_text("of a recording that is gone")
    prepare(birds, tmp_path / "out", Here(), focal=True)
    assert all(path.read_text() == "mine" for path in mine)
    assert not gone.exists()


def test_a_set_that_is_made_anew_is_another_one_and_never_half_of_each(
    birds: Path, ready: module.Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(birds, tmp_path / "out", Here(), focal=True).prepared
    assert first.manifest["fingerprint"] == ready.prepared.manifest["fingerprint"]
    old = first.samples(0)
    turned = [one.code for one in reversed(first.classes)]
    again = prepare(birds, tmp_path / "out", Here(), focal=True, species=turned).prepared
    assert again.manifest["fingerprint"] != first.manifest["fingerprint"]  # the classes' order
    by_window = prepare(birds, tmp_path / "out", Here(), focal=True, split_by="by-window").prepared
    assert by_window.manifest["fingerprint"] != first.manifest["fingerprint"]
    other = Settings(seconds=6.0, most=1)
    with monkeypatch.context() as patch:
        real, count = module._prepare_one, iter(range(100))

        def dies(task: module.Task) -> None:
            if next(count) == 3:
                raise KeyboardInterrupt
            real(task)

        patch.setattr(module, "_prepare_one", dies)
        with pytest.raises(KeyboardInterrupt):
            prepare(birds, tmp_path / "out", Here(), focal=True, settings=other)
    with pytest.raises(NotelaError, match="manifest.json is missing"):
        prepared.read(tmp_path / "out")
    last = prepare(birds, tmp_path / "out", Here(), focal=True, settings=other).prepared
    row = [i for i, name in enumerate(first.table["recording"]) if name == last.table["recording"][0]]
    assert any(np.array_equal(last.samples(0), ready.prepared.samples(i)) for i in row)  # not what was mapped before
    assert len(old) == last.length


def test_a_killed_run_goes_on_and_ends_the_same(birds: Path, ready: module.Report, tmp_path: Path) -> None:
    real, count = module._prepare_one, 0

    def dies(task: module.Task) -> None:
        nonlocal count
        count += 1
        if count == 6:
            raise KeyboardInterrupt
        real(task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_prepare_one", dies)
        with pytest.raises(KeyboardInterrupt):
            prepare(birds, tmp_path / "out", Here(), focal=True)
    report = prepare(birds, tmp_path / "out", Here(), focal=True)
    assert report.done_before == 5
    assert report.prepared.table == ready.prepared.table
    for name in ("windows.parquet", "manifest.json"):
        assert (tmp_path / "out" / name).read_bytes() == (ready.prepared.folder / name).read_bytes()


def test_several_processes_give_the_same(birds: Path, ready: module.Report, tmp_path: Path) -> None:
    shown: list[tuple[int, int]] = []
    report = prepare(birds, tmp_path / "out", Local(2), focal=True, progress=lambda a, b: shown.append((a, b)))
    assert report.prepared.table == ready.prepared.table
    assert shown[-1] == (18, 18)
    for row in (0, len(report.prepared) - 1):
        assert np.array_equal(report.prepared.samples(row), ready.prepared.samples(row))


# ---- bad input


def test_bad_files_are_listed_and_the_rest_goes_on(birds: Path, tmp_path: Path) -> None:
    here = tmp_path / "in" / "Parus_major"
    sing(here / "good.wav", 14, [(7, 4500)])
    (here / "text.wav").write_text("no sound")
    (here / "empty.mp3").write_bytes(b"")
    whole = sing(here / "cut.wav", 8, [(3, 4500)]).read_bytes()
    (here / "cut.wav").write_bytes(whole[: len(whole) // 2])
    soundfile.write(here / "silent.flac", np.zeros(SAMPLE_RATE), SAMPLE_RATE)
    for name, kind, rate, channels in (
        ("8bit.wav", "PCM_U8", 16_000, 1),
        ("24bit.wav", "PCM_24", 44_100, 2),
        ("96k.wav", "FLOAT", 96_000, 1),
        ("seven.wav", "PCM_16", 32_000, 7),
    ):
        t = np.arange(7 * rate) / rate
        x = 0.5 * np.sin(2 * np.pi * 4500 * t) * (np.abs(t - 3) < 0.3) + 0.01 * np.sin(7e4 * t**2)
        soundfile.write(here / name, np.repeat(x[:, None], channels, 1), rate, subtype=kind)
    report = prepare(tmp_path / "in", tmp_path / "out", Here(), focal=True)
    assert set(report.prepared.table["recording"]) == {
        f"Parus_major/{name}.wav" for name in ("good", "8bit", "24bit", "96k", "seven")
    }
    with open(tmp_path / "out" / "failures.csv", newline="") as file:
        rows = {Path(row["recording"]).name: row["reason"] for row in csv.DictReader(file)}
    assert rows.keys() == {"text.wav", "empty.mp3", "cut.wav", "silent.flac"}
    assert "not a sound file" in rows["text.wav"]
    assert "0 bytes" in rows["empty.mp3"]
    assert "truncated" in rows["cut.wav"]
    assert "silent" in rows["silent.flac"]


def test_nothing_usable_is_an_error_that_names_the_first(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.wav").write_text("no sound")
    with pytest.raises(NotelaError, match="none of the 1 recordings .*a.wav.*failures.csv"):
        prepare(tmp_path / "in", tmp_path / "out", Here())
    assert "a.wav" in (tmp_path / "out" / "failures.csv").read_text()


def test_mistakes_are_named(birds: Path, scape: Path, tmp_path: Path) -> None:
    for place in (birds / "out", birds.parent):
        with pytest.raises(NotelaError, match="lie one in the other.*; choose another place"):
            prepare(birds, place, Here(), focal=True)
    with pytest.raises(NotelaError, match=r"b.flac lies in no species' folder"):
        prepare(scape, tmp_path / "a", Here(), focal=True)
    with pytest.raises(NotelaError, match="leave the annotations out"):
        prepare(birds, tmp_path / "b", Here(), focal=True, boxes=[])
    with pytest.raises(NotelaError, match="split_by='by-day' is not one of"):
        prepare(birds, tmp_path / "c", Here(), focal=True, split_by="by-day")
    with pytest.raises(NotelaError, match="storage='mp3' is not one of"):
        Settings(storage="mp3")  # type: ignore[arg-type]
    sing(tmp_path / "twice" / "x" / "a.wav", 6, [(2, 2000)])
    sing(tmp_path / "twice" / "y" / "a.wav", 6, [(2, 2000)])
    with pytest.raises(NotelaError, match="two recordings have one name, 'a'"):
        prepare(tmp_path / "twice", tmp_path / "d", Here(), boxes=BOXES)


def test_what_is_no_prepared_data_set_says_so(tmp_path: Path, ready: module.Report) -> None:
    with pytest.raises(NotelaError, match="is not a prepared data set: manifest.json is missing; make one with"):
        prepared.read(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(NotelaError, match="cannot be read as a prepared data set"):
        prepared.read(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(NotelaError, match="was made by a newer notela"):
        prepared.read(tmp_path)


def test_a_full_disk_stops_in_a_sentence_and_loses_nothing(birds: Path, ready: module.Report, tmp_path: Path) -> None:
    """A real small disk where one can be mounted; otherwise a write that says so."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], check=False).returncode == 0
    if not mounted:
        pytest.skip("no small disk can be mounted here")
    try:
        with pytest.raises(NotelaError, match=f"{os.strerror(errno.ENOSPC)}.*run the same command again"):
            prepare(birds, disk / "out", Here(), focal=True)
        kept = list((disk / "out" / "parts").glob("*.json"))
        assert kept
        assert not list((disk / "out" / "parts").glob(".*"))
        subprocess.run(["mount", "-o", "remount,size=60m", str(disk)], check=True)
        report = prepare(birds, disk / "out", Here(), focal=True)
        assert report.done_before == len(kept)
        assert report.prepared.table == ready.prepared.table
    finally:
        subprocess.run(["umount", str(disk)], check=False)


@pytest.mark.parametrize("settings", ["most=20", "protocol='tiles-5s', storage='flac'"])
def test_memory_does_not_grow_with_the_length_of_a_recording(settings: str, tmp_path: Path) -> None:
    """Three hours against three minutes, in processes of their own."""
    peaks = {}
    for minutes in (3, 180):
        folder = tmp_path / str(minutes)
        folder.mkdir()
        rate = 8000
        with soundfile.SoundFile(folder / "a.wav", "w", rate, 1, "PCM_U8") as file:
            rng = np.random.default_rng(0)
            for _ in range(minutes):
                file.write(0.05 * rng.normal(size=60 * rate))
        code = (
            "import resource, sys\nfrom pathlib import Path\nfrom notela.bioacoustics import prepare as m\n"
            f"t = m.Task(Path(sys.argv[1]), 'a.wav', None, m.Settings({settings}), Path(sys.argv[2]), 'x')\n"
            "assert m.prepare_one(t) is None\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
        )
        out = subprocess.run(
            [sys.executable, "-c", code, str(folder / "a.wav"), str(folder)],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        ).stdout
        peaks[minutes] = int(out) / 1024
    assert peaks[180] < peaks[3] + 200  # MB; the log-mel spectrogram alone would take 690
