"""Whether rules that are learned read the signs better than the score of `notela.guard` does: fitted on the validation
runs of `benchmarks/thresholds.py`, compared there (on domains, or suites, that were left out of the fit) and on the
beds.

    python benchmarks/learned.py results/beyond
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from beyond import MARGIN, SIGNS, beds, by_bed, watched
from notela.guard import collapsed, rise
from notela.lines import Lines
from notela.signals import Signals
from notela.task import Task
from thresholds import task_of

STRENGTH = re.compile(r"[?&]strength.*|:.*")
"""What a suite's name goes on with."""
REFUSED = 0.1
"""The share of helpful runs that may be refused where rules are compared."""
RULES: dict[str, Callable[[], Any]] = {
    "logistic regression": lambda: make_pipeline(
        StandardScaler(), LogisticRegression(C=0.3, class_weight="balanced", max_iter=1_000)
    ),
    "boosted trees": lambda: HistGradientBoostingClassifier(max_depth=3, max_iter=60, class_weight="balanced"),
}


class Seen(NamedTuple):
    """A run that helped or hurt."""

    group: str
    """The validation domain, or the bed."""
    task: Task
    helped: bool
    before: Signals
    after: Signals

    def changes(self) -> list[float]:
        return [sign(self.after) - sign(self.before) for sign in SIGNS.values()] + [
            float(np.log(max(self.after.rank, 1.0) / max(self.before.rank, 1.0))),
            float(np.log(max(self.after.classes, 0.1) / max(self.before.classes, 0.1))),
        ]

    def rise(self) -> float:
        """Of the score, with a collapse below everything."""
        return rise(self.before, self.after, self.task) - 1e3 * collapsed(self.before, self.after)


def validation(path: Path) -> list[Seen]:
    last = {(one["suite"], one["domain"], one["settings"]): one for one in Lines(path) if one["settings"] != "auto"}
    return [
        Seen(f"{suite}: {domain}", task_of(one), one["change"] > 0, Signals(**one["before"]), Signals(**one["after"]))
        for (suite, domain, _), one in last.items()
        if abs(one["change"]) > MARGIN
    ]


def on_beds(folder: Path) -> list[Seen]:
    runs = [run for where in (folder, folder / "bad") for bed in beds(where) for run in watched(bed)]
    return [
        Seen(name, run.task, run.truth == "helped", run.before, run.after)
        for name, group in by_bed(runs).items()
        for run in group
        if run.truth != "neither" and not np.isnan([*run.before, *run.after]).any()
    ]


def cells(helped: np.ndarray, says: np.ndarray, groups: np.ndarray) -> list[str]:
    """Area under the ROC curve, and the share of harmful runs caught where a tenth of the helpful ones is refused; mean
    over groups, where each was judged by a fit of its own scale."""
    found = []
    for group in np.unique(groups):
        truth, said = helped[groups == group], says[groups == group]
        limit = np.quantile(said[truth], REFUSED)
        found.append([roc_auc_score(truth, said), 100 * np.mean(said[~truth] < limit)])
    area, caught = np.mean(found, axis=0)
    return [f"{area:.2f}", f"{caught:.0f} %"]


def main(folder: Path) -> None:
    fitted, judged = validation(folder / "thresholds.jsonl"), on_beds(folder)
    print(f"caught: harmful runs below the {REFUSED:.0%} quantile of helpful ones, wherever that is. On the beds that")
    print("hangs on how many runs of cifar10c are counted, where nothing does harm: only the area is given.\n")
    print("| items | rule | domain left out: area | caught | suite left out: area | caught | beds: area |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for task, kind in (("singlelabel", "one class"), ("multilabel", "several classes")):
        here, there = ([one for one in runs if one.task == task] for runs in (fitted, judged))
        truths = [np.array([one.helped for one in runs]) for runs in (here, here, there)]
        rows = {"score": [np.array([one.rise() for one in runs]) for runs in (here, here, there)]}
        x, beyond = (np.array([one.changes() for one in runs]) for runs in (here, there))
        domains = np.array([one.group for one in here])
        suites = np.array([STRENGTH.sub("", one.group) for one in here])
        parts = [np.zeros(len(here)), suites, np.zeros(len(there))]
        for name, make in RULES.items():
            rows[name] = [
                cross_val_predict(
                    make(), x, truths[0], groups=parted, cv=LeaveOneGroupOut(), method="decision_function"
                )
                for parted in (domains, suites)
            ]
            rows[name].append(make().fit(x, truths[0]).decision_function(beyond))
        for name, says in rows.items():
            found = [cell for each in zip(truths, says, parts, strict=True) for cell in cells(*each)][:-1]
            print(f"| {kind} ({len(here)} and {len(there)} runs) | {name} | {' | '.join(found)} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
