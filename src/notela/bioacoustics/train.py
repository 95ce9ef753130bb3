"""Training of a source classifier on prepared focal recordings (paper, section on the source model).

Every epoch's random numbers come from the seed and the epoch's number, so that a run that was cut off goes on bit for
bit as if it had not been.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from notela import metrics
from notela.bioacoustics.audio import SAMPLE_RATE, BadRecording, Recording, find_recordings, quiet_decoder
from notela.bioacoustics.model import PEAK, BirdClassifier, at_peak
from notela.bioacoustics.networks import loss
from notela.bioacoustics.prepared import Prepared
from notela.bioacoustics.windows import cut, samples_in, tile_windows
from notela.errors import NotelaError, check_at_least, check_integer
from notela.evaluation import pick_device
from notela.lock import only_one
from notela.runs import fingerprint, replacing

GAIN = (0.15, 0.25)
"""Peak amplitude of a training window."""


@dataclass(frozen=True)
class Settings:
    """How a classifier is trained; `mix` and `noise` are shares of the windows."""

    network: str = "small"
    front_end: str = "gabor"
    epochs: int = 40
    patience: int = 8
    """Epochs without a better score on held-out recordings after which training ends."""
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    mix: float = 0.5
    """Windows to which another recording is added, at up to its own loudness; both species count."""
    noise: float = 0.5
    """Windows to which background is added, at 20 to -5 dB below them; needs a folder of it."""
    window: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("patience", 1), ("batch_size", 2), ("seed", 0)):
            check_integer(name, getattr(self, name), least)
        for name in ("learning_rate", "weight_decay", "mix", "noise"):
            check_at_least(name, getattr(self, name), 0)


@dataclass(frozen=True)
class Trained:
    """The best epoch's classifier, and what happened."""

    model: BirdClassifier
    history: list[dict[str, float]]
    best: int
    """The epoch, from 1."""
    unheard: list[str]
    """Species that no training window holds: their scores mean nothing."""


def train(
    data: Prepared,
    run_dir: Path,
    settings: Settings,
    *,
    noise: npt.NDArray[np.float16] | None = None,
    start: BirdClassifier | None = None,
    device: str | None = None,
    progress: Callable[[int, int, int, float], None] | None = None,
) -> Trained:
    """Train on the split "adapt", stop by the split "test"; `run_dir` keeps what is done after each epoch.

    `start`: a classifier of other birds, whose filters and network training begins with; heads are new. `progress` gets
    the epoch, windows done, windows in all, and the loss.
    """
    rows, held_out = data.rows("adapt"), data.rows("test")
    heard = _check(data, rows, held_out, settings)
    where = pick_device(device)
    torch.manual_seed(settings.seed)
    model = BirdClassifier(
        data.classes, network_name=settings.network, front_end_name=settings.front_end, window=settings.window
    )
    if start is not None:
        _begin_with(model, start)
    model.to(where)
    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
    with only_one(run_dir):
        run = _Run(run_dir, model, optimizer, _identity(data, settings, noise, start))
        run.resume(where)
        while not run.ended(settings):
            run.epoch += 1
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * 0.5 * (1 + math.cos(math.pi * (run.epoch - 1) / settings.epochs))
            total = 0.0
            torch.manual_seed(_seed(settings.seed, run.epoch))  # dropout
            model.train()
            done = 0
            for x, y in _batches(data, rows, settings, noise, run.epoch):
                optimizer.zero_grad()
                value = loss(model.by_rank(x.to(where)), model.targets(y.to(where)))
                if not bool(torch.isfinite(value)):
                    raise NotelaError(
                        f"the loss became {value.item()} in epoch {run.epoch}; try a lower --learning-rate "
                        f"(now {settings.learning_rate:g})"
                    )
                value.backward()
                optimizer.step()
                total, done = total + float(value.detach()) * len(x), done + len(x)
                if progress is not None:
                    progress(run.epoch, done, len(rows), float(value.detach()))
            run.finish_epoch(total / len(rows), evaluate(model, data, held_out))
    model.load_state_dict(run.best_state)
    unheard = [one.scientific for one in data.classes if one.code not in heard]
    return Trained(model.cpu().eval(), run.history, run.best, unheard)


