"""What a suite is: a source model, validation domains, test domains, a task and metrics."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pkgutil
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import parse_qsl, urlencode

import numpy as np
from torch import nn

from notela.data import Unlabelled
from notela.errors import NotelaError
from notela.evaluation import Evaluator
from notela.metrics import as_array
from notela.runs import fingerprint
from notela.task import Task


@dataclass(frozen=True)
class Domain:
    """One place: the inputs that adaptation sees, and labelled held-out ones that only scoring sees."""

    adapt: Any
    """Unlabelled inputs: anything that `notela.adapt` takes."""
    test: Any
    test_labels: Any
    adapt_labels: Any
    """Read by the supervised ceiling alone, which every table marks."""
    classes: Sequence[int] | None = None
    """The classes that can occur here, where a model knows more."""
    identity: str = ""
    """What else tells this domain from others: the names and sizes of its files, say."""

    def fingerprint(self) -> str:
        """A hash of inputs, labels and class subset."""
        digest = hashlib.sha256(str(None if self.classes is None else list(self.classes)).encode())
        digest.update(self.identity.encode())
        for rows in (self.adapt, self.test):
            digest.update(Unlabelled(rows).fingerprint().encode())
        for labels in (self.test_labels, self.adapt_labels):
            digest.update(np.ascontiguousarray(as_array(labels)).tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Suite:
    """A comparison. Models and domains are functions, so that a process loads only what it runs."""

    name: str
    task: Task
    metrics: tuple[str, ...]
    """The first one selects; tables show the first two."""
    protocol: str
    """Split, windows, class subset and sizes, in a phrase for captions."""
    class_names: tuple[str, ...]
    model: Callable[[], nn.Module]
    validation: Mapping[str, Callable[[], Domain]]
    test: Mapping[str, Callable[[], Domain]]
    source: Callable[[], Domain] | None = None
    """Held-out data of the source itself, for the figure of probabilities."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings of every run that the paper's grid leaves open: epochs, batch_size."""
    identity: str = ""
    """What else tells this suite from others: a hash of the user's own code, say."""
    seeds: int = 5
    more_seeds: Mapping[str, int] = field(default_factory=dict)
    """Test domains that are run with more seeds than the others."""
    levels: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Test domains that are one place at several strengths: the place and the strength, for a figure."""
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By test domain (or "average") and method: what others reported, in per cent, to stand beside it in a table."""
    published_by: str = ""
    """Who reported that, with which model."""
    preset: str = ""
    """Which published settings are taken without a search; by the task alone, if it is not said."""

    def evaluator(self, domain: Domain) -> Evaluator:
        """The object that holds a domain's held-out labels."""
        return Evaluator(domain.test, domain.test_labels, task=self.task)


class Loaded:
    """A suite's model and one domain at a time, with their fingerprints."""

    def __init__(self, suite: Suite) -> None:
        self.suite = suite
        self._domain: tuple[str, Domain, str] | None = None

    @cached_property
    def model(self) -> nn.Module:
        """The source model."""
        return self.suite.model().eval()

    @cached_property
    def model_fingerprint(self) -> str:
        """A hash of its layers, its weights and the code of layers that are not torch's own."""
        kinds = {base for layer in self.model.modules() for base in type(layer).__mro__}
        code = sorted({_source_of(kind) for kind in kinds} - {""})
        mark = hashlib.sha256("".join(code).encode()).hexdigest()[:8] if code else ""
        return fingerprint(self.model) + mark + self.suite.identity

    def domain(self, name: str) -> tuple[Domain, str]:
        """A domain and its fingerprint; "source" is the source's own held-out data."""
        if self._domain is None or self._domain[0] != name:
            places = {**self.suite.validation, **self.suite.test}
            if self.suite.source is not None:
                places["source"] = self.suite.source
            domain = places[name]()
            self._domain = name, domain, domain.fingerprint()
        return self._domain[1:]


def _source_of(kind: type) -> str:
    """The text of a layer's class, unless that is torch's."""
    try:
        return "" if kind.__module__.partition(".")[0] == "torch" else inspect.getsource(kind)
    except (TypeError, OSError):  # built in, or made in a notebook or by a compiler
        return ""


def names() -> list[str]:
    """The suites that need no file of the user's.

    >>> names()[:6]
    ['aviary', 'aviary-single', 'birds', 'cifar10c', 'digits', 'digits-multi']
    """
    from notela.bench import suites

    files = [m.name for m in pkgutil.iter_modules(suites.__path__) if not m.name.startswith("_")]
    return sorted(name.replace("_", "-") for name in files if name != "custom")


def find(reference: str) -> Suite:
    """A suite by its name, with options after a question mark (see `refer`), or from a TOML file (see
    `notela.bench.suites.custom`)."""
    if reference.endswith(".toml"):
        from notela.bench.suites import custom

        return custom.read(Path(reference))
    name, _, query = reference.partition("?")
    if name.endswith(".toml"):
        raise NotelaError(f"{name} takes no options ({query}): write them into the file")
    made: Suite = _maker(name)(**_options(name, query))
    return made


def refer(name: str, options: Mapping[str, str]) -> str:
    """A suite and its options as one string, which `find` understands.

    >>> refer("cifar10c", {"images": "500"})
    'cifar10c?images=500'
    """
    return f"{name}{'&' if '?' in name else '?'}{urlencode(options)}" if options else name


def command(reference: str) -> str:
    """How a user types it.

    >>> command("cifar10c?data=my+images&images=500")
    "notela bench cifar10c --set 'data=my images' --set images=500"
    """
    name, _, query = reference.partition("?")
    options = [shlex.quote(f"{key}={value}") for key, value in parse_qsl(query, keep_blank_values=True)]
    return " ".join(["notela bench", shlex.quote(name), *(f"--set {option}" for option in options)])


def absolute(reference: str) -> str:
    """The same reference from whatever folder a worker starts in."""
    if reference.endswith(".toml"):
        return str(Path(reference).resolve())
    name, _, query = reference.partition("?")
    given, parameters = _options(name, query), inspect.signature(_maker(name)).parameters
    paths = {
        key: one.default for key, one in parameters.items() if isinstance(one.default, Path) and one.default != Path()
    }
    options = {**paths, **given}
    return refer(name, {key: str(v.resolve() if isinstance(v, Path) else v) for key, v in options.items()})


def _maker(name: str) -> Callable[..., Suite]:
    if name not in names():
        raise NotelaError(
            f"there is no suite {name!r}; choose one of {', '.join(names())}, or the path of a TOML file "
            "(its form: docs/bench.md)"
        )
    maker: Callable[..., Suite] = importlib.import_module(f"notela.bench.suites.{name.replace('-', '_')}").suite
    return maker


def _options(name: str, query: str) -> dict[str, Any]:
    """Each as the type that the suite's function declares: int, str or Path."""
    kinds = {key: kind for key, kind in get_type_hints(_maker(name)).items() if key != "return"}
    given = dict(parse_qsl(query, keep_blank_values=True))
    for key in given.keys() - kinds.keys():
        raise NotelaError(f"the suite {name} has no option {key!r}; it takes {', '.join(kinds)}")
    for key, value in given.items():
        if kinds[key] is int and not value.removeprefix("-").isdecimal():
            raise NotelaError(f"{key}={value!r} of {name} is not a whole number")
    return {key: kinds[key](value) for key, value in given.items()}
