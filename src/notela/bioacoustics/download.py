"""Fetching files over HTTP: resumed, verified, put in place whole or not at all; and taking archives apart."""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import random
import shutil
import ssl
import stat
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, Any, TypeVar

from notela.errors import NotelaError

T = TypeVar("T")
Progress = Callable[[int, "int | None"], None]  # bytes done, bytes in all if known

_BLOCK = 1 << 18
_LARGEST_ANSWER = 1 << 26  # of `get`: a page of metadata, not a file


class Refused(NotelaError):
    """The server will not give this, however often one asks."""

    def __init__(self, message: str, status: int = 0, body: bytes = b"") -> None:
        super().__init__(message)
        self.status, self.body = status, body


class Unreachable(NotelaError):
    """Asked as often as patience allows; later it may work."""


class DiskError(NotelaError):
    """The disk is full or may not be written to: nothing to do with the file that was fetched."""


class _MayPass(Exception):
    """A failure that is worth waiting out; `wait` is what the server asked for, in seconds."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass(frozen=True)
class Patience:
    """How long to try: failures in a row without any progress, seconds of silence, the longest wait between two."""

    attempts: int = 6
    timeout: float = 60.0
    longest: float = 300.0
    sleep: Callable[[float], None] = time.sleep


def download(
    url: str,
    to: Path,
    *,
    md5: str | None = None,
    size: int | None = None,
    progress: Progress | None = None,
    patience: Patience | None = None,
) -> Path:
    """The file at `url` as `to`. What has come so far waits in `<name>.part` and is continued by the next call; the
    file appears under its name only when it is whole. A file that is there already and right is left alone; one that
    is there and wrong is kept as `<name>.old`."""
    if to.is_dir():
        raise NotelaError(f"{to} is a folder, and a file of this name is to be fetched; move it away")
    if _is_right(to, md5, size):
        return to
    patience = patience or Patience()
    part = to.with_name(to.name + ".part")
    with writing(part):
        part.parent.mkdir(parents=True, exist_ok=True)
    _persist(lambda: _continue(url, part, md5, size, progress, patience), url, patience, lambda: _length(part))
    _verify(part, url, md5, size)
    with writing(to):
        if to.exists():
            os.replace(to, to.with_name(to.name + ".old"))
        os.replace(part, to)
        _tag_file(part).unlink(missing_ok=True)
    return to


def get(url: str, patience: Patience | None = None) -> bytes:
    """A small answer, such as a page of metadata."""
    patience = patience or Patience()

    def attempt() -> bytes:
        with _open(url, {}, patience.timeout) as response, _reading():
            body: bytes = response.read(_LARGEST_ANSWER)
            if response.length:  # what is still missing; read(n) does not complain of a cut connection
                raise _MayPass("the connection was cut")
            return body

    return _persist(attempt, url, patience)


def md5_of(path: Path, progress: Callable[[int, int | None], None] | None = None) -> str:
    """The MD5 of a file, as Zenodo writes it."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            while block := file.read(2**22):
                digest.update(block)
                if progress is not None:
                    progress(file.tell(), size)
        return digest.hexdigest()
    except OSError as error:
        raise NotelaError(f"{path} cannot be read ({error.strerror or error})") from error


def shown(url: str) -> str:
    """An address for people: without the query, which may hold a key."""
    return url.partition("?")[0]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Whatever the disk refuses, as one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            way_out = "free some space and run it again: what has been fetched is kept"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            way_out = "choose a folder that you may write to"
        else:
            way_out = "what has been fetched before is kept"
        raise DiskError(f"{path} cannot be written ({error.strerror or error}); {way_out}") from error


# ---- asking


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to anything that others on the way can read or change."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        scheme = newurl.partition(":")[0].lower()
        if scheme != "https" and (req.type == "https" or scheme != "http"):
            raise Refused(
                f"{shown(req.full_url)} sends one on to {shown(newurl)}, which is not safe; nothing was fetched"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_Redirects)


