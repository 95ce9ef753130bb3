"""NOTELA: NOisy student TEacher with Laplacian Adjustment (paper, section 4).

Dropout Student, whose teacher also listens to each row's mutual nearest neighbours in feature space.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from notela.classifier import Output
from notela.errors import NotelaError, check_at_least, check_choice, check_integer
from notela.graph import Metric, Normalisation, edge_weights, is_mutual, mutual_affinity, neighbours, offset, search
from notela.methods.base import Preset
from notela.methods.dropout_student import DropoutStudent
from notela.task import Task, probabilities, sharpen, votes

if TYPE_CHECKING:
    from notela.state import State

Message = Literal["votes", "centred", "standardised"]


@dataclass(frozen=True)
class NOTELA(DropoutStudent):
    """Labels y ∝ p^(1/α) ⊙ exp((λ/α) W p), eq. 3, with W the mutual k-nearest-neighbour affinity.

    `k` counts true neighbours; the authors' code counts the row itself too, so its k=15 is 14 here. `iterations`
    unrolls the concave-convex procedure of the appendix (1 = paper) until labels change by less than `tolerance`.

    `message`: "votes" as published; "centred" and "standardised" tell only how a row's neighbours differ from the whole
    set (see `neighbours_message`).
    """

    name = "notela"
    needs_features = True
    k: int = 5
    lambda_: float = 1.0
    normalisation: Normalisation = "row"
    metric: Metric = "euclidean"
    iterations: int = 1
    tolerance: float = 1e-4
    message: Message = "votes"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("k", self.k, 1)
        check_at_least("lambda_", self.lambda_, 0)
        check_integer("iterations", self.iterations, 1)
        check_at_least("tolerance", self.tolerance, 0)
        check_choice("normalisation", self.normalisation, ("row", "symmetric"))
        check_choice("metric", self.metric, ("euclidean", "cosine"))
        check_choice("message", self.message, get_args(Message))
        if self.iterations > 1 and self.refresh == "iteration":
            raise NotelaError(
                f"iterations={self.iterations} unrolls over the whole set and needs refresh='epoch'; "
                "refresh='iteration' knows the labels of one batch only"
            )

    def before_run(self, state: State) -> None:
        """With refresh="iteration": banks of the whole set, whose rows are replaced batch by batch."""
        if self.refresh == "iteration" and "features" not in state.banks:
            bank = state.sweep()
            lists = neighbours(bank.features, state.at_most_neighbours(self.k), self.metric)
            everyone = torch.arange(len(lists), device=lists.device)
            state.banks["offset"] = offset(bank.features, self.metric)
            state.banks["features"] = bank.features - state.banks["offset"]
            state.banks["probabilities"] = probabilities(bank.logits, state.task)
            state.banks["lists"] = lists
            state.banks["degree"] = is_mutual(everyone, lists, lists).sum(1)

    def teach(self, clean: Output, state: State) -> Tensor:
        k = state.at_most_neighbours(self.k)
        affinity = mutual_affinity(clean.features, k, self.normalisation, self.metric)
        state.record(degree=affinity.crow_indices().diff().float())
        return teacher_step(
            clean.logits,
            affinity,
            state.task,
            self.alpha,
            self.lambda_,
            self.iterations,
            self.tolerance,
            self.message,
        )

    def teach_rows(self, rows: Tensor, clean: Output, state: State) -> Tensor:
        banks = state.banks
        features = clean.features - banks["offset"]
        lists = search(features, banks["features"], banks["lists"].shape[1], rows, self.metric)
        mutual = is_mutual(rows, lists, banks["lists"])
        degree = mutual.sum(1)
        weights = edge_weights(degree, banks["degree"][lists], self.normalisation) * mutual
        everyone = banks["probabilities"]
        weights = weights.to(everyone.dtype)
        heard = torch.einsum("bk,bkc->bc", weights, everyone[lists])
        told = neighbours_message(heard, weights.sum(1), everyone, state.task, self.message)
        labels = sharpen(clean.logits, state.task, self.alpha, message=self.lambda_ * told)
        banks["features"][rows] = features
        banks["probabilities"][rows] = probabilities(clean.logits, state.task)
        banks["lists"][rows] = lists
        banks["degree"][rows] = degree
        state.record(degree=degree.float())
        return labels


def teacher_step(
    logits: Tensor,
    affinity: Tensor,
    task: Task,
    alpha: float,
    lambda_: float,
    iterations: int = 1,
    tolerance: float = 1e-4,
    message: Message = "votes",
) -> Tensor:
    """Pseudo-labels of the whole set from logits (N, C) and affinity W (N, N): eq. 3, or its unrolled form
    y(t) ∝ p^(1/α) ⊙ exp((λ/α) W y(t-1)), y(0) = p.

    >>> z, w = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> teacher_step(z, w, "singlelabel", alpha=1.0, lambda_=1.0)[1]  # the unsure row follows its neighbour
    tensor([0.6817, 0.3183])
    """
    labels = probabilities(logits, task)
    mass = (affinity @ labels.new_ones(len(labels), 1).to(affinity.device))[:, 0].to(logits.device)
    for _ in range(iterations):
        before = labels
        heard = (affinity @ before.to(affinity.device)).to(logits.device)
        told = neighbours_message(heard, mass, before, task, message)
        labels = sharpen(logits, task, alpha, message=lambda_ * told)
        if iterations > 1 and (labels - before).abs().max() < tolerance:
            break
    return labels


def neighbours_message(heard: Tensor, mass: Tensor, everyone: Tensor, task: Task, form: Message) -> Tensor:
    """What a row's neighbours tell it, in the units of a logit: `heard` is Σ_j w_ij p_j (B, C), `mass` d_i = Σ_j w_ij
    (B,), `everyone` the whole set's p (N, C), whose mean is p̄.

    "votes", as published: Wp, or W(2p - 1) in the multi-label task. Where positives are rare, that is about -d_i for
    every class whatever the neighbours are: the whole set slides to "nothing", but for rows without neighbours.
    "centred": Wp - d p̄, which is nothing where neighbours are like everybody, and nothing where there are none.
    "standardised": (Wp - d p̄)/√(p̄(1 - p̄)), so that a rare class is heard as loudly as a common one; one row in N is
    the rarest that a set can tell.

    >>> p = torch.tensor([[0.9], [0.1], [0.1], [0.1]])
    >>> neighbours_message(p[:1], torch.ones(1), p, "multilabel", "centred")
    tensor([[0.6000]])
    """
    if form == "votes":
        return votes(heard, task, mass[:, None])
    mean = everyone.mean(0)
    told = heard - mass[:, None] * mean
    if form == "centred":
        return told
    rarest = 1 / len(everyone)
    return told / (mean * (1 - mean)).clamp(min=rarest * (1 - rarest)).sqrt()


# With the published k, read as the paper's text has it; the authors' code, which counts the row itself, ran k - 1.
PRESETS = {
    "image": Preset(NOTELA(1.0, "iteration", 15, 2.0), "norm", 1e-4, "constant", "target", noise=True),
    "audio-multilabel": Preset(NOTELA(1.0, "epoch", 5, 1.0), "norm", 1e-4, "constant", "source", noise=True),
    "audio-singlelabel": Preset(NOTELA(1.0, "iteration", 15, 2.0), "all", 1e-4, "cosine", "source", noise=True),
}
# Not of the paper: for sets whose neighbours know more than the published message lets them say.
PRESETS["centred"] = Preset(
    NOTELA(1.0, "epoch", 15, 2.0, metric="cosine", message="standardised"),
    "norm+head",
    1e-3,
    "constant",
    "re-estimated",
    noise=True,
    teacher_momentum="slow",
)
# The same, where nobody knows whether the mix of classes has changed, and with a guard. Where an item has one class,
# the message is not standardised: it would speak up for classes that are rare because they hardly occur.
PRESETS["auto-multilabel"] = replace(PRESETS["centred"], statistics="auto", guard="act")
PRESETS["auto-singlelabel"] = replace(
    PRESETS["auto-multilabel"], method=NOTELA(1.0, "epoch", 15, 5.0, metric="cosine", message="centred")
)
# The paper searches λ = α.
GRID = tuple(
    NOTELA(alpha, refresh, k, lambda_=alpha)
    for k in (5, 10, 15)
    for alpha in (0.1, 1.0)
    for refresh in ("iteration", "epoch")
)
