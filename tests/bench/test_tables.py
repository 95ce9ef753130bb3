"""Tables and figures of an invented comparison, against plain doubles."""

from __future__ import annotations

import csv
import functools
import io
import itertools
import json
import math
import random
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given
from hypothesis import strategies as st

import notela
from notela.bench import figures, plan, report, tables, writing
from notela.bench.plan import SOURCE, SUPERVISED, Job, Protocol
from notela.bench.results import Results, estimate
from notela.bench.writing import Cell, Table
from notela.methods.base import Preset
from test_plan import protocol

PERCENT = 100
METRICS = ("map", "cmap")
TITLES = {SOURCE: "Source", "adabn": "AdaBN", "tent": "TENT", "notela": "NOTELA"}
CEILING = "Supervised (uses target labels)"
LEVELS = {SOURCE: 0.4, "adabn": 0.6, "tent": 0.61, "notela": 0.65, SUPERVISED: 0.8}
Runs = dict[tuple[str, str, int], dict[str, list[float]]]
Fails = Callable[[Job], bool]


class Folder:
    """A comparison as `notela bench` leaves it, with invented curves, and what a plain reading of it gives."""

    def __init__(self, path: Path, of: Protocol, fails: Fails = lambda _: False, spread: float = 0.01) -> None:
        self.path, self.protocol, self.fails, self.spread = path, of, fails, spread
        self.runs: Runs = {}
        self.known: set[str] = set()
        self.lines: dict[str, list[str]] = {"validation": [], "test": []}
        path.mkdir(exist_ok=True)
        of.write(path / "protocol.json")
        self._run("validation", of.search())
        self.chosen = {method: best for method in of.rows if (best := self._best(method)) is not None}
        self._run("validation", of.repeats(self.chosen))
        self._run("test", of.tests(self.chosen))
        self.write()

    def write(self) -> None:
        for name, lines in self.lines.items():
            (self.path / f"{name}.jsonl").write_text("".join(lines))

    def _run(self, file: str, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.key in self.known:
                continue
            self.known.add(job.key)
            record = {"key": job.key, "domain": job.domain, "seed": job.seed, "settings": job.settings}
            if self.fails(job):
                record["error"] = "the loss became NaN"
            else:
                self.runs[job.domain, str(job.settings), job.seed] = record["evaluation"] = self._curves(job)
            if job.probabilities:
                rng = np.random.default_rng(len(self.lines[file]))
                names = self.protocol.class_names
                record["probabilities"] = {name: sorted(rng.random(5).round(4).tolist()) for name in names}
            self.lines[file].append(json.dumps(record) + "\n")

    def _curves(self, job: Job) -> dict[str, list[float]]:
        varied = {
            name: job.settings[name] for name in job.settings if name not in plan._LATER
        }  # no other luck by these
        rng = np.random.default_rng([ord(c) for c in f"{job.domain} {varied} {job.seed}"])
        epochs = 1 if job.preset is None else job.preset.epochs
        place = 0.1 * np.random.default_rng([ord(c) for c in job.domain]).random()
        level = LEVELS[job.method] - place + 0.03 * job.settings.get("noise", False)  # so that NOTELA is chosen noisy
        return {
            metric: (level + self.spread * rng.normal(size=epochs)).round(6).tolist()
            for metric in self.protocol.metrics
        }

    def _best(self, method: str) -> Preset | None:
        metric, scores = self.protocol.metrics[0], []
        for candidate in self.protocol.candidates(method):
            keys = [(domain, str(candidate.settings()), 0) for domain in self.protocol.validation]
            if all(key in self.runs for key in keys):
                scores.append((statistics.fmean(self.runs[key][metric][-1] for key in keys), candidate))
        return max(scores, key=lambda pair: pair[0])[1] if scores else None

    # ---- the plain doubles

    def source(self, domain: str, metric: str) -> float:
        return PERCENT * self.runs[domain, str({"method": SOURCE}), 0][metric][0]

    def by_seed(self, domains: Sequence[str], preset: Preset, metric: str, pick: Callable[..., float]) -> list[float]:
        """The mean over the domains of each seed that ended well on all of them."""
        found = []
        for seed in range(self.protocol.seeds):
            runs = [self.runs.get((domain, str(preset.settings()), seed)) for domain in domains]
            if None not in runs:
                found.append(statistics.fmean(PERCENT * pick(run[metric]) for run in runs))
        return found

    def last(self, domains: Sequence[str], method: str, metric: str, preset: Preset | None = None) -> Cell:
        if method == SOURCE:
            return Cell(statistics.fmean(self.source(domain, metric) for domain in domains))
        return self._cell(self.by_seed(domains, preset or self.chosen[method], metric, lambda curve: curve[-1]))

    def oracle(self, domains: Sequence[str], method: str, metric: str) -> Cell:
        return self._cell(self.by_seed(domains, self.chosen[method], metric, max))

    def _cell(self, values: list[float]) -> Cell:
        failed = self.protocol.seeds - len(values)
        if not values:
            return Cell(math.nan, None, failed)
        half = None
        if len(values) > 1:
            low, high = scipy.stats.t.interval(
                0.95, len(values) - 1, loc=statistics.fmean(values), scale=scipy.stats.sem(values)
            )
            half = (high - low) / 2
        return Cell(statistics.fmean(values), half, failed)

    def share(self, domains: Sequence[str], method: str) -> Cell:
        """Of every seed, against the ceiling's mean."""
        metric = self.protocol.metrics[0]
        source, top = (self.last(domains, m, metric).value for m in (SOURCE, SUPERVISED))
        ends = self.by_seed(domains, self.chosen[method], metric, lambda curve: curve[-1])
        return self._cell([PERCENT * (end - source) / (top - source) for end in ends])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Everything ended well."""
    return Folder(tmp_path_factory.mktemp("whole"), protocol())


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Some candidates failed, AdaBN failed with seed 1 in the south, and NOTELA with all but seed 0 in the east."""

    def fails(job: Job) -> bool:
        if job.domain in ("north", "west"):
            return job.method == "tent" and job.seed == 0 and job.settings["schedule"] == "cosine"
        place = (job.domain, job.method, job.seed)
        return place in {("south", "adabn", 1), ("east", "notela", 1), ("east", "notela", 2)}

    return Folder(tmp_path_factory.mktemp("broken"), protocol(), fails)


@functools.cache
def made(path: Path) -> dict[str, Table]:
    return {table.name: table for table in tables.everything(Results(path))}


def same(cell: Cell, expected: Cell) -> None:
    assert cell.value == pytest.approx(expected.value, abs=1e-9, nan_ok=True)
    assert cell.failed == expected.failed
    assert (cell.half is None) == (expected.half is None)
    if expected.half is not None:
        assert cell.half == pytest.approx(expected.half, abs=1e-9)


# ---- means and intervals


@given(st.lists(st.floats(-1e3, 1e3, allow_subnormal=False).map(lambda x: round(x, 6)), min_size=2, max_size=12))
@example([1.0, 1.0, 1.0])
@example([0.0, 100.0])
def test_estimate_is_students_interval(values: list[float]) -> None:
    found = estimate(values, failed=3)
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert (found.seeds, found.failed) == (len(values), 3)
    error = scipy.stats.sem(values)
    if error < 1e-9:
        assert found.half == pytest.approx(0, abs=1e-6)
    else:
        low, high = scipy.stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=error)
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9, abs=1e-7)


