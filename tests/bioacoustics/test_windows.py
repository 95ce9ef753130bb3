"""Windows: around peaks, in a row, out of a stream."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from notela.bioacoustics.audio import SAMPLE_RATE, BadRecording, Recording, find_recordings
from notela.bioacoustics.windows import cut, peak_windows, samples_in, tile_windows, tiles, wrap
from notela.errors import NotelaError
from test_peaks import in_blocks, plain_peaks, plain_signal, singing

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "birds"


def saved(folder: Path, samples: np.ndarray) -> Recording:
    soundfile.write(folder / "a.wav", samples, SAMPLE_RATE, subtype="FLOAT")
    return Recording(folder / "a.wav")


def plain_windows(samples: np.ndarray, length: int, most: int) -> list[int]:
    """The appendix, word by word: pad, find, centre, shift."""
    missing = max(length - len(samples), 0)
    samples = np.pad(samples, (missing // 2, missing - missing // 2), mode="wrap")
    starts = set()
    for peak in plain_peaks(plain_signal(samples), most):
        start = peak * SAMPLE_RATE // 100 - length // 2
        start = max(start, 0)
        starts.add(min(start, len(samples) - length))
    return sorted(starts)


def test_a_protocol_s_name_says_how_tiles_lie() -> None:
    assert tiles("peaks") is None
    assert tiles("tiles-5s") == (5.0, 5.0)
    assert tiles("tiles-2.5s-every-0.5s") == (2.5, 0.5)
    for name in ("tiles", "tiles-5", "peaks-5s", "tiles-5s-every-", "tiles--5s"):
        with pytest.raises(NotelaError, match="is not one of 'peaks', 'tiles-5s', 'tiles-3s-every-1.5s'"):
            tiles(name)
    for name in ("tiles-3s-every-4s", "tiles-3s-every-0s", "tiles-0s"):
        with pytest.raises(NotelaError, match="must have a step above 0 and of at most its windows' length"):
            tiles(name)
    second = SAMPLE_RATE
    assert tile_windows(7 * second, 3.0, 1.5) == [int(s * second) for s in (0, 1.5, 3)]
    assert tile_windows(7 * second, 3.0, 1.5, rest=True) == [int(s * second) for s in (0, 1.5, 3, 4)]
    assert tile_windows(2 * second, 3.0, 1.5) == [0]


# ---- padding


@given(size=st.integers(1, 60), length=st.integers(1, 200))
def test_short_recordings_are_repeated_on_both_sides(size: int, length: int) -> None:
    samples = np.arange(size, dtype=np.float32)
    padded = wrap(samples, length)
    assert len(padded) == max(size, length)
    missing = max(length - size, 0)
    assert np.array_equal(padded, np.pad(samples, (missing // 2, missing - missing // 2), mode="wrap"))
    assert np.array_equal(padded[missing // 2 : missing // 2 + size], samples)


def test_nothing_cannot_be_padded() -> None:
    with pytest.raises(NotelaError, match="without samples cannot be padded"):
        wrap(np.zeros(0, np.float32), 10)


@pytest.mark.parametrize("seconds", [0, -1, 1e-9, np.nan, np.inf])
def test_windows_that_hold_nothing(seconds: float) -> None:
    with pytest.raises(NotelaError, match="seconds holds no samples"):
        samples_in(seconds)


# ---- tiles


@given(length=st.integers(0, 10_000), window=st.integers(1, 3_000))
def test_tiles(length: int, window: int) -> None:
    starts = tile_windows(length, window / SAMPLE_RATE)
    assert starts == [i * window for i in range(max(1, length // window))]
    everything = tile_windows(length, window / SAMPLE_RATE, rest=True)
    assert everything[: len(starts)] == starts
    heard = np.zeros(max(length, window), bool)
    for start in everything:
        assert start + window <= len(heard)
        heard[start : start + window] = True
    left = length - starts[-1] - window
    assert len(everything) - len(starts) == (left >= max(1, window // 10))
    assert (~heard).sum() < max(1, window // 10)


# ---- cutting


@given(data=st.data())
def test_windows_cut_from_a_stream_are_slices_of_the_whole(data: st.DataObject) -> None:
    size, length = data.draw(st.integers(1, 400)), data.draw(st.integers(1, 120))
    samples = np.arange(size, dtype=np.float32)
    whole = wrap(samples, length)
    starts = sorted(data.draw(st.lists(st.integers(0, len(whole) - length), max_size=12)))
    block = data.draw(st.integers(1, 500))
    windows = list(cut(in_blocks(samples, block), starts, length))
    assert len(windows) == len(starts)
    for window, start in zip(windows, starts, strict=True):
        assert np.array_equal(window, whole[start : start + length])


def test_cutting_stops_after_the_last_window_and_keeps_little() -> None:
    read = []

    def blocks() -> object:
        for i in range(1_000):
            read.append(i)
            yield np.full(10_000, i, np.float32)

    starts = [10_000 * i for i in range(0, 600, 7)]
    tracemalloc.start()
    total = sum(float(window[0]) for window in cut(blocks(), starts, 10_000))  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == sum(range(0, 600, 7))
    assert read[-1] == 595
    assert peak < 10 * 40_000


def test_windows_beyond_the_end_and_out_of_order() -> None:
    samples = np.zeros(100, np.float32)
    with pytest.raises(NotelaError, match=r"from sample 60 to 110 ends after the recording \(100\)"):
        list(cut([samples], [0, 60], 50))
    with pytest.raises(NotelaError, match="in time order"):
        list(cut([samples], [60, 0], 10))


# ---- peaks


def test_songs_are_in_the_middle_of_their_windows_and_inside_the_recording(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).normal(0, 1e-3, 60 * SAMPLE_RATE)
    song = 0.2 * np.sin(2 * np.pi * 4_000 * np.arange(16_000) / SAMPLE_RATE) * np.hanning(16_000)
    middles = np.array([1.0, 14.0, 40.0, 59.3])
    for middle in middles:
        at = round(middle * SAMPLE_RATE) - 8_000
        samples[at : at + 16_000] += song
    starts = peak_windows(saved(tmp_path, samples), 6, 4)
    expected = np.clip(middles - 3, 0, 54)
    assert len(starts) == 4
    np.testing.assert_allclose(np.array(starts) / SAMPLE_RATE, expected, atol=0.05)
    assert (starts[0], starts[-1]) == (0, 54 * SAMPLE_RATE)


@pytest.mark.parametrize(
    ("seconds", "window", "most"), [(40.0, 6, 5), (20.0, 5, 200), (8.0, 6, 5), (2.1, 6, 5), (0.4, 5, 200)]
)
def test_windows_are_those_of_the_appendix(seconds: float, window: int, most: int, tmp_path: Path) -> None:
    samples = singing(seconds, seed=3)
    starts = peak_windows(saved(tmp_path, samples), window, most)
    assert starts == plain_windows(samples, window * SAMPLE_RATE, most)
    assert len(starts) <= most
    if seconds < window:
        assert starts in ([], [0])


def test_identical_windows_come_once(tmp_path: Path) -> None:
    samples = singing(30.0, seed=5)
    assert len(plain_peaks(plain_signal(samples), 200)) > 2
    starts = peak_windows(saved(tmp_path, samples), 29.999, 200)
    assert starts == sorted(set(starts))
    assert len(starts) <= 2  # before the middle, and after it


def test_a_recording_without_peaks_has_no_windows_and_a_silent_one_is_refused(tmp_path: Path) -> None:
    quiet = np.zeros(10 * SAMPLE_RATE)
    quiet[5] = 1e-6
    assert peak_windows(saved(tmp_path, quiet), 5, 5) == []
    with pytest.raises(BadRecording, match="it is silent"):
        peak_windows(saved(tmp_path, np.zeros(10 * SAMPLE_RATE)), 5, 5)


@pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data/birds")
@pytest.mark.parametrize(("part", "window", "most", "every"), [("focal", 6, 5, 57), ("soundscapes", 5, 200, 60)])
def test_real_recordings(part: str, window: int, most: int, every: int) -> None:
    length, found = window * SAMPLE_RATE, 0
    paths = [path for path in find_recordings(DATA / part)[0] if path.stat().st_size < 400_000]  # not for minutes
    for path in paths[::every]:
        recording = Recording(path)
        samples = np.concatenate(list(recording.blocks()))
        starts = peak_windows(recording, window, most)
        assert starts == plain_windows(samples, length, most)
        whole = wrap(samples, length)
        for start, samples_of_window in zip(starts, cut(recording.blocks(2.0), starts, length), strict=True):
            assert np.array_equal(samples_of_window, whole[start : start + length])
            found += 1
    assert found >= 6
