"""From a folder of recordings to a prepared data set (see `prepared`): recording by recording, in several processes.

Running again does what is missing: new recordings, changed ones, and those that could not be used before.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from notela.bioacoustics import prepared
from notela.bioacoustics.about import About
from notela.bioacoustics.about import match as match_about
from notela.bioacoustics.annotations import Box
from notela.bioacoustics.audio import SAMPLE_RATE, BadRecording, Recording, file_state, find_recordings, quiet_decoder
from notela.bioacoustics.failures import write_failures
from notela.bioacoustics.labels import SPLITS, UNKNOWN, label_windows, match, outside, single_label, split
from notela.bioacoustics.prepared import STORAGES, Prepared, Storage
from notela.bioacoustics.taxonomy import Resolved, Species, nameless, plain, release, resolve
from notela.bioacoustics.window_table import COLUMNS, FORMAT
from notela.bioacoustics.windows import cut, peak_windows, samples_in, tile_windows, tiles
from notela.engines import Engine
from notela.errors import NotelaError, check_choice, check_integer
from notela.lock import only_one
from notela.runs import replacing


@dataclass(frozen=True)
class Settings:
    """How recordings become windows."""

    protocol: str = "peaks"
    seconds: float = 5.0
    most: int = 200
    """Windows of a recording, around its strongest peaks; tiles are all taken."""
    storage: Storage = "float16"
    single_label: bool = False
    """Only windows with exactly one species."""

    def __post_init__(self) -> None:
        of_name = tiles(self.protocol)
        check_choice("storage", self.storage, STORAGES)
        check_integer("most", self.most, 1)
        samples_in(self.seconds)
        if of_name is not None and self.seconds != of_name[0]:
            raise NotelaError(
                f"the protocol {self.protocol} has windows of {of_name[0]:g} s; {self.seconds:g} s need another name"
            )


FOCAL = Settings(seconds=6.0, most=5)
"""The paper's, for recordings of one bird in front; a random 5 s of the 6 are trained on."""
SOUNDSCAPE = Settings()


@dataclass(frozen=True)
class Task:
    """One recording, and what a worker needs to know of it."""

    path: Path
    recording: str
    boxes: tuple[Box, ...] | None
    """With their species' codes for labels; None: nothing is known, and every window stays."""
    settings: Settings
    parts: Path
    fingerprint: str
    """Of the file, its boxes and the settings: what is done under the same one is not done again."""

    @property
    def part(self) -> str:
        """The name of its files."""
        return hashlib.sha256(self.recording.encode(errors="surrogateescape")).hexdigest()[:20]


@dataclass
class Report:
    """What a run did."""

    prepared: Prepared
    recordings: int
    done_before: int
    failures: list[BadRecording]
    names: Resolved | None
    """What became of the labels' names."""
    listed: Resolved | None = None
    """What became of the names in the species list."""
    undescribed: list[str] = field(default_factory=list)
    """Recordings of which the table about them says nothing, if there is one."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Windows that were left out, by reason."""
    missing: list[str] = field(default_factory=list)
    """Recordings that the annotations name and that are not there."""
    bare: list[str] = field(default_factory=list)
    """Recordings that the annotations do not name."""
    beyond: int = 0
    """Boxes that are not within their recording."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Boxes of species that are not in the species list."""
    seconds: float = 0.0
    """Of sound, in all recordings that could be used."""


