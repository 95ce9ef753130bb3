"""What a method sees of a run: passes through the network, its banks, and places to leave records."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from notela.classifier import Classifier, Output
from notela.data import Unlabelled
from notela.errors import NotelaError
from notela.methods.base import Preset
from notela.progress import Progress
from notela.stable import number_from
from notela.task import Task, entropy, entropy_of, hard, probabilities

Precision = Literal["fp32", "bf16", "fp16"]
Record = dict[str, Any]

_TEACHER = "teacher/"
"""Banks that hold the teacher's weights, where it has its own."""
_KEPT = "kept/"
"""Banks that hold the model that comes back: as it was when it was healthy last, or what a run falls back on."""


@dataclass
class State:
    """What a method sees of the run: passes through the network, its banks, and places to leave records."""

    classifier: Classifier
    data: Unlabelled
    task: Task
    preset: Preset
    seed: int = 0
    precision: Precision = "fp32"
    epoch: int = 0
    step: int = 0
    banks: dict[str, Tensor] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    meters: Meters = field(init=False)
    progress: Progress | None = None
    _labels: Tensor | None = None
    _kept: Tensor | None = None

    def __post_init__(self) -> None:
        self.meters = Meters(self.task)

    # ---- passes

    def teacher(self, x: Tensor) -> Output:
        """A clean pass: no dropout, no gradient. With target statistics the batch normalises itself, unrecorded."""
        with self._teachers_weights():
            return self._quiet_pass(x, noise=False)

    def student(self, x: Tensor) -> Output:
        """The pass that learns: noise and statistics as the preset says."""
        target = self.preset.statistics == "target"
        self.classifier.set_mode(noise=self.preset.noise, batch_statistics=target, update_statistics=target)
        with self._autocast():
            output = self.classifier(x)
        self.meters.see(output.logits.detach())
        return output

    def sweep(self, noise: bool = False) -> Output:
        """The teacher's pass over the whole set, without gradient: embeddings and logits, row by row.

        In random order, since batches that normalise themselves must not be all of one kind; and in the same order
        throughout an epoch, so that two sweeps differ by noise alone.
        """
        dice = torch.Generator().manual_seed(number_from(self.seed, self.epoch, 1))
        order = torch.randperm(len(self.data), generator=dice)
        banks: tuple[Tensor, ...] | None = None
        done = 0
        for rows, x in self.data.batches(order):
            with self._teachers_weights():
                output = self._quiet_pass(x, noise=noise)
            if banks is None:
                banks = tuple(part.new_empty(len(self.data), part.shape[1]) for part in output)
            for bank, part in zip(banks, output, strict=True):
                bank[rows.to(bank.device)] = part
            done += len(rows)
            if self.progress is not None:
                self.progress.sweep(done)
        assert banks is not None
        return Output(*banks)

    def deployed(self, rows: Tensor) -> tuple[Output, Tensor]:
        """The student on some rows as it would be deployed: no noise, running averages, no gradient. And its logits
        with dropout, which are the same where it has none: with equal masks whenever this is asked."""
        quiet, noisy = [], []
        device = self.classifier.device
        with torch.no_grad(), self._autocast(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            for _, x in self.data.batches(rows):
                self.classifier.set_mode(noise=False, batch_statistics=False)
                quiet.append(self.classifier(x))
                noisy.append(self.classifier(x).logits if self.classifier.set_dropout() else quiet[-1].logits)
        self.classifier.set_mode(noise=False, batch_statistics=False)
        features, logits = (torch.cat(part) for part in zip(*quiet, strict=True))
        return Output(features, logits), torch.cat(noisy)

    def follow(self, parameters: dict[str, nn.Parameter], momentum: float) -> None:
        """The teacher's step: an exponential average of the student's weights, which begins as the source's."""
        for name, parameter in parameters.items():
            bank = f"{_TEACHER}{name}"
            if bank not in self.banks:
                self.banks[bank] = parameter.detach().clone()
            elif momentum < 1:
                self.banks[bank].lerp_(parameter.detach(), 1 - momentum)

    def keep(self, tensors: dict[str, Tensor]) -> None:
        """Remember the model as it is now."""
        self.banks |= {f"{_KEPT}{name}": tensor.detach().clone() for name, tensor in tensors.items()}

    def put_back(self, tensors: dict[str, Tensor]) -> None:
        """The model as it was remembered last."""
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(self.banks[f"{_KEPT}{name}"])

    @contextlib.contextmanager
    def _teachers_weights(self) -> Iterator[None]:
        """The teacher's weights in the place of the student's, if it has its own."""
        own = {name.removeprefix(_TEACHER): t for name, t in self.banks.items() if name.startswith(_TEACHER)}
        parameters = dict(self.classifier.model.named_parameters()) if own else {}
        students = {name: parameters[name].data for name in own}
        try:
            for name, tensor in own.items():
                parameters[name].data = tensor
            yield
        finally:
            for name, tensor in students.items():
                parameters[name].data = tensor

    def _quiet_pass(self, x: Tensor, *, noise: bool) -> Output:
        self.classifier.set_mode(noise=noise, batch_statistics=self.preset.statistics == "target")
        with torch.no_grad(), self._autocast():
            return self.classifier(x)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision == "fp32":
            return contextlib.nullcontext()
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float16
        return torch.autocast(self.classifier.device.type, dtype)

    # ---- labels and records

    def set_labels(self, labels: Tensor, kept: Tensor | None = None) -> None:
        """This epoch's pseudo-labels of the whole set, and which of them count."""
        self._labels, self._kept = labels, kept
        self.record_labels(torch.arange(len(labels), device=labels.device), labels)

    def labels_of(self, rows: Tensor) -> Tensor:
        """The pseudo-labels of a batch, as set before the epoch."""
        assert self._labels is not None, "set_labels comes before labels_of"
        return self._labels[rows]

    def kept_of(self, rows: Tensor) -> Tensor:
        """Which of a batch's pseudo-labels count."""
        assert self._kept is not None, "set_labels(kept=...) comes before kept_of"
        return self._kept[rows]

    def record_labels(self, rows: Tensor, labels: Tensor) -> None:
        """Count how many pseudo-labels differ from those of the epoch before."""
        now = hard(labels, self.task)
        if "previous_labels" not in self.banks:
            self.banks["previous_labels"] = now.new_zeros(len(self.data), *now.shape[1:])
        previous = self.banks["previous_labels"]
        if self.epoch > 1:
            self.record(changed=(previous[rows] != now).float())
        previous[rows] = now

    def record(self, **values: Tensor) -> None:
        """Add values whose mean over the epoch belongs in the history."""
        for name, value in values.items():
            self.meters.add(name, value.sum(), value.numel())

    def at_most_neighbours(self, k: int) -> int:
        """k, or as many other rows as there are."""
        others = len(self.data) - 1
        if others < 1:
            raise NotelaError("the data holds one item, which has no neighbours; hand in more, or choose method='tent'")
        if k > others:
            self.note(
                f"k={k} neighbours asked, but each of the {others + 1} items has only {others} others: k={others}"
            )
        return min(k, others)

    def note(self, sentence: str) -> None:
        """Something the user should know about how the run was carried out; said once."""
        if sentence not in self.notes:
            self.notes.append(sentence)


class Meters:
    """Sums over an epoch; everything in a history record but the evaluation comes from here."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.clear()

    def clear(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = defaultdict(int)

    def add(self, name: str, total: Tensor, count: int) -> None:
        self.sums[name] = self.sums[name] + total if name in self.sums else total
        self.counts[name] += count

    def see(self, logits: Tensor) -> None:
        """The student's predictions on one batch."""
        p = probabilities(logits, self.task)
        n = len(p)
        self.add("confidence", p.amax(-1).sum(), n)
        self.add("entropy", entropy(logits, self.task).sum(), n)
        self.add("positives", (p > 0.5).sum(), n)
        self.add("prediction", p.sum(0), n)

    def summary(self) -> Record:
        means = {name: self.sums[name] / self.counts[name] for name in self.sums}
        p = means.pop("prediction")
        means["marginal_entropy"] = entropy_of(p, self.task)
        order = ("loss", "confidence", "entropy", "marginal_entropy", "positives", "changed", "degree")
        record: Record = {name: float(means.pop(name)) if name in means else None for name in order}
        return record | {name: float(value) for name, value in means.items()}
