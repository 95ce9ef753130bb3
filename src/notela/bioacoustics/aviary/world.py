"""The aviary on disk, laid out as the published sets: focal recordings in a folder for each species, soundscapes with
Cornell's tables.

    <root>/focal/Velquora_vitrea/avi001_000.flac
    <root>/RIM/soundscape_data/RIM_000.flac
    <root>/RIM/annotations.csv, species.csv
    <root>/RIM/boxes/RIM_000.csv      what annotations.csv is put together from

Files that exist are not made again, so a run that was cut goes on where it stopped, and more recordings can be added; a
folder that was made with other settings is refused. The same settings give the same bits on one machine; on another,
whose processor rounds otherwise, single samples may differ by one.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from notela.bioacoustics.annotations import COLUMNS
from notela.bioacoustics.audio import write_flac
from notela.bioacoustics.aviary.domains import DIFFICULTY, DOMAINS, Difficulty
from notela.bioacoustics.aviary.scene import Vocalisation, focal, soundscape
from notela.bioacoustics.aviary.species import SPECIES, few, folder_of, species
from notela.engines import Engine
from notela.engines.here import Here
from notela.errors import NotelaError, check_choice, check_integer
from notela.runs import replacing

VERSION = 1  # of what the same settings sound like: raise it with every change of the sound
MOST_MINUTES = 10.0  # a recording is held in memory, several times over: some 45 MB a minute
FOCAL_SECONDS = (8.0, 20.0)
HEADER = tuple(COLUMNS["cornell"][field][0] for field in ("recording", "start", "end", "low", "high", "label"))

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _Focal:
    path: Path
    species: int
    number: int
    seed: int


@dataclass(frozen=True)
class _Soundscape:
    path: Path
    boxes: Path
    name: str
    number: int
    seconds: float
    seed: int
    difficulty: Difficulty


def write_focal(
    root: Path,
    each: int = 30,
    seed: int = 0,
    *,
    only: Sequence[int] | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Path:
    """Focal recordings of every species (or `only` of those with these numbers): `each` of most, a quarter of that of
    the few of which there is little data. They take 8 to 20 seconds. The folder comes back."""
    check_integer("each", each, 1)
    check_integer("seed", seed, 0)
    folder = Path(root) / "focal"
    _claim(folder, {"version": VERSION, "seed": seed})
    tasks = []
    for number in range(SPECIES) if only is None else only:
        one = species()[number]
        (folder / folder_of(one)).mkdir(exist_ok=True)
        count = max(each // 4, 1) if number in few() else each
        tasks += [_Focal(folder / folder_of(one) / f"{one.code}_{i:03d}.flac", number, i, seed) for i in range(count)]
    _work(_write_focal, [task for task in tasks if not task.path.exists()], len(tasks), engine, progress)
    return folder


def write_domain(
    root: Path,
    name: str,
    recordings: int,
    minutes: float,
    seed: int = 0,
    *,
    difficulty: Difficulty = DIFFICULTY,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Path:
    """Soundscapes of a domain, so many of so many minutes, with their annotations. The folder comes back."""
    check_choice("the domain", name, tuple(DOMAINS))
    check_integer("recordings", recordings, 1)
    check_integer("seed", seed, 0)
    if not 0.1 <= minutes <= MOST_MINUTES:
        raise NotelaError(f"minutes={minutes!r} must be between 0.1 and {MOST_MINUTES:g}; make more recordings instead")
    folder = Path(root) / name
    made_with = {"version": VERSION, "seed": seed, "minutes": minutes, "difficulty": asdict(difficulty)}
    _claim(folder, made_with)
    sounds, boxes = folder / "soundscape_data", folder / "boxes"
    for place in (sounds, boxes):
        place.mkdir(exist_ok=True)
    stems = [f"{name}_{number:03d}" for number in range(recordings)]
    tasks = [
        _Soundscape(sounds / f"{stem}.flac", boxes / f"{stem}.csv", name, number, 60 * minutes, seed, difficulty)
        for number, stem in enumerate(stems)
    ]
    waiting = [task for task in tasks if not (task.path.exists() and task.boxes.exists())]
    _work(_write_soundscape, waiting, len(tasks), engine, progress)
    _write_tables(folder, name)
    return folder


def _write_focal(task: _Focal) -> None:
    draw = np.random.default_rng([task.seed, task.species, task.number]).random()
    low, high = FOCAL_SECONDS
    write_flac(task.path, focal(task.species, task.number, low + (high - low) * float(draw), task.seed))


def _write_soundscape(task: _Soundscape) -> None:
    made = soundscape(DOMAINS[task.name], task.number, task.seconds, task.seed, task.difficulty)
    rows = [_row(task.path.name, one) for one in made.vocalisations if one.audible]
    _write_csv(task.boxes, HEADER, rows)
    write_flac(task.path, made.samples)


def _row(recording: str, one: Vocalisation) -> list[str]:
    label = species()[one.species].code if one.identified else "????"
    return [recording, f"{one.start:.3f}", f"{one.end:.3f}", f"{one.low:.0f}", f"{one.high:.0f}", label]


def _write_tables(folder: Path, name: str) -> None:
    """All boxes of the recordings that are there, and the species of the domain."""
    rows: list[list[str]] = []
    for part in sorted((folder / "boxes").glob("*.csv")):
        if (folder / "soundscape_data" / f"{part.stem}.flac").exists():
            with open(part, newline="", encoding="utf-8") as file:
                rows += list(csv.reader(file))[1:]
    _write_csv(folder / "annotations.csv", HEADER, rows)
    occurring = [species()[number] for number in sorted(DOMAINS[name].birds())]
    columns = ("Species eBird Code", "Scientific Name", "Common Name", "Genus", "Family", "Order")
    _write_csv(folder / "species.csv", columns, [list(one) for one in occurring])


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with replacing(path) as aside, open(aside, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def _claim(folder: Path, made_with: dict[str, object]) -> None:
    """Note what a folder is made with, or refuse if that was something else."""
    note = folder / "aviary.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = json.loads(note.read_text(encoding="utf-8")) if note.exists() else None
    except (OSError, ValueError) as error:
        raise NotelaError(f"the folder {folder} cannot be used ({error}); choose another place") from error
    if before is None:
        with replacing(note) as aside:
            aside.write_text(json.dumps(made_with, indent=1), encoding="utf-8")
    elif before != made_with:
        changed = [f"{key}={before.get(key)!r}" for key in made_with if before.get(key) != made_with[key]]
        raise NotelaError(f"{folder} was made with {', '.join(changed)}; remove it, or choose another place")


def _work(
    work: Callable[..., None], tasks: Sequence[object], total: int, engine: Engine | None, progress: Progress | None
) -> None:
    """Do what is missing."""
    done = total - len(tasks)
    with engine or Here() as place:
        for outcome in place.map(work, tasks):
            if outcome.error is not None:
                raise NotelaError(f"{outcome.error}; mend that and run it again, it goes on from here")
            done += 1
            if progress is not None:
                progress(done, total)
