"""Progress of a whole comparison: one live line on a terminal, a line now and then in a log file."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from notela.bench.plan import Job
from notela.engines import Engine

LOG_EVERY = 30.0  # seconds


class Progress:
    """Done, running, failed, left, time left."""

    def __init__(self, total: int, engine: Engine) -> None:
        self.total, self.done, self.failed = total, 0, 0
        self._engine, self._stage, self._loading = engine, "", ""
        self._left: Counter[str] = Counter()
        self._runs: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()
        self._last = 0.0
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, get_renderable=self._text, refresh_per_second=2, transient=True)

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def loading(self, domain: str) -> None:
        """A domain is loaded, or made, if it is not there yet."""
        self._loading = domain
        self._log()

    def stage(self, name: str, waiting: Iterable[Job], finished: int, failed: int) -> None:
        """A stage begins; so many of its runs were done by an earlier command."""
        self._loading, self._stage, self._left = "", name, Counter(job.method for job in waiting)
        self.done, self.failed = self.done + finished, self.failed + failed
        self._log(always=True)

    def ended(self, job: Job, seconds: float, failed: bool) -> None:
        """A run ended."""
        self._left[job.method] -= 1
        self.failed += failed
        self.done += not failed
        self._runs[job.method] += 1
        self._seconds[job.method] += seconds  # type: ignore[assignment]
        self._log()

    def _log(self, always: bool = False) -> None:
        if not self._console.is_terminal and (always or time.monotonic() - self._last > LOG_EVERY):
            self._last = time.monotonic()
            print(time.strftime("%H:%M:%S"), self._text().plain, file=sys.stderr, flush=True)

    def _text(self) -> Text:
        left = self.total - self.done - self.failed
        if self._loading:
            return Text(f"loading {self._loading}: {self.done} of {self.total} runs done, {left} left")
        return Text(
            f"{self._stage}: {self.done} of {self.total} runs done, {self._engine.running} running, "
            f"{self.failed} failed, {left} left{self._time_left(left)}"
        )

    def _time_left(self, left: int) -> str:
        """By the mean time of each method's runs so far; later stages count as the mean of all."""
        runs, seconds = self._runs.copy(), self._seconds.copy()
        if not runs or not left:
            return ""
        usual = seconds.total() / runs.total()
        now = self._left.copy()
        stage = sum(count * (seconds[m] / runs[m] if runs[m] else usual) for m, count in now.items())
        return f", about {duration((stage + usual * max(0, left - now.total())) / max(1, self._engine.slots))}"


def duration(seconds: float) -> str:
    """In words.

    >>> duration(42), duration(600), duration(10000)
    ('42 s', '10 min', '2.8 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
