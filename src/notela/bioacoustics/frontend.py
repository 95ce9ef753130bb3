"""From sound to pictures: the classifier's front ends, as torch modules.

All take mono sound at 32 kHz, (N, samples), and give (N, frames, bands): frame k is centred on sample 320 k, beyond the
ends is silence, and there are ⌈samples / 320⌉ frames, so 5 s become 500 × 160. `BirdSetMel` alone is laid out as its
checkpoints were trained: (N, bands, frames).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from notela.errors import NotelaError

SAMPLE_RATE = 32_000
HOP = 320
BANDS = 160
LOWEST, HIGHEST = 60.0, 10_000.0
TAPS = 2048
UNIT = 100.0
"""Amplitudes are counted in hundredths of full scale."""

_GROUP = 32
_SUPPORT = 5.0  # widths; what lies beyond holds 6e-7 of an envelope's sum, less than float32 loses in adding it up


class Gabor(nn.Module):
    """Power in 160 bands: complex Gabor filters of 2,048 samples, stride 320, squared magnitude.

    Filters have Gaussian envelopes of unit energy, and amplitudes count in hundredths of full scale: white noise with
    standard deviation 0.01 has power 1 in every band. That puts recordings whose peak is 0.2 where PCEN's bias of 2
    bends (half of the picture below 0.1, calls at 10 to 10,000); with full scale as 1, PCEN would be a straight line.

    Taps lie half a sample beside the centre, at ±0.5, ±1.5, ... ±1023.5: so each filter's real part is even and its
    imaginary part odd, and folding the frames at their centre halves the multiplications. Narrow envelopes use fewer
    taps.

    `centres` (kHz) and `log_widths` (the envelopes' standard deviations, ln of samples) are what a band learns: one
    step of 0.001 is 1 Hz, or 0.1 % of the width. They start so that each filter's power is at half its maximum where
    the triangle of a mel bank is; below 800 Hz, 2,048 samples are too short for that: bands are up to 1.3 times wider.
    """

    def __init__(self, bands: int = BANDS) -> None:
        super().__init__()
        corners = mel_points(bands + 2, LOWEST, HIGHEST)
        half_maximum = (corners[2:] - corners[:-2]) / 2
        widths = math.sqrt(math.log(2)) / math.pi * SAMPLE_RATE / half_maximum
        self.centres = nn.Parameter((corners[1:-1] / 1000).float())
        self.log_widths = nn.Parameter(widths.log().float())

    def forward(self, sound: Tensor) -> Tensor:
        check_sound(sound)
        half = TAPS // 2
        frames = frame_count(sound.shape[1])
        sound = F.pad(sound, (half, frames * HOP - sound.shape[1] + half))
        kernels = self.kernels()
        return torch.stack([_power(clip, frames, kernels) for clip in sound])  # clip by clip: it stays in the cache

    def widths(self) -> Tensor:
        """Standard deviations of the envelopes in samples, kept within what 2,048 samples can hold."""
        narrowest, widest = 4 * math.sqrt(2 * math.log(2)), TAPS * math.sqrt(2 * math.log(2)) / math.pi
        return self.log_widths.exp().clamp(narrowest, widest)

    def kernels(self) -> list[tuple[Tensor, Tensor]]:
        """Real and imaginary half filters, (taps, bands), of groups of bands that need the same number of taps."""
        widths = self.widths()
        time = torch.arange(TAPS // 2, dtype=widths.dtype, device=widths.device)[:, None] + 0.5
        envelope = (-0.5 * (time / widths) ** 2).exp()
        envelope = envelope * UNIT / (2 * envelope.square().sum(0)).sqrt()
        phase = time * (self.centres.clamp(0, SAMPLE_RATE / 2000) * (2000 * math.pi / SAMPLE_RATE))
        real, imaginary = envelope * phase.cos(), envelope * phase.sin()

        bounds: list[list[int]] = []  # first band, last band + 1, taps
        support = (widths.detach() * _SUPPORT).ceil().clamp(max=TAPS // 2).int().tolist()
        for first in range(0, len(support), _GROUP):
            taps = max(support[first : first + _GROUP])
            if bounds and bounds[-1][2] == taps:
                bounds[-1][1] = first + _GROUP
            else:
                bounds.append([first, first + _GROUP, taps])
        return [(real[:taps, a:b].contiguous(), imaginary[:taps, a:b].contiguous()) for a, b, taps in bounds]


def _power(clip: Tensor, frames: int, kernels: list[tuple[Tensor, Tensor]]) -> Tensor:
    """(frames, bands) of one padded clip; the even and odd parts of each frame meet the half filters."""
    half = TAPS // 2
    before = clip.unfold(0, half, HOP)[:frames].flip(1)
    after = clip[half:].unfold(0, half, HOP)[:frames]
    even, odd = after + before, after - before
    return torch.cat(
        [
            (even[:, : len(real)] @ real).square() + (odd[:, : len(real)] @ imaginary).square()
            for real, imaginary in kernels
        ],
        1,
    )


class PCEN(nn.Module):
    """Per-channel energy normalisation: each band's energy over its smoothed past, then a root.

    M_t = (1 - s) M_{t-1} + s E_t, from M_0 = E_0; out = (E / (eps + M)^gain + bias)^(1/root) - bias^(1/root). The five
    numbers are settings and are not learnt: what the front end learns are the filters.
    """

    def __init__(
        self, smoothing: float = 0.1, gain: float = 0.5, bias: float = 2.0, root: float = 2.0, eps: float = 1e-6
    ) -> None:
        super().__init__()
        if not 0 < smoothing <= 1:
            raise NotelaError(f"smoothing={smoothing} must be above 0 and at most 1")
        self.smoothing, self.gain, self.bias, self.root, self.eps = smoothing, gain, bias, root, eps
        self._offset = bias ** (1 / root)  # so that silence is 0

    def forward(self, energy: Tensor) -> Tensor:
        matrices = recursion(energy.shape[1], self.smoothing, energy)
        return torch.stack([self._normalised(clip, smoothed(clip, matrices)) for clip in energy])  # as in Gabor

    def _normalised(self, energy: Tensor, past: Tensor) -> Tensor:
        out: Tensor = (energy * (past + self.eps) ** -self.gain + self.bias) ** (1 / self.root) - self._offset
        return out

    def extra_repr(self) -> str:
        return f"{self.smoothing}, gain={self.gain}, bias={self.bias}, root={self.root}, eps={self.eps}"


def smoothed(energy: Tensor, matrices: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The recursion M_t = (1 - s) M_{t-1} + s E_t along frames, (frames, bands), from M_0 = E_0, without a loop: within
    blocks of about √frames by one triangular matrix, from block to block by another."""
    inside, between, decay = matrices
    frames, blocks, length = len(energy), len(between), len(inside)
    padded = F.pad(energy, (0, 0, 0, blocks * length - frames))
    local = inside @ padded.unflatten(0, (blocks, length))
    # The state before the first frame is E_0, which makes M_0 = E_0.
    carried = between @ torch.cat([energy[:1], local[:-1, -1]])
    whole: Tensor = local + decay[:, None] * carried[:, None]
    return whole.flatten(0, 1)[:frames]


def recursion(frames: int, smoothing: float, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What `smoothed` multiplies with, in the type and on the device of `like`: within blocks, between blocks, and what
    is left of a block's start after each of its frames."""
    length = math.ceil(math.sqrt(frames))
    blocks = math.ceil(frames / length)
    powers = (1 - smoothing) ** torch.arange(blocks * length + 1, dtype=torch.float64)
    inside, between = smoothing * _triangle(powers[:length]), _triangle(powers[: blocks * length : length])
    return inside.to(like), between.to(like), powers[1 : length + 1].to(like)


def _triangle(powers: Tensor) -> Tensor:
    """Row t, column j: powers[t - j], zero where j comes after t."""
    steps = torch.arange(len(powers))
    lag = steps[:, None] - steps
    return powers[lag.clamp(min=0)] * (lag >= 0)


class LogMel(nn.Module):
    """The plain alternative, as in the paper's peak finding: magnitudes of frames of 0.08 s (Hann) in 160 mel bands,
    their logarithm with a floor of 0.01, times 0.1."""

    window: Tensor
    bank: Tensor

    def __init__(self, bands: int = BANDS, frame: int = 2560, floor: float = 1e-2, scale: float = 0.1) -> None:
        super().__init__()
        self.floor, self.scale = floor, scale
        self.register_buffer("window", torch.hann_window(frame), persistent=False)
        used = int(HIGHEST * frame / SAMPLE_RATE) + 1  # bins above the highest band are not needed
        self.register_buffer("bank", mel_bank(bands, frame, LOWEST, HIGHEST)[:used].contiguous(), persistent=False)

    def forward(self, sound: Tensor) -> Tensor:
        check_sound(sound)
        size = len(self.window)
        frames = frame_count(sound.shape[1])
        sound = F.pad(sound, (size // 2, frames * HOP - sound.shape[1] + size // 2 - HOP))
        mel = [spectral_power(clip, self.window, HOP, len(self.bank)).sqrt() @ self.bank for clip in sound]
        return torch.stack(mel).clamp(min=self.floor).log() * self.scale


class BirdSetMel(nn.Module):
    """What BirdSet's EfficientNets were trained on: power of frames of 2,048 (Hann, hop 256, mirrored at the ends) in
    256 mel bands from 0 to 16 kHz, in dB with 80 dB below each window's maximum, standardised with AudioSet's -4.268
    and 4.569. Gives (N, bands, frames)."""

    window: Tensor
    bank: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(2048), persistent=False)
        self.register_buffer("bank", mel_bank(256, 2048, 0.0, SAMPLE_RATE / 2), persistent=False)

    def forward(self, sound: Tensor) -> Tensor:
        check_sound(sound, least=1025)  # mirroring needs that many
        sound = F.pad(sound, (1024, 1024), "reflect")
        power = torch.stack([self.bank.T @ spectral_power(clip, self.window, 256, 1025).T for clip in sound])
        decibel = 10 * power.clamp(min=1e-10).log10()
        decibel = torch.maximum(decibel, decibel.amax((1, 2), keepdim=True) - 80)
        return (decibel + 4.268) / 4.569


def spectral_power(clip: Tensor, window: Tensor, hop: int, bins: int) -> Tensor:
    """Squared magnitudes (frames, bins) of the windowed frames of one clip; clip by clip it stays in the cache."""
    spectrum: Tensor = torch.fft.rfft(clip.unfold(0, len(window), hop) * window)[:, :bins]
    return spectrum.real.square() + spectrum.imag.square()


def front_end(name: str) -> nn.Module:
    """A front end by the name that a model file carries: "gabor" (filters and PCEN), "logmel" or "birdset"."""
    if name == "gabor":
        return nn.Sequential(Gabor(), PCEN())
    if name == "logmel":
        return LogMel()
    if name == "birdset":
        return BirdSetMel()
    raise NotelaError(f"front_end={name!r} is not one of 'gabor', 'logmel', 'birdset'")


def mel_points(count: int, lowest: float, highest: float) -> Tensor:
    """Frequencies in Hz, evenly spaced on the mel scale (2595 log10(1 + f / 700)), both ends included.

    >>> mel_points(3, 0.0, 1000.0).round().tolist()
    [0.0, 391.0, 1000.0]
    """
    low, high = (2595 * math.log10(1 + f / 700) for f in (lowest, highest))
    return 700 * (10 ** (torch.linspace(low, high, count, dtype=torch.float64) / 2595) - 1)


def mel_bank(bands: int, frame: int, lowest: float, highest: float) -> Tensor:
    """Triangles of height 1 over the bins of a real FFT of `frame` samples, (bins, bands)."""
    bins = torch.arange(frame // 2 + 1, dtype=torch.float64)[:, None] * (SAMPLE_RATE / frame)
    left, middle, right = mel_points(bands + 2, lowest, highest).unfold(0, 3, 1).unbind(1)
    rising, falling = (bins - left) / (middle - left), (right - bins) / (right - middle)
    return torch.minimum(rising, falling).clamp(min=0).float()


def frame_count(samples: int) -> int:
    """Frames of a sound: one every 320 samples, from the first.

    >>> frame_count(160_000), frame_count(1)
    (500, 1)
    """
    return -(-samples // HOP)


def check_sound(sound: Tensor, least: int = 1) -> None:
    """Refuse anything but (N, samples)."""
    if sound.ndim != 2 or sound.shape[1] < least:
        raise NotelaError(
            f"sound has shape {tuple(sound.shape)}; expected (windows, samples), mono at 32 kHz, of at least "
            f"{least} samples"
        )
