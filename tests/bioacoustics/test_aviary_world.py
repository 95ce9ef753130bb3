"""The aviary's recordings: what is heard in them, what is written about it, and that both are the same each time."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.signal
import soundfile

from conftest import Here
from notela.bioacoustics.annotations import read
from notela.bioacoustics.audio import SAMPLE_RATE
from notela.bioacoustics.aviary import DIFFICULTY, DOMAINS, Difficulty, species, write_domain, write_focal
from notela.bioacoustics.aviary.scene import Soundscape, Vocalisation, clarity, focal, soundscape
from notela.bioacoustics.aviary.species import few, folder_of
from notela.bioacoustics.prepare import prepare
from notela.engines import Outcome, attempt
from notela.errors import NotelaError

SECONDS = 20.0
EVERYTHING = replace(DIFFICULTY, audible=-300.0)


@pytest.fixture(scope="module")
def scenes() -> dict[str, Soundscape]:
    """One of each domain."""
    return {name: soundscape(domain, 1, SECONDS) for name, domain in DOMAINS.items()}


def covered(n: int, boxes: list[Vocalisation]) -> np.ndarray:
    """Which samples are in a box."""
    inside = np.zeros(n, bool)
    for box in boxes:
        inside[round(box.start * SAMPLE_RATE) : round(box.end * SAMPLE_RATE)] = True
    return inside


def alone(found: tuple[Vocalisation, ...]) -> list[Vocalisation]:
    """Those that no other one's box, nor its echo, touches."""
    apart = []
    for i, one in enumerate(found):
        others = [*found[:i], *found[i + 1 :]]
        if all(other.end + 0.6 < one.start or other.start - 0.6 > one.end for other in others):
            apart.append(one)
    return apart


# ---- soundscapes


@pytest.mark.parametrize("name", DOMAINS)
def test_a_soundscape_is_sound_and_not_clipped(scenes: dict[str, Soundscape], name: str) -> None:
    x = scenes[name].samples
    assert x.dtype == np.float32
    assert len(x) == SECONDS * SAMPLE_RATE
    assert np.isfinite(x).all()
    assert 0.01 < np.abs(x).max() < 0.95
    assert x.std() > 20 / 32768  # well above the steps of 16 bits
    assert abs(x.mean()) < 0.05 * x.std()
    for one, other in pairwise(scenes[name].vocalisations):
        assert one.start <= other.start + 1  # in order, but for silence before a box
    for one in scenes[name].vocalisations:
        assert one.species in DOMAINS[name].birds()
        assert 0 <= one.start < one.end <= SECONDS
        assert 0 <= one.low < one.high <= SAMPLE_RATE / 2
        assert one.audible == (one.clarity >= 0.5)


def test_without_noise_there_is_sound_in_boxes_and_nowhere_else() -> None:
    for name in ("OAK", "DELL"):
        made = soundscape(DOMAINS[name], 3, SECONDS, difficulty=EVERYTHING)
        assert all(one.audible for one in made.vocalisations)
        energy = np.square(made.birds)
        inside = covered(len(energy), list(made.vocalisations))
        assert inside.any()
        assert energy[~inside].sum() < 0.01 * energy.sum()
        for one in made.vocalisations:
            assert energy[covered(len(energy), [one])].mean() > 0


def test_what_gets_no_box_is_faint(scenes: dict[str, Soundscape]) -> None:
    for made in scenes.values():
        energy = np.square(made.birds)
        inside = covered(len(energy), [one for one in made.vocalisations if one.audible])
        assert energy[~inside].sum() <= 0.03 * np.square(made.samples).sum()


