"""Did it help? What a model's predictions on unlabelled data tell about its health, and the verdict on a run.

Nothing here sees labels, and no single sign is safe: predictions spread over more classes where a collapsed model
recovers, and where a good one forgets that few classes occur; neighbours agree more where a model learns, and where all
of it becomes one class. So three are read together, each against the model that the run began with:

- the *score*: how often neighbours in feature space have the same first choice (kappa: beyond what their frequencies
  explain), plus `WEIGHT` times the entropy of these choices;
- the *effective number of classes* in the mean prediction: a collapse shows here first;
- the *information* (nats, summed over classes) that sure predictions, p > ½, have about those of neighbours.

Thresholds were chosen on the validation parts of the suites `digits` (balanced and skewed), `digits-multi`, `aviary`
and `aviary-single`, and on nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from notela.classifier import Output
from notela.graph import mutual_affinity
from notela.task import Task, probabilities

SAMPLE, K = 2_000, 15
"""Rows that are looked at after each epoch, and neighbours of each."""
WEIGHT = 0.2
"""Of a nat of entropy, beside agreement."""
CLEAR = 0.015
"""A score that rose by less is no evidence."""
COLLAPSE = 0.55
"""An effective number of classes below this share of what it was."""
SILENT = 0.8
"""Information below this share of what it was."""

Health = Literal["better", "unclear", "worse"]


class Signals(NamedTuple):
    """A model on a sample of unlabelled rows."""

    agreement: float
    """Of mutual neighbours on their first choice: kappa, 0 by chance, 1 always."""
    choices: float
    """Entropy of first choices, nats."""
    classes: float
    """Effective number of classes in the mean prediction."""
    information: float
    """Of sure predictions about their neighbours', nats, summed over classes."""
    positives: float
    """Sure predictions a row."""

    @property
    def score(self) -> float:
        """Agreement, and the variety that it is about."""
        return self.agreement + WEIGHT * self.choices


def signals(output: Output, task: Task) -> Signals:
    """Of embeddings and logits of the same rows; logits serve where the embedding is not known.

    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <...>
    >>> z = torch.eye(2).repeat_interleave(20, 0) * 9
    >>> alike, at_random = (signals(Output(f, z), "singlelabel") for f in (z + torch.randn(40, 2), torch.randn(40, 2)))
    >>> alike.agreement > 0.9, abs(at_random.agreement) < 0.2, round(alike.classes, 2)
    (True, True, 2.0)
    """
    p = probabilities(output.logits, task)
    n, c = p.shape
    first = p.argmax(1)
    frequency = torch.bincount(first, minlength=c) / n
    sure = (p > 0.5).float()
    agreement = information = 0.0
    if n > 2:
        features = output.features if output.features.shape[1] else output.logits
        pairs = mutual_affinity(features, min(K, n - 1), metric="cosine")
        starts, columns = pairs.crow_indices().to(first.device), pairs.col_indices().to(first.device)
        degree = starts.diff()
        rows = torch.repeat_interleave(torch.arange(n, device=first.device), degree)
        if len(rows):
            agreement = _kappa((first[rows] == first[columns]).float().mean(), frequency.square().sum())
            heard = torch.zeros_like(sure).index_add_(0, rows, sure[columns])
            information = _information((sure * heard).sum(0) / len(rows), degree.float() @ sure / len(rows))
    mean = p.mean(0)
    return Signals(
        agreement,
        float(torch.special.entr(frequency).sum()),
        float(torch.special.entr(mean / mean.sum().clamp(min=1e-12)).sum().exp()),
        information,
        float(sure.sum(1).mean()),
    )


def _kappa(observed: Tensor, by_chance: Tensor) -> float:
    return float((observed - by_chance) / (1 - by_chance)) if by_chance < 1 else 0.0


def _information(both: Tensor, one: Tensor) -> float:
    """Mutual information of two-way variables with P(both) and P(one) of each class, summed."""
    joint = torch.stack([both, one - both, one - both, 1 - 2 * one + both]).double().clamp(min=0)
    apart = torch.stack([one * one, one * (1 - one), one * (1 - one), (1 - one).square()]).double()
    return float(torch.special.xlogy(joint, joint / apart.clamp(min=1e-12)).sum())


def collapsed(before: Signals, now: Signals) -> bool:
    """Whether a model's predictions fell into few classes: there is no way back from there by further epochs."""
    return now.classes < COLLAPSE * before.classes


def compare(before: Signals, now: Signals) -> tuple[Health, str]:
    """Whether a model became better, and the reason in words.

    >>> good = Signals(0.6, 2.0, 8.0, 0.5, 1.0)
    >>> compare(good, good._replace(agreement=0.7))[0], compare(good, good._replace(classes=2.0))[0]
    ('better', 'worse')
    """
    if not all(map(math.isfinite, now)):
        return "worse", "some of its predictions are not numbers"
    if collapsed(before, now):
        return "worse", (
            "its predictions collapsed into fewer classes "
            f"(effectively {before.classes:.1f} before, {now.classes:.1f} now)"
        )
    if now.information < SILENT * before.information:
        return "worse", (
            "its sure predictions say less about those of similar items "
            f"({before.information:.2f} nats before, {now.information:.2f} now)"
        )
    rise = now.score - before.score
    agreement = f"agreement of similar items {before.agreement:.0%} before, {now.agreement:.0%} now"
    if rise < 0:
        return (
            "worse",
            f"similar items get the same answer less often than its variety of answers explains ({agreement})",
        )
    if rise < CLEAR:
        return "unclear", f"similar items get the same answer about as often as before ({agreement})"
    return "better", (
        f"similar items get the same answer more often, or out of a greater variety ({agreement}; effectively "
        f"{math.exp(before.choices):.1f} first choices before, {math.exp(now.choices):.1f} now)"
    )


@dataclass(frozen=True)
class Verdict:
    """What can be said of a run without labels."""

    health: Health
    """Of the model that the run gave, against the source."""
    epoch: int
    """Whose weights that model has; 0: none of the epochs', so it is the source, but for statistics (see `text`)."""
    text: str
    """One paragraph."""

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
    health, reason = compare(source, looks.get(given, start))
    if given == last:
        advice = " Prefer the model as it was, or a smaller learning rate." if health == "worse" else ""
        return Verdict(health, given, f"{_SAID[health]}: after the last of {last} epochs, {reason}.{advice}")
    _, tried = compare(start, looks[last])
    if given:
        text = f"{_SAID[health]}: after epoch {given}, {reason}. It is the result, since after epoch {last}, {tried}."
    elif start == source:
        text = f"The result is the model as it was, since after epoch {last}, {tried}."
    else:
        text = (
            f"{_SAID[health]}: with the target's statistics, {reason}. Nothing else was kept, since after epoch "
            f"{last}, {tried}."
        )
    return Verdict(health, given, text)
