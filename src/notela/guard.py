"""Did it help? The verdict on a run without labels, and a guard that acts on it.

No single sign is safe: predictions spread over more classes where a collapsed model recovers, and where a good one
forgets that few classes occur; neighbours agree more where a model learns, and where all of it becomes one class. So
two are read together (see `notela.signals`): how much answers to similar items have to do with each other, and how many
classes are predicted at all.

Thresholds were chosen on the validation parts of the suites `digits` (balanced and skewed), `digits-multi`, `aviary`
and `aviary-single` (`benchmarks/thresholds.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from notela.signals import Signals, Watch
from notela.state import State
from notela.statistics import SHARES, layers_of, reestimate

CLEAR = 0.03
"""A score that fell by more is a sign of harm, one that rose by as much a sign of help."""
DOUBT = 0.1
"""Where items have several classes or none, a run that is guarded begins with half-way statistics unless a score falls
by more: most of such an item is the place, not its classes. Where each has one, statistics follow the mix of classes
too, and must be better. (Of the validation domains, this decides one.)"""
FEWER, COLLAPSE = 0.8, 0.55
"""Shares of the effective number of classes below which there is a sign of harm, or no way back."""

Health = Literal["better", "unclear", "worse"]


def collapsed(before: Signals, now: Signals) -> bool:
    """Whether a model's predictions fell into few classes: there is no way back from there by further epochs."""
    return now.classes < COLLAPSE * before.classes


def compare(before: Signals, now: Signals, fall: float = CLEAR) -> tuple[Health, str]:
    """Whether a model became better, and the reason in words; `fall`: of a score, beyond which it became worse.

    >>> good = Signals(0.5, 0.6, classes=8.0, mix=0.0, agreement=0.7, positives=1.0, rank=6.0, disagreement=0.1)
    >>> compare(good, good._replace(information=0.6))[0], compare(good, good._replace(classes=2.0))[0]
    ('better', 'worse')
    """
    if not now.classes:
        return "worse", "some of its predictions are not numbers"
    if now.classes < FEWER * before.classes:
        return "worse", (
            f"its predictions fell into fewer classes (effectively {before.classes:.1f} before, {now.classes:.1f} now)"
        )
    rise = now.score - before.score
    numbers = (
        f"the same answer beyond chance {before.agreement:.0%} before, {now.agreement:.0%} now; information "
        f"{before.information:.2f} nats and {now.information:.2f}, correlation of scores {before.smoothness:.2f} and "
        f"{now.smoothness:.2f}"
    )
    if rise < -fall:
        return "worse", f"answers to similar items have less to do with each other ({numbers})"
    if rise >= CLEAR:
        return "better", f"answers to similar items have more to do with each other ({numbers})"
    return "unclear", f"answers to similar items have about as much to do with each other as before ({numbers})"


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


def verdict(
    source: Signals, start: Signals, history: list[dict[str, Any]], kept: int | None = None, share: float = 0.0
) -> Verdict:
    """On a run with these records. `start`: signals before the first epoch; `kept`: the epoch that the guard ended
    with, if it acted; `share`: of the target in the statistics of the model that is left where no epoch is kept."""
    looks = {record["epoch"]: Signals(**record["signals"]) for record in history}
    last: int = history[-1]["epoch"]
    given = last if kept is None else kept
    result = looks.get(given, start if share else source)
    health, reason = compare(source, result)
    mix = f" The mix of predicted classes moved by {result.mix:.0%}." if result.mix >= 0.01 else ""
    if given == last:
        advice = " Prefer the model as it was, or a smaller learning rate." if health == "worse" else ""
        text = f"{_SAID[health]}: after the last of {last} epochs, {reason}.{mix}{advice}"
    else:
        against, (moved, why) = "the beginning", compare(start, looks[last])
        if moved == "better":  # and yet worse than the source: it began in doubt
            against, (_, why) = "the source", compare(source, looks[last])
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


class Guard:
    """Judges a run before its first and after each epoch, and steers it where the preset says so."""

    def __init__(self, state: State, moving: Callable[[], dict[str, Tensor]]) -> None:
        """`state` has the source model still; `moving` gives every tensor of it that the run may change."""
        self._state, self._moving, self._watch = state, moving, Watch(state)
        self._acts = state.preset.guard == "act"

    def begin(self) -> None:
        """What epochs are held against: the source, and the model before the first epoch, which may have other
        statistics. Kept in banks, so that a resumed run says the same to the last digit."""
        state, statistics = self._state, self._state.preset.statistics
        source = start = self._watch.source
        share = SHARES.get(statistics, 0.0) if layers_of(state.classifier) else 0.0
        doubtful = False
        if statistics == "auto":
            if self._acts:
                state.keep(self._moving())
            share, start = self._try_statistics()
            doubtful = compare(source, start)[0] != "better"  # good enough to begin with, not to end with
        elif share and self._acts:
            start = self._watch.look()
        state.banks["looks"] = torch.tensor([source, start])
        state.banks["share"] = torch.tensor(0.0 if doubtful else share)
        if self._acts and not doubtful:
            state.keep(self._moving())

    def _try_statistics(self) -> tuple[float, Signals]:
        """Statistics as far towards the target's as data allow: half-way, if that is better than the source's, or where
        there is doubt and items have several classes; all the way, if both are better than the source's and the second
        is not worse than half-way. A change in the mix of classes looks to a norm layer like another camera: there,
        less is safer, and nothing at all may be best."""
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
        health, reason = compare(source, half)
        may_begin = self._acts and state.task == "multilabel"  # a guard that acts does not end there without reason
        if health != "better" and may_begin and compare(source, half, DOUBT)[0] != "worse":
            state.note(
                f"statistics of norm layers were taken half-way from the target, in doubt, to begin with: with them, "
                f"{reason}"
            )
            return SHARES["half"], half
        _set(buffers, as_it_was)
        if health != "better":
            state.note(f"statistics of norm layers stay the source's: half-way to the target's, {reason}")
            return 0.0, source
        reestimate(state, SHARES["re-estimated"])
        whole = self._watch.look()
        (against_source, better), (against_half, worse) = compare(source, whole), compare(half, whole)
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
        what the run began with, and not worse than the source."""
        source, start = self._references()
        now = self._watch.look()
        health, _ = compare(start if self._acts else source, now)
        if self._acts and health == "better":
            if compare(source, now)[0] == "worse":
                health = "worse"
            else:
                self._state.keep(self._moving())
        return {"signals": now._asdict(), "health": health}

    def stops(self, history: list[dict[str, Any]]) -> bool:
        """Whether there is no use in going on."""
        if not self._acts or not history:
            return False
        return collapsed(self._references()[1], Signals(**history[-1]["signals"]))

    def end(self, history: list[dict[str, Any]]) -> Verdict:
        """The verdict, and the way back to the last healthy epoch."""
        kept = None
        if self._acts:
            kept = max((record["epoch"] for record in history if record["health"] == "better"), default=0)
            self._state.put_back(self._moving())
        return verdict(*self._references(), history, kept, float(self._state.banks["share"]))

    def _references(self) -> tuple[Signals, Signals]:
        """Signals of the source, and of the model before the first epoch."""
        source, start = self._state.banks["looks"].tolist()
        return Signals(*source), Signals(*start)


def _copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _set(tensors: dict[str, Tensor], to: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(to[name])
