"""What the guard says of a model beside an earlier one, and the words of the verdict; what the loop makes of them:
test_guard.py."""

from __future__ import annotations

import math
from typing import Any

import pytest

from conftest import GOOD, TASKS
from notela import guard
from notela.guard import (
    BACKWARD,
    CLEAR,
    COLLAPSE,
    DOUBT,
    FALL,
    FORWARD,
    References,
    collapsed,
    compare,
    in_doubt,
)
from notela.signals import Signals

LITTLE = 1e-6
NOTHING = Signals(*[0] * len(Signals._fields))
"""What is read where answers are not numbers."""


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("change", "health"),
    [
        ({"classes": 8 * COLLAPSE - LITTLE, "information": 0.9, "rank": 7.0}, "worse"),
        ({"classes": 8 * COLLAPSE + LITTLE, "information": 0.9, "rank": 7.0}, "better"),
        ({}, "unclear"),
        (  # told, no ground for a verdict
            {"positives": 0.0, "mix": 0.9, "agreement": 0.1, "disagreement": 0.9},
            "unclear",
        ),
    ],
)
def test_some_signs_are_the_same_for_both_tasks(change: dict[str, float], health: str, task: Any) -> None:
    assert compare(GOOD, GOOD._replace(**change), task)[0] == health


@pytest.mark.parametrize(
    ("task", "sign", "weight"),
    [
        ("singlelabel", "information", 1.0),
        ("singlelabel", "smoothness", 1.0),
        ("singlelabel", "backward_smoothness", BACKWARD),
        ("singlelabel", "forward_smoothness", 0.0),
        ("singlelabel", "rank", 0.0),
        ("multilabel", "rank", 1.0),
        ("multilabel", "forward_smoothness", FORWARD),
        ("multilabel", "information", 0.0),
        ("multilabel", "smoothness", 0.0),
        ("multilabel", "backward_smoothness", 0.0),
    ],
)
def test_each_sign_has_its_weight(task: Any, sign: str, weight: float) -> None:
    def moved(by: float) -> str:
        step = by / weight if weight else by * 100
        value = getattr(GOOD, sign)
        return compare(GOOD, GOOD._replace(**{sign: value * math.exp(step) if sign == "rank" else value + step}), task)[
            0
        ]

    expected = ("worse", "unclear", "unclear", "better") if weight else ("unclear",) * 4
    assert tuple(map(moved, (-CLEAR - LITTLE, -CLEAR + LITTLE, CLEAR - LITTLE, CLEAR + LITTLE))) == expected


def test_signs_weigh_each_other_up() -> None:
    fitting = {"information": 0.5 - 0.3, "smoothness": 0.6 + 0.2, "backward_smoothness": 0.6 + 0.1 / BACKWARD}
    assert compare(GOOD, GOOD._replace(**fitting), "singlelabel")[0] == "unclear"
    varied = GOOD._replace(rank=6 * math.exp(0.3), forward_smoothness=0.6 - 0.3 / FORWARD)
    assert compare(GOOD, varied, "multilabel")[0] == "unclear"


def test_answers_of_before_may_fit_badly_to_what_is_seen_better() -> None:
    strange = GOOD._replace(backward_smoothness=-1.0)
    assert compare(GOOD, strange, "singlelabel")[0] == "worse"
    balance = BACKWARD * FALL
    assert compare(GOOD, strange._replace(information=0.5 + balance), "singlelabel")[0] == "unclear"
    assert compare(GOOD, strange._replace(information=0.5 + balance + CLEAR + LITTLE), "singlelabel")[0] == "better"
    assert compare(GOOD, strange._replace(information=0.5 + balance + CLEAR - LITTLE), "singlelabel")[0] == "unclear"


def test_a_run_may_begin_in_doubt_where_items_have_several_classes() -> None:
    least, most = (GOOD._replace(rank=6 * math.exp(-DOUBT + step)) for step in (LITTLE, -LITTLE))
    assert in_doubt(GOOD, least, "multilabel")
    assert not in_doubt(GOOD, most, "multilabel")
    assert not in_doubt(GOOD, GOOD._replace(classes=1.0), "multilabel")
    assert not in_doubt(GOOD, GOOD, "singlelabel")
    assert not in_doubt(NOTHING, NOTHING, "multilabel")


