"""Did it help? The verdict on a run without labels, and a guard that acts on it.

No single sign is safe: predictions spread over more classes where a collapsed model recovers, and where a good one
forgets that few classes occur; neighbours agree more where a model learns, and where all of it becomes one class. So
several are added up (see `rise`). Weights and thresholds were chosen on the validation parts of the suites `digits`
(balanced and skewed) and `digits-multi`, each also with weaker corruptions, and `aviary` (`benchmarks/thresholds.py`),
except FALL and DOUBT, which these cannot choose; what other beds had to do with it is told in `results/README.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from notela.errors import NotelaError
from notela.signals import Look, Signals, Watch, read
from notela.state import State
from notela.statistics import SHARES, layers_of, reestimate
from notela.task import Task

BACKWARD, FORWARD = 2.0, 1.5
"""Weights of backward and of forward smoothness in the score."""
FALL = 0.05
"""Of a fall of backward smoothness, no more than this counts. (With no limit the verdict is as good on validation, and
*auto* took no statistics on CIFAR-10-C, where they are worth twenty points and more.)"""
CLEAR = 0.02
"""A score that fell by more is a sign of harm, one that rose by as much a sign of help."""
DOUBT = 0.1
"""Where items have several classes or none, a guarded run with statistics "auto" begins half-way unless the score falls
by more or predictions collapse: most of such an item is the place, not its classes. Where each has one, statistics
follow the mix of classes too, and must be better. (On nine of ten validation domains they are, on the tenth that is
unclear: so little cannot choose.)"""
COLLAPSE = 0.6
"""Share of the effective number of classes below which predictions have collapsed: there is no way back from there by
further epochs."""
_START = "start/"
"""Banks that hold what was seen of the model before the first epoch, where that is not the source."""

Health = Literal["better", "unclear", "worse"]


def rise(before: Signals, now: Signals, task: Task) -> float:
    """By how much the score rose: how well answers fit to who is similar, with a part that falls if all items get the
    same answer.

    Where items have one class each, it is information between neighbours, how smooth answers are, and how well the
    answers of before fit to who is similar now. Those fit less if features became worse, but also if features became
    better than those answers were: so of a fall no more than FALL counts, and the other two signs decide. Where items
    have several classes or none, first choices say little: it is the effective rank of the answers, and how smooth they
    are in the features of before.
    """
    if task == "singlelabel":
        backward = now.backward_smoothness - before.backward_smoothness
        own = now.information - before.information + now.smoothness - before.smoothness
        return own + BACKWARD * max(backward, -FALL)
    smooth = now.forward_smoothness - before.forward_smoothness
    return math.log(max(now.rank, 1.0) / max(before.rank, 1.0)) + FORWARD * smooth


def collapsed(before: Signals, now: Signals) -> bool:
    """Whether a model's predictions fell into few classes."""
    return now.classes < COLLAPSE * before.classes


def in_doubt(before: Signals, now: Signals, task: Task) -> bool:
    """Whether a run may begin with statistics that are not better."""
    seen = now.classes > 0 and not collapsed(before, now)
    return task == "multilabel" and seen and rise(before, now, task) >= -DOUBT


def compare(before: Signals, now: Signals, task: Task) -> tuple[Health, str]:
    """Whether a model became better, and the reason in words.

    >>> good = Signals(0.5, 0.6, 0.6, 0.6, classes=8.0, mix=0.0, agreement=0.7, positives=1.0, rank=6.0, disagreement=0)
    >>> better, fewer = good._replace(information=0.6), good._replace(classes=2.0)
    >>> compare(good, better, "singlelabel")[0], compare(good, fewer, "singlelabel")[0]
    ('better', 'worse')
    """
    if not now.classes:
        return "worse", "some of its predictions are not numbers"
    if not before.classes:
        return "better", "its predictions are numbers, and not all of those before were"
    if collapsed(before, now):
        return "worse", (
            f"its predictions fell into fewer classes (effectively {before.classes:.1f} before, {now.classes:.1f} now)"
        )
    rose = rise(before, now, task)
    health: Health = "worse" if rose < -CLEAR else "better" if rose >= CLEAR else "unclear"
    how = {"worse": "less well", "better": "better", "unclear": "about as well"}[health]
    if task == "singlelabel":
        numbers = (
            f"information {before.information:.2f} nats before, {now.information:.2f} now; correlation of their scores "
            f"{before.smoothness:.2f} and {now.smoothness:.2f}, of their earlier scores {now.backward_smoothness:.2f}"
        )
    else:
        numbers = (
            f"correlation of their scores {before.forward_smoothness:.2f} before, {now.forward_smoothness:.2f} now; "
            f"effective rank of all answers {before.rank:.1f} and {now.rank:.1f}"
        )
    return health, f"answers fit {how} to which items are similar ({numbers})"


