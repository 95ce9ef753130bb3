"""ETA: TENT on what is sure and new (Niu et al., 2022; EATA without its Fisher term)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from notela.errors import check_at_least
from notela.methods.base import Batch, Method, Preset
from notela.task import Task, entropy, probabilities

if TYPE_CHECKING:
    from notela.state import State

MOMENTUM = 0.9
"""Of the running mean of the kept predictions."""


@dataclass(frozen=True)
class ETA(Method):
    """Entropy of the rows that are sure, H < E0, and not like those before, |cos(p, p̄)| < `redundancy`; each with the
    weight exp(E0 - H). p̄ is a running mean of the kept predictions.

    E0 is the share `margin` of the largest entropy: ln C, or ln 2 in the multi-label task, whose H is a mean over
    classes. A limit on the cosine fits a number of classes: a sure row and an even mean are at 1/√C. The method's paper
    has 0.05 for 1,000 classes, 0.4 for 10.
    """

    name = "eta"
    margin: float = 0.4
    redundancy: float = 0.05

    def __post_init__(self) -> None:
        check_at_least("margin", self.margin, 0)
        check_at_least("redundancy", self.redundancy, 0)

    def loss(self, batch: Batch, state: State) -> Tensor:
        logits = state.student(batch.x).logits
        p, mean = probabilities(logits.detach(), state.task), state.banks.get("mean")
        weights = row_weights(logits.detach(), mean, state.task, self.margin, self.redundancy)
        kept = weights > 0
        state.record(kept=kept.float())
        if kept.any():
            now = p[kept].mean(0)
            state.banks["mean"] = now if mean is None else MOMENTUM * mean + (1 - MOMENTUM) * now
        return (weights * entropy(logits, state.task)).sum() / kept.sum().clamp(min=1)


def row_weights(logits: Tensor, mean: Tensor | None, task: Task, margin: float, redundancy: float) -> Tensor:
    """exp(E0 - H) of the rows that are kept, 0 of the others (N,). Without a `mean` yet, nothing is redundant.

    >>> z = torch.tensor([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [1.0, 0.0, 0.0]])  # like the mean; unlike it; unsure
    >>> row_weights(z, torch.tensor([1.0, 0.0, 0.0]), "singlelabel", margin=0.4, redundancy=0.4) > 0
    tensor([False,  True, False])
    """
    limit = margin * math.log(logits.shape[1] if task == "singlelabel" else 2)
    h = entropy(logits, task)
    kept = h < limit
    if mean is not None:
        # Of the positive halves also in the multi-label task: with 1 - p beside p, all rows would be alike.
        kept &= F.cosine_similarity(probabilities(logits, task), mean[None], dim=1).abs() < redundancy
    return (limit - h).exp() * kept


# Nothing was published for these tasks: TENT's policies, and the wider limit, since a narrow one keeps nothing where
# classes are few.
PRESETS = {
    "image": Preset(ETA(0.4, 0.4), "norm", 1e-4, "cosine", "target", noise=False),
    "audio-multilabel": Preset(ETA(0.4, 0.4), "norm", 1e-5, "cosine", "source", noise=True),
    "audio-singlelabel": Preset(ETA(0.4, 0.4), "all", 1e-3, "cosine", "source", noise=True),
}
GRID = tuple(ETA(0.4, redundancy) for redundancy in (0.05, 0.4, 0.8))
