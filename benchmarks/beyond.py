"""The tables of `results/beyond`, from the records of `notela bench` under it: what each method does on every bed, its
worst case, what auto decided, how often the verdict on a run was right, and what each ingredient is worth.

    results/beyond/BED                a bed, with published settings, centred, auto and the ceiling
    results/beyond/bad/BED            the same methods with settings that should do harm
    results/beyond/ablation/BED-WHAT  `centred` with something changed (`--with`)

    notela bench digits --trials none --methods tent,notela,centred,auto,supervised --to results/beyond/digits
    python benchmarks/real_birds.py ../shared/data --clips
    notela bench digits --trials none --with learning_rate=x10 --with epochs=100 --to results/beyond/bad/digits
    notela bench digits --trials none --methods centred --with message=votes --to results/beyond/ablation/digits-message
    python benchmarks/beyond.py results/beyond
"""

from __future__ import annotations

import math
import sys
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import roc_auc_score

from notela.bench.plan import SOURCE, SUPERVISED, is_guarded
from notela.bench.results import METRIC_TITLES, TITLES, Results, title
from notela.guard import compare, rise
from notela.signals import Signals
from notela.task import Task

MARGIN = 1.0
"""Points of the first metric beyond which a run is said to have helped or hurt."""
HEALTH = ("better", "unclear", "worse")
SIZES = (-100, -5, -3, -1, 1, 3, 5, 100)
"""Of gains and losses, in points."""


class Bed(NamedTuple):
    """Some domains of a comparison that belong together."""

    name: str
    results: Results
    domains: list[str]

    def change(self, method: str, domain: str, metric: str) -> np.ndarray:
        """Of each seed, what the run gained."""
        curves = self.results.curves(domain, method, metric)
        return np.array([curve[-1] for curve in curves.values()]) - self.results.source(domain, metric)

    @property
    def metrics(self) -> list[str]:
        return self.results.protocol.metrics[:2]


def beds(folder: Path) -> list[Bed]:
    """Real birds come in two parts: in noise, and on clips that were held out."""
    found = []
    for path in sorted(folder.glob("*/protocol.json")):
        results, name = Results(path.parent), path.parent.name
        kinds: dict[str, list[str]] = defaultdict(list)
        for domain in results.protocol.test:
            kinds[domain.split()[0] if name.startswith("real-birds") else ""].append(domain)
        found += [Bed(f"{name}, {kind}" if kind else name, results, domains) for kind, domains in kinds.items()]
    return found