def test_estimate_of_one_value_has_no_interval_and_of_none_no_mean() -> None:
    one, none = estimate([3.5]), estimate([], failed=5)
    assert (one.mean, one.half, one.seeds, one.failed) == (3.5, 0.0, 1, 0)
    assert math.isnan(none.mean)
    assert (none.seeds, none.failed) == (0, 5)


# ---- the tables


@pytest.mark.parametrize("state", ["folder", "broken"])
@pytest.mark.parametrize("name", ["test", "validation"])
def test_last_epoch_of_every_method_and_domain(state: str, name: str, request: pytest.FixtureRequest) -> None:
    of: Folder = request.getfixturevalue(state)
    table, domains = made(of.path)[name], getattr(of.protocol, name)
    places = [*([domain] for domain in domains), domains]
    heads = [*domains, "average"]
    assert table.columns == [(head, metric) for head in heads for metric in ("mAP", "cmAP")]
    assert [label for label, _ in table.rows] == [*TITLES.values(), CEILING]
    for method, (_, cells) in zip([*TITLES, SUPERVISED], table.rows, strict=True):
        expected = [of.last(place, method, metric) for place in places for metric in ("map", "cmap")]
        for cell, other in zip(cells, expected, strict=True):
            same(cell, other)


@pytest.mark.parametrize("state", ["folder", "broken"])
def test_domains_by_methods(state: str, request: pytest.FixtureRequest) -> None:
    of: Folder = request.getfixturevalue(state)
    table = made(of.path)["per_domain"]
    assert table.columns == [("", title) for title in [*TITLES.values(), CEILING]]
    assert [label for label, _ in table.rows] == ["south", "east", "average"]
    for place, (_, cells) in zip((["south"], ["east"], ["south", "east"]), table.rows, strict=True):
        for method, cell in zip([*TITLES, SUPERVISED], cells, strict=True):
            same(cell, of.last(place, method, "map"))


