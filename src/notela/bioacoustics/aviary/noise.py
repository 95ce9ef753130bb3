"""What else is heard: wind, rain, water, insects, other animals, the recorder's hiss.

Made anew for every recording from its own random numbers, as random spectra: no two recordings share any of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft
import scipy.signal

from notela.bioacoustics.audio import SAMPLE_RATE, Samples
from notela.bioacoustics.aviary.place import Floats, Recorder
from notela.bioacoustics.aviary.song import Note, Voice

NEVER = -200.0  # dB: not there at all

_STEP = SAMPLE_RATE // 100  # samples between two values of a loudness that varies
_BLOCK, _BLEND = 2**17, 2**13  # samples: 4 s made at a time, 0.26 s in which one fades into the next
_DROP = SAMPLE_RATE // 100  # samples that a raindrop sounds

Gains = npt.NDArray[np.floating[Any]]
Shape = Callable[[Floats], Gains]
"""From Hz to a gain."""


def _animal(kind: str, pitch: float, length: float, gap: float, rate: float, pulse: float, tilt: float) -> Voice:
    note = Note(kind, pitch, -0.15, 0.1, length, gap, rate, 0.05, pulse, tilt)
    longer = Note(kind, 0.9 * pitch, 0.1, -0.1, 1.6 * length, 1.5 * gap, rate, 0.03, pulse, tilt)
    return Voice((note, longer), (((0, 6),), ((0, 2), (1, 1)), ((1, 3),)), (((0, 1),), ((1, 1),)))


ANIMALS = (
    _animal("stack", 420, 0.14, 0.3, 45, 0.9, 4),  # croaks
    _animal("stack", 650, 0.07, 0.09, 20, 0.3, 3),  # barks and chatters
    _animal("trill", 1500, 0.5, 0.4, 40, 1.0, 12),  # peeps
)
"""Whoever vocalises and is no bird: nobody labels it."""


@dataclass(frozen=True)
class Noises:
    """Levels in dB against a bird at a metre's distance; recordings of a place differ by some 3 dB."""

    wind: float = -50.0
    gusts: float = 4.0
    """How much it varies within a recording, in dB."""
    water: float = NEVER
    """A brook or surf: steady."""
    rain: float = -52.0
    wet: float = 0.1
    """The share of recordings in which it rains."""
    insects: float = -58.0
    sorts: int = 1
    """Of insects at a time."""
    pitches: tuple[float, float] = (4000.0, 8000.0)
    """Between which insects sing, in Hz."""


def noise(n: int, noises: Noises, louder: float, recorder: Recorder, rng: np.random.Generator) -> Samples:
    """So many samples of a place's noises as a recorder hears them; `louder`, in dB, goes for all of them."""
    ear = recorder.response

    def gain(decibels: float) -> np.float32:
        return np.float32(10 ** ((decibels + louder + rng.normal(0, 3)) / 20))

    total = np.float32(10 ** ((recorder.hiss + louder) / 20)) * coloured(n, _hiss, None, rng)
    total += gain(noises.wind) * varied(coloured(n, _wind, ear, rng), noises.gusts, 0.3, rng)
    if noises.water > NEVER:
        total += gain(noises.water) * coloured(n, _water, ear, rng)
    if rng.random() < noises.wet:
        total += gain(noises.rain) * _rain(n, ear, rng)
    if noises.insects > NEVER:
        for _ in range(noises.sorts):
            total += gain(noises.insects) * _insect(n, float(rng.uniform(*noises.pitches)), ear, rng)
    return total


