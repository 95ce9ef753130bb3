"""One command at a time in a folder."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from notela.errors import NotelaError

SILENT = 1.0  # seconds; workers of one command take turns, and nobody need know


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """The folder, made if need be, and its lock: a second command waits for the first, then does what is left."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        try:
            lock.acquire(timeout=SILENT)
        except Timeout:
            print(
                f"another notela is at work in {folder}; waiting for it (Ctrl-C to stop)", file=sys.stderr, flush=True
            )
            lock.acquire()
    except OSError as error:
        raise NotelaError(
            f"the folder {folder} cannot be made or written to ({error.strerror}); choose another place"
        ) from error
    try:
        yield
    finally:
        lock.release()
