"""What will be run: the protocol of a comparison, its jobs, and the key under which each job's record is found.

Keys need no data and no model, only their fingerprints, so that tables can be made from records alone.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from notela import (
    classifier,
    data,
    evaluation,
    graph,
    guard,
    loop,
    methods,
    metrics,
    signals,
    stable,
    state,
    statistics,
    task,
)
from notela.bench import supervised
from notela.bench.changes import change
from notela.bench.suite import Suite, command
from notela.errors import NotelaError, check_choice, check_integer
from notela.methods import NOTELA
from notela.methods.base import Preset
from notela.runs import replacing

SEARCH_SEED = 0
"""The seed of every run of the search, and of the draw of the grid's subset."""
DEFAULT_TRIALS = 24
SOURCE, SUPERVISED, AVERAGE = "source", "supervised", "average"
_LATER = {"message": "votes", "teacher_momentum": 0.0, "anchor": 0.0, "guard": "watch"}
"""Settings that older records do not have; with these values they change nothing, and are left out of keys."""
_CORE = (loop, state, task, graph, classifier, data, evaluation, metrics, signals, stable, statistics)


@dataclass(frozen=True)
class Job:
    """One run: a domain, settings and a seed, and the fingerprints that its worker must find."""

    domain: str
    method: str
    preset: Preset | None
    """None: the source model as it is."""
    seed: int
    metrics: tuple[str, ...]
    fingerprints: Mapping[str, str]
    """Of the model, the domain and the method's code."""
    probabilities: bool = False
    """Keep the distribution of each class's probability, for a figure."""

    @property
    def settings(self) -> dict[str, Any]:
        """All settings as plain values."""
        return {"method": self.method} if self.preset is None else self.preset.settings()

    @property
    def key(self) -> str:
        """A hash of everything that determines the result."""
        whole = {
            "domain": self.domain,
            "settings": {k: v for k, v in self.settings.items() if k not in _LATER or v != _LATER[k]},
            "seed": self.seed,
            "metrics": self.metrics,
            **self.fingerprints,
            "probabilities": self.probabilities,
        }
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:20]