@pytest.mark.parametrize("state", ["folder", "broken"])
def test_hindsight_is_the_best_epoch_of_each_run(state: str, request: pytest.FixtureRequest) -> None:
    of: Folder = request.getfixturevalue(state)
    table, domains = made(of.path)["hindsight"], of.protocol.test
    names = [name for _, name in table.columns]
    source = {domain: of.source(domain, "map") for domain in domains}
    assert [label for label, _ in table.rows] == [*list(TITLES.values())[1:], CEILING]
    for method, (_, cells) in zip([*list(TITLES)[1:], SUPERVISED], table.rows, strict=True):
        row = dict(zip(names, cells, strict=True))
        last, oracle = of.last(domains, method, "map"), of.oracle(domains, method, "map")
        each = {domain: of.last([domain], method, "map") for domain in domains}
        same(row["last epoch"], last)
        same(row["oracle epoch"], oracle)
        fall, gain = oracle.value - last.value, last.value - statistics.fmean(source.values())
        worst = min(cell.value - source[domain] for domain, cell in each.items())
        for name, value in {"fall after best": fall, "average": gain, "worst domain": worst}.items():
            same(row[name], Cell(value, failed=last.failed))
        better = sum(cell.value - (cell.half or 0) > source[domain] for domain, cell in each.items())
        worse = sum(cell.value + (cell.half or 0) < source[domain] for domain, cell in each.items())
        assert row["domains better / worse"].value == f"{better} / {worse}"
        same(row["share of gap, %"], of.share(domains, method))
        assert oracle.value > last.value


def test_better_and_worse_are_counted_by_intervals(tmp_path: Path) -> None:
    """Of four domains the method is surely better on one, surely worse on one, and unsure on two."""
    of = Folder(tmp_path, protocol(test=["a", "b", "c", "d"], methods=["tent"]))
    ends = {"a": (0.7, 0.71, 0.72), "b": (0.1, 0.11, 0.12), "c": (0.3, 0.5, 0.7), "d": (0.2, 0.4, 0.5)}
    for number, line in enumerate(of.lines["test"]):
        record = json.loads(line)
        adapted = record["settings"]["method"] == "tent"
        end = ends[record["domain"]][record["seed"]] if adapted else 0.45
        record["evaluation"] = {metric: [0.0, end] for metric in METRICS}
        of.lines["test"][number] = json.dumps(record) + "\n"
    of.write()
    (_, cells), *_ = made(tmp_path)["hindsight"].rows
    assert cells[5].value == "1 / 1"


@pytest.mark.parametrize("state", ["folder", "broken"])
def test_share_of_the_gap(state: str, request: pytest.FixtureRequest) -> None:
    of: Folder = request.getfixturevalue(state)
    table = made(of.path)["gap"]
    assert [name for _, name in table.columns] == ["south", "east", "average"]
    assert [label for label, _ in table.rows] == ["AdaBN", "TENT", "NOTELA"]
    for method, (_, cells) in zip(("adabn", "tent", "notela"), table.rows, strict=True):
        for place, cell in zip((["south"], ["east"], ["south", "east"]), cells, strict=True):
            same(cell, of.share(place, method))


