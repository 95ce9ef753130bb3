"""A table, and how it is written: Markdown, LaTeX (booktabs), CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cell:
    """A number, perhaps with an interval, or a text."""

    value: float | str
    half: float | None = None
    failed: int = 0
    bold: bool = False

    def text(self) -> str:
        """To one decimal; † where some seeds failed."""
        if isinstance(self.value, str):
            return self.value
        if math.isnan(self.value):
            return "–" + "†" * (self.failed > 0)
        interval = "" if self.half is None else f" ± {self.half:.1f}"
        return f"{self.value:.1f}{interval}" + "†" * (self.failed > 0)


@dataclass(frozen=True)
class Table:
    """Rows under columns, each column with a group (a domain, say) and a name (a metric)."""

    name: str
    heading: str
    caption: str
    """What every table of the comparison has to say: seeds, selection, protocol."""
    corner: str
    columns: list[tuple[str, str]]
    rows: list[tuple[str, list[Cell]]]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for label, cells in self.rows:
            assert len(cells) == len(self.columns), (self.name, label)


def markdown(table: Table) -> str:
    """With the caption above and notes below."""
    heads = [f"{group}: {name}" if group else name for group, name in _headers(table)]

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(text.replace("|", r"\|") for text in cells) + " |"

    lines = [f"**{table.heading}, in per cent.** {table.caption}".rstrip(), "", line([table.corner, *heads])]
    lines.append("|---|" + "---:|" * len(heads))
    for label, cells in table.rows:
        texts = [f"**{cell.text()}**" if cell.bold else cell.text() for cell in cells]
        lines.append(line([label, *texts]))
    return "\n".join([*lines, "", *_all_notes(table)]) + "\n"


def latex(table: Table) -> str:
    """A table environment; needs booktabs, graphicx and amssymb."""
    groups: list[tuple[str, int]] = []
    for group, _ in _headers(table):
        if groups and groups[-1][0] == group and group:
            groups[-1] = group, groups[-1][1] + 1
        else:
            groups.append((group, 1))
    lines = [
        r"\begin{table*}[t]",
        rf"\caption{{{_tex(f'{table.heading}, in per cent. {table.caption}')}}}",
        rf"\label{{tab:{table.name}}}",
        r"\centering",
    ]
    lines += [r"\footnotesize", r"\resizebox{\textwidth}{!}{", rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}"]
    lines.append(r"\toprule")
    if any(group for group, _ in groups):
        lines.append(" & ".join(["", *(rf"\multicolumn{{{n}}}{{c}}{{{_tex(g)}}}" for g, n in groups)]) + r" \\")
        start = 2
        for group, n in groups:
            if group:
                lines.append(rf"\cmidrule(lr){{{start}-{start + n - 1}}}")
            start += n
    lines.append(" & ".join([_tex(table.corner), *(_tex(name) for _, name in _headers(table))]) + r" \\")
    lines.append(r"\midrule")
    for label, cells in table.rows:
        texts = [_tex(cell.text()) for cell in cells]
        texts = [rf"\textbf{{{text}}}" if cell.bold else text for text, cell in zip(texts, cells, strict=True)]
        lines.append(" & ".join([_tex(label), *texts]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", "}", ""]
    lines += [rf"\par\smallskip\footnotesize {_tex(note)}" for note in _all_notes(table)]
    return "\n".join([*lines, r"\end{table*}"]) + "\n"


def as_csv(table: Table) -> str:
    """One line a cell, numbers in full."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([table.corner or "row", "group", "column", "value", "half_width", "failed_seeds", "best"])
    for label, cells in table.rows:
        for (group, name), cell in zip(table.columns, cells, strict=True):
            value = cell.value if isinstance(cell.value, str) else f"{cell.value:.6g}"
            writer.writerow(
                [
                    label,
                    group,
                    name,
                    value,
                    "" if cell.half is None else f"{cell.half:.6g}",
                    cell.failed,
                    int(cell.bold),
                ]
            )
    return out.getvalue()


WRITERS: dict[str, Callable[[Table], str]] = {"md": markdown, "tex": latex, "csv": as_csv}


def _headers(table: Table) -> list[tuple[str, str]]:
    """One metric for all: the domain alone is the heading."""
    names = {name for _, name in table.columns}
    if len(names) == 1 and len(table.columns) > 1:
        return [("", group) for group, _ in table.columns]
    return table.columns


def _all_notes(table: Table) -> list[str]:
    failed = any(cell.failed for _, cells in table.rows for cell in cells)
    return [*(["†: some seeds failed; the mean is of the others."] if failed else []), *table.notes]


_TEX = {
    **{c: "\\" + c for c in "&%$#_{}"},
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\to$",
    "∝": r"$\propto$",
    "α": r"$\alpha$",
    "λ": r"$\lambda$",
    "β": r"$\beta$",
    "✓": r"$\checkmark$",
    "–": "--",
    "†": r"$^\dagger$",
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "≥": r"$\ge$",
}


def _tex(text: str) -> str:
    """Escaped for LaTeX.

    >>> _tex("5 % of k_1 ± 2")
    '5 \\\\% of k\\\\_1 $\\\\pm$ 2'
    """
    return "".join(_TEX.get(c, c) for c in text)