def main(folder: Path) -> None:
    every = beds(folder)
    text = ["# Beyond the paper", "", "Made by `python benchmarks/beyond.py` from the records in these folders.", ""]
    text += gains(every, 0) + gains([bed for bed in every if len(bed.metrics) > 1], 1)
    runs = [run for bed in every for run in watched(bed)]
    bad = [run._replace(bed=f"bad settings: {bed.name}") for bed in beds(folder / "bad") for run in watched(bed)]
    text += decisions(every) + verdicts(runs, bad) + signs(runs, bad) + ablation(every, folder / "ablation")
    (folder / "README.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return [lines[0], "|---|" + "---:|" * (len(head) - 1), *lines[1:], ""]


def gains(every: list[Bed], which: int) -> list[str]:
    """Methods × beds: mean over domains and seeds, share of the gap, and the worst against the source."""
    present = {name for bed in every for name in bed.results.methods}
    rows = []
    for method in (SOURCE, *(name for name in TITLES if name in present), SUPERVISED):
        cells, worst, runs = [], [], []
        for bed in every:
            metric = bed.metrics[which]
            mean = bed.results.last(bed.domains, method, metric) if method in (SOURCE, *bed.results.chosen) else None
            if mean is None or np.isnan(mean.mean):
                cells.append("–")
                continue
            share = bed.results.share_of_gap(bed.domains, method, metric).mean
            plain = method in (SOURCE, SUPERVISED) or np.isnan(share)
            cells.append(f"{mean.mean:.1f}" + ("" if plain else f" ({share:.0f} %)"))
            for domain in bed.domains if method != SOURCE else ():
                change = bed.change(method, domain, metric)
                worst.append((change.mean(), f"{bed.name}: {domain}"))
                runs.append((change.min(), f"{bed.name}: {domain}"))
        low = [f"{min(each)[0]:+.1f} ({min(each)[1]})" if each else "" for each in (worst, runs)]
        rows.append([title(method), *cells, *low])
    heads = [f"{bed.name} ({METRIC_TITLES[bed.metrics[which]]})" for bed in every]
    number = ("first", "second")[which]
    return [
        f"## Every bed, {number} metric",
        "",
        "Per cent, mean over domains and seeds, last epoch; in brackets the share of the way from source to "
        "supervised. Worst: the largest loss against the source, of a domain (mean over seeds) and of a single run.",
        "",
        *table(["method", *heads, "worst domain", "worst run"], rows),
    ]


def records(bed: Bed) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Domain, method and record of every run without labels."""
    for domain in bed.domains:
        for method in bed.results.methods:
            preset = bed.results.chosen[method]
            for seed in range(bed.results.protocol.seeds_of(domain)):
                record = bed.results.record(domain, method, preset, seed)
                if record is not None and is_read(record, bed.results.protocol.task):
                    yield domain, method, record


def is_read(record: dict[str, Any], task: Task) -> bool:
    """Whether a record has the signs that the verdict reads today."""
    if "signals" not in record:
        return False
    before, after = look(record, 0), look(record, -1)
    return not any(map(math.isnan, (before.classes, after.classes, rise(before, after, task))))


def look(record: dict[str, Any], which: int) -> Signals:
    """What was seen of a run: 0 of its source, then of each epoch, -1 of its result. NaN is for signs that an older
    notela did not read yet."""
    return Signals(**dict.fromkeys(Signals._fields, math.nan) | record["signals"][which])


def decisions(every: list[Bed]) -> list[str]:
    """What auto did with statistics and epochs."""
    kinds = {
        "stay the source's": "source's statistics",
        "were taken half-way": "half-way",
        "in doubt": "half-way, in doubt",
        "were taken from the target": "the target's",
    }
    rows = []
    for bed in every:
        counts: Counter[str] = Counter()
        for _, method, record in records(bed):
            if method == "auto":
                notes = " ".join(record["notes"])
                counts[next((kind for words, kind in kinds.items() if words in notes), "no norm statistics")] += 1
                last = len(record["signals"]) - 2
                counts["last epoch" if record["kept"] == last else "an earlier one" if record["kept"] else "none"] += 1
        columns = (*kinds.values(), "no norm statistics", "last epoch", "an earlier one", "none")
        if counts:
            rows.append([bed.name, *(str(counts[name]) if counts[name] else "" for name in columns)])
    return [
        "## What auto decided",
        "",
        "Runs by whose statistics training began with, and by the epoch that was kept (none: the statistics alone, "
        "where they were taken without doubt, else the source). Here and below, runs are left out that an older notela "
        "did not look at as the verdict does today.",
        "",
        *table(["bed", *columns], rows),
    ]


class Run(NamedTuple):
    """One run whose guard only watched: what it gained or lost on held-out labels, and what was seen without them."""

    bed: str
    task: Task
    changes: list[float]
    """Of the bed's metrics, in points."""
    before: Signals
    after: Signals

    @property
    def truth(self) -> str:
        return truth(self.changes[0])

    @property
    def said(self) -> str:
        return compare(self.before, self.after, self.task)[0]


def truth(change: float) -> str:
    return "helped" if change > MARGIN else "hurt" if change < -MARGIN else "neither"


def watched(bed: Bed) -> Iterator[Run]:
    """Runs whose guard acted are left out: their result was chosen by the very signs that are judged here."""
    for domain, method, record in records(bed):
        if not is_guarded(bed.results.chosen[method]):
            changes = [
                100 * record["evaluation"][metric][-1] - bed.results.source(domain, metric) for metric in bed.metrics
            ]
            task = bed.results.protocol.task
            yield Run(bed.name, task, changes, look(record, 0), look(record, -1))


def by_bed(runs: list[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.bed].append(run)
    return dict(groups)


def percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.0f} %"


def verdicts(runs: list[Run], bad: list[Run]) -> list[str]:
    """What the verdict says of runs that helped, hurt, or did neither."""
    groups = by_bed([*runs, *bad])
    groups["all published and centred"], groups["all bad settings"] = runs, bad
    groups["all"] = [*runs, *bad]
    groups["all, less those whose second metric says the opposite"] = [
        run for run in groups["all"] if {truth(change) for change in run.changes} != {"helped", "hurt"}
    ]
    rows, shares = [], {}
    for name, group in groups.items():
        counts = Counter((run.truth, run.said) for run in group)
        said = {what: [counts[what, health] for health in HEALTH] for what in ("helped", "neither", "hurt")}
        shares[name] = [100 * said[t][2] / sum(said[t]) if sum(said[t]) else math.nan for t in ("hurt", "helped")]
        rows.append([name, *(" / ".join(map(str, said[t])) for t in said), *map(percent, shares[name])])
    alone = np.array([shares[name] for name in by_bed(runs)])
    rows.append(["mean of the beds of published and centred", "", "", "", *map(percent, np.nanmean(alone, axis=0))])
    sizes: dict[str, Counter[str]] = {f"{low:g} to {high:g}": Counter() for low, high in pairwise(SIZES)}
    for run in groups["all"]:
        sizes[list(sizes)[bisect(SIZES[1:-1], run.changes[0])]][run.said] += 1
    return [
        "## The verdict",
        "",
        f"Runs that gained or lost more than {MARGIN:g} point of the first metric on held-out labels, and what is said "
        "of them without labels (better / unclear / worse). Caught: harmful runs called worse. Refused: helpful ones "
        "called worse. Beds differ in the number of their runs; in the last row each counts once.",
        "",
        *table(["bed", "helped", "neither", "hurt", "caught", "refused"], rows),
        "By how much a run gained or lost:",
        "",
        *table(
            ["points", "runs", *HEALTH],
            [
                [size, str(n.total()), *(f"{100 * n[health] / max(n.total(), 1):.0f} %" for health in HEALTH)]
                for size, n in sizes.items()
            ],
        ),
    ]


SIGNS: dict[str, Callable[[Signals], float]] = {
    "information": lambda s: s.information,
    "smoothness": lambda s: s.smoothness,
    "forward smoothness": lambda s: s.forward_smoothness,
    "backward smoothness": lambda s: s.backward_smoothness,
    "agreement": lambda s: s.agreement,
    "classes": lambda s: s.classes,
    "positives": lambda s: s.positives,
    "mix stays": lambda s: -s.mix,
    "rank": lambda s: s.rank,
    "steady under dropout": lambda s: -s.disagreement,
}


def area(helped: list[bool], rises: list[float]) -> str:
    """Under the ROC curve, of the runs where the sign was read."""
    known = [(truth, rose) for truth, rose in zip(helped, rises, strict=True) if not math.isnan(rose)]
    if len({truth for truth, _ in known}) < 2:
        return "–"
    return f"{roc_auc_score(*zip(*known, strict=True)):.2f}"


def signs(runs: list[Run], bad: list[Run]) -> list[str]:
    """How well each sign alone tells runs that helped from runs that hurt."""
    beds_alone = by_bed(runs)
    rows = []
    for name, group in (beds_alone | {"all bad settings": bad, "all": [*runs, *bad]}).items():
        for which in range(len(group[0].changes)) if name in beds_alone else (0,):
            clear = [run for run in group if truth(run.changes[which]) != "neither"]
            helped = [truth(run.changes[which]) == "helped" for run in clear]
            if len(set(helped)) < 2:
                continue
            rises = [[rise(run.before, run.after, run.task) for run in clear]]
            rises += [[sign(run.after) - sign(run.before) for run in clear] for sign in SIGNS.values()]
            counts = f"{len(clear) - sum(helped)} / {sum(helped)}"
            rows.append([name, ("first", "second")[which], counts, *(area(helped, rose) for rose in rises)])
    return [
        "## Each sign alone",
        "",
        "How often a sign rises more in a run that helped than in one that hurt (area under the ROC curve: 1 always, "
        "0.5 by chance, 0 never), by the first or second metric. Beds without one or the other are left out; the last "
        "rows put runs of different beds together, whose signs have different scales. Runs where an older notela did "
        "not read a sign are left out of its column.",
        "",
        *table(["bed", "metric", "hurt / helped", "score", *SIGNS], rows),
    ]


def ablation(every: list[Bed], folder: Path) -> list[str]:
    """`centred` as it is, and with one thing changed."""
    whole = {bed.name: bed for bed in every}
    parts: dict[str, dict[str, Bed]] = defaultdict(dict)
    for bed in beds(folder):
        changed = ", ".join(f"{name}={value}" for name, value in bed.results.protocol.changes.items())
        for name, full in whole.items():
            if full.domains == bed.domains and bed.results.protocol.title == full.results.protocol.title:
                parts[changed][name] = bed
    used = [name for name in whole if any(name in row for row in parts.values())]
    if not used:
        return []

    def cell(bed: Bed, method: str) -> str:
        means = [bed.results.last(bed.domains, method, metric) for metric in bed.metrics]
        return " / ".join(f"{one.mean:.1f} ± {one.half:.1f}" if one.half else f"{one.mean:.1f}" for one in means)

    rows = [["source", *(cell(whole[name], SOURCE) for name in used)]]
    rows += [["centred", *(cell(whole[name], "centred") for name in used)]]
    for changed, found in parts.items():
        rows.append([changed, *(cell(found[name], "centred") if name in found else "–" for name in used)])
    heads = [f"{name} ({' / '.join(METRIC_TITLES[metric] for metric in whole[name].metrics)})" for name in used]
    return [
        "## What each ingredient is worth",
        "",
        "The preset `centred` as it is, and with one setting changed; mean ± 95 % interval over seeds.",
        "",
        *table(["", *heads], rows),
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