def test_no_share_where_supervision_gains_nothing_or_there_is_none(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LEVELS, SUPERVISED, 0.2)
        Folder(tmp_path / "useless", protocol())
    Folder(tmp_path / "none", protocol(), lambda job: job.method == SUPERVISED)
    for name in ("useless", "none"):
        found = made(tmp_path / name)
        assert {cell.text() for _, cells in found["gap"].rows for cell in cells} == {"–"}
        assert not any(cell.bold for _, cells in found["gap"].rows for cell in cells)
        assert (CEILING in dict(found["test"].rows)) == (name == "useless")


def test_ablation_removes_one_ingredient_a_row(folder: Folder) -> None:
    table, full = made(folder.path)["ablation"], folder.chosen["notela"]
    variants = {
        "without dropout": replace(full, noise=False),
        "without softness": replace(full, method=replace(full.method, alpha=0.0)),
        "without Laplacian": replace(full, method=replace(full.method, lambda_=0.0)),
        "NOTELA": full,
    }
    rows = dict(table.rows)
    assert list(rows) == ["source, not adapted", *variants]
    places = [(domains, metric) for domains in (folder.protocol.validation, folder.protocol.test) for metric in METRICS]
    for (domains, metric), cell in zip(places, rows["source, not adapted"][3:], strict=True):
        same(cell, folder.last(domains, SOURCE, metric))
    for number, (label, preset) in enumerate(variants.items()):
        assert [cell.value for cell in rows[label][:3]] == ["✓" if i != number else "" for i in range(3)]
        for (domains, metric), cell in zip(places, rows[label][3:], strict=True):
            same(cell, folder.last(domains, "notela", metric, preset))


def test_an_ingredient_that_was_not_chosen_is_noted(tmp_path: Path) -> None:
    of = Folder(tmp_path, protocol(methods=["notela"], overrides={"noise": False, "epochs": 4}))
    table = made(tmp_path)["ablation"]
    assert not of.chosen["notela"].noise
    rows = dict(table.rows)
    assert list(rows) == ["source, not adapted", "without softness", "without Laplacian", "NOTELA"]
    assert [cell.value for cell in rows["NOTELA"][:3]] == ["", "✓", "✓"]
    assert "The chosen settings have no dropout to remove." in table.notes
    assert "ablation" not in made(Folder(tmp_path / "tent", protocol(methods=["tent"])).path)


def test_failed_seeds_are_marked(broken: Folder) -> None:
    table = made(broken.path)["test"]
    south = [i for i, (place, _) in enumerate(table.columns) if place == "south"]
    east = [i for i, (place, _) in enumerate(table.columns) if place == "east"]
    rows = dict(table.rows)
    assert all(rows["AdaBN"][i].text().endswith("†") for i in range(6) if i not in east)  # and so the average
    assert not any("†" in rows["AdaBN"][i].text() for i in east)
    assert all(re.fullmatch(r"\d+\.\d†", rows["NOTELA"][i].text()) for i in east)  # one seed: no interval
    assert not any("†" in rows["NOTELA"][i].text() for i in south)
    assert not any("†" in cell.text() for label in ("Source", "TENT", CEILING) for cell in rows[label])
    for write in (writing.markdown, writing.latex):
        assert "some seeds failed" in write(table)
        assert "some seeds failed" not in write(made(broken.path)["validation"])


def test_failures_of_the_search_are_noted(broken: Folder, tmp_path: Path) -> None:
    candidates = broken.protocol.candidates("tent")
    dead = sum(candidate.schedule == "cosine" for candidate in candidates)
    assert 0 < dead < len(candidates)
    notes = made(broken.path)["test"].notes
    assert f"TENT: {dead} of {len(candidates)} candidates failed in the search." in notes
    assert not any(note.startswith(("NOTELA:", "AdaBN:")) for note in notes)
    Folder(tmp_path, protocol(), lambda job: job.method == "adabn")
    found = made(tmp_path)["test"]
    assert "AdaBN" not in dict(found.rows)
    assert "AdaBN: no candidate survived the search." in found.notes


