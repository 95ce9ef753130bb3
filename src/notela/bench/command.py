"""`notela bench`: from options to a finished folder, with a table on the terminal at the end."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table as RichTable

from notela.bench import plan, report
from notela.bench.progress import duration
from notela.bench.runner import bench
from notela.bench.suite import refer
from notela.bench.writing import Table
from notela.engines import Engine
from notela.engines.local import Local
from notela.engines.ray import Ray
from notela.errors import NotelaError
from notela.lock import only_one


def run(
    suite: str,
    to: Path | None,
    *,
    options: dict[str, str],
    trials: str | None,
    seeds: int | None,
    methods: str | None,
    changes: dict[str, str],
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
    folder = Path("results") / Path(suite.partition("?")[0]).stem if to is None else to
    reference = refer(suite, options)
    start, failures = time.monotonic(), []
    where, points = _engine(engine, workers, address, cpus, gpus), _number_of_trials(trials)
    if tables_only:
        plan.read(folder / "protocol.json")  # says so if nothing was run there
    try:
        with only_one(folder):
            if not tables_only:
                failures = bench(
                    reference,
                    folder,
                    where,
                    methods=None if methods is None else [name.strip() for name in methods.split(",")],
                    trials=points,
                    seeds=seeds,
                    changes=changes,
                    retry_failed=retry_failed,
                )
            with Console(stderr=True).status("making tables and figures"):
                tables = report.write(folder)
    except KeyboardInterrupt:
        Console(stderr=True).print(
            f"\nStopped. Finished runs are kept in {folder}; the same command goes on from there.", highlight=False
        )
        raise SystemExit(130) from None
    console.print(_shown(tables))
    console.print(
        f"Intervals, settings, more tables and figures: {folder}/README.md ({duration(time.monotonic() - start)})",
        highlight=False,
    )
    by_reason: dict[str, list[str]] = {}
    for failure in failures:
        by_reason.setdefault(failure.reason, []).append(failure.run)
    for reason, runs in list(by_reason.items())[:10]:
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        console.print(f"failed: {runs[0]}{more}: {reason}", highlight=False, markup=False)
    if len(by_reason) > 10:
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


def _number_of_trials(given: str | None) -> int | Literal["all"] | None:
    if given is None or given == "all":
        return given  # type: ignore[return-value]  # mypy does not narrow to the literal
    if given == "none":
        return 0
    if not given.isdigit() or int(given) < 1:
        raise NotelaError(f"trials={given!r} must be a whole number of at least 1, 'all', or 'none'")
    return int(given)


def _shown(tables: list[Table]) -> RichTable:
    """The first metric of the main table, without the intervals; lying on its side if there are many domains: narrow
    enough for a terminal."""
    table, metric = tables[0], tables[0].columns[0][1]
    mine = [i for i, (_, name) in enumerate(table.columns) if name == metric]
    heads = [table.columns[i][0] for i in mine]
    if len(mine) > len(table.rows) + 1:
        table = next(other for other in tables if other.name == "per_domain")
        mine, heads = list(range(len(table.columns))), [name for _, name in table.columns]
    shown = RichTable(title=f"Test domains: {metric}, %")
    shown.add_column(table.corner)
    for head in heads:
        shown.add_column(head, justify="right")
    for label, cells in table.rows:
        texts = [replace(cells[i], half=None).text() for i in mine]
        shown.add_row(label, *(f"[bold]{t}[/bold]" if cells[i].bold else t for t, i in zip(texts, mine, strict=True)))
    return shown
