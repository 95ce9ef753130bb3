"""RPL: pseudo-labels under a loss that forgives wrong ones (Rusak et al., 2022; Zhang & Sabuncu, 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from notela.methods.base import Batch, Method, Preset, check_share
from notela.task import Task, hard, probabilities

if TYPE_CHECKING:
    from notela.state import State


@dataclass(frozen=True)
class RPL(Method):
    """Every row's own label ŷ, from a clean pass, under the generalised cross-entropy (1 - p_ŷ^q)/q.

    q = 0 is the limit, cross-entropy; q = 1 is the absolute error 1 - p_ŷ. Single-label: ŷ is the arg-max. Multi-label:
    each class is a problem of its own, ŷ = [p > ½].
    """

    name = "rpl"
    q: float = 0.8

    def __post_init__(self) -> None:
        check_share("q", self.q)

    def loss(self, batch: Batch, state: State) -> Tensor:
        p = probabilities(state.teacher(batch.x).logits, state.task)
        state.record_labels(batch.rows, p)
        return generalised_cross_entropy(state.student(batch.x).logits, hard(p, state.task), state.task, self.q)


def generalised_cross_entropy(logits: Tensor, labels: Tensor, task: Task, q: float) -> Tensor:
    """Mean of (1 - p_ŷ^q)/q over rows, or over rows and classes; `labels` as `hard` gives them.

    >>> generalised_cross_entropy(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), "singlelabel", q=1.0)
    tensor(0.5000)
    """
    if task == "singlelabel":
        log_p = logits.log_softmax(-1).gather(1, labels[:, None])
    else:
        log_p = F.logsigmoid(torch.where(labels, logits, -logits))
    return -(log_p if q == 0 else torch.expm1(q * log_p) / q).mean()


# Nothing was published for these tasks: TENT's policies, and q of the method's own paper.
PRESETS = {
    "image": Preset(RPL(0.8), "norm", 1e-4, "cosine", "target", noise=False),
    "audio-multilabel": Preset(RPL(0.8), "norm", 1e-5, "cosine", "source", noise=True),
    "audio-singlelabel": Preset(RPL(0.8), "all", 1e-3, "cosine", "source", noise=True),
}
GRID = tuple(RPL(q) for q in (0.5, 0.8, 1.0))