@pytest.mark.parametrize(
    ("task", "change", "numbers"),
    [
        ("singlelabel", {"classes": 2.04}, ("effectively 8.0 before, 2.0 now",)),
        ("multilabel", {"classes": 2.04}, ("effectively 8.0 before, 2.0 now",)),
        ("singlelabel", {"information": 0.123}, ("fit less well", "information 0.50 nats before, 0.12 now")),
        ("singlelabel", {"smoothness": 0.41}, ("fit less well", "correlation of their scores 0.60 and 0.41")),
        (
            "singlelabel",
            {"backward_smoothness": 0.41},
            ("fit less well", "0.60 and 0.60, of their earlier scores 0.41"),
        ),
        ("singlelabel", {"information": 0.51}, ("fit about as well", "information 0.50 nats before, 0.51 now")),
        ("singlelabel", {"information": 0.75}, ("fit better", "information 0.50 nats before, 0.75 now")),
        ("singlelabel", {"smoothness": 0.75}, ("fit better", "correlation of their scores 0.60 and 0.75")),
        ("multilabel", {"rank": 4.5}, ("fit less well", "effective rank of all answers 6.0 and 4.5")),
        ("multilabel", {"rank": 4.5, "forward_smoothness": 0.787}, ("fit about as well", "6.0 and 4.5")),
        ("multilabel", {"forward_smoothness": 0.75}, ("fit better", "scores 0.60 before, 0.75 now")),
    ],
)
def test_a_reason_is_one_phrase_with_both_numbers(
    task: Any, change: dict[str, float], numbers: tuple[str, ...]
) -> None:
    reason = compare(GOOD, GOOD._replace(**change), task)[1]
    assert all(part in reason for part in numbers)
    assert reason[0].islower()
    assert not reason.endswith(".")
    assert "\n" not in reason
    assert ". " not in reason


def test_a_collapse_is_told_from_fewer_classes() -> None:
    assert collapsed(GOOD, GOOD._replace(classes=8 * COLLAPSE - LITTLE))
    assert not collapsed(GOOD, GOOD._replace(classes=8 * COLLAPSE + LITTLE))


def record(epoch: int, now: Signals) -> dict[str, Any]:
    return {"epoch": epoch, "signals": now._asdict()}


def test_a_verdict_names_the_epoch_that_the_result_is_of() -> None:
    better, worse = GOOD._replace(information=0.8, mix=0.123), GOOD._replace(information=0.3)
    plain = guard.verdict(References(GOOD, GOOD, GOOD), [record(1, worse), record(2, better)], "singlelabel")
    assert (plain.health, plain.epoch) == ("better", 2)
    assert "adaptation helped: after the last of 2 epochs" in str(plain)
    assert str(plain).endswith("The mix of predicted classes moved by 12%.")
    assert (plain.before, plain.after) == (GOOD._asdict(), better._asdict())
    harmed = guard.verdict(References(GOOD, GOOD, GOOD), [record(1, worse)], "singlelabel")
    assert (harmed.health, harmed.epoch) == ("worse", 1)
    assert "Prefer the model as it was" in harmed.text
    back = guard.verdict(References(GOOD, GOOD, GOOD), [record(1, better), record(2, worse)], "singlelabel", kept=1)
    assert (back.health, back.epoch) == ("better", 1)
    assert "adaptation helped: after epoch 1," in back.text
    assert "It is the result, since by epoch 2, against the beginning, answers fit less well" in back.text
    none = guard.verdict(References(GOOD, GOOD, GOOD), [record(1, worse)], "singlelabel", kept=0)
    assert (none.health, none.epoch) == ("unclear", 0)
    assert none.text.startswith("The result is the model as it was, since by epoch 1, against the beginning, answers")
    assert none.after == none.before
    for share, whose in ((1.0, "the target's statistics"), (0.5, "statistics half-way to the target's")):
        statistics = guard.verdict(
            References(GOOD, better, better), [record(1, worse)], "singlelabel", kept=0, share=share
        )
        assert (statistics.health, statistics.epoch) == ("better", 0)
        assert f"adaptation helped: with {whose}, answers" in statistics.text
        assert "Nothing else was kept, since by epoch 1," in statistics.text
    last = guard.verdict(References(GOOD, GOOD, GOOD), [record(1, worse), record(2, better)], "singlelabel", kept=2)
    assert last == plain


def test_predictions_that_are_not_numbers_are_no_improvement() -> None:
    health, reason = compare(GOOD, NOTHING, "singlelabel")
    assert (health, reason) == ("worse", "some of its predictions are not numbers")


@pytest.mark.parametrize("task", TASKS)
def test_predictions_that_are_numbers_are_better_than_none(task: Any) -> None:
    assert compare(NOTHING, NOTHING, task)[0] == "worse"
    poor = GOOD._replace(information=0.0, rank=1.0, forward_smoothness=0.0, smoothness=0.0, mix=0.5)
    found = guard.verdict(References(NOTHING, NOTHING, NOTHING), [record(1, poor)], task)
    assert found.health == "better"
    assert found.text.endswith("epochs, its predictions are numbers, and not all of those before were.")