def _open(url: str, headers: dict[str, str], timeout: float) -> Any:
    """The server's answer, with status 200, 206 or 416. Messages leave out the query, and so does `from None`."""
    if not url.startswith(("https://", "http://")):
        raise NotelaError(f"{shown(url)!r} is no address that begins with https:// or http://")
    request = urllib.request.Request(url, headers={"User-Agent": "notela", **headers})
    try:
        return _OPENER.open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and "Range" in headers:
            return error
        with error:
            reason = f"HTTP {error.code} {error.reason}".strip()
            if error.code in (408, 425, 429) or (error.code >= 500 and error.code not in (501, 505)):
                raise _MayPass(reason, _retry_after(error.headers)) from None
            with _reading():
                body = error.read(_LARGEST_ANSWER)
            raise Refused(f"{shown(url)} is not to be had: {reason}", error.code, body) from None
    except http.client.InvalidURL:
        raise NotelaError(f"{shown(url)!r} holds characters that no address may have") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise Refused(f"{shown(url)} has a certificate that cannot be verified ({error.reason.reason})") from None
        raise _MayPass(str(error.reason) or type(error.reason).__name__) from None
    except (OSError, http.client.HTTPException) as error:
        raise _MayPass(str(error) or type(error).__name__) from None


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise _MayPass(
            "the server fell silent" if isinstance(error, TimeoutError) else "the connection was cut"
        ) from None


def _retry_after(headers: Any) -> float:
    """What the server asks for, as seconds or as a date; 0 if it does not say or not clearly."""
    text = str(headers.get("Retry-After", "")).strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text).astimezone(UTC) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return 0.0


def _persist(attempt: Callable[[], T], url: str, patience: Patience, mark: Callable[[], int] = lambda: 0) -> T:
    """Repeat what may pass, waiting longer each time. `mark` says how far it has come: as long as it grows, a long
    file over a bad line is not given up."""
    failures, farthest = 0, mark()
    while True:
        try:
            return attempt()
        except _MayPass as failure:
            here = mark()
            failures, farthest = (1 if here > farthest else failures + 1), max(here, farthest)
            if failures >= patience.attempts:
                often = "" if failures == 1 else f", {failures} times in a row"
                raise Unreachable(f"{shown(url)} cannot be reached ({failure}{often}); try again later") from None
            if failure.wait > patience.longest:
                raise Unreachable(
                    f"{shown(url)} asks to be left alone for {failure.wait:.0f} s ({failure}); try again after that"
                ) from None
            # jitter, so that many who were cut off together do not come back together
            patience.sleep(max(failure.wait, min(2.0 ** (failures - 1), patience.longest) * random.uniform(0.5, 1.0)))


# ---- one file


