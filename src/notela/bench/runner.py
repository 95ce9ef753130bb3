"""The whole comparison: search, select, repeat with seeds, test.

folder/validation.jsonl   records of the validation domains: all that selection reads
folder/test.jsonl         records of the test domains
folder/unfinished/        runs that were cut off, resumed by the next command
folder/protocol.json      once all is done: what was asked for, and fingerprints
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from notela import metrics
from notela.bench import plan, trial
from notela.bench.plan import SOURCE, Job, Protocol
from notela.bench.progress import Progress
from notela.bench.records import Record, Records
from notela.bench.select import select
from notela.bench.suite import Domain, Loaded, Suite, absolute, find
from notela.classifier import floating_type, split_output, to_model
from notela.data import Unlabelled
from notela.engines import Engine
from notela.errors import NotelaError


class Failure(NamedTuple):
    """A run that failed, why, and whether that was not its method's doing."""

    run: str
    reason: str
    unexpected: bool


def bench(
    reference: str,
    folder: Path,
    engine: Engine,
    *,
    methods: Iterable[str] | None = None,
    trials: int | Literal["all"] | None = None,
    seeds: int | None = None,
    changes: Mapping[str, str] | None = None,
    retry_failed: bool = False,
) -> list[Failure]:
    """Run whatever of a suite's comparison is not recorded in `folder` yet. Returns what failed.

    One process at a time: hold `notela.lock.only_one(folder)`.
    """
    suite = find(reference)
    protocol = plan.make(suite, reference, chosen_methods=methods, trials=trials, seeds=seeds, changes=changes)
    unfinished = folder / "unfinished"
    unfinished.mkdir(parents=True, exist_ok=True)
    loaded = Loaded(suite)
    with Progress(protocol.count(), engine) as progress:
        protocol.model = loaded.model_fingerprint
        look_at(protocol, loaded, protocol.validation, progress)
        validation = validation_records(folder, protocol)
        with engine:
            runner = _Runner(absolute(reference), unfinished, engine, progress, retry_failed)
            runner.run("search", protocol.search(), validation)
            _check_search(protocol, validation, folder)
            chosen = {method: choice.preset for method, choice in select(protocol, validation).items()}

            places = [*protocol.test, SOURCE] if protocol.has_source_data else protocol.test
            look_at(protocol, loaded, places, progress)
            repeats = _new(protocol.repeats(chosen), protocol.search())
            tests = _new(protocol.tests(chosen))
            progress.total = len(_new(protocol.search())) + len(repeats) + len(tests)
            runner.run("validation", repeats, validation)
            runner.run("test", tests, test_records(folder, protocol))
        protocol.write(folder / "protocol.json")
        if not any(failure.unexpected for failure in runner.failures):
            shutil.rmtree(unfinished, ignore_errors=True)
    return runner.failures


def look_at(protocol: Protocol, loaded: Loaded, domains: Iterable[str], progress: Progress) -> None:
    """Load domains one by one, note their fingerprints and sizes, and refuse what could not be run."""
    for name in domains:
        progress.loading(name)
        domain, found = loaded.domain(name)
        for other, its in protocol.domains.items():
            if its == found and name != SOURCE and (other in protocol.validation) != (name in protocol.validation):
                raise NotelaError(
                    f"{name} and {other} hold the same data, and one is for validation: settings would be chosen on "
                    "the labels they are tested on"
                )
        protocol.domains[name] = found
        protocol.sizes[name] = [len(Unlabelled(domain.adapt)), len(Unlabelled(domain.test))]
        _check_domain(loaded.suite, name, domain)
        _check_classes(loaded, domain)


