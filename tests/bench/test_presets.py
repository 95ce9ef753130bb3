"""Comparisons without a search: published settings, some domains with more seeds, strengths, numbers of others."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest

import notela
from conftest import Here
from notela import methods
from notela.bench import figures, plan, report, tables
from notela.bench.plan import SOURCE, Protocol
from notela.bench.results import Results
from notela.bench.runner import bench
from notela.bench.select import select
from notela.bench.writing import Table
from test_plan import everything, make, protocol, suite
from test_runner import write_suite
from test_tables import Folder as SearchedFolder

ALL = ["adabn", "tent", "notela"]


def preset_protocol(**changes: Any) -> Protocol:
    """Nothing searched; one seed, three in the south."""
    given = {"trials": 0, "validation": [], "seeds": 1, "more_seeds": {"south": 3}, "test": ["south", "east", "hill"]}
    return protocol(**{**given, **changes})


class Folder(SearchedFolder):
    """A folder of records whose settings are the published ones."""

    def _best(self, method: str) -> Any:
        (only,) = self.protocol.candidates(method)
        return only


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    levels = {"south": ["pond", 1], "east": ["pond", 2], "hill": ["wood", 1]}
    published = {"average": {SOURCE: 56.7, "adabn": 80.1, "notela": 82.2}, "hill": {"tent": 12.5}}
    of = preset_protocol(levels=levels, published=published, published_by="elsewhere, with a larger network")
    return Folder(tmp_path_factory.mktemp("presets"), of)


def table(folder: Folder, name: str) -> Table:
    return {table.name: table for table in tables.everything(Results(folder.path))}[name]


# ---- the plan


@pytest.mark.parametrize("task", ["singlelabel", "multilabel"])
def test_the_only_candidate_is_the_published_preset(task: str) -> None:
    of = preset_protocol(task=task, overrides={"batch_size": 16})
    name = "image" if task == "singlelabel" else "audio-multilabel"
    for method in of.methods:
        (only,) = of.candidates(method)
        assert only.settings() == {**methods.preset(method, name).settings(), "batch_size": 16}


def test_jobs_are_the_methods_on_the_test_domains_as_often_as_asked() -> None:
    of = preset_protocol()
    chosen = {method: of.candidates(method)[0] for method in of.rows}
    jobs = everything(of, chosen)
    runs = [(job.domain, job.method, job.seed) for job in jobs]
    expected = {(domain, SOURCE, 0) for domain in ("south", "east", "hill", SOURCE)}
    expected |= {(domain, method, 0) for domain in ("south", "east", "hill") for method in ALL}
    expected |= {("south", method, seed) for method in ALL for seed in (1, 2)}
    assert len(runs) == len(expected) == of.count()
    assert set(runs) == expected  # no ceiling, no ablation


def test_nothing_is_chosen_by_any_score() -> None:
    choices = select(preset_protocol(), None)  # type: ignore[arg-type]  # there are no records to look at
    assert list(choices) == ALL
    assert all(math.isnan(choice.score) and choice.tried == 0 for choice in choices.values())


def test_defaults_depend_on_whether_there_are_validation_domains() -> None:
    searched, not_searched = suite(("north",), ("south",)), suite((), ("south",))
    assert plan.make(searched, "ponds").trials == 24
    assert plan.make(searched, "ponds", trials="all").trials is None
    assert plan.make(not_searched, "ponds").trials == 0
    with_none = plan.make(searched, "ponds", trials=0)
    assert (with_none.trials, with_none.validation, with_none.searched) == (0, [], False)
    for trials in (3, "all"):
        with pytest.raises(notela.NotelaError, match="ponds has no validation domains .*: --trials none"):
            make(not_searched, trials=trials)


def test_asking_for_seeds_is_for_all_domains() -> None:
    of = suite((), ("south", "east"), seeds=1, more_seeds={"south": 3})
    assert [plan.make(of, "ponds").seeds_of(domain) for domain in ("south", "east")] == [3, 1]
    assert [plan.make(of, "ponds", seeds=2).seeds_of(domain) for domain in ("south", "east")] == [2, 2]


def test_what_a_suite_adds_is_written_and_read_back(tmp_path: Path) -> None:
    of = suite(
        (),
        ("south", "east"),
        more_seeds={"south": 7},
        levels={"south": ("pond", 1.0), "east": ("pond", 2.0)},
        published={"average": {"tent": 3.5}},
        published_by="elsewhere",
    )
    made = plan.make(of, "ponds")
    made.write(tmp_path / "protocol.json")
    back = plan.read(tmp_path / "protocol.json")
    assert back == made
    assert back.levels == {"south": ["pond", 1.0], "east": ["pond", 2.0]}
    assert (back.more_seeds, back.published, back.published_by) == (
        {"south": 7},
        {"average": {"tent": 3.5}},
        "elsewhere",
    )


# ---- tables


def test_intervals_where_there_are_several_seeds_and_averages_of_the_common_ones(folder: Folder) -> None:
    found = table(folder, "test")
    row = dict(zip(found.columns, dict(found.rows)["TENT"], strict=True))
    preset, runs = folder.chosen["tent"], folder.runs

    def last(domain: str, seed: int) -> float:
        return 100 * runs[domain, str(preset.settings()), seed]["map"][-1]

    assert row["south", "mAP"].value == pytest.approx(statistics.fmean(last("south", seed) for seed in range(3)))
    assert row["south", "mAP"].half is not None
    assert row["east", "mAP"].value == pytest.approx(last("east", 0))
    average = row["average", "mAP"]
    assert average.value == pytest.approx(statistics.fmean(last(domain, 0) for domain in ("south", "east", "hill")))
    assert all(row[place, "mAP"].half is None for place in ("east", "hill", "average"))
    assert all(cell.failed == 0 for cell in row.values())


def test_published_numbers_stand_below_their_row_and_are_never_bold(folder: Folder) -> None:
    found = table(folder, "per_domain")
    labels = [label for label, _ in found.rows]
    theirs = "elsewhere, with a larger network"
    assert labels == ["south", "east", "hill", f"hill {theirs}", "average", f"average {theirs}"]
    last = dict(zip([name for _, name in found.columns], found.rows[-1][1], strict=True))
    assert {name: cell.text() for name, cell in last.items()} == {
        "Source": "56.7",
        "AdaBN": "80.1",
        "TENT": "–",
        "NOTELA": "82.2",
    }
    assert not any(cell.bold for cell in last.values())
    assert any(cell.bold for cell in found.rows[-2][1])


def test_no_table_of_what_was_not_done(folder: Folder) -> None:
    written = report.write(folder.path)
    assert [table.name for table in written] == ["test", "hindsight", "per_domain"]
    assert not (folder.path / "tables" / "search.csv").exists()
    heads = [name for _, name in table(folder, "hindsight").columns]
    assert "share of gap, %" not in heads
    better = heads.index("domains better / worse")
    assert {cells[better].text() for _, cells in table(folder, "hindsight").rows} == {"–"}  # one seed tells nothing
    page = (folder.path / "README.md").read_text()
    assert "the published ones for this kind of task; nothing was searched" in page
    assert "over seeds for south (3); elsewhere, and in averages, one seed" in page
    assert "nan" not in page.replace("nano", "")


@pytest.mark.parametrize(("seeds", "text"), [(1, "Last epoch, one seed. Best in bold. "), (2, "over 2 seeds, last")])
def test_captions_say_how_many_seeds(seeds: int, text: str, tmp_path: Path) -> None:
    made = Folder(tmp_path / "x", preset_protocol(seeds=seeds, more_seeds={}))
    assert text in tables.caption(Results(made.path))


def test_captions_where_every_domain_has_more_seeds(tmp_path: Path) -> None:
    more = dict.fromkeys(("south", "east", "hill"), 3)
    made = Folder(tmp_path / "x", preset_protocol(more_seeds=more))
    assert "over 3 seeds, last epoch" in tables.caption(Results(made.path))


def test_tables_of_another_protocol_in_the_folder_go(tmp_path: Path) -> None:
    searched = SearchedFolder(tmp_path / "x", protocol())
    report.write(searched.path)
    assert (searched.path / "tables" / "ablation.md").exists()
    report.write(Folder(tmp_path / "x", preset_protocol()).path)
    names = {path.stem for place in ("tables", "figures") for path in (tmp_path / "x" / place).iterdir()}
    assert names == {"test", "hindsight", "per_domain", "epochs", "gains", "probabilities"}


# ---- the figure of strengths


def test_the_figure_of_strengths_shows_the_numbers(folder: Folder) -> None:
    results = Results(folder.path)
    figure = figures.everything(results)["levels"]
    axes = [axis for axis in figure.axes if axis.get_visible()]
    assert [axis.get_title() for axis in axes] == ["pond", "wood"]
    for axis, domains in zip(axes, (["south", "east"], ["hill"]), strict=True):
        lines = {line.get_label(): line for line in axis.lines}
        for method, label in {SOURCE: "Source", "adabn": "AdaBN", "tent": "TENT", "notela": "NOTELA"}.items():
            expected = [results.last([domain], method, "map").mean for domain in domains]
            assert lines[label].get_ydata() == pytest.approx(expected)
            assert list(lines[label].get_xdata()) == list(range(1, len(domains) + 1))


def test_no_figure_without_strengths_or_a_search(tmp_path: Path) -> None:
    drawn = figures.everything(Results(Folder(tmp_path / "x", preset_protocol()).path))
    assert {"levels", "sensitivity"} & drawn.keys() == set()
    assert {"epochs", "gains"} <= drawn.keys()


# ---- the whole of it


def test_a_folder_of_ones_own_without_validation(tmp_path: Path) -> None:
    path = write_suite(tmp_path / "suite", "singlelabel")
    text = path.read_text()
    path.write_text(text.replace('[validation]\nhill = "hill"\n', ""))
    assert bench(str(path), tmp_path / "out", Here(), methods=ALL, seeds=2) == []
    assert [table.name for table in report.write(tmp_path / "out")] == ["test", "hindsight", "per_domain"]
    records = (tmp_path / "out" / "test.jsonl").read_text().splitlines()
    assert len(records) == 2 * (1 + 3 * 2) + 1  # two domains, source and three methods with two seeds; and at home
    again = bench(str(path), tmp_path / "out", Here(), methods=ALL, seeds=2)
    assert again == []
    assert (tmp_path / "out" / "test.jsonl").read_text().splitlines() == records
