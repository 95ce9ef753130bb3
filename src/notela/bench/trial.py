"""One job, from fingerprints to record; what a worker runs, wherever it is."""

from __future__ import annotations

import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock

from notela.bench.plan import SUPERVISED, Job, code_version
from notela.bench.suite import Domain, Loaded, Suite, find
from notela.errors import NotelaError
from notela.evaluation import Predict, predict
from notela.loop import adapt
from notela.metrics import as_array

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SHOWN_CLASSES = 12


class Trial(NamedTuple):
    """A job, and the folder where it may leave what it has done so far."""

    job: Job
    folder: str


def run(trial: Trial) -> dict[str, Any]:
    """A job's record: the metrics after each epoch, and what a figure or a reader will want to know."""
    job = trial.job
    loaded = _loaded(job.suite)
    suite, model = loaded.suite, loaded.model
    domain, data = loaded.domain(job.domain)
    here = {"model": loaded.model_fingerprint, "data": data, "code": code_version(job.method)}
    for part, expected in job.fingerprints.items():
        if here[part] != expected:
            raise NotelaError(
                f"the {part} of {job.domain} with {job.method} is not the same here as where this was started "
                f"(fingerprint {here[part]}, expected {expected}); install the same notela and data on every node"
            )
    evaluator = suite.evaluator(domain)
    record: dict[str, Any] = {
        "key": job.key,
        "domain": job.domain,
        "seed": job.seed,
        "settings": job.settings,
    }
    if job.preset is None:
        epochs, final = [evaluator(Predict(model, domain.classes))], model
    else:
        preset = job.preset
        if job.method == SUPERVISED:
            from notela.bench.supervised import with_labels

            if domain.adapt_labels is None:
                raise NotelaError(f"{job.domain} has no labels for its adaptation set: no supervised ceiling")
            preset = with_labels(preset, domain.adapt_labels)
        with _Unfinished(trial) as folder:
            result = adapt(
                model,
                domain.adapt,
                task=suite.task,
                method=preset,
                batch_size=preset.batch_size,
                classes=domain.classes,
                seed=job.seed,
                evaluator=evaluator,
                run_dir=folder,
                progress=False,
            )
        epochs, final = [epoch["evaluation"] for epoch in result.history], result.model
        record["notes"] = result.notes
    missing = set(suite.metrics) - epochs[0].keys()
    if missing:
        raise NotelaError(f"the labels of {job.domain} do not define {sorted(missing)[0]}; see notela.metrics.defined")
    record["evaluation"] = {name: [round(epoch[name], 6) for epoch in epochs] for name in suite.metrics}
    if job.probabilities:
        record["probabilities"] = _distributions(suite, final, domain)
    return record


class _Unfinished:
    """A run's folder while it runs, held against a second process; it goes when the run has ended well."""

    def __init__(self, trial: Trial) -> None:
        root = Path(trial.folder)
        if not root.is_dir():  # a node of a cluster that does not share the disk
            root = Path(tempfile.gettempdir()) / "notela-unfinished"
            root.mkdir(exist_ok=True)
        self._path = root / trial.job.key
        self._lock = FileLock(root / f"{trial.job.key}.lock")

    def __enter__(self) -> Path:
        self._lock.acquire()
        return self._path

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            shutil.rmtree(self._path, ignore_errors=True)
            Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()


def _distributions(suite: Suite, model: Any, domain: Domain) -> dict[str, list[float]]:
    """For the most frequent classes, quantiles of the class's probability on the held-out examples that hold it."""
    p = as_array(predict(model, domain.test, task=suite.task, classes=domain.classes))
    labels = as_array(domain.test_labels)
    kept = np.arange(len(suite.class_names)) if domain.classes is None else np.asarray(domain.classes)
    holds = labels[:, None] == kept if suite.task == "singlelabel" else labels[:, kept] > 0
    frequent = np.sort(np.argsort(-holds.sum(0), kind="stable")[:SHOWN_CLASSES])
    return {
        suite.class_names[kept[c]]: [round(float(q), 4) for q in np.quantile(p[holds[:, c], c], QUANTILES)]
        for c in frequent
        if holds[:, c].any()
    }


@lru_cache(maxsize=1)
def _loaded(reference: str) -> Loaded:
    return Loaded(find(reference))
