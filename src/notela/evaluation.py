"""Predictions, and the evaluator: the one object that holds labels, and that adaptation never reads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from notela import methods, metrics
from notela.classifier import Classifier, Output, check_classes, floating_type, split_output, to_model
from notela.data import Unlabelled
from notela.errors import NotelaError
from notela.methods.base import Method, Preset
from notela.task import Task, check_task, probabilities


def predict(
    model: nn.Module,
    data: Any,
    *,
    task: Task,
    classes: Sequence[int] | None = None,
    key: str | None = None,
    batch_size: int | None = None,
    device: str | torch.device | None = None,
    method: str | Method | Preset | None = None,
    head: str | None = None,
) -> Tensor:
    """Probabilities (N, C) of a model on data, over the kept classes, in the data's order.

    method: one that corrects the predictions of all data together ("lame"); it needs the model's embeddings, and `head`
        names the last layer if it cannot be found.
    """
    check_task(task)
    chosen = None if method is None else methods.resolve(method, task).method
    if chosen is not None and not chosen.corrects:
        raise NotelaError(
            f"method={chosen.name!r} changes a model, not its predictions: predict with the model that "
            f"notela.adapt(..., method={chosen.name!r}) returns, and without method"
        )
    if not isinstance(model, nn.Module):
        raise NotelaError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    frozen = copy.deepcopy(model).to(pick_device(device))
    correct = None if chosen is None else partial(chosen.correct, task=task)
    return probabilities(Predict(frozen, classes, batch_size, correct, head)(data, key), task)


class Predict:
    """From data (anything `adapt` takes) to logits over the kept `classes`, (N, C) on the CPU, by a frozen model.

    `correct` makes other logits of them and of the embeddings, all rows together; `head` is the layer that these enter.
    """

    def __init__(
        self,
        frozen: nn.Module,
        classes: Sequence[int] | None = None,
        batch_size: int | None = None,
        correct: Callable[[Output], Tensor] | None = None,
        head: str | None = None,
    ) -> None:
        self._frozen, self.classes, self._batch_size = frozen.eval(), classes, batch_size
        self._correct, self._head = correct, head

    @torch.no_grad()
    def __call__(self, data: Any, key: str | None = None) -> Tensor:
        rows = Unlabelled(data, batch_size=self._batch_size, key=key)
        dtype = floating_type(self._frozen)
        device = next((p.device for p in self._frozen.parameters()), torch.device("cpu"))
        if self._correct is not None:
            classifier = Classifier(self._frozen, rows.example(), head=self._head, classes=self.classes, device=device)
            classifier.require_features("correcting predictions")
            outputs = [[part.cpu() for part in classifier(x)] for _, x in rows.batches(torch.arange(len(rows)))]
            features, logits = (torch.cat(part) for part in zip(*outputs, strict=True))
            return self._correct(Output(features, logits))
        parts = []
        for _, x in rows.batches(torch.arange(len(rows))):
            parts.append(split_output(self._frozen(to_model(x, device, dtype)))[1].float().cpu())
        logits = torch.cat(parts)
        kept = check_classes(self.classes, logits.shape[1])
        return logits if kept is None else logits[:, kept]


class Evaluator:
    """Labelled data of the target, for watching a run: `adapt(..., evaluator=Evaluator(x, y, task=...))`.

    labels: class numbers (N,) for "singlelabel", 0/1 (N, C) for "multilabel", in the model's full set of classes,
    whatever `classes` the run keeps. Single-label: accuracy, per_class (its mean over classes). Multi-label: map,
    cmap, auroc and top1, as far as the labels define them (cmap needs a class with at least 5 positives).
    """

    def __init__(self, data: Any, labels: Any, *, task: Task, key: str | None = None) -> None:
        check_task(task)
        self._data, self._task, self._key = data, task, key
        self._labels = metrics.as_array(labels)
        if self._labels.ndim != (1 if task == "singlelabel" else 2) or self._labels.dtype.kind not in "biuf":
            raise NotelaError(
                f"labels of shape {self._labels.shape}, type {self._labels.dtype} do not fit task={task!r}: expected "
                "class numbers (N,) for 'singlelabel', 0/1 (N, classes) for 'multilabel'"
            )

    def __call__(self, predict: Predict) -> dict[str, float]:
        labels = self._labels
        if predict.classes is not None and self._task == "multilabel":
            check_classes(predict.classes, labels.shape[1])
            labels = labels[:, list(predict.classes)]
        elif predict.classes is not None:
            place = {int(c): i for i, c in enumerate(predict.classes)}
            missing = sorted(set(labels.tolist()) - place.keys())
            if missing:
                raise NotelaError(f"the evaluator's labels hold class {missing[0]}, which classes does not keep")
            labels = np.array([place[c] for c in labels.tolist()])
        wanted = ["accuracy", "per_class"] if self._task == "singlelabel" else metrics.defined(labels)
        if not wanted:
            raise NotelaError(
                "the evaluator's labels hold no positive entry among the kept classes: no metric is defined"
            )
        logits = predict(self._data, self._key)
        return {name: metrics.BY_NAME[name](logits, labels) for name in wanted}


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
