"""LAME: correct the predictions of a set, not the model (Boudiaf et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from notela.classifier import Output
from notela.errors import NotelaError, check_at_least, check_choice, check_integer
from notela.graph import Metric, symmetric_affinity
from notela.methods.base import Batch, Method, Preset
from notela.methods.notela import teacher_step
from notela.task import Task, votes

if TYPE_CHECKING:
    from notela.state import State


@dataclass(frozen=True)
class LAME(Method):
    """No training: Y ← softmax(log p + λWY), or σ(z + λW(2Y - 1)), until Y changes by less than `tolerance`, at most
    `iterations` times; W is the symmetric k-nearest-neighbour affinity of the set that is predicted.

    A run leaves the model as it is; its evaluator sees corrected predictions. They are had with
    `notela.predict(..., method="lame")`.
    """

    name = "lame"
    needs_features = True
    k: int = 5
    lambda_: float = 1.0
    metric: Metric = "cosine"
    iterations: int = 100
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        check_integer("k", self.k, 1)
        check_at_least("lambda_", self.lambda_, 0)
        check_choice("metric", self.metric, ("euclidean", "cosine"))
        check_integer("iterations", self.iterations, 1)
        check_at_least("tolerance", self.tolerance, 0)

    def before_run(self, state: State) -> None:
        if state.preset.statistics != "source":
            raise NotelaError(
                f"lame changes predictions and no part of the model, and statistics={state.preset.statistics!r} would "
                "change its norm layers; leave it out, or run method='adabn' first and predict its model with lame"
            )
        state.note(
            "lame moves no weight: the model is unchanged, and corrected predictions are had with "
            f"notela.predict(model, data, task={state.task!r}, method='lame')"
        )

    def loss(self, batch: Batch, state: State) -> None:
        state.student(batch.x)

    def correct(self, output: Output, task: Task) -> Tensor:
        """The exponent of the last step, whose softmax or sigmoid is Y: it still ranks where Y is 0 or 1 in float32."""
        logits = output.logits
        if len(logits) == 1:  # no neighbours
            return logits
        affinity = symmetric_affinity(output.features, min(self.k, len(logits) - 1), self.metric)
        before_last = teacher_step(logits, affinity, task, 1.0, self.lambda_, self.iterations - 1, self.tolerance)
        heard = affinity @ votes(before_last, task).to(affinity.device)
        return logits + self.lambda_ * heard.to(logits.device)


# Nothing was published for these tasks; k of the method's own paper. Nothing moves, so one epoch is as good as ten.
_PRESET = Preset(LAME(5), trainable="none", learning_rate=0.0, statistics="source", noise=False, epochs=1)
PRESETS = {"image": _PRESET, "audio-multilabel": _PRESET, "audio-singlelabel": _PRESET}
GRID = tuple(LAME(k) for k in (1, 3, 5))
