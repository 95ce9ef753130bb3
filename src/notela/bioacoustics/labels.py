"""From boxes and windows to labels: which species each window holds, and which windows are left out.

The paper's protocol, `peaks`, takes windows around peaks and drops those that overlap no box. `tiles-5s`, which is
BirdSet's test_5s, cuts the whole recording into tiles and keeps the empty ones. Their numbers cannot be compared: the
name of the protocol goes with every number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from notela.bioacoustics.annotations import Box, stem
from notela.bioacoustics.windows import tiles
from notela.errors import NotelaError, check_choice
from notela.stable import stable_share

SPLITS = ("by-window", "by-recording")
UNKNOWN = (
    *("", "?", "??", "???", "????", "na", "n/a", "unk", "unkn", "unknown", "unknown bird"),
    *("unid", "unidentified", "unidentified bird"),
)
"""Labels, in any case, of a sound that nobody could name."""

NO_BOX = "no box"
UNIDENTIFIED = "unidentified"
NO_SPECIES = "no species"
SEVERAL_SPECIES = "several species"


@dataclass(frozen=True)
class WindowLabels:
    """The species in each window, and for each that is left out the reason ("" for the others)."""

    species: list[frozenset[str]]
    dropped: list[str]

    def kept(self) -> list[int]:
        """The numbers of the windows that stay."""
        return [i for i, reason in enumerate(self.dropped) if not reason]


def label_windows(
    starts: Sequence[float] | npt.NDArray[np.float64],
    seconds: float,
    boxes: Sequence[Box],
    *,
    protocol: str = "peaks",
    unknown: Collection[str] = UNKNOWN,
) -> WindowLabels:
    """The union of the labels of the boxes that overlap each window of one recording; touching is overlapping.

    `peaks` drops a window that overlaps no box, and one that touches an unidentified sound: what it holds is not known.
    `tiles-5s` keeps every window, and an unidentified sound adds no label, because its classes are the named species.

    >>> boxes = [Box("a", 1, 2, "robin"), Box("a", 2, 6, "wren"), Box("a", 20, 21, "????")]
    >>> [sorted(found) for found in label_windows([0, 5, 10], 5, boxes).species]
    [['robin', 'wren'], ['wren'], []]
    >>> label_windows([0, 5, 10, 15], 5, boxes).dropped
    ['', '', 'no box', 'unidentified']
    """
    dropping = tiles(protocol) is None
    for box in boxes:
        if not box.start <= box.end:
            raise NotelaError(
                f"a box in {box.recording} ({box.label or 'no label'}) goes from {box.start:g} s to {box.end:g} s; "
                "the end must not be before the start"
            )
    begins = np.asarray(starts, dtype=np.float64)
    order = np.argsort(begins, kind="stable")
    in_order = begins[order]
    # In order of time, the windows of a box are a run: from the first that does not end before the box starts to the
    # last that does not start after it ends.
    first = np.searchsorted(in_order + seconds, [box.start for box in boxes], "left")
    last = np.searchsorted(in_order, [box.end for box in boxes], "right")
    nameless = {name.casefold() for name in unknown}
    found: list[set[str]] = [set() for _ in begins]
    unidentified = np.zeros(len(begins), dtype=bool)
    for box, a, b in zip(boxes, first.tolist(), last.tolist(), strict=True):
        if box.label.strip().casefold() in nameless:
            unidentified[order[a:b]] = True
        else:
            for i in order[a:b].tolist():
                found[i].add(box.label)
    dropped = [""] * len(begins)
    if dropping:
        dropped = [
            UNIDENTIFIED if unclear else "" if labels else NO_BOX
            for labels, unclear in zip(found, unidentified.tolist(), strict=True)
        ]
    return WindowLabels([frozenset(labels) for labels in found], dropped)


def single_label(windows: WindowLabels) -> WindowLabels:
    """The single-label variant: only windows with exactly one species stay."""
    reasons = {0: NO_SPECIES, 1: ""}
    dropped = [
        reason or reasons.get(len(labels), SEVERAL_SPECIES)
        for labels, reason in zip(windows.species, windows.dropped, strict=True)
    ]
    return WindowLabels(windows.species, dropped)


def outside(boxes: Iterable[Box], seconds: float) -> list[Box]:
    """Boxes that are not within a recording of that length, to be reported: they start before it or end after it. They
    label the windows that they overlap all the same."""
    return [box for box in boxes if box.start < 0 or box.end > seconds]


@dataclass(frozen=True)
class Matched:
    """Annotations and recordings that belong together, and those that have no counterpart."""

    boxes: dict[str, list[Box]]
    """By recording, as it was handed in; a recording without annotations has an empty list."""
    missing: list[str]
    """Recordings that the annotations name and that are not there."""
    bare: list[str]
    """Recordings that the annotations do not name."""


def match(recordings: Iterable[str | Path], boxes: Iterable[Box]) -> Matched:
    """Give each recording its boxes, by file name without folder and ending; two of one name are refused."""
    by_stem = _unique((str(recording) for recording in recordings), "two recordings have one name")
    boxes = list(boxes)
    named = _unique((box.recording for box in boxes), "the annotations name two recordings that cannot be told apart")
    found: dict[str, list[Box]] = {recording: [] for recording in by_stem.values()}
    for box in boxes:
        recording = by_stem.get(stem(box.recording))
        if recording is not None:
            found[recording].append(box)
    missing = [name for key, name in named.items() if key not in by_stem]
    return Matched(found, missing, [recording for key, recording in by_stem.items() if key not in named])


def _unique(names: Iterable[str], problem: str) -> dict[str, str]:
    """Names by stem."""
    by_stem: dict[str, str] = {}
    for name in dict.fromkeys(names):
        other = by_stem.setdefault(stem(name), name)
        if other != name:
            raise NotelaError(
                f"{problem}, {stem(name)!r}: {other} and {name}; annotations are matched to recordings by that name, "
                "so rename one of them or leave it out"
            )
    return by_stem


def split(recordings: Sequence[str], starts: Sequence[float], by: str, share: float = 0.75) -> npt.NDArray[np.bool_]:
    """Which windows belong to the first part, about `share` of them: `by-window` (as published) each for itself, or
    `by-recording` all of a recording together. The choice is a hash of the recording's name without folder and ending,
    and the start in milliseconds: the same on every machine, and whatever other windows there are."""
    check_choice("by", by, SPLITS)
    if not 0 <= share <= 1:
        raise NotelaError(f"share={share!r} must be between 0 and 1")
    names = [stem(recording) for recording in recordings]
    if by == "by-window":
        names = [f"{name} {round(start * 1000)}" for name, start in zip(names, starts, strict=True)]
    return stable_share(names) < share