@dataclass(frozen=True)
class Verdict:
    """What can be said of a run without labels."""

    health: Health
    """Of the model that the run gave, against the source."""
    epoch: int
    """Whose weights that model has; 0: none of the epochs', so it is the source, but for statistics (see `text`)."""
    text: str
    """One paragraph."""
    before: dict[str, float]
    """Signals of the source (see `notela.signals`)."""
    after: dict[str, float]
    """Signals of the model that the run gave."""

    def __str__(self) -> str:
        return self.text


_SAID: dict[Health, str] = {
    "better": "There are signs that adaptation helped",
    "unclear": "There is no clear sign that adaptation changed anything for better or worse",
    "worse": "There are signs that adaptation did harm",
}


class References(NamedTuple):
    """What a run's epochs are held against. Where a guard only watches statistics that were asked for by name, nobody
    looks at the start, and it is said to be the source."""

    source: Signals
    """Of the source, beside itself."""
    start: Signals
    """Of the model before the first epoch, beside the source; it may have other statistics."""
    begun: Signals
    """The same, beside itself."""


def verdict(
    references: References,
    history: list[dict[str, Any]],
    task: Task,
    kept: int | None = None,
    share: float = 0.0,
) -> Verdict:
    """On a run with these records. `kept`: the epoch that the guard ended with, if it acted; `share`: of the target in
    the statistics of the model that is left where no epoch is kept."""
    source, start, begun = references
    looks = {record["epoch"]: Signals(**record["signals"]) for record in history}
    last: int = history[-1]["epoch"]
    given = last if kept is None else kept
    result = looks.get(given, start if share else source)
    health, reason = compare(source, result, task)
    told = source.classes > 0 and result.mix >= 0.01
    mix = f" The mix of predicted classes moved by {result.mix:.0%}." if told else ""
    if given == last:
        advice = " Prefer the model as it was, or a smaller learning rate." if health == "worse" else ""
        text = f"{_SAID[health]}: after the last of {last} epochs, {reason}.{mix}{advice}"
    else:
        doubtful = start != source and not share
        against = "statistics half-way to the target's, with which it began" if doubtful else "the beginning"
        moved, why = compare(begun, since_start(history[-1]), task)
        if moved == "better":  # and yet worse than the source
            against, (_, why) = "the source", compare(source, looks[last], task)
        later = f"since by epoch {last}, against {against}, {why}."
        if given:
            text = f"{_SAID[health]}: after epoch {given}, {reason}.{mix} It is the result, {later}"
        elif not share:
            text = f"The result is the model as it was, {later}"
        else:
            whose = "the target's statistics" if share == 1 else "statistics half-way to the target's"
            advice = " Prefer the model as it was." if health == "worse" else ""
            text = f"{_SAID[health]}: with {whose}, {reason}.{mix} Nothing else was kept, {later}{advice}"
    return Verdict(health, given, text, source._asdict(), result._asdict())


def since_start(record: dict[str, Any]) -> Signals:
    """Of the model after an epoch, beside the one before the first; that is the source, if nothing is said of it."""
    return Signals(**record.get("since_start", record["signals"]))


