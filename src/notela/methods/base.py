"""What a method is (settings and hooks), and what a preset is (a method and everything a run needs)."""

from __future__ import annotations

import dataclasses
import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, get_args

from torch import Tensor

from notela.classifier import Output, Trainable
from notela.errors import NotelaError, check_at_least, check_choice, check_integer
from notela.task import Task

if TYPE_CHECKING:
    from notela.state import State

Statistics = Literal["source", "target", "re-estimated", "half", "auto"]
Guarding = Literal["watch", "act"]


class Batch(NamedTuple):
    """One step's inputs and the numbers of their rows in the adaptation set. There are no labels to carry."""

    rows: Tensor
    x: Tensor


@dataclass(frozen=True)
class Method:
    """Settings (the fields) and hooks of an adaptation method; AdaBN is nearly the empty one.

    `state.banks` is the method's memory: tensors put there are saved with every checkpoint.
    """

    name: ClassVar[str]
    needs_features: ClassVar[bool] = False
    needs_noise: ClassVar[bool] = False
    """The method is nothing without noise: a model that has none gets some."""
    draws_noise: ClassVar[bool] = False
    """The method makes noisy passes of its own, whatever the student's `noise` says."""
    freezes_head: ClassVar[bool] = False

    def before_run(self, state: State) -> None:
        """Once before the first epoch, and again on resuming, when `state.banks` holds what was saved."""

    def before_epoch(self, state: State) -> None:
        """Before each epoch: pseudo-labels for the whole set, say."""

    def loss(self, batch: Batch, state: State) -> Tensor | None:
        """The scalar to minimise on this batch; None: forward passes only."""
        raise TypeError(f"{type(self).__name__} has no loss")

    def correct(self, output: Output, task: Task) -> Tensor:
        """Logits of a whole set, corrected together from its embeddings and logits; as they are, by default."""
        return output.logits

    @property
    def corrects(self) -> bool:
        """Whether the method has a `correct` of its own, which predictions then pass through."""
        return type(self).correct is not Method.correct


@dataclass(frozen=True)
class Preset:
    """Everything a run needs: the method's settings and the policies of the loop.

    trainable: "norm", "norm+head", "all", "body" (all but the head), "none" or name patterns; statistics: "source"
    (frozen running averages), "target" (batch statistics, running averages updated), "re-estimated" (running averages
    of the whole target, taken once before the first epoch, then frozen), "half" (the same, half-way between the
    source's and the target's) or "auto" (of source, half and re-estimated, what unlabelled data speak for; where items
    have several classes and a guard acts, half in doubt too); noise: dropout on in the student's passes.
    teacher_momentum: clean passes are of an exponential average of the student: 0 the student itself, 1 the source,
    "slow" 1 - 1/T with T the run's steps. anchor: after each step, this share of the way back to the source's weights.
    guard: "watch" judges the run without labels (`result.verdict`) and leaves it alone; "act" stops it where it
    collapses, and goes back to the last healthy epoch, or to where it began (with statistics="auto" to the source,
    unless the statistics that it took are better by themselves).
    """

    method: Method
    trainable: Trainable = "norm"
    learning_rate: float = 1e-4
    schedule: Literal["constant", "cosine"] = "constant"
    statistics: Statistics = "source"
    noise: bool = True
    epochs: int = 10
    batch_size: int = 64
    teacher_momentum: float | Literal["slow"] = 0.0
    anchor: float = 0.0
    guard: Guarding = "watch"

    def __post_init__(self) -> None:
        if isinstance(self.trainable, list):
            object.__setattr__(self, "trainable", tuple(self.trainable))
        check_choice("schedule", self.schedule, ("constant", "cosine"))
        check_choice("statistics", self.statistics, get_args(Statistics))
        check_at_least("learning_rate", self.learning_rate, 0)
        check_integer("epochs", self.epochs, 1)
        check_integer("batch_size", self.batch_size, 1)
        check_choice("guard", self.guard, get_args(Guarding))
        check_share("anchor", self.anchor)
        if self.teacher_momentum != "slow":
            check_share("teacher_momentum", self.teacher_momentum)
        if not isinstance(self.noise, bool):
            raise NotelaError(f"noise={self.noise!r} must be True or False")
        if not isinstance(self.trainable, str) and not (
            isinstance(self.trainable, tuple) and all(isinstance(name, str) for name in self.trainable)
        ):
            raise NotelaError(
                f"trainable={self.trainable!r} must be 'norm', 'norm+head', 'all', 'body' or name patterns"
            )
        if self.statistics not in ("source", "auto") and self.batch_size == 1:
            raise NotelaError(
                f"batch_size=1 with statistics={self.statistics!r}: a batch of one has no variance to normalise by; "
                "choose batch_size=2 or more (64 in the paper), or statistics='source'"
            )

    def settings(self) -> dict[str, object]:
        """All settings as plain values, the method's name first."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "method"}
        if isinstance(self.trainable, tuple):
            values["trainable"] = list(self.trainable)
        return {"method": self.method.name, **dataclasses.asdict(self.method), **values}


def check_share(name: str, value: float) -> None:
    """Refuse anything but a number in [0, 1]."""
    if not isinstance(value, numbers.Real) or not 0 <= value <= 1:
        raise NotelaError(f"{name}={value!r} must be a number from 0 to 1")


def check_threshold(name: str, value: float) -> None:
    """Refuse a threshold outside [0, 1)."""
    if not isinstance(value, numbers.Real) or not 0 <= value < 1:
        raise NotelaError(f"{name}={value} must be at least 0 and below 1")
