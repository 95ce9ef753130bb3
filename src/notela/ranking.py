"""`notela select`: finished runs on the same data, ranked without labels by the signals that the verdict reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from notela.errors import NotelaError
from notela.guard import compare, rise
from notela.runs import provenance
from notela.signals import Signals

ORDER = ("better", "unclear", "worse")


@dataclass(frozen=True)
class Ranked:
    """A run's place among others: its health, then by how much its score rose."""

    folder: Path
    method: str
    health: str
    epoch: int
    signals: Signals
    """Of the model that it gave."""
    rise: float
    """Of the score, against the source."""

    @property
    def place(self) -> tuple[int, float]:
        """Smaller is better."""
        return ORDER.index(self.health), -self.rise


def rank(folders: Sequence[str | os.PathLike[str]]) -> list[Ranked]:
    """Runs (the `run_dir` of `notela.adapt`, or folders that `notela.save` wrote), the best first."""
    runs = [_read(Path(folder)) for folder in folders]
    first, *others = runs
    for what in ("data", "model", "task", "classes"):
        for folder, other in zip(folders[1:], others, strict=True):
            if other.get(what) != first.get(what):
                raise NotelaError(
                    f"{folders[0]} and {folder} are runs with different {what}; only runs of one model on the same "
                    "data can be compared"
                )
    ranked = []
    for folder, run in zip(folders, runs, strict=True):
        said = run["verdict"]
        try:
            before, signals = (Signals(**said[when]) for when in ("before", "after"))
        except (KeyError, TypeError):
            raise NotelaError(f"{folder} was made by an older notela, which read other signs; run it again") from None
        health, _ = compare(before, signals, run["task"])
        rose = rise(before, signals, run["task"])
        ranked.append(Ranked(Path(folder), run["settings"]["method"], health, said["epoch"], signals, rose))
    return sorted(ranked, key=lambda one: one.place)


def _read(folder: Path) -> dict[str, Any]:
    run = provenance(folder)
    if not run.get("finished") or "verdict" not in run:
        raise NotelaError(f"{folder} holds no finished run with a verdict; finish it with the call that began it")
    return run


def show(folders: Sequence[Path]) -> None:
    """A table, the best first."""
    table = Table(title="Runs ranked without labels")
    table.add_column("run", overflow="fold", min_width=18)
    for column in ("method", "signs", "epoch", "score", "classes", "mix"):
        table.add_column(column, justify="left" if column in ("method", "signs") else "right")
    root = os.path.commonpath([folder.absolute().parent for folder in folders])
    for one in rank(folders):
        s = one.signals
        numbers = (f"{one.rise:+.3f}", f"{s.classes:.1f}", f"{s.mix:.0%}")
        table.add_row(os.path.relpath(one.folder.absolute(), root), one.method, one.health, str(one.epoch), *numbers)
    console = Console()
    console.print(table)
    console.print(
        "Score: by how much better than the source's answers fit to who is similar; mix: how far the mix of predicted "
        "classes moved; epoch 0: none was kept. Signs are not proof: look at some of what the first two disagree on.",
        highlight=False,
    )
