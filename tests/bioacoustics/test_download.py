"""Files over a bad line: every way in which a download goes wrong, against a server on this machine."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import stat
import urllib.request
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import notela.bioacoustics.download as module
from disks import small_disk
from local_server import Answer, Server, serving
from notela.bioacoustics.download import (
    DiskError,
    Patience,
    Refused,
    Unreachable,
    download,
    extract,
    get,
    members,
    shown,
)
from notela.errors import NotelaError
from permissions import bound_by_permissions

BODY = bytes(range(256)) * 4000  # several blocks
MD5 = hashlib.md5(BODY).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as running:
        yield running


class Sleeps(list[float]):
    """Instead of sleeping: the times asked for."""

    def patience(self, **settings: Any) -> Patience:
        return Patience(sleep=self.append, **settings)


@pytest.fixture
def sleeps() -> Sleeps:
    return Sleeps()


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- whole files


def test_a_file_arrives_whole_and_is_not_fetched_twice(server: Server, tmp_path: Path) -> None:
    server.put_file("/a.bin", BODY)
    seen: list[tuple[int, int | None]] = []
    to = tmp_path / "new" / "folder" / "a.bin"
    for _ in range(2):
        path = download(
            f"{server.url}/a.bin?download=1",
            to,
            md5=MD5,
            size=len(BODY),
            progress=lambda done, total: seen.append((done, total)),
        )
        assert path.read_bytes() == BODY
    assert server.paths == ["/a.bin?download=1"]
    assert left_over(to.parent) == ["a.bin"]
    assert seen[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


@pytest.mark.parametrize(
    ("known", "again"),
    [
        ({"md5": MD5.upper()}, False),
        ({"size": len(BODY)}, False),
        ({}, False),
        ({"md5": "0" * 32}, True),
        ({"size": 1}, True),
    ],
)
def test_what_is_there_is_kept_if_it_is_right(
    known: dict[str, Any], again: bool, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "a.bin").write_bytes(BODY)
    if again:
        with pytest.raises(NotelaError):  # nothing at that address
            download(f"{server.url}/a.bin", tmp_path / "a.bin", **known)
    else:
        download(f"{server.url}/a.bin", tmp_path / "a.bin", **known)
    assert bool(server.asked) == again
    assert (tmp_path / "a.bin").read_bytes() == BODY


def test_a_wrong_file_that_was_there_is_kept_aside(server: Server, tmp_path: Path) -> None:
    server.put_file("/a.csv", BODY)
    (tmp_path / "a.csv").write_text("edited by hand")
    download(f"{server.url}/a.csv", tmp_path / "a.csv", md5=MD5)
    assert (tmp_path / "a.csv").read_bytes() == BODY
    assert (tmp_path / "a.csv.old").read_text() == "edited by hand"


def test_a_body_of_unknown_length(server: Server, tmp_path: Path) -> None:
    server.put("/a.bin", Answer(BODY, length=False))
    assert download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5).read_bytes() == BODY


def test_an_empty_file(server: Server, tmp_path: Path) -> None:
    server.put("/empty", Answer(b""))
    assert download(f"{server.url}/empty", tmp_path / "empty", size=0).read_bytes() == b""


# ---- cut, and continued


def test_a_cut_connection_is_continued(server: Server, tmp_path: Path, sleeps: Sleeps) -> None:
    server.put_file("/a.bin", BODY, cuts=[300_000, 1, 0, 200_000])
    download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5, patience=sleeps.patience())
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert [headers.get("range") for _, headers in server.asked] == [
        None,
        "bytes=300000-",
        "bytes=300001-",
        "bytes=300001-",
        "bytes=500001-",
    ]
    assert {headers.get("if-range") for _, headers in server.asked[1:]} == {'"1"'}
    assert left_over(tmp_path) == ["a.bin"]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(0, len(BODY)), max_size=5),
    ranges=st.booleans(),
    tag=st.sampled_from(['"1"', 'W/"1"', ""]),
)
def test_any_cuts_give_the_same_bytes(cuts: list[int], ranges: bool, tag: str, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path)
    with serving() as server:
        server.put_file("/a.bin", BODY, tag, ranges=ranges, cuts=cuts)
        download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5, patience=Sleeps().patience(attempts=9))
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert left_over(tmp_path) == ["a.bin"]


def test_another_process_continues_where_the_first_was_killed(server: Server, tmp_path: Path, sleeps: Sleeps) -> None:
    server.put_file("/a.bin", BODY)

    def interrupt(done: int, total: int | None) -> None:
        if done > 400_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(f"{server.url}/a.bin", tmp_path / "a.bin", progress=interrupt)
    half = (tmp_path / "a.bin.part").stat().st_size
    assert 400_000 < half < len(BODY)
    assert not (tmp_path / "a.bin").exists()
    download(f"{server.url}/a.bin", tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert server.asked[-1][1]["range"] == f"bytes={half}-"


def test_a_line_that_keeps_breaking_is_not_given_up_while_it_moves(
    server: Server, tmp_path: Path, sleeps: Sleeps
) -> None:
    server.put_file("/a.bin", BODY, cuts=[10_000] * 50)
    download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5, patience=sleeps.patience(attempts=2))
    assert len(sleeps) == 50
    assert max(sleeps) <= 1.0  # each failure was the first since something came


def test_a_server_without_ranges_starts_again_and_is_given_up_in_the_end(
    server: Server, tmp_path: Path, sleeps: Sleeps
) -> None:
    server.put_file("/a.bin", BODY, ranges=False, cuts=[300_000])
    download(f"{server.url}/a.bin", tmp_path / "a.bin", patience=sleeps.patience())
    assert (tmp_path / "a.bin").read_bytes() == BODY
    server.put_file("/b.bin", BODY, ranges=False, cuts=[300_000] * 99)
    with pytest.raises(Unreachable, match=r"b\.bin cannot be reached \(the connection was cut after 300000 of 1024000"):
        download(f"{server.url}/b.bin", tmp_path / "b.bin", patience=sleeps.patience(attempts=4))
    assert (tmp_path / "b.bin.part").stat().st_size == 300_000


def test_a_file_that_changed_meanwhile_is_not_glued_to_the_old_half(
    server: Server, tmp_path: Path, sleeps: Sleeps
) -> None:
    other = BODY[::-1]
    server.put_file("/a.bin", BODY, '"1"', cuts=[300_000])
    with pytest.raises(Unreachable):
        download(f"{server.url}/a.bin", tmp_path / "a.bin", patience=sleeps.patience(attempts=1))
    server.put_file("/a.bin", other, '"2"', cuts=[300_001])  # cut again: the second half must fit the new file
    download(f"{server.url}/a.bin", tmp_path / "a.bin", patience=sleeps.patience())
    assert (tmp_path / "a.bin").read_bytes() == other


@pytest.mark.parametrize(("md5", "asks_for_the_rest"), [(MD5, True), (None, False)])
def test_a_half_without_a_tag_is_continued_only_if_a_checksum_judges_it(
    md5: str | None, asks_for_the_rest: bool, server: Server, tmp_path: Path
) -> None:
    server.put_file("/a.bin", BODY)
    (tmp_path / "a.bin.part").write_bytes(BODY[:1000])
    download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=md5)
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert ("range" in server.asked[0][1]) == asks_for_the_rest


@pytest.mark.parametrize(("size", "requests"), [(len(BODY), 0), (None, 1)])
def test_a_part_that_is_complete_only_needs_its_name(
    size: int | None, requests: int, server: Server, tmp_path: Path
) -> None:
    server.put_file("/a.bin", BODY)
    (tmp_path / "a.bin.part").write_bytes(BODY)
    download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5, size=size)
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert len(server.asked) == requests


def test_a_part_that_is_too_long_starts_again(server: Server, tmp_path: Path, sleeps: Sleeps) -> None:
    server.put_file("/a.bin", BODY)
    (tmp_path / "a.bin.part").write_bytes(BODY + b"more")
    download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5, patience=sleeps.patience())
    assert (tmp_path / "a.bin").read_bytes() == BODY


def test_a_server_that_sends_another_range_is_refused(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(BODY[:1000])
    server.put("/a.bin", Answer(BODY[5:], 206, {"Content-Range": f"bytes 5-{len(BODY) - 1}/{len(BODY)}"}))
    with pytest.raises(Refused, match="was asked for byte 1000 and sends byte 5"):
        download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5)
    server.put("/a.bin", Answer(BODY, 206, {"Content-Range": "bytes of all sorts"}))
    with pytest.raises(Refused, match="range 'bytes of all sorts', which cannot be understood"):
        download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5)
    assert (tmp_path / "a.bin.part").read_bytes() == BODY[:1000]


# ---- wrong files


def test_a_wrong_checksum_names_both_and_leaves_nothing_to_continue(server: Server, tmp_path: Path) -> None:
    server.put_file("/a.bin", BODY)
    wrong = "0123456789abcdef" * 2
    with pytest.raises(NotelaError, match=rf"a\.bin came with MD5 {MD5}, expected MD5 {wrong}; it was removed"):
        download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=wrong)
    assert left_over(tmp_path) == []


def test_a_wrong_size_is_told_before_the_download(server: Server, tmp_path: Path) -> None:
    server.put_file("/a.bin", BODY)
    with pytest.raises(Refused, match="has 1024000 bytes where 5 were expected"):
        download(f"{server.url}/a.bin", tmp_path / "a.bin", size=5)
    server.put("/b.bin", Answer(BODY, length=False))
    with pytest.raises(NotelaError, match="came with 1024000 bytes, expected 5 bytes"):
        download(f"{server.url}/b.bin", tmp_path / "b.bin", size=5)
    assert left_over(tmp_path) == []


# ---- servers in trouble


def test_503_is_waited_out_longer_each_time(server: Server, tmp_path: Path, sleeps: Sleeps) -> None:
    server.put("/a.bin", Answer(b"", 503), Answer(b"", 500), Answer(b"", 429), Answer(b"", 502), Answer(BODY))
    download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5, patience=sleeps.patience())
    assert len(sleeps) == 4
    assert all(0.5 * 2**i <= wait <= 2**i for i, wait in enumerate(sleeps))


def test_retry_after_is_respected_in_seconds_and_as_a_date(server: Server, sleeps: Sleeps) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    server.put("/a", *(Answer(b"", 429, {"Retry-After": text}) for text in ("77", later, "soon", "-5")), Answer(b"ok"))
    assert get(f"{server.url}/a", sleeps.patience()) == b"ok"
    assert sleeps[0] == 77
    assert 80 < sleeps[1] <= 100
    assert 2 <= sleeps[2] <= 4
    assert 4 <= sleeps[3] <= 8


def test_a_server_that_wants_an_hour_of_peace_gets_it(server: Server, sleeps: Sleeps) -> None:
    server.put("/a", Answer(b"", 503, {"Retry-After": "3600"}))
    with pytest.raises(Unreachable, match=r"/a asks to be left alone for 3600 s \(HTTP 503 Service Unavailable\)"):
        get(f"{server.url}/a", sleeps.patience())
    assert not sleeps


def test_503_for_ever(server: Server, tmp_path: Path, sleeps: Sleeps) -> None:
    server.put("/a.bin", Answer(b"", 503))
    with pytest.raises(Unreachable, match=r"\(HTTP 503 Service Unavailable, 9 times in a row\); try again later"):
        download(f"{server.url}/a.bin", tmp_path / "a.bin", patience=sleeps.patience(attempts=9, longest=20))
    assert len(server.asked) == 9
    assert 10 <= max(sleeps) <= 20


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 501])
def test_a_refusal_is_told_at_once_and_without_the_query(
    status: int, server: Server, tmp_path: Path, sleeps: Sleeps
) -> None:
    server.put("/a.bin", Answer(b"because", status))
    with pytest.raises(Refused, match=rf"^http://127.0.0.1:\d+/a\.bin is not to be had: HTTP {status} ") as caught:
        download(f"{server.url}/a.bin?key=secret", tmp_path / "a.bin", patience=sleeps.patience())
    assert (caught.value.status, caught.value.body) == (status, b"because")
    assert "secret" not in str(caught.value)
    assert len(server.asked) == 1
    assert not sleeps


def test_silence_ends_after_the_timeout_and_the_part_stays(server: Server, tmp_path: Path, sleeps: Sleeps) -> None:
    server.put_file("/a.bin", BODY, cuts=[300_000])
    with pytest.raises(Unreachable):
        download(f"{server.url}/a.bin", tmp_path / "a.bin", patience=sleeps.patience(attempts=1))
    rest = {"Content-Range": f"bytes 300000-{len(BODY) - 1}/{len(BODY)}"}
    server.put("/a.bin", Answer(BODY[300_000:], 206, rest, hang=True))
    with pytest.raises(Unreachable, match=r"\(the server fell silent, 2 times in a row\)"):
        download(f"{server.url}/a.bin", tmp_path / "a.bin", patience=sleeps.patience(attempts=2, timeout=0.05))
    assert (tmp_path / "a.bin.part").read_bytes() == BODY[:300_000]
    server.put("/a.txt", Answer(b"x", hang=True))
    with pytest.raises(Unreachable, match="fell silent"):
        get(f"{server.url}/a.txt", sleeps.patience(attempts=1, timeout=0.05))


def test_nobody_listens(tmp_path: Path, sleeps: Sleeps) -> None:
    with serving() as gone:
        pass
    with pytest.raises(Unreachable, match=r"cannot be reached \(.*refused, 3 times in a row\)"):
        get(gone.url, sleeps.patience(attempts=3))
    assert len(sleeps) == 2


def test_a_short_answer_that_is_cut_is_asked_for_again(server: Server, sleeps: Sleeps) -> None:
    server.put("/page", Answer(b"0123456789", cut=4), Answer(b"0123456789"))
    assert get(f"{server.url}/page", sleeps.patience()) == b"0123456789"
    assert len(server.asked) == 2


# ---- addresses


def test_redirects_are_followed_with_the_range(server: Server, tmp_path: Path, sleeps: Sleeps) -> None:
    server.put_file("/real.bin", BODY, cuts=[300_000])
    server.put("/a.bin", Answer(b"", 302, {"Location": "/real.bin"}))
    download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5, patience=sleeps.patience())
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert server.asked[-1][1]["range"] == "bytes=300000-"


def test_a_redirect_in_circles_ends(server: Server, tmp_path: Path) -> None:
    server.put("/a.bin", Answer(b"", 302, {"Location": "/a.bin"}))
    with pytest.raises(Refused, match="is not to be had: HTTP 302"):
        download(f"{server.url}/a.bin", tmp_path / "a.bin")


@pytest.mark.parametrize(
    ("begin", "end", "allowed"),
    [
        ("https://a.org/x", "https://b.org/y?k=1", True),
        ("http://a.org/x", "https://b.org/y", True),
        ("http://a.org/x", "http://b.org/y", True),
        ("https://a.org/x", "http://b.org/y?k=1", False),
        ("https://a.org/x", "HTTP://b.org/y", False),
        ("http://a.org/x", "ftp://b.org/y", False),
        ("https://a.org/x", "file:///etc/passwd", False),
    ],
)
def test_redirects_never_leave_https(begin: str, end: str, allowed: bool) -> None:
    follow = module._Redirects().redirect_request
    arguments = (urllib.request.Request(begin), io.BytesIO(), 302, "Found", {}, end)
    if allowed:
        assert follow(*arguments).full_url == end  # type: ignore[union-attr]
    else:
        with pytest.raises(
            Refused, match=rf"https?://a.org/x sends one on to {end.partition('?')[0]}, which is not safe"
        ):
            follow(*arguments)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://a.org/b", "a.org/b", ""])
def test_other_addresses_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match="is no address that begins with https:// or http://"):
        download(url, tmp_path / "a")


def test_an_address_with_a_line_break_does_not_show_its_key() -> None:
    with pytest.raises(NotelaError, match="holds characters that no address may have") as caught:
        get("http://127.0.0.1:1/a b?key=secret")
    assert "secret" not in str(caught.value)
    assert shown("https://a.org/b?key=secret") == "https://a.org/b"


# ---- the disk


def test_a_full_disk_is_one_sentence_and_loses_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put_file("/a.bin", BODY)

    class Full(io.BufferedWriter):
        def write(self, data: Any) -> int:
            if self.tell() + len(data) > 500_000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    with monkeypatch.context() as patch:
        patch.setattr(module, "open", lambda path, mode: Full(io.FileIO(path, mode.replace("b", ""))), raising=False)
        with pytest.raises(
            DiskError, match=r"a\.bin\.part cannot be written \(No space left on device\); free some space"
        ):
            download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5)
    half = (tmp_path / "a.bin.part").stat().st_size
    assert 0 < half <= 500_000
    download(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5)
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert server.asked[-1][1]["range"] == f"bytes={half}-"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 kB."""
    with small_disk(tmp_path / "disk", 256):
        yield tmp_path / "disk"


