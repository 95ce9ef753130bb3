"""AaD: attract neighbours, disperse the batch (Yang et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from notela.errors import check_at_least, check_integer
from notela.graph import search
from notela.methods.base import Batch, Method, Preset
from notela.task import Task, probabilities

if TYPE_CHECKING:
    from notela.state import State


@dataclass(frozen=True)
class AaD(Method):
    """Banks of unit-norm features and of probabilities of the whole set; each step refreshes the batch's rows, then
    searches. A row agrees with its `k` nearest, and disagrees with the others of its batch, with a weight that falls
    from 1 as (1 + 10 t/T)^-β over the run's T steps; β = 0 keeps it.
    """

    name = "aad"
    needs_features = True
    k: int = 5
    beta: float = 5.0

    def __post_init__(self) -> None:
        check_integer("k", self.k, 1)
        check_at_least("beta", self.beta, 0)

    def before_run(self, state: State) -> None:
        if "features" not in state.banks:
            bank = state.sweep()
            state.banks["features"] = F.normalize(bank.features)
            state.banks["probabilities"] = probabilities(bank.logits, state.task)

    def loss(self, batch: Batch, state: State) -> Tensor:
        features, bank = state.banks["features"], state.banks["probabilities"]
        now = state.teacher(batch.x)
        queries = F.normalize(now.features)
        features[batch.rows] = queries
        bank[batch.rows] = probabilities(now.logits, state.task)
        # Of unit vectors the nearest are those with the largest cosine.
        near = search(queries, features, state.at_most_neighbours(self.k), batch.rows)
        steps = state.preset.epochs * state.data.steps()
        dispersing = (1 + 10 * state.step / steps) ** -self.beta
        return aad_loss(state.student(batch.x).logits, bank[near], dispersing, state.task)


def aad_loss(logits: Tensor, near: Tensor, dispersing: float, task: Task) -> Tensor:
    """-Σ_j⟨p_i,p_j⟩ over the neighbours + `dispersing`·Σ_m⟨p_i,p_m⟩ over the others in the batch, averaged over it.

    `near` (B, k, C) are the neighbours' probabilities. Multi-label: ⟨a,b⟩ is the mean over classes of ab + (1-a)(1-b).
    The product is linear in the second factor, so what it runs over is summed first: B·C multiplications, not B²·C.
    """
    p = probabilities(logits, task)
    attracted = _product(p, near.sum(1), near.shape[1], task)
    dispersed = _product(p, p.sum(0) - p, len(p) - 1, task)  # its gradient runs through both factors
    return (dispersing * dispersed - attracted).mean()


def _product(p: Tensor, summed: Tensor, count: int, task: Task) -> Tensor:
    """Σ_j⟨p_i,p_j⟩ (B,) from the sum (B, C) of `count` vectors p_j."""
    if task == "singlelabel":
        return (p * summed).sum(-1)
    return (p * summed + (1 - p) * (count - summed)).mean(-1)


# Nothing was published for these tasks: TENT's policies; k and beta of the authors' VisDA runs (Office-Home: 3 and 0).
PRESETS = {
    "image": Preset(AaD(5, 5.0), "norm", 1e-4, "cosine", "target", noise=False),
    "audio-multilabel": Preset(AaD(5, 5.0), "norm", 1e-5, "cosine", "source", noise=True),
    "audio-singlelabel": Preset(AaD(5, 5.0), "all", 1e-3, "cosine", "source", noise=True),
}
GRID = tuple(AaD(k, beta) for k in (3, 5) for beta in (0.0, 2.0, 5.0))
