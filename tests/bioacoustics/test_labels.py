"""Windows and boxes to labels, against a plain double that compares every window with every box."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notela.bioacoustics.annotations import Box, read
from notela.bioacoustics.labels import (
    UNKNOWN,
    label_windows,
    match,
    outside,
    single_label,
    split,
)
from notela.errors import NotelaError
from notela.stable import stable_share

BIRDS = Path(__file__).resolve().parents[3] / "shared" / "data" / "birds"


def box(start: float, end: float, label: str = "wren", recording: str = "a.wav") -> Box:
    return Box(recording, start, end, label)


def sets(starts: list[float], boxes: list[Box], protocol: str = "peaks") -> list[tuple[set[str], str]]:
    found = label_windows(starts, 5, boxes, protocol=protocol)
    return [(set(labels), reason) for labels, reason in zip(found.species, found.dropped, strict=True)]


def test_a_window_has_the_union_of_the_boxes_that_overlap_it() -> None:
    boxes = [box(1, 2), box(4, 9, "robin"), box(9, 12), box(9, 12)]
    assert sets([0, 2.5, 12.5], boxes) == [({"wren", "robin"}, ""), ({"robin"}, ""), (set(), "no box")]


@pytest.mark.parametrize(("start", "end"), [(15, 16), (5, 10), (15, 15), (10, 10), (12, 12), (0, 100)])
def test_touching_is_overlapping(start: float, end: float) -> None:
    assert sets([10], [box(start, end)]) == [({"wren"}, "")]


@pytest.mark.parametrize(("start", "end"), [(15.001, 16), (5, 9.999), (9.999, 9.999)])
def test_next_to_it_is_not(start: float, end: float) -> None:
    assert sets([10], [box(start, end)]) == [(set(), "no box")]


def test_two_species_on_one_box() -> None:
    assert sets([0], [box(1, 2), box(1, 2, "robin")]) == [({"wren", "robin"}, "")]


@pytest.mark.parametrize("label", ["????", "Unknown", "unknown ", ""])
def test_unidentified_sounds(label: str) -> None:
    boxes = [box(1, 6), box(4, 5, label)]
    assert sets([0, 5, 5.5], boxes) == [({"wren"}, "unidentified"), ({"wren"}, "unidentified"), ({"wren"}, "")]
    assert sets([0, 5, 20], boxes, "tiles-5s") == [({"wren"}, ""), ({"wren"}, ""), (set(), "")]
    assert label_windows([0], 5, boxes, unknown=()).species == [frozenset({"wren", label})]


def test_boxes_beyond_the_end_and_before_the_start() -> None:
    boxes = [box(-1, 0.5), box(1, 2), box(55, 61), box(70, 80), box(60, 60)]
    assert outside(boxes, 60) == [boxes[0], boxes[2], boxes[3]]
    assert sets([0, 55], boxes) == [({"wren"}, ""), ({"wren"}, "")]


@pytest.mark.parametrize(("start", "end"), [(3, 2), (float("nan"), 2), (1, float("nan"))])
def test_a_box_that_ends_before_it_starts(start: float, end: float) -> None:
    with pytest.raises(NotelaError, match=rf"a box in a\.wav \(wren\) goes from {start:g} s to {end:g} s; the end"):
        label_windows([0], 5, [box(start, end)])


def test_no_windows_and_no_boxes() -> None:
    assert label_windows([], 5, [box(1, 2)]).species == []
    assert label_windows([0, 5], 5, []).dropped == ["no box"] * 2
    with pytest.raises(NotelaError, match="protocol='tiles' is not one of 'peaks', 'tiles-5s'"):
        label_windows([0], 5, [], protocol="tiles")


@settings(deadline=None)
@given(
    starts=st.lists(st.integers(-4, 60).map(lambda n: n / 4), max_size=30),
    seconds=st.sampled_from([1, 2.5, 5]),
    boxes=st.lists(
        st.tuples(
            st.integers(-8, 70), st.integers(0, 30), st.sampled_from(["wren", "robin", "jay", "????", "Unknown"])
        ),
        max_size=20,
    ),
    protocol=st.sampled_from(["peaks", "tiles-5s"]),
)
def test_against_a_plain_double(
    starts: list[float], seconds: float, boxes: list[tuple[int, int, str]], protocol: str
) -> None:
    table = [box(start / 4, (start + length) / 4, label) for start, length, label in boxes]
    found = label_windows(starts, seconds, table, protocol=protocol)
    for i, start in enumerate(starts):
        here = {b.label for b in table if b.start <= start + seconds and b.end >= start}
        named = here - {"????", "Unknown"}
        assert found.species[i] == named
        assert bool(found.dropped[i]) == (protocol == "peaks" and (here != named or not here))
    assert found.kept() == [i for i in range(len(starts)) if not found.dropped[i]]


def test_an_hour_with_many_boxes() -> None:
    rng = np.random.default_rng(0)
    starts = rng.uniform(0, 3595, 2000)
    begins = rng.uniform(0, 3600, 1000)
    boxes = [box(a, a + d, str(i % 60)) for i, (a, d) in enumerate(zip(begins, rng.exponential(2, 1000), strict=True))]
    found = label_windows(starts, 5, boxes)
    ends = np.array([b.end for b in boxes])
    for i in range(0, 2000, 100):
        over = np.flatnonzero((begins <= starts[i] + 5) & (ends >= starts[i]))
        assert found.species[i] == {str(j % 60) for j in over}


def test_the_single_label_variant() -> None:
    boxes = [box(0, 1), box(10, 11), box(10, 11, "robin"), box(20, 21, "????")]
    starts = [0, 10, 17, 30]
    assert single_label(label_windows(starts, 5, boxes)).dropped == ["", "several species", "unidentified", "no box"]
    tiles = single_label(label_windows(starts, 5, boxes, protocol="tiles-5s"))
    assert tiles.dropped == ["", "several species", "no species", "no species"]


def test_annotations_are_matched_by_name() -> None:
    recordings = [Path("site 1/a.WAV"), "site 2/b.flac", "c.2020.mp3"]
    boxes = [box(1, 2, "wren", r"D:\old\a.wav"), box(3, 4, "jay", "c.2020"), box(5, 6, "jay", "gone.wav")]
    found = match(recordings, [*boxes, boxes[2], boxes[0]])
    assert found.boxes == {"site 1/a.WAV": [boxes[0], boxes[0]], "site 2/b.flac": [], "c.2020.mp3": [boxes[1]]}
    assert found.missing == ["gone.wav"]
    assert found.bare == ["site 2/b.flac"]


def test_names_that_occur_twice_are_refused() -> None:
    with pytest.raises(NotelaError, match=r"two recordings have one name, 'a': site 1/a\.wav and site 2/a\.flac; anno"):
        match(["site 1/a.wav", "b.wav", "site 2/a.flac"], [])
    with pytest.raises(NotelaError, match=r"cannot be told apart, 'a': site 1/a\.wav and site 2/a\.wav"):
        match(["a.wav"], [box(1, 2, "x", "site 1/a.wav"), box(1, 2, "x", "site 2/a.wav")])


def test_splits() -> None:
    recordings = [f"site {i % 7}/rec{i % 40}.wav" for i in range(4000)]
    starts = [i // 40 * 0.31 for i in range(4000)]
    by_window, by_recording = (split(recordings, starts, by) for by in ("by-window", "by-recording"))
    assert 0.72 < by_window.mean() < 0.78
    assert len(set(zip(recordings, by_recording.tolist(), strict=True))) == len(set(recordings))
    assert 0.5 < by_recording.mean() < 0.95
    # Other folders, endings, windows and orders change nothing.
    moved = [f"elsewhere/{os.path.basename(name)[:-4]}.flac" for name in recordings]
    for by, whole in (("by-window", by_window), ("by-recording", by_recording)):
        assert np.array_equal(split(moved[::-3], starts[::-3], by), whole[::-3])
    assert split(recordings, starts, "by-window", 0).sum() == 0
    assert split(recordings, starts, "by-window", 1).all()
    with pytest.raises(NotelaError, match="by='by-site' is not one of 'by-window', 'by-recording'"):
        split(recordings, starts, "by-site")
    with pytest.raises(NotelaError, match=r"share=75 must be between 0 and 1"):
        split(recordings, starts, "by-window", 75)


def test_file_names_that_are_no_text() -> None:
    names = [os.fsdecode(b"caf\xe9.wav"), os.fsdecode(b"caf\xe8.wav")]
    assert len(set(stable_share(names))) == 2


@pytest.mark.skipif(not BIRDS.exists(), reason="the real recordings are not here")
def test_the_real_soundscapes() -> None:
    columns = {"recording": "path", "start": "start_s", "end": "end_s", "label": "nips4b_code"}
    boxes = read(BIRDS / "annotations.csv", columns=columns)
    recordings = sorted((BIRDS / "soundscapes").iterdir())
    found = match(recordings, boxes)
    assert (len(found.boxes), len(found.missing), len(found.bare)) == (687, 0, 687 - 569)
    assert sum(map(len, found.boxes.values())) == 5775
    with open(BIRDS / "species.csv", encoding="utf-8", newline="") as file:
        clips = {row["nips4b_code"]: int(row["soundscape_files"]) for row in csv.DictReader(file)}
    whole = [label_windows([0], 5, own, protocol="tiles-5s").species[0] for own in found.boxes.values()]
    counts = {code: sum(code in labels for labels in whole) for code in clips}
    assert counts == clips
    assert not any(name.lower() in UNKNOWN for labels in whole for name in labels)
