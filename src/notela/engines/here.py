"""An engine without other processes: work is done in this one, item after item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from notela.engines import Outcome, attempt


class Here:
    """For little work, and for work within a worker."""

    slots = 1
    running = 0

    def __init__(self, cpus: int | None = None) -> None:
        self._cpus = cpus

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Outcome]:
        """Outcomes of work on items, in their order."""
        for item in items:
            yield replace(attempt(work, item, self._cpus), item=item)
