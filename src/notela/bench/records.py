"""Records of runs: a file of JSON lines, appended to as runs end, that survives being cut off anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from notela.errors import NotelaError
from notela.lines import Lines

Record = dict[str, Any]


class Records:
    """Records by key, of the given domains only: nobody who holds those of the validation domains can see a test score.

    One process writes at a time (the runner holds the folder's lock).
    """

    def __init__(self, path: Path, domains: Iterable[str]) -> None:
        self.path, self._domains = path, frozenset(domains)
        self._by_key: dict[str, Record] = {}
        self._lines = Lines(path)
        for number, record in enumerate(self._lines, 1):
            try:
                key, domain = record["key"], record["domain"]
            except (TypeError, KeyError) as error:
                raise NotelaError(
                    f"{path}, line {number} is not a record ({error}); delete that line, and its run will be repeated"
                ) from error
            if domain in self._domains:  # others are of a domain that was renamed or given up
                self._by_key[key] = record

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: str) -> Record | None:
        """The last record under a key."""
        return self._by_key.get(key)

    def done(self, key: str) -> Record | None:
        """The record of a run that ended well."""
        record = self._by_key.get(key)
        return None if record is None or "error" in record else record

    def append(self, record: Record) -> None:
        """Write a record, whole and on disk, or not at all."""
        if record["domain"] not in self._domains:
            raise NotelaError(f"{self.path} keeps to its own domains, and {record['domain']!r} is none of them")
        self._lines.append(record)
        self._by_key[record["key"]] = record