def test_boxes_begin_and_end_with_the_sound_and_hold_its_band() -> None:
    found = 0
    for number in range(6):
        made = soundscape(DOMAINS["BURN"], number, 30.0, difficulty=EVERYTHING)
        for one in alone(made.vocalisations):
            begin, end = round(one.start * SAMPLE_RATE), round(one.end * SAMPLE_RATE)
            around = made.birds[max(begin - 9600, 0) : end + 9600]
            x = made.birds[begin:end]
            assert np.square(x).sum() > 0.98 * np.square(around).sum()
            fifth = min(round(0.1 * SAMPLE_RATE), len(x) // 2)  # neither end is padded
            assert np.square(x[:fifth]).sum() > 1e-3 * np.square(x).sum()
            power = np.square(np.abs(np.fft.rfft(x)))
            f = np.fft.rfftfreq(len(x), 1 / SAMPLE_RATE)
            assert power[(f >= one.low) & (f <= one.high)].sum() > 0.95 * power.sum()
            assert power[(f >= one.low + 0.1 * (one.high - one.low)) & (f <= one.high)].sum() < power.sum()
            found += 1
    assert found >= 5


def test_the_same_numbers_give_the_same_bits_and_others_others() -> None:
    first, again = (soundscape(DOMAINS["FEN"], 2, 5.0, seed=4) for _ in range(2))
    np.testing.assert_array_equal(first.samples, again.samples)
    assert first.vocalisations == again.vocalisations
    for other in (
        soundscape(DOMAINS["FEN"], 3, 5.0, seed=4),
        soundscape(DOMAINS["FEN"], 2, 5.0, seed=5),
        soundscape(DOMAINS["OAK"], 2, 5.0, seed=4),
    ):
        a, b = first.others - first.others.mean(), other.others - other.others.mean()
        product = scipy.signal.fftconvolve(a, b[::-1]) / np.sqrt(np.square(a).sum() * np.square(b).sum())
        assert np.abs(product).max() < 0.35  # no stretch of noise occurs twice
    assert np.abs(scipy.signal.fftconvolve(a, a[::-1]) / np.square(a).sum()).max() == pytest.approx(1, rel=1e-3)


def test_birds_arrive_as_poisson_says() -> None:
    still = replace(DOMAINS["RIM"], activity=0.0, bouts=20.0, noises=replace(DOMAINS["RIM"].noises, wind=-60.0))
    recordings, seconds = 30, 15.0
    bouts = []
    for number in range(recordings):
        made = soundscape(still, number, seconds)
        bouts.append(len({(one.species, one.distance) for one in made.vocalisations}))
    expected = 20.0 * seconds / 60
    assert np.mean(bouts) == pytest.approx(expected, abs=4 * np.sqrt(expected / recordings))
    assert 0.4 < np.var(bouts) / np.mean(bouts) < 2  # 1, for Poisson


def test_birds_are_spread_over_the_area_within_reach() -> None:
    distances = []
    for number in range(12):
        found = soundscape(DOMAINS["DELL"], number, 15.0).vocalisations
        distances += list({one.distance for one in found})
    reach = DOMAINS["DELL"].reach
    assert 5 <= min(distances) <= max(distances) <= reach
    assert np.mean(np.array(distances) < reach / 2) == pytest.approx(0.25, abs=0.15)  # a quarter of the area


def test_one_place_makes_all_domains_harder() -> None:
    def share(difficulty: Difficulty) -> tuple[int, float]:
        made = [soundscape(DOMAINS[name], 5, 20.0, difficulty=difficulty) for name in ("DELL", "ISLE")]
        heard = [one.audible for each in made for one in each.vocalisations]
        return len(heard), float(np.mean(heard))

    far = replace(DIFFICULTY, farther=1.5)
    number, usual = share(far)
    assert share(replace(far, louder=60.0)) == (number, 0.0)
    assert share(replace(far, farther=400.0)) == (number, 0.0)
    assert share(replace(far, louder=15.0))[1] < usual <= share(DIFFICULTY)[1]
    assert share(replace(far, audible=20.0))[1] < usual
    assert share(replace(far, density=4.0))[0] > 2 * number


def test_clarity_is_the_share_of_energy_that_stands_out() -> None:
    sound, rest = np.array([[4.0, 4.0], [8.0, 4.0]], np.float32), np.array([[1.0, 3.0], [0.0, 5.0]], np.float32)
    assert clarity(sound, rest, 3.0) == pytest.approx(0.6)
    assert clarity(sound, rest, 0.0) == pytest.approx(0.8)
    assert clarity(sound, rest, -10.0) == 1.0


# ---- focal recordings


def test_focal_recordings_are_clear_and_come_from_assorted_recorders() -> None:
    contrasts, dull, loud = [], [], []
    for number in range(12):
        x = focal(3 * number, number, 8.0)
        assert np.isfinite(x).all()
        assert np.abs(x).max() < 0.95
        f, power = scipy.signal.welch(x, SAMPLE_RATE, nperseg=2048, average="median")
        dull.append(10 * np.log10(power[(f > 12_000) & (f < 15_000)].mean() / power[(f > 9000) & (f < 11_000)].mean()))
        loud.append(np.abs(x).max())
        high = scipy.signal.sosfilt(scipy.signal.butter(4, 800, "high", fs=SAMPLE_RATE, output="sos"), x)
        frames = 10 * np.log10(np.square(high.reshape(-1, 1600)).mean(1))
        contrasts.append(np.quantile(frames, 0.95) - np.quantile(frames, 0.05))
    assert np.median(contrasts) > 20
    assert min(contrasts) > 8
    assert np.std(dull) > 0.5
    assert max(loud) > 5 * min(loud)


def test_a_focal_recording_is_the_same_whoever_else_is_recorded() -> None:
    np.testing.assert_array_equal(focal(7, 2, 4.0, seed=1), focal(7, 2, 4.0, seed=1))
    assert not np.allclose(focal(7, 2, 4.0, seed=1), focal(7, 3, 4.0, seed=1))
    assert not np.allclose(focal(7, 2, 4.0, seed=1), focal(7, 2, 4.0, seed=2))


# ---- files


class Backwards:
    """An engine that begins with the last."""

    slots = 1
    running = 0

    def __enter__(self) -> Backwards:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def map(self, work: Callable[[Any], Any], items: Any) -> Iterator[Outcome]:
        for item in list(items)[::-1]:
            yield attempt(work, item, 1)


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}


