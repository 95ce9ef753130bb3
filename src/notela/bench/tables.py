"""The tables of a comparison, from records alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from notela.bench.plan import AVERAGE, SOURCE, SUPERVISED, Protocol
from notela.bench.results import METRIC_TITLES, Estimate, Results, title, varied
from notela.bench.writing import Cell, Table
from notela.methods import NICKNAMES, NOTELA
from notela.methods.base import Preset


def everything(results: Results) -> list[Table]:
    """All tables of a comparison; without a search there is no validation and no ablation."""
    protocol = results.protocol
    tables = [_methods_table(results, "test", protocol.test, "Test domains"), _hindsight(results)]
    if protocol.searched or protocol.ceiling:
        tables.append(_gap(results))
    tables.append(_by_domain(results))
    if not protocol.searched:
        return tables
    heading = "Validation domains, on which settings were chosen"
    tables.append(_methods_table(results, "validation", protocol.validation, heading))
    return [*tables, _ablation(results)] if results.ablation else tables


# ---- the tables


def _methods_table(results: Results, name: str, domains: list[str], heading: str) -> Table:
    """Methods × domains with one or two metrics (the paper's main tables, and its validation table)."""
    metrics = results.protocol.metrics[:2]
    if len(metrics) == 1:
        heading = f"{heading}, {METRIC_TITLES[metrics[0]]}"
    places = [*((domain, [domain]) for domain in domains), (AVERAGE, domains)]
    columns = [(place, METRIC_TITLES[metric]) for place, _ in places for metric in metrics]
    rows = [
        (_row_title(method), [_cell(results.last(group, method, metric)) for _, group in places for metric in metrics])
        for method in [SOURCE, *results.methods, *_ceiling(results)]
    ]
    return _with_best(
        Table(name, heading, caption(results), "method", columns, rows, settings(results)), _not_ceiling(rows)
    )


def _by_domain(results: Results) -> Table:
    """Domains × methods: the paper's per-corruption table."""
    protocol, metric = results.protocol, results.protocol.metrics[0]
    methods = [SOURCE, *results.methods, *_ceiling(results)]
    places = [*((domain, [domain]) for domain in protocol.test), (AVERAGE, protocol.test)]
    rows = []
    for place, domains in places:
        cells = [_cell(results.last(domains, method, metric)) for method in methods]
        ours = [i for i, method in enumerate(methods) if method != SUPERVISED]
        rows.append((place, _best(cells, ours)))
        if place in protocol.published:
            theirs = protocol.published[place]
            cells = [Cell(theirs.get(method, math.nan)) for method in methods]
            rows.append((f"{place} {protocol.published_by}", cells))
    heading, columns = f"Test domains, {METRIC_TITLES[metric]}", [("", _row_title(method)) for method in methods]
    return Table("per_domain", heading, caption(results), "domain", columns, rows, settings(results))


def _hindsight(results: Results) -> Table:
    """Last epoch against the best one in hindsight, and how safe each method is."""
    metric, domains = results.protocol.metrics[0], results.protocol.test
    shared = results.protocol.searched or results.protocol.ceiling
    columns = [
        ("", "last epoch"),
        ("hindsight", "oracle epoch"),
        ("hindsight", "fall after best"),
        ("gain over source", "average"),
        ("gain over source", "worst domain"),
        ("gain over source", "domains better / worse"),
        *([("", "share of gap, %")] if shared else []),
    ]
    rows = []
    repeated = all(results.protocol.seeds_of(domain) > 1 for domain in domains)
    source = {domain: results.source(domain, metric) for domain in domains}
    for method in [*results.methods, *_ceiling(results)]:
        last, oracle = results.last(domains, method, metric), results.oracle(domains, method, metric)
        each = {domain: results.last([domain], method, metric) for domain in domains}
        better = sum(e.low > source[d] for d, e in each.items())
        worse = sum(e.high < source[d] for d, e in each.items())
        known = [e.mean - source[d] for d, e in each.items() if e.seeds]
        cells = [
            _cell(last),
            _cell(oracle),
            Cell(oracle.mean - last.mean, failed=last.failed),
            Cell(last.mean - sum(source.values()) / len(source), failed=last.failed),
            Cell(min(known, default=math.nan), failed=last.failed),
            Cell(f"{better} / {worse}" if repeated else "–"),
        ]
        if shared:
            cells.append(_cell(results.share_of_gap(domains, method, metric)))
        rows.append((_row_title(method), cells))
    heading = (
        f"Mean {METRIC_TITLES[metric]} over the test domains: last epoch, and the best epoch in hindsight (oracle)"
    )
    note = "Oracle epoch: chosen on the test labels themselves; no user could choose it."
    if repeated:
        note += " Better / worse: domains whose interval lies above / below the source."
    if shared:
        note += " Share of gap: of the way from source to supervised."
    notes = [note, *settings(results)]
    return Table("hindsight", heading, caption(results), "method", columns, rows, notes)


def _gap(results: Results) -> Table:
    """Share of the gap source → supervised that was recovered."""
    metric = results.protocol.metrics[0]
    places = [*((domain, [domain]) for domain in results.protocol.test), (AVERAGE, results.protocol.test)]
    rows = [
        (_row_title(method), [_cell(results.share_of_gap(group, method, metric)) for _, group in places])
        for method in results.methods
    ]
    heading = f"Share of the gap from source to supervised that was recovered, {METRIC_TITLES[metric]}"
    notes = ["100: as good as fine-tuning on the target's labels; below 0: worse than the source.", *settings(results)]
    columns = [("", place) for place, _ in places]
    return _with_best(Table("gap", heading, caption(results), "method", columns, rows, notes), range(len(rows)))


def _ablation(results: Results) -> Table:
    """NOTELA with one ingredient removed."""
    protocol, full = results.protocol, results.chosen["notela"]
    metrics = protocol.metrics[:2]
    places = {"validation": protocol.validation, "test": protocol.test}
    columns = [("", part) for part in ("dropout", "softness", "Laplacian")]
    columns += [(f"{place} domains", METRIC_TITLES[metric]) for place in places for metric in metrics]

    def numbers(of: Callable[[Sequence[str], str], Estimate]) -> list[Cell]:
        return [_cell(of(domains, metric)) for domains in places.values() for metric in metrics]

    rows = [
        (
            "source, not adapted",
            [Cell("")] * 3 + numbers(lambda domains, metric: results.last(domains, SOURCE, metric)),
        )
    ]
    notes = []
    for removed, preset in [*results.ablation.items(), ("", full)]:
        if removed and preset == full:
            notes.append(f"The chosen settings have no {removed} to remove.")
            continue
        assert isinstance(preset.method, NOTELA)
        has = (preset.noise, preset.method.alpha > 0, preset.method.lambda_ > 0)
        marks = [Cell("✓" if yes else "") for yes in has]
        cells = numbers(lambda domains, metric, preset=preset: results.last(domains, "notela", metric, preset))  # type: ignore[misc]
        rows.append((f"without {removed}" if removed else "NOTELA", marks + cells))
    heading = "NOTELA with one ingredient removed (noise off, α = 0, λ = 0), mean over the domains"
    notes.append(f"NOTELA's settings: {describe('notela', full)}.")
    return _with_best(Table("ablation", heading, caption(results), "", columns, rows, notes), range(len(rows)))


# ---- their parts


def describe(method: str, preset: Preset) -> str:
    """The settings that the search chose, in one phrase."""
    values = preset.settings()
    return f"{title(method)} " + ", ".join(f"{name.rstrip('_')} {values[name]}" for name in varied(method))


def _ceiling(results: Results) -> list[str]:
    return [SUPERVISED] if SUPERVISED in results.chosen else []


def _row_title(method: str) -> str:
    return "Supervised (uses target labels)" if method == SUPERVISED else title(method)


def caption(results: Results) -> str:
    """How all numbers of a comparison were made."""
    protocol = results.protocol
    return (
        f"{_seeds(protocol)} Best in bold{', with those whose intervals meet its own' if _most(protocol) > 1 else ''}. "
        f"{_origin(protocol)} Protocol {protocol.title}: {protocol.caption}; {len(protocol.class_names)} classes; "
        f"examples to adapt on / held out: {_sizes(protocol)}."
    )


def _most(protocol: Protocol) -> int:
    return max(protocol.seeds_of(domain) for domain in protocol.test)


def _seeds(protocol: Protocol) -> str:
    """Of how many runs a number is the mean."""
    of_seeds = "the interval is of seeds, not of the choice of held-out examples."
    least = min(protocol.seeds_of(domain) for domain in protocol.test)
    more = [domain for domain in protocol.test if protocol.seeds_of(domain) > least]
    if not more:
        if least == 1:
            return "Last epoch, one seed."
        return f"Mean ± 95 % interval (Student's t) over {least} seeds, last epoch; {of_seeds}"
    fewer = "one seed" if least == 1 else f"{least} seeds"
    each = ", ".join(f"{domain} ({protocol.seeds_of(domain)})" for domain in more)
    return (
        f"Last epoch. Mean ± 95 % interval (Student's t) over seeds for {each}; elsewhere, and in averages, {fewer}; "
        f"{of_seeds}"
    )


def _origin(protocol: Protocol) -> str:
    """Where the settings come from."""
    changed = ", ".join(f"{name}={value}" for name, value in protocol.changes.items())
    return _settings_of(protocol) + (f" Changed in every run but the ceiling's: {changed}." if changed else "")


def _settings_of(protocol: Protocol) -> str:
    if not protocol.searched:
        kept = [title(name) for name in protocol.methods if name in NICKNAMES] + ["supervised"] * protocol.ceiling
        own = f" ({', '.join(kept)}: fixed ones of our own)" if kept else ""
        return f"Settings: the published ones for this kind of task{own}; nothing was searched."
    tried = {method: len(protocol.candidates(method)) for method in protocol.rows}
    most = max(tried.values())
    fewer = ", ".join(f"{title(method)} {n}" for method, n in tried.items() if n < most)
    return (
        f"Settings: the best of {most} points of each method's grid{f' ({fewer}: all there are)' if fewer else ''}, by "
        "one seed, on the validation domains alone."
    )


def _sizes(protocol: Protocol) -> str:
    """Domains of one size together: "noise, blur 316 / 119; fog 640 / 192"."""
    together: dict[tuple[int, ...], list[str]] = {}
    for domain in [*protocol.validation, *protocol.test]:
        together.setdefault(tuple(protocol.sizes[domain]), []).append(domain)
    return "; ".join(f"{', '.join(names)} {adapt} / {test}" for (adapt, test), names in together.items())


def settings(results: Results) -> list[str]:
    """What was chosen for each method, and what failed."""
    notes = ["Settings: " + "; ".join(describe(method, preset) for method, preset in results.chosen.items()) + "."]
    shared = next(iter(results.chosen.values()))
    notes.append(f"All: {shared.epochs} epochs, batches of {shared.batch_size}, Adam.")
    notes += [
        f"{title(method)}: {choice.failed} of {choice.tried} candidates failed in the search."
        for method, choice in results.choices.items()
        if choice.failed
    ]
    notes += [
        f"{title(method)}: no candidate survived the search."
        for method in results.protocol.rows
        if method not in results.chosen
    ]
    if results.unexpected:
        notes.append(
            f"{results.unexpected} runs failed for reasons that are not their method's doing (†); `--retry-failed` "
            "runs them again."
        )
    return notes


def _cell(e: Estimate) -> Cell:
    return Cell(e.mean, e.half if e.seeds > 1 else None, e.failed)


def _not_ceiling(rows: Sequence[tuple[str, list[Cell]]]) -> list[int]:
    return [i for i, (label, _) in enumerate(rows) if label != _row_title(SUPERVISED)]


def _with_best(table: Table, among: Sequence[int]) -> Table:
    """The same table with the best of each column in bold."""
    columns = [_best(list(column), among) for column in zip(*(cells for _, cells in table.rows), strict=True)]
    rows = [(label, [column[i] for column in columns]) for i, (label, _) in enumerate(table.rows)]
    return replace(table, rows=rows)


def _best(cells: list[Cell], among: Sequence[int]) -> list[Cell]:
    """The highest in bold, and every one whose interval meets its own; none that failed with some seed."""
    numbers = [i for i in among if not isinstance(cells[i].value, str) and not math.isnan(float(cells[i].value))]
    numbers = [i for i in numbers if not cells[i].failed]  # the mean of those that survived would flatter
    if not numbers:
        return cells
    best = max((cells[i] for i in numbers), key=lambda cell: float(cell.value))
    limit = float(best.value) - (best.half or 0)
    return [
        replace(cell, bold=i in numbers and float(cell.value) + (cell.half or 0) >= limit)
        for i, cell in enumerate(cells)
    ]