def _continue(
    url: str, part: Path, md5: str | None, size: int | None, progress: Progress | None, patience: Patience
) -> None:
    """One attempt to complete `part`."""
    tag, offset = _read_tag(part), _length(part)
    if (not tag and md5 is None) or (size is not None and offset > size):
        offset = 0  # nothing would notice if the half we have were another file's
    if offset and offset == size:
        return
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    if offset and tag:
        headers["If-Range"] = tag  # another tag by now: the server sends all of it, from the start
    with _open(url, headers, patience.timeout) as response:
        begin, total = _span(response)
        if response.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            if total == offset:
                return  # it was complete, and only its name was missing
            with writing(part):
                part.unlink()
            raise _MayPass("the file on the server has changed")
        if begin not in (0, offset):
            raise Refused(f"{shown(url)} was asked for byte {offset} and sends byte {begin}; fetch it by other means")
        if size is not None and total is not None and total != size:
            raise Refused(f"{shown(url)} has {total} bytes where {size} were expected; has it been changed?")
        total = size if total is None else total
        _check_space(part.parent, 0 if total is None else total - begin, part.name.removesuffix(".part"))
        with writing(part), open(part, "r+b" if begin else "wb") as file:
            file.seek(begin)
            if not begin:  # only now: the old half is gone, so the new tag cannot come to belong to it
                _tag_file(part).write_text(_tag(response.headers), encoding="utf-8")
            done = begin
            while True:
                with _reading():
                    block = response.read1(_BLOCK)
                if not block:
                    break
                file.write(block)
                done += len(block)
                if progress:
                    progress(done, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done < total:
        raise _MayPass(f"the connection was cut after {done} of {total} bytes")


def _span(response: Any) -> tuple[int, int | None]:
    """Where in the file this answer begins, and how long the whole file is, if the server says."""
    if response.status == http.HTTPStatus.OK:
        length = response.headers.get("Content-Length")
        return 0, int(length) if length is not None else None
    text = response.headers.get("Content-Range", "")
    span, _, total = text.removeprefix("bytes").strip().partition("/")
    begin = span.partition("-")[0]
    if not (begin.isdecimal() or span == "*") or not (total.isdecimal() or total == "*"):
        raise Refused(f"{shown(response.url)} answers with the range {text!r}, which cannot be understood")
    return int(begin) if begin.isdecimal() else 0, int(total) if total.isdecimal() else None


def _tag(headers: Any) -> str:
    """What tells this version of the file from another: a strong ETag, or else its date."""
    tag = headers.get("ETag", "")
    return str(tag if tag.startswith('"') else headers.get("Last-Modified", ""))


def _tag_file(part: Path) -> Path:
    return part.with_name(part.name + ".tag")


def _read_tag(part: Path) -> str:
    try:
        return _tag_file(part).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""  # without it the part is only continued where a checksum will judge it


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _is_right(path: Path, md5: str | None, size: int | None) -> bool:
    return (
        path.is_file()
        and (size is None or path.stat().st_size == size)
        and (md5 is None or md5_of(path) == md5.lower())
    )


def _verify(part: Path, url: str, md5: str | None, size: int | None) -> None:
    """A wrong part is removed: to continue it would only make it longer."""
    found, expected = f"{_length(part)} bytes", f"{size} bytes"
    if (size is None or _length(part) == size) and md5 is not None:
        found, expected = f"MD5 {md5_of(part)}", f"MD5 {md5.lower()}"
    elif size is None:
        return
    if found != expected:
        with writing(part):
            part.unlink()
            _tag_file(part).unlink(missing_ok=True)
        raise NotelaError(f"{shown(url)} came with {found}, expected {expected}; it was removed: fetch it again")


def _check_space(folder: Path, needed: int, name: str) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DiskError(
            f"{name} needs {needed / 1e9:.2f} GB more and {folder} has {free / 1e9:.2f} GB free; "
            "free some space or choose another folder"
        )


# ---- archives


def members(archive: Path) -> list[zipfile.ZipInfo]:
    """The files of a zip, without folders and without what macOS adds; one that reaches outside is refused whole."""
    with _zip(archive) as opened:
        found = [m for m in opened.infolist() if not m.is_dir() and not m.filename.startswith("__MACOSX/")]
    for member in found:
        parts = member.filename.replace("\\", "/").split("/")
        if ".." in parts or parts[0] == "" or ":" in parts[0] or stat.S_ISLNK(member.external_attr >> 16):
            raise NotelaError(
                f"{archive} holds {member.filename!r}, which would be written elsewhere; it is not a data set: do not "
                "use it"
            )
    return found


def extract(archive: Path, into: Path, *, progress: Progress | None = None) -> list[Path]:
    """The files of a zip below `into`. Those that are there with the right length and checksum are left alone, so a
    call that was stopped is continued by the next."""
    found = members(archive)
    with writing(into):
        into.mkdir(parents=True, exist_ok=True)
    root, total, done = into.resolve(), sum(member.file_size for member in found), 0
    paths = [into / member.filename for member in found]
    for path in paths:
        if not path.resolve().is_relative_to(root):  # through a link that was there before
            raise NotelaError(f"{path} leads out of {into}; remove the link and run it again")
    missing = {m.filename for m, path in zip(found, paths, strict=True) if not _same(path, m)}
    _check_space(into, sum(m.file_size for m in found if m.filename in missing), archive.name)
    with _zip(archive) as opened:
        for member, path in zip(found, paths, strict=True):
            if member.filename in missing:
                _extract_one(opened, member, path)
            done += member.file_size
            if progress:
                progress(done, total)
    return paths


def _extract_one(opened: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    part = path.with_name(path.name + ".part")
    try:
        with writing(part):
            part.parent.mkdir(parents=True, exist_ok=True)
            with opened.open(member) as source, open(part, "wb") as file:
                shutil.copyfileobj(source, file, _BLOCK)  # zipfile compares the CRC at the end
            os.replace(part, path)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise NotelaError(
            f"{opened.filename} is damaged at {member.filename} ({error}); remove it and fetch it again"
        ) from error
    finally:
        with suppress(OSError):  # the failure itself is what counts
            part.unlink(missing_ok=True)


def _same(path: Path, member: zipfile.ZipInfo) -> bool:
    if not path.is_file() or path.stat().st_size != member.file_size:
        return False
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc == member.CRC


@contextmanager
def _zip(archive: Path) -> Iterator[zipfile.ZipFile]:
    try:
        opened = zipfile.ZipFile(archive)
    except (OSError, zipfile.BadZipFile) as error:
        raise NotelaError(f"{archive} cannot be read as a zip ({error}); remove it and fetch it again") from error
    with opened:
        yield opened
