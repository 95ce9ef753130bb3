"""Figures as SVG and PNG, from records alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from notela.bench.plan import SOURCE, SUPERVISED
from notela.bench.results import METRIC_TITLES, Results, estimate, title, varied
from notela.bench.trial import QUANTILES
from notela.runs import replacing

# Okabe & Ito's colours, which most colour-blind readers can tell apart.
COLOURS = {
    SOURCE: "#000000",
    "adabn": "#999999",
    "tent": "#E69F00",
    "shot": "#56B4E9",
    "pseudo_label": "#F0E442",
    "dust": "#CC79A7",
    "nrc": "#009E73",
    "dropout_student": "#0072B2",
    "notela": "#D55E00",
    "rpl": "#882255",
    "aad": "#44AA99",
    "eta": "#999933",
    "lame": "#332288",
    "centred": "#AA3377",
    "auto": "#117733",
    SUPERVISED: "#555555",
}
# Every run of the same records writes the same bytes.
_STYLE: Any = {"svg.hashsalt": "notela", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False}
_STYLE |= {"axes.spines.right": False, "figure.dpi": 110}


def everything(results: Results) -> dict[str, Figure]:
    """All figures of a comparison that its records allow."""
    makers: tuple[Callable[[Results], Figure | None], ...] = (levels, epochs, gains, probabilities, sensitivity)
    with mpl.rc_context(_STYLE):
        made = {make.__name__: make(results) for make in makers}
    return {name: figure for name, figure in made.items() if figure is not None}


def write(figure: Figure, stem: Path) -> None:
    """As .svg and .png."""
    with mpl.rc_context(_STYLE):
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()  # lays everything out: once, not for each format
        figure.set_layout_engine("none")
        with replacing(stem.with_suffix(".svg")) as aside:
            figure.savefig(aside, format="svg", metadata={"Date": None})
        with replacing(stem.with_suffix(".png")) as aside:
            figure.savefig(aside, format="png", metadata={"Software": None}, dpi=130)


def levels(results: Results) -> Figure | None:
    """The metric at the last epoch against the strength of the shift, one panel a place; bands are 95 % intervals."""
    metric, places = results.protocol.metrics[0], results.protocol.levels
    if not places:
        return None
    names = list(dict.fromkeys(place for place, _ in places.values()))
    figure, axes = _panels(len(names), width=3.2, height=2.9, columns=min(4, len(names)), sharey=True)
    for axis, name in zip(axes, names, strict=True):
        mine = sorted((strength, domain) for domain, (place, strength) in places.items() if place == name)
        x = np.array([strength for strength, _ in mine])
        for method in [SOURCE, *results.methods]:
            each = [results.last([domain], method, metric) for _, domain in mine]
            mean, half = np.array([e.mean for e in each]), np.array([e.half for e in each])
            style = {"color": _colour(method), "linewidth": 2.2 if method == "notela" else 1.2, "markersize": 4}
            axis.plot(x, mean, ":o" if method == SOURCE else "-o", label=title(method), **style)  # type: ignore[arg-type]
            axis.fill_between(x, mean - half, mean + half, color=_colour(method), alpha=0.15, linewidth=0)
        axis.set_title(name)
        axis.set_xticks(x)
        axis.set_xlabel("severity")
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel(f"{METRIC_TITLES[metric]}, %")
    _legend(figure, axes[0])
    return figure


def epochs(results: Results) -> Figure:
    """The metric after each epoch, for each method and test domain: mean over seeds, and the 95 % interval."""
    metric, domains = results.protocol.metrics[0], results.protocol.test
    figure, axes = _panels(len(domains), width=3.6, height=2.7)
    for axis, domain in zip(axes, domains, strict=True):
        before = results.source(domain, metric)
        axis.axhline(before, color=COLOURS[SOURCE], linestyle=":", linewidth=1, label=title(SOURCE))
        for method in results.methods:
            curves = np.array(list(results.curves(domain, method, metric).values()))
            if len(curves) == 0:
                continue
            each = [estimate(column) for column in curves.T]
            x = np.arange(len(each) + 1)
            mean = np.array([before, *(e.mean for e in each)])
            half = np.array([0, *(e.half for e in each)])
            wide = 2.2 if method == "notela" else 1.2
            axis.plot(x, mean, color=_colour(method), linewidth=wide, label=title(method))
            axis.fill_between(
                x, (mean - half).clip(0), (mean + half).clip(max=100), color=_colour(method), alpha=0.15, linewidth=0
            )
        axis.set_title(domain)
        axis.set_xlabel("epoch")
        axis.set_ylabel(f"{METRIC_TITLES[metric]}, %")
    _legend(figure, axes[0])
    return figure


def gains(results: Results) -> Figure:
    """Gain over the source at the last epoch, a dot and a 95 % interval for each method and test domain."""
    metric, domains = results.protocol.metrics[0], results.protocol.test
    figure, axes = _panels(len(domains), width=3.6, height=2.3, sharey=True)
    methods = results.methods
    for axis, domain in zip(axes, domains, strict=True):
        before = results.source(domain, metric)
        axis.axvline(0, color=COLOURS[SOURCE], linestyle=":", linewidth=1)
        for place, method in enumerate(methods):
            e = results.last([domain], method, metric)
            axis.errorbar(e.mean - before, place, xerr=e.half, color=_colour(method), fmt="o", markersize=5, capsize=2)
        axis.set_yticks(range(len(methods)), [title(method) for method in methods])
        axis.set_ylim(len(methods) - 0.5, -0.5)
        axis.grid(axis="x", alpha=0.3)
        axis.set_title(f"{domain} (source {before:.1f} %)")
        axis.set_xlabel(f"gain in {METRIC_TITLES[metric]}, points")
    return figure


def probabilities(results: Results) -> Figure | None:
    """For each class, the probability it gets where it is present: the source at home, the source on the test domain
    where it loses most, and there after TENT and after NOTELA."""
    protocol, metric = results.protocol, results.protocol.metrics[0]
    if not protocol.has_source_data or not {"tent", "notela"} <= set(results.methods):
        return None
    domain = min(protocol.test, key=lambda name: results.source(name, metric))
    records = {
        "source model, source data": results.record(SOURCE, SOURCE, None, 0),
        f"source model, {domain}": results.record(domain, SOURCE, None, 0),
        f"after TENT, {domain}": results.record(domain, "tent", results.chosen["tent"], 0),
        f"after NOTELA, {domain}": results.record(domain, "notela", results.chosen["notela"], 0),
    }
    known = {heading: record["probabilities"] for heading, record in records.items() if record is not None}
    if len(known) < len(records):
        return None
    names = sorted(set.intersection(*(set(each) for each in known.values())), key=protocol.class_names.index)
    if not names:
        return None
    longest = max(map(len, names))
    figure, axes = _panels(4, width=3.2, height=2.6 + 0.08 * max(0, longest - 10), columns=4, sharey=True)
    for number, (axis, (heading, each)) in enumerate(zip(axes, known.items(), strict=True), 1):
        boxes = [_box(dict(zip(QUANTILES, each[name], strict=True)), name) for name in names]
        drawn = axis.bxp(boxes, showfliers=False, patch_artist=True, medianprops={"color": "black"})
        for patch in drawn["boxes"]:
            patch.set(facecolor="#56B4E9", alpha=0.6)
        axis.set_ylim(-0.02, 1.02)
        axis.set_title(f"({number}) {heading}")
        axis.set_xlabel("class")
        axis.tick_params(axis="x", rotation=90 if longest > 3 else 0)
    axes[0].set_ylabel("probability of the class\nwhere it is present")
    return figure


def _box(q: dict[float, float], label: str) -> dict[str, Any]:
    return {"label": label, "whislo": q[0.05], "q1": q[0.25], "med": q[0.5], "q3": q[0.75], "whishi": q[0.95]}


def sensitivity(results: Results) -> Figure | None:
    """The mean over the validation domains of every candidate, by each setting's value; the bar is the median."""
    if not results.protocol.searched:
        return None
    methods = [method for method in results.methods if len(results.searched(method)) > 2]
    if not methods:
        return None
    wanted = {method: varied(method) for method in methods}
    columns = max(map(len, wanted.values()))
    metric = results.protocol.metrics[0]
    figure = Figure(figsize=(1.75 * columns, 1.75 * len(methods)), layout="constrained")
    axes: Any = figure.subplots(len(methods), columns, squeeze=False, sharey=True)
    before = float(np.mean([results.source(domain, metric) for domain in results.protocol.validation]))
    for line, method in zip(axes, methods, strict=True):
        points = results.searched(method)
        for axis, name in zip(line, wanted[method], strict=False):
            _strip(axis, [(preset.settings()[name], score) for preset, score in points], _colour(method))
            axis.axhline(before, color=COLOURS[SOURCE], linestyle=":", linewidth=1)
            axis.set_title(name.rstrip("_").replace("_", " "), fontsize=8)
        for axis in line[len(wanted[method]) :]:
            axis.set_visible(False)
        line[0].set_ylabel(f"{title(method)}\n{METRIC_TITLES[metric]}, %")
    return figure