def prepare(
    folder: Path,
    to: Path,
    engine: Engine,
    *,
    settings: Settings | None = None,
    focal: bool = False,
    boxes: Sequence[Box] | None = None,
    species: Sequence[str | Species] | None = None,
    strict: bool = False,
    split_by: str = "by-recording",
    about: Iterable[About] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Prepare the recordings below a folder.

    `focal`: the first folder below `folder` names the species of all recordings in it. Otherwise labels come from
    `boxes`; without these, windows have none. `species`: the classes, in their order; boxes of others are ignored. A
    `Species` there is taken as it is, so that a set can have a taxonomy of its own.
    """
    check_choice("split_by", split_by, SPLITS)
    if focal and boxes is not None:
        raise NotelaError("focal recordings take their species from their folders; leave the annotations out")
    if to.resolve().is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(to.resolve()):
        raise NotelaError(
            f"{to} and {folder} lie one in the other, so windows could be taken for recordings; choose another place"
        )
    settings = settings or (FOCAL if focal else SOUNDSCAPE)
    paths, unreadable = find_recordings(folder)
    names = [path.relative_to(folder).as_posix() for path in paths]
    labels, missing, bare = _labels(names, focal, boxes)
    resolved, listed, codes, classes = _species(labels, species, strict)
    wanted = {one.code for one in classes}
    about = list(about)
    described = match_about(names, about)
    if about and not described:
        raise NotelaError(
            f"the table about recordings names none of those in {folder}; it begins with {about[0].recording!r}, they "
            f"with {names[0]!r}"
        )
    ignored: Counter[str] = Counter()
    tasks = []
    for path, name in zip(paths, names, strict=True):
        mine = None if labels is None else tuple(_coded(labels[name], codes, wanted, ignored))
        tasks.append(Task(path, name, mine, settings, to.resolve() / "parts", _fingerprint(path, mine, settings)))
    with only_one(to):
        try:
            (to / "parts").mkdir(exist_ok=True)
        except OSError as error:
            raise NotelaError(f"{to / 'parts'} cannot be made ({error.strerror}); choose another place") from error
        _check_same_recordings(to, tasks)
        waiting = [task for task in tasks if _done(task) is None]
        if waiting:  # from here until the end, table and samples may not belong together
            (to / "manifest.json").unlink(missing_ok=True)
        failures = [*unreadable, *_work(waiting, engine, len(tasks) - len(waiting), len(tasks), progress)]
        write_failures(to / "failures.csv", folder, failures)
        done = {task.recording: found for task in tasks if (found := _done(task)) is not None}
        if not done:
            raise NotelaError(
                f"none of the {len(tasks)} recordings in {folder} could be used (first: {failures[0]}); all are listed "
                f"in {to / 'failures.csv'}"
            )
        table = _table(tasks, done, split_by, described)
        if not table["recording"]:
            raise NotelaError(_nothing_left(folder, done, missing))
        manifest = {
            "format": FORMAT,
            "settings": asdict(settings),
            "length": samples_in(settings.seconds),
            "sample_rate": SAMPLE_RATE,
            "split": split_by,
            "taxonomy": release(),
            "classes": [list(one) for one in classes],
            "recordings": len(done),
            "windows": len(table["recording"]),
            "failures": len(failures),
            "parts": hashlib.sha256(" ".join(sorted(task.fingerprint for task in tasks)).encode()).hexdigest()[:16],
        }
        _forget_others(to / "parts", tasks)
        made = prepared.write(to, manifest, table)
    report = Report(made, len(paths), len(tasks) - len(waiting), failures, resolved)
    report.missing, report.bare, report.ignored, report.listed = missing, bare, ignored, listed
    report.undescribed = [name for name in names if name not in described] if about else []
    for one in done.values():
        report.dropped.update(one["dropped"])
        report.beyond += one["beyond"]
        report.seconds += one["duration"]
    return report


# ---- labels


def _labels(
    names: list[str], focal: bool, boxes: Sequence[Box] | None
) -> tuple[dict[str, list[Box]] | None, list[str], list[str]]:
    """Boxes of each recording; recordings that are annotated and missing; recordings that are there and bare."""
    if focal:
        found = {}
        for name in names:
            species, _, rest = name.partition("/")
            if not rest:
                raise NotelaError(
                    f"{name} lies in no species' folder; focal recordings are sorted as Turdus_merula/XC123.mp3"
                )
            found[name] = [Box(name, 0.0, float("inf"), species)]
        return found, [], []
    if boxes is None:
        return None, [], []
    matched = match(names, boxes)
    return matched.boxes, matched.missing, matched.bare


def _species(
    labels: dict[str, list[Box]] | None, wanted: Sequence[str | Species] | None, strict: bool
) -> tuple[Resolved | None, Resolved | None, dict[str, str], tuple[Species, ...]]:
    """What became of the labels' names and of the list's, the code of each label, and the classes. A name that no list
    knows stays as it is."""
    own = [one for one in wanted or () if isinstance(one, Species)]
    by_name = {plain(name): one for one in own for name in (one.code, one.scientific, one.common) if plain(name)}
    written = dict.fromkeys(b.label for mine in (labels or {}).values() for b in mine if not _unidentified(b))
    found = resolve((name for name in written if plain(name) not in by_name), strict=strict)
    found.matched.update({name: by_name[plain(name)] for name in written if plain(name) in by_name})
    codes = {name: found.matched[name].code if name in found.matched else name for name in written}
    listed = None
    if wanted is not None:
        listed = resolve((one for one in wanted if not isinstance(one, Species)), strict=strict)
        classes = [one if isinstance(one, Species) else listed.matched.get(one) or nameless(one) for one in wanted]
    else:
        known = {one.code: one for one in found.matched.values()}
        classes = [known.get(code) or nameless(code) for code in sorted(set(codes.values()))]
    return None if labels is None else found, listed, codes, tuple(dict.fromkeys(classes))


def _unidentified(box: Box) -> bool:
    return box.label.strip().casefold() in UNKNOWN


def _coded(boxes: Iterable[Box], codes: dict[str, str], wanted: set[str], ignored: Counter[str]) -> Iterable[Box]:
    """Boxes with their species' codes; those of species that are not wanted are counted and left out."""
    for box in boxes:
        if _unidentified(box):
            yield box
        elif codes[box.label] in wanted:
            yield box._replace(label=codes[box.label])
        else:
            ignored[box.label] += 1


# ---- one recording


def _fingerprint(path: Path, boxes: tuple[Box, ...] | None, settings: Settings) -> str:
    whole = [file_state(path), boxes, asdict(settings)]
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:20]


