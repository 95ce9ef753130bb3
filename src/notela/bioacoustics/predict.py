"""Detections of a classifier in a folder of recordings; reading goes on while the network computes.

folder/detections.jsonl      one line a recording that is done, appended as they end: all that is needed to go on
folder/settings.json         model and settings that the lines were made with
folder/failures.csv          recordings that could not be used, each with its reason
folder/...                   the tables that were asked for, made from the lines at the end
"""

from __future__ import annotations

import hashlib
import json
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from notela.bioacoustics import detections
from notela.bioacoustics.annotations import Box
from notela.bioacoustics.audio import SAMPLE_RATE, BadRecording, Recording, Samples, find_recordings, quiet_decoder
from notela.bioacoustics.failures import write_failures
from notela.bioacoustics.model import BirdClassifier
from notela.bioacoustics.taxonomy import Species
from notela.bioacoustics.windows import cut, samples_in, tile_windows
from notela.errors import NotelaError, check_choice
from notela.lines import Lines
from notela.runs import fingerprint, replacing

BATCH = 32
AHEAD = 4  # batches that are read before they are needed


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


def predict(
    model: BirdClassifier,
    folder: Path,
    to: Path,
    *,
    format: str = "csv",
    threshold: float = 0.5,
    classes: Sequence[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Write detections, windows in which a species' score is at least `threshold`, into tables in the folder `to`.

    `classes`: the species that can occur, by their place in the model; all without it. Recordings that an earlier call
    finished with the same model and settings are not listened to again.
    """
    if not 0 <= threshold <= 1:
        raise NotelaError(f"threshold={threshold!r} must be between 0 and 1")
    check_choice("format", format, tuple(detections.FORMATS))
    kept = tuple(range(len(model.classes))) if classes is None else tuple(classes)
    try:
        to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotelaError(f"the folder {to} cannot be made ({error.strerror}); choose another place") from error
    known = {"species": [one.code for one in model.classes], "window": model.window}
    _same_settings(to, {"model": fingerprint(model), "threshold": threshold, "classes": list(kept), **known})
    paths, unreadable = find_recordings(folder)
    names = {path: path.relative_to(folder).as_posix() for path in paths}
    states = {path: _state(path) for path in paths}  # before they are listened to: one that changes is done again
    lines = Lines(to / "detections.jsonl")
    done = {(line["recording"], line["file"]) for line in lines}
    waiting = [path for path in paths if (names[path], states[path]) not in done]
    summary = Summary(recordings=len(paths), done_before=len(paths) - len(waiting), failures=list(unreadable))
    count = summary.done_before
    for found in listen(model, waiting, kept, threshold):
        if isinstance(found, BadRecording):
            summary.failures.append(found)
        else:
            line = {"recording": names[found.path], "file": states[found.path], "duration": found.duration}
            lines.append({**line, "windows": found.windows, "found": found.found})
        count += 1
        if progress is not None:
            progress(count, len(paths))
    write_failures(to / "failures.csv", folder, summary.failures)
    current = {(names[path], states[path]) for path in paths}
    _tables(model, lines, current, to, format, summary)
    return summary


class Found(NamedTuple):
    """Detections in one recording: start in seconds, class, score."""

    path: Path
    duration: float
    windows: int
    found: list[tuple[float, int, float]]


def listen(
    model: BirdClassifier, paths: Iterable[Path], classes: tuple[int, ...], threshold: float
) -> Iterator[Found | BadRecording]:
    """Recordings as they are done, in order; a recording that cannot be used comes as its error."""
    columns = torch.tensor(classes)
    device = next(model.parameters()).device
    model.eval()
    open_: dict[Path, list[tuple[float, int, float]]] = {}
    counts: Counter[Path] = Counter()
    for batch in _ahead(_read(paths, model.window)):
        if batch.windows:
            with torch.no_grad():
                x = torch.from_numpy(np.stack([samples for _, _, samples in batch.windows])).to(device)
                scores = model(x)[:, columns].float().sigmoid().cpu()
            for (path, start, _), row in zip(batch.windows, scores, strict=True):
                hits = (row >= threshold).nonzero().flatten().tolist()
                found = open_.setdefault(path, [])
                found += [(start, classes[i], round(float(row[i]), 4)) for i in hits]
                counts[path] += 1
        for end in batch.ended:
            if isinstance(end, BadRecording):
                open_.pop(end.path, None)
                yield end
            else:
                path, duration = end
                yield Found(path, duration, counts[path], open_.pop(path, []))


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


def _ahead(batches: Iterator[_Batch]) -> Iterator[_Batch]:
    """The same batches, made by a thread while their reader computes."""
    ready: queue.Queue[_Batch | BaseException | None] = queue.Queue(AHEAD)
    stop = threading.Event()

    def put(item: _Batch | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for batch in batches:
                if not put(batch):
                    return
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=work, daemon=True)
    with quiet_decoder():
        thread.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stop.set()
            thread.join()


# ---- tables


def _tables(
    model: BirdClassifier, lines: Lines, current: set[tuple[str, str]], to: Path, format: str, summary: Summary
) -> None:
    """One table for each recording, and one of all but Audacity's, which has no place for a file's name."""
    species = {one.code: one for one in model.classes}
    durations: dict[str, float] = {}
    for line in lines:
        if (line["recording"], line["file"]) in current:
            durations[line["recording"]] = line["duration"]
            summary.seconds += line["duration"]
            summary.windows += line["windows"]
            summary.detections.update(model.classes[c].code for _, c, _ in line["found"])
    summary.tables = detections.write_each(_boxes(model, lines, current), to / "recordings", format, species=species)
    if format != "audacity":
        whole = to / f"detections.{detections.FORMATS[format].rpartition('.')[2]}"
        detections.write(_boxes(model, lines, current), whole, format, species=species, durations=durations)
        summary.tables.insert(0, whole)


def _boxes(model: BirdClassifier, lines: Lines, current: set[tuple[str, str]]) -> Iterator[Box]:
    for line in lines:
        if (line["recording"], line["file"]) not in current:
            continue
        for start, c, score in line["found"]:
            end = min(start + model.window, line["duration"])
            yield Box(line["recording"], start, end, model.classes[c].code, score, 0.0, model.sample_rate / 2)


def _state(path: Path) -> str:
    """What tells a recording from a later one of its name."""
    try:
        status = path.stat()
    except OSError:  # gone, or a link to nowhere: whoever opens it will say so
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def _same_settings(to: Path, settings: dict[str, Any]) -> None:
    """Lines in a folder are of one model and one set of settings."""
    path = to / "settings.json"
    if path.exists():
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


def species_in(model: BirdClassifier, wanted: Iterable[Species]) -> tuple[list[int], list[Species]]:
    """The places of species in a model, and those that it does not know."""
    place = {one.code: i for i, one in enumerate(model.classes)}
    wanted = list(dict.fromkeys(wanted))
    return sorted(place[one.code] for one in wanted if one.code in place), [o for o in wanted if o.code not in place]
