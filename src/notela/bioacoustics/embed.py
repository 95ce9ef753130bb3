"""From recordings, or the windows of a prepared set, to embeddings (see `embeddings`).

Running again does what is missing: new recordings, changed ones, and those that could not be used before.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from notela.bioacoustics import prepared, window_table
from notela.bioacoustics.ahead import ahead
from notela.bioacoustics.audio import SAMPLE_RATE, BadRecording, Recording, Samples, file_state, find_recordings
from notela.bioacoustics.embeddings import KIND, Embedded, Rows
from notela.bioacoustics.failures import write_failures
from notela.bioacoustics.labels import split
from notela.bioacoustics.model import BirdClassifier
from notela.bioacoustics.prepared import Prepared
from notela.bioacoustics.taxonomy import Species, release
from notela.bioacoustics.window_table import COLUMNS, FORMAT
from notela.bioacoustics.windows import cut, samples_in, tile_windows
from notela.errors import NotelaError
from notela.evaluation import pick_device
from notela.lines import Lines
from notela.lock import only_one
from notela.runs import fingerprint, replacing

BATCH = 32

Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


class Embedder(Protocol):
    """A model from windows of sound to embeddings and logits."""

    name: str
    identity: str
    """Which model it is, to the last weight."""
    window: float
    """Seconds."""
    dimensions: int
    outputs: tuple[Species, ...]
    natural: bool
    """Whether it wants windows as loud as they were recorded; others get them with a peak of 1."""

    def __call__(self, sound: Samples) -> Arrays:
        """Windows (N, samples at 32 kHz) → embeddings (N, dimensions) and logits (N, outputs)."""
        ...


class OfClassifier:
    """A classifier of notela's or BirdSet's, as a model that only listens."""

    def __init__(self, classifier: BirdClassifier, device: str | None = None) -> None:
        self._device = pick_device(device)
        self._model = classifier.eval().to(self._device)
        self.name, self.identity = classifier.network_name, fingerprint(classifier)
        self.window, self.outputs = classifier.window, classifier.classes
        self.dimensions, self.natural = classifier.network.embedding, classifier.peak is None

    @torch.no_grad()
    def __call__(self, sound: Samples) -> Arrays:
        embeddings = self._model.embed(torch.from_numpy(sound).to(self._device))
        return embeddings.cpu().numpy(), self._model.heads["species"](embeddings).cpu().numpy()


@dataclass
class Report:
    """What a run did."""

    embedded: Embedded
    recordings: int
    done_before: int
    failures: list[BadRecording] = field(default_factory=list)


def embed(
    model: Embedder,
    source: Path,
    to: Path,
    *,
    step: float | None = None,
    progress: Callable[[int, int, int], None] | None = None,
) -> Report:
    """Embeddings of all recordings below `source`, in windows of the model's length every `step` seconds (its length
    without one); or of the windows of a prepared set, with their labels, classes and split. `progress` gets the
    recordings that are done, those in all, and the windows of this call."""
    windows: _Windows
    if (source / "manifest.json").exists():
        windows = _OfPrepared(prepared.read(source), model, step)
    else:
        windows = _OfFolder(source, model, step or model.window)
    settings = {"model": model.name, "identity": model.identity, "windows": windows.protocol}
    with only_one(to):
        same_settings(to, settings)
        lines = Lines(to / "done.jsonl")
        known = {(line["recording"], line["state"]): line for line in lines}
        count = max((line["first"] + len(line["starts"]) for line in known.values()), default=0)
        arrays = (
            Rows(to / "embeddings.npy", model.dimensions, "<f4", count),
            Rows(to / "logits.npy", len(model.outputs), "<f2", count),
        )
        waiting = [name for name, state in windows.states.items() if (name, state) not in known]
        report = Report(None, len(windows.states), len(windows.states) - len(waiting), list(windows.unreadable))  # type: ignore[arg-type]
        done, heard, starts = report.done_before, 0, []  # type: int, int, list[float]
        for chunk in ahead(windows.chunks(waiting)):
            if chunk.samples is not None:
                for array, rows in zip(arrays, model(chunk.samples), strict=True):
                    array.append(rows)
                starts += chunk.starts
                heard += len(chunk.starts)
            else:
                first = arrays[0].count - len(starts)
                if chunk.problem is not None:
                    for array in arrays:
                        array.cut(first)
                    report.failures.append(chunk.problem)
                else:
                    for array in arrays:
                        array.keep()
                    line = {"recording": chunk.recording, "state": windows.states[chunk.recording]}
                    lines.append({**line, "first": first, "starts": starts})
                starts, done = [], done + 1
            if progress is not None:
                progress(done, len(windows.states), heard)
        for array in arrays:
            array.keep()
        write_failures(to / "failures.csv", source, report.failures)
        current = {(line["recording"], line["state"]): line for line in lines}
        ready = {name: current[name, state] for name, state in windows.states.items() if (name, state) in current}
        if not ready:
            reason = f" (first: {report.failures[0]})" if report.failures else ""
            raise NotelaError(f"none of the recordings in {source} could be used{reason}")
        table, about = windows.table(ready), windows.about()
        manifest = {
            "format": FORMAT,
            "kind": KIND,
            **about,
            **settings,
            "window": model.window,
            "dimensions": model.dimensions,
            "outputs": [list(one) for one in model.outputs],
        }
        window_table.write(to, manifest, table)
    report.embedded = Embedded(to, manifest, table)
    return report


class _Chunk(NamedTuple):
    """Windows of a recording; without samples, its end."""

    recording: str
    starts: list[float]
    samples: Samples | None
    problem: BadRecording | None = None


class _Windows(Protocol):
    """Where windows come from."""

    protocol: str
    states: dict[str, str]
    """By recording, what tells it from a later one of its name."""
    unreadable: list[BadRecording]

    def chunks(self, recordings: Iterable[str]) -> Iterator[_Chunk]: ...

    def table(self, ready: dict[str, dict[str, Any]]) -> dict[str, list[Any]]: ...

    def about(self) -> dict[str, Any]: ...


class _OfFolder:
    """Recordings below a folder, one window after another."""

    def __init__(self, folder: Path, model: Embedder, step: float) -> None:
        seconds = model.window
        if not 0 < step <= seconds:
            raise NotelaError(f"step={step!r} must be above 0 and at most the model's window of {seconds:g} s")
        paths, self.unreadable = find_recordings(folder)
        self._paths = {path.relative_to(folder).as_posix(): path for path in paths}
        self.states = {name: file_state(path) for name, path in self._paths.items()}
        self._folder, self._natural, self._seconds, self._step = folder, model.natural, seconds, step
        self.protocol = f"tiles-{seconds:g}s" + ("" if step == seconds else f"-every-{step:g}s")

    def chunks(self, recordings: Iterable[str]) -> Iterator[_Chunk]:
        length = samples_in(self._seconds)
        for name in recordings:
            try:
                recording = Recording(self._paths[name])
                starts = tile_windows(recording.length, self._seconds, self._step, rest=True)
                blocks = recording.blocks()
                samples = cut(blocks, starts, length)
                for first in range(0, len(starts), BATCH):
                    mine = starts[first : first + BATCH]
                    rows = np.stack([next(samples) for _ in mine])
                    yield _Chunk(
                        name, [start / SAMPLE_RATE for start in mine], rows if self._natural else _scaled(rows)
                    )
                deque(blocks, maxlen=0)  # a silent or broken-off recording shows at its end only
                yield _Chunk(name, [], None)
            except BadRecording as problem:
                yield _Chunk(name, [], None, problem)

    def table(self, ready: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
        rows: list[tuple[Any, ...]] = [
            (name, start, start + self._seconds, [], "", "", "", None, "", line["first"] + i)
            for name, line in ready.items()
            for i, start in enumerate(line["starts"])
        ]
        table: dict[str, list[Any]] = {name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)}
        adapt = split(table["recording"], table["start"], "by-recording").tolist()
        table["split"] = ["adapt" if yes else "test" for yes in adapt]
        return table

    def about(self) -> dict[str, Any]:
        root = str(self._folder.resolve())
        return {"root": root, "split": "by-recording", "taxonomy": release(), "classes": []}


class _OfPrepared:
    """The windows of a prepared set."""

    def __init__(self, data: Prepared, model: Embedder, step: float | None) -> None:
        if data.length != samples_in(model.window):
            raise NotelaError(
                f"{data.folder} has windows of {data.length / SAMPLE_RATE:g} s and the model listens to "
                f"{model.window:g} s; prepare it with --seconds {model.window:g}, or with a protocol of that length"
            )
        if step is not None:
            raise NotelaError(f"step={step:g} is for recordings; {data.folder} holds windows that are cut already")
        self._data, self._natural, self.unreadable = data, model.natural, []  # type: Prepared, bool, list[BadRecording]
        numbered = groupby(range(len(data)), key=lambda row: data.table["recording"][row])
        self._rows = {name: list(rows) for name, rows in numbered}
        self.states = dict.fromkeys(self._rows, data.manifest["fingerprint"])
        self.protocol = data.manifest["settings"]["protocol"]

    def chunks(self, recordings: Iterable[str]) -> Iterator[_Chunk]:
        for name in recordings:
            for first in range(0, len(self._rows[name]), BATCH):
                mine = self._rows[name][first : first + BATCH]
                samples = np.stack([self._data.samples(row, self._natural) for row in mine])
                yield _Chunk(name, [self._data.table["start"][row] for row in mine], samples)
            yield _Chunk(name, [], None)

    def table(self, ready: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
        rows = [line["first"] + i for line in ready.values() for i in range(len(line["starts"]))]
        return {**self._data.table, "part": [""] * len(rows), "row": rows}

    def about(self) -> dict[str, Any]:
        return {name: self._data.manifest[name] for name in ("split", "taxonomy", "classes")}


def _scaled(windows: Samples) -> Samples:
    """To a peak of 1, as the windows of prepared sets are."""
    scaled: Samples = windows / np.maximum(np.abs(windows).max(1, keepdims=True), 1e-12)
    return scaled


def same_settings(to: Path, settings: dict[str, Any]) -> None:
    """Rows in a folder are of one model and one kind of windows."""
    path = to / "settings.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except (OSError, ValueError) as error:
        raise NotelaError(f"{path} is not of `notela embed` ({error}); choose another folder") from error
    if known is None:
        for name in ("embeddings.npy", "manifest.json", "windows.parquet"):
            if (to / name).exists():  # somebody's, who would lose it
                raise NotelaError(f"{to} has {name}, which is not of `notela embed`; choose another folder")
        with replacing(path) as aside:
            aside.write_text(json.dumps(settings) + "\n", encoding="utf-8")
    elif known != settings:
        changed = next(key for key in settings if known.get(key) != settings[key])
        raise NotelaError(
            f"{to} holds embeddings with another {changed} ({known.get(changed)}, now {settings[changed]}); choose "
            "another folder"
        )
