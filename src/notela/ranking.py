"""`notela select`: finished runs on the same data, ranked without labels by the signals that the verdict reads."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from notela.errors import NotelaError
from notela.guard import Signals
from notela.runs import provenance

ORDER = ("better", "unclear", "worse")


@dataclass(frozen=True)
class Ranked:
    """A run's place among others: its health, then its score."""

    folder: Path
    method: str
    health: str
    epoch: int
    signals: Signals | None
    """None where the run gave the model that it began with."""

    @property
    def place(self) -> tuple[int, float]:
        """Smaller is better."""
        return ORDER.index(self.health), -(self.signals.score if self.signals else 0.0)


def rank(folders: Sequence[str | os.PathLike[str]]) -> list[Ranked]:
    """Runs (the `run_dir` of `notela.adapt`, or folders that `notela.save` wrote), the best first."""
    runs = [_read(Path(folder)) for folder in folders]
    first, *others = runs
    for what in ("data", "model", "classes"):
        for folder, other in zip(folders[1:], others, strict=True):
            if other[0].get(what) != first[0].get(what):
                raise NotelaError(
                    f"{folders[0]} and {folder} are runs with different {what}; only runs of one model on the same "
                    "data can be compared"
                )
    ranked = []
    for folder, (run, history) in zip(folders, runs, strict=True):
        health, epoch = run["verdict"]["health"], run["verdict"]["epoch"]
        signals = {record["epoch"]: Signals(**record["signals"]) for record in history}.get(epoch)
        ranked.append(Ranked(Path(folder), run["settings"]["method"], health, epoch, signals))
    return sorted(ranked, key=lambda one: one.place)


def _read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    run = provenance(folder)
    if not run.get("finished") or "verdict" not in run:
        raise NotelaError(f"{folder} holds no finished run with a verdict; finish it with the call that began it")
    try:
        return run, [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise NotelaError(
            f"{folder / 'history.jsonl'} cannot be read ({error}); restore it, or leave that run out"
        ) from error


def show(folders: Sequence[Path]) -> None:
    """A table, the best first."""
    table = Table(title="Runs ranked without labels")
    for column in ("run", "method", "signs", "epoch", "score", "agreement", "classes"):
        table.add_column(column, justify="left" if column in ("run", "method", "signs") else "right")
    root = os.path.commonpath([folder.absolute().parent for folder in folders])
    for one in rank(folders):
        s = one.signals
        numbers = ("–",) * 3 if s is None else (f"{s.score:.3f}", f"{s.agreement:.0%}", f"{s.classes:.1f}")
        table.add_row(os.path.relpath(one.folder.absolute(), root), one.method, one.health, str(one.epoch), *numbers)
    console = Console()
    console.print(table)
    console.print(
        "Signs are not proof: look at some of what the first two disagree on. Epoch 0: the model a run began with.",
        highlight=False,
    )