def _strip(axis: Axes, points: list[tuple[Any, float]], colour: str) -> None:
    """A dot for every score at its setting's value."""
    values = sorted({value for value, _ in points}, key=lambda value: (isinstance(value, str), value))
    for place, value in enumerate(values):
        scores = np.array([score for its, score in points if its == value])
        spread = np.linspace(-0.18, 0.18, len(scores)) if len(scores) > 1 else np.zeros(1)
        axis.plot(place + spread, scores, "o", color=colour, markersize=2.5, alpha=0.8)
        axis.plot([place - 0.3, place + 0.3], [np.median(scores)] * 2, color="black", linewidth=1.2)
    axis.set_xticks(range(len(values)), [f"{v:g}" if isinstance(v, float) else str(v) for v in values], fontsize=7)
    axis.set_xlim(-0.6, len(values) - 0.4)


def _colour(method: str) -> str:
    return COLOURS.get(method, "#8C564B")


def _panels(
    count: int, width: float, height: float, columns: int | None = None, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    columns = columns or min(3, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes: Any = figure.subplots(rows, columns, squeeze=False, sharey=sharey)
    flat = list(axes.flat)
    for unused in flat[count:]:
        unused.set_visible(False)
    return figure, flat[:count]


def _legend(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(9, len(labels)), frameon=False)