def test_soundscapes_go_through_the_same_code_as_real_ones(tmp_path: Path) -> None:
    folder = write_domain(tmp_path / "world", "DELL", 2, 0.4, seed=1)
    assert folder == tmp_path / "world" / "DELL"
    with soundfile.SoundFile(folder / "soundscape_data" / "DELL_000.flac") as file:
        assert (file.samplerate, file.channels, file.subtype, file.frames) == (32_000, 1, "PCM_16", 0.4 * 60 * 32_000)
    whole = soundfile.read(folder / "soundscape_data" / "DELL_001.flac", dtype="int16")[0]
    assert np.abs(whole.astype(int)).max() < 32_000

    header = (folder / "annotations.csv").read_text().splitlines()[0]
    assert header == "Filename,Start Time (s),End Time (s),Low Freq (Hz),High Freq (Hz),Species eBird Code"
    boxes = read(folder / "annotations.csv")
    codes = {species()[number].code for number in DOMAINS["DELL"].birds()}
    for number in range(2):
        made = soundscape(DOMAINS["DELL"], number, 24.0, seed=1)
        mine = [box for box in boxes if box.recording == f"DELL_{number:03d}.flac"]
        heard = [one for one in made.vocalisations if one.audible]
        assert [round(one.start, 3) for one in heard] == [box.start for box in mine]
        assert [species()[one.species].code if one.identified else "????" for one in heard] == [b.label for b in mine]
    with open(folder / "species.csv", newline="") as table:
        assert {row["Species eBird Code"] for row in csv.DictReader(table)} == codes

    report = prepare(folder / "soundscape_data", tmp_path / "prepared", Here(), boxes=boxes)
    assert report.failures == report.missing == report.bare == []
    assert report.beyond == 0
    assert {one.code for one in report.prepared.classes} == {box.label for box in boxes} - {"????"} <= codes
    assert len(report.prepared.table) > 0


