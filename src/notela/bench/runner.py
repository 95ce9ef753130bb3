"""The whole comparison: search, select, repeat with seeds, test; then tables and figures.

folder/protocol.json      what was asked for, and fingerprints
folder/validation.jsonl   records of the validation domains: all that selection reads
folder/test.jsonl         records of the test domains
folder/unfinished/        runs that were cut off, resumed by the next command
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from notela.bench import plan, trial
from notela.bench.plan import SOURCE, Job, Protocol
from notela.bench.progress import Progress
from notela.bench.records import Records
from notela.bench.select import select
from notela.bench.suite import Loaded, find
from notela.engines import Engine
from notela.errors import NotelaError


def bench(
    reference: str,
    folder: Path,
    engine: Engine,
    *,
    methods: Iterable[str] | None = None,
    trials: int | None = 24,
    seeds: int = 5,
    retry_failed: bool = False,
) -> list[str]:
    """Run whatever of a suite's comparison is not recorded in `folder` yet. Returns what failed, a line each."""
    suite = find(reference)
    if reference.endswith(".toml"):
        reference = str(Path(reference).resolve())
    protocol = plan.make(suite, reference, chosen_methods=methods, trials=trials, seeds=seeds)
    try:
        (folder / "unfinished").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotelaError(f"cannot make the folder {folder}: {error.strerror}") from error
    loaded = Loaded(suite)
    with Progress(protocol.count(), engine) as progress, _only_one(folder, progress):
        protocol.model = loaded.model_fingerprint
        with engine:
            runner = _Runner(folder, engine, progress, retry_failed)
            fingerprint(protocol, loaded, protocol.validation)
            protocol.write(folder / "protocol.json")
            validation = validation_records(folder, protocol)
            runner.run("search", protocol.search(), validation)

            chosen = {method: choice.preset for method, choice in select(protocol, validation).items()}
            repeats = _new(protocol.repeats(chosen), protocol.search())

            fingerprint(protocol, loaded, [*protocol.test, SOURCE] if protocol.has_source_data else protocol.test)
            protocol.write(folder / "protocol.json")
            tests = _new(protocol.tests(chosen), ())
            progress.total = len(_new(protocol.search(), ())) + len(repeats) + len(tests)
            runner.run("validation", repeats, validation)
            runner.run("test", tests, test_records(folder, protocol))
        if not runner.failures:
            shutil.rmtree(folder / "unfinished")
    return runner.failures


def fingerprint(protocol: Protocol, loaded: Loaded, domains: Iterable[str]) -> None:
    """Load domains one by one, and note what they are."""
    for name in domains:
        domain, protocol.domains[name] = loaded.domain(name)
        protocol.sizes[name] = [len(domain.adapt), len(domain.test)]


def validation_records(folder: Path, protocol: Protocol) -> Records:
    """All that selection may read."""
    return Records(folder / "validation.jsonl", protocol.validation)


def test_records(folder: Path, protocol: Protocol) -> Records:
    """What only tables and figures read."""
    return Records(folder / "test.jsonl", [*protocol.test, SOURCE])


class _Runner:
    def __init__(self, folder: Path, engine: Engine, progress: Progress, retry_failed: bool) -> None:
        self._folder, self._engine, self._progress, self._retry_failed = folder, engine, progress, retry_failed
        self.failures: list[str] = []

    def run(self, stage: str, jobs: Sequence[Job], records: Records) -> None:
        """Run the jobs that have no record yet, and those that failed if that is wanted."""
        waiting = {}
        finished = failed = 0
        for job in _new(jobs, ()):
            record = records.get(job.key)
            if record is None or ("error" in record and self._retry_failed):
                waiting[job.key] = job
            elif "error" in record:
                failed += 1
                self._fail(job, record["error"])
            else:
                finished += 1
        self._progress.stage(stage, list(waiting.values()), finished, failed)
        where = str((self._folder / "unfinished").resolve())
        for outcome in self._engine.map(trial.run, [trial.Trial(job, where) for job in waiting.values()]):
            job = outcome.item.job
            del waiting[job.key]
            record = outcome.value
            if outcome.error is not None:
                record = {"key": job.key, "domain": job.domain, "seed": job.seed, "settings": job.settings}
                record |= {"error": outcome.error} | ({"trace": outcome.trace} if outcome.trace else {})
                self._fail(job, outcome.error)
            records.append({**record, "seconds": round(outcome.seconds, 2)})
            self._progress.ended(job, outcome.seconds, list(waiting.values()), outcome.error is not None)

    def _fail(self, job: Job, error: str) -> None:
        self.failures.append(f"{job.method} on {job.domain}, seed {job.seed}: {error}")


def _new(jobs: Iterable[Job], known: Iterable[Job]) -> list[Job]:
    """Each job once, without those already known."""
    seen = {job.key for job in known}
    return [job for job in jobs if not (job.key in seen or seen.add(job.key))]  # type: ignore[func-returns-value]


class _only_one:
    """The folder's lock: a second command on the same folder waits for the first, then does what is left."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self._lock, self._folder, self._progress = FileLock(folder / ".lock"), folder, progress

    def __enter__(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            self._progress.say(f"another notela bench is at work in {self._folder}; waiting for it (Ctrl-C to stop)")
            self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
