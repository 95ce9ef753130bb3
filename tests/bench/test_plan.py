"""The plan: which points of the grids are tried, what tells jobs apart, how many there are. No model, no data."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import notela
from notela import methods
from notela.bench import plan
from notela.bench.plan import SOURCE, SUPERVISED, Job, Protocol
from notela.bench.suite import Domain, Suite
from notela.methods.base import Preset

ROWS = (*methods.names(), SUPERVISED)
COMBINATIONS = 3 * 2 * 2 * 2 * 2  # of the paper's rows "All"
GRID_SIZES = {"adabn": 2, "tent": COMBINATIONS, "notela": 3 * 2 * 2 * COMBINATIONS, SUPERVISED: COMBINATIONS}


def protocol(**changes: Any) -> Protocol:
    """Two validation domains, two test domains, three methods; fingerprints are made up."""
    given: dict[str, Any] = {
        "suite": "made-up",
        "title": "made-up",
        "task": "multilabel",
        "metrics": ["map", "cmap"],
        "caption": "8×8 → 3 classes",
        "class_names": ["crow", "jay", "wren"],
        "validation": ["north", "west"],
        "test": ["south", "east"],
        "overrides": {"epochs": 4, "batch_size": 16},
        "methods": ["adabn", "tent", "notela"],
        "trials": 8,
        "seeds": 3,
        "has_source_data": True,
        "model": "weights",
        **changes,
    }
    places = [*given["validation"], *given["test"], *([SOURCE] if given["has_source_data"] else [])]
    derived = {
        "code": {name: f"code of {name}" for name in (SOURCE, *ROWS)},
        "domains": {place: f"data of {place}" for place in places},
        "sizes": {place: [30, 10] for place in places},
    }
    return Protocol(**{**derived, **given})


def settings(presets: list[Preset] | tuple[Preset, ...]) -> list[str]:
    return [str(preset.settings()) for preset in presets]


def everything(of: Protocol, chosen: dict[str, Preset]) -> list[Job]:
    """The jobs of all stages."""
    return [*of.search(), *of.repeats(chosen), *of.tests(chosen)]


# ---- the points that are tried


@pytest.mark.parametrize("method", ROWS)
def test_fewer_trials_are_the_first_of_more_without_repeats_and_from_the_grid(method: str) -> None:
    whole = settings(plan.grid(method))
    longest = settings(protocol(trials=len(whole) - 1, overrides={}).candidates(method))
    assert len(set(longest)) == len(longest) == len(whole) - 1
    assert set(longest) <= set(whole)
    for n in {1, 2, 7, 24, len(longest)} & set(range(1, len(whole))):
        assert settings(protocol(trials=n, overrides={}).candidates(method)) == longest[:n]


@pytest.mark.parametrize("method", sorted(set(ROWS) - {"adabn", "lame"}))
def test_the_draw_is_not_a_corner_of_the_grid(method: str) -> None:
    drawn, whole = protocol(trials=24).candidates(method), protocol(trials=None).candidates(method)
    assert drawn != whole[:24]
    for name in methods.COMMON_GRID:
        assert {getattr(p, name) for p in drawn} == set(methods.COMMON_GRID[name]), name


@pytest.mark.parametrize("method", ROWS)
def test_all_points_in_the_grids_order_where_the_grid_is_no_larger(method: str) -> None:
    whole = settings(plan.grid(method))
    for trials in (None, len(whole), len(whole) + 1, 10**6):
        assert settings(protocol(trials=trials, overrides={}).candidates(method)) == whole


def test_every_method_gets_the_same_number_unless_its_grid_is_smaller() -> None:
    for trials in (1, 2, 3, 24, 48, 100, None):
        for method, size in GRID_SIZES.items():
            expected = size if trials is None else min(trials, size)
            assert len(protocol(trials=trials).candidates(method)) == expected, (trials, method)


@pytest.mark.parametrize("trials", [5, None])
def test_overrides_reach_every_candidate_and_change_nothing_else(trials: int | None) -> None:
    changes = {"epochs": 7, "batch_size": 9}
    for method in ROWS:
        plain = protocol(trials=trials, overrides={}).candidates(method)
        changed = protocol(trials=trials, overrides=changes).candidates(method)
        assert [p.settings() | changes for p in plain] == [p.settings() for p in changed]


# ---- keys

JOB = protocol().job("south", "notela", methods.preset("notela", "image"), 0)


def with_method(**changes: Any) -> Callable[[Job], Job]:
    return lambda job: replace(job, preset=replace(job.preset, method=replace(job.preset.method, **changes)))


def with_policy(**changes: Any) -> Callable[[Job], Job]:
    return lambda job: replace(job, preset=replace(job.preset, **changes))


def with_fingerprint(part: str) -> Callable[[Job], Job]:
    return lambda job: replace(job, fingerprints={**job.fingerprints, part: "another"})


CHANGES: dict[str, Callable[[Job], Job]] = {
    "domain": lambda job: replace(job, domain="east"),
    "seed": lambda job: replace(job, seed=1),
    "metrics": lambda job: replace(job, metrics=("auroc",)),
    "probabilities": lambda job: replace(job, probabilities=not job.probabilities),
    "source": lambda job: replace(job, preset=None),
    "alpha": with_method(alpha=0.3),
    "k": with_method(k=4),
    "metric": with_method(metric="cosine"),
    "trainable": with_policy(trainable=("bn.*",)),
    "learning rate": with_policy(learning_rate=0.02),
    "schedule": with_policy(schedule="cosine"),
    "statistics": with_policy(statistics="source"),
    "noise": with_policy(noise=False),
    "epochs": with_policy(epochs=11),
    "batch size": with_policy(batch_size=8),
    **{part: with_fingerprint(part) for part in ("model", "data", "code")},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_key_changes_with_everything_that_determines_the_result(change: str) -> None:
    assert CHANGES[change](JOB).key != JOB.key


def test_keys_of_different_changes_differ_from_each_other() -> None:
    assert len({change(JOB).key for change in CHANGES.values()}) == len(CHANGES)


def test_a_key_is_equal_where_nothing_that_matters_differs() -> None:
    again = protocol().job("south", "notela", methods.preset("notela", "image"), 0)
    assert again.key == JOB.key
    assert replace(JOB, fingerprints=dict(reversed(JOB.fingerprints.items()))).key == JOB.key


def test_keys_and_the_draw_are_the_same_in_a_fresh_interpreter() -> None:
    here = [job.key for job in protocol().search()]
    code = "import test_plan; print(*(job.key for job in test_plan.protocol().search()))"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "12345"}
    there = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert there.stdout.split() == here


def test_fingerprints_change_the_keys_of_what_they_belong_to_alone() -> None:
    def changed(**changes: Any) -> set[tuple[str, str]]:
        pairs = zip(protocol().search(), protocol(**changes).search(), strict=True)
        return {(old.domain, old.method) for old, new in pairs if old.key != new.key}

    usual, rows = protocol(), (SOURCE, "adabn", "tent", "notela", SUPERVISED)
    assert changed(model="other") == set(itertools.product(("north", "west"), rows))
    assert changed(domains={**usual.domains, "west": "other"}) == {("west", row) for row in rows}
    assert changed(code={**usual.code, "tent": "other"}) == {("north", "tent"), ("west", "tent")}


def test_more_trials_seeds_or_methods_repeat_nothing() -> None:
    def keys(**changes: Any) -> set[str]:
        of = protocol(**changes)
        return {job.key for job in everything(of, {method: plan.grid(method)[0] for method in of.rows})}

    less = keys(trials=3, seeds=2, methods=["tent"])
    for more in ({"trials": 9}, {"seeds": 5}, {"methods": ["adabn", "tent", "notela"]}):
        assert less < keys(**{"trials": 3, "seeds": 2, "methods": ["tent"], **more}), more


# ---- jobs


def test_stages_run_what_they_should() -> None:
    of = protocol()
    chosen = {method: of.candidates(method)[0] for method in of.rows} | {"notela": noisy(of)}
    assert {job.domain for job in [*of.search(), *of.repeats(chosen)]} == {"north", "west"}
    assert {job.domain for job in of.tests(chosen)} == {"south", "east", SOURCE}
    assert {job.seed for job in of.search()} == {0}
    for stage, domains in ((of.repeats(chosen), of.validation), (of.tests(chosen), of.test)):
        adapted = [(job.domain, str(job.settings), job.seed) for job in stage if job.preset is not None]
        variants = [*chosen.values(), *plan.ablation(chosen["notela"]).values()]
        assert sorted(adapted) == sorted(itertools.product(domains, settings(variants), range(3)))
    asis = [job.domain for job in of.tests(chosen) if job.preset is None]
    assert asis == ["south", "east", SOURCE]
    assert [job.domain for job in of.search() if job.preset is None] == ["north", "west"]
    assert SOURCE not in {job.domain for job in protocol(has_source_data=False).tests(chosen)}


def test_probabilities_are_kept_of_the_first_seed_off_validation() -> None:
    of = protocol()
    jobs = everything(of, {method: of.candidates(method)[0] for method in of.rows})
    assert all(job.probabilities == (job.seed == 0 and job.domain in ("south", "east", SOURCE)) for job in jobs)


def test_ablation_removes_one_ingredient_at_a_time() -> None:
    of = protocol()
    full = noisy(of)
    without = {name: variant.settings() for name, variant in plan.ablation(full).items()}
    assert without == {
        "dropout": full.settings() | {"noise": False},
        "softness": full.settings() | {"alpha": 0.0},
        "Laplacian": full.settings() | {"lambda_": 0.0},
    }
    assert plan.ablation(methods.preset("dropout_student", "image")) == {}


def noisy(of: Protocol) -> Preset:
    """A candidate of NOTELA whose ablation is neither itself nor another candidate."""
    candidates = of.candidates("notela")
    return next(p for p in candidates if p.noise and not {*plan.ablation(p).values()} & {*candidates})


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"seeds": 1},
        {"trials": 40, "seeds": 5},
        {"trials": 1, "methods": ["tent"]},
        {"trials": None, "methods": ["adabn", "tent"], "seeds": 2},
        {"has_source_data": False, "methods": ["notela"]},
        {"validation": ["north"], "test": ["south", "east", "hill"]},
        {"validation": ["north", "west", "hill"], "test": ["south"], "has_source_data": False},
    ],
)
def test_count_is_the_number_of_distinct_jobs(shape: dict[str, Any]) -> None:
    of = protocol(**shape)
    chosen = {method: of.candidates(method)[-1] for method in of.rows}
    chosen |= {"notela": noisy(of)} if "notela" in chosen else {}
    jobs = everything(of, chosen)
    distinct = {(job.domain, str(job.settings), job.seed) for job in jobs}
    assert of.count() == len(distinct) == len({job.key for job in jobs})


def test_count_is_never_too_small() -> None:
    """Without dropout the ablation repeats the full method, or a candidate that the search has run."""
    of = protocol(trials=None, methods=["notela"])
    for full in of.candidates("notela")[::50]:
        chosen = {"notela": full, SUPERVISED: of.candidates(SUPERVISED)[0]}
        assert len({job.key for job in everything(of, chosen)}) <= of.count()


def test_a_domain_that_was_never_loaded_has_no_job() -> None:
    of = protocol()
    del of.domains["east"]
    with pytest.raises(notela.NotelaError, match="nothing was run on east yet"):
        of.job("east", "tent", methods.preset("tent", "image"), 0)


# ---- from suite to protocol, to disk and back


def nothing() -> Domain:
    raise AssertionError("a plan loads no data")


def suite(validation: tuple[str, ...], test: tuple[str, ...], **more: Any) -> Suite:
    return Suite(
        name="ponds",
        task="singlelabel",
        metrics=("accuracy",),
        protocol="split by hash",
        class_names=("frog", "newt"),
        model=lambda: pytest.fail("a plan loads no model"),
        validation=dict.fromkeys(validation, nothing),
        test=dict.fromkeys(test, nothing),
        **more,
    )


def make(of: Suite, **changes: Any) -> Protocol:
    return plan.make(of, "ponds.toml", **{"chosen_methods": None, "trials": 3, "seeds": 2, **changes})


def test_a_domain_of_validation_and_test_is_refused_by_name() -> None:
    with pytest.raises(notela.NotelaError, match=r"'south' is a validation domain and a test domain of ponds"):
        make(suite(("north", "south"), ("south", "east")))


@pytest.mark.parametrize("places", [(("source",), ("south",)), (("north",), ("south", "source"))])
def test_no_domain_may_be_called_source(places: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    with pytest.raises(notela.NotelaError, match="is called 'source', which tables use for something else"):
        make(suite(*places, source=nothing))


def test_a_plan_is_what_the_suite_says() -> None:
    made = make(suite(("north",), ("south", "east"), source=nothing, overrides={"epochs": 2}))
    assert (made.suite, made.title, made.task, made.metrics) == ("ponds.toml", "ponds", "singlelabel", ["accuracy"])
    assert (made.validation, made.test, made.class_names) == (["north"], ["south", "east"], ["frog", "newt"])
    assert (made.caption, made.overrides, made.has_source_data) == ("split by hash", {"epochs": 2}, True)
    assert (made.trials, made.seeds, made.methods) == (3, 2, list(methods.PAPER))
    assert made.code.keys() == {SOURCE, *methods.PAPER, SUPERVISED}
    assert not make(suite(("north",), ("south",))).has_source_data
    assert make(suite(("north",), ("south",)), chosen_methods=["shot", "tent"]).methods == ["shot", "tent"]


def test_presets_with_names_and_the_ceiling_are_run_without_a_search() -> None:
    chosen = ["tent", "centred", "auto", SUPERVISED]
    made = make(suite(("north",), ("south", "east"), overrides={"epochs": 3}), chosen_methods=chosen, trials=0)
    assert made.ceiling
    assert (made.methods, made.rows, made.validation) == (chosen[:-1], chosen, [])
    of = {method: made.candidates(method) for method in made.rows}
    assert {len(candidates) for candidates in of.values()} == {1}
    assert of["auto"] == [replace(methods.resolve("auto", made.task), epochs=3)]
    assert of["centred"] == [replace(methods.preset("notela", "centred"), epochs=3)]
    made.domains = {"south": "data of south", "east": "data of east"}
    jobs = everything(made, {method: candidates[0] for method, candidates in of.items()})
    assert made.count() == len(jobs) == len({job.key for job in jobs})
    assert not make(suite(("north",), ("south",)), chosen_methods=["tent", "auto"], trials=0).ceiling


@pytest.mark.parametrize("method", methods.names())
def test_settings_that_older_records_lack_leave_their_keys_alone(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    preset, of = methods.preset(method, "image"), protocol()
    job = of.job("south", method, preset, 0)
    key, new = job.key, {"message", "teacher_momentum", "anchor", "guard"}
    older = {name: value for name, value in preset.settings().items() if name not in new}
    monkeypatch.setattr(plan, "_LATER", {})
    assert job.key != key
    monkeypatch.setattr(Preset, "settings", lambda self: older)
    assert job.key == key


def test_new_settings_with_other_values_have_other_keys() -> None:
    start, of = methods.preset("notela", "image"), protocol()
    others = [
        replace(start, guard="act"),
        replace(start, anchor=0.1),
        replace(start, teacher_momentum="slow"),
        replace(start, method=replace(start.method, message="centred")),
    ]
    assert len({of.job("south", "notela", preset, 0).key for preset in (start, *others)}) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen_methods": ["tent", "tnet"]}, "method='tnet' is not one of"),
        ({"trials": -1}, "trials=-1 must be"),
        ({"seeds": 0}, "seeds=0 must be"),
        ({"seeds": 1.5}, "seeds=1.5 must be"),
    ],
)
def test_what_cannot_be_run_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(notela.NotelaError, match=message):
        make(suite(("north",), ("south",)), **change)


@pytest.mark.parametrize(
    "of",
    [
        protocol(),
        protocol(trials=None, has_source_data=False, overrides={}),
        protocol(caption='α ∝ "λ" \\ 東京 \n', class_names=["Größe", "it's"]),
        make(suite(("north",), ("south",))),
    ],
)
def test_written_and_read_back_is_equal(of: Protocol, tmp_path: Path) -> None:
    of.write(tmp_path / "protocol.json")
    back = plan.read(tmp_path / "protocol.json")
    assert back == of
    if of.domains:
        assert [job.key for job in back.search()] == [job.key for job in of.search()]


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"suite": "x"}', '{"colour": "red"}'])
def test_a_broken_file_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "protocol.json"
    with pytest.raises(notela.NotelaError, match=r"protocol.json does not exist: nothing was run"):
        plan.read(path)
    path.write_text(content)
    with pytest.raises(notela.NotelaError, match=r"protocol.json cannot be read"):
        plan.read(path)


# ---- versions of code

CODE = '''
"""About."""
import math

RATE = 0.1
"""A rate."""

class Thing(Base):
    """A thing."""

    size: int = 3

    def area(self, x, y=2):
        """Its area."""
        if x > y:
            return math.sqrt(x) + self.size
        return "small"
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import math\n", "import math  # roots\n"),
        ("import math\n", "# roots\nimport math\n\n\n\n"),
        ('"""About."""', '"""About something else."""'),
        ('"""About."""\n', ""),
        ('"""A rate."""\n', ""),
        ('"""A thing."""', "'a thing, of a kind'"),
        ('"""Its area."""', '"""Its\n        area."""'),
        ("RATE = 0.1", "RATE=(0.1)"),
        ("x, y=2", "\n        x,\n        y = 2,\n    "),
        ('"small"', "'small'"),
        ("math.sqrt(x) + self.size", "(\n            math.sqrt(x)\n            + self.size\n        )"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(old: str, new: str) -> None:
    assert old in CODE
    assert plan._meaning(CODE.replace(old, new)) == plan._meaning(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.1", "0.2"),
        ("import math", "import cmath"),
        ("import math", "import math\nmath.tau"),
        ("x > y", "x >= y"),
        ("sqrt(x) +", "sqrt(x) -"),
        ("y=2", "y=3"),
        ("x, y=2", "y, x=2"),
        ("size: int = 3", "size: int = 4"),
        ("(Base)", "(Other)"),
        ('"small"', '"large"'),
        ('return "small"', '"small"'),
        ("    def area", "    @cache\n    def area"),
        ('        return "small"', '    return "small"'),
    ],
)
def test_code_counts(old: str, new: str) -> None:
    assert old in CODE
    assert plan._meaning(CODE.replace(old, new)) != plan._meaning(CODE)


def test_code_versions_differ_between_methods() -> None:
    assert len({plan.code_version(name) for name in (SOURCE, *ROWS)}) == len(ROWS) + 1


meaning = functools.cache(plan._meaning)
CORE = (
    "loop",
    "state",
    "task",
    "graph",
    "classifier",
    "data",
    "evaluation",
    "metrics",
    "signals",
    "stable",
    "statistics",
)
AFFECTED = {
    **{f"notela.{name}": {SOURCE, *ROWS, "auto"} for name in CORE},
    "notela.guard": {"auto"},  # where it only watches, it changes nothing
    "notela.methods.base": {*ROWS, "auto"},
    "notela.bench.supervised": {SUPERVISED},
    **{f"notela.methods.{name}": {name} for name in methods.names()},
    "notela.methods.dropout_student": {"dropout_student", "notela", "auto"},  # NOTELA derives from it
    "notela.methods.notela": {"notela", "auto", "lame"},  # LAME imports its teacher step
}


@pytest.mark.parametrize("module", AFFECTED)
def test_a_change_in_a_file_is_seen_by_the_methods_that_run_through_it(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_meaning", meaning)  # parse each file once

    def versions() -> dict[str, str]:
        return {name: plan.code_version.__wrapped__(name, name == "auto") for name in (SOURCE, *ROWS, "auto")}

    before, source = versions(), Path(sys.modules[module].__file__).read_text()
    monkeypatch.setattr(sys.modules[module], "__file__", str(tmp_path / "edited.py"))
    (tmp_path / "edited.py").write_text("# for the record\n" + source + "\n\n")
    assert versions() == before
    (tmp_path / "edited.py").write_text(source + "\nedited = True\n")
    after = versions()
    assert {name for name in before if after[name] != before[name]} == AFFECTED[module]


def test_the_guards_code_counts_where_it_acts() -> None:
    plain, guarded = (
        make(suite((), ("south",)), chosen_methods=["tent", "auto"], trials=0, changes=changes)
        for changes in ({}, {"guard": "act"})
    )
    assert plain.code["tent"] == plan.code_version("tent") != guarded.code["tent"] == plan.code_version("tent", True)
    assert plain.code["auto"] == guarded.code["auto"] == plan.code_version("auto", True)


def test_presets_with_names_have_no_ablation_of_their_own() -> None:
    made = make(suite(("north",), ("south",)), chosen_methods=["notela", "centred", "auto"])
    made.domains = {"north": "a", "south": "b"}
    chosen = {method: made.candidates(method)[0] for method in made.rows}
    for method in ("centred", "auto"):
        assert {job.preset for job in everything(made, chosen) if job.method == method} == {chosen[method]}