def _done(task: Task) -> dict[str, Any] | None:
    """What an earlier run found, if nothing has changed since."""
    try:
        found: dict[str, Any] = json.loads((task.parts / f"{task.part}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if found.get("fingerprint") == task.fingerprint else None


def _check_same_recordings(to: Path, tasks: list[Task]) -> None:
    """A folder that holds windows of other recordings alone is somebody's work: it would be removed."""
    known = []
    for path in (to / "parts").glob("*.json"):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            known.append((found["recording"], found["file"]))
        except (OSError, ValueError, KeyError, TypeError):  # torn, or of another version: it is made anew
            continue
    if known and not {(task.recording, file_state(task.path)) for task in tasks}.intersection(known):
        raise NotelaError(f"{to} holds windows of other recordings, such as {known[0][0]}; choose another folder")


def _nothing_left(folder: Path, done: dict[str, dict[str, Any]], missing: list[str]) -> str:
    reasons = sum((Counter(one["dropped"]) for one in done.values()), Counter[str]())
    why = ", ".join(f"{n:,} windows have {reason}" for reason, n in reasons.most_common())
    gone = f"; the annotations name recordings that are not there, such as {missing[0]!r}" if missing else ""
    return f"no window of the {len(done)} recordings in {folder} is left ({why or 'nothing stands out in them'}){gone}"


def prepare_one(task: Task) -> BadRecording | None:
    """Windows of one recording, labelled, cut and written; what speaks against it comes back."""
    with quiet_decoder():
        try:
            _prepare_one(task)
        except BadRecording as problem:
            return problem
    return None


def _prepare_one(task: Task) -> None:
    settings, length = task.settings, samples_in(task.settings.seconds)
    recording = Recording(task.path)
    of_name = tiles(settings.protocol)
    if of_name is None:
        starts = peak_windows(recording, settings.seconds, settings.most, scratch=task.parts)
    else:
        starts = tile_windows(recording.length, *of_name)
    labels: list[list[str]] = [[] for _ in starts]
    dropped: Counter[str] = Counter()
    beyond = 0
    if task.boxes is not None:
        begins = [start / SAMPLE_RATE for start in starts]
        found = label_windows(begins, settings.seconds, task.boxes, protocol=settings.protocol)
        if settings.single_label:
            found = single_label(found)
        kept = found.kept()
        dropped.update(reason for reason in found.dropped if reason)
        starts, labels = [starts[i] for i in kept], [sorted(found.species[i]) for i in kept]
        finite = [box for box in task.boxes if box.end != float("inf")]
        beyond = len(outside(finite, recording.duration))
    blocks = recording.blocks()
    shape = len(starts), length
    peaks = prepared.write_part(task.parts, task.part, cut(blocks, starts, length), shape, settings.storage)
    if of_name is not None:
        deque(blocks, maxlen=0)  # a silent or broken-off recording shows at its end, where peaks have looked already
    content = {
        "fingerprint": task.fingerprint,
        "recording": task.recording,
        "file": file_state(task.path),
        "duration": recording.duration,
        "starts": starts,
        "peaks": peaks,
        "species": labels,
        "dropped": dropped,
        "beyond": beyond,
    }
    with replacing(task.parts / f"{task.part}.json") as aside:
        aside.write_text(json.dumps(content), encoding="utf-8")


def _work(
    tasks: list[Task], engine: Engine, done: int, total: int, progress: Callable[[int, int], None] | None
) -> list[BadRecording]:
    """Work on what is missing. Stops where going on would not help: a full disk, say."""
    failures = []
    with engine:
        for outcome in engine.map(prepare_one, tasks):
            done += 1
            if outcome.trace is not None or "worker process died" in (outcome.error or ""):
                reason = f"it could not be prepared ({outcome.error})"
                failures.append(BadRecording(outcome.item.path, reason, "leave it out, or report this"))
            elif outcome.error is not None:
                raise NotelaError(f"{outcome.error}; mend that and run the same command again, it goes on from here")
            elif outcome.value is not None:
                failures.append(outcome.value)
            if progress is not None:
                progress(done, total)
    return sorted(failures, key=lambda problem: problem.path)


# ---- the whole


def _table(
    tasks: list[Task], done: dict[str, dict[str, Any]], by: str, described: Mapping[str, About]
) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    groups = []
    for task in tasks:
        found = done.get(task.recording)
        if found is None:
            continue
        mine = described.get(task.recording) or About(task.recording)
        shown = task.recording.encode(errors="backslashreplace").decode()  # a name that is no text
        windows = zip(found["starts"], found["species"], found["peaks"], strict=True)
        for row, (start, species, peak) in enumerate(windows):
            seconds = start / SAMPLE_RATE
            values = (
                shown,
                seconds,
                seconds + task.settings.seconds,
                species,
                "",
                mine.source,
                mine.licence,
                peak,
                task.part,
                row,
            )
            for name, value in zip(COLUMNS, values, strict=True):
                table[name].append(value)
            groups.append(mine.group or task.recording)
    adapt = split(groups, table["start"], by)
    table["split"] = ["adapt" if yes else "test" for yes in adapt.tolist()]
    return table


def _forget_others(parts: Path, tasks: list[Task]) -> None:
    """Recordings that are gone, or that were stored otherwise, need no samples."""
    ending = {"float16": ".npy", "flac": ".flac"}
    kept = {f"{task.part}{end}" for task in tasks for end in (".json", ending[task.settings.storage])}
    for path in parts.iterdir():
        if re.fullmatch(r"[0-9a-f]{20}\.(json|npy|flac)", path.name) and path.name not in kept:  # nobody else's
            path.unlink()
