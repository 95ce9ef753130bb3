"""A file of JSON lines that is appended to and survives being cut off anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from notela.errors import NotelaError


class Lines:
    """One process writes at a time. A line counts once it is whole; a torn last line is what a killed process left, and
    goes when the file is next written to."""

    def __init__(self, path: Path) -> None:
        self.path, self._torn = path, 0

    def __iter__(self) -> Iterator[Any]:
        """What the whole lines hold, in order."""
        return (value for _, value in self.places())

    def at(self, places: Iterable[int]) -> Iterator[Any]:
        """What the lines at some places hold, in the order of the places."""
        with open(self.path, "rb") as file:
            for place in places:
                file.seek(place)
                yield json.loads(file.readline())

    def places(self) -> Iterator[tuple[int, Any]]:
        """Where each whole line begins, and what it holds."""
        if not self.path.exists():
            return
        begin = 0
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    self._torn = len(line)
                    return
                try:
                    yield begin, json.loads(line)
                except ValueError as error:
                    raise NotelaError(
                        f"{self.path}, line {number} is not a record ({error}); delete that line, and what it stood "
                        "for will be done again"
                    ) from error
                begin += len(line)

    def append(self, value: Any) -> None:
        """Write a line, whole and on disk, or not at all. The file must have been read to its end before."""
        line = json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            with open(self.path, "ab", buffering=0) as file:
                start = file.tell() - self._torn
                file.truncate(start)
                self._torn = 0
                try:
                    while line:
                        line = line[file.write(line) :]
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(start)
                    raise
        except OSError as error:
            raise NotelaError(
                f"cannot write to {self.path} ({error.strerror}); what was recorded before is intact"
            ) from error
