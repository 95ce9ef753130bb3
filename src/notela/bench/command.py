"""`notela bench`: from options to a finished folder, with a table on the terminal at the end."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from notela.bench import report
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
    if tables_only:
        tables = _report(folder)
    else:
        try:
            where = _engine(engine, workers, address, cpus, gpus)
            with only_one(folder):
                failures = bench(
                    suite,
                    folder,
                    where,
                    methods=None if methods is None else [name.strip() for name in methods.split(",")],
                    trials=_number_of_trials(trials),
                    seeds=seeds,
                    retry_failed=retry_failed,
                )
                tables = _report(folder)
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
    for failure in failures[:10]:
        console.print(f"failed: {failure}", highlight=False, markup=False)
    if failures:
        more = f" ({len(failures)} in all)" if len(failures) > 10 else ""
        console.print(f"Failed runs are recorded and left out{more}; --retry-failed runs them again.", highlight=False)
        raise SystemExit(1)


def _report(folder: Path) -> list[Table]:
    with Console(stderr=True).status("making tables and figures"):
        return report.write(folder)


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