def test_nothing_survived_the_search(tmp_path: Path) -> None:
    Folder(tmp_path, protocol(), lambda job: job.preset is not None)
    with pytest.raises(notela.NotelaError, match="no candidate of any method survived"):
        Results(tmp_path)


@pytest.mark.parametrize("dead", ["south", "east"])
def test_a_domain_where_every_seed_failed_has_no_number(dead: str, tmp_path: Path) -> None:
    of = Folder(tmp_path, protocol(), lambda job: job.domain == dead and job.method == "tent")
    found = made(tmp_path)
    texts = dict(zip(found["test"].columns, dict(found["test"].rows)["TENT"], strict=True))
    assert texts[dead, "mAP"].text() == texts["average", "mAP"].text() == "–†"
    row = dict(zip([name for _, name in found["hindsight"].columns], found["hindsight"].rows[1][1], strict=True))
    assert row["average"].text() == row["share of gap, %"].text() == "–†"
    other = "east" if dead == "south" else "south"
    same(row["worst domain"], Cell(of.last([other], "tent", "map").value - of.source(other, "map"), failed=3))


# ---- the best in bold


def meets(a: Cell, b: Cell) -> bool:
    lows = [cell.value - (cell.half or 0) for cell in (a, b)]
    highs = [cell.value + (cell.half or 0) for cell in (a, b)]
    return max(lows) <= min(highs)


def bold(cells: Sequence[Cell], among: Sequence[int]) -> list[bool]:
    """Brute force: the highest of those that never failed, and all of them whose intervals meet its own."""
    able = [i for i in among if not isinstance(cells[i].value, str) and cells[i].value == cells[i].value]
    able = [i for i in able if cells[i].failed == 0]
    if not able:
        return [False] * len(cells)
    best = sorted(able, key=lambda i: cells[i].value)[-1]
    return [i in able and meets(cells[i], cells[best]) for i in range(len(cells))]


NUMBERS = st.integers(0, 40).map(float) | st.just(math.nan) | st.just("✓")
CELLS = st.builds(Cell, NUMBERS, st.none() | st.integers(0, 6).map(float), st.sampled_from((0, 0, 0, 2)))


@given(st.lists(st.tuples(CELLS, st.booleans()), min_size=1, max_size=8))
def test_best_agrees_with_brute_force(drawn: list[tuple[Cell, bool]]) -> None:
    cells, among = [cell for cell, _ in drawn], [i for i, (_, mine) in enumerate(drawn) if mine]
    found = tables._best(cells, among)
    assert [cell.bold for cell in found] == bold(cells, among)
    assert str([replace(cell, bold=False) for cell in found]) == str(cells)  # as text: NaN is not itself


@pytest.mark.parametrize("state", ["folder", "broken"])
def test_the_best_of_each_domain_is_bold_and_never_the_ceiling(state: str, request: pytest.FixtureRequest) -> None:
    of: Folder = request.getfixturevalue(state)
    found = made(of.path)
    for name in ("test", "validation", "gap", "ablation", "per_domain"):
        rows = found[name].rows
        labels = [label for label, _ in rows]
        columns = [list(column) for column in zip(*(cells for _, cells in rows), strict=True)]
        if name == "per_domain":
            labels, columns = [title for _, title in found[name].columns], [cells for _, cells in rows]
        among = [i for i, label in enumerate(labels) if label != CEILING]
        for column in columns:
            assert [cell.bold for cell in column] == bold(column, among), name
        assert not any(cell.bold for column in columns for i, cell in enumerate(column) if i not in among)
    assert not any(cell.bold for _, cells in found["hindsight"].rows for cell in cells)  # the oracle wins nothing


def test_bold_has_something_to_decide(folder: Folder) -> None:
    """In the invented comparison some columns have one best and others have several."""
    columns = list(zip(*(cells for _, cells in made(folder.path)["test"].rows), strict=True))
    assert {sum(cell.bold for cell in column) for column in columns} >= {1, 2}


# ---- as text

