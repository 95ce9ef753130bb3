"""Many independent pieces of work on one machine's cores or on a cluster, behind one small face.

    with Local(workers=2) as engine:
        for outcome in engine.map(work, items):
            ...

`work` is a function that can be imported, `items` are values that can be pickled. Outcomes come as they finish; work
that raises is an outcome with an error, and a worker that dies is replaced and its item tried again. Leaving the loop
or the `with` stops everything. Every item gets the same number of threads, whatever the engine: that keeps results bit
for bit the same.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from notela.errors import NotelaError


@dataclass(frozen=True)
class Outcome:
    """What became of an item: a value, or one sentence on why there is none."""

    item: Any = None
    value: Any = None
    error: str | None = None
    trace: str | None = None
    """Where an unexpected error came from."""
    seconds: float = 0.0


class Engine(Protocol):
    """Where work runs."""

    running: int
    """How many items are being worked on right now."""
    slots: int
    """How many can be."""

    def __enter__(self) -> Engine: ...

    def __exit__(self, *exception: object) -> None: ...

    def map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Outcome]:
        """Outcomes of work on items, in the order in which they finish."""
        ...


def attempt(work: Callable[[Any], Any], item: Any, cpus: int | None) -> Outcome:
    """Work on one item with so many threads (None: as many as there are); what it raises becomes an error. (The engine
    knows the item.)"""
    if cpus is not None and "torch" in sys.modules:  # if not, it will read the environment
        sys.modules["torch"].set_num_threads(cpus)
    start = time.perf_counter()
    try:
        return Outcome(value=work(item), seconds=time.perf_counter() - start)
    except Exception as problem:
        return replace(failure(problem), seconds=time.perf_counter() - start)


def failure(problem: Exception) -> Outcome:
    """An exception as an outcome; a user's mistake needs no traceback."""
    if isinstance(problem, NotelaError):
        return Outcome(error=str(problem))
    return Outcome(error=f"{type(problem).__name__}: {problem}", trace="".join(traceback.format_exception(problem)))


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
