"""The bar on the terminal: epoch, rows, loss and rate."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from notela.data import Unlabelled
from notela.methods.base import Preset


class Progress:
    """Shows a run's progress on stderr; by default only where stderr is a terminal."""

    def __init__(self, wanted: bool | None, preset: Preset, data: Unlabelled) -> None:
        self._epochs, self._rows = preset.epochs, len(data)
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not (sys.stderr.isatty() if wanted is None else wanted),
            transient=True,
        )
        self._title = preset.method.name
        self._task = self._bar.add_task(self._title, total=self._epochs * self._rows, loss="", rate="")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def start_epoch(self, epoch: int) -> None:
        """Epochs that an earlier call finished count as done."""
        self._title = f"epoch {epoch}/{self._epochs}"
        self._bar.update(self._task, completed=(epoch - 1) * self._rows, description=self._title)

    def sweep(self, done: int) -> None:
        """So many rows of a pass over the whole set, before the epoch's steps."""
        part = "" if done == self._rows else f", all rows: {done / self._rows:.0%}"
        self._bar.update(self._task, description=self._title + part)

    def advance(self, rows: int, loss: float | None) -> None:
        """One batch is through."""
        speed = self._bar.tasks[self._task].speed
        self._bar.update(
            self._task,
            advance=rows,
            loss="" if loss is None else f"loss {loss:.4f}",
            rate="" if speed is None else f"{speed:.0f} rows/s",
        )