def test_a_disk_that_is_really_full(server: Server, tiny_disk: Path) -> None:
    server.put("/a.bin", Answer(BODY, length=False, headers={"ETag": '"1"'}))  # no length: nothing warns beforehand
    with pytest.raises(DiskError, match=r"a\.bin\.part cannot be written \(No space left on device\)"):
        download(f"{server.url}/a.bin", tiny_disk / "a.bin")
    kept = (tiny_disk / "a.bin.part").read_bytes()
    assert len(kept) > 100_000
    assert BODY.startswith(kept)
    server.put_file("/b.bin", BODY)
    with pytest.raises(DiskError, match=r"b\.bin needs 0\.00 GB more"):
        download(f"{server.url}/b.bin", tiny_disk / "b.bin")


def test_a_disk_that_is_too_small_is_told_before_the_download(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put_file("/a.bin", BODY)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(9, 9, 1000))  # type: ignore[attr-defined]
    with pytest.raises(DiskError, match=r"a\.bin needs 0\.00 GB more and .* has 0\.00 GB free"):
        download(f"{server.url}/a.bin", tmp_path / "a.bin")
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("x", bytes(2000))
    with pytest.raises(DiskError, match=r"a\.zip needs"):
        extract(archive, tmp_path / "into")


def test_a_folder_in_the_way(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin").mkdir()
    with pytest.raises(NotelaError, match=r"a\.bin is a folder, and a file of this name is to be fetched"):
        download(f"{server.url}/a.bin", tmp_path / "a.bin")
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DiskError, match="cannot be written"):
        download(f"{server.url}/a.bin", tmp_path / "file" / "a.bin")