class Guard:
    """Judges a run before its first and after each epoch, and steers it where the preset says so."""

    def __init__(self, state: State, moving: Callable[[], dict[str, Tensor]]) -> None:
        """`state` has the source model still; `moving` gives every tensor of it that the run may change."""
        self._state, self._moving, self._watch = state, moving, Watch(state)
        self._acts = state.preset.guard == "act"

    def begin(self) -> None:
        """What epochs are held against: the source, and the model before the first epoch. Kept in banks, so that a
        resumed run says the same to the last digit."""
        state, statistics = self._state, self._state.preset.statistics
        source = start = self._watch.source
        share = SHARES.get(statistics, 0.0) if layers_of(state.classifier) else 0.0
        if self._acts:
            state.keep(self._moving())
        if statistics == "auto":
            share, start = self._try_statistics()
            if self._acts and share:
                state.keep(self._moving())
        elif share and self._acts:
            start = self._watch.look()
        looks = [read(source, source)] * 3
        if start is not source:
            looks[1:] = read(start, source), read(start, start)
            state.banks |= {f"{_START}{name}": part for name, part in start._asdict().items()}
        state.banks["looks"] = torch.tensor(looks)
        state.banks["share"] = torch.tensor(share)

    def _compare(self, before: Look, now: Look) -> tuple[Health, str]:
        return compare(read(before, before), read(now, before), self._state.task)

    def _try_statistics(self) -> tuple[float, Look]:
        """Statistics as far towards the target's as data allow: half-way, if that is better than the source's; all the
        way, if both are better than the source's and the second is not worse than half-way. A change in the mix of
        classes looks to a norm layer like another camera: there, less is safer, and nothing at all may be best.

        Says the target's share in what comes back if no epoch is kept, and what is seen of the model now: in doubt, a
        run begins half-way and yet the source comes back."""
        state, source = self._state, self._watch.source
        if not layers_of(state.classifier):
            return 0.0, source
        if len(state.data) == 1 or state.preset.batch_size == 1:
            state.note("statistics of norm layers stay the source's: one item, or batches of one, have no variance")
            return 0.0, source
        buffers = dict(state.classifier.model.named_buffers())
        as_it_was = _copy(buffers)
        reestimate(state, SHARES["half"])
        half_way, half = _copy(buffers), self._watch.look()
        looks = read(source, source), read(half, source)
        health, reason = compare(*looks, state.task)
        if health != "better":
            if self._acts and in_doubt(*looks, state.task):
                state.note(
                    f"statistics of norm layers were half-way to the target's when training began, in doubt: with "
                    f"them, {reason}; if no epoch is kept, the source's come back"
                )
                return 0.0, half
            _set(buffers, as_it_was)
            state.note(f"statistics of norm layers stay the source's: half-way to the target's, {reason}")
            return 0.0, source
        _set(buffers, as_it_was)
        reestimate(state, SHARES["re-estimated"])
        whole = self._watch.look()
        (against_source, better), (against_half, worse) = self._compare(source, whole), self._compare(half, whole)
        if against_source == "better" and against_half != "worse":
            state.note(f"statistics of norm layers were taken from the target: with them, {better}")
            return SHARES["re-estimated"], whole
        _set(buffers, half_way)
        further = f"against that, {worse}" if against_half == "worse" else better
        state.note(
            f"statistics of norm layers were taken half-way from the target: with them, {reason}; all the way, "
            f"{further}"
        )
        return SHARES["half"], half

    def judge(self) -> dict[str, Any]:
        """The model after an epoch: a part of the epoch's record. Where the guard acts, a healthy one is better than
        what the run began with, and not worse than the source; or better than the source, where that comes back."""
        references, now = self._references(), self._watch.look()
        signals = read(now, self._watch.source)
        record: dict[str, Any] = {"signals": signals._asdict()}
        if f"{_START}p" in self._state.banks:
            parts = {name: self._state.banks[f"{_START}{name}"].cpu() for name in Look._fields}
            record["since_start"] = read(now, Look(**parts))._asdict()
        before, after = (references.begun, since_start(record)) if self._acts else (references.source, signals)
        health, _ = compare(before, after, self._state.task)
        if self._acts:
            against_source, _ = compare(references.source, signals, self._state.task)
            if not self._state.banks["share"] and against_source == "better":
                health = "better"
            elif health == "better" and against_source == "worse":
                health = "worse"
            if health == "better":
                self._state.keep(self._moving())
        return record | {"health": health}

    def stops(self, history: list[dict[str, Any]]) -> bool:
        """Whether there is no use in going on: predictions collapsed, and not to what is better (a run that began in
        doubt is held against the source too)."""
        if not self._acts or not history or history[-1]["health"] == "better":
            return False
        return collapsed(self._references().begun, Signals(**history[-1]["signals"]))

    def end(self, history: list[dict[str, Any]]) -> Verdict:
        """The verdict, and the way back to the last healthy epoch."""
        kept = None
        if self._acts:
            kept = max((record["epoch"] for record in history if record["health"] == "better"), default=0)
            self._state.put_back(self._moving())
        return verdict(self._references(), history, self._state.task, kept, float(self._state.banks["share"]))

    def _references(self) -> References:
        looks = self._state.banks["looks"].tolist()
        if len(looks) != len(References._fields) or len(looks[0]) != len(Signals._fields):
            raise NotelaError("this run was begun by an older notela, which read other signs; begin it in a new folder")
        return References(*(Signals(*look) for look in looks))


def _copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _set(tensors: dict[str, Tensor], to: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(to[name])
