"""Everything that a folder of records can show: tables, figures, and one page that holds them together."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

from notela.bench import figures, tables, writing
from notela.bench.results import Results, varied
from notela.bench.writing import Table
from notela.runs import replacing


def write(folder: Path) -> list[Table]:
    """Tables into folder/tables, figures into folder/figures, and folder/README.md."""
    results = Results(folder)
    made = tables.everything(results)
    for name in ("tables", "figures"):
        (folder / name).mkdir(exist_ok=True)
    for table in made:
        for ending, writer in writing.WRITERS.items():
            _write(folder / "tables" / f"{table.name}.{ending}", writer(table))
    if results.protocol.searched:
        _write(folder / "tables" / "search.csv", _search(results))
    drawn = figures.everything(results)
    for name, figure in drawn.items():
        figures.write(figure, folder / "figures" / name)
    page = [f"# {results.protocol.title}", "", "Made by `notela bench` from the records in this folder, in per cent."]
    shared = tables.settings(results)
    page += ["", tables.caption(results), "", *shared]
    for table in made:  # what all of them say stands above
        brief = replace(table, caption="", notes=[note for note in table.notes if note not in shared])
        page += ["", f"## {table.name.replace('_', ' ').capitalize()}", "", writing.markdown(brief).rstrip()]
    for name in drawn:
        text = " ".join((getattr(figures, name).__doc__ or "").split())
        page += ["", f"## Figure: {name}", "", f"![{name}](figures/{name}.png)", "", text]
    _write(folder / "README.md", "\n".join(page) + "\n")
    kept = {table.name for table in made} | drawn.keys() | ({"search"} if results.protocol.searched else set())
    for place in ("tables", "figures"):  # of another protocol in this folder
        for path in (folder / place).iterdir():
            if path.stem not in kept:
                path.unlink()
    return made


def _search(results: Results) -> str:
    """Every candidate that survived the search: score (one seed, mean over the validation domains) and settings."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "chosen", f"validation_{results.protocol.metrics[0]}", "settings"])
    for method in results.protocol.rows:
        for preset, score in results.searched(method):
            values = preset.settings()
            told = "; ".join(f"{name} {values[name]}" for name in varied(method))
            writer.writerow([method, int(preset == results.chosen.get(method)), f"{score:.2f}", told])
    return out.getvalue()


def _write(path: Path, text: str) -> None:
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8")
