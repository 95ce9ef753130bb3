"""Records: cut off anywhere, damaged, of foreign domains, on a full disk."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import notela
from notela.bench.records import Records

DOMAINS = ("north", "west")


def record(key: str, domain: str = "north", **more: Any) -> dict[str, Any]:
    return {"key": key, "domain": domain, **more}


def line(of: dict[str, Any]) -> bytes:
    return json.dumps(of).encode() + b"\n"


def stored(path: Path) -> list[dict[str, Any]]:
    """Every line of a file, each of which must be whole."""
    content = path.read_bytes()
    assert content == b"" or content.endswith(b"\n")
    return [json.loads(each) for each in content.splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "validation.jsonl"


def test_what_is_appended_is_there_at_once_and_after_reopening(path: Path) -> None:
    records = Records(path, DOMAINS)
    assert len(records) == 0
    assert not path.exists()
    given = [record("a", seed=0, evaluation={"map": [0.1, 1 / 3]}), record("b", "west", note="∝ \n α")]
    for number, each in enumerate(given, 1):
        records.append(each)
        assert len(records) == number
        assert stored(path) == given[:number]
    for where in (records, Records(path, DOMAINS)):
        assert [where.get("a"), where.get("b"), where.get("c")] == [*given, None]
        assert where.done("b") == given[1]


LINES = [line(record("a", seed=3)), line(record("b", "west", x=[0.5, "\u00e9"])), line(record("c", error="none"))]


def test_cut_off_anywhere_whole_lines_count_and_the_rest_goes(path: Path) -> None:
    for cut in range(len(b"".join(LINES)) + 1):
        content = b"".join(LINES)[:cut]
        path.write_bytes(content)
        whole = [each for number, each in enumerate(LINES, 1) if cut >= sum(map(len, LINES[:number]))]
        keys = ["a", "b", "c"][: len(whole)]
        records = Records(path, DOMAINS)
        assert [key for key in "abcde" if records.get(key)] == keys, cut
        assert path.read_bytes() == content, cut  # reading leaves it alone
        for new in ("d", "e"):
            records.append(record(new))
        assert stored(path) == [*map(json.loads, whole), record("d"), record("e")], cut
        again = Records(path, DOMAINS)
        assert [key for key in "abcde" if again.get(key)] == [*keys, "d", "e"], cut


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b'{"key": "b", "domain": "nor',
        b"[]",
        b"null",
        b"3",
        b'"key domain"',
        b'{"key": "b"}',
        b'{"domain": "north"}',
        b"\xff\xfe\x00",
        b"\x00" * 40,
        LINES[0][:-1] + LINES[1][:-1],
    ],
)
@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_bad_line_before_the_end_is_named(bad: bytes, number: int, path: Path) -> None:
    lines = LINES.copy()
    lines.insert(number - 1, bad + b"\n")
    path.write_bytes(b"".join(lines))
    with pytest.raises(notela.NotelaError, match=rf"validation.jsonl, line {number} is not a record"):
        Records(path, DOMAINS)


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_foreign_domain_is_not_seen_when_reading(place: int, path: Path) -> None:
    lines = LINES.copy()
    lines.insert(place, line(record("t", "south")))
    path.write_bytes(b"".join(lines))
    records = Records(path, DOMAINS)
    assert records.get("t") is records.done("t") is None
    assert [key for key in "abc" if records.get(key)] == ["a", "b", "c"]
    assert len(records) == 3
    assert Records(path, [*DOMAINS, "south"]).get("t") == record("t", "south")


def test_a_foreign_record_does_not_hide_one_of_the_same_key(path: Path) -> None:
    path.write_bytes(LINES[0] + line(record("a", "south")))
    assert Records(path, DOMAINS).get("a") == json.loads(LINES[0])


def test_a_foreign_domain_is_refused_when_writing(path: Path) -> None:
    records = Records(path, DOMAINS)
    records.append(record("a"))
    before = path.read_bytes()
    with pytest.raises(notela.NotelaError, match=r"validation.jsonl .*'south'"):
        records.append(record("t", "south"))
    assert path.read_bytes() == before
    assert records.get("t") is None
    assert len(records) == 1


def test_the_last_record_of_a_key_wins(path: Path) -> None:
    records = Records(path, DOMAINS)
    for number in range(3):
        records.append(record("a", number=number))
        records.append(record("b", number=-number))
    for where in (records, Records(path, DOMAINS)):
        assert len(where) == 2
        assert where.get("a") == record("a", number=2)
        assert where.get("b") == record("b", number=-2)


def test_failed_runs_are_known_but_not_done(path: Path) -> None:
    records = Records(path, DOMAINS)
    records.append(record("a", error="out of memory"))
    records.append(record("b", error=""))
    for where in (records, Records(path, DOMAINS)):
        assert where.get("a") == record("a", error="out of memory")
        assert where.done("a") is where.done("b") is where.done("c") is None
    records.append(record("a", evaluation={"map": [0.5]}))
    for where in (records, Records(path, DOMAINS)):
        assert where.done("a") == record("a", evaluation={"map": [0.5]})
    records.append(record("a", error="again"))
    assert records.done("a") is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_json_cannot_hold_is_not_written(value: object, path: Path) -> None:
    records = Records(path, DOMAINS)
    records.append(record("a"))
    before = path.read_bytes()
    with pytest.raises((ValueError, TypeError)):
        records.append(record("b", value=value))
    assert path.read_bytes() == before
    assert records.get("b") is None


# ---- disks that refuse


@contextmanager
def no_fsync(_: Path) -> Iterator[None]:
    """The disk takes the line, then says that it did not."""

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        yield


@contextmanager
def ten_bytes_left(path: Path) -> Iterator[None]:
    """Real: the line is written in part."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = len(path.read_bytes().rpartition(b"\n")[0]) + 1  # without what is torn
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("full", [no_fsync, ten_bytes_left])
@pytest.mark.parametrize("torn", [b"", b'{"key', LINES[2][:-1], b"x" * 500], ids=["whole", "short", "line", "long"])
def test_a_full_disk_leaves_earlier_records_intact(full: Any, torn: bytes, path: Path) -> None:
    path.write_bytes(LINES[0] + LINES[1] + torn)
    records = Records(path, DOMAINS)
    with full(path), pytest.raises(notela.NotelaError, match=r"cannot write to .*validation.jsonl"):
        records.append(record("d", text="y" * 50))
    assert records.get("d") is None
    reopened = Records(path, DOMAINS)
    assert [key for key in "abcd" if reopened.get(key)] == ["a", "b"]
    records.append(record("e"))  # there is space again
    assert stored(path) == [*map(json.loads, LINES[:2]), record("e")]


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    records = Records(tmp_path / "gone" / "test.jsonl", DOMAINS)
    with pytest.raises(notela.NotelaError, match=r"cannot write to .*gone/test.jsonl \(No such file or directory\)"):
        records.append(record("a"))
