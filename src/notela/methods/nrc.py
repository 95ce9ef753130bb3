"""NRC: agree with neighbours, and less with neighbours of neighbours (Yang et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from notela.errors import check_at_least, check_choice, check_integer
from notela.graph import Metric, offset, search
from notela.methods.base import Batch, Method, Preset
from notela.task import Task, marginal_entropy, probabilities

if TYPE_CHECKING:
    from notela.state import State


@dataclass(frozen=True)
class NRC(Method):
    """Banks of features and probabilities of the whole set; each step refreshes the batch's rows, then searches.

    `base` is the affinity of a neighbour that does not name the row back, and of every extended neighbour. The metric
    is cosine, as in the method's own paper. `frozen_banks` leaves the banks as the source model made them, which is
    what the published tables of the NOTELA paper were run with (together with metric="euclidean").
    """

    name = "nrc"
    needs_features = True
    k: int = 5
    extended_k: int = 5
    base: float = 0.1
    metric: Metric = "cosine"
    frozen_banks: bool = False

    def __post_init__(self) -> None:
        check_integer("k", self.k, 1)
        check_integer("extended_k", self.extended_k, 1)
        check_at_least("base", self.base, 0)
        check_choice("metric", self.metric, ("euclidean", "cosine"))

    def before_run(self, state: State) -> None:
        if "features" not in state.banks:
            bank = state.sweep()
            state.banks["offset"] = offset(bank.features, self.metric)
            state.banks["features"] = bank.features - state.banks["offset"]
            state.banks["probabilities"] = probabilities(bank.logits, state.task)

    def loss(self, batch: Batch, state: State) -> Tensor:
        features, bank = state.banks["features"], state.banks["probabilities"]
        now = state.teacher(batch.x)
        queries = now.features - state.banks["offset"]
        if not self.frozen_banks:
            features[batch.rows] = queries
            bank[batch.rows] = probabilities(now.logits, state.task)
        k = state.at_most_neighbours(self.k)
        extended_k = state.at_most_neighbours(self.extended_k)
        near = search(queries, features, k, batch.rows, self.metric)
        others, position = near.unique(return_inverse=True)  # each neighbour is searched once
        far = search(features[others], features, extended_k, others, self.metric)[position]
        named_back = (far == batch.rows[:, None, None]).any(-1)
        weights = named_back + ~named_back * self.base
        state.record(degree=named_back.float().sum(1))
        return nrc_loss(
            state.student(batch.x).logits, bank[near], weights, bank[far].flatten(1, 2), self.base, state.task
        )


def nrc_loss(logits: Tensor, near: Tensor, weights: Tensor, far: Tensor, base: float, task: Task) -> Tensor:
    """-Σ_j w_ij⟨p_i,p_j⟩ - base·Σ_l⟨p_i,p_l⟩, averaged over the batch, minus the entropy of the mean prediction.

    `near` (B, k, C) are the neighbours' probabilities with `weights` (B, k), `far` (B, m, C) the extended neighbours'.
    Multi-label: ⟨a,b⟩ is the mean over classes of ab + (1-a)(1-b). The product is linear in the neighbours, so
    they are summed first: B·C instead of B·m·C multiplications with gradient.
    """
    p = probabilities(logits, task)
    summed = (weights[:, :, None] * near).sum(1) + base * far.sum(1)
    if task == "singlelabel":
        agreement = (p * summed).sum(-1)
    else:
        mass = weights.sum(1, keepdim=True) + base * far.shape[1]
        agreement = (p * summed + (1 - p) * (mass - summed)).mean(-1)
    return -agreement.mean() - marginal_entropy(logits, task)


PRESETS = {
    "image": Preset(NRC(15, 15, 0.2), "norm", 1e-5, "cosine", "target", noise=False),
    "audio-multilabel": Preset(NRC(5, 5, 0.1), "norm", 1e-5, "cosine", "source", noise=True),
    "audio-singlelabel": Preset(NRC(15, 10, 0.1), "all", 1e-4, "cosine", "source", noise=True),
}
GRID = tuple(NRC(k, extended_k, base) for k in (5, 10, 15) for extended_k in (5, 10, 15) for base in (0.1, 0.2))
