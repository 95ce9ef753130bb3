"""The aviary's birds, places and noises, measured on what they sound like."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.signal
import scipy.stats

from notela.bioacoustics.audio import SAMPLE_RATE
from notela.bioacoustics.aviary import DOMAINS, SPECIES, VALIDATION, species
from notela.bioacoustics.aviary.noise import ANIMALS, NEVER, Noises, coloured, noise, varied
from notela.bioacoustics.aviary.place import ECHO_SECONDS, Place, Recorder, loss
from notela.bioacoustics.aviary.song import KINDS, LONGEST_SONG, Note, Singer, sound
from notela.bioacoustics.aviary.species import RANGES, few, folder_of, voices
from notela.bioacoustics.taxonomy import resolve

FLAT = Recorder(low_cut=1e-3, high_cut=1e6, hiss=-300)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def spectrum(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hz, and power a Hz."""
    return scipy.signal.welch(samples.astype(float), SAMPLE_RATE, nperseg=4096)


def level_at(samples: np.ndarray, low: float, high: float) -> float:
    """dB in a band."""
    f, power = spectrum(samples)
    return 10 * np.log10(power[(f >= low) & (f < high)].mean())


# ---- names


def test_the_birds_have_a_taxonomy_and_no_name_of_a_real_one() -> None:
    birds = species()
    assert len(birds) == SPECIES == len(voices())
    for rank, count in {"code": 40, "scientific": 40, "common": 40, "genus": 20, "family": 10, "order": 5}.items():
        assert len({getattr(bird, rank) for bird in birds}) == count
    assert all(bird.scientific.startswith(f"{bird.genus} ") for bird in birds)
    names = [name for bird in birds for name in (*bird, folder_of(bird))]
    assert resolve(names).matched == {}
    assert resolve(names).ambiguous == {}


def test_every_rank_lies_within_one_of_the_rank_above() -> None:
    for below, above in (("genus", "family"), ("family", "order")):
        pairs = {(getattr(bird, below), getattr(bird, above)) for bird in species()}
        assert len(pairs) == len({pair[0] for pair in pairs})


# ---- voices


def test_all_kinds_of_notes_are_sung_and_called_over_a_wide_range_of_pitches() -> None:
    assert {voice.notes[0].kind for voice in voices()} == set(KINDS)
    assert len({voice.notes[-1].kind for voice in voices()}) >= 3
    for kind in KINDS:
        pitches = [note.pitch for voice in voices() for note in voice.notes if note.kind == kind]
        low, high = RANGES[kind]["pitch"]
        assert low < min(pitches) < max(pitches) < high
        assert max(pitches) / min(pitches) > 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_note_has_power_one_soft_ends_no_offset_and_nothing_above_the_highest_harmonic(kind: str) -> None:
    for note in [note for voice in (*voices(), *ANIMALS) for note in voice.notes if note.kind == kind][:12]:
        x = sound(note)
        assert x.dtype == np.float32
        assert np.mean(np.square(x)) == pytest.approx(1, rel=1e-3)
        assert abs(x[0]) < 1e-3
        assert abs(x[-1]) < 1e-2
        assert abs(x.mean()) < 0.01
        power = np.square(np.abs(np.fft.rfft(x)))
        assert power[np.fft.rfftfreq(len(x), 1 / SAMPLE_RATE) > 15_000].sum() < 1e-3 * power.sum()


def test_a_whistle_glides_as_far_as_it_says() -> None:
    x = sound(Note("whistle", 3000, 0.5, 0.0, 0.4, 0.1, 5, 0.0, 0.0, 60))
    phase = np.unwrap(np.angle(scipy.signal.hilbert(x)))
    pitch = np.diff(phase) * SAMPLE_RATE / (2 * np.pi)
    quarters = [np.median(pitch[round(len(pitch) * u) - 200 :][:400]) for u in (0.25, 0.5, 0.75)]
    np.testing.assert_allclose(quarters, 3000 * 2 ** np.array([-0.125, 0, 0.125]), rtol=0.01)


@pytest.mark.parametrize(("kind", "rate"), [("trill", 12.0), ("buzz", 90.0)])
def test_trills_and_buzzes_pulse_at_their_rate(kind: str, rate: float) -> None:
    x = sound(Note(kind, 4000, 0.0, 0.0, 1.0, 0.1, rate, 0.1, 0.9, 60))
    loudness = np.square(np.abs(scipy.signal.hilbert(x)))
    power = np.abs(np.fft.rfft(loudness - loudness.mean()))
    assert np.fft.rfftfreq(len(x), 1 / SAMPLE_RATE)[power.argmax()] == pytest.approx(rate, abs=1.01)


def test_harmonics_fall_by_the_tilt() -> None:
    x = sound(Note("stack", 1000, 0.0, 0.0, 1.0, 0.1, 5, 0.0, 0.0, 6))
    f, power = scipy.signal.periodogram(x, SAMPLE_RATE, "hann")
    found = [10 * np.log10(power[np.abs(f - 1000 * k).argmin()]) for k in (1, 2, 3, 4)]
    np.testing.assert_allclose(np.diff(found), -6, atol=0.1)


