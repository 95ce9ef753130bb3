"""Between a bird and the file: the way through the air, the echo of the place, the recorder.

All of it is linear, so it is done as gains on spectra, once for each sound. Gains have no phase: they shift nothing in
time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.fft

from notela.bioacoustics.audio import SAMPLE_RATE, Samples

AIR = 0.008  # dB a metre and kHz, in the open
LEAVES = 0.02  # dB a metre at all pitches, and as much again for each 2 kHz, in a dense wood
ECHO_SECONDS = 0.45  # echoes are cut there
ECHO_DISTANCE = 50.0  # metres at which the echo is as loud as the place says
DIRECTIONS = 4  # in which echoes of a place differ

Floats = npt.NDArray[np.float32]

_GRID: Floats = np.linspace(0, SAMPLE_RATE / 2, 1025, dtype=np.float32)  # Hz: gains are smooth, so these will do


@dataclass(frozen=True)
class Recorder:
    """What a microphone and its electronics do."""

    low_cut: float = 60.0
    """Hz: half of the power is lost there, and more below."""
    high_cut: float = 14_000.0
    """The same above."""
    tilt: float = 0.0
    """dB an octave, around 3 kHz."""
    bump: float = 0.0
    """dB of a resonance (or, below 0, a hole) an octave wide."""
    bump_at: float = 4000.0
    """Hz."""
    hiss: float = -75.0
    """Its own noise, as the noises of a place in dB against a bird at a metre; nothing of the above colours it."""
    gain: float = 0.0
    """dB from a bird at a metre to a full-scale sine; less where a recording would clip."""

    def response(self, frequencies: Floats) -> Floats:
        """Gain at frequencies in Hz."""
        f = np.maximum(frequencies, 1.0)
        octaves = np.log2(f / 3000)
        shape = self.tilt * np.clip(octaves, -4, 2.5)
        shape += self.bump * np.exp(-2 * (octaves - np.log2(self.bump_at / 3000)) ** 2)
        cuts = (1 + (self.low_cut / f) ** 4) * (1 + (f / self.high_cut) ** 8)
        found: Floats = (10 ** (shape / 20) / np.sqrt(cuts)).astype(np.float32)
        return found


def loss(frequencies: Floats, distance: float, leaves: float) -> Floats:
    """dB lost over a distance in metres: spreading in all directions (6 dB each time it doubles), and what air and
    leaves (0 for the open, 1 for a dense wood) swallow, which is more at high pitches."""
    kilohertz = frequencies / 1000
    swallowed = AIR * kilohertz + leaves * LEAVES * (1 + kilohertz / 2)
    spread = 20 * np.log10(max(distance, 1.0))
    found: Floats = (spread + max(distance - 1.0, 0.0) * swallowed).astype(np.float32)
    return found


class Place:
    """Where a recorder stands: how dense the wood is, how it echoes (dB against the direct sound of a bird at 50 m, and
    seconds until it is 60 dB down)."""

    def __init__(self, recorder: Recorder, leaves: float, echo: float, decay: float, rng: np.random.Generator) -> None:
        self.leaves, self.echo = leaves, echo
        self._heard = recorder.response(_GRID)
        n = round(ECHO_SECONDS * SAMPLE_RATE)
        t = np.arange(n, dtype=np.float32) / SAMPLE_RATE
        tails = rng.standard_normal((DIRECTIONS, n), dtype=np.float32)
        tails *= np.exp(-6.9 * t / decay) * (1 - t / ECHO_SECONDS) * np.minimum(t / 0.004, 1)
        for tail in tails:  # the nearest trunks and walls stand out
            tail[rng.integers(150, 2000, 5)] += rng.normal(0, 8, 5)
        self.tails = tails / np.sqrt(np.square(tails).sum(1, keepdims=True))

    def carry(self, samples: Samples, distance: float, direction: int) -> Samples:
        """A sound made at a distance, as it is recorded; longer by the echo."""
        length = len(samples) + self.tails.shape[1]
        n = scipy.fft.next_fast_len(length, real=True)
        frequencies = scipy.fft.rfftfreq(n, 1 / SAMPLE_RATE).astype(np.float32)
        strength = 10 ** (self.echo / 20) * np.sqrt(distance / ECHO_DISTANCE)
        echo = np.float32(strength) * self.tails[direction % DIRECTIONS]
        echo[0] += 1  # the direct sound
        spectrum = scipy.fft.rfft(samples, n) * scipy.fft.rfft(echo, n)
        gains = self._heard * 10 ** (-loss(_GRID, distance, self.leaves) / 20)
        spectrum *= np.interp(frequencies, _GRID, gains).astype(np.float32)
        found: Samples = scipy.fft.irfft(spectrum, n)[:length]
        return found
