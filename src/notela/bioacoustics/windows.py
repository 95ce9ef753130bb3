"""Windows of a recording: around its peaks, or one after another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from notela.bioacoustics.audio import SAMPLE_RATE, Recording, Samples
from notela.bioacoustics.peaks import HOP, find_peaks, signal_vector
from notela.errors import NotelaError, check_choice

PROTOCOLS = ("peaks", "tiles-5s", "tiles-3s-every-1.5s")
"""How a recording became windows; numbers of one are not comparable with numbers of another, so the name goes with
every result. `peaks`: the paper's; `tiles-5s`: the field's (BirdSet `test_5s`); other lengths and steps likewise."""


def tiles(protocol: str) -> tuple[float, float] | None:
    """Length and step, in seconds, of the tiles that a protocol's name says; None for `peaks`.

    >>> tiles("tiles-5s"), tiles("tiles-3s-every-1.5s"), tiles("peaks")
    ((5.0, 5.0), (3.0, 1.5), None)
    """
    if protocol == "peaks":
        return None
    found = re.fullmatch(r"tiles-(\d+(?:\.\d+)?)s(?:-every-(\d+(?:\.\d+)?)s)?", protocol)
    if found is None:
        check_choice("protocol", protocol, PROTOCOLS)
    assert found is not None
    length, step = float(found[1]), float(found[2] or found[1])
    if not 0 < step <= length:
        raise NotelaError(f"protocol={protocol!r} must have a step above 0 and of at most its windows' length")
    return length, step


def samples_in(seconds: float) -> int:
    """A window's length in samples at 32 kHz.

    >>> samples_in(5)
    160000
    """
    length = round(seconds * SAMPLE_RATE) if np.isfinite(seconds) else 0
    if length < 1:
        raise NotelaError(f"a window of {seconds!r} seconds holds no samples; the paper's are of 5 and 6 seconds")
    return length


def peak_windows(recording: Recording, seconds: float, most: int, scratch: Path | None = None) -> list[int]:
    """First samples (at 32 kHz) of windows centred on the `most` strongest peaks and shifted inside the recording, in
    time order, identical ones once. A recording shorter than the window is one window, if it has a peak at all."""
    length = samples_in(seconds)
    peaks = find_peaks(signal_vector(_wrapped(recording.blocks(), length), scratch), most)
    last = max(recording.length - length, 0)
    starts: list[int] = np.unique(np.clip(peaks * HOP - length // 2, 0, last)).tolist()
    return starts


def tile_windows(length: int, seconds: float = 5.0, step: float | None = None, rest: bool = False) -> list[int]:
    """First samples of windows one after another, or every `step` seconds, in a recording of `length` samples. What
    remains at the end is left out, as BirdSet does, and a recording shorter than the window is one window; with `rest`,
    one more window ends where the recording ends, so that nothing goes unheard (unless it is less than a tenth of a
    window).

    >>> tile_windows(12 * 32_000), tile_windows(12 * 32_000, rest=True), tile_windows(2 * 32_000)
    ([0, 160000], [0, 160000, 224000], [0])
    """
    window = samples_in(seconds)
    starts = list(range(0, max(length - window, 0) + 1, window if step is None else samples_in(step)))
    if rest and length - (starts[-1] + window) >= max(1, window // 10):
        starts.append(length - window)
    return starts


def cut(blocks: Iterable[Samples], starts: Sequence[int], length: int) -> Iterator[Samples]:
    """The windows' samples out of a stream of blocks, in one pass; `starts` in time order. A stream shorter than
    `length` is padded by wrapping around. Holds no more than a block and a window."""
    if any(late < early for early, late in pairwise(starts)):
        raise NotelaError("windows are cut out of a stream in time order; sort their starts")
    if not starts:
        return
    waiting, first, held = iter(starts), 0, np.zeros(0, np.float32)
    start = next(waiting)
    for block in _wrapped(blocks, length):
        held = np.concatenate([held, block])
        while start + length <= first + len(held):
            yield held[start - first : start - first + length].copy()
            if (following := next(waiting, None)) is None:
                return
            start = following
        drop = min(max(start - first, 0), len(held))
        first, held = first + drop, held[drop:]
    raise NotelaError(
        f"the window from sample {start} to {start + length} ends after the recording ({first + len(held)})"
    )


def wrap(samples: Samples, length: int) -> Samples:
    """A recording shorter than a window, repeated evenly to the left and right.

    >>> wrap(np.array([1, 2, 3], np.float32), 8)
    array([2., 3., 1., 2., 3., 1., 2., 3.], dtype=float32)
    """
    if not len(samples):
        raise NotelaError("a recording without samples cannot be padded; leave it out")
    left = max(length - len(samples), 0) // 2
    return samples[(np.arange(max(length, len(samples))) - left) % len(samples)]


def _wrapped(blocks: Iterable[Samples], length: int) -> Iterator[Samples]:
    """The same blocks, or, if they are shorter than `length` in all, one that is padded."""
    held: list[Samples] | None = []
    for block in blocks:
        if held is None:
            yield block
            continue
        held.append(block)
        if sum(map(len, held)) >= length:
            yield from held
            held = None
    if held is not None:
        yield wrap(np.concatenate([np.zeros(0, np.float32), *held]), length)
