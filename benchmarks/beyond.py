"""The tables of `results/beyond`, from the records of `notela bench` under it: what each method does on every bed, its
worst case, and how often the verdict on a run was right.

    notela bench digits --trials none --methods tent,notela,centred,auto,supervised --to results/beyond/digits
    python benchmarks/beyond.py results/beyond
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from notela.bench.plan import SOURCE, SUPERVISED
from notela.bench.results import METRIC_TITLES, TITLES, Results, title
from notela.methods import NICKNAMES

MARGIN = 1.0
"""Points of the first metric beyond which a run is said to have helped or hurt."""


def main(folder: Path) -> None:
    beds = {path.parent.name: Results(path.parent) for path in sorted(folder.glob("*/protocol.json"))}
    text = [
        "# Beyond the paper",
        "",
        "Made by `python benchmarks/beyond.py` from the records in these folders, in per cent.",
        "",
    ]
    text += gains(beds) + verdicts(beds)
    (folder / "README.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


def last(results: Results, domain: str, method: str) -> list[float]:
    """Of each seed, the first metric of the model that the run gave."""
    curves = results.curves(domain, method, results.protocol.metrics[0])
    return [float(curve[-1]) for curve in curves.values()]


def gains(beds: dict[str, Results]) -> list[str]:
    """Methods × beds: mean over domains and seeds, share of the gap, and the worst run of all against its source."""
    present = {name for results in beds.values() for name in results.methods}
    methods = [name for name in TITLES if name in present]
    lines = [
        "## Every bed",
        "",
        "First metric, mean over domains and seeds; in brackets the share of the way from source to ",
    ]
    lines[-1] += (
        "supervised. Worst: the largest loss against the source of a domain (mean over seeds), and of a single run."
    )
    lines += ["", "| method | " + " | ".join(f"{name} ({metric(one)})" for name, one in beds.items())]
    lines[-1] += " | worst domain | worst run |"
    lines += ["|---|" + "---:|" * (len(beds) + 2)]
    for method in (SOURCE, *methods, SUPERVISED):
        cells, worst, runs = [], [], []
        for name, results in beds.items():
            of, domains = results.protocol.metrics[0], results.protocol.test
            if method == SOURCE or method in results.chosen:
                share = results.share_of_gap(domains, method, of).mean
                cell = f"{results.last(domains, method, of).mean:.1f}"
                cells.append(cell if method in (SOURCE, SUPERVISED) or np.isnan(share) else f"{cell} ({share:.0f})")
            else:
                cells.append("–")
                continue
            for domain in domains if method != SOURCE else ():
                change = np.array(last(results, domain, method)) - results.source(domain, of)
                worst.append((change.mean(), f"{name}, {domain}"))
                runs.append((change.min(), f"{name}, {domain}"))
        extremes = [f"{low:.1f} ({where})" for low, where in (min(each) for each in (worst, runs) if each)] or ["", ""]
        lines.append(f"| {title(method)} | " + " | ".join([*cells, *extremes]) + " |")
    return [*lines, ""]


def metric(results: Results) -> str:
    return METRIC_TITLES[results.protocol.metrics[0]]


def verdicts(beds: dict[str, Results]) -> list[str]:
    """What the verdict said of runs that helped, hurt, or did neither; runs whose guard acted are left out."""
    counts: dict[str, dict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
    for name, results in beds.items():
        of = results.protocol.metrics[0]
        for domain in results.protocol.test:
            for method in results.methods:
                if method in NICKNAMES and results.chosen[method].guard == "act":
                    continue
                for seed in range(results.protocol.seeds_of(domain)):
                    record = results.record(domain, method, results.chosen[method], seed)
                    if record is None or "verdict" not in record:
                        continue
                    change = 100 * record["evaluation"][of][-1] - results.source(domain, of)
                    truth = "helped" if change > MARGIN else "hurt" if change < -MARGIN else "neither"
                    for bed in (name, "all"):
                        counts[bed][truth, record["verdict"]["health"]] += 1
    lines = [
        "## The verdict",
        "",
        f"Runs that gained or lost more than {MARGIN:g} point on held-out labels, and what was said of them ",
    ]
    lines[-1] += "without labels. Caught: harmful runs called worse. Refused: helpful runs called worse."
    lines += [
        "",
        "| bed | helped: better / unclear / worse | neither | hurt: better / unclear / worse | caught | refused |",
    ]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    for bed in (*beds, "all"):
        said = {
            truth: [counts[bed][truth, h] for h in ("better", "unclear", "worse")]
            for truth in ("helped", "neither", "hurt")
        }
        shares = [f"{100 * said[t][2] / sum(said[t]):.0f} %" if sum(said[t]) else "–" for t in ("hurt", "helped")]
        lines.append(
            f"| {bed} | " + " | ".join(" / ".join(map(str, said[t])) for t in said) + f" | {shares[0]} | {shares[1]} |"
        )
    return [*lines, ""]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
