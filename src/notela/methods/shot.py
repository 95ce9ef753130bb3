"""SHOT: information maximisation and nearest-centroid labels, under a frozen head (Liang et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from notela.errors import check_at_least
from notela.methods.base import Batch, Method, Preset
from notela.task import Task, check_task, cross_entropy, entropy, marginal_entropy, probabilities

if TYPE_CHECKING:
    from notela.state import State


@dataclass(frozen=True)
class SHOT(Method):
    """loss = mean entropy - entropy of the mean prediction + β · cross-entropy(z, centroid labels)."""

    name = "shot"
    needs_features = True
    freezes_head = True
    beta: float = 0.3

    def __post_init__(self) -> None:
        check_at_least("beta", self.beta, 0)

    def before_epoch(self, state: State) -> None:
        if self.beta > 0:
            bank = state.sweep()
            labels = centroid_labels(bank.features, probabilities(bank.logits, state.task), state.task)
            state.set_labels(labels)

    def loss(self, batch: Batch, state: State) -> Tensor:
        logits = state.student(batch.x).logits
        loss = entropy(logits, state.task).mean() - marginal_entropy(logits, state.task)
        if self.beta > 0:
            labels = state.labels_of(batch.rows)
            loss = loss + self.beta * cross_entropy(logits, labels, state.task).mean()
        return loss


def centroid_labels(features: Tensor, probabilities: Tensor, task: Task) -> Tensor:
    """Labels (N, C) of 0 and 1 by nearest centroid, twice: p-weighted class means, then means of those clusters.

    Multi-label: each class is a problem of two centroids, with weights 1 - p and p; nearer to the positive one is
    f·(μ₊ - μ₋) > (|μ₊|² - |μ₋|²)/2, so all classes are one matrix product. A cluster that attracts no row keeps its
    first centroid.

    >>> f = torch.tensor([[0.0], [1.0], [9.0]])
    >>> p = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]])
    >>> centroid_labels(f, p, "singlelabel").argmax(1)
    tensor([0, 0, 1])
    """
    check_task(task)
    f = features - features.mean(0)  # distances do not feel a shift; float32 does
    if task == "singlelabel":
        centroids = _means(f, probabilities)
        labels = _nearest(f, centroids)
        return _nearest(f, _means(f, labels, keep=centroids))
    positive, negative = _means(f, probabilities), _means(f, 1 - probabilities)
    labels = _nearer(f, positive, negative)
    return _nearer(f, _means(f, labels, keep=positive), _means(f, 1 - labels, keep=negative))


def _means(f: Tensor, weights: Tensor, keep: Tensor | None = None) -> Tensor:
    """Weighted means of the rows, one for each column of weights (C, d); weightless: `keep`, else out of reach."""
    total = weights.sum(0)[:, None]
    empty = total == 0
    means = (weights.T @ f) / total.masked_fill(empty, 1)
    return torch.where(empty, torch.full_like(means, torch.nan) if keep is None else keep, means)


def _affinity(f: Tensor, centroids: Tensor) -> Tensor:
    """f·μ - |μ|²/2 (N, C), larger is nearer; -inf to a centroid that does not exist."""
    return (f @ centroids.T - centroids.square().sum(1) / 2).nan_to_num(nan=-torch.inf)


def _nearest(f: Tensor, centroids: Tensor) -> Tensor:
    labels = torch.zeros(len(f), len(centroids), dtype=f.dtype, device=f.device)
    return labels.scatter_(1, _affinity(f, centroids).argmax(1, keepdim=True), 1.0)


def _nearer(f: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    return (_affinity(f, positive) > _affinity(f, negative)).to(f.dtype)


PRESETS = {
    "image": Preset(SHOT(0.3), "norm", 1e-4, "cosine", "target", noise=False),
    "audio-multilabel": Preset(SHOT(0.0), "norm", 1e-5, "cosine", "source", noise=False),
    "audio-singlelabel": Preset(SHOT(0.6), "all", 1e-3, "cosine", "source", noise=True),
}
GRID = tuple(SHOT(beta) for beta in (0.0, 0.3, 0.6, 0.9))