def coloured(n: int, shape: Shape, ear: Shape | None, rng: np.random.Generator) -> Samples:
    """Gaussian noise whose spectrum has a shape, with a mean square of 1; then as an ear hears it.

    Made in blocks of four seconds from random spectra (where the shape is nothing, nothing is drawn): one transform for
    the whole would take longer. A block fades into the next so that powers, not amplitudes, add up to 1.
    """
    frequencies = scipy.fft.rfftfreq(_BLOCK, 1 / SAMPLE_RATE).astype(np.float32)
    gains = shape(frequencies).astype(np.float32)
    gains[0] = gains[-1] = 0
    inside = np.flatnonzero(gains)
    used = slice(int(inside[0]), int(inside[-1]) + 1)
    # irfft gives a mean square of 2 Σ|S|² / size², and |S|² is 2 gains² on average.
    gains = gains[used] * np.float32(_BLOCK / (2 * np.sqrt(np.square(gains, dtype=np.float64).sum())))
    if ear is not None:
        gains *= ear(frequencies[used])
    hop = _BLOCK - _BLEND
    rows = max(-(-n // hop), 1)
    spectrum = np.zeros((rows, len(frequencies)), np.complex64)
    drawn = rng.standard_normal((rows, 2 * len(gains)), dtype=np.float32)
    np.multiply(gains, drawn.view(np.complex64), out=spectrum[:, used])
    blocks: Floats = scipy.fft.irfft(spectrum, _BLOCK, overwrite_x=True)
    rise = np.sin(np.linspace(0, np.pi / 2, _BLEND, dtype=np.float32))
    blocks[1:, :_BLEND] *= rise
    blocks[1:, :_BLEND] += blocks[:-1, hop:] * rise[::-1]
    return blocks[:, :hop].reshape(-1)[:n]


def varied(samples: Samples, decibels: float, hertz: float, rng: np.random.Generator) -> Samples:
    """The same, louder and softer by so many dB, about so many times a second."""
    m = len(samples) // _STEP + 2
    width = max(round(100 / hertz), 1)  # steps
    bell = np.hanning(2 * width + 1)
    walk = scipy.signal.fftconvolve(rng.normal(size=m + 2 * width), bell / np.sqrt(np.square(bell).sum()), "valid")
    return samples * ramps((10 ** (decibels * walk / 20)).astype(np.float32), len(samples))


def ramps(values: Floats, n: int) -> Samples:
    """So many samples that go in straight lines from value to value, 10 ms apart."""
    between = np.arange(_STEP, dtype=np.float32) / np.float32(_STEP)
    lines = values[:-1, None] + np.diff(values)[:, None] * between
    return lines.reshape(-1)[:n]


def _hiss(f: Floats) -> Gains:
    found: Gains = np.sqrt(f / (f + 200))
    return found


def _wind(f: Floats) -> Gains:
    """Falls by 7 dB an octave above 60 Hz, and faster from some 4 kHz on."""
    return (60 / np.maximum(f, 60)) ** 1.2 * np.exp(-np.square(f / 5000)) * (f < 12_000)


def _water(f: Floats) -> Gains:
    """Falls by 4 dB an octave above 600 Hz."""
    return (600 / np.maximum(f, 600)) ** 0.7 * (f > 80)


def _rush(f: Floats) -> Gains:
    """Around 4 kHz, three octaves wide."""
    found: Gains = np.exp(-np.square(np.log2(np.maximum(f, 1) / 4000) / 1.5))
    return found


def _rain(n: int, ear: Shape, rng: np.random.Generator) -> Samples:
    """A rush, and drops on leaves nearby."""
    rush = varied(coloured(n, _rush, ear, rng), 2, 0.1, rng)
    t = np.arange(_DROP, dtype=np.float32) / SAMPLE_RATE
    begins = rng.integers(0, max(n - _DROP, 1), rng.poisson(rng.uniform(2, 12) * n / SAMPLE_RATE))
    pitch = rng.uniform(500, 3000, len(begins)).astype(np.float32)
    level = rng.lognormal(0.5, 0.8, len(begins)) * rng.choice([-1, 1], len(begins)) * ear(pitch)
    drops = np.sin(2 * np.pi * pitch[:, None] * t) * np.exp(-t / 0.0015) * level[:, None]
    np.add.at(rush, begins[:, None] + np.arange(_DROP), drops.astype(np.float32))
    return rush


def _insect(n: int, pitch: float, ear: Shape, rng: np.random.Generator) -> Samples:
    """A narrow band that is rubbed on and off, and pauses now and then."""
    width = pitch * rng.uniform(0.006, 0.05)

    def band(f: Floats) -> Gains:
        away = np.abs(f - pitch) / width
        bell: Gains = np.exp(-0.5 * np.square(away)) * (away < 4)
        return bell

    steps = np.arange(n // _STEP + 2) / 100  # seconds
    rubbed = 0.5 + 0.5 * np.tanh(3 * np.sin(2 * np.pi * rng.uniform(2, 18) * steps + rng.uniform(0, 6)))
    pauses = np.sin(2 * np.pi * rng.uniform(0.03, 0.3) * steps + rng.uniform(0, 6)) > rng.uniform(-2, 0.3)
    loudness = (1 - rng.uniform(0.2, 1) * rubbed) * np.convolve(pauses, np.full(20, 0.05), "same")
    return coloured(n, band, ear, rng) * ramps(loudness.astype(np.float32), n)
