"""TENT: minimise the entropy of the predictions (Wang et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from notela.methods.base import Batch, Method, Preset
from notela.task import entropy

if TYPE_CHECKING:
    from notela.state import State


@dataclass(frozen=True)
class TENT(Method):
    """No settings of its own: what moves (norm scale and bias by default) and the statistics are the preset's."""

    name = "tent"

    def loss(self, batch: Batch, state: State) -> Tensor:
        return entropy(state.student(batch.x).logits, state.task).mean()


PRESETS = {
    "image": Preset(TENT(), "norm", 1e-4, "cosine", "target", noise=False),
    "audio-multilabel": Preset(TENT(), "norm", 1e-5, "cosine", "source", noise=True),
    "audio-singlelabel": Preset(TENT(), "all", 1e-3, "cosine", "source", noise=True),
}
GRID = (TENT(),)