@dataclass
class Protocol:
    """A comparison as it was asked for, and the fingerprints of what it is made of."""

    suite: str
    title: str
    task: task.Task
    metrics: list[str]
    caption: str
    class_names: list[str]
    validation: list[str]
    test: list[str]
    overrides: dict[str, Any]
    methods: list[str]
    trials: int | None
    """Points of each method's grid that are tried; None: all; 0: none, and settings are the published ones."""
    seeds: int
    has_source_data: bool
    code: dict[str, str]
    model: str = ""
    domains: dict[str, str] = field(default_factory=dict)
    """Fingerprints."""
    sizes: dict[str, list[int]] = field(default_factory=dict)
    """How many examples to adapt on, and how many are held out."""
    more_seeds: dict[str, int] = field(default_factory=dict)
    levels: dict[str, list[Any]] = field(default_factory=dict)
    published: dict[str, dict[str, float]] = field(default_factory=dict)
    published_by: str = ""
    preset: str = ""
    ceiling: bool = False
    """Whether the supervised ceiling is run, with fixed settings, where nothing is searched."""
    changes: dict[str, str] = field(default_factory=dict)
    """Settings of every run but the ceiling's that were asked to be others."""

    # ---- what is compared

    @property
    def searched(self) -> bool:
        """Whether settings are chosen on validation domains; the ceiling and the ablation have no published ones."""
        return self.trials != 0

    @property
    def rows(self) -> list[str]:
        """The methods, and the ceiling."""
        return [*self.methods, SUPERVISED] if self.searched or self.ceiling else self.methods

    def seeds_of(self, domain: str) -> int:
        """How often each method is run on a domain."""
        return self.more_seeds.get(domain, self.seeds)

    def candidates(self, method: str) -> list[Preset]:
        """The points of a method's grid that are tried: the first `trials` of a seeded order, so that asking for more
        later repeats nothing. Without a search, the published settings."""
        if method in methods.NICKNAMES:
            points = [methods.resolve(method, self.task)]
        elif self.searched:
            points = list(grid(method))
        elif method == SUPERVISED:
            points = [supervised.PRESET]
        elif self.preset:
            points = [methods.preset(method, self.preset)]
        else:
            points = [methods.resolve(method, self.task)]
        if self.trials and self.trials < len(points):
            random.Random(f"{SEARCH_SEED} {method}").shuffle(points)
            points = points[: self.trials]
        points = [replace(point, **self.overrides) for point in points]
        return points if method == SUPERVISED else [change(point, self.changes) for point in points]

    # ---- jobs

    def job(self, domain: str, method: str, preset: Preset | None, seed: int) -> Job:
        """One run; its domain's fingerprint must be known by now."""
        if domain not in self.domains:
            raise NotelaError(f"nothing was run on {domain} yet; run `{command(self.suite)}` to its end")
        fingerprints = {"model": self.model, "data": self.domains[domain], "code": self.code[method]}
        keep = seed == 0 and domain not in self.validation
        return Job(domain, method, preset, seed, tuple(self.metrics), fingerprints, keep)

    def search(self) -> list[Job]:
        """Stage 1: the source and every candidate, on the validation domains."""
        return [
            self.job(domain, method, preset, SEARCH_SEED)
            for domain in self.validation
            for method, preset in [(SOURCE, None), *((m, p) for m in self.rows for p in self.candidates(m))]
        ]

    def repeats(self, chosen: Mapping[str, Preset]) -> list[Job]:
        """Stage 2: what was chosen, with every seed, on the validation domains; and NOTELA's ablation."""
        return list(self._repeats(self.validation, chosen))

    def tests(self, chosen: Mapping[str, Preset]) -> list[Job]:
        """Stage 3: the same on the test domains, and the source as it is."""
        places = [*self.test, SOURCE] if self.has_source_data else self.test
        sources = [self.job(domain, SOURCE, None, 0) for domain in places]
        return sources + list(self._repeats(self.test, chosen))

    def _repeats(self, domains: Iterable[str], chosen: Mapping[str, Preset]) -> Iterator[Job]:
        for domain in domains:
            for method, preset in chosen.items():
                parts = ablation(preset) if self.searched and method == NOTELA.name else {}
                for variant in (preset, *parts.values()):
                    yield from (self.job(domain, method, variant, seed) for seed in range(self.seeds_of(domain)))

    def count(self) -> int:
        """All runs of all stages; what is known before anything is chosen."""
        candidates = sum(len(self.candidates(method)) for method in self.rows)
        repeated = len(self.rows) + (3 if NOTELA.name in self.methods and self.searched else 0)
        search = len(self.validation) * (1 + candidates)
        again = len(self.validation) * (repeated * self.seeds - len(self.rows))  # the chosen ones have one seed by now
        test = sum(1 + repeated * self.seeds_of(domain) for domain in self.test)
        return search + again + test + self.has_source_data

    # ---- on disk

    def write(self, path: Path) -> None:
        """As JSON."""
        with replacing(path) as aside:
            aside.write_text(
                json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )


