"""Peaks against a plain reading of the paper's appendix: whole arrays, NumPy and SciPy, nothing clever."""

from __future__ import annotations

import tempfile
import tracemalloc
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st

from notela.bioacoustics.audio import SAMPLE_RATE, Recording, find_recordings
from notela.bioacoustics.peaks import WIDTHS, _nearest, denoise, find_peaks, find_peaks_cwt, log_mel, signal_vector
from notela.errors import NotelaError

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "birds"


# ---- the double


def mel(hertz: np.ndarray | float) -> np.ndarray:
    return 2595 * np.log10(1 + np.asarray(hertz) / 700)


def plain_log_mel(samples: np.ndarray) -> np.ndarray:
    frame, hop = round(0.08 * SAMPLE_RATE), SAMPLE_RATE // 100
    frequencies, _, spectrum = scipy.signal.stft(
        samples.astype(np.float64), SAMPLE_RATE, "hann", nperseg=frame, noverlap=frame - hop
    )
    edges = np.linspace(mel(60), mel(10_000), 162)
    bank = np.stack([np.interp(mel(frequencies), edges[i : i + 3], [0, 1, 0]) for i in range(160)])
    magnitude = np.abs(spectrum) * frame / 2  # scipy.signal.stft divides by the sum of the window
    return 0.1 * np.log(np.maximum(bank @ magnitude, 1e-2)).T


def plain_signal(samples: np.ndarray) -> np.ndarray:
    channels = plain_log_mel(samples)
    inlier = abs(channels - channels.mean(0)) <= 1.5 * channels.std(0)
    count = inlier.sum(0) + 1
    mean = (channels * inlier).sum(0) / count
    deviation = np.sqrt(((channels - mean) ** 2 * inlier).sum(0) / count)
    shifted = channels - mean
    return np.where(shifted > 0.75 * deviation, shifted, 0).sum(1)