def _check_domain(suite: Suite, name: str, domain: Domain) -> None:
    """A metric that the labels do not define is better known before the search than after it."""
    if suite.task == "multilabel":
        labels = metrics.as_array(domain.test_labels)
        kept = labels if domain.classes is None else labels[:, list(domain.classes)]
        for metric in suite.metrics:
            if metric not in metrics.defined(kept):
                raise NotelaError(
                    f"the {len(kept)} held-out labels of {name} do not define {metric} (cmap needs a class with 5 "
                    "positives, auroc positives and negatives); give it more examples"
                )


@torch.no_grad()
def _check_classes(loaded: Loaded, domain: Domain) -> None:
    x = Unlabelled(domain.test).example()
    try:
        logits = split_output(loaded.model(to_model(x, torch.device("cpu"), floating_type(loaded.model))))[1]
    except RuntimeError as error:
        raise NotelaError(
            f"the model cannot take inputs of shape {tuple(x.shape)} ({str(error).splitlines()[0]}); change the "
            "preprocessing or the model"
        ) from error
    if logits.shape[1] != len(loaded.suite.class_names):
        raise NotelaError(
            f"the model has {logits.shape[1]} outputs and the class list {len(loaded.suite.class_names)} names; "
            "name every output, in order"
        )


def validation_records(folder: Path, protocol: Protocol) -> Records:
    """All that selection may read."""
    return Records(folder / "validation.jsonl", protocol.validation)


def test_records(folder: Path, protocol: Protocol) -> Records:
    """What only tables and figures read."""
    return Records(folder / "test.jsonl", [*protocol.test, SOURCE])


class _Runner:
    def __init__(self, suite: str, unfinished: Path, engine: Engine, progress: Progress, retry_failed: bool) -> None:
        self._suite, self._unfinished, self._engine, self._progress = suite, unfinished.resolve(), engine, progress
        self._retry_failed = retry_failed
        self.failures: list[Failure] = []

    def run(self, stage: str, jobs: Sequence[Job], records: Records) -> None:
        """Run the jobs that have no record yet, and those that failed if that is wanted."""
        if not jobs:
            return
        waiting = []
        finished = failed = 0
        for job in _new(jobs):
            record = records.get(job.key)
            if record is None or ("error" in record and self._retry_failed):
                waiting.append(job)
            elif "error" in record:
                failed += 1
                self._fail(job, record)
            else:
                finished += 1
        self._progress.stage(stage, waiting, finished, failed)
        trials = [trial.Trial(self._suite, job, str(self._unfinished)) for job in waiting]
        for outcome in self._engine.map(trial.run, trials):
            job = outcome.item.job
            record = outcome.value
            if outcome.error is not None:
                record = {**trial.start_of_record(job), "error": outcome.error, "unexpected": outcome.trace or True}
            records.append({**record, "seconds": round(outcome.seconds, 2)})
            if "error" in record:
                self._fail(job, record)
            if "unexpected" not in record:
                trial.forget(self._unfinished, job)
            self._progress.ended(job, outcome.seconds, failed="error" in record)

    def _fail(self, job: Job, record: Record) -> None:
        run = f"{job.method} on {job.domain}, seed {job.seed}"
        self.failures.append(Failure(run, record["error"], "unexpected" in record))


def _check_search(protocol: Protocol, validation: Records, folder: Path) -> None:
    """A candidate may lose by its own doing, not because a worker or a disk failed it."""
    unexpected = []
    for job in _new(protocol.search()):
        record = validation.get(job.key)
        if record is not None and "unexpected" in record:
            unexpected.append(f"{job.method} on {job.domain}: {record['error']}")
    if unexpected:
        raise NotelaError(
            f"{len(unexpected)} runs of the search failed for reasons that are not their settings' (first: "
            f"{unexpected[0]}); nothing was chosen; mend it and run the same command with --retry-failed; "
            f"details in {folder / 'validation.jsonl'}"
        )


def _new(jobs: Iterable[Job], known: Iterable[Job] = ()) -> list[Job]:
    """Each job once, without those already known."""
    seen = {job.key for job in known}
    found = {job.key: job for job in jobs if job.key not in seen}
    return list(found.values())
