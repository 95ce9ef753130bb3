"""Metrics against scikit-learn, and ties against every order of the tied scores."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    label_ranking_average_precision_score,
    roc_auc_score,
)

from notela import metrics
from notela.errors import NotelaError


def problem(seed: int, n: int = 60, c: int = 7, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    s = rng.integers(0, 4, (n, c)).astype(float) if ties else rng.normal(size=(n, c))
    return s, (rng.random((n, c)) < 0.3).astype(int)


def test_map_is_label_ranking_average_precision_without_ties() -> None:
    s, y = problem(0)
    some = y.any(1)
    want = label_ranking_average_precision_score(y[some], s[some])
    assert metrics.mean_average_precision(s, y) == pytest.approx(want)
    assert metrics.mean_average_precision(torch.tensor(s), torch.tensor(y)) == pytest.approx(want)


def test_cmap_is_the_mean_over_classes_with_enough_positives() -> None:
    s, y = problem(1)
    y[:, 0] = 0
    y[:4, 0] = 1  # four positives: left out; five: counted
    y[:, 1] = 0
    y[:5, 1] = 1
    want = np.mean([average_precision_score(y[:, c], s[:, c]) for c in range(1, 7)])
    assert metrics.class_mean_average_precision(s, y) == pytest.approx(want)


def test_auroc_agrees_with_scikit_learn_with_ties() -> None:
    s, y = problem(2, ties=True)
    assert metrics.roc_auc(s, y) == pytest.approx(roc_auc_score(y, s, average="macro"))
    y[:, 3] = 0
    each = metrics.roc_auc(s, y, per_class=True)
    assert np.isnan(each[3])
    assert metrics.roc_auc(s, y) == pytest.approx(np.nanmean(each))


def test_accuracy_and_hit_rate() -> None:
    s, y = problem(3)
    labels = np.random.default_rng(4).integers(0, 7, 60)
    assert metrics.accuracy(s, labels) == pytest.approx(accuracy_score(labels, s.argmax(1)))
    hits = [y[i, s[i].argmax()] for i in range(60) if y[i].any()]
    assert metrics.top1_hit_rate(s, y) == pytest.approx(np.mean(hits))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6).filter(lambda x: any(y for _, y in x))
)
def test_ties_give_the_worst_order(items: list[tuple[int, bool]]) -> None:
    def in_order(order: tuple[tuple[int, bool], ...]) -> float:
        hits = np.cumsum([y for _, y in order])
        return float(np.mean([hits[r] / (r + 1) for r, (_, y) in enumerate(order) if y]))

    ranked = [o for o in itertools.permutations(items) if all(a[0] >= b[0] for a, b in itertools.pairwise(o))]
    worst = min(in_order(o) for o in ranked)
    s, y = (np.array([[float(v) for v in column]]) for column in zip(*items, strict=True))
    assert metrics.mean_average_precision(s, y) == pytest.approx(worst)
    assert metrics.class_mean_average_precision(s.T, y.T, minimum=1) == pytest.approx(worst)


def test_which_metrics_labels_define() -> None:
    y = np.zeros((9, 2), int)
    y[:5, 0] = 1
    assert metrics.defined(y) == ["map", "cmap", "auroc", "top1"]
    y[4, 0] = 0
    assert metrics.defined(y) == ["map", "auroc", "top1"]
    assert metrics.defined(0 * y) == []


def test_undefined_metrics_say_why() -> None:
    s, y = np.zeros((4, 2)), np.array([[1, 0]] * 4)
    with pytest.raises(NotelaError, match="at least 5 positives among 4 examples \\(most: 4\\)"):
        metrics.class_mean_average_precision(s, y)
    with pytest.raises(NotelaError, match="both positives and negatives"):
        metrics.roc_auc(s, y)
    for metric in (metrics.mean_average_precision, metrics.top1_hit_rate):
        with pytest.raises(NotelaError, match="none of the 4 examples"):
            metric(s, np.zeros((4, 2)))


def test_bad_input_is_named() -> None:
    with pytest.raises(NotelaError, match=r"\(4, 2\) and labels \(4, 3\)"):
        metrics.roc_auc(np.zeros((4, 2)), np.zeros((4, 3)))
    with pytest.raises(NotelaError, match="example 2 hold NaN"):
        metrics.mean_average_precision([[0.0], [0.0], [np.nan]], [[1], [1], [1]])
    with pytest.raises(NotelaError, match="0 or 1"):
        metrics.mean_average_precision([[0.5]], [[0.5]])
    with pytest.raises(NotelaError, match="do not fit"):
        metrics.accuracy(np.zeros((4, 2)), np.zeros((4, 2)))
