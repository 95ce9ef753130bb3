"""The target sets by name: where they are, what they hold, how to fetch one and how to check a folder that is there."""

from __future__ import annotations

import csv
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from notela.bioacoustics.download import Patience, download, extract, get, md5_of, members, writing
from notela.errors import NotelaError

ZENODO = "https://zenodo.org"
UNIDENTIFIED = "????"
AUDIO = (".flac", ".wav", ".ogg", ".mp3", ".opus", ".w64", ".rf64", ".aif", ".aiff")

FileProgress = Callable[[str, int, "int | None"], None]  # what is being done, bytes done, bytes in all if known

_DOCUMENTS = (".csv", ".txt", ".pdf")  # besides its own files, what else of a record is worth having
_TABLES = {  # of each format that is one table: its columns, of which the first names the file, the last the species
    "cornell": (
        "Filename",
        "Start Time (s)",
        "End Time (s)",
        "Low Freq (Hz)",
        "High Freq (Hz)",
        "Species eBird Code",
    ),
    "caples": ("fid", "start_time_s", "end_time_s", "ebird_codes"),
}


@dataclass(frozen=True)
class TargetSet:
    """One set as published. `files` maps each needed file to its MD5, where one is known; `species` holds every count
    that is published for it; a licence of None means that nobody here has read it: it is on the record's page."""

    name: str
    title: str
    record: int | None
    files: dict[str, str | None]
    annotations: str
    recordings: int | None
    boxes: int
    species: tuple[int, ...]
    licence: str | None = None
    class_list: str | None = "species.csv"

    @property
    def page(self) -> str:
        """Where people read about it."""
        return f"{ZENODO}/records/{self.record}"

    def url(self, file: str, base: str = ZENODO) -> str:
        """Where a file of it is."""
        return f"{base}/records/{self.record}/files/{quote(file)}?download=1"


def _cornell(
    name: str,
    title: str,
    record: int,
    *,
    zipped: str,
    annotated: str,
    listed: str | None = None,
    holds: tuple[int, int, tuple[int, ...]],
    licence: str | None = None,
) -> TargetSet:
    files = {"annotations.csv": annotated, "species.csv": listed, "soundscape_data.zip": zipped}
    return TargetSet(name, title, record, files, "cornell", *holds, licence=licence)


_ALL = (
    _cornell(
        "SSW",
        "Sapsucker Woods, New York",
        7079380,
        zipped="4dc5a3e83494a638d80bc7b3d1517137",
        annotated="517eb9700f88ec9ac054a8aec7c805ec",
        holds=(285, 50_760, (81, 96)),
        licence="CC BY 4.0",
    ),
    _cornell(
        "SNE",
        "Sierra Nevada, California",
        7050014,
        zipped="2874bdb56f18002a0e5b6fe2402b3c0b",
        annotated="36adcb398a1b82d9b165d62f09d31b31",
        holds=(33, 20_147, (56,)),
    ),
    _cornell(
        "UHH",
        "Hawai'i",
        7078499,
        zipped="79cec7baf06770acf0ac0d519de070ca",
        annotated="03b5550b6788734c5fe9728a1abc0ca2",
        listed="5c21df6024c41556cd334ed3d9efdf42",
        holds=(635, 59_583, (27,)),
        licence="CC BY 4.0",
    ),
    TargetSet(
        "POW",
        "Powdermill, Pennsylvania",
        4656848,
        {
            "annotation_Files.zip": "8f78ba7cf9fc5d25656f7747ed3406d1",
            "wav_Files.zip": "2876c0cfc6ace1845ac04814ea9180f1",
        },
        "raven",
        recordings=77,  # five minutes each
        boxes=16_052,
        species=(48,),
        licence="CC0 1.0",
        class_list=None,  # the codes are in the tables alone
    ),
    _cornell(
        "HSN",
        "High Sierras, California",
        7525805,
        zipped="b7796e5e28d1f6b1a8bb16f0ba294c9d",
        annotated="0f300f5536784cc34f51f9f42e80756e",
        holds=(100, 10_296, (21,)),
    ),
    _cornell(
        "NES",
        "Coffee farms, Colombia and Costa Rica",
        7525349,
        zipped="15a00bb3221e56ec83d38ad04c26ce68",
        annotated="f72be6c60b530fb622ea954627edea47",
        holds=(34, 6_952, (89,)),
        licence="CC BY 4.0",
    ),
    _cornell(
        "PER",
        "Amazon basin, Peru",
        7079124,
        zipped="bd01e1caba1b720c5856a3bd57d220d3",
        annotated="2ab1a54b35ba0b6df8a4c91a48a1b684",
        holds=(21, 14_798, (132,)),
        licence="CC BY 4.0",
    ),
    TargetSet("Caples", "Caples Creek, California", None, {}, "caples", None, 4_993, (78,), class_list=None),
)
TARGET_SETS = {one.name: one for one in _ALL}


