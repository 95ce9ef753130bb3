"""Speed of the bird classifier's parts, each against the obvious alternative in the same run.

    python benchmarks/audio.py                # all five
    python benchmarks/audio.py prepare frontend training predict aviary

prepare   windows around the peaks of a ten-minute FLAC file, decoded, cut and written, against the same with SciPy's
          find_peaks_cwt; here a "window" is a second of sound
frontend  pictures of 5-s windows, one thread: our Gabor filters (folded frames, few taps for narrow filters) against a
          plain strided conv1d with all 2,048 taps, PCEN against its recursion frame by frame, and log-mel
training  forward, backward and Adam step in batches of 64 windows: the small network on pictures and on sound (filters
          frozen, filters learnt); EfficientNet-B1, forward and backward of 8 windows, in channels-last layout against
          the plain one. On a busy machine set OMP_NUM_THREADS=1: threads that wait for each other count as busy
predict   detections of the small network in thirty one-minute FLAC files, one thread: reading ahead against reading in
          turn
aviary    a soundscape of a minute and five focal recordings of 12 s, made and written as FLAC: each note made once,
          over its own duration, against each one anew on a track as long as the recording; again a "window" is a second
          of sound

Windows per CPU-second (of all threads) and per second of the clock; medians of turns taken one after another, so what
the machine does else falls on all. Every case runs in a process of its own.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.signal
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from notela.bioacoustics import peaks, predict, prepare
from notela.bioacoustics.audio import write_flac
from notela.bioacoustics.aviary import DOMAINS, scene
from notela.bioacoustics.aviary.song import Singer, sound
from notela.bioacoustics.frontend import HOP, PCEN, TAPS, UNIT, Gabor, LogMel
from notela.bioacoustics.model import BirdClassifier
from notela.bioacoustics.networks import loss
from notela.bioacoustics.taxonomy import Species

SAMPLES = 160_000


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def turn_by_turn(works: dict[str, Callable[[], Any]], windows: int, rounds: int) -> dict[str, dict[str, float]]:
    """Windows per CPU-second and per second of each, and how many times faster it is than the last one."""
    cpu: dict[str, list[float]] = {name: [] for name in works}
    clock: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            before, start = cpu_seconds(), time.perf_counter()
            work()
            if turn:  # the first warms up
                cpu[name].append(cpu_seconds() - before)
                clock[name].append(time.perf_counter() - start)
    last = list(works)[-1]
    return {
        name: {
            "per_cpu_s": windows / statistics.median(cpu[name]),
            "per_s": windows / statistics.median(clock[name]),
            "times_the_last": statistics.median(b / a for a, b in zip(cpu[name], cpu[last], strict=True)),
        }
        for name in works
    }


# ---- front end


def plain_gabor(gabor: Gabor) -> Callable[[Tensor], Tensor]:
    """The same filters, written out and handed to conv1d."""
    time_ = torch.arange(TAPS, dtype=torch.float64) - TAPS / 2 + 0.5
    envelope = torch.exp(-0.5 * (time_ / gabor.widths().detach().double()[:, None]) ** 2)
    envelope *= UNIT / envelope.square().sum(1, keepdim=True).sqrt()
    phase = time_ * gabor.centres.detach().double()[:, None] * (2 * torch.pi / 32)
    kernels = torch.cat([envelope * phase.cos(), envelope * phase.sin()]).float()[:, None]

    def run(sound: Tensor) -> Tensor:
        padded = F.pad(sound, (TAPS // 2, TAPS // 2 - HOP))[:, None]
        real, imaginary = F.conv1d(padded, kernels, stride=HOP).chunk(2, 1)
        return (real.square() + imaginary.square()).transpose(1, 2)

    return run


def plain_pcen(energy: Tensor) -> Tensor:
    """Frame by frame."""
    state, states = energy[:, 0], []
    for frame in energy.unbind(1):
        state = 0.9 * state + 0.1 * frame
        states.append(state)
    return (energy / (torch.stack(states, 1) + 1e-6).sqrt() + 2).sqrt() - 2**0.5


def frontend(variant: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    sound = 0.05 * torch.randn(32, SAMPLES)
    gabor, pcen = Gabor(), PCEN()
    plain = plain_gabor(gabor)
    with torch.no_grad():
        energy = gabor(sound)
        if variant == "PCEN":
            torch.testing.assert_close(pcen(energy), plain_pcen(energy), rtol=1e-4, atol=1e-5)
            works = {"blocks": lambda: pcen(energy), "frame by frame": lambda: plain_pcen(energy)}
            return turn_by_turn(works, 32, 9)
        difference = (energy - plain(sound)).abs().max() / energy.max()
        log_mel = LogMel()
        works = {"ours": lambda: gabor(sound), "log-mel": lambda: log_mel(sound), "conv1d": lambda: plain(sound)}
        return {**turn_by_turn(works, 32, 9), "largest difference": {"of_the_maximum": float(difference)}}


# ---- training


def training(variant: str) -> dict[str, Any]:
    torch.manual_seed(0)
    birds = [Species(f"bird{i}", f"A b{i}", f"b{i}", f"G{i // 2}", f"F{i // 5}", f"O{i // 20}") for i in range(100)]
    if variant == "EfficientNet-B1":
        return training_b1(birds)
    model = BirdClassifier(birds).train()
    sound = 0.05 * torch.randn(64, SAMPLES)
    targets = model.targets((torch.rand(64, len(birds)) < 0.02).float())
    with torch.no_grad():
        pictures = model.front_end(sound)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(outputs: dict[str, Tensor]) -> None:
        optimizer.zero_grad()
        loss(outputs, targets).backward()
        optimizer.step()

    def on_pictures() -> None:
        embedding = model.dropout(model.network(pictures[:, None]))
        step({rank: head(embedding) for rank, head in model.heads.items()})

    def on_sound(learn_filters: bool) -> None:
        model.front_end.requires_grad_(learn_filters)
        step(model.by_rank(sound))

    def predicting() -> None:
        with torch.no_grad():
            model.eval()(sound)
        model.train()

    works = {
        "on pictures": on_pictures,
        "prediction on sound": predicting,
        "on sound, filters frozen": lambda: on_sound(False),
        "on sound, filters learnt": lambda: on_sound(True),
    }
    return turn_by_turn(works, 64, 5)


def training_b1(birds: list[Species]) -> dict[str, Any]:
    model = BirdClassifier(birds, network_name="efficientnet").train()
    plain = BirdClassifier(birds, network_name="efficientnet").train().to(memory_format=torch.contiguous_format)
    sound = 0.05 * torch.randn(8, SAMPLES)
    targets = model.targets((torch.rand(8, len(birds)) < 0.02).float())

    def step(net: BirdClassifier) -> None:
        nn.Module.zero_grad(net)
        loss(net.by_rank(sound), targets).backward()

    return turn_by_turn({"channels-last": lambda: step(model), "plain layout": lambda: step(plain)}, 8, 2)


# ---- recordings


def recording(path: Path, seconds: int, seed: int) -> None:
    """Tones over noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(seconds * 32_000) / 32_000
    sound = 0.01 * rng.normal(size=len(t))
    for start in rng.uniform(0, seconds - 1, seconds // 4):
        on = (t > start) & (t < start + 0.4)
        sound[on] += 0.2 * np.sin(2 * np.pi * rng.uniform(1000, 8000) * t[on])
    write_flac(path, sound.astype(np.float32))


def preparing(_: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        recording(Path(folder) / "a.flac", 600, 0)
        task = prepare.Task(Path(folder) / "a.flac", "a.flac", None, prepare.SOUNDSCAPE, Path(folder), "")

        def with_scipy() -> None:
            ours = peaks.find_peaks_cwt
            peaks.find_peaks_cwt = lambda signal: np.array(scipy.signal.find_peaks_cwt(signal, peaks.WIDTHS))
            prepare.prepare_one(task)
            peaks.find_peaks_cwt = ours

        return turn_by_turn({"ours": lambda: prepare.prepare_one(task), "SciPy's peaks": with_scipy}, 600, 2)


def predicting(_: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    model = BirdClassifier([Species(f"bird{i}", f"A b{i}", "", "", "", "") for i in range(100)])
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{i}.flac" for i in range(30)]
        for i, path in enumerate(paths):
            recording(path, 60, i)

        def run(ahead: bool) -> None:
            kept = predict.ahead
            predict.ahead = kept if ahead else iter
            for _found in predict.listen(model, paths, tuple(range(100)), 0.5):
                pass
            predict.ahead = kept

        return turn_by_turn({"reading ahead": lambda: run(True), "in turn": lambda: run(False)}, 12 * len(paths), 3)


def aviary(variant: str) -> dict[str, Any]:
    seconds = {"soundscape": 60, "focal": 12}[variant]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.flac"

        def make() -> None:
            if variant == "soundscape":
                write_flac(path, scene.soundscape(DOMAINS["DELL"], 0, seconds).samples)
            else:
                for number in range(5):
                    write_flac(path, scene.focal(8 * number, 0, seconds))

        def note_on_a_track(self: Singer, number: int) -> Any:
            one = sound(self.notes[number])
            echo = len(self._carry(one[:1])) - 1
            return self._carry(np.pad(one, (0, seconds * 32_000)))[: len(one) + echo]

        def on_whole_tracks() -> None:
            kept, Singer._note = Singer._note, note_on_a_track
            make()
            Singer._note = kept

        return turn_by_turn({"ours": make, "on whole tracks": on_whole_tracks}, 60, 2)


CASES = {
    "prepare": (preparing, ["peaks"]),
    "frontend": (frontend, ["Gabor", "PCEN"]),
    "training": (training, ["small", "EfficientNet-B1"]),
    "predict": (predicting, ["small"]),
    "aviary": (aviary, ["soundscape", "focal"]),
}


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(CASES[sys.argv[2]][0](sys.argv[3])))
        return
    wanted = sys.argv[1:] or list(CASES)
    unknown = [name for name in wanted if name not in CASES]
    if unknown:
        sys.exit(f"{unknown[0]!r} is not one of {', '.join(CASES)}\n{__doc__}")
    for name in wanted:
        for variant in CASES[name][1]:
            print(f"## {name}: {variant}")
            command = [sys.executable, __file__, "--one", name, variant]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            for way, numbers in json.loads(out.splitlines()[-1]).items():
                print(f"{way:<28}" + "  ".join(f"{key} {value:.4g}" for key, value in numbers.items()), flush=True)
            print()


if __name__ == "__main__":
    main()
