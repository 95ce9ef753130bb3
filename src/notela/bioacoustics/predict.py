"""Detections of a classifier in a folder of recordings; reading goes on while the network computes.

folder/detections.jsonl      one line a recording that is done, appended as they end: all that is needed to go on
folder/settings.json         model and settings that the lines were made with
folder/failures.csv          recordings that could not be used, each with its reason
folder/detections.csv, ...   the tables of all recordings, in the formats that were asked for, made from the lines
folder/recordings/...        and those of each recording
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from notela.bioacoustics import detections
from notela.bioacoustics.ahead import ahead
from notela.bioacoustics.annotations import Box
from notela.bioacoustics.audio import SAMPLE_RATE, BadRecording, Recording, Samples, file_state, find_recordings
from notela.bioacoustics.failures import write_failures
from notela.bioacoustics.model import BirdClassifier
from notela.bioacoustics.windows import cut, samples_in, tile_windows
from notela.errors import NotelaError, check_choice
from notela.evaluation import pick_device
from notela.lines import Lines
from notela.lock import only_one
from notela.runs import fingerprint, replacing

BATCH = 32


@dataclass
class Summary:
    """What was found."""

    recordings: int = 0
    done_before: int = 0
    seconds: float = 0.0
    """Of sound."""
    windows: int = 0
    detections: Counter[str] = field(default_factory=Counter)
    """By species' code."""
    failures: list[BadRecording] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)
    """Of the format that was asked for: the combined one first, where there is one."""


def predict(
    model: BirdClassifier,
    folder: Path,
    to: Path,
    *,
    format: str = "csv",
    threshold: float = 0.5,
    classes: Sequence[int] | None = None,
    device: str | None = None,
    progress: Callable[[int, int, int], None] | None = None,
) -> Summary:
    """Write detections, windows in which a species' score is at least `threshold`, into tables in the folder `to`.

    `classes`: the species that can occur, by their place in the model; all without it. Recordings that an earlier call
    finished with the same model and settings are not listened to again. `progress` gets the recordings that are done,
    those in all, and the windows that this call has listened to.
    """
    if not 0 <= threshold <= 1:
        raise NotelaError(f"threshold={threshold!r} must be between 0 and 1")
    check_choice("format", format, tuple(detections.FORMATS))
    where = pick_device(device)
    kept = tuple(range(len(model.classes))) if classes is None else tuple(classes)
    known = {"species": [one.code for one in model.classes], "window": model.window}
    settings = {"model": fingerprint(model), "threshold": threshold, "classes": list(kept), **known}
    paths, unreadable = find_recordings(folder)
    with only_one(to):
        names = {path: path.relative_to(folder).as_posix() for path in paths}
        states = {
            path: file_state(path) for path in paths
        }  # before they are listened to: one that changes is done again
        lines = Lines(to / "detections.jsonl")
        done = {(line["recording"], line["file"]) for line in lines}
        if done and done.isdisjoint((names[path], states[path]) for path in paths):
            raise NotelaError(
                f"{to} holds detections of other recordings, such as {min(done)[0]}; choose another folder"
            )
        _same_settings(to, settings, bool(done))
        waiting = [path for path in paths if (names[path], states[path]) not in done]
        summary = Summary(recordings=len(paths), done_before=len(paths) - len(waiting), failures=list(unreadable))
        count = summary.done_before

        def heard(windows: int) -> None:
            if progress is not None:
                progress(count, len(paths), windows)

        heard(0)
        for found in listen(copy.deepcopy(model).to(where), waiting, kept, threshold, heard):
            count += 1
            if isinstance(found, BadRecording):
                summary.failures.append(found)
            else:
                line = {"recording": names[found.path], "file": states[found.path], "duration": found.duration}
                lines.append({**line, "windows": found.windows, "found": found.found})
        write_failures(to / "failures.csv", folder, summary.failures)
        current = {names[path]: states[path] for path in paths}
        places = {
            line["recording"]: place for place, line in lines.places() if current.get(line["recording"]) == line["file"]
        }
        root = str(folder.resolve())
        here = {name: places[name] for name in current if name in places}
        _Tables(model, lines, here, to, root).write(format, summary)
    return summary


class Found(NamedTuple):
    """Detections in one recording: start in seconds, class, score."""

    path: Path
    duration: float
    windows: int
    found: list[tuple[float, int, float]]


def listen(
    model: BirdClassifier,
    paths: Iterable[Path],
    classes: tuple[int, ...],
    threshold: float,
    heard: Callable[[int], None] = lambda windows: None,
) -> Iterator[Found | BadRecording]:
    """Recordings as they are done, in order; a recording that cannot be used comes as its error. `heard` gets the
    number of windows so far, batch by batch."""
    device = next(model.parameters()).device
    columns = torch.tensor(classes, device=device)
    model.eval()
    open_: dict[Path, list[tuple[float, int, float]]] = {}
    counts: Counter[Path] = Counter()
    windows = 0
    for batch in ahead(_read(paths, model.window)):
        if batch.windows:
            with torch.no_grad():
                x = torch.from_numpy(np.stack([samples for _, _, samples in batch.windows])).to(device)
                scores = model(x)[:, columns].float().sigmoid().cpu()
            for row, column in (scores >= threshold).nonzero().tolist():
                path, start, _ = batch.windows[row]
                open_.setdefault(path, []).append((start, classes[column], round(float(scores[row, column]), 4)))
            counts.update(path for path, _, _ in batch.windows)
            windows += len(batch.windows)
            heard(windows)
        for end in batch.ended:
            if isinstance(end, BadRecording):
                open_.pop(end.path, None)
                yield end
            else:
                path, duration = end
                yield Found(path, duration, counts.pop(path), open_.pop(path, []))