def target_set(name: str) -> TargetSet:
    """A set by its name, in capitals or not."""
    found = {known.lower(): one for known, one in TARGET_SETS.items()}.get(name.lower())
    if found is None:
        raise NotelaError(f"{name!r} is not a target set; known are {', '.join(TARGET_SETS)}")
    return found


def class_list(name: str, folder: Path) -> tuple[str, ...] | None:
    """The codes of the set's own list of species, in its order; None for a set that comes without one, whose classes
    are the species of its annotations."""
    wanted = target_set(name)
    if wanted.class_list is None:
        return None
    column = _TABLES["cornell"][-1]
    rows = _rows(folder / wanted.class_list, (column,))
    return tuple(dict.fromkeys(code for row in rows if (code := row[column].strip()) != UNIDENTIFIED))


def annotations_in(name: str, folder: Path) -> Path:
    """The table, or folder of tables, that holds a set's boxes."""
    wanted = target_set(name)
    if wanted.annotations == "raven":
        return folder / "annotation_Files"
    columns = _TABLES[wanted.annotations]
    tables = [folder / "annotations.csv"]
    if wanted.annotations == "caples":  # nobody knows what its table is called
        tables = [path for path in _files(folder) if path.suffix.lower() == ".csv" and _begins_with(path, columns)]
    if len(tables) != 1 or not tables[0].exists():
        raise NotelaError(
            f"{folder} holds no annotations of {wanted.name}; expected one table with the columns {', '.join(columns)}"
        )
    return tables[0]


# ---- fetching


def fetch(
    name: str,
    to: Path,
    *,
    progress: FileProgress | None = None,
    patience: Patience | None = None,
    base: str = ZENODO,
) -> Path:
    """Download a set, verify it and take its archives apart, below `to/<name>`, which is returned. Stopped at any
    time, the same call goes on. Once taken apart, archives may be deleted: they are not fetched again."""
    wanted = target_set(name)
    if wanted.record is None:
        raise NotelaError(
            f"{wanted.name} has no public record to fetch; get it from its authors and give the path of its folder"
        )
    folder = to / wanted.name
    files = _published(wanted, folder, base, patience or Patience())
    for file, (md5, size) in files.items():
        if file.endswith(".zip") and _taken_apart(folder, file, md5):
            continue
        path = download(
            wanted.url(file, base),
            folder / file,
            md5=md5,
            size=size,
            progress=_named(progress, f"{wanted.name}: {file}"),
            patience=patience,
        )
        if file.endswith(".zip"):
            _take_apart(path, md5, _named(progress, f"{wanted.name}: taking {file} apart"))
    return folder


