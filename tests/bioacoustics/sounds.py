"""Small recordings for tests: tones of a bird's pitch over faint noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile

RATE = 16_000
PITCH = {"Turdus_merula": 2000, "Parus_major": 4500, "Corvus_corone": 900}


def sing(path: Path, seconds: float, calls: Sequence[tuple[float, int]], seed: int = 0, rate: int = RATE) -> Path:
    """A recording with a half-second tone at each time."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate)) / rate
    x = 0.003 * rng.normal(size=len(t))
    for start, pitch in calls:
        on = (t >= start) & (t < start + 0.5)
        x[on] += 0.4 * np.sin(2 * np.pi * pitch * t[on]) * np.hanning(int(on.sum()))
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, x, rate)
    return path


def focal(folder: Path, each: int = 6, seconds: float = 14.0) -> Path:
    """Recordings of three species, sorted into folders."""
    for number, (species, pitch) in enumerate(PITCH.items()):
        for i in range(each):
            sing(
                folder / species / f"XC{number}{i:02d}.wav",
                seconds,
                [(3.0, pitch), (10.0, pitch)],
                seed=100 * number + i,
            )
    return folder
