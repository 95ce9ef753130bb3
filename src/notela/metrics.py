"""mAP, cmAP, accuracy (of all examples, and the mean over classes), AUROC (paper, appendix D).

`scores` are (N, C) logits or probabilities, `labels` 0/1 of the same shape, or class numbers (N,) for accuracy;
tensors and arrays both work. Ties are read pessimistically in average precision: among equal scores the negatives
rank first, which is the lowest value that any order of the tied scores can give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import rankdata

from notela.errors import NotelaError

Floats = npt.NDArray[np.floating[Any]]
Bools = npt.NDArray[np.bool_]


def mean_average_precision(scores: Any, labels: Any) -> float:
    """mAP: for each example the average precision of its positives among its own class scores; mean over the
    examples that have a positive.

    >>> mean_average_precision([[0.9, 0.8, 0.1]], [[0, 1, 0]])
    0.5
    """
    s, y = _matrices(scores, labels)
    some = y.any(1)
    if not some.any():
        raise NotelaError(f"none of the {len(y)} examples has a positive label: mAP is not defined")
    return float(_average_precision(s[some].T, y[some].T).mean())


def class_mean_average_precision(scores: Any, labels: Any, minimum: int = 5) -> float:
    """cmAP: for each class the average precision over the examples ranked by its score; mean over the classes with
    at least `minimum` positives.

    >>> class_mean_average_precision([[0.9, 0.2], [0.8, 0.1], [0.1, 0.3]], [[0, 0], [1, 0], [0, 1]], minimum=1)
    0.75
    """
    s, y = _matrices(scores, labels)
    enough = y.sum(0) >= max(minimum, 1)
    if not enough.any():
        raise NotelaError(
            f"no class has at least {minimum} positives among {len(y)} examples (most: {int(y.sum(0).max())}): "
            "cmAP is not defined; lower minimum or evaluate on more examples"
        )
    return float(_average_precision(s[:, enough], y[:, enough]).mean())


def accuracy(scores: Any, labels: Any) -> float:
    """Top-1 accuracy against class numbers (N,).

    >>> accuracy([[0.9, 0.1], [0.8, 0.2]], [0, 1])
    0.5
    """
    return float(_hits(scores, labels)[0].mean())


def per_class_accuracy(scores: Any, labels: Any) -> float:
    """Top-1 accuracy of each class that occurs; mean over those classes (VisDA's own measure).

    >>> per_class_accuracy([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], [0, 0, 1])
    0.5
    """
    hits, y = _hits(scores, labels)
    _, place, counts = np.unique(y, return_inverse=True, return_counts=True)
    return float((np.bincount(place, hits) / counts).mean())


def _hits(scores: Any, labels: Any) -> tuple[Bools, npt.NDArray[Any]]:
    """Whether the highest score is the label's, and the labels."""
    s, y = as_array(scores), as_array(labels)
    if s.ndim != 2 or y.shape != s.shape[:1]:
        raise NotelaError(f"scores {s.shape} and class numbers {y.shape} do not fit: expected (N, C) and (N,)")
    _check_scores(s)
    return s.argmax(1) == y, y


def top1_hit_rate(scores: Any, labels: Any) -> float:
    """Share of examples with a positive whose highest-scored class is one of their positives.

    >>> top1_hit_rate([[0.9, 0.1], [0.8, 0.2]], [[1, 1], [0, 1]])
    0.5
    """
    s, y = _matrices(scores, labels)
    some = y.any(1)
    if not some.any():
        raise NotelaError(f"none of the {len(y)} examples has a positive label: the hit rate is not defined")
    return float(y[some, s[some].argmax(1)].mean())


def roc_auc(scores: Any, labels: Any, per_class: bool = False) -> Any:
    """Area under the ROC curve, mean over the classes that have positives and negatives (ties count half).

    `per_class`: an array (C,) instead, NaN where a class lacks one or the other.

    >>> roc_auc([[0.1], [0.4], [0.35], [0.8]], [[0], [0], [1], [1]])
    0.75
    """
    s, y = _matrices(scores, labels)
    positives = y.sum(0)
    negatives = len(y) - positives
    defined = (positives > 0) & (negatives > 0)
    if not defined.any() and not per_class:
        raise NotelaError("no class has both positives and negatives: AUROC is not defined")
    ranks = rankdata(s, axis=0)
    above = (ranks * y).sum(0) - positives * (positives + 1) / 2  # Mann-Whitney U
    area = np.where(defined, above / np.where(defined, positives * negatives, 1), np.nan)
    return area if per_class else float(area[defined].mean())


BY_NAME: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": accuracy,
    "per_class": per_class_accuracy,
    "map": mean_average_precision,
    "cmap": class_mean_average_precision,
    "auroc": roc_auc,
    "top1": top1_hit_rate,
}


def defined(labels: Any) -> list[str]:
    """The multi-label metrics that these labels (N, C) define.

    >>> defined([[1, 0], [1, 0]])
    ['map', 'top1']
    """
    y = as_array(labels).astype(bool)
    positives = y.sum(0)
    wanted = {
        "map": y.any(),
        "cmap": (positives >= 5).any(),
        "auroc": ((positives > 0) & (positives < len(y))).any(),
        "top1": y.any(),
    }
    return [name for name, yes in wanted.items() if yes]


def _average_precision(s: Floats, y: Bools) -> Floats:
    """Average precision of each column, negatives first among ties; every column has a positive."""
    order = np.lexsort((y, -s), axis=0)
    y = np.take_along_axis(y, order, 0)
    precision = y.cumsum(0) / np.arange(1, len(y) + 1)[:, None]
    result: Floats = (precision * y).sum(0) / y.sum(0)
    return result


def _matrices(scores: Any, labels: Any) -> tuple[Floats, Bools]:
    s, y = as_array(scores), as_array(labels)
    if s.ndim != 2 or s.shape != y.shape:
        raise NotelaError(f"scores {s.shape} and labels {y.shape} do not fit: both must be (N, C)")
    _check_scores(s)
    if not np.isin(y, (0, 1)).all():
        raise NotelaError("labels must be 0 or 1 in every entry")
    return s, y.astype(bool)


def _check_scores(s: Floats) -> None:
    if np.isnan(s).any():
        raise NotelaError(f"scores of example {int(np.isnan(s).any(1).argmax())} hold NaN: nothing can be ranked")


def as_array(x: Any) -> npt.NDArray[Any]:
    """A tensor, list or array as an array."""
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu()
        array: npt.NDArray[Any] = x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy()
        return array
    return np.asarray(x)