def _published(
    wanted: TargetSet, folder: Path, base: str, patience: Patience
) -> dict[str, tuple[str | None, int | None]]:
    """File → MD5 and size, small files first: as Zenodo lists them today, against what is written here. The list is
    kept as `record.json`, with the licence."""
    try:
        answer = get(f"{base}/api/records/{wanted.record}", replace(patience, attempts=min(3, patience.attempts)))
        listed = {file["key"]: (str(file["checksum"]), int(file["size"])) for file in json.loads(answer)["files"]}
    except (ValueError, KeyError, TypeError) as error:  # not to be had, no JSON, or JSON of another form
        reason = str(error) if isinstance(error, NotelaError) else f"{type(error).__name__}: {error}"
        unknown = ", ".join(file for file, md5 in wanted.files.items() if md5 is None)
        lacking = f": without a checksum: {unknown}" if unknown else ""
        warnings.warn(f"Zenodo's list of the files of {wanted.name} cannot be read ({reason}){lacking}", stacklevel=3)
        return {file: (md5, None) for file, md5 in wanted.files.items()}
    files: dict[str, tuple[str | None, int | None]] = {}
    documents = [name for name in listed if name.endswith(_DOCUMENTS) and Path(name).name == name]
    for file in [*documents, *wanted.files]:
        if file not in listed:
            raise NotelaError(
                f"{wanted.page} lists no {file}, only {', '.join(listed)}; a newer notela may know its new name"
            )
        kind, _, md5 = listed[file][0].rpartition(":")
        known = wanted.files.get(file)
        if known is not None and kind in ("md5", "") and md5 != known:
            raise NotelaError(
                f"{wanted.page} gives MD5 {md5} for {file}, and {known} is known here; the set has changed, or this is "
                "not Zenodo: nothing was fetched"
            )
        files[file] = (md5 if kind in ("md5", "") else known, listed[file][1])
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "record.json").write_bytes(answer)
    return files


def _take_apart(archive: Path, md5: str | None, progress: Callable[[int, int | None], None] | None) -> None:
    """Into a folder of the archive's name, unless it brings one; a list of what came out says that it is done."""
    brings = all(member.filename.startswith(f"{archive.stem}/") for member in members(archive))
    paths = extract(archive, archive.parent if brings else archive.with_suffix(""), progress=progress)
    lines = [f"{path.stat().st_size} {path.relative_to(archive.parent).as_posix()}" for path in paths]
    with writing(archive):
        _list_of(archive).write_text("\n".join([str(md5), *lines, ""]), encoding="utf-8")


def _taken_apart(folder: Path, file: str, md5: str | None) -> bool:
    try:
        first, *lines = _list_of(folder / file).read_text(encoding="utf-8").splitlines()
        sizes = {folder / name: int(size) for size, _, name in (line.partition(" ") for line in lines)}
    except (OSError, ValueError):
        return False
    return first == str(md5) and all(path.is_file() and path.stat().st_size == n for path, n in sizes.items())


def _list_of(archive: Path) -> Path:
    return archive.with_name(archive.name + ".contents")


def _named(progress: FileProgress | None, what: str) -> Callable[[int, int | None], None] | None:
    return None if progress is None else lambda done, total: progress(what, done, total)


# ---- checking a folder


