"""Dropout Student: a clean teacher, a student under dropout, one network (paper, section 3.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from notela.classifier import Output
from notela.errors import check_at_least, check_choice
from notela.methods.base import Batch, Method, Preset
from notela.task import cross_entropy, sharpen

if TYPE_CHECKING:
    from notela.state import State

Refresh = Literal["epoch", "iteration"]


@dataclass(frozen=True)
class DropoutStudent(Method):
    """Labels y ∝ p^(1/α) from a clean pass, made anew every epoch or every iteration."""

    name = "dropout_student"
    needs_noise = True
    alpha: float = 1.0
    refresh: Refresh = "epoch"

    def __post_init__(self) -> None:
        check_at_least("alpha", self.alpha, 0)
        check_choice("refresh", self.refresh, ("epoch", "iteration"))

    def before_epoch(self, state: State) -> None:
        if self.refresh == "epoch":
            state.set_labels(self.teach(state.sweep(), state))

    def loss(self, batch: Batch, state: State) -> Tensor:
        if self.refresh == "epoch":
            labels = state.labels_of(batch.rows)
        else:
            labels = self.teach_rows(batch.rows, state.teacher(batch.x), state)
            state.record_labels(batch.rows, labels)
        return cross_entropy(state.student(batch.x).logits, labels, state.task).mean()

    def teach(self, clean: Output, state: State) -> Tensor:
        """The teacher step on the whole set."""
        return sharpen(clean.logits, state.task, self.alpha)

    def teach_rows(self, rows: Tensor, clean: Output, state: State) -> Tensor:
        """The teacher step on the rows of one batch."""
        return self.teach(clean, state)


PRESETS = {
    "image": Preset(DropoutStudent(0.1, "iteration"), "norm", 1e-4, "constant", "target", noise=True),
    "audio-multilabel": Preset(DropoutStudent(1.0, "epoch"), "norm", 1e-4, "constant", "source", noise=True),
    "audio-singlelabel": Preset(DropoutStudent(0.5, "epoch"), "all", 1e-3, "cosine", "source", noise=True),
}
GRID = tuple(DropoutStudent(alpha, refresh) for alpha in (0.1, 1.0) for refresh in ("iteration", "epoch"))