NAMES = ["fog_1 & 50%", r"a\b {c} $d #e ~f ^g"]


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Names that LaTeX would trip over."""
    title = "ponds_2 & 100 % {wet}"
    return Folder(tmp_path_factory.mktemp("awkward"), protocol(test=NAMES, title=title))


FOLDERS = ("folder", "broken", "awkward")


def split(row: str) -> list[str]:
    """Cells of a Markdown row; an escaped bar belongs to its cell."""
    assert row.startswith("| ")
    assert row.endswith(" |")
    return re.split(r"(?<!\\)\|", row)[1:-1]


@pytest.mark.parametrize("state", FOLDERS)
def test_markdown_rows_are_as_long_as_their_header(state: str, request: pytest.FixtureRequest) -> None:
    for table in made(request.getfixturevalue(state).path).values():
        text = writing.markdown(table)
        header, rule, *rows = [line for line in text.splitlines() if line.startswith("|")]
        width = 1 + len(table.columns)
        assert len(split(header)) == width
        assert re.fullmatch(r"\|---\|(---:\|)+", rule)
        assert rule.count("|") == width + 1
        assert len(rows) == len(table.rows)
        for row, (label, cells) in zip(rows, table.rows, strict=True):
            assert [cell.strip() for cell in split(row)] == [
                label,
                *(f"**{cell.text()}**" if cell.bold else cell.text() for cell in cells),
            ]
        assert all(note in text for note in table.notes)
        assert table.caption in text


def test_a_bar_in_a_name_does_not_split_a_markdown_cell(tmp_path: Path) -> None:
    for table in made(Folder(tmp_path, protocol(test=["fog|rain", "east"])).path).values():
        rows = [line for line in writing.markdown(table).splitlines() if line.startswith("|")]
        assert {len(split(row)) for i, row in enumerate(rows) if i != 1} == {1 + len(table.columns)}, table.name


@pytest.mark.parametrize("state", FOLDERS)
def test_latex_is_balanced_and_its_rows_are_equally_long(state: str, request: pytest.FixtureRequest) -> None:
    for table in made(request.getfixturevalue(state).path).values():
        text = writing.latex(table)
        bare = re.sub(r"\\[\\{}&%$#_]", "", text)  # without escaped characters and ends of rows
        depth = list(itertools.accumulate({"{": 1, "}": -1}.get(c, 0) for c in bare))
        assert min(depth) >= 0
        assert depth[-1] == 0
        stack: list[str] = []
        for kind, name in re.findall(r"\\(begin|end)\{(\w+\*?)\}", text):
            if kind == "begin":
                stack.append(name)
            else:
                assert stack.pop() == name
        assert stack == []
        width = 1 + len(table.columns)
        assert re.search(r"\\begin\{tabular\}\{(l?c+)\}", text)[1] == "l" + "c" * (width - 1)
        body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
        rows = [line for line in body.splitlines() if line.endswith(r" \\")]
        assert len(rows) in (len(table.rows) + 1, len(table.rows) + 2)
        for row in rows:
            cells = re.split(r"(?<!\\)&", row)
            spans = [int(n[1]) if (n := re.search(r"\\multicolumn\{(\d+)\}", cell)) else 1 for cell in cells]
            assert sum(spans) == width, row
        for start, end in re.findall(r"\\cmidrule\(lr\)\{(\d+)-(\d+)\}", body):
            assert 2 <= int(start) <= int(end) <= width


@pytest.mark.parametrize("state", FOLDERS)
def test_latex_holds_no_special_character_bare(state: str, request: pytest.FixtureRequest) -> None:
    for table in made(request.getfixturevalue(state).path).values():
        text = writing.latex(table)
        text.encode("ascii")  # every sign of ours has a command
        body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
        around = re.sub(r"\\label\{.*\}", "", text.replace(body, ""))
        mathless = re.sub(r"\$[^$ ]+\$", "", re.sub(r"\\[%$#_{}&]", "", around))
        assert not re.search(r"[%#_$&~^]", mathless), re.search(r".{20}[%#_$&~^].{20}", mathless)
        assert not re.search(r"[%#_~]", re.sub(r"\\[%#_]", "", body))


def test_latex_of_awkward_names(awkward: Folder) -> None:
    text = writing.latex(made(awkward.path)["per_domain"])
    assert r"fog\_1 \& 50\% & " in text
    assert r"a\textbackslash{}b \{c\} \$d \#e \textasciitilde{}f \textasciicircum{}g & " in text
    assert r"Protocol ponds\_2 \& 100 \% \{wet\}: 8$\times$8 $\to$ 3 classes" in text


@pytest.mark.parametrize("state", FOLDERS)
def test_csv_read_back_gives_the_numbers(state: str, request: pytest.FixtureRequest) -> None:
    for table in made(request.getfixturevalue(state).path).values():
        heads, read = table.columns, csv.reader(io.StringIO(writing.as_csv(table)))
        assert next(read)[1:] == ["group", "column", "value", "half_width", "failed_seeds", "best"]
        cells = [(label, column, cell) for label, row in table.rows for column, cell in zip(heads, row, strict=True)]
        for (*names, value, half, failed, best), (label, column, cell) in zip(read, cells, strict=True):
            assert names == [label, *column]
            if isinstance(cell.value, str):
                assert value == cell.value
            else:
                assert float(value) == pytest.approx(cell.value, rel=1e-5, nan_ok=True)
            assert (half == "") == (cell.half is None)
            assert cell.half is None or float(half) == pytest.approx(cell.half, rel=1e-5)
            assert (int(failed), bool(int(best))) == (cell.failed, cell.bold)


# ---- incomplete folders, and order


@pytest.mark.parametrize("gone", [1, 2, 5])
@pytest.mark.parametrize("stage", ["search", "repeats", "tests"])
def test_an_incomplete_folder_says_how_many_runs_are_missing(stage: str, gone: int, tmp_path: Path) -> None:
    of = Folder(tmp_path, protocol())
    jobs = of.protocol.search() if stage == "search" else getattr(of.protocol, stage)(of.chosen)
    known = {job.key for job in of.protocol.search()} if stage == "repeats" else set()
    without = random.Random(gone).sample(sorted({job.key for job in jobs} - known), gone)
    for lines in of.lines.values():
        lines[:] = [line for line in lines if json.loads(line)["key"] not in without]
    of.write()
    with pytest.raises(notela.NotelaError, match=rf"^{gone} runs? ha.* no record in .*`notela bench made-up` again"):
        Results(tmp_path)


def test_a_run_that_two_rows_share_is_missed_once(tmp_path: Path) -> None:
    """NOTELA without noise is its own ablation."""
    of = Folder(tmp_path, protocol(methods=["notela"], overrides={"noise": False}))
    lost = of.protocol.job("south", "notela", of.chosen["notela"], 1).key
    of.lines["test"] = [line for line in of.lines["test"] if lost not in line]
    of.write()
    with pytest.raises(notela.NotelaError, match=r"^1 run"):
        Results(tmp_path)


def test_an_empty_folder_and_one_without_tests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(notela.NotelaError, match="nothing was run in that folder yet"):
        Results(tmp_path)
    of = Folder(tmp_path, protocol())
    (tmp_path / "test.jsonl").unlink()
    missing = len({job.key for job in of.protocol.tests(of.chosen)})
    with pytest.raises(notela.NotelaError, match=f"^{missing} runs have no record"):
        Results(tmp_path)
    del of.protocol.domains["east"]
    of.protocol.write(tmp_path / "protocol.json")
    with pytest.raises(notela.NotelaError, match="nothing was run on east yet"):
        Results(tmp_path)


def test_pages_are_the_same_whatever_the_order_of_the_lines(tmp_path: Path) -> None:
    """Every byte of tables and figures."""
    small = protocol(validation=["north"], test=["south"], methods=["tent", "notela"])
    of, pages = Folder(tmp_path, small, lambda job: (job.domain, job.method, job.seed) == ("south", "tent", 1)), []
    for number, name in enumerate(("first", "second")):
        place = tmp_path / name
        place.mkdir()
        small.write(place / "protocol.json")
        for file, lines in of.lines.items():
            random.Random(number).shuffle(shuffled := lines.copy())
            (place / f"{file}.jsonl").write_text("".join(shuffled))
        report.write(place)
        files = [path for path in place.rglob("*") if path.suffix in (".md", ".tex", ".csv", ".svg", ".png")]
        pages.append({str(path.relative_to(place)): path.read_bytes() for path in files})
    names = ("test", "hindsight", "gap", "per_domain", "validation", "ablation")
    written = {f"tables/{name}.{ending}" for name in names for ending in ("md", "tex", "csv")}
    written |= {f"figures/{name}.{ending}" for name in FIGURES for ending in ("svg", "png")}
    assert pages[0].keys() == written | {"README.md", "tables/search.csv"}
    assert {name for name in pages[0] if pages[0][name] != pages[1][name]} == set()
    page = pages[0]["README.md"].decode()
    assert all(f"](figures/{name}.png)" in page for name in FIGURES)


# ---- figures

FIGURES = ("epochs", "gains", "probabilities", "sensitivity")


def test_figures_show_the_numbers(folder: Folder) -> None:
    drawn = figures.everything(Results(folder.path))
    assert tuple(drawn) == FIGURES
    methods, domains = ["adabn", "tent", "notela"], folder.protocol.test
    for domain, axis in zip(domains, drawn["epochs"].axes, strict=True):
        source = folder.source(domain, "map")
        lines = {line.get_label(): line.get_ydata() for line in axis.get_lines()}
        assert lines["Source"] == pytest.approx([source] * 2)
        for method in methods:
            runs = [folder.runs[domain, str(folder.chosen[method].settings()), seed]["map"] for seed in range(3)]
            means = [source, *(PERCENT * statistics.fmean(epoch) for epoch in zip(*runs, strict=True))]
            assert lines[TITLES[method]] == pytest.approx(means)
    for domain, axis in zip(domains, drawn["gains"].axes, strict=True):
        for method, dot in zip(methods, axis.containers, strict=True):
            cell, source = folder.last([domain], method, "map"), folder.source(domain, "map")
            assert dot.lines[0].get_xdata() == pytest.approx([cell.value - source])
            (bar,) = dot.lines[2][0].get_segments()
            assert bar[:, 0] == pytest.approx([cell.value - cell.half - source, cell.value + cell.half - source])
    titles = [axis.get_title() for axis in drawn["probabilities"].axes]
    worst = min(domains, key=lambda domain: folder.source(domain, "map"))
    assert [worst in title for title in titles] == [False, True, True, True]
    shown = [axis for axis in drawn["sensitivity"].axes if axis.get_visible()]
    assert {axis.get_title() for axis in shown} >= {"learning rate", "schedule", "alpha", "lambda", "k"}
    for axis in shown:
        dots = [y for line in axis.get_lines() if line.get_marker() == "o" for y in line.get_ydata()]
        assert len(dots) == 8  # every candidate of TENT and NOTELA, at some value


def test_probabilities_need_source_data_and_both_methods(tmp_path: Path) -> None:
    for name, of in {"a": protocol(has_source_data=False), "b": protocol(methods=["adabn", "notela"])}.items():
        drawn = figures.everything(Results(Folder(tmp_path / name, of).path))
        assert tuple(drawn) == ("epochs", "gains", "sensitivity")


def test_no_class_is_frequent_everywhere(tmp_path: Path) -> None:
    """With many classes the most frequent ones of two domains may have none in common."""
    of = Folder(tmp_path, protocol())
    for number, line in enumerate(of.lines["test"]):
        record = json.loads(line)
        if "probabilities" in record:
            name = "crow" if record["domain"] == SOURCE else "jay"
            record["probabilities"] = {name: record["probabilities"][name]}
            of.lines["test"][number] = json.dumps(record) + "\n"
    of.write()
    assert "probabilities" not in figures.everything(Results(tmp_path))


def test_figures_survive_failed_runs(tmp_path: Path) -> None:
    Folder(tmp_path, protocol(), lambda job: job.domain == "south" and job.method in ("tent", "notela"))
    assert set(figures.everything(Results(tmp_path))) >= {"epochs", "gains", "sensitivity"}