@dataclass
class Report:
    """What a folder holds, and where that differs from what was published; sentences for people."""

    found: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether the folder is the set as published, as far as was looked."""
        return not self.differences

    def __str__(self) -> str:
        return "\n".join([*self.found, *(f"differs: {line}" for line in self.differences)])


def verify(name: str, folder: Path, *, progress: FileProgress | None = None) -> Report:
    """Compare a folder that is there with the set as published: archives, recordings, annotations and their numbers.
    Sub-folders may be named at will."""
    wanted, report = target_set(name), Report()
    if not folder.is_dir():
        raise NotelaError(f"{folder} is not a folder; give the one that holds {wanted.name}")
    _check_archives(wanted, folder, report, progress)
    audio = Counter(path.stem for path in _files(folder) if path.suffix.lower() in AUDIO)
    _compare(report, "recordings", sum(audio.values()), wanted.recordings)
    twice = sorted(stem for stem, times in audio.items() if times > 1)
    if twice:
        report.differences.append(f"recordings that are there more than once: {_few(twice)}")
    read = _raven if wanted.annotations == "raven" else _table
    boxes, labels = read(wanted, folder, report)
    missing, silent = sorted(boxes.keys() - audio.keys()), sorted(audio.keys() - boxes.keys())
    if missing:
        report.differences.append(f"recordings that are annotated but not there: {_few(missing)}")
    if boxes and silent:
        report.found.append(f"recordings without annotations: {_few(silent)}")
    total, unidentified = sum(boxes.values()), labels.pop(UNIDENTIFIED, 0)
    if unidentified:
        report.found.append(f"unidentified boxes ({UNIDENTIFIED}): {unidentified:,}")
    # some records count unidentified boxes, some do not
    _compare(report, "boxes", total - unidentified if total != wanted.boxes else total, wanted.boxes)
    if labels:
        _compare(report, "species", len(labels), *wanted.species)
    return report


def _check_archives(wanted: TargetSet, folder: Path, report: Report, progress: FileProgress | None) -> None:
    for file, md5 in wanted.files.items():
        path = folder / file
        if not path.is_file():
            if file.endswith(".zip"):
                report.found.append(f"no {file}: only what was taken out of it is checked")
            else:
                report.differences.append(f"{file} is not there")
            continue
        found = md5_of(path, _named(progress, f"{wanted.name}: {file}"))
        if md5 is None:
            report.found.append(f"{file} has MD5 {found}; none is known here to compare it with")
        elif found != md5:
            report.differences.append(f"{file} has MD5 {found}, published is {md5}")
        else:
            report.found.append(f"{file} has the published MD5")


def _table(wanted: TargetSet, folder: Path, report: Report) -> tuple[Counter[str], Counter[str]]:
    """Boxes of each recording and of each label, from the one table of this folder with the right columns."""
    columns = _TABLES[wanted.annotations]
    tables = [path for path in _files(folder) if path.suffix.lower() == ".csv" and _begins_with(path, columns)]
    if len(tables) != 1:
        report.differences.append(
            f"tables with the columns {', '.join(columns)}: {_few([path.name for path in tables])}, expected one"
        )
    boxes, labels = Counter[str](), Counter[str]()
    try:
        for row in _rows(tables[0], columns) if tables else ():
            boxes[Path(row[columns[0]]).stem] += 1
            labels.update(row[columns[-1]].split())
    except NotelaError as error:
        report.differences.append(str(error))
    return boxes, labels


def _raven(wanted: TargetSet, folder: Path, report: Report) -> tuple[Counter[str], Counter[str]]:
    """Boxes of each recording, from one table a recording; what the labels mean is left to the reader of tables."""
    boxes = Counter[str]()
    for path in _files(folder):
        stem = re.sub(r"(\.Table\.\d+)?\.selections$", "", path.stem)
        if path.suffix.lower() == ".txt" and stem != path.stem:
            lines = [line for line in _text(path).splitlines() if line.strip()]
            boxes[stem] += len(lines) - (1 if lines and lines[0].startswith("Selection\t") else 0)
            if lines and lines[-1].count("\t") < 4:
                report.differences.append(f"{path.name} is not a Raven table: it has too few columns")
    if not boxes:
        report.differences.append("no Raven tables (*.selections.txt) are there")
    return boxes, Counter()


def _compare(report: Report, what: str, found: int, *expected: int | None) -> None:
    if found in expected or None in expected:
        report.found.append(f"{found:,} {what}")
    else:
        report.differences.append(
            f"{found:,} {what}, expected {' or '.join(f'{n:,}' for n in expected if n is not None)}"
        )


def _few(names: list[str]) -> str:
    first = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names):,} ({first})" if names else "none"


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("._"))


def _begins_with(path: Path, columns: tuple[str, ...]) -> bool:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return set(columns) <= set(next(csv.reader(file), []))
    except (OSError, UnicodeDecodeError, csv.Error):
        return False


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The lines of a CSV that must have these columns; a cell that is missing is empty."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            lacking = [column for column in columns if column not in (reader.fieldnames or ())]
            if lacking:
                raise NotelaError(f"{path} has no column {', '.join(lacking)}; its first line must name it")
            yield from reader
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise NotelaError(f"{path} cannot be read ({error}); fetch it again") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise NotelaError(f"{path} cannot be read ({error.strerror or error})") from error
