"""The one loop: every method adapts through here.

It owns the device, the precision, what moves, norm statistics, noise, the schedule, the passes over the whole set,
the records and the checkpoints. Each epoch's shuffling and noise are drawn from (seed, epoch) alone, so a run that
was cut off goes on exactly as if it had not been.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from notela import methods
from notela.classifier import ADDED_DROPOUT, Classifier, Trainable
from notela.data import Unlabelled
from notela.errors import NotelaError, check_at_least, check_choice, check_integer
from notela.evaluation import Predict, pick_device
from notela.guard import Guard, Verdict
from notela.methods.base import Batch, Guarding, Method, Preset, Statistics
from notela.progress import Progress
from notela.runs import RunFolder, describe
from notela.stable import number_from
from notela.state import Precision, Record, State
from notela.statistics import SHARES, layers_of, reestimate
from notela.task import Task, check_task


@dataclass(frozen=True)
class Result:
    """What `adapt` gives back."""

    model: nn.Module
    """An adapted copy of the model, in evaluation mode; the original is untouched."""
    history: list[Record]
    """One record an epoch: what the student saw (loss, confidence, entropy, ...) and what the evaluator said."""
    notes: list[str]
    """What was decided on the way and a reader of the numbers should know."""
    source: Record | None
    """What the evaluator said of the source model, before anything moved."""
    description: Record
    """Everything that determines the run: settings, task, classes, seed, fingerprints; and the versions."""
    verdict: Verdict
    """Whether it helped, as far as unlabelled data can tell."""
    evaluation: Record | None
    """What the evaluator said of the returned model."""

    def __str__(self) -> str:
        last, settings = self.history[-1], self.description["settings"]
        epochs = f"{len(self.history)} epoch{'s' if len(self.history) > 1 else ''}"
        head = f"{settings['method']}, {self.description['task']}: {epochs}"
        numbers = ", ".join(f"{k} {v:.4g}" for k, v in last.items() if isinstance(v, float))
        lines = [head, f"last epoch: {numbers}"]
        if self.source is not None:
            for name, before in self.source.items():
                after = (self.evaluation or {}).get(name)
                lines.append(f"{name}: {before:.4g}" + ("" if after is None else f" -> {after:.4g}"))
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes), self.verdict.text])


def adapt(
    model: nn.Module,
    data: Any,
    *,
    task: Task,
    method: str | Method | Preset = "notela",
    classes: Sequence[int] | None = None,
    head: str | None = None,
    key: str | None = None,
    trainable: Trainable | None = None,
    learning_rate: float | None = None,
    schedule: Literal["constant", "cosine"] | None = None,
    statistics: Statistics | None = None,
    noise: bool | None = None,
    teacher_momentum: float | Literal["slow"] | None = None,
    anchor: float | None = None,
    guard: Guarding | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: Precision = "fp32",
    run_dir: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 0.0,
    evaluator: Callable[[Predict], Mapping[str, float]] | None = None,
    progress: bool | None = None,
) -> Result:
    """Adapt a copy of `model` to unlabelled `data`.

    model: returns logits, an object with `.logits`, or (embedding, logits); `head` names the last layer if it cannot
        be found.
    data: tensor, array, map-style Dataset or DataLoader; items x, (x, label) or dicts (`key` names the input). Labels
        are cut off.
    task: "singlelabel" or "multilabel".
    method: a name (`notela.methods.names()`), a preset (`notela.methods.preset(...)`) or an instance; the arguments
        from `trainable` to `batch_size` override it.
    classes: indices of the classes that can occur at the target; applied before softmax or sigmoid.
    run_dir: keeps settings, history and a checkpoint; the same call again resumes, or returns the result.
    checkpoint_seconds: a checkpoint after each epoch, but not more often than this.
    evaluator: called with a frozen copy's predictions before the first and after each epoch; see `notela.Evaluator`.
    progress: a bar on the terminal; by default where there is one.
    """
    check_task(task)
    check_choice("precision", precision, ("fp32", "bf16", "fp16"))
    check_integer("seed", seed, 0)
    check_at_least("checkpoint_seconds", checkpoint_seconds, 0)
    overrides: dict[str, Any] = {
        "trainable": trainable,
        "learning_rate": learning_rate,
        "schedule": schedule,
        "statistics": statistics,
        "noise": noise,
        "teacher_momentum": teacher_momentum,
        "anchor": anchor,
        "guard": guard,
        "epochs": epochs,
    }
    if evaluator is not None and not callable(evaluator):
        raise NotelaError(f"evaluator is a {type(evaluator).__name__}; pass notela.Evaluator(x, labels, task=...)")
    preset = methods.resolve(method, task)
    target = pick_device(device)

    with _own_random_numbers(target), torch.inference_mode(False), torch.enable_grad():
        _seed(seed, 0)
        rows = Unlabelled(data, key=key, batch_size=batch_size, default_batch=preset.batch_size)
        overrides["batch_size"] = rows.batch_size
        preset = replace(preset, **{name: value for name, value in overrides.items() if value is not None})
        classifier = Classifier(model, rows.example(), head=head, classes=classes, device=target)
        state = State(classifier, rows, task, preset, seed, precision)
        parameters = _configure(state)
        description = describe(
            model,
            rows,
            preset,
            task=task,
            classes=classifier.classes,
            head=classifier.head,
            seed=seed,
            precision=precision,
        )
        folder = None if run_dir is None else RunFolder(run_dir, description, checkpoint_seconds)
        if folder is not None and (done := folder.finished()) is not None:
            folder.load_model(classifier.model)
            if evaluator is not None and done["source"] is None:
                done["notes"].append("this run was finished before, without an evaluator; it was not called now")
            return Result(classifier.release(), description=folder.description, **done)
        loop = Loop(state, parameters, model, evaluator)
        if folder is not None:
            loop.resume(folder)
        with Progress(progress, preset, rows) as bar:
            loop.run(folder, bar)
    made = description if folder is None else folder.description
    result = Result(classifier.release(), loop.history, state.notes, loop.source, made, loop.verdict, loop.evaluation)
    if folder is not None:
        folder.finish(result)
    return result


class Loop:
    """Epochs, steps, evaluation and checkpoints of one run."""

    def __init__(
        self,
        state: State,
        parameters: dict[str, nn.Parameter],
        source_model: nn.Module,
        evaluator: Callable[[Predict], Mapping[str, float]] | None,
    ) -> None:
        self.state, self.parameters, self.evaluator = state, parameters, evaluator
        self._source_model = source_model
        self.history: list[Record] = []
        self.source: Record | None = None
        preset = state.preset
        self.optimizer = (
            torch.optim.Adam(parameters.values(), lr=preset.learning_rate, betas=(0.9, 0.999)) if parameters else None
        )
        self.scaler = torch.amp.GradScaler(state.classifier.device.type, enabled=state.precision == "fp16")
        self.total_steps = preset.epochs * state.data.steps()
        slow = preset.teacher_momentum == "slow"
        self.teacher_momentum = 1 - 1 / self.total_steps if slow else float(preset.teacher_momentum)
        self.guard = Guard(state, self._moving)
        self.verdict: Verdict
        self.evaluation: Record | None = None
        self.anchors = [p.detach().clone() for p in parameters.values()] if preset.anchor else []

    def resume(self, folder: RunFolder) -> None:
        saved = folder.checkpoint()
        if saved is None:
            return
        saved.restore(self.state.classifier.model, self.parameters, self.optimizer, self.scaler)
        self.state.banks = {name: t.to(self.state.classifier.device) for name, t in saved.banks.items()}
        self.state.epoch, self.state.step = saved.epoch, saved.step
        self.history, self.source = saved.history, saved.source
        self.state.notes = saved.notes

    def run(self, folder: RunFolder | None, bar: Progress) -> None:
        state = self.state
        state.progress = bar
        first = state.epoch + 1
        if first == 1:
            self.source = self._evaluate()
        _seed(state.seed, 0)
        if first == 1:
            if state.preset.statistics in SHARES:
                reestimate(state, SHARES[state.preset.statistics])
            self.guard.begin()
            if self.teacher_momentum:
                state.follow(self.parameters, self.teacher_momentum)
        state.preset.method.before_run(state)
        for epoch in range(first, state.preset.epochs + 1):
            if self.guard.stops(self.history):
                break
            state.epoch = epoch
            _seed(state.seed, state.epoch)
            state.meters.clear()
            bar.start_epoch(state.epoch)
            state.preset.method.before_epoch(state)
            for rows, x in state.data.batches(torch.randperm(len(state.data))):
                loss = self._step(Batch(rows.to(state.classifier.device), state.classifier.prepare(x)))
                bar.advance(len(rows), loss)
            self._check_weights()
            record = {
                "epoch": state.epoch,
                "learning_rate": self._rate(state.step - 1),
                **state.meters.summary(),
            }
            if record.get("kept") == 0:
                state.note(f"epoch {epoch}: no pseudo-label was sure enough to be kept, so nothing was learned from it")
            record |= self.guard.judge()
            if self.evaluator is not None:
                record["evaluation"] = self._evaluate(state.preset.method)
            self.history.append(record)
            if folder is not None:
                folder.write_checkpoint(self)
        self.verdict = self.guard.end(self.history)
        if self.evaluator is not None:
            last = self.history[-1]
            known = last.get("evaluation") if self.verdict.epoch == last["epoch"] else None
            self.evaluation = known or self._evaluate(state.preset.method if self.verdict.epoch else None)

    def _moving(self) -> dict[str, Tensor]:
        """Every tensor of the model that this run may change."""
        moving: dict[str, Tensor] = dict(self.parameters)
        if self.state.preset.statistics != "source":
            moving |= dict(self.state.classifier.model.named_buffers())
        return moving

    def _step(self, batch: Batch) -> float | None:
        state = self.state
        loss = state.preset.method.loss(batch, state)
        if loss is not None:
            self._check(loss, batch.rows)
            assert self.optimizer is not None
            for group in self.optimizer.param_groups:
                group["lr"] = self._rate(state.step)
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            with torch.no_grad():
                for parameter, source in zip(self.parameters.values(), self.anchors, strict=False):
                    parameter.lerp_(source, self.state.preset.anchor)
            if self.teacher_momentum:
                state.follow(self.parameters, self.teacher_momentum)
            state.meters.add("loss", loss.detach() * len(batch.rows), len(batch.rows))
        state.step += 1
        return None if loss is None else float(loss.detach())

    def _rate(self, step: int) -> float:
        rate = float(self.state.preset.learning_rate)
        if self.state.preset.schedule == "cosine":
            rate *= (1 + math.cos(math.pi * step / self.total_steps)) / 2
        return rate

    def _check(self, loss: Tensor, rows: Tensor) -> None:
        if not loss.isfinite():
            raise NotelaError(
                f"the loss became {loss.item()} in epoch {self.state.epoch} on items {rows.tolist()}; the last "
                "finished epoch is kept in run_dir if one was given; look at these items, or lower learning_rate "
                f"({self.state.preset.learning_rate})"
            )
        if not loss.requires_grad:
            raise NotelaError(
                f"no parameter chosen by trainable={self.state.preset.trainable!r} has a part in the loss; "
                "choose 'norm', 'body' or 'all'"
            )

    def _check_weights(self) -> None:
        """A finite loss can still have an infinite gradient, and AdaBN has no loss at all."""
        broken = [name for name, t in self._moving().items() if not t.isfinite().all()]
        if broken:
            raise NotelaError(
                f"{broken[0]} became NaN or infinite in epoch {self.state.epoch} ({len(broken)} such); the last "
                "finished epoch is kept in run_dir if one was given; look for extreme inputs, or lower learning_rate "
                f"({self.state.preset.learning_rate})"
            )

    def _evaluate(self, method: Method | None = None) -> Record | None:
        """Labels live in the evaluator; it gets predictions of a frozen copy (as `method` corrects them), and nothing
        that adapts."""
        if self.evaluator is None:
            return None
        classifier = self.state.classifier
        frozen = copy.deepcopy(self._source_model).to(classifier.device)
        frozen.load_state_dict(classifier.model.state_dict())
        correct = partial(method.correct, task=self.state.task) if method is not None and method.corrects else None
        said = self.evaluator(Predict(frozen, classifier.classes, correct=correct, head=classifier.head))
        if not isinstance(said, Mapping):
            raise NotelaError(f"the evaluator returned {said!r}; expected a dict of names and numbers")
        return {name: float(value) for name, value in said.items()}


def _configure(state: State) -> dict[str, nn.Parameter]:
    """Check the preset against the model and the data, add noise where a method needs it, choose what moves."""
    classifier, preset, method = state.classifier, state.preset, state.preset.method
    kept = classifier.outputs if classifier.classes is None else len(classifier.classes)
    if kept == 1 and state.task == "singlelabel":
        raise NotelaError(
            "one kept class with task='singlelabel' always has probability 1 and nothing to adapt; keep two or more "
            "classes, or use task='multilabel'"
        )
    if preset.statistics not in ("source", "auto") and len(state.data) == 1:
        raise NotelaError(
            f"statistics={preset.statistics!r} needs two items or more to have a variance; the data holds one"
        )
    if method.needs_features:
        classifier.require_features(f"method={method.name!r}")
    if (preset.noise or method.draws_noise) and not classifier.has_noise(state.data.example()):
        if method.needs_noise:
            classifier.add_dropout()
            state.note(
                f"the model has no dropout: noisy passes drop {ADDED_DROPOUT:.0%} of the embedding at the head's input"
            )
        else:
            state.note("noise=True has no effect: the model has no dropout")
    layers = classifier.statistics_layers() if preset.statistics == "target" else layers_of(classifier)
    if preset.statistics not in ("source", "auto") and not layers:
        state.note(f"statistics={preset.statistics!r} has no effect: the model keeps no running averages")
    if classifier.gives_probabilities:
        state.note("the model's outputs look like probabilities, not logits; if so, hand it in without its softmax")
    return classifier.select(preset.trainable, freeze_head=method.freezes_head)


@contextlib.contextmanager
def _own_random_numbers(device: torch.device) -> Iterator[None]:
    """Leave the caller's random state as it was: torch's, and NumPy's and Python's, which augmentations use."""
    of_numpy, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)


def _seed(seed: int, epoch: int) -> None:
    """All that is random in an epoch follows from the run's seed and the epoch's number."""
    number = number_from(seed, epoch)
    torch.manual_seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002
    random.seed(number)
