"""The tables of `benchmarks/beyond.py`, of invented records: what is counted, and what is left out."""

from __future__ import annotations

import json
import math
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conftest import GOOD
from notela.bench.plan import SOURCE, SUPERVISED
from test_plan import protocol

BETTER, SAME, WORSE = GOOD._replace(rank=6.6), GOOD._replace(rank=6.01), GOOD._replace(rank=5.4)


@pytest.fixture(scope="module")
def beyond() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "beyond.py"
    loader = SourceFileLoader("beyond", str(path))
    module = ModuleType(loader.name)
    loader.exec_module(module)
    return module


def cells(text: list[str], row: str) -> list[str]:
    (line,) = (line for line in text if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def run(beyond: ModuleType, change: float, after: Any, second: float = 0.0) -> Any:
    return beyond.Run("a place", "multilabel", [change, second], GOOD, after)


def test_the_verdicts_table_counts_by_truth_by_what_was_said_and_by_size(beyond: ModuleType) -> None:
    runs = [
        *[run(beyond, 4.0, BETTER)] * 3,  # helped, and called so
        run(beyond, 1.5, WORSE),  # refused
        run(beyond, 0.9, SAME),  # neither
        *[run(beyond, -6.0, WORSE)] * 2,  # caught
        run(beyond, -2.0, SAME, second=2.0),  # missed; the second metric says the opposite
    ]
    text = beyond.verdicts(runs, [run(beyond, -2.0, WORSE)._replace(bed="bad settings: a place")])
    assert cells(text, "a place") == ["3 / 0 / 1", "0 / 1 / 0", "0 / 1 / 2", "67 %", "25 %"]
    assert cells(text, "all bad settings") == ["0 / 0 / 0", "0 / 0 / 0", "0 / 0 / 1", "100 %", "–"]
    assert cells(text, "all") == ["3 / 0 / 1", "0 / 1 / 0", "0 / 1 / 3", "75 %", "25 %"]
    assert cells(text, "all, less those whose second metric says the opposite")[-2:] == ["100 %", "25 %"]
    assert cells(text, "mean of the beds of published and centred")[-2:] == ["67 %", "25 %"]
    assert cells(text, "-100 to -5") == ["2", "0 %", "0 %", "100 %"]
    assert cells(text, "-3 to -1") == ["2", "0 %", "50 %", "50 %"]
    assert cells(text, "1 to 3") == ["1", "0 %", "0 %", "100 %"]


def test_records_without_a_sign_that_the_verdict_reads_are_left_out(beyond: ModuleType) -> None:
    whole = GOOD._asdict()
    for task, sign, needed in (
        ("multilabel", "rank", True),
        ("multilabel", "backward_smoothness", False),
        ("singlelabel", "rank", False),
        ("singlelabel", "backward_smoothness", True),
    ):
        older = {name: value for name, value in whole.items() if name != sign}
        for without in (older, whole | {sign: math.nan}):
            assert beyond.is_read({"signals": [whole, whole]}, task)
            assert beyond.is_read({"signals": [whole, without]}, task) is not needed
            assert beyond.is_read({"signals": [without, whole]}, task) is not needed
    assert not beyond.is_read({"evaluation": {"map": [0.5]}}, "multilabel")


def test_what_auto_decided_is_read_off_notes_and_epochs(beyond: ModuleType, tmp_path: Path) -> None:
    code = dict.fromkeys((SOURCE, "notela", "auto", SUPERVISED), "code")
    places = ["a", "b", "c", "d", "e"]
    of = protocol(methods=["notela", "auto"], code=code, trials=0, seeds=1, validation=[], test=places)
    folder = tmp_path / "made-up"
    folder.mkdir()
    of.write(folder / "protocol.json")
    said = {
        "a": (["statistics of norm layers stay the source's: why"], 0),
        "b": (["statistics of norm layers were half-way to the target's when training began, in doubt: why"], 4),
        "c": (["statistics of norm layers were taken half-way from the target: why"], 2),
        "d": (["statistics of norm layers were taken from the target: why"], 4),
        "e": ([], 4),
    }
    chosen = {method: of.candidates(method)[0] for method in of.rows}
    with (folder / "test.jsonl").open("w") as file:
        for job in of.tests(chosen):
            ends = [0.4] * (job.preset.epochs if job.preset else 1)
            record: dict[str, Any] = {"key": job.key, "domain": job.domain, "seed": job.seed, "settings": job.settings}
            record["evaluation"] = dict.fromkeys(of.metrics, ends)
            if job.method in ("notela", "auto"):
                notes, kept = said[job.domain]
                record |= {"signals": [GOOD._asdict()] * (len(ends) + 2), "notes": notes, "kept": kept}
            file.write(json.dumps(record) + "\n")
    (bed,) = beyond.beds(tmp_path)
    assert cells(beyond.decisions([bed]), bed.name) == ["1", "1", "1", "1", "1", "3", "1", "1"]
    assert {method for _, method, _ in beyond.records(bed)} == {"notela", "auto"}
    assert len(list(beyond.watched(bed))) == 5  # not auto's


def test_in_the_mean_of_beds_each_counts_once_if_it_has_such_runs(beyond: ModuleType) -> None:
    runs = [run(beyond, -2.0, WORSE), run(beyond, 4.0, BETTER)]
    other = [run(beyond, 4.0, WORSE)._replace(bed="elsewhere")] * 3
    assert cells(beyond.verdicts([*runs, *other], []), "mean of the beds of published and centred")[-2:] == [
        "100 %",
        "50 %",
    ]
