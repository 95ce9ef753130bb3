"""Numbers out of records: means, intervals, hindsight, shares of the gap. Nothing here loads a model or data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from notela.bench import plan
from notela.bench.plan import SEARCH_SEED, SOURCE, SUPERVISED, Job
from notela.bench.records import Record, Records
from notela.bench.runner import test_records, validation_records
from notela.bench.select import select
from notela.bench.suite import command
from notela.errors import NotelaError
from notela.methods import NICKNAMES
from notela.methods.base import Preset

Floats = npt.NDArray[np.float64]

TITLES = {
    SOURCE: "Source",
    "adabn": "AdaBN",
    "tent": "TENT",
    "shot": "SHOT",
    "pseudo_label": "PL",
    "dust": "DUST",
    "nrc": "NRC",
    "dropout_student": "Dropout Student",
    "notela": "NOTELA",
    "rpl": "RPL",
    "aad": "AaD",
    "eta": "ETA",
    "lame": "LAME",
    "centred": "NOTELA, centred",
    "auto": "auto",
    SUPERVISED: "Supervised",
}
METRIC_TITLES = {
    "accuracy": "accuracy",
    "per_class": "mean per-class accuracy",
    "map": "mAP",
    "cmap": "cmAP",
    "auroc": "AUROC",
    "top1": "top-1 hit rate",
}


def title(method: str) -> str:
    """As tables and figures call it."""
    return TITLES.get(method, method)


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and the half-width of its 95 % interval (Student's t)."""

    mean: float
    half: float = 0.0
    seeds: int = 1
    failed: int = 0

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half


def estimate(values: Sequence[float] | Floats, failed: int = 0) -> Estimate:
    """Mean and interval of values from independent seeds; one value has no interval.

    >>> e = estimate([1.0, 2.0, 3.0])
    >>> e.mean, round(e.half, 3)
    (2.0, 2.484)
    """
    x = np.asarray(values, dtype=np.float64)
    if len(x) == 0:
        return Estimate(math.nan, 0.0, 0, failed)
    half = 0.0 if len(x) == 1 else float(student.ppf(0.975, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))
    return Estimate(float(x.mean()), half, len(x), failed)


def varied(method: str) -> list[str]:
    """The settings that a method's grid varies, or that a preset with a name of its own is made of.

    >>> varied("adabn"), varied("tent")
    (['noise'], ['trainable', 'learning_rate', 'schedule', 'statistics', 'noise'])
    """
    if method in NICKNAMES:
        return [*varied("notela"), "metric", "message", "teacher_momentum", "guard"]
    points = [point.settings() for point in plan.grid(method)]
    return [name for name in points[0] if len({str(point[name]) for point in points}) > 1]


class Results:
    """A finished comparison, read from its folder; metrics come in per cent."""

    def __init__(self, folder: Path) -> None:
        self.protocol = plan.read(folder / "protocol.json")
        self._records = validation_records(folder, self.protocol), test_records(folder, self.protocol)
        self.unexpected = 0
        """Runs that failed for reasons that are not their method's doing."""
        self._check_complete(folder, self.protocol.search(), self._records[0])
        self.choices = select(self.protocol, self._records[0])
        self.chosen: dict[str, Preset] = {method: choice.preset for method, choice in self.choices.items()}
        self._check_complete(folder, self.protocol.repeats(self.chosen), self._records[0])
        self._check_complete(folder, self.protocol.tests(self.chosen), self._records[1])
        self.ablation = (
            plan.ablation(self.chosen["notela"]) if "notela" in self.chosen and self.protocol.searched else {}
        )

    def _check_complete(self, folder: Path, jobs: Sequence[Job], records: Records) -> None:
        found = {job.key: records.get(job.key) for job in jobs}
        missing = sum(record is None for record in found.values())
        if missing:
            raise NotelaError(
                f"{missing} runs have no record in {folder} yet, or were made with other code or data; run the same "
                f"`{command(self.protocol.suite)}` again to make them"
            )
        self.unexpected += sum("unexpected" in record for record in found.values() if record is not None)

    @property
    def methods(self) -> list[str]:
        """Those with a setting that survived the search."""
        return [method for method in self.protocol.methods if method in self.chosen]

    # ---- single runs

    def record(self, domain: str, method: str, preset: Preset | None, seed: int) -> Record | None:
        """A run that ended well."""
        records = self._records[domain not in self.protocol.validation]
        return records.done(self.protocol.job(domain, method, preset, seed).key)

    def curves(self, domain: str, method: str, metric: str, preset: Preset | None = None) -> dict[int, Floats]:
        """By seed, the metric after each epoch."""
        preset = self.chosen[method] if preset is None else preset
        runs = {seed: self.record(domain, method, preset, seed) for seed in range(self.protocol.seeds_of(domain))}
        return {
            seed: 100 * np.array(record["evaluation"][metric]) for seed, record in runs.items() if record is not None
        }

    def source(self, domain: str, metric: str) -> float:
        """The source model as it is."""
        record = self.record(domain, SOURCE, None, SEARCH_SEED)
        return math.nan if record is None else 100 * float(record["evaluation"][metric][-1])

    def searched(self, method: str) -> list[tuple[Preset, float]]:
        """Every candidate that survived, and its mean over the validation domains."""
        found = []
        for candidate in self.protocol.candidates(method):
            runs = [self.record(domain, method, candidate, SEARCH_SEED) for domain in self.protocol.validation]
            if all(run is not None for run in runs):
                last = [run["evaluation"][self.protocol.metrics[0]][-1] for run in runs if run is not None]
                found.append((candidate, 100 * float(np.mean(last))))
        return found

    # ---- over seeds and domains

    def last(self, domains: Sequence[str], method: str, metric: str, preset: Preset | None = None) -> Estimate:
        """The metric at the last epoch; of several domains the mean, seed by seed."""
        return self._estimate(domains, method, metric, preset, hindsight=False)

    def oracle(self, domains: Sequence[str], method: str, metric: str) -> Estimate:
        """In hindsight: at the epoch that was best on each domain's own labels."""
        return self._estimate(domains, method, metric, None, hindsight=True)

    def share_of_gap(self, domains: Sequence[str], method: str, metric: str) -> Estimate:
        """Per cent of the way from source to supervised (its mean over seeds); NaN where supervision gains nothing."""
        source = self.last(domains, SOURCE, metric).mean
        gap = self.last(domains, SUPERVISED, metric).mean - source if SUPERVISED in self.chosen else math.nan
        scale = 100 / gap if gap > 0 else math.nan
        last = self.last(domains, method, metric)
        return replace(last, mean=scale * (last.mean - source), half=scale * last.half)

    def _estimate(
        self, domains: Sequence[str], method: str, metric: str, preset: Preset | None, hindsight: bool
    ) -> Estimate:
        if method == SOURCE:
            return Estimate(float(np.mean([self.source(domain, metric) for domain in domains])))
        of_domains = [self.curves(domain, method, metric, preset) for domain in domains]
        planned = min(self.protocol.seeds_of(domain) for domain in domains)
        complete = [seed for seed in range(planned) if all(seed in curves for curves in of_domains)]
        values = [
            np.mean([curves[seed].max() if hindsight else curves[seed][-1] for curves in of_domains])
            for seed in complete
        ]
        return estimate(np.array(values), failed=planned - len(complete))
