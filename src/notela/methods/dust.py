"""DUST: train on predictions that dropout does not change (Khurana et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from notela.errors import check_integer
from notela.methods.base import Batch, Method, Preset, check_threshold
from notela.task import cross_entropy, divergence, probabilities

if TYPE_CHECKING:
    from notela.state import State


@dataclass(frozen=True)
class DUST(Method):
    """Each epoch a clean pass p_ref and noisy `passes`; kept where the largest KL(noisy ‖ ref) < `threshold`: whole
    rows (single-label) or single entries (multi-label). The noisy passes use dropout whatever the student does."""

    name = "dust"
    needs_noise = True
    draws_noise = True
    passes: int = 4
    threshold: float = 0.8

    def __post_init__(self) -> None:
        check_integer("passes", self.passes, 1)
        check_threshold("threshold", self.threshold)

    def before_epoch(self, state: State) -> None:
        reference = state.sweep().logits
        farthest = torch.full((), -torch.inf, device=reference.device)
        for _ in range(self.passes):
            noisy = state.sweep(noise=True).logits
            farthest = torch.maximum(farthest, divergence(noisy, reference, state.task))
        state.set_labels(probabilities(reference, state.task), kept=farthest < self.threshold)

    def loss(self, batch: Batch, state: State) -> Tensor:
        labels, kept = state.labels_of(batch.rows), state.kept_of(batch.rows)
        state.record(kept=kept.float())
        return cross_entropy(state.student(batch.x).logits, labels, state.task, mask=kept).mean()


PRESETS = {
    "image": Preset(DUST(4, 0.8), "norm", 1e-5, "cosine", "target", noise=False),
    "audio-multilabel": Preset(DUST(4, 0.9), "all", 1e-4, "cosine", "source", noise=True),
    "audio-singlelabel": Preset(DUST(4, 0.9), "all", 1e-4, "constant", "source", noise=True),
}
GRID = tuple(DUST(passes, threshold) for passes in (2, 3, 4) for threshold in (0.8, 0.9, 0.99))
