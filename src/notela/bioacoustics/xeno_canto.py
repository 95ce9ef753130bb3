"""Focal recordings from Xeno-canto: searching its API v3, and fetching with the licence of every recording."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from notela.bioacoustics.download import DiskError, Patience, Refused, Unreachable, download, get, writing
from notela.errors import NotelaError, check_at_least, check_integer

SITE = "https://xeno-canto.org"
KEY = "XENO_CANTO_KEY"
MANIFEST = (
    *("id", "species", "file", "recordist", "licence", "country", "latitude", "longitude", "length_s"),
    *("background", "quality", "url"),
)
FAILURES = ("id", "species", "reason")

_GIVE_UP_AFTER = 5  # recordings in a row that cannot be reached: the line is down, not the recordings


@dataclass(frozen=True)
class Recording:
    """What Xeno-canto says of a recording. `file` is None where the species is restricted and the sound withheld."""

    id: str
    genus: str
    epithet: str
    english: str
    recordist: str
    licence: str
    country: str
    latitude: float | None
    longitude: float | None
    length: float | None  # seconds
    background: tuple[str, ...]
    quality: str
    url: str
    file: str | None
    file_name: str

    @property
    def species(self) -> str:
        """Its scientific name."""
        return f"{self.genus} {self.epithet}".strip()


@dataclass
class Fetched:
    """How many came, how many were there before, and why the others did not: id → reason."""

    new: int = 0
    there: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def query(species: str | None = None, **tags: str) -> str:
    """A search as the API wants it, tags only.

    >>> query("Turdus merula", q="A", len="5-60", cnt="Costa Rica", grp="birds")
    'gen:Turdus sp:merula q:A len:5-60 cnt:"Costa Rica" grp:birds'
    """
    if species is not None:
        words = species.split()
        if len(words) != 2:
            raise NotelaError(f"species={species!r} is not a scientific name of two words, such as 'Turdus merula'")
        tags = {"gen": words[0], "sp": words[1], **tags}
    if not tags:
        raise NotelaError("a search at Xeno-canto needs at least one tag, such as gen='Turdus'")
    for tag, value in tags.items():
        if not value.strip() or '"' in value:
            raise NotelaError(f"{tag}={value!r} cannot be searched for: it is empty or holds a quotation mark")
    return " ".join(f"{tag}:{v}" if re.fullmatch(r"[\w.-]+", v) else f'{tag}:"{v}"' for tag, v in tags.items())


class XenoCanto:
    """A polite client: at most `per_second` requests a second, searches and recordings together. The key comes from
    the environment and is never shown."""

    def __init__(
        self,
        *,
        site: str = SITE,
        per_second: float = 2.0,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_at_least("per_second", per_second, 1e-3)
        self._site, self._patience, self._clock = site, patience or Patience(), clock
        self._apart, self._next = 1.0 / per_second, 0.0

    def search(self, search: str, *, per_page: int = 500) -> Iterator[Recording]:
        """All recordings that match `query(...)`, page by page as they are needed, each once."""
        check_integer("per_page", per_page, 50)
        if per_page > 500:
            raise NotelaError(f"per_page={per_page} is more than the 500 that Xeno-canto gives at once")
        seen: set[str] = set()
        page = pages = 1
        while page <= pages:
            answer = self._page(search, per_page, page)
            try:
                pages = int(answer["numPages"])
                found = [_recording(row) for row in answer["recordings"]]
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise NotelaError(
                    f"Xeno-canto answers in a form that is not known here ({type(error).__name__}: {error}); a newer "
                    "notela may know it"
                ) from error
            # pages shift while people upload: what moved to the next page comes twice
            yield from (one for one in found if one.id not in seen)
            seen.update(one.id for one in found)
            page += 1

    def fetch(
        self,
        recordings: Iterable[Recording],
        to: Path,
        *,
        progress: Callable[[Recording, Fetched], None] | None = None,
    ) -> Fetched:
        """Sound into `to/<Genus_species>/XC<id>.<ending>`, with one line each in `to/manifest.csv`. What is there is
        not fetched again. A recording that cannot be had is listed in `to/failures.csv`, and the rest goes on."""
        with writing(to):
            to.mkdir(parents=True, exist_ok=True)
        listed = {row["id"]: row for row in _read(to / "manifest.csv", MANIFEST)}
        failures = {row["id"]: row for row in _read(to / "failures.csv", FAILURES)}
        fetched, in_a_row = Fetched(), 0
        for one in recordings:
            try:
                new = self._fetch(one, to, listed)
            except DiskError:
                raise
            except NotelaError as error:
                in_a_row = in_a_row + 1 if isinstance(error, Unreachable) else 0
                fetched.failed[one.id] = str(error)
                failures[one.id] = {"id": one.id, "species": one.species, "reason": str(error)}
                _replace(to / "failures.csv", FAILURES, failures.values())
                if in_a_row == _GIVE_UP_AFTER:
                    raise Unreachable(
                        f"{in_a_row} recordings in a row cannot be reached ({error}); what came is kept: run it again "
                        "to go on"
                    ) from error
            else:
                in_a_row = 0
                fetched.new, fetched.there = fetched.new + new, fetched.there + (not new)
                if failures.pop(one.id, None):
                    _replace(to / "failures.csv", FAILURES, failures.values())
            if progress:
                progress(one, fetched)
        return fetched

    def _fetch(self, one: Recording, to: Path, listed: dict[str, dict[str, str]]) -> bool:
        """Whether anything had to be fetched."""
        if one.file is None:
            raise NotelaError("restricted: Xeno-canto does not give out the sound of this species")
        path = to / _place(one)
        new = not path.is_file()
        if new:
            self._wait()
            download(one.file, path, patience=self._patience)
        if one.id not in listed:
            row = _row(one, path.relative_to(to).as_posix())
            _append(to / "manifest.csv", MANIFEST, row)
            listed[one.id] = row
        return new

    def _page(self, search: str, per_page: int, page: int) -> dict[str, Any]:
        key = _key()
        self._wait()
        asked = urlencode({"query": search, "per_page": per_page, "page": page, "key": key})
        try:
            body = get(f"{self._site}/api/3/recordings?{asked}", self._patience)
        except Refused as refused:
            complaint = _complaint(refused.body) or str(refused)
            raise NotelaError(_without(key, f"Xeno-canto refuses the search {search!r}: {complaint}")) from None
        try:
            answer = json.loads(body)
        except ValueError:
            beginning = body[:60].decode("utf-8", "replace")
            raise NotelaError(
                _without(key, f"Xeno-canto answers with something that is not JSON ({beginning!r}); try again later")
            ) from None
        complaint = _complaint(body)
        if complaint:
            raise NotelaError(_without(key, f"Xeno-canto refuses the search {search!r}: {complaint}"))
        return answer if isinstance(answer, dict) else {}

    def _wait(self) -> None:
        """Until the next request is due."""
        now = self._clock()
        if now < self._next:
            self._patience.sleep(self._next - now)
        self._next = max(now, self._next) + self._apart


# ---- what the API says


def _key() -> str:
    key = os.environ.get(KEY, "").strip()
    if not key:
        raise NotelaError(
            f"searching Xeno-canto needs a key: sign in at {SITE}, copy yours from {SITE}/account and set it with "
            f"export {KEY}=..."
        )
    return key


def _without(key: str, text: str) -> str:
    return text.replace(key, "<key>")


def _complaint(body: bytes) -> str:
    """The API's own words: {"error": "...", "message": "..."} or {"error": {"code": ..., "message": "..."}}."""
    try:
        answer = json.loads(body)
    except ValueError:
        return ""
    if not isinstance(answer, dict) or "error" not in answer:
        return ""
    error = answer["error"]
    return str(answer.get("message") or (error.get("message") if isinstance(error, dict) else error) or error)