# ---- reading ahead


class _Batch(NamedTuple):
    windows: list[tuple[Path, float, Samples]]
    ended: list[tuple[Path, float] | BadRecording]
    """Recordings whose last window is in this batch or before."""


def _read(paths: Iterable[Path], seconds: float) -> Iterator[_Batch]:
    """Windows of all recordings, one after another, in batches that do not care where a recording ends."""
    length = samples_in(seconds)
    batch = _Batch([], [])
    for path in paths:
        try:
            recording = Recording(path)
            starts = tile_windows(recording.length, seconds, rest=True)
            blocks = recording.blocks()
            for start, samples in zip(starts, cut(blocks, starts, length), strict=True):
                batch.windows.append((path, start / SAMPLE_RATE, samples))
                if len(batch.windows) == BATCH:
                    yield batch
                    batch = _Batch([], [])
            deque(blocks, maxlen=0)  # a silent or broken-off recording shows at its end only
            batch.ended.append((path, recording.duration))
        except BadRecording as problem:
            batch.ended.append(problem)
        if len(batch.ended) >= 64:  # many bad ones in a row
            yield batch
            batch = _Batch([], [])
    yield batch


# ---- tables


class _Tables:
    """The tables of a folder, made from the lines of its recordings, in the order of the recordings.

    All formats that were ever asked for are kept up to date, and tables of recordings that are gone are removed: what
    lies in the folder belongs together. `tables.json` says, by format, which tables there are and at which place the
    line of each one's recording is: a table is written anew only if that is another one.
    """

    def __init__(self, model: BirdClassifier, lines: Lines, places: dict[str, int], to: Path, root: str) -> None:
        self._model, self._lines, self._places, self._to, self._root = model, lines, places, to, root
        self._species = {one.code: one for one in model.classes}

    def write(self, format: str, summary: Summary) -> None:
        durations: dict[str, float] = {}
        for line in self._all():
            durations[line["recording"]] = line["duration"]
            summary.seconds += line["duration"]
            summary.windows += line["windows"]
            summary.detections.update(self._model.classes[c].code for _, c, _ in line["found"])
        known = self._listed()
        written = {one: self._format(one, known.get(one, {}), durations) for one in sorted({*known, format})}
        current = {path for tables in written.values() for path in tables}
        for old in {path for tables in known.values() for path in tables} - current:
            (self._to / old).unlink(missing_ok=True)
        with replacing(self._to / "tables.json") as aside:
            aside.write_text(json.dumps({"root": self._root, "tables": written}, indent=1) + "\n", encoding="utf-8")
        combined = [detections.COMBINED[format]] if format in detections.COMBINED else []
        summary.tables = [self._to / path for path in (*combined, *written[format])]

    def _format(self, format: str, known: dict[str, int], durations: dict[str, float]) -> dict[str, int]:
        """The combined table, where the format has one, and one for each recording; their places below the folder."""
        if format in detections.COMBINED:
            boxes = itertools.chain.from_iterable(map(self._boxes, self._all()))
            self._write(boxes, detections.COMBINED[format], format, durations)
        own = detections.tables_for(self._places, format)
        written = {f"recordings/{own[name]}": place for name, place in self._places.items()}
        stale = {
            path: place for path, place in written.items() if known.get(path) != place or not (self._to / path).exists()
        }
        if stale:
            for path, line in zip(stale, self._lines.at(stale.values()), strict=True):
                self._write(self._boxes(line), path, format)
        return written

    def _write(self, boxes: Iterable[Box], path: str, format: str, durations: dict[str, float] | None = None) -> None:
        place = self._to / path
        detections.write(boxes, place, format, species=self._species, durations=durations, root=self._root)

    def _all(self) -> Iterator[dict[str, Any]]:
        return self._lines.at(self._places.values()) if self._places else iter(())

    def _boxes(self, line: dict[str, Any]) -> Iterator[Box]:
        for start, c, score in line["found"]:
            end = min(start + self._model.window, line["duration"])
            yield Box(
                line["recording"], start, end, self._model.classes[c].code, score, 0.0, self._model.sample_rate / 2
            )

    def _listed(self) -> dict[str, dict[str, int]]:
        try:
            listed = json.loads((self._to / "tables.json").read_text(encoding="utf-8"))
            return {
                one: listed["tables"][one] if listed["root"] == self._root else dict.fromkeys(listed["tables"][one], -1)
                for one in detections.FORMATS
                if one in listed["tables"]
            }
        except (OSError, ValueError, KeyError, TypeError):  # none yet, or torn: tables are made anew
            return {}


def _same_settings(to: Path, settings: dict[str, Any], begun: bool) -> None:
    """Lines in a folder, once there are some, are of one model and one set of settings."""
    path = to / "settings.json"
    if path.exists() and begun:
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            known.get("model")
        except (OSError, ValueError, AttributeError) as error:
            raise NotelaError(f"{path} is not of `notela predict` ({error}); choose another folder") from error
        for key, value in settings.items():
            if known.get(key) != value:
                raise NotelaError(
                    f"{to} holds detections with another {key} ({_brief(known.get(key))}, now {_brief(value)}); choose "
                    "another folder"
                )
        return
    with replacing(path) as aside:
        aside.write_text(json.dumps(settings) + "\n", encoding="utf-8")


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 40 else f"{hashlib.sha256(text.encode()).hexdigest()[:8]} ..."