def scipy_peaks(signal: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # 0 / 0 in a silent stretch
        return scipy.signal.find_peaks_cwt(signal, np.linspace(50, 200, 10)).astype(int)


def plain_peaks(signal: np.ndarray, most: int) -> list[int]:
    loud = [p for p in scipy_peaks(signal) if signal[max(p - 30, 0) : p + 30].max() >= 1.5 * signal.mean()]
    return sorted(sorted(loud, key=lambda p: (signal[p], p), reverse=True)[:most])


# ---- recordings


def singing(seconds: float, seed: int = 0, silent: bool = False) -> np.ndarray:
    """Songs of some tenths of a second, here and there, over wind."""
    rng = np.random.default_rng(seed)
    samples = np.zeros(round(seconds * SAMPLE_RATE))
    if not silent:
        samples += 0.01 * np.cumsum(rng.normal(size=samples.size)) / np.sqrt(samples.size)
        samples += 0.002 * rng.normal(size=samples.size)
    for _ in range(max(2, int(seconds / 3))):
        size = int(rng.uniform(0.1, 0.8) * SAMPLE_RATE)
        at = rng.integers(0, max(1, samples.size - size))
        time = np.arange(size) / SAMPLE_RATE
        song = np.sin(2 * np.pi * (rng.uniform(1e3, 8e3) * time + rng.uniform(-3e3, 3e3) * time**2)) * np.hanning(size)
        samples[at : at + size] += rng.uniform(0.02, 0.3) * song[: samples.size - at]
    return samples.astype(np.float32)


def in_blocks(samples: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (samples[i : i + size] for i in range(0, len(samples), size))


@pytest.mark.parametrize("seconds", [0.1, 1.0, 6.0, 12.345])
def test_the_spectrogram_is_that_of_the_appendix(seconds: float) -> None:
    samples = singing(max(seconds, 1))[: round(seconds * SAMPLE_RATE)]
    plain = plain_log_mel(samples)
    for size in (100, 3_333, 10**9) if seconds < 10 else (10**6,):
        ours = np.concatenate(list(log_mel(in_blocks(samples, size))))
        assert ours.shape == plain.shape == (-(-len(samples) // 320) + 1, 160)
        np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-9)


def test_a_click_is_in_the_frame_at_its_time_and_a_tone_in_the_band_of_its_pitch() -> None:
    samples = np.zeros(2 * SAMPLE_RATE, np.float32)
    samples[320 * 71 + 5] = 1
    assert np.concatenate(list(log_mel([samples]))).sum(1).argmax() == 71
    centres = 700 * (10 ** (np.linspace(mel(60), mel(10_000), 162)[1:-1] / 2595) - 1)
    for band in (40, 90, 159):
        tone = np.sin(2 * np.pi * centres[band] * np.arange(SAMPLE_RATE) / SAMPLE_RATE).astype(np.float32)
        (frames,) = {int(row.argmax()) for row in np.concatenate(list(log_mel([tone])))[10:-10]}
        assert frames == band


def test_the_floor_of_the_logarithm() -> None:
    spectrogram = np.concatenate(list(log_mel([np.zeros(1_000, np.float32)])))
    assert np.all(spectrogram == 0.1 * np.log(0.01))


def test_only_what_lies_above_is_signal() -> None:
    values = np.array([[-1.0, 0.0], [0.75, 0.7], [0.76, 3.0]])
    assert denoise(values, np.zeros(2), np.ones(2)).tolist() == [[0, 0], [0, 0], [0.76, 3.0]]
    assert denoise(np.array([[5.0]]), np.array([3.0]), np.array([1.0])).tolist() == [[2.0]]


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("seconds", [5.0, 30.0])
def test_signal_and_peaks_are_those_of_the_appendix(seconds: float, silent: bool) -> None:
    samples = singing(seconds, silent=silent)
    plain = plain_signal(samples)
    for size in (7_919, 10**9):
        signal = signal_vector(in_blocks(samples, size))
        np.testing.assert_allclose(signal, plain, rtol=0, atol=1e-9)
    assert find_peaks(signal, 200).tolist() == plain_peaks(plain, 200) != []
    assert find_peaks(signal, 2).tolist() == plain_peaks(plain, 2)


@pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data/birds")
@pytest.mark.parametrize(("part", "most", "every"), [("focal", 5, 40), ("soundscapes", 200, 60)])
def test_real_recordings_have_the_peaks_of_the_appendix(part: str, most: int, every: int) -> None:
    found = 0
    paths = [path for path in find_recordings(DATA / part)[0] if path.stat().st_size < 400_000]  # not for minutes
    for path in paths[::every]:
        recording = Recording(path)
        plain = plain_signal(np.concatenate(list(recording.blocks())))
        signal = signal_vector(recording.blocks(3.0))
        np.testing.assert_allclose(signal, plain, rtol=0, atol=1e-9)
        peaks = find_peaks(signal, most).tolist()
        assert peaks == plain_peaks(plain, most)
        found += len(peaks)
    assert found > 20


def test_memory_does_not_grow_with_the_recording() -> None:
    block = singing(10)
    peak = {}
    for blocks in (2, 20):
        tracemalloc.start()
        signal = signal_vector(block for _ in range(blocks))
        peak[blocks] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(signal) == 1_000 * blocks + 1
    assert peak[20] - peak[2] < 1e6  # the spectrogram alone grows by 23 MB; the signal vector is 0.1 MB


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: open("/dev/full", "r+b", buffering=0))  # noqa: SIM115
    with pytest.raises(NotelaError, match="cannot keep a spectrogram in .* \\(No space left on device\\); make room"):
        signal_vector([singing(2)])


# ---- peaks of a signal


@st.composite
def signals(draw: st.DrawFn) -> np.ndarray:
    """Noise, bumps, steps, few levels (ties), silence, repetition: alone or one after another."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 700))
        kind = draw(st.sampled_from(["noise", "bumps", "steps", "levels", "silence", "repeated", "sparse"]))
        time = np.arange(size)
        if kind == "noise":
            part = rng.gamma(0.5, 1.0, size)
        elif kind == "bumps":
            part = sum(
                (
                    rng.uniform(0, 5) * np.exp(-(((time - rng.uniform(0, size)) / rng.uniform(5, 80)) ** 2))
                    for _ in range(5)
                ),
                np.zeros(size),
            )
        elif kind == "steps":
            part = np.repeat(rng.uniform(0, 3, size // 60 + 1), 60)[:size]
        elif kind == "levels":
            part = rng.integers(0, 3, size).astype(float)
        elif kind == "silence":
            part = np.zeros(size)
        elif kind == "repeated":
            part = np.tile(rng.uniform(0, 1, 97), size // 97 + 1)[:size]
        else:
            part = np.where(rng.uniform(size=size) < 0.02, rng.uniform(0, 9, size), 0)
        parts.append(part)
    return np.concatenate(parts)


@settings(max_examples=80, deadline=None)
@given(signal=signals().filter(lambda signal: len(signal) >= 3))
def test_peaks_are_scipys(signal: np.ndarray) -> None:
    assert find_peaks_cwt(signal).tolist() == scipy_peaks(signal).tolist()


@pytest.mark.parametrize("kind", ["noise", "songs", "still"])
def test_peaks_of_long_signals_are_scipys(kind: str) -> None:
    rng = np.random.default_rng(0)
    signal = rng.gamma(0.3, 1.0, 12_000)
    if kind == "songs":
        signal = np.convolve(rng.uniform(size=12_000) < 0.004, np.hanning(90), "same") * rng.uniform(0, 9, 12_000)
    if kind == "still":
        signal[3_000:9_000] = 0
    peaks = scipy_peaks(signal)
    assert len(peaks) > 15
    assert find_peaks_cwt(signal).tolist() == peaks.tolist()


@given(st.lists(st.integers(0, 60), max_size=30), st.lists(st.integers(0, 60), unique=True, max_size=30).map(sorted))
def test_of_equally_near_lines_the_oldest(columns: list[int], wanted: list[int]) -> None:
    nearest, distance = _nearest(np.array(columns, np.int64), np.array(wanted, np.int64))
    for column, line, far in zip(wanted, nearest, distance, strict=True):
        distances = [abs(column - other) for other in columns] or [np.inf]
        assert (line, far) == (distances.index(min(distances)), min(distances))


def test_widths_are_half_a_second_to_two() -> None:
    assert len(WIDTHS) == 10
    assert (WIDTHS[0], WIDTHS[-1]) == (50, 200)
    assert np.ptp(np.diff(WIDTHS)) < 1e-9


@pytest.mark.parametrize("size", [0, 1, 2, 3, 20, 600])
def test_a_flat_signal_has_no_peaks(size: int) -> None:
    peaks = find_peaks(np.zeros(size), 5)
    assert peaks.tolist() == []
    assert peaks.dtype == np.int64


def test_weak_peaks_go_and_the_strongest_stay() -> None:
    signal = np.zeros(6_000)
    for at, height in ((500, 3.0), (1_500, 9.0), (2_500, 5.0), (3_500, 7.0), (4_500, 0.2)):
        signal += height * np.exp(-(((np.arange(6_000) - at) / 40) ** 2))
    assert 1.5 * signal.mean() > 0.2
    assert find_peaks(signal, 5).tolist() == [500, 1_500, 2_500, 3_500]
    assert find_peaks(signal, 2).tolist() == [1_500, 3_500]
    assert find_peaks(np.roll(signal, 20), 1).tolist() == [1_520]
    with pytest.raises(NotelaError, match="most=0 must be a whole number of at least 1"):
        find_peaks(signal, 0)
