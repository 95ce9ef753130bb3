"""Predictions, and the evaluator: the one object that holds labels, and that adaptation never reads."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from notela import metrics
from notela.classifier import check_classes, split_output
from notela.data import Unlabelled
from notela.errors import NotelaError
from notela.task import Task, check_task, probabilities


class Predict(Protocol):
    """From data (anything `adapt` takes) to logits over the kept classes, (N, C) on the CPU."""

    def __call__(self, data: Any, key: str | None = None) -> Tensor: ...


def predict(
    model: nn.Module,
    data: Any,
    *,
    task: Task,
    classes: Sequence[int] | None = None,
    key: str | None = None,
    batch_size: int | None = None,
    device: str | torch.device | None = None,
) -> Tensor:
    """Probabilities (N, C) of a model on data, over the kept classes, in the data's order."""
    check_task(task)
    frozen = copy.deepcopy(model).to(pick_device(device))
    return probabilities(frozen_predict(frozen, classes, batch_size)(data, key), task)


def frozen_predict(
    frozen: nn.Module,
    classes: Sequence[int] | None = None,
    batch_size: int | None = None,
) -> Predict:
    """A function from data to logits of `frozen`, in evaluation mode and without gradients."""
    frozen.eval()
    first = next(iter(frozen.parameters()), torch.zeros(0))

    @torch.no_grad()
    def run(data: Any, key: str | None = None) -> Tensor:
        rows = Unlabelled(data, batch_size=batch_size, key=key)
        parts = []
        for _, x in rows.batches(torch.arange(len(rows))):
            x = x.to(first.device)
            parts.append(split_output(frozen(x.to(first.dtype) if x.is_floating_point() else x))[1].float().cpu())
        logits = torch.cat(parts)
        kept = check_classes(classes, logits.shape[1])
        return logits if kept is None else logits[:, kept]

    return run


class Evaluator:
    """Labelled data of the target, for watching a run: `adapt(..., evaluator=Evaluator(x, y, task=...))`.

    labels: class numbers (N,) for "singlelabel", 0/1 (N, C) for "multilabel", in the model's full set of classes;
    pass the same `classes` as to `adapt`. Single-label: accuracy. Multi-label: map, cmap, auroc and top1, as far as
    the labels define them (cmap needs a class with at least 5 positives).
    """

    def __init__(
        self,
        data: Any,
        labels: Any,
        *,
        task: Task,
        classes: Sequence[int] | None = None,
        key: str | None = None,
    ) -> None:
        check_task(task)
        self._data, self._task, self._key = data, task, key
        known = np.asarray(labels)
        if known.ndim != (1 if task == "singlelabel" else 2):
            raise NotelaError(
                f"labels of shape {known.shape} do not fit task={task!r}: expected class numbers (N,) for "
                "'singlelabel', 0/1 (N, classes) for 'multilabel'"
            )
        if classes is not None and task == "multilabel":
            check_classes(classes, known.shape[1])
            known = known[:, list(classes)]
        elif classes is not None:
            place = {int(c): i for i, c in enumerate(classes)}
            missing = sorted({int(c) for c in known} - place.keys())
            if missing:
                raise NotelaError(f"labels hold class {missing[0]}, which classes does not keep")
            known = np.array([place[int(c)] for c in known])
        self._labels = known
        self._wanted = ["accuracy"] if task == "singlelabel" else metrics.defined(known)
        if not self._wanted:
            raise NotelaError("the labels hold no positive entry: no metric is defined on them")

    def __call__(self, predict: Predict) -> dict[str, float]:
        logits = predict(self._data, self._key)
        return {name: metrics.BY_NAME[name](logits, self._labels) for name in self._wanted}


def pick_device(device: str | torch.device | None) -> torch.device:
    """The given device, or the best there is: cuda, mps, cpu."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise NotelaError(f"device={str(device)!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return chosen