def portrait(x: np.ndarray) -> np.ndarray:
    """What a listener remembers of a song, whatever its loudness: bands of pitch, and how quickly each changes."""
    f, _, power = scipy.signal.spectrogram(x, SAMPLE_RATE, nperseg=512, noverlap=0)
    edges = np.geomspace(300, 12_000, 25)
    bands = np.stack([power[(f >= a) & (f < b)].sum(0) for a, b in pairwise(edges)])
    loud = np.log10(bands / bands.max() + 1e-4)
    changes = np.abs(np.fft.rfft(loud.mean(0), 128))[1:40]
    return np.concatenate([loud.mean(1), 0.3 * np.log10(changes + 1)])


@pytest.fixture(scope="module")
def portraits() -> np.ndarray:
    """(species, individuals, features) of two songs each."""
    found = []
    for number, voice in enumerate(voices()):
        singers = [(Singer(voice, random), random) for random in (rng(100 * number + i) for i in range(6))]
        found.append([np.mean([portrait(one.vocalise(random)) for _ in range(2)], 0) for one, random in singers])
    return np.array(found)


def test_relatives_sound_alike(portraits: np.ndarray) -> None:
    centres = portraits.mean(1)
    apart = np.linalg.norm(centres[:, None] - centres[None], axis=-1)
    distance: dict[str, list[float]] = {"genus": [], "family": [], "order": [], "none": []}
    for i, one in enumerate(species()):
        for j, other in enumerate(species()[:i]):
            rank = next((r for r in ("genus", "family", "order") if getattr(one, r) == getattr(other, r)), "none")
            distance[rank].append(apart[i, j])
    genus, family, order, none = (np.mean(distance[rank]) for rank in ("genus", "family", "order", "none"))
    assert genus < 0.85 * family
    assert family < order < 0.95 * none
    assert family < 0.85 * none


def test_a_bird_sounds_like_its_species_and_not_quite_like_others_of_it(portraits: np.ndarray) -> None:
    centres, others = portraits[:, 3:].mean(1), portraits[:, :3]
    nearest = np.linalg.norm(others[:, :, None] - centres, axis=-1).argmin(-1)
    assert np.mean(nearest == np.arange(SPECIES)[:, None]) > 0.5  # by chance: 0.025
    assert (portraits.std(1).max(1) > 0.01).all()


def test_a_song_lasts_no_longer_than_it_may_and_a_call_is_shorter() -> None:
    for number, voice in enumerate(voices()):
        random = rng(number)
        singer = Singer(voice, random)
        songs = [len(singer.vocalise(random)) / SAMPLE_RATE for _ in range(3)]
        assert 0.15 < min(songs) <= max(songs) <= LONGEST_SONG + max(note.length for note in singer.notes)
        assert len(singer.vocalise(random, call=True)) / SAMPLE_RATE < 1.6