def test_focal_recordings_go_through_the_same_code_as_real_ones(tmp_path: Path) -> None:
    rare, common = few()[0], 0
    folder = write_focal(tmp_path / "world", each=4, only=(common, rare))
    counts = {path.name: len(list(path.glob("*.flac"))) for path in folder.iterdir() if path.is_dir()}
    assert counts == {folder_of(species()[common]): 4, folder_of(species()[rare]): 1}
    report = prepare(folder, tmp_path / "prepared", Here(), focal=True)
    assert {one.code for one in report.prepared.classes} == set(counts)
    assert report.failures == []
    assert 5 * 8 < report.seconds < 5 * 20


def test_what_exists_is_not_made_again_and_what_is_missing_is_the_same(tmp_path: Path) -> None:
    folder = write_domain(tmp_path, "RIM", 3, 0.1)
    before, tables = bytes_in(folder), (folder / "annotations.csv").read_text()
    kept = folder / "soundscape_data" / "RIM_000.flac"
    (folder / "soundscape_data" / "RIM_001.flac").unlink()
    (folder / "boxes" / "RIM_002.csv").unlink()
    made = kept.stat().st_mtime_ns
    seen: list[tuple[int, int]] = []
    write_domain(tmp_path, "RIM", 3, 0.1, engine=Backwards(), progress=lambda *done: seen.append(done))
    assert bytes_in(folder) == before
    assert (folder / "annotations.csv").read_text() == tables
    assert kept.stat().st_mtime_ns == made
    assert seen == [(2, 3), (3, 3)]

    alone = write_domain(tmp_path / "other", "RIM", 2, 0.1)
    assert {name: before[name] for name in bytes_in(alone) if "RIM_" in name} == {
        name: content for name, content in bytes_in(alone).items() if "RIM_" in name
    }
    assert bytes_in(write_domain(tmp_path / "other", "RIM", 3, 0.1)) == before


def test_focal_recordings_are_resumed_too(tmp_path: Path) -> None:
    folder = write_focal(tmp_path, 2, only=(1, 2), engine=Backwards())
    before = bytes_in(folder)
    victim = next(folder.rglob("*.flac"))
    victim.unlink()
    write_focal(tmp_path, 2, only=(2, 1))
    assert bytes_in(folder) == before
    assert not list(folder.rglob(".*"))


def test_mistakes_are_named(tmp_path: Path) -> None:
    write_domain(tmp_path, "RIM", 1, 0.1)
    with pytest.raises(NotelaError, match=r"RIM was made with seed=0; remove it"):
        write_domain(tmp_path, "RIM", 1, 0.1, seed=1)
    with pytest.raises(NotelaError, match="was made with difficulty="):
        write_domain(tmp_path, "RIM", 1, 0.1, difficulty=Difficulty(farther=2.0))
    with pytest.raises(NotelaError, match=r"'XYZ' is not one of 'RIM', 'FEN'"):
        write_domain(tmp_path, "XYZ", 1, 1.0)
    with pytest.raises(NotelaError, match="minutes=60 must be between 0.1 and 10; make more"):
        write_domain(tmp_path, "RIM", 1, 60)
    with pytest.raises(NotelaError, match="recordings=0"):
        write_domain(tmp_path, "RIM", 0, 1.0)
    with pytest.raises(NotelaError, match="seed=-1"):
        write_domain(tmp_path, "OAK", 1, 1.0, seed=-1)
    with pytest.raises(NotelaError, match="each=0"):
        write_focal(tmp_path, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotelaError, match="cannot be used"):
        write_focal(tmp_path / "file", 1)