def read(path: Path) -> Protocol:
    """A protocol from its file."""
    try:
        return Protocol(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise NotelaError(f"{path} does not exist: nothing was run in that folder yet") from None
    except (OSError, ValueError, TypeError) as error:
        raise NotelaError(f"{path} cannot be read ({error}); run `notela bench` on that folder again") from error


def make(
    suite: Suite,
    reference: str,
    *,
    chosen_methods: Iterable[str] | None = None,
    trials: int | Literal["all"] | None = None,
    seeds: int | None = None,
    changes: Mapping[str, str] | None = None,
) -> Protocol:
    """The protocol of a suite; fingerprints are filled in as its parts are loaded.

    By default, the paper's methods, 24 trials if there are validation domains and none if not, and the suite's own
    numbers of seeds.
    """
    wanted = list(dict.fromkeys(methods.PAPER if chosen_methods is None else chosen_methods))
    for name in wanted:
        check_choice("method", name, (*methods.names(), *methods.NICKNAMES, SUPERVISED))
    if trials is None:
        trials = DEFAULT_TRIALS if suite.validation else 0
    elif trials != "all":
        check_integer("trials", trials, 0)
    if seeds is not None:
        check_integer("seeds", seeds, 1)
    if trials != 0 and not suite.validation:
        raise NotelaError(
            f"{suite.name} has no validation domains to choose settings on; use the published ones: --trials none"
        )
    twice = suite.validation.keys() & suite.test.keys()
    if twice:
        raise NotelaError(
            f"{sorted(twice)[0]!r} is a validation domain and a test domain of {suite.name}; settings chosen on it "
            "could not be tested on it: keep it in one"
        )
    for name in sorted({SOURCE, AVERAGE} & (suite.validation.keys() | suite.test.keys())):
        raise NotelaError(
            f"a domain of {suite.name} is called {name!r}, which tables use for something else: rename it"
        )
    protocol = Protocol(
        suite=reference,
        title=suite.name,
        task=suite.task,
        metrics=list(suite.metrics),
        caption=suite.protocol,
        class_names=list(suite.class_names),
        validation=list(suite.validation) if trials != 0 else [],
        test=list(suite.test),
        overrides=dict(suite.overrides),
        methods=[name for name in wanted if name != SUPERVISED],
        trials=None if trials == "all" else trials,
        seeds=suite.seeds if seeds is None else seeds,
        has_source_data=suite.source is not None,
        code={name: code_version(name) for name in (SOURCE, SUPERVISED)},
        more_seeds=dict(suite.more_seeds) if seeds is None else {},
        levels={name: list(level) for name, level in suite.levels.items()},
        published={place: dict(values) for place, values in suite.published.items()},
        published_by=suite.published_by,
        preset=suite.preset,
        ceiling=SUPERVISED in wanted,
        changes=dict(changes or {}),
    )
    for name in protocol.methods:  # a change that a method does not know is told now
        protocol.code[name] = code_version(name, any(map(is_guarded, protocol.candidates(name))))
    return protocol


def ablation(preset: Preset) -> dict[str, Preset]:
    """NOTELA with one ingredient removed (paper, table of ablations); nothing for other methods."""
    if not isinstance(preset.method, NOTELA):
        return {}
    return {
        "dropout": replace(preset, noise=False),
        "softness": replace(preset, method=replace(preset.method, alpha=0.0)),
        "Laplacian": replace(preset, method=replace(preset.method, lambda_=0.0)),
    }


def grid(method: str) -> tuple[Preset, ...]:
    """The paper's grid of a method; of the supervised ceiling its own."""
    return supervised.GRID if method == SUPERVISED else methods.grid(method)


def is_guarded(preset: Preset | None) -> bool:
    """Whether the guard's rules change what a run gives; of other runs they only say a word."""
    return preset is not None and (preset.guard == "act" or preset.statistics == "auto")


@cache
def code_version(method: str, guarded: bool = False) -> str:
    """A hash of the code that a method runs through: its own file, those of the methods it derives or imports from, the
    core, and the guard if it acts. Comments, docstrings and formatting do not count."""
    own: list[ModuleType] = []
    if method != SOURCE:
        kind = NOTELA if method in methods.NICKNAMES else type(grid(method)[0].method)
        own = [inspect.getmodule(base) for base in kind.__mro__[:-1]]  # type: ignore[misc]
        used = {getattr(value, "__module__", None) for value in vars(own[0]).values()} - {m.__name__ for m in own}
        own += [sys.modules[name] for name in sorted(filter(None, used)) if name.startswith(f"{methods.__name__}.")]
    digest = hashlib.sha256()
    if guarded:
        own.append(guard)
    for module in (*_CORE, *own):
        digest.update(_meaning(Path(str(module.__file__)).read_text(encoding="utf-8")).encode())
    return digest.hexdigest()[:16]


def _meaning(source: str) -> str:
    """A program without comments, docstrings and layout.

    >>> _meaning("x = 1  # one") == _meaning("x=1"), _meaning("x = 1") == _meaning("x = 2")
    (True, False)
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _is_text(part)]  # type: ignore[attr-defined]
    return ast.unparse(tree)  # dump's form differs between versions of Python


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