def test_the_same_random_numbers_give_the_same_bird() -> None:
    first, second, third = (Singer(voices()[5], rng(seed)).vocalise(rng(7)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert len(first) != len(third) or not np.allclose(first, third)


# ---- place


def test_a_sound_spreads_and_high_pitches_are_swallowed_sooner() -> None:
    f = np.array([0, 2000, 8000], np.float32)
    in_the_open = loss(f, 20, 0)[0] - loss(f, 10, 0)[0]
    assert in_the_open == pytest.approx(20 * np.log10(2), abs=1e-3)
    assert (np.diff(loss(f, 100, 0.5)) > 0).all()
    assert loss(f, 100, 1)[2] > loss(f, 100, 0)[2]


def test_what_arrives_is_weaker_by_the_law_and_duller_with_distance() -> None:
    x = rng().standard_normal(SAMPLE_RATE).astype(np.float32)
    place = Place(FLAT, 0.5, -300.0, 0.5, rng())
    tilt = []
    for distance in (1.0, 10.0, 50.0, 200.0):
        arrived = place.carry(x, distance, 0)[: len(x)]
        for at in (1000, 4000, 9000):
            expected = loss(np.array([at], np.float32), distance, 0.5)[0]
            lost = level_at(x, at - 100, at + 100) - level_at(arrived, at - 100, at + 100)
            assert lost == pytest.approx(expected, abs=0.2)
        tilt.append(level_at(arrived, 900, 1100) - level_at(arrived, 8900, 9100))
    assert (np.diff(tilt) > 0).all()


def test_an_echo_follows_louder_from_afar_and_dies_away() -> None:
    click = np.zeros(64, np.float32)
    click[0] = 1
    place = Place(FLAT, 0.0, -6.0, 0.5, rng())
    near, far = (np.square(place.carry(click, distance, 1)) for distance in (20.0, 80.0))
    assert len(near) == 64 + round(ECHO_SECONDS * SAMPLE_RATE)
    near_ratio, far_ratio = (energy[100:].sum() / energy[:100].sum() for energy in (near, far))
    assert far_ratio == pytest.approx(4 * near_ratio, rel=0.2)
    assert (np.diff([part.sum() for part in np.array_split(far[100:], 4)]) < 0).all()
    assert not np.allclose(place.carry(click, 80.0, 2), place.carry(click, 80.0, 1))


def test_a_recorder_colours_what_it_hears() -> None:
    recorder = Recorder(low_cut=200, high_cut=8000, tilt=2, bump=6, bump_at=4000)
    f = np.array([200, 1000, 4000, 8000], np.float32)
    plain = Recorder(low_cut=200, high_cut=8000).response(f)
    assert 20 * np.log10(plain[0]) == pytest.approx(-3, abs=0.2)
    assert 20 * np.log10(plain[3]) == pytest.approx(-3, abs=0.2)
    coloured_more = 20 * np.log10(recorder.response(f) / plain)
    assert coloured_more[2] == pytest.approx(6 + 2 * np.log2(4 / 3), abs=0.1)

    x = rng().standard_normal(4 * SAMPLE_RATE).astype(np.float32)
    heard = Place(recorder, 0.0, -300.0, 0.5, rng()).carry(x, 1.0, 0)[: len(x)]
    for at in (1000, 4000, 9000):
        gain = level_at(heard, at - 50, at + 50) - level_at(x, at - 50, at + 50)
        assert gain == pytest.approx(20 * np.log10(recorder.response(np.array([at], np.float32))[0]), abs=0.3)


# ---- noise


def test_coloured_noise_has_its_shape_and_no_seams() -> None:
    x = coloured(20 * SAMPLE_RATE, lambda f: 1000 / np.maximum(f, 1000), None, rng())
    assert np.mean(np.square(x)) == pytest.approx(1, rel=0.02)
    assert level_at(x, 1000, 1200) - level_at(x, 4000, 4800) == pytest.approx(20 * np.log10(4), abs=0.4)
    loudness = np.square(x[: len(x) // 4096 * 4096].reshape(-1, 4096)).mean(1)
    assert loudness.min() > 0.7
    assert loudness.max() < 1.4
    assert np.abs(np.diff(x)).max() < 6 * np.diff(x).std()
    assert scipy.stats.kurtosis(x) == pytest.approx(0, abs=0.05)


def test_noise_varies_by_as_many_decibels_as_asked() -> None:
    steady = np.ones(120 * SAMPLE_RATE, np.float32)
    gusts = 20 * np.log10(varied(steady, 5.0, 1.0, rng())[:: SAMPLE_RATE // 10])
    assert gusts.std() == pytest.approx(5, rel=0.25)
    assert np.abs(np.diff(gusts)).max() < 6


def test_each_noise_is_where_it_belongs() -> None:
    n = 8 * SAMPLE_RATE
    still = Noises(wind=-100, wet=0, insects=NEVER)

    def heard(**settings: object) -> np.ndarray:
        return noise(n, replace(still, **settings), 0.0, replace(FLAT, hiss=-90), rng(3))

    quiet = heard()
    for settings, low, high in (
        ({"wind": -30.0}, 40, 120),
        ({"water": -40.0}, 300, 900),
        ({"rain": -40.0, "wet": 1.0}, 3000, 5000),
        ({"insects": -40.0, "pitches": (6000.0, 6001.0)}, 5900, 6100),
    ):
        there = heard(**settings)
        assert level_at(there, low, high) > level_at(quiet, low, high) + 20
        assert level_at(there, low, high) > level_at(there, 12_000, 15_000) + 10
    f, power = spectrum(heard(insects=-40.0, pitches=(6000.0, 6001.0)))
    assert f[power.argmax()] == pytest.approx(6000, rel=0.06)


def test_louder_is_so_many_decibels_louder() -> None:
    soft, loud = (noise(2 * SAMPLE_RATE, Noises(), louder, FLAT, rng(1)) for louder in (0.0, 12.0))
    np.testing.assert_allclose(loud, 10**0.6 * soft, rtol=1e-3, atol=1e-6)


# ---- domains


def test_one_validation_domain_and_six_test_domains_after_the_papers_table() -> None:
    paper = {"RIM": 19, "FEN": 96, "OAK": 56, "ISLE": 27, "DELL": 48, "BURN": 78, "SHADE": 63}
    low_data = {"RIM": 0.05, "FEN": 0.03, "OAK": 0, "ISLE": 0.44, "DELL": 0, "BURN": 0.1, "SHADE": 0.06}
    assert list(DOMAINS) == list(paper)
    assert VALIDATION == "RIM"
    for name, domain in DOMAINS.items():
        birds = domain.birds()
        assert len(set(birds)) == len(birds) == domain.species
        assert domain.species == pytest.approx(0.35 * paper[name], abs=1)
        assert len(set(birds) & set(few())) == domain.rare
        assert domain.rare / domain.species == pytest.approx(low_data[name], abs=0.06)
        rates = np.array(domain.rates())
        assert rates.sum() == pytest.approx(domain.bouts)
        assert (np.diff(rates) < 0).all()
    regions = [domain.birds() for domain in DOMAINS.values()]
    assert len(set(regions)) == len(regions)
    assert len(set().union(*regions)) > 0.9 * SPECIES  # a source knows more than it will meet
