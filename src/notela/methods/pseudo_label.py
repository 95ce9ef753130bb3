"""Pseudo-labelling: train on the model's own confident answers (Lee, 2013)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from notela.methods.base import Batch, Method, Preset, check_threshold
from notela.task import cross_entropy, probabilities, sharpen

if TYPE_CHECKING:
    from notela.state import State


@dataclass(frozen=True)
class PseudoLabel(Method):
    """Labels come from a clean pass of the current model; only what it is sure of enters the loss.

    Single-label: the arg-max, for rows with max p > threshold. Multi-label: y = [p > threshold], and only those
    positive entries.
    """

    name = "pseudo_label"
    threshold: float = 0.5

    def __post_init__(self) -> None:
        check_threshold("threshold", self.threshold)

    def loss(self, batch: Batch, state: State) -> Tensor:
        logits = state.teacher(batch.x).logits
        p = probabilities(logits, state.task)
        if state.task == "singlelabel":
            labels, kept = sharpen(logits, state.task, alpha=0), p.amax(-1) > self.threshold
        else:
            kept = p > self.threshold
            labels = kept.to(p.dtype)
        state.record(kept=kept.float())
        state.record_labels(batch.rows, labels)
        return cross_entropy(state.student(batch.x).logits, labels, state.task, mask=kept).mean()


PRESETS = {
    "image": Preset(PseudoLabel(0.9), "norm", 1e-3, "cosine", "target", noise=False),
    "audio-multilabel": Preset(PseudoLabel(0.5), "norm", 1e-5, "constant", "source", noise=True),
    "audio-singlelabel": Preset(PseudoLabel(0.5), "norm", 1e-3, "constant", "source", noise=True),
}
GRID = tuple(PseudoLabel(threshold) for threshold in (0.0, 0.5, 0.9, 0.95))
