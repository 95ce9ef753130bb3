"""One recording in memory: a focal one, with one bird in front, or a soundscape with its boxes.

Each has random numbers of its own, from the seed, its kind and its number, so any of them can be made alone, in any
order and in any process, with the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy.fft

from notela.bioacoustics.audio import SAMPLE_RATE, Samples
from notela.bioacoustics.aviary.domains import DIFFICULTY, Difficulty, Domain
from notela.bioacoustics.aviary.noise import ANIMALS, NEVER, Noises, noise
from notela.bioacoustics.aviary.place import Floats, Place, Recorder
from notela.bioacoustics.aviary.song import Singer, Voice
from notela.bioacoustics.aviary.species import SPECIES, voices

PEAK = 0.9  # of full scale: nothing is clipped
CALLS = 0.3  # of bouts are calls
SONGS = 4.0  # in a bout, on average
CLEAR = 0.5  # of the energy of a vocalisation must be heard, or it gets no box
UNCLEAR, UNIDENTIFIED = 0.7, 0.2  # where less than that is heard, so many cannot be named
INSIDE_TIME = 0.995  # of the energy is between the ends of a box
INSIDE_BAND = 0.98  # and so much between low and high

_FRAME = 1024  # samples of the cells in which sounds are compared: 32 ms, 31 Hz
_WINDOW = np.hanning(_FRAME + 1)[:-1].astype(np.float32)
_FOCAL, _SOUNDSCAPE = 1, 2
_BIRDS, _NOISES, _LABELS = 0, 1, 2


class Vocalisation(NamedTuple):
    """A song or call in a recording; seconds and Hz."""

    species: int
    start: float
    end: float
    low: float
    high: float
    distance: float
    clarity: float
    audible: bool
    """Whether it gets a box."""
    identified: bool


@dataclass(frozen=True)
class Soundscape:
    """A recording in layers, at the level at which it is written."""

    birds: Samples
    """Every bird, and nothing else."""
    others: Samples
    """Noises and other animals."""
    vocalisations: tuple[Vocalisation, ...]
    """In order of time, faint ones too."""

    @property
    def samples(self) -> Samples:
        """What the recorder wrote."""
        return self.birds + self.others


class _Placed(NamedTuple):
    species: int  # below 0: an animal
    begin: int
    samples: Samples
    distance: float


def soundscape(
    domain: Domain, number: int, seconds: float, seed: int = 0, difficulty: Difficulty = DIFFICULTY
) -> Soundscape:
    """The `number`-th recording of a domain.

    Birds are Poisson: how many bouts of each species begin does not depend on who else is there. All of a bout comes
    from one bird in one place, which is anywhere within the domain's reach.
    """
    n = round(seconds * SAMPLE_RATE)
    rngs = [np.random.default_rng([seed, _SOUNDSCAPE, domain.key, number, part]) for part in range(3)]
    recorder = _coloured_by(domain.recorder, difficulty, rngs[_NOISES])
    place = Place(recorder, domain.leaves, domain.echo + difficulty.echo, domain.decay, rngs[_NOISES])
    others = noise(n, domain.noises, difficulty.louder, recorder, rngs[_NOISES])
    birds = np.zeros(n, np.float32)
    placed = _inhabitants(domain, place, n, difficulty, rngs[_BIRDS])
    for one in placed:
        (birds if one.species >= 0 else others)[one.begin : one.begin + len(one.samples)] += one.samples
    whole = birds + others
    found = [
        _heard(one, whole, difficulty, rngs[_LABELS].random())
        for one in sorted(placed, key=lambda one: one.begin)
        if one.species >= 0
    ]
    gain = _gain(whole, recorder)
    return Soundscape(gain * birds, gain * others, tuple(found))


def focal(species: int, number: int, seconds: float, seed: int = 0) -> Samples:
    """The `number`-th recording of a species: a bird 3 to 15 m in front of somebody's recorder, singing or calling
    again and again. In one of four another species is heard faintly behind it, and nothing says so, as often on
    Xeno-Canto."""
    n = round(seconds * SAMPLE_RATE)
    rng = np.random.default_rng([seed, _FOCAL, species, number])
    recorder = Recorder(
        low_cut=float(rng.uniform(40, 250)),
        high_cut=float(rng.uniform(11_000, 16_000)),
        tilt=float(rng.normal(0, 1)),
        bump=float(rng.normal(0, 2.5)),
        bump_at=float(rng.uniform(1000, 8000)),
        hiss=float(rng.uniform(-78, -62)),
        gain=float(rng.uniform(-20, 10)),
    )
    place = Place(recorder, float(rng.uniform(0, 0.8)), float(rng.uniform(-25, -10)), float(rng.uniform(0.2, 0.8)), rng)
    noises = Noises(
        wind=float(rng.uniform(-65, -45)),
        water=float(rng.uniform(-75, -62)) if rng.random() < 0.2 else NEVER,
        rain=-62.0,
        wet=0.05,
        insects=float(rng.uniform(-80, -66)) if rng.random() < 0.3 else NEVER,
    )
    whole = noise(n, noises, 0.0, recorder, rng)
    performers = [(voices()[species], rng.uniform(3, 15), 1.5)]
    if rng.random() < 0.25:
        another = (species + int(rng.integers(1, SPECIES))) % SPECIES
        performers.append((voices()[another], rng.uniform(60, 120), 8.0))
    for voice, distance, pause in performers:
        singer = _singer(voice, place, distance, rng)
        call, at = bool(rng.random() < CALLS), float(rng.uniform(0, 0.5 + pause / 3))
        while at < seconds - 0.1:
            made = singer.vocalise(rng, call)[: n - round(at * SAMPLE_RATE)]
            whole[round(at * SAMPLE_RATE) :][: len(made)] += made
            at += len(made) / SAMPLE_RATE + float(rng.exponential(pause))
    return _gain(whole, recorder) * whole


def clarity(sound: Floats, rest: Floats, decibels: float) -> float:
    """The share of a sound's energy, (frames, bins) of power, that is in cells where it is so many dB above the rest:
    what an annotator sees of it on a spectrogram. It asks for no more than that a sound stands out where it is strong,
    so a whistle through rain and a song that another bird covers in part are judged alike."""
    return float(sound[sound > 10 ** (decibels / 10) * rest].sum() / max(sound.sum(), 1e-30))


def _inhabitants(
    domain: Domain, place: Place, n: int, difficulty: Difficulty, rng: np.random.Generator
) -> list[_Placed]:
    """All songs and calls, of birds and other animals, that begin in a recording."""
    minutes = n / SAMPLE_RATE / 60
    active = float(np.exp(rng.normal(-(domain.activity**2) / 2, domain.activity)))
    occurring = zip(domain.birds(), domain.rates(), strict=True)
    kinds = [(number, voices()[number], active * rate) for number, rate in occurring]
    kinds += [(-1, voice, domain.animals / len(ANIMALS)) for voice in ANIMALS]
    found = []
    for number, voice, rate in kinds:
        for _ in range(rng.poisson(rate * difficulty.density * minutes)):
            distance = max(domain.reach * float(np.sqrt(rng.random())), 5.0) * difficulty.farther
            singer = _singer(voice, place, distance, rng)
            call, pause = bool(rng.random() < CALLS), float(rng.uniform(1.5, 6))
            at = float(rng.uniform(0, n / SAMPLE_RATE))
            for _ in range(rng.geometric(1 / SONGS)):
                begin = round(at * SAMPLE_RATE)
                if begin >= n - _FRAME:
                    break
                made = singer.vocalise(rng, call)[: n - begin]
                found.append(_Placed(number, begin, made, distance))
                at += len(made) / SAMPLE_RATE + pause * float(rng.uniform(0.6, 1.4))
    return found


def _singer(voice: Voice, place: Place, distance: float, rng: np.random.Generator) -> Singer:
    direction = int(rng.integers(1 << 16))
    return Singer(voice, rng, lambda samples: place.carry(samples, distance, direction))


def _heard(one: _Placed, whole: Samples, difficulty: Difficulty, chance: float) -> Vocalisation:
    """Draw the box, as an annotator does, around what there is of a sound, and judge whether it can be heard."""
    energy = np.cumsum(np.square(one.samples), dtype=np.float64)
    outside = (1 - INSIDE_TIME) / 2 * energy[-1]
    first, last = np.searchsorted(energy, (outside, energy[-1] - outside)).tolist()
    mine = one.samples[first : last + 1]
    sound = _power(mine)
    rest = _power(whole[one.begin + first : one.begin + last + 1] - mine)
    band = np.cumsum(sound.sum(0), dtype=np.float64)
    beyond = (1 - INSIDE_BAND) / 2 * band[-1]
    low, high = np.searchsorted(band, (beyond, band[-1] - beyond)).tolist()
    clear = clarity(sound[:, low : high + 1], rest[:, low : high + 1], difficulty.audible)
    hertz = SAMPLE_RATE / _FRAME
    return Vocalisation(
        one.species,
        (one.begin + first) / SAMPLE_RATE,
        (one.begin + last + 1) / SAMPLE_RATE,
        max(low - 1, 0) * hertz,
        (high + 1) * hertz,
        one.distance,
        clear,
        clear >= CLEAR,
        clear >= UNCLEAR or chance >= UNIDENTIFIED,
    )


def _power(samples: Samples) -> Floats:
    """(frames, bins)."""
    rows = -(-len(samples) // _FRAME)
    padded = np.zeros(rows * _FRAME, np.float32)
    padded[: len(samples)] = samples
    spectrum = scipy.fft.rfft(padded.reshape(rows, _FRAME) * _WINDOW)
    found: Floats = np.square(spectrum.real) + np.square(spectrum.imag)
    return found


def _coloured_by(recorder: Recorder, difficulty: Difficulty, rng: np.random.Generator) -> Recorder:
    """One of a domain's recorders: they are of one make and differ a little."""
    tilt, bump, hiss = rng.normal(0, (0.3, 0.7, 1.0)).tolist()
    colour = difficulty.colour
    return replace(
        recorder,
        tilt=colour * (recorder.tilt + tilt),
        bump=colour * (recorder.bump + bump),
        hiss=recorder.hiss + hiss,
    )


def _gain(whole: Samples, recorder: Recorder) -> np.float32:
    """The recorder's, or less, where that would clip."""
    return np.float32(min(10 ** (recorder.gain / 20), PEAK / max(float(np.abs(whole).max()), 1e-9)))