@torch.no_grad()
def evaluate(model: BirdClassifier, data: Prepared, rows: npt.NDArray[np.int64]) -> dict[str, float]:
    """Metrics of the middle of each window."""
    length, device = samples_in(model.window), next(model.parameters()).device
    start = (data.length - length) // 2
    model.eval()
    logits = [
        model(_samples(data, part)[:, start : start + length].to(device)).cpu()
        for part in np.array_split(rows, max(1, len(rows) // 64))
    ]
    z, labels = torch.cat(logits), torch.from_numpy(data.labels(rows)).float()
    scores = {name: metrics.BY_NAME[name](z, labels) for name in metrics.defined(labels)}
    return {**scores, "held-out loss": float(F.binary_cross_entropy_with_logits(z, labels))}


def better(new: dict[str, float], old: dict[str, float], classes: int) -> bool:
    """Whether an epoch's scores are better than an earlier one's: by mAP, which says nothing of a single class and
    where AUROC takes its place; of equal ones by the loss."""
    names = ("auroc",) if classes == 1 else ("map",)
    keys = [([line[name] for name in names if name in line], -line["held-out loss"]) for line in (new, old)]
    return keys[0] > keys[1]


def read_noise(folder: Path, seconds: float, most: int = 500) -> tuple[npt.NDArray[np.float16], list[BadRecording]]:
    """Background sounds as windows (N, samples) with a peak of 1, from the recordings in a folder, and those that
    cannot be used. Where there are more than `most` windows, every recording gives a few of its first."""
    length, found = samples_in(seconds), []
    paths, bad = find_recordings(folder)
    each = max(1, most // len(paths))
    with quiet_decoder():
        for path in paths[:most]:
            try:
                recording = Recording(path)
                windows = cut(recording.blocks(), tile_windows(recording.length, seconds)[:each], length)
                found += [(one / np.abs(one).max()).astype(np.float16) for one in windows if one.any()]
            except BadRecording as problem:
                bad.append(problem)
    if not found:
        why = f"first: {bad[0]}" if bad else "they begin with silence"
        raise NotelaError(f"none of the recordings in {folder} can be used as background ({why})")
    return np.stack(found), bad


# ---- batches


def _batches(
    data: Prepared,
    rows: npt.NDArray[np.int64],
    settings: Settings,
    noise: npt.NDArray[np.float16] | None,
    epoch: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The epoch's windows in a random order, each changed at random; the next batch is made while one is trained on."""
    rng = np.random.default_rng((settings.seed, epoch))
    groups = _groups(rng.permutation(rows), settings.batch_size)
    draws = [np.random.default_rng((settings.seed, epoch, number)) for number in range(len(groups))]
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(_batch, data, rows, settings, noise, groups[0], draws[0])
        for number in range(len(groups)):
            x, y = coming.result()
            if number + 1 < len(groups):
                coming = pool.submit(_batch, data, rows, settings, noise, groups[number + 1], draws[number + 1])
            yield x, y


def _groups(order: npt.NDArray[np.int64], size: int) -> list[npt.NDArray[np.int64]]:
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    if len(groups) > 1 and len(groups[-1]) == 1:  # a lone window has no batch statistics
        groups[-2:] = [np.concatenate(groups[-2:])]
    return groups


def _batch(
    data: Prepared,
    rows: npt.NDArray[np.int64],
    settings: Settings,
    noise: npt.NDArray[np.float16] | None,
    chosen: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[Tensor, Tensor]:
    length = samples_in(settings.window)
    x = _cropped(_samples(data, chosen), length, rng)
    y = torch.from_numpy(data.labels(chosen)).float()
    mixed = torch.from_numpy(rng.random(len(x)) < settings.mix)
    if mixed.any():
        others = rng.choice(rows, int(mixed.sum()))
        gain = torch.from_numpy(rng.uniform(0.25, 1.0, (len(others), 1)).astype(np.float32))
        x[mixed] += gain * at_peak(_cropped(_samples(data, others), length, rng), 1.0)
        y[mixed] = torch.maximum(y[mixed], torch.from_numpy(data.labels(others)).float())
    if noise is not None:
        noisy = torch.from_numpy(rng.random(len(x)) < settings.noise)
        if noisy.any():
            background = torch.from_numpy(noise[rng.integers(0, len(noise), int(noisy.sum()))].astype(np.float32))
            below = torch.from_numpy(rng.uniform(-5.0, 20.0, (len(background), 1)).astype(np.float32))
            x[noisy] += background * (_rms(x[noisy]) / _rms(background)) * 10 ** (-below / 20)
    gains = torch.from_numpy(rng.uniform(*GAIN, (len(x), 1)).astype(np.float32))
    return at_peak(x, PEAK) * (gains / PEAK), y


def _cropped(x: Tensor, length: int, rng: np.random.Generator) -> Tensor:
    """A random stretch of each window."""
    starts = rng.integers(0, x.shape[1] - length + 1, len(x))
    return torch.stack([row[start : start + length] for row, start in zip(x, starts.tolist(), strict=True)])


def _samples(data: Prepared, rows: npt.NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.stack([data.samples(int(row)) for row in rows]))


def _rms(x: Tensor) -> Tensor:
    return x.square().mean(1, keepdim=True).sqrt().clamp(min=1e-6)


# ---- the run's folder


class _Run:
    """What is known after each epoch, on disk."""

    def __init__(
        self, folder: Path, model: BirdClassifier, optimizer: torch.optim.Optimizer, identity: dict[str, Any]
    ) -> None:
        self._path, self._model, self._optimizer, self._identity = folder / "checkpoint.pt", model, optimizer, identity
        self.epoch, self.best, self.history = 0, 0, []  # type: int, int, list[dict[str, float]]
        self.best_state: dict[str, Tensor] = {}

    def resume(self, device: torch.device) -> None:
        """Go on where an earlier call stopped, if it had the same data and settings."""
        if not self._path.exists():
            return
        try:
            state = torch.load(self._path, map_location=device, weights_only=True)
        except Exception as error:
            raise NotelaError(f"{self._path} cannot be read ({error}); remove it to train from the start") from error
        known = json.loads(state["identity"])
        for key in self._identity:
            if known.get(key) != self._identity[key]:
                raise NotelaError(
                    f"{self._path.parent} holds a training with {key}={known.get(key)!r}, now {self._identity[key]!r}; "
                    "choose another folder, or remove it"
                )
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.best, self.history = state["epoch"], state["best"], json.loads(state["history"])
        self.best_state = state["best_state"]

    def ended(self, settings: Settings) -> bool:
        return self.epoch >= settings.epochs or (self.epoch > 0 and self.epoch - self.best >= settings.patience)

    def finish_epoch(self, mean_loss: float, scores: dict[str, float]) -> None:
        self.history.append({"epoch": self.epoch, "loss": mean_loss, **scores})
        if self.best == 0 or better(scores, self.history[self.best - 1], len(self._model.classes)):
            self.best = self.epoch
            self.best_state = {name: value.clone() for name, value in self._model.state_dict().items()}
        with replacing(self._path) as aside, _writing():
            torch.save(
                {
                    "identity": json.dumps(self._identity),
                    "model": self._model.state_dict(),
                    "optimizer": self._optimizer.state_dict(),
                    "epoch": self.epoch,
                    "best": self.best,
                    "history": json.dumps(self.history),
                    "best_state": self.best_state,
                },
                aside,
            )


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """torch has its own word for a full disk."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(str(error).splitlines()[0]) from error


def _begin_with(model: BirdClassifier, start: BirdClassifier) -> None:
    for what, mine, theirs in (
        ("network", model.network_name, start.network_name),
        ("front end", model.front_end_name, start.front_end_name),
        ("network's settings", model.network.settings, start.network.settings),
    ):
        if mine != theirs:
            raise NotelaError(
                f"the model to start from has the {what} {theirs}, and {mine} is to be trained; choose one"
            )
    model.front_end.load_state_dict(start.front_end.state_dict())
    model.network.load_state_dict(start.network.state_dict())


def _identity(
    data: Prepared, settings: Settings, noise: npt.NDArray[np.float16] | None, start: BirdClassifier | None
) -> dict[str, Any]:
    """What a training is made of."""
    sound = None if noise is None else hashlib.sha256(noise.tobytes()).hexdigest()[:16]
    begun = None if start is None else fingerprint(start)
    return {**asdict(settings), "data": data.manifest["fingerprint"], "background": sound, "start": begun}


def _check(
    data: Prepared, rows: npt.NDArray[np.int64], held_out: npt.NDArray[np.int64], settings: Settings
) -> set[str]:
    """The codes of species in training windows, if there is something to train on and to stop by."""
    if data.length < samples_in(settings.window):
        raise NotelaError(
            f"{data.folder} has windows of {data.length / SAMPLE_RATE:g} s, and {settings.window:g} s are trained on: "
            "prepare it with longer ones"
        )
    if not len(data.classes):
        raise NotelaError(f"{data.folder} has no labels to train on; prepare it with --focal or --annotations")
    if len(rows) < 2 or not len(held_out):
        raise NotelaError(
            f"{data.folder} has {len(rows)} windows to train on and {len(held_out)} to stop by; prepare more recordings"
        )
    heard, stops = ({code for row in part for code in data.table["species"][row]} for part in (rows, held_out))
    if not heard or not stops:
        raise NotelaError(
            f"{data.folder} has no labels among its windows to train on or to stop by; prepare more recordings"
        )
    return heard


def _seed(seed: int, epoch: int) -> int:
    return int(np.random.default_rng((seed, epoch, 2**31)).integers(2**62))
