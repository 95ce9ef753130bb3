"""`notela bench`: from options to a finished folder, with a table on the terminal at the end."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from notela.bench import plan, report
from notela.bench.progress import duration
from notela.bench.runner import bench, only_one
from notela.bench.tables import Table
from notela.engines import Engine
from notela.engines.local import Local
from notela.engines.ray import Ray
from notela.errors import NotelaError


def run(
    suite: str,
    to: Path | None,
    *,
    trials: str,
    seeds: int,
    methods: str | None,
    engine: str,
    workers: int | None,
    address: str | None,
    cpus: int,
    gpus: float,
    retry_failed: bool,
    tables_only: bool,
) -> None:
    """Run what is missing, write tables and figures, say where they are."""
    console = Console()
    folder = Path("results") / Path(suite).stem if to is None else to
    start, failures = time.monotonic(), []
    where, points = _engine(engine, workers, address, cpus, gpus), _number_of_trials(trials)
    if tables_only:
        plan.read(folder / "protocol.json")  # says so if nothing was run there
    try:
        with only_one(folder):
            if not tables_only:
                failures = bench(
                    suite,
                    folder,
                    where,
                    methods=None if methods is None else [name.strip() for name in methods.split(",")],
                    trials=points,
                    seeds=seeds,
                    retry_failed=retry_failed,
                )
            with Console(stderr=True).status("making tables and figures"):
                tables = report.write(folder)
    except KeyboardInterrupt:
        Console(stderr=True).print(
            f"\nStopped. Finished runs are kept in {folder}; the same command goes on from there.", highlight=False
        )
        raise SystemExit(130) from None
    console.print(_shown(tables[0]))
    console.print(
        f"Intervals, hindsight, ceiling, ablation and figures: {folder}/README.md "
        f"({duration(time.monotonic() - start)})",
        highlight=False,
    )
    counts = Counter(failures)
    for failure, times in list(counts.items())[:10]:
        console.print(f"failed{f' {times} times' if times > 1 else ''}: {failure.text}", highlight=False, markup=False)
    if len(counts) > 10:
        console.print(f"... {len(failures)} failed runs in all; the others are in the records.", highlight=False)
    if any(failure.unexpected for failure in failures):
        console.print("Not all of this was the methods' own doing; --retry-failed runs it again.", highlight=False)
        raise SystemExit(1)


def _engine(name: str, workers: int | None, address: str | None, cpus: int, gpus: float) -> Engine:
    if name == "ray":
        if workers is not None:
            raise NotelaError(f"workers={workers} is for the local engine; Ray fills the cluster by cpus and gpus")
        return Ray(address or "local", cpus, gpus)
    if address is not None or gpus:
        raise NotelaError("address and gpus are for --engine ray; the local engine takes workers and cpus")
    return Local(workers, cpus)


def _number_of_trials(given: str) -> int | None:
    if given == "all":
        return None
    if not given.isdigit() or int(given) < 1:
        raise NotelaError(f"trials={given!r} must be a whole number of at least 1, or 'all'")
    return int(given)


def _shown(table: Table) -> RichTable:
    """The first metric of the main table, without the intervals: narrow enough for a terminal."""
    metric = table.columns[0][1]
    mine = [i for i, (_, name) in enumerate(table.columns) if name == metric]
    shown = RichTable(title=f"Test domains: {metric}, %")
    shown.add_column(table.corner)
    for i in mine:
        shown.add_column(table.columns[i][0], justify="right")
    for label, cells in table.rows:
        texts = [replace(cells[i], half=None).text() for i in mine]
        shown.add_row(label, *(f"[bold]{t}[/bold]" if cells[i].bold else t for t, i in zip(texts, mine, strict=True)))
    return shown