def test_a_folder_that_may_not_be_written(server: Server, tmp_path: Path) -> None:
    server.put_file("/a.bin", BODY)
    tmp_path.chmod(0o500)
    with bound_by_permissions(), pytest.raises(DiskError, match="choose a folder that you may write to"):
        download(f"{server.url}/a.bin", tmp_path / "a.bin")
    assert left_over(tmp_path) == []


def test_no_permission_is_one_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(DiskError, match=r"x cannot be written \(Permission denied\); choose a folder"),
        module.writing(Path("x")),
    ):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


# ---- archives


def make_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    return path


FILES = {"data/a.flac": BODY, "data/deep/b.txt": b"b" * 100, "empty.csv": b""}


def test_a_zip_is_taken_apart_and_again_without_writing(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", {**FILES, "__MACOSX/data/._a.flac": b"junk", "folder/": b""})
    seen: list[tuple[int, int | None]] = []
    paths = extract(archive, tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    assert {str(path.relative_to(tmp_path / "out")): path.read_bytes() for path in paths} == FILES
    assert not (tmp_path / "out" / "__MACOSX").exists()
    assert seen[-1] == (len(BODY) + 100, len(BODY) + 100)
    for path in paths:
        os.utime(path, (1, 1))
    extract(archive, tmp_path / "out")
    assert {path.stat().st_mtime for path in paths} == {1}


def test_only_what_is_missing_or_wrong_is_taken_out_again(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", FILES)
    extract(archive, tmp_path / "out")
    os.utime(tmp_path / "out" / "empty.csv", (1, 1))
    (tmp_path / "out" / "data" / "a.flac").write_bytes(BODY[:-1] + b"x")  # the same length, another content
    (tmp_path / "out" / "data" / "deep" / "b.txt").unlink()
    paths = extract(archive, tmp_path / "out")
    assert {str(path.relative_to(tmp_path / "out")): path.read_bytes() for path in paths} == FILES
    assert (tmp_path / "out" / "empty.csv").stat().st_mtime == 1


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/evil", "..\\evil", "C:\\evil", "a\\..\\..\\evil", "c:evil"]
)
def test_a_zip_that_reaches_outside_is_refused_whole(name: str, tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", {"good": b"good", name: b"evil"})
    with pytest.raises(NotelaError, match=r"a\.zip holds .*evil', which would be written elsewhere"):
        extract(archive, tmp_path / "out" / "deep")
    assert left_over(tmp_path) == ["a.zip"]


def test_links_are_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as opened:
        opened.writestr(link, "/etc")
    with pytest.raises(NotelaError, match="holds 'link'"):
        members(tmp_path / "a.zip")
    archive = make_zip(tmp_path / "b.zip", {"data/a": b"a"})
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotelaError, match="out/data/a leads out of"):
        extract(archive, tmp_path / "out")
    assert left_over(tmp_path / "elsewhere") == []


def test_a_damaged_zip_names_the_file(tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as opened:
        opened.writestr("good", b"good")
        opened.writestr("bad", b"BADBADBAD")
    archive.write_bytes(archive.read_bytes().replace(b"BADBADBAD", b"BADBAXBAD"))
    with pytest.raises(NotelaError, match=r"a\.zip is damaged at bad .*fetch it again"):
        extract(archive, tmp_path / "out")
    assert left_over(tmp_path / "out") == ["good"]
    for content in (b"no zip", b""):
        archive.write_bytes(content)
        with pytest.raises(NotelaError, match=r"a\.zip cannot be read as a zip"):
            extract(archive, tmp_path / "out")
    with pytest.raises(NotelaError, match=r"none\.zip cannot be read"):
        extract(tmp_path / "none.zip", tmp_path / "out")


def test_a_disk_that_fills_up_while_a_zip_is_taken_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = make_zip(tmp_path / "a.zip", FILES)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "copyfileobj", full)
        with pytest.raises(DiskError, match=r"a\.flac\.part cannot be written \(No space left"):
            extract(archive, tmp_path / "out")
    assert left_over(tmp_path / "out" / "data") == []
    assert len(extract(archive, tmp_path / "out")) == 3
