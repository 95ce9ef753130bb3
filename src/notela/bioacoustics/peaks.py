"""Where a recording is loud with something: the paper's peak heuristic (appendix B), in blocks.

Where the paper is silent, this follows what its authors released: frames centred on their time with zeros beyond the
ends, a periodic Hann window, HTK's mel scale with triangles of height 1, magnitudes not normalised. All in double
precision: denoising decides value by value, and each decision shall be that of a plain reading of the appendix.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import scipy.fft
import scipy.signal
import scipy.sparse

from notela.bioacoustics.audio import SAMPLE_RATE
from notela.errors import NotelaError, check_integer

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

FRAME = SAMPLE_RATE * 8 // 100  # samples: 0.08 s
HOP = SAMPLE_RATE // 100  # samples: 100 frames a second
BANDS, LOWEST, HIGHEST = 160, 60.0, 10_000.0  # mel bands, Hz
FLOOR, SCALE = 1e-2, 0.1  # of the logarithm
OUTLIER, SIGNAL = 1.5, 0.75  # standard deviations
WIDTHS = np.linspace(50, 200, 10)  # Ricker wavelets in frames: 0.5 to 2 s
MARGIN = 30  # frames either side of a peak: 0.6 s
PROMINENT = 1.5  # times the mean of the signal vector

_BATCH = 64  # frames transformed at a time: what fits into the cache
_CHUNK = 512  # frames read back at a time


def log_mel(blocks: Iterable[npt.NDArray[np.float32]]) -> Iterator[Floats]:
    """The log-mel spectrogram of samples at 32 kHz that come in blocks: (frames, 160) at a time, in all
    ⌈samples / 320⌉ + 1 frames; frame i is centred on sample 320 i."""
    window = np.hanning(FRAME + 1)[:-1]
    low, bank = _mel_bank()
    high = low + bank.shape[1]
    rest = np.zeros(FRAME // 2)
    samples = 0

    def spectra(buffer: Floats) -> Iterator[Floats]:
        frames = np.lib.stride_tricks.sliding_window_view(buffer, FRAME)[::HOP]
        for i in range(0, len(frames), _BATCH):
            spectrum = scipy.fft.rfft(frames[i : i + _BATCH] * window)
            mel = (bank @ np.abs(spectrum[:, low:high]).T).T
            yield SCALE * np.log(np.maximum(mel, FLOOR))

    for block in blocks:
        samples += len(block)
        rest = np.concatenate([rest, block])
        if len(rest) >= FRAME:
            yield from spectra(rest)
            rest = rest[((len(rest) - FRAME) // HOP + 1) * HOP :]
    yield from spectra(np.concatenate([rest, np.zeros(-samples % HOP + FRAME // 2)]))


def signal_vector(blocks: Iterable[npt.NDArray[np.float32]], scratch: Path | None = None) -> Floats:
    """The denoised spectrogram summed over its channels: one value for every frame.

    Denoising needs the whole recording's statistics before it can begin, and then those of its inliers: the
    spectrogram waits in a temporary file (460 MB an hour), because computing it three times takes longer. `scratch`:
    a folder for it; the system's own may be in memory.
    """
    moments = _Moments(np.full(BANDS, SCALE * np.log(FLOOR)))
    with tempfile.TemporaryFile(dir=scratch) as file:
        try:
            for mel in log_mel(blocks):
                moments.add(mel)
                file.write(mel.tobytes())
            file.flush()
        except OSError as error:
            raise NotelaError(
                f"cannot keep a spectrogram in {scratch or tempfile.gettempdir()} ({error.strerror}); make room there"
            ) from error
        mean, deviation = moments.mean, moments.deviation
        inliers = _Moments(mean)
        for mel in _read_back(file):
            inliers.add(mel, abs(mel - mean) <= OUTLIER * deviation)
        mean, deviation = inliers.robust()
        return np.concatenate([denoise(mel, mean, deviation).sum(1) for mel in _read_back(file)])


def denoise(mel: Floats, mean: Floats, deviation: Floats) -> Floats:
    """What lies more than 0.75 robust standard deviations above the robust mean, less that mean; else zero."""
    above = mel - mean
    above[above <= SIGNAL * deviation] = 0.0
    return above


def find_peaks(signal: Floats, most: int) -> Numbers:
    """Frames of the peaks that stand out, in time order: the `most` with the highest values in the signal vector."""
    check_integer("most", most, 1)
    peaks = find_peaks_cwt(signal)
    around = peaks[:, None] + np.arange(-MARGIN, MARGIN)
    highest = signal[np.clip(around, 0, len(signal) - 1)].max(1, initial=-np.inf)
    peaks = peaks[highest >= PROMINENT * signal.mean()] if len(peaks) else peaks
    strongest = np.lexsort((peaks, signal[peaks]))[::-1][:most]  # of equal ones the later, as the authors do
    return np.sort(peaks[strongest])


def find_peaks_cwt(signal: Floats) -> Numbers:
    """Exactly the peaks of `scipy.signal.find_peaks_cwt(signal, WIDTHS)`, some hundred times quicker on an hour.

    SciPy takes a percentile around every frame and compares every maximum with every ridge line; here it is done
    where it is asked for. The transform is computed as SciPy does, so that it agrees to the last bit: where the
    signal is flat, the last bit decides what is a maximum.
    """
    if len(signal) < 3:
        return np.zeros(0, np.int64)
    columns, values, narrowest = _ridge_lines(signal)
    noise = np.array([_noise(narrowest, column) for column in columns])
    with np.errstate(divide="ignore", invalid="ignore"):
        faint = abs(values / noise) < 1  # 0 / 0 is not: SciPy keeps those
    return np.sort(columns[~faint])


def _ridge_lines(signal: Floats) -> tuple[Numbers, Floats, Floats]:
    """Column and value of the narrow end of every ridge line with at least a quarter of the rows; the last row.

    From the widest wavelet to the narrowest, each maximum joins the line whose last column was nearest, if that is
    within a quarter of the width; of equally near lines the oldest. Several may join one line: each counts, and the
    last stays. (A line would end after 50 rows without a maximum, and there are ten.)
    """
    columns, counts, values = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)  # of lines, oldest first
    for width in WIDTHS[::-1]:
        row = scipy.signal.convolve(signal, _ricker(len(signal), width), mode="same")
        found = 1 + np.flatnonzero((row[1:-1] > row[:-2]) & (row[1:-1] > row[2:]))
        nearest, distance = _nearest(columns, found)
        joins = distance <= width / 4
        joined, new = found[joins], found[~joins]
        columns[nearest[joins]], values[nearest[joins]] = joined, row[joined]  # of several, the last stays
        np.add.at(counts, nearest[joins], 1)
        columns, values = np.concatenate([columns, new]), np.concatenate([values, row[new]])
        counts = np.concatenate([counts, np.ones_like(new)])
    long = counts >= np.ceil(len(WIDTHS) / 4)
    return columns[long], values[long], row


def _nearest(columns: Numbers, wanted: Numbers) -> tuple[Numbers, Floats]:
    """For each wanted column the nearest of `columns` (of equally near ones the first) and its distance."""
    if not len(columns):
        return np.zeros(len(wanted), np.int64), np.full(len(wanted), np.inf)
    order = np.argsort(columns, kind="stable")
    ordered = columns[order]
    right = np.searchsorted(ordered, wanted)  # the first that is not smaller
    left = np.searchsorted(ordered, ordered[np.maximum(right - 1, 0)])  # the first of those before it
    right = np.minimum(right, np.searchsorted(ordered, ordered[-1]))
    to_left, to_right = abs(wanted - ordered[left]), abs(wanted - ordered[right])
    use_left = (to_left < to_right) | ((to_left == to_right) & (order[left] < order[right]))
    return order[np.where(use_left, left, right)], np.minimum(to_left, to_right).astype(np.float64)


def _noise(row: Floats, column: int) -> float:
    """The tenth percentile of a twentieth of the row around a column, interpolated in the order that SciPy does."""
    half, odd = divmod(int(np.ceil(len(row) / 20)), 2)
    around = row[max(column - half, 0) : column + half + odd]
    place = 10 / 100.0 * (len(around) - 1)
    below = int(place)
    if below == place:
        return float(np.partition(around, below)[below])
    pair = np.partition(around, (below, below + 1))[below : below + 2]
    weights = np.array([below + 1 - place, place - below])
    return float(np.add.reduce(pair * weights) / weights.sum())


def _ricker(length: int, width: float) -> Floats:
    """The wavelet that SciPy lays over `length` points, reversed (its width need not be whole)."""
    points = min(10 * width, length)
    squares = (np.arange(0, points) - (points - 1.0) / 2) ** 2
    height = 2 / (np.sqrt(3 * width) * (np.pi**0.25))
    wavelet: Floats = height * (1 - squares / width**2) * np.exp(-squares / (2 * width**2))
    return wavelet[::-1]


@cache
def _mel_bank() -> tuple[int, Any]:
    """The first FFT bin that a band hears, and the sparse (band, bin) weights from there to the last."""
    bins = _mel(np.linspace(0, SAMPLE_RATE / 2, FRAME // 2 + 1))
    edges = np.linspace(_mel(LOWEST), _mel(HIGHEST), BANDS + 2)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    weights = np.maximum(0, np.minimum(rising, falling))
    heard = np.flatnonzero(weights.any(0))
    return int(heard[0]), scipy.sparse.csr_matrix(weights[:, heard[0] : heard[-1] + 1])


def _mel(hertz: npt.ArrayLike) -> Any:
    return 1127.0 * np.log1p(np.asarray(hertz) / 700.0)


class _Moments:
    """Per-channel sums about a point, of all values or of chosen ones. About the floor of the logarithm, a channel that
    never leaves it has a deviation of exactly zero."""

    def __init__(self, about: Floats) -> None:
        self.about, self.count, self.first, self.second = about, np.zeros(BANDS), np.zeros(BANDS), np.zeros(BANDS)

    def add(self, mel: Floats, chosen: npt.NDArray[np.bool_] | None = None) -> None:
        away = mel - self.about
        if chosen is not None:
            away *= chosen
        self.count += len(mel) if chosen is None else chosen.sum(0)
        self.first += away.sum(0)
        self.second += np.einsum("tc,tc->c", away, away)

    @property
    def mean(self) -> Floats:
        return self.about + self.first / self.count

    @property
    def deviation(self) -> Floats:
        return np.sqrt(np.maximum(self.second / self.count - (self.first / self.count) ** 2, 0))

    def robust(self) -> tuple[Floats, Floats]:
        """Mean and standard deviation with 1 added to the denominator, so that there may be no inliers."""
        mean = (self.first + self.count * self.about) / (self.count + 1)
        shift = mean - self.about
        squares = self.second - 2 * shift * self.first + self.count * shift**2
        return mean, np.sqrt(np.maximum(squares, 0) / (self.count + 1))


def _read_back(file: IO[bytes]) -> Iterator[Floats]:
    file.seek(0)
    while content := file.read(_CHUNK * BANDS * 8):
        yield np.frombuffer(content).reshape(-1, BANDS)
