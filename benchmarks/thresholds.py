"""What the thresholds of `notela.guard` were chosen on: settings, good and bad, on the validation domains of four
suites (three of them at three strengths of their corruptions), with the signals and the truth of each run.

    python benchmarks/thresholds.py results/beyond/thresholds.jsonl          # hours; stop it at will, it goes on
    python benchmarks/thresholds.py results/beyond/thresholds.jsonl --only aviary
    python benchmarks/thresholds.py results/beyond/thresholds.jsonl --show   # of the records that are there
    python benchmarks/thresholds.py results/beyond/carried.jsonl --test --only 'digits?strength=100'

The truth is the change of the first metric over a whole domain, its adaptation and its held-out part. Test domains are
not touched, but with `--test`: the same settings there, to see what carries over. Nothing was chosen on these runs.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import notela
from notela import methods
from notela.bench.plan import code_version, is_guarded
from notela.bench.suite import Loaded, find
from notela.guard import BACKWARD, CLEAR, collapsed, compare, rise
from notela.lines import Lines
from notela.methods import Preset
from notela.metrics import as_array
from notela.signals import Signals
from notela.task import Task

SUITES = {
    **{f"digits?strength={share}": "image" for share in (100, 65, 35)},
    **{f"digits?mix=skewed&strength={share}": "image" for share in (100, 65, 35)},
    **{f"digits-multi?strength={share}": "audio-multilabel" for share in (100, 65, 35)},
    "aviary": "audio-multilabel",
}
MARGIN = 1.0
"""Points that make a run helpful or harmful."""
LOSSES = (-100, -5, -3, -MARGIN)


def settings(kind: str) -> dict[str, Preset]:
    """Published settings, centred ones with and without statistics, and such as should do harm."""
    found = {name: methods.preset(name, kind) for name in methods.PAPER}
    centred = methods.preset("notela", "centred")
    fast = replace(centred, teacher_momentum=0.0, method=replace(centred.method, message="centred", alpha=0.5))
    still = replace(centred, learning_rate=0.0, epochs=1)
    for share in ("source", "half", "re-estimated"):
        found[f"centred, statistics {share}"] = replace(centred, statistics=share)
        if share != "source":
            found[f"statistics {share}"] = replace(still, statistics=share)
        if share != "re-estimated":
            found[f"fast teacher, statistics {share}"] = replace(fast, statistics=share)
    for name in ("tent", "shot", "pseudo_label", "dropout_student", "notela", "nrc"):
        for times in (10, 100):
            rate = min(0.03, times * found[name].learning_rate)
            found[f"{name}, rate x{times}"] = replace(found[name], learning_rate=rate)
    for name in ("tent", "notela", "pseudo_label"):
        found[f"{name}, all weights"] = replace(found[name], trainable="all", learning_rate=1e-3, statistics="source")
        found[f"{name}, 40 epochs"] = replace(found[name], learning_rate=3 * found[name].learning_rate, epochs=40)
    found["centred, rate x10"] = replace(centred, learning_rate=10 * centred.learning_rate)
    found["centred, 40 epochs"] = replace(centred, epochs=40)
    found["auto"] = methods.resolve("auto", "multilabel" if kind == "audio-multilabel" else "singlelabel")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--only", choices=list(SUITES), action="append", help="some of the suites; may be repeated")
    parser.add_argument("--show", action="store_true", help="run nothing, print the tables of what is recorded")
    parser.add_argument("--test", action="store_true", help="test domains in place of validation domains")
    given = parser.parse_args()
    given.records.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    lines = Lines(given.records)
    kept = []
    for reference, kind in SUITES.items():
        codes = {title: code_version(one.method.name, is_guarded(one)) for title, one in settings(kind).items()}
        recorded = [one for one in lines if one["suite"] == reference]
        found = [one for one in recorded if one["code"] == codes.get(one["settings"])]
        # what is shown may be of older code, but each run once: its last record
        last = {(one["domain"], one["settings"]): one for one in recorded}
        kept += last.values() if given.show else found
        done = {(one["domain"], one["settings"]) for one in found}
        if given.show or (given.only and reference not in given.only):
            continue
        loaded = Loaded(find(reference))
        suite = loaded.suite
        names = suite.test if given.test else suite.validation
        if other := {one["domain"] for one in recorded} - set(names):
            part = "test" if given.test else "validation"
            parser.error(
                f"{given.records} has runs on {', '.join(sorted(other))}, not {part} domains of {suite.name}; "
                "keep the two parts in files of their own"
            )
        for name in names:
            domain = loaded.domain(name)[0]
            labels = np.concatenate([as_array(domain.adapt_labels), as_array(domain.test_labels)])
            evaluator = notela.Evaluator(torch.cat([domain.adapt, domain.test]), labels, task=suite.task)
            for title, preset in settings(kind).items():
                if (name, title) in done:
                    continue
                try:
                    result = notela.adapt(
                        loaded.model,
                        domain.adapt,
                        task=suite.task,
                        method=preset,
                        classes=domain.classes,
                        batch_size=suite.overrides["batch_size"],
                        evaluator=evaluator,
                        progress=False,
                    )
                except notela.NotelaError as error:
                    print(f"{suite.name}, {name}, {title}: {error}")
                    continue
                assert result.source is not None
                assert result.evaluation is not None
                change = 100 * (result.evaluation[suite.metrics[0]] - result.source[suite.metrics[0]])
                record = {"code": codes[title], "suite": reference, "domain": name, "settings": title, "change": change}
                record |= {"before": result.verdict.before, "after": result.verdict.after}
                lines.append(record)
                kept.append(record)
                print(f"{suite.name}, {name}, {title}: {change:+.1f}, {result.verdict.health}", flush=True)
    show(kept)


def task_of(record: dict[str, Any]) -> Task:
    return "multilabel" if SUITES[record["suite"]] == "audio-multilabel" else "singlelabel"


Rule = Callable[[Signals, Signals, Task], bool]


def instead(score: Callable[[Signals], float]) -> Rule:
    """What the verdict would be with another score where items have one class."""

    def worse(before: Signals, after: Signals, task: Task) -> bool:
        if task == "multilabel":
            return RULES["verdict"](before, after, task)
        return collapsed(before, after) or score(after) < score(before) - CLEAR

    return worse


RULES: dict[str, Rule] = {
    "verdict": lambda before, after, task: compare(before, after, task)[0] == "worse",
    "score": lambda before, after, task: rise(before, after, task) < -CLEAR,
    "classes": lambda before, after, _: collapsed(before, after),
    "backward without limit": instead(lambda s: s.information + s.smoothness + BACKWARD * s.backward_smoothness),
    "information + 2 · smoothness": instead(lambda s: s.information + 2 * s.smoothness),
    "agreement + backward": instead(lambda s: 2 * (s.agreement + s.backward_smoothness)),
}
KINDS = {"singlelabel": "one class", "multilabel": "several classes"}


def show(records: list[dict]) -> None:
    """What is said of runs in each suite: all of them by their change, and the share of harmful ones that is caught and
    of helpful ones that is refused, by each rule alone and by others too."""
    said: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    caught: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for one in records:
        if one["settings"] == "auto":  # it has acted on what is said
            continue
        before, after = (Signals(**one[when]) for when in ("before", "after"))
        truth = "helped" if one["change"] > MARGIN else "hurt" if one["change"] < -MARGIN else "neither"
        for suite in (one["suite"], KINDS[task_of(one)], "all"):
            said[suite][truth, compare(before, after, task_of(one))[0]] += 1
            for rule, worse in RULES.items():
                caught[suite][truth, rule] += worse(before, after, task_of(one))
    print("\nhelped, neither, hurt: better / unclear / worse; by rule: caught, refused\n")
    print("| suite | helped | neither | hurt |" + "".join(f" {rule} |" for rule in RULES))
    print("|---|" + "---:|" * (3 + len(RULES)))
    for suite, count in sorted(said.items(), key=lambda item: (item[0] == "all", item[0] in KINDS.values())):
        numbers = {t: [count[t, h] for h in ("better", "unclear", "worse")] for t in ("helped", "neither", "hurt")}
        cells = [" / ".join(map(str, each)) for each in numbers.values()]
        for rule in RULES:
            shares = [
                f"{100 * caught[suite][truth, rule] / sum(numbers[truth]):.0f} %" if sum(numbers[truth]) else "–"
                for truth in ("hurt", "helped")
            ]
            cells.append(", ".join(shares))
        print(f"| {suite} | " + " | ".join(cells) + " |")
    show_sizes(records)
    show_statistics(records)


def show_sizes(records: list[dict]) -> None:
    """How many losses of a size are called worse."""
    print("\nlosses in points, and how many of them are called worse\n")
    print(f"| points |{''.join(f' {kind}: runs | {kind}: worse |' for kind in KINDS.values())}")
    print("|---|" + "---:|" * 2 * len(KINDS))
    for least, most in pairwise(LOSSES):
        cells = []
        for task in KINDS:
            said = [
                RULES["verdict"](Signals(**one["before"]), Signals(**one["after"]), task_of(one))
                for one in records
                if one["settings"] != "auto" and task_of(one) == task and least <= one["change"] < most
            ]
            cells += [str(len(said)), f"{100 * sum(said) / len(said):.0f} %" if said else "–"]
        print(f"| {least:g} to {most:g} | {' | '.join(cells)} |")


def show_statistics(records: list[dict]) -> None:
    """What statistics do alone, and what `centred` makes of them: points of the first metric, and by how much the
    score rose."""
    columns = [title for title in settings("image") if title.startswith(("statistics", "centred, statistics"))]
    rows: dict[str, dict[str, str]] = defaultdict(dict)
    for one in records:
        before, after = (Signals(**one[when]) for when in ("before", "after"))
        where = f"{one['suite']}: {one['domain']}"
        rose = rise(before, after, task_of(one))
        rows[where][one["settings"]] = f"{one['change']:+.1f} ({rose:+.2f})"
    print("\npoints of the first metric, and by how much the score rose\n")
    print(f"| domain | {' | '.join(columns)} |")
    print("|---|" + "---:|" * len(columns))
    for where, cells in rows.items():
        print(f"| {where} | " + " | ".join(cells.get(title, "–") for title in columns) + " |")


if __name__ == "__main__":
    main()
