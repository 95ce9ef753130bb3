"""What the thresholds of `notela.guard` were chosen on: settings, good and bad, on the validation domains of five
suites, with the signals and the truth of each run.

    python benchmarks/thresholds.py runs/thresholds.jsonl          # half an hour; stop it at will, it goes on

The truth is the change of the first metric over a whole domain, its adaptation and its held-out part. Test domains are
not touched.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import notela
from notela import methods
from notela.bench.suite import Loaded, find
from notela.guard import FEWER, LESS, ROUGHER, compare
from notela.lines import Lines
from notela.methods import Preset
from notela.metrics import as_array
from notela.signals import Signals

SUITES = {
    "digits": "image",
    "digits?mix=skewed": "image",
    "digits-multi": "audio-multilabel",
    "aviary": "audio-multilabel",
    "aviary-single": "audio-singlelabel",
}
MARGIN = 1.0
"""Points that make a run helpful or harmful."""


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
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    given = parser.parse_args()
    given.records.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    lines = Lines(given.records)
    done = {(one["suite"], one["domain"], one["settings"]) for one in lines}
    for reference, kind in SUITES.items():
        loaded = Loaded(find(reference))
        suite = loaded.suite
        for name in suite.validation:
            domain = loaded.domain(name)[0]
            labels = np.concatenate([as_array(domain.adapt_labels), as_array(domain.test_labels)])
            evaluator = notela.Evaluator(torch.cat([domain.adapt, domain.test]), labels, task=suite.task)
            for title, preset in settings(kind).items():
                if (suite.name, name, title) in done:
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
                record = {"suite": suite.name, "domain": name, "settings": title, "change": change}
                lines.append({**record, "before": result.verdict.before, "after": result.verdict.after})
                print(f"{suite.name}, {name}, {title}: {change:+.1f}, {result.verdict.health}", flush=True)
    show(list(lines))


def show(records: list[dict]) -> None:
    """Caught and refused in each suite, by the rules as they are and by each alone."""
    rules = {
        "all": lambda before, after: compare(before, after)[0] == "worse",
        "information": lambda before, after: after.information < before.information - LESS,
        "smoothness": lambda before, after: after.smoothness < before.smoothness - ROUGHER,
        "classes": lambda before, after: after.classes < FEWER * before.classes,
    }
    counts: dict[str, Counter[tuple[str, bool, bool]]] = defaultdict(Counter)
    for one in records:
        if abs(one["change"]) <= MARGIN:
            continue
        before, after = (Signals(**one[when]) for when in ("before", "after"))
        for rule, worse in rules.items():
            for suite in (one["suite"], "all"):
                counts[suite][rule, one["change"] < 0, worse(before, after)] += 1
    print("\n| suite | hurt / helped |" + "".join(f" {rule}: caught, refused |" for rule in rules))
    print("|---|---:|" + "---:|" * len(rules))
    for suite, count in counts.items():
        numbers = [sum(count["all", hurt, worse] for worse in (True, False)) for hurt in (True, False)]
        cells = [f"{numbers[0]} / {numbers[1]}"]
        for rule in rules:
            shares = [
                f"{100 * count[rule, hurt, True] / number:.0f} %" if number else "–"
                for hurt, number in zip((True, False), numbers, strict=True)
            ]
            cells.append(", ".join(shares))
        print(f"| {suite} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
