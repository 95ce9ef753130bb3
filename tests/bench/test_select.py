"""Selection against a brute-force double, on invented scores."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import notela
from notela.bench.plan import SUPERVISED, Job, Protocol
from notela.bench.records import Records
from notela.bench.select import select
from test_plan import protocol

PLACES = ["north", "west", "hill"]
Score = Callable[[Job], float | None]  # None: the run failed


def record(job: Job, score: float | None) -> dict[str, Any]:
    """Earlier epochs and the second metric would choose otherwise."""
    result = {"error": "NaN"} if score is None else {"evaluation": {"map": [1 - score, score], "cmap": [0, 1 - score]}}
    return {"key": job.key, "domain": job.domain, "seed": job.seed, "settings": job.settings, **result}


def records(path: Path, of: Protocol, score: Score, without: frozenset[str] = frozenset()) -> Records:
    """The search as a file, in an order of its own."""
    lines = [json.dumps(record(job, score(job))) + "\n" for job in of.search() if job.key not in without]
    random.Random(1).shuffle(lines)
    path.write_text("".join(lines))
    return Records(path, of.validation)


def double(of: Protocol, score: Score) -> dict[str, tuple[dict[str, Any], int, int]]:
    """By method: settings of the first of the best, how many were tried, how many failed somewhere."""
    found = {}
    for method in of.rows:
        best, best_sum, failed = None, None, 0
        for candidate in of.candidates(method):
            scores = [score(of.job(domain, method, candidate, 0)) for domain in of.validation]
            if None in scores:
                failed += 1
                continue
            total = sum(map(Fraction, scores))
            if best_sum is None or total > best_sum:
                best, best_sum = candidate, total
        if best is not None:
            found[method] = best.settings(), len(of.candidates(method)), failed
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "validation.jsonl"


@pytest.mark.parametrize("seed", range(25))
def test_select_agrees_with_brute_force(seed: int, path: Path) -> None:
    rng = random.Random(seed)
    of = protocol(validation=PLACES[: rng.randint(1, 3)], trials=rng.randint(1, 12))
    levels, failures = rng.choice((2, 5, 1000)), rng.choice((0, 0.1, 0.5))  # few levels: many ties
    drawn = {
        job.key: None if rng.random() < failures else rng.randint(0, levels) / 1024  # sums of such are exact
        for job in of.search()
    }
    expected, known = double(of, lambda job: drawn[job.key]), records(path, of, lambda job: drawn[job.key])
    if not expected:
        with pytest.raises(notela.NotelaError, match="no candidate of any method survived"):
            select(of, known)
        return
    chosen = select(of, known)
    found = {method: (choice.preset.settings(), choice.tried, choice.failed) for method, choice in chosen.items()}
    assert found == expected
    for method, choice in chosen.items():
        scores = [drawn[of.job(domain, method, choice.preset, 0).key] for domain in of.validation]
        assert choice.score == pytest.approx(sum(scores) / len(scores))


def test_the_mean_over_domains_decides_not_the_best_domain(path: Path) -> None:
    of = protocol(validation=PLACES, methods=["tent"])
    first, second = of.candidates("tent")[:2]
    table = {(str(first.settings()), "hill"): 1.0} | {(str(second.settings()), place): 0.5 for place in PLACES}
    chosen = select(of, records(path, of, lambda job: table.get((str(job.settings), job.domain), 0.0)))
    assert chosen["tent"].preset == second
    assert chosen["tent"].score == 0.5


@pytest.mark.parametrize("best", [(0,), (3, 5), (5, 3, 7), tuple(range(8))])
def test_of_equals_the_first_is_taken(best: tuple[int, ...], path: Path) -> None:
    of = protocol(methods=["notela"])
    winners = [of.candidates("notela")[i].settings() for i in best]
    chosen = select(of, records(path, of, lambda job: 0.75 if job.settings in winners else 0.25))
    assert chosen["notela"].preset == of.candidates("notela")[min(best)]


@pytest.mark.parametrize("place", PLACES)
def test_a_candidate_that_failed_on_one_domain_cannot_be_chosen(place: str, path: Path) -> None:
    of = protocol(validation=PLACES, methods=["tent"])
    star, second = of.candidates("tent")[2].settings(), of.candidates("tent")[6].settings()

    def score(job: Job) -> float | None:
        if job.settings == star:
            return None if job.domain == place else 1.0
        return 0.5 if job.settings == second else 0.0

    choice = select(of, records(path, of, score))["tent"]
    assert choice.preset.settings() == second
    assert (choice.tried, choice.failed) == (8, 1)


def test_a_method_whose_candidates_all_failed_is_left_out(path: Path) -> None:
    of = protocol()
    chosen = select(of, records(path, of, lambda job: None if job.method == "tent" else 0.5))
    assert list(chosen) == ["adabn", "notela", SUPERVISED]
    with pytest.raises(notela.NotelaError, match=r"no candidate of any method survived .*validation.jsonl"):
        select(of, records(path, of, lambda _: None))


def test_the_ceiling_is_searched_like_a_method(path: Path) -> None:
    of = protocol(trials=None, methods=["adabn"])
    best = of.candidates(SUPERVISED)[29]
    chosen = select(of, records(path, of, lambda job: 0.5 if job.settings == best.settings() else 0.25))
    assert chosen[SUPERVISED].preset == best
    assert chosen[SUPERVISED].tried == len(of.candidates(SUPERVISED))


def test_an_incomplete_search_is_refused_by_name(path: Path) -> None:
    of = protocol(trials=2, validation=PLACES)
    for job in of.search():
        if job.preset is not None:
            short = records(path, of, lambda _: 0.5, without=frozenset({job.key}))
            with pytest.raises(notela.NotelaError, match=rf"not complete: {job.method} was not run on {job.domain}"):
                select(of, short)


def test_other_seeds_and_other_code_have_no_say(path: Path) -> None:
    of, before = protocol(methods=["tent"]), protocol(methods=["tent"], model="older weights")
    known = records(path, of, lambda job: 0.5 if job.settings == of.candidates("tent")[3].settings() else 0.25)
    rival = of.candidates("tent")[1]
    for domain in of.validation:
        known.append(record(of.job(domain, "tent", rival, 1), 1.0))
        known.append(record(before.job(domain, "tent", rival, 0), 1.0))
    assert select(of, known)["tent"].preset == of.candidates("tent")[3]


def test_scores_of_test_domains_cannot_enter(path: Path) -> None:
    of = protocol()
    known = records(path, of, lambda _: 0.5)
    content, before = path.read_text(), select(of, known)
    tests = of.tests({method: of.candidates(method)[1] for method in of.rows})
    for job in tests:
        with pytest.raises(notela.NotelaError, match=f"'{job.domain}'"):
            known.append(record(job, 1.0))
    assert path.read_text() == content
    rivals = [record(job, 1.0) | {"key": known_job.key} for job, known_job in zip(tests, of.search(), strict=False)]
    path.write_text(
        content + "".join(json.dumps(rival) + "\n" for rival in rivals)
    )  # by hand, under keys of the search
    assert select(of, Records(path, of.validation)) == before