def _recording(row: dict[str, Any]) -> Recording:
    number = str(row["id"])
    if not number.isdecimal():
        raise ValueError(f"the id {number!r}")
    return Recording(
        id=number,
        genus=_text(row, "gen"),
        epithet=_text(row, "sp"),
        english=_text(row, "en"),
        recordist=_text(row, "rec"),
        licence=_https(_text(row, "lic")),
        country=_text(row, "cnt"),
        latitude=_number(row.get("lat")),
        longitude=_number(row.get("lon", row.get("lng"))),
        length=_seconds(_text(row, "length")),
        background=tuple(str(name).strip() for name in row.get("also") or () if str(name).strip()),
        quality=_text(row, "q"),
        url=_https(_text(row, "url")),
        file=_https(_text(row, "file")) or None,
        file_name=_text(row, "file-name"),
    )


def _text(row: dict[str, Any], name: str) -> str:
    """One line: what stands in a table must not break it."""
    return " ".join(str(row.get(name) or "").split())


def _https(address: str) -> str:
    """Xeno-canto writes some addresses without what goes before the slashes."""
    return f"https:{address}" if address.startswith("//") else address


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _seconds(text: str) -> float | None:
    """`m:ss` or `h:mm:ss`.

    >>> _seconds("3:07"), _seconds("1:02:03"), _seconds("")
    (187.0, 3723.0, None)
    """
    if not re.fullmatch(r"\d+(:\d{1,2}){1,2}(\.\d+)?", text):
        return None
    seconds = 0.0
    for part in text.split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


