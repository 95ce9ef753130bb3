"""How a voice sounds: notes of four kinds, songs made of them, and individuals who each sing a little differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from notela.bioacoustics.audio import SAMPLE_RATE, Samples

KINDS = ("whistle", "trill", "buzz", "stack")
"""A tone that glides; a run of quick sweeps; a tone shaken so fast that it rasps; a low tone with many harmonics."""

HIGHEST = 14_000.0  # Hz: no harmonic lies above, so nothing folds back at 16 kHz
FADE = 0.008  # seconds: shorter ones click
LONGEST_SONG = 3.0  # seconds

_HARMONICS = 12
_QUIET = 1e-3  # of the first harmonic: weaker ones are left out

Pattern = tuple[tuple[int, int], ...]
"""A song: which note of the voice, and how often in a row."""
Carry = Callable[[Samples], Samples]
"""What the way from the bird to the file does to a sound; it may become longer."""


@dataclass(frozen=True)
class Note:
    """One note. Seconds and Hz; what moves the pitch is in octaves."""

    kind: str
    pitch: float
    sweep: float
    """From the beginning to the end."""
    bend: float
    """Of the ends against the middle."""
    length: float
    gap: float
    """Silence after it."""
    rate: float
    """Of vibrato, sweeps of a trill or rasp, in Hz."""
    depth: float
    """How far these move the pitch."""
    pulse: float
    """How far these lower the loudness: 1 is down to silence."""
    tilt: float
    """By how many dB each harmonic is weaker than the one below."""


@dataclass(frozen=True)
class Voice:
    """What birds of a species can sing."""

    notes: tuple[Note, ...]
    songs: tuple[Pattern, ...]
    calls: tuple[Pattern, ...]


def sound(note: Note) -> Samples:
    """A note at 32 kHz with a mean square of 1, which is what a bird gives at a metre's distance."""
    n = max(round(note.length * SAMPLE_RATE), 64)
    t = np.arange(n, dtype=np.float32) / SAMPLE_RATE
    u = np.linspace(-0.5, 0.5, n, dtype=np.float32)
    octaves = note.sweep * u + note.bend * (4 * u * u - 1 / 3)
    cycles = note.rate * t
    if note.kind == "trill":
        octaves += note.depth * (0.5 - cycles % 1)
        loudness = 1 - note.pulse * np.cos(np.pi * cycles) ** 2
    else:
        octaves += note.depth * np.sin(2 * np.pi * cycles)
        loudness = 1 - note.pulse * np.sin(np.pi * cycles) ** 2
    pitch = np.minimum(note.pitch * np.exp2(octaves), HIGHEST)
    phase = np.cumsum(pitch, dtype=np.float64) / SAMPLE_RATE
    angle = (2 * np.pi * (phase - np.floor(phase))).astype(np.float32)  # small numbers, before precision is lost
    x = loudness * _harmonics(angle, note.tilt, int(HIGHEST / pitch.max()))
    fade = min(round(FADE * SAMPLE_RATE), n // 4)
    ramp = np.sin(np.linspace(0, np.pi / 2, fade, dtype=np.float32)) ** 2
    x[:fade] *= ramp
    x[-fade:] *= ramp[::-1]
    found: Samples = (x / np.sqrt(np.mean(np.square(x)))).astype(np.float32)
    return found


def _harmonics(angle: Samples, tilt: float, most: int) -> Samples:
    """Σ 10^(-tilt k / 20) sin((k + 1) angle), by Horner's rule in z = exp(i angle)."""
    weights = 10.0 ** (-tilt * np.arange(max(1, min(most, _HARMONICS))) / 20)
    weights = weights[weights > _QUIET]
    if len(weights) == 1:
        return np.sin(angle)
    z = np.exp(1j * angle)
    total = np.full_like(z, weights[-1])
    for weight in weights[-2::-1]:
        total = total * z + np.float32(weight)
    found: Samples = (total * z).imag
    return found


class Singer:
    """An individual: its pitch, tempo and loudness, and the songs of its species that it knows. It repeats its notes as
    they are, as birds do, so each is made and carried to the microphone once, however often it is sung."""

    def __init__(self, voice: Voice, rng: np.random.Generator, carry: Carry = lambda samples: samples) -> None:
        higher, quicker = np.exp2(rng.normal(0, (0.05, 0.12)))
        self.notes = [
            replace(
                note,
                pitch=note.pitch * higher,
                rate=note.rate * quicker,
                length=note.length / quicker,
                gap=note.gap / quicker,
                sweep=note.sweep + rng.normal(0, 0.03),
            )
            for note in voice.notes
        ]
        self.songs = [voice.songs[i] for i in sorted(rng.permutation(len(voice.songs))[:2])]
        self.calls = [voice.calls[rng.integers(len(voice.calls))]]
        self.loudness = 10 ** (rng.normal(0, 2) / 20)
        self._carry = carry
        self._made: dict[int, Samples] = {}

    def vocalise(self, rng: np.random.Generator, call: bool = False) -> Samples:
        """A song or call as it arrives, with its echo."""
        known = self.calls if call else self.songs
        pattern = known[rng.integers(len(known))]
        order = [number for number, times in pattern for _ in range(times)]
        loudness = self.loudness * 10 ** (rng.normal(0, 1.5, len(order)) / 20)
        stretch = rng.uniform(0.85, 1.15, len(order))
        begins: list[int] = []
        at = 0.0
        for number, factor in zip(order, stretch, strict=True):
            if begins and at + self.notes[number].length > LONGEST_SONG:
                break
            begins.append(round(at * SAMPLE_RATE))
            at += self.notes[number].length + self.notes[number].gap * factor
        made = [self._note(number) for number in order[: len(begins)]]
        whole = np.zeros(max(begin + len(one) for begin, one in zip(begins, made, strict=True)), np.float32)
        for begin, one, level in zip(begins, made, loudness.tolist(), strict=False):
            whole[begin : begin + len(one)] += np.float32(level) * one
        return whole

    def _note(self, number: int) -> Samples:
        if number not in self._made:
            self._made[number] = self._carry(sound(self.notes[number]))
        return self._made[number]
