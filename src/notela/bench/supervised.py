"""The ceiling: fine-tuning on the target's own labels. It is no method of adaptation, and every table marks it."""

from __future__ import annotations

import itertools
from dataclasses import InitVar, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from notela import methods
from notela.methods.base import Batch, Method, Preset
from notela.task import cross_entropy

if TYPE_CHECKING:
    from notela.state import State


@dataclass(frozen=True)
class Supervised(Method):
    """Cross-entropy against true labels, which are no setting: they are handed over where the run starts."""

    name = "supervised"
    labels: InitVar[Any] = None

    def __post_init__(self, labels: Any) -> None:
        object.__setattr__(self, "_labels", labels)

    def loss(self, batch: Batch, state: State) -> Tensor:
        logits = state.student(batch.x).logits
        labels = torch.as_tensor(self._labels)[batch.rows.cpu()].to(logits.device)  # type: ignore[attr-defined]
        if state.task == "singlelabel":
            everyone = torch.nn.functional.one_hot(labels.long(), state.classifier.outputs)
        else:
            everyone = labels
        kept = everyone if state.classifier.classes is None else everyone[:, list(state.classifier.classes)]
        return cross_entropy(logits, kept.to(logits.dtype), state.task).mean()


# Where nothing is searched: everything moves, as far as ten epochs at the grid's highest rate take it.
PRESET = Preset(Supervised(), "all", 1e-3, "cosine", "source", noise=True)

# What every method searches.
GRID = tuple(
    Preset(Supervised(), **dict(zip(methods.COMMON_GRID, values, strict=True)))
    for values in itertools.product(*methods.COMMON_GRID.values())
)


def with_labels(preset: Preset, labels: Any) -> Preset:
    """The same run, knowing the labels."""
    return replace(preset, method=Supervised(labels))