def _place(one: Recording) -> Path:
    """Where it goes. Names come from elsewhere: only letters, digits and hyphens of them become paths."""
    file = urlsplit(one.file or "").path
    endings = [name.rpartition(".")[2].lower() for name in (one.file_name, file) if "." in name]
    ending = next((e for e in endings if re.fullmatch(r"[a-z0-9]{1,5}", e)), None)
    if ending is None:
        raise NotelaError(f"neither {one.file_name!r} nor {file!r} ends in the name of a format, such as .mp3")
    species = "_".join(re.sub(r"[^\w-]+", "", word) for word in (one.genus or "Unknown", one.epithet or "sp"))
    return Path(species) / f"XC{one.id}.{ending}"


# ---- tables that survive


def _row(one: Recording, file: str) -> dict[str, str]:
    numbers = ("" if value is None else str(value) for value in (one.latitude, one.longitude, one.length))
    values = (one.id, one.species, file, one.recordist, one.licence, one.country, *numbers)
    return dict(zip(MANIFEST, (*values, "; ".join(one.background), one.quality, one.url), strict=True))


def _read(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of one of our tables; a last line that a crash left unfinished is cut off."""
    if not path.exists():
        return []
    try:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            with writing(path):
                os.truncate(path, len(whole))
        rows = list(csv.reader(io.StringIO(whole.decode("utf-8"), newline="")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise NotelaError(f"{path} cannot be read ({error}); move it away and run it again") from error
    if rows and tuple(rows[0]) != columns:
        raise NotelaError(f"{path} is not a table of notela: its columns are not {', '.join(columns)}; move it away")
    return [dict(zip(columns, row, strict=False)) for row in rows[1:] if row]


def _append(path: Path, columns: tuple[str, ...], row: dict[str, str]) -> None:
    """One line, in one write, on the disk before anything else happens."""
    with writing(path), open(path, "ab", buffering=0) as file:
        line = (("" if file.tell() else _lines([columns])) + _lines([row.values()])).encode()
        if file.write(line) < len(line):  # the disk took only a piece of it; the next start cuts it off
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())


def _replace(path: Path, columns: tuple[str, ...], rows: Iterable[dict[str, str]]) -> None:
    """The whole table at once; an empty one goes away."""
    text = _lines([row.values() for row in rows])
    aside = path.with_name(path.name + ".part")
    with writing(path):
        aside.write_text(_lines([columns]) + text, encoding="utf-8", newline="")
        os.replace(aside, path)
        if not text:
            path.unlink()


def _lines(rows: Iterable[Iterable[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([" ".join(cell.split()) for cell in row] for row in rows)
    return text.getvalue()
