"""One command at a time in a folder."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from notela import lock
from notela.errors import NotelaError
from notela.lock import only_one


def test_the_second_waits_for_the_first_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "SILENT", 0.1)
    events: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with only_one(tmp_path / "new" / "folder"):
            inside.set()
            leave.wait(20)
            events.append("first leaves")

    def second() -> None:
        with only_one(tmp_path / "new" / "folder"):
            events.append("second enters")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(20)
    threads[1].start()
    threads[1].join(0.5)
    assert events == []
    leave.set()
    for thread in threads:
        thread.join(20)
    assert events == ["first leaves", "second enters"]
    said = capsys.readouterr().err
    assert said == f"another notela is at work in {tmp_path / 'new' / 'folder'}; waiting for it (Ctrl-C to stop)\n"


def test_a_folder_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(NotelaError, match="file cannot be made or written to .*; choose another place"),
        only_one(tmp_path / "file"),
    ):
        raise AssertionError("not reached")
