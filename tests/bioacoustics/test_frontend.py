"""Front ends against plain doubles in NumPy, on tones, impulses and noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.signal
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from notela.bioacoustics.frontend import PCEN, BirdSetMel, Gabor, LogMel, front_end, recursion, smoothed
from notela.errors import NotelaError

RATE = 32_000
BANDS = [0, 1, 17, 60, 95, 96, 130, 159]


def corners() -> np.ndarray:
    mel = np.linspace(2595 * np.log10(1 + 60 / 700), 2595 * np.log10(1 + 10_000 / 700), 162)
    return 700 * (10 ** (mel / 2595) - 1)


def filters() -> np.ndarray:
    """(160, 2048), written out: Gaussian × complex exponential, unit energy, full scale counting as 100."""
    f = corners()
    time = np.arange(-1024, 1024) + 0.5
    out = []
    for left, centre, right in zip(f, f[1:], f[2:], strict=False):
        width_hz = (right - left) / 2  # a triangle is at half its height halfway down either side
        sigma = np.sqrt(np.log(2)) / (np.pi * width_hz / RATE)
        g = np.exp(-(time**2) / (2 * sigma**2)) * np.exp(2j * np.pi * centre / RATE * time)
        out.append(100 * g / np.linalg.norm(g))
    return np.array(out)


FILTERS = filters()


def gabor_double(sound: np.ndarray) -> np.ndarray:
    """Each frame, from 1,024 samples before 320 k to 1,024 after, times each filter."""
    padded = np.concatenate([np.zeros(1024), sound, np.zeros(2048)])
    frames = [padded[start : start + 2048] for start in range(0, len(sound), 320)]
    return np.abs(np.array(frames) @ FILTERS.conj().T) ** 2


def run(module: torch.nn.Module, sound: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return module(torch.tensor(np.atleast_2d(sound), dtype=torch.float32)).numpy()


def tone(hz: float, seconds: float = 0.5, amplitude: float = 1.0) -> np.ndarray:
    return amplitude * np.cos(2 * np.pi * hz / RATE * np.arange(int(seconds * RATE)) + 0.3)


# ---- Gabor


@pytest.mark.parametrize("samples", [1, 319, 320, 321, 3000, 16_001, 32_000])
def test_gabor_is_the_double(samples: int) -> None:
    sound = np.random.default_rng(samples).normal(size=samples) * 0.1
    ours, double = run(Gabor(), sound)[0], gabor_double(sound)
    assert ours.shape == double.shape == (math.ceil(samples / 320), 160)
    np.testing.assert_allclose(ours, double, rtol=1e-4, atol=3e-6 * double.max())


def test_five_seconds_are_500_by_160() -> None:
    assert run(Gabor(), np.zeros((2, 160_000))).shape == (2, 500, 160)


def test_every_filter_peaks_at_its_centre() -> None:
    """A bank of tones at all centres: each band hears its own loudest."""
    heard = run(Gabor(), np.stack([tone(f) for f in corners()[1:-1]]))[:, 25]  # tone, band
    assert (heard.argmax(0) == np.arange(160)).all()


@pytest.mark.parametrize("band", BANDS)
def test_power_of_a_tone(band: int) -> None:
    """A tone of amplitude a at the centre: a² / 4 times the squared sum of the envelope."""
    got = run(Gabor(), tone(corners()[band + 1], amplitude=0.2))[0, 25, band]
    envelope = np.abs(FILTERS[band])
    # where the tone's mirror image at -f reaches into the band, phase matters: a few per cent in the lowest ones
    assert got == pytest.approx(0.2**2 / 4 * envelope.sum() ** 2, rel=0.1 if band < 10 else 1e-3)


@pytest.mark.parametrize("band", [50, 80, 96, 120, 159])
def test_half_maximum_where_the_mel_triangle_has_it(band: int) -> None:
    left, centre, right = corners()[band : band + 3]
    width = (right - left) / 2
    grid = centre + np.array([0, -width / 2, width / 2])
    peak, below, above = run(Gabor(), np.stack([tone(f) for f in grid]))[:, 25, band]
    assert below / peak == pytest.approx(0.5, abs=0.01)
    assert above / peak == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("at", [3200, 3300, 8000])
def test_an_impulse_is_heard_where_it_is(at: int) -> None:
    """In every band the power over time is the squared envelope about the impulse."""
    sound = np.zeros(12_000)
    sound[at] = 1
    heard = run(Gabor(), sound)[0]
    frames = np.arange(len(heard)) * 320
    for band in BANDS:
        offset = at - frames + 1024  # the tap that meets the impulse
        inside = (offset >= 0) & (offset < 2048)
        expected = np.where(inside, np.abs(FILTERS[band][offset.clip(0, 2047)]) ** 2, 0)
        np.testing.assert_allclose(heard[:, band], expected, rtol=1e-4, atol=1e-4)
        assert abs(frames[heard[:, band].argmax()] - at) <= 160


def test_white_noise_is_as_loud_in_every_band() -> None:
    sound = np.random.default_rng(0).normal(size=(4, 160_000)) * 0.01
    mean = run(Gabor(), sound)[:, 4:-4].mean((0, 1))
    assert mean == pytest.approx(np.ones(160), rel=0.25)
    assert mean.mean() == pytest.approx(1, rel=0.02)


def test_gabor_gradients_by_differences() -> None:
    torch.manual_seed(0)
    gabor = Gabor(bands=3).double()
    sound = torch.randn(2, 900, dtype=torch.float64)
    names = list(dict(gabor.named_parameters()))

    def power(*values: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.func.functional_call(gabor, dict(zip(names, values, strict=True)), sound)
        return out.log()

    values = [p.detach().clone().requires_grad_() for p in gabor.parameters()]
    assert torch.autograd.gradcheck(power, values, eps=1e-7, atol=1e-4, rtol=1e-3)
    assert all(p.grad is None for p in gabor.parameters())


def test_gabor_survives_wild_parameters() -> None:
    gabor = Gabor()
    with torch.no_grad():
        gabor.centres.copy_(torch.linspace(-5, 40, 160))
        gabor.log_widths.copy_(torch.linspace(-20, 20, 160))
    power = gabor(torch.randn(1, 3200))
    power.sum().backward()
    assert power.isfinite().all()
    assert gabor.centres.grad is not None
    assert gabor.centres.grad.isfinite().all()
    assert 4 < gabor.widths().min() < gabor.widths().max() < 1024


# ---- PCEN


def pcen_double(energy: np.ndarray, s: float, gain: float, bias: float, root: float, eps: float) -> np.ndarray:
    out, memory = [], energy[0]
    for now in energy:
        memory = (1 - s) * memory + s * now
        out.append((now / (eps + memory) ** gain + bias) ** (1 / root) - bias ** (1 / root))
    return np.array(out)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 130),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
    st.floats(0.1, 4.0),
    st.floats(1.0, 4.0),
    st.integers(0, 9),
)
def test_pcen_is_the_recursion(frames: int, s: float, gain: float, bias: float, root: float, seed: int) -> None:
    energy = np.random.default_rng(seed).exponential(size=(2, frames, 3))
    ours = PCEN(s, gain, bias, root, 1e-6)(torch.tensor(energy)).numpy()
    for got, one in zip(ours, energy, strict=True):
        np.testing.assert_allclose(got, pcen_double(one, s, gain, bias, root, 1e-6), rtol=1e-9, atol=1e-12)


def test_pcen_as_published_in_float32() -> None:
    energy = np.random.default_rng(1).exponential(size=(1, 500, 160)) ** 4
    got = run(PCEN(), energy[0][None])
    np.testing.assert_allclose(got[0], pcen_double(energy[0], 0.1, 0.5, 2.0, 2.0, 1e-6), rtol=1e-4, atol=1e-6)


def test_smoothing_of_a_step() -> None:
    """From 0 to 1 the state is 1 - 0.9^n."""
    energy = torch.zeros(60, 1, dtype=torch.float64)
    energy[10:] = 1
    expected = [0.0] * 10 + [1 - 0.9**n for n in range(1, 51)]
    assert smoothed(energy, recursion(60, 0.1, energy)).flatten().tolist() == pytest.approx(expected)


def test_constant_energy_stays_constant() -> None:
    energy = torch.full((77, 2), 5.0, dtype=torch.float64)
    assert torch.allclose(smoothed(energy, recursion(77, 0.1, energy)), energy)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.01, 100.0))
def test_full_gain_forgets_loudness(scale: float) -> None:
    """With gain 1 and no eps, a recording made twice as loud gives the same picture; with gain 0.5, E scales by √."""
    energy = torch.tensor(np.random.default_rng(0).exponential(size=(1, 90, 4)))
    full = PCEN(gain=1.0, eps=0.0)
    torch.testing.assert_close(full(energy * scale), full(energy))
    half, scaled = PCEN(eps=0.0), PCEN(eps=0.0)
    before, after = ((m + math.sqrt(2)) ** 2 - 2 for m in (half(energy), scaled(energy * scale)))
    torch.testing.assert_close(after, before * math.sqrt(scale))


def test_pcen_gradients_by_differences() -> None:
    energy = torch.rand(2, 11, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(PCEN(), [energy])


def test_silence_is_zero_and_has_gradients() -> None:
    energy = torch.zeros(1, 20, 3, requires_grad=True)
    out = PCEN()(energy)
    out.sum().backward()
    assert (out == 0).all()
    assert energy.grad is not None
    assert energy.grad.isfinite().all()


def test_smoothing_out_of_range() -> None:
    with pytest.raises(NotelaError, match="smoothing=0 must be above 0"):
        PCEN(smoothing=0)


# ---- log-mel


def triangles(bins: np.ndarray, f: np.ndarray) -> np.ndarray:
    return np.stack([np.interp(bins, [a, b, c], [0, 1, 0]) for a, b, c in zip(f, f[1:], f[2:], strict=False)], 1)


def test_log_mel_is_scipys() -> None:
    sound = np.random.default_rng(0).normal(size=8_000) * 3e-4
    window = scipy.signal.get_window("hann", 2560)
    padded = np.concatenate([np.zeros(1280), sound, np.zeros(2560)])
    spectrum = np.array([np.fft.rfft(padded[k : k + 2560] * window) for k in range(0, len(sound), 320)])
    mel = np.abs(spectrum) @ triangles(np.arange(1281) * 12.5, corners())
    got = run(LogMel(), sound)[0]
    assert got.shape == (25, 160)
    assert (mel < 1e-2).any()  # so the floor is tried
    assert (mel > 1e-2).any()
    np.testing.assert_allclose(got, 0.1 * np.log(np.maximum(mel, 1e-2)), atol=1e-5)


def test_log_mel_of_silence_is_the_floor() -> None:
    assert run(LogMel(), np.zeros(3200)) == pytest.approx(0.1 * math.log(0.01))


def test_birdset_is_scipys() -> None:
    """n_fft 2048, hop 256, mirrored ends, 256 bands to 16 kHz, dB, 80 dB below the window's maximum, -4.268, 4.569."""
    rng = np.random.default_rng(0)
    windows = np.stack([rng.normal(size=16_000) * 0.1, tone(1000) + rng.normal(size=16_000) * 1e-5])
    mel = np.linspace(0, 2595 * np.log10(1 + 16_000 / 700), 258)
    bank = triangles(np.arange(1025) * 15.625, 700 * (10 ** (mel / 2595) - 1))
    got = run(BirdSetMel(), windows)
    for ours, sound in zip(got, windows, strict=True):
        padded = np.pad(sound, 1024, mode="reflect")
        sft = scipy.signal.get_window("hann", 2048)
        frames = np.array([padded[k : k + 2048] * sft for k in range(0, len(sound) + 1, 256)])
        power = (np.abs(np.fft.rfft(frames)) ** 2) @ bank
        db = 10 * np.log10(np.maximum(power, 1e-10))
        db = np.maximum(db, db.max() - 80)
        assert ours.shape == (256, 63)
        np.testing.assert_allclose(ours, ((db + 4.268) / 4.569).T, atol=2e-3)
    assert run(BirdSetMel(), np.zeros(160_000)).shape == (1, 256, 626)


# ---- all


@pytest.mark.parametrize("name", ["gabor", "logmel", "birdset"])
def test_a_window_does_not_hear_its_neighbours(name: str) -> None:
    module = front_end(name)
    sound = np.random.default_rng(0).normal(size=(3, 6400)) * [[0.01], [1.0], [0.1]]
    together, alone = run(module, sound), run(module, sound[:1])
    np.testing.assert_allclose(together[:1], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["gabor", "logmel", "birdset"])
def test_wrong_shapes(name: str) -> None:
    for shape in ((6400,), (1, 1, 6400), (2, 0)):
        with pytest.raises(NotelaError, match=r"sound has shape .*; expected \(windows, samples\)"):
            front_end(name)(torch.zeros(shape))


def test_unknown_front_end() -> None:
    with pytest.raises(NotelaError, match="front_end='mfcc' is not one of"):
        front_end("mfcc")
