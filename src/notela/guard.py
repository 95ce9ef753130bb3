"""Did it help? The verdict on a run without labels, and a guard that acts on it.

No single sign is safe: predictions spread over more classes where a collapsed model recovers, and where a good one
forgets that few classes occur; neighbours agree more where a model learns, and where all of it becomes one class. So
three are read together (see `notela.signals`), each against the model that the run began with: what an item's answer
tells about those of similar items, how alike similar items' scores are, and how many classes are predicted at all.

Thresholds were chosen on the validation parts of the suites `digits` (balanced and skewed), `digits-multi`, `aviary`
and `aviary-single`, and on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from notela.classifier import Output
from notela.signals import SAMPLE, Sample, Signals
from notela.stable import number_from
from notela.state import State
from notela.statistics import SHARES, reestimate

LESS, MORE = 0.05, 0.02
"""Nats of information whose loss is harm, whose gain is a sign of help."""
ROUGHER, SMOOTHER = 0.03, 0.03
"""The same of smoothness."""
FEWER, COLLAPSE = 0.86, 0.55
"""Shares of the effective number of classes below which there is harm, or no way back."""

Health = Literal["better", "unclear", "worse"]


def collapsed(before: Signals, now: Signals) -> bool:
    """Whether a model's predictions fell into few classes: there is no way back from there by further epochs."""
    return now.classes < COLLAPSE * before.classes


def compare(before: Signals, now: Signals) -> tuple[Health, str]:
    """Whether a model became better, and the reason in words.

    >>> good = Signals(information=0.5, smoothness=0.6, classes=8.0, mix=0.0, agreement=0.7, positives=1.0)
    >>> compare(good, good._replace(information=0.6))[0], compare(good, good._replace(classes=2.0))[0]
    ('better', 'worse')
    """
    if not all(map(math.isfinite, now)):
        return "worse", "some of its predictions are not numbers"
    information, smoothness = now.information - before.information, now.smoothness - before.smoothness
    told = f"{before.information:.2f} nats before, {now.information:.2f} now"
    alike = f"correlation {before.smoothness:.2f} before, {now.smoothness:.2f} now"
    if now.classes < FEWER * before.classes:
        return "worse", (
            f"its predictions fell into fewer classes (effectively {before.classes:.1f} before, {now.classes:.1f} now)"
        )
    if information < -LESS:
        return "worse", f"an item's answer tells less about those of similar items ({told})"
    if smoothness < -ROUGHER:
        return "worse", f"scores of similar items are less alike ({alike})"
    if information >= MORE:
        return "better", (
            f"an item's answer tells more about those of similar items ({told}; the same answer beyond chance "
            f"{before.agreement:.0%} before, {now.agreement:.0%} now)"
        )
    if smoothness >= SMOOTHER:
        return "better", f"scores of similar items are more alike ({alike})"
    return "unclear", f"similar items agree about as much as before ({told}; {alike})"


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


def verdict(source: Signals, start: Signals, history: list[dict[str, Any]], kept: int | None = None) -> Verdict:
    """On a run with these records. `start`: signals before the first epoch, which differ from the source's where its
    statistics were replaced; `kept`: the epoch that the guard ended with, if it acted."""
    looks = {record["epoch"]: Signals(**record["signals"]) for record in history}
    last: int = history[-1]["epoch"]
    given = last if kept is None else kept
    result = looks.get(given, start)
    health, reason = compare(source, result)
    mix = f" The mix of predicted classes moved by {result.mix:.0%}." if result.mix >= 0.01 else ""
    if given == last:
        advice = " Prefer the model as it was, or a smaller learning rate." if health == "worse" else ""
        text = f"{_SAID[health]}: after the last of {last} epochs, {reason}.{mix}{advice}"
    else:
        _, tried = compare(start, looks[last])
        if given:
            text = f"{_SAID[health]}: after epoch {given}, {reason}.{mix} It is the result, since after epoch {last}, "
        elif start == source:
            text = f"The result is the model as it was, since after epoch {last}, "
        else:
            text = f"{_SAID[health]}: with the target's statistics, {reason}.{mix} Nothing else was kept, since after "
            text += f"epoch {last}, "
        text += f"{tried}."
    return Verdict(health, given, text, source._asdict(), result._asdict())


class Guard:
    """Looks at a run before its first and after each epoch, and steers it where the preset says so."""

    def __init__(self, state: State, moving: Callable[[], dict[str, Tensor]]) -> None:
        """`state` has the source model still; `moving` gives every tensor of it that the run may change."""
        self._state, self._moving = state, moving
        self.acts = state.preset.guard == "act"
        dice = torch.Generator().manual_seed(number_from(state.seed, 0, 2))
        self._rows = torch.randperm(len(state.data), generator=dice)[:SAMPLE].sort().values
        source = state.deployed(self._rows)
        self._sample = Sample(source, state.task)
        self.source = self._sample.signals(source)

    def begin(self) -> None:
        """Statistics, and what later epochs are held against."""
        state, start = self._state, self.source
        if state.preset.statistics in SHARES:
            reestimate(state, SHARES[state.preset.statistics])
        elif state.preset.statistics == "auto" and state.classifier.statistics_layers():
            start = self._try_statistics()
        if self.acts:
            state.banks["start"] = torch.tensor(start, dtype=torch.float64)
            state.keep(self._moving())

    def _try_statistics(self) -> Signals:
        """Statistics as far towards the target's as data speak for: half-way, if that is better than the source's; all
        the way, if that is not worse than half-way. A change in the mix of classes looks to a norm layer like another
        camera: there, less is safer, and nothing at all may be best."""
        state, buffers = self._state, dict(self._state.classifier.model.named_buffers())
        source = _copy(buffers)
        reestimate(state, SHARES["half"])
        half_way, half = _copy(buffers), self._look()
        health, reason = compare(self.source, half)
        _set(buffers, source)
        if health != "better":
            state.note(f"statistics of norm layers stay the source's: half-way to the target's, {reason}")
            return self.source
        reestimate(state, SHARES["re-estimated"])
        whole = self._look()
        health, further = compare(half, whole)
        if health == "worse":
            _set(buffers, half_way)
            state.note(
                f"statistics of norm layers were taken half-way from the target: with them, {reason}; all the way, "
                f"{further}"
            )
            return half
        state.note(f"statistics of norm layers were taken from the target: with them, {compare(self.source, whole)[1]}")
        return whole

    def _look(self) -> Signals:
        """The model as it is now."""
        state = self._state
        output = state.deployed(self._rows)
        return self._sample.signals(Output(output.features, state.preset.method.correct(output, state.task)))

    def _start(self) -> Signals:
        """What epochs are held against."""
        return Signals(*self._state.banks["start"].tolist()) if self.acts else self.source

    def judge(self) -> dict[str, Any]:
        """The model after an epoch, against the one that the run began with: a part of the epoch's record."""
        now = self._look()
        health, _ = compare(self._start(), now)
        if self.acts and health == "better":
            self._state.keep(self._moving())
        return {"signals": now._asdict(), "health": health}

    def stops(self, history: list[dict[str, Any]]) -> bool:
        """Whether there is no use in going on."""
        return self.acts and bool(history) and collapsed(self._start(), Signals(**history[-1]["signals"]))

    def end(self, history: list[dict[str, Any]]) -> Verdict:
        """The verdict, and the way back to the last healthy epoch."""
        kept = None
        if self.acts:
            kept = max((record["epoch"] for record in history if record["health"] == "better"), default=0)
            self._state.put_back(self._moving())
        return verdict(self.source, self._start(), history, kept)


def _copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _set(tensors: dict[str, Tensor], to: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(to[name])
