"""One job, from fingerprints to record; what a worker runs, wherever it is."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock

from notela.bench.plan import SUPERVISED, Job, code_version, is_guarded
from notela.bench.suite import Domain, Loaded, Suite, find
from notela.bench.supervised import with_labels
from notela.errors import NotelaError
from notela.evaluation import Predict, pick_device, predict
from notela.loop import adapt
from notela.methods.base import Preset
from notela.metrics import as_array

CHECKPOINT_SECONDS = 20.0
"""Checkpoints are written after an epoch, but not more often: shorter runs would pay several per cent for them."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SHOWN_CLASSES = 12


class Trial(NamedTuple):
    """A job, its suite, and the folder where it may leave what it has done so far."""

    suite: str
    job: Job
    folder: str


def run(trial: Trial) -> dict[str, Any]:
    """A job's record: the metrics after each epoch, and what a figure or a reader will want to know.

    A method that fails by itself (its loss became NaN, say) has a record too, with its "error". What is not the
    method's doing (other data here, a full disk) is raised, and must not count against it.
    """
    job = trial.job
    loaded = _loaded(trial.suite)
    suite, model = loaded.suite, loaded.model
    domain, data = loaded.domain(job.domain)
    here = {"model": loaded.model_fingerprint, "data": data, "code": code_version(job.method, is_guarded(job.preset))}
    for part, expected in job.fingerprints.items():
        if here[part] != expected:
            raise NotelaError(
                f"the {part} of {job.domain} with {job.method} is not the same here as where this was started "
                f"(fingerprint {here[part]}, expected {expected}); install the same notela and data on every node"
            )
    evaluator = suite.evaluator(domain)
    record = start_of_record(job)
    record["made_with"] = {
        "torch": torch.__version__,
        "device": pick_device(None).type,
        "threads": torch.get_num_threads(),
    }
    if job.preset is None:
        epochs, final = [evaluator(Predict(model, domain.classes))], model
    else:
        preset = job.preset
        if job.method == SUPERVISED:
            preset = with_labels(preset, domain.adapt_labels)
        try:
            with _unfinished(trial) as folder:
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
                    checkpoint_seconds=CHECKPOINT_SECONDS,
                    progress=False,
                )
        except NotelaError as error:
            if error.__cause__ is not None:  # a file that cannot be read or written
                raise
            return {**record, "error": str(error)}
        epochs, final = [epoch["evaluation"] for epoch in result.history], result.model
        assert result.evaluation is not None
        # A run that its guard cut short, or turned back, ends with the model that it gave.
        epochs = [*epochs[:-1], *[result.evaluation] * (preset.epochs - len(epochs) + 1)]
        record["notes"] = result.notes
        record["kept"] = result.verdict.epoch
        looks = [result.verdict.before, *(epoch["signals"] for epoch in result.history), result.verdict.after]
        record["signals"] = [{name: round(value, 4) for name, value in look.items()} for look in looks]
    record["evaluation"] = {name: [round(epoch[name], 6) for epoch in epochs] for name in suite.metrics}
    if job.probabilities:
        corrects = job.preset is not None and job.preset.method.corrects
        record["probabilities"] = _distributions(suite, final, domain, job.preset if corrects else None)
    json.dumps(record, allow_nan=False)  # what cannot be written must fail here, not where records are kept
    return record


def start_of_record(job: Job) -> dict[str, Any]:
    """What every record says."""
    return {"key": job.key, "domain": job.domain, "seed": job.seed, "settings": job.settings}


@contextlib.contextmanager
def _unfinished(trial: Trial) -> Iterator[Path]:
    """A run's folder, held against a second process. Where records are kept, the runner removes it once the record is
    written; elsewhere it goes now."""
    root, shared = Path(trial.folder), True
    if not root.is_dir():  # a node of a cluster that does not share the disk
        root, shared = Path(tempfile.gettempdir()) / f"notela-{os.getuid() if hasattr(os, 'getuid') else ''}", False
        root.mkdir(exist_ok=True)
    path = root / trial.job.key
    with FileLock(root / f"{trial.job.key}.lock"):
        try:
            yield path
        except NotelaError as error:
            if error.__cause__ is None and not shared:
                _discard(path)
            raise
        if not shared:
            _discard(path)


def _discard(path: Path) -> None:
    """Renamed first: half a folder could not be resumed."""
    gone = path.with_suffix(".done")
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def forget(folder: Path, job: Job) -> None:
    """Remove what a run left behind, now that it has a record."""
    shutil.rmtree(folder / job.key, ignore_errors=True)
    with contextlib.suppress(OSError):
        (folder / f"{job.key}.lock").unlink(missing_ok=True)


def _distributions(suite: Suite, model: Any, domain: Domain, method: Preset | None) -> dict[str, list[float]]:
    """For the most frequent classes, quantiles of the class's probability on the held-out examples that hold it."""
    p = as_array(predict(model, domain.test, task=suite.task, classes=domain.classes, method=method))
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
