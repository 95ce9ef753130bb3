"""What the loop makes of the guard; its verdicts: test_verdict.py; its signals: test_signals.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import notela
from conftest import CLASSES, GOOD, TASKS, Net, moved, same, weights
from notela import guard, methods
from notela.bench.suite import Loaded, find
from notela.guard import COLLAPSE, DOUBT, Guard
from notela.methods import TENT, Preset
from notela.signals import SAMPLE, Look, Signals, read

Quick = Callable[..., notela.Result]
Say = Callable[..., None]
STATISTICS = {"bn.running_mean", "bn.running_var", "bn.num_batches_tracked"}
PRESET = Preset(TENT(), trainable="all", learning_rate=1e-2, epochs=4, batch_size=16)
AUTO = replace(methods.preset("notela", "auto-multilabel"), epochs=4, batch_size=16)
LITTLE = 1e-6


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    """`compare` says what it is told to: first of the target's statistics, then of each epoch; the last word stays."""
    begin, judge = Guard.begin, Guard.judge

    def script(*words: str) -> None:
        epoch = 0

        def at(hook: Callable[[Guard], Any]) -> Callable[[Guard], Any]:
            def hooked(guard: Guard) -> Any:
                nonlocal epoch
                epoch = guard._state.epoch
                return hook(guard)

            return hooked

        monkeypatch.setattr(Guard, "begin", at(begin))
        monkeypatch.setattr(Guard, "judge", at(judge))
        monkeypatch.setattr(guard, "compare", lambda *_: (words[min(epoch, len(words) - 1)], "so it was told"))
        monkeypatch.setattr(guard, "collapsed", lambda *_: False)
        monkeypatch.setattr(guard, "in_doubt", lambda *_: False)

    return script


class Watcher:
    """An evaluator that keeps every model it is shown, the source's first."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def __call__(self, predict: Any) -> dict[str, float]:
        self.seen.append(weights(predict._frozen))
        return {"number": len(self.seen) - 1.0}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def cut_in(epoch: int) -> Callable[[object], dict[str, float]]:
    """An evaluator that pulls the plug in an epoch, before its checkpoint."""
    calls = []

    def evaluate(predict: object) -> dict[str, float]:
        calls.append(predict)
        if len(calls) == epoch + 1:  # it is called for the source model too
            raise KeyboardInterrupt
        return {}

    return evaluate


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("preset", [PRESET, AUTO])
def test_a_guard_that_has_nothing_to_do_changes_no_bit(
    task: str, preset: Preset, net: Net, x: Tensor, quick: Quick, say: Say
) -> None:
    say("better")
    watched, acted = (quick(net, x, task=task, method=preset, epochs=4, guard=how) for how in ("watch", "act"))
    assert same(watched.model, acted.model)
    assert not same(watched.model, net)
    assert watched.history == acted.history
    assert watched.verdict == acted.verdict
    assert acted.verdict.epoch == 4


def test_watching_leaves_the_run_alone_whatever_it_sees(net: Net, x: Tensor, quick: Quick, say: Say) -> None:
    results = []
    for word in ("better", "unclear", "worse"):
        say(word)
        results.append(quick(net, x, task="singlelabel", method=PRESET, epochs=4))
        assert (results[-1].verdict.health, results[-1].verdict.epoch) == (word, 4)
    assert all(same(results[0].model, other.model) for other in results[1:])
    assert len(results[-1].history) == 4


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("statistics", ["source", "target", "auto"])
@pytest.mark.parametrize("word", ["worse", "unclear"])
def test_no_healthy_epoch_gives_the_source_back(
    task: str, statistics: str, word: str, net: Net, x: Tensor, quick: Quick, say: Say
) -> None:
    say(word)
    watcher = Watcher()
    result = quick(net, x, task=task, method=PRESET, epochs=4, statistics=statistics, guard="act", evaluator=watcher)
    assert same(result.model, net)
    assert not equal(watcher.seen[1], weights(net))
    assert equal(watcher.seen[-1], weights(net))
    assert result.verdict.epoch == 0
    assert "The result is the model as it was, since by epoch 4, against the beginning, so it was told" in str(result)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("preset", [PRESET, replace(PRESET, statistics="target"), AUTO])
@pytest.mark.parametrize("healthy", [1, 2, 3])
def test_the_result_is_the_last_healthy_epoch(
    task: str, preset: Preset, healthy: int, net: Net, x: Tensor, quick: Quick, say: Say
) -> None:
    say(*["better" if epoch in (0, 1, healthy) else "worse" for epoch in range(5)])
    watcher = Watcher()
    result = quick(net, x, task=task, method=replace(preset, guard="act"), epochs=4, evaluator=watcher)
    assert equal(weights(result.model), watcher.seen[healthy])
    assert not equal(watcher.seen[healthy], watcher.seen[4])
    assert result.verdict.epoch == healthy
    assert f"after epoch {healthy}, so it was told." in result.verdict.text
    assert "It is the result, since by epoch 4, against the beginning, so it was told." in result.verdict.text
    assert [epoch["health"] for epoch in result.history].count("better") == len({1, healthy})


@pytest.mark.parametrize("kept", [0, 2, 4])
def test_the_evaluation_is_of_the_model_that_comes_back(kept: int, net: Net, x: Tensor, quick: Quick, say: Say) -> None:
    say(*["better" if epoch == kept and epoch else "worse" for epoch in range(5)])
    labels = torch.randint(CLASSES, (70,), generator=torch.Generator().manual_seed(5))
    evaluator = notela.Evaluator(x, labels, task="singlelabel")
    result = quick(net, x, task="singlelabel", method=PRESET, epochs=4, guard="act", evaluator=evaluator)
    first = notela.predict(result.model, x, task="singlelabel", device="cpu").argmax(1)
    assert result.evaluation is not None
    assert result.evaluation["accuracy"] == pytest.approx((first == labels).float().mean().item())
    assert result.evaluation == (result.history[kept - 1]["evaluation"] if kept else result.source)


@pytest.mark.parametrize("how", ["act", "watch"])
def test_a_collapse_stops_a_run_that_is_guarded(
    how: str, net: Net, x: Tensor, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def falling(now: Look, reference: Look) -> Signals:
        calls.append(1)  # of the source, then of each epoch
        better = GOOD._replace(information=0.5 + 0.1 * len(calls))
        return better._replace(classes=1.0) if len(calls) > 3 else better

    monkeypatch.setattr(guard, "read", falling)
    watcher = Watcher()
    result = quick(net, x, task="singlelabel", method=PRESET, epochs=6, guard=how, evaluator=watcher)
    assert len(result.history) == (3 if how == "act" else 6)
    assert result.verdict.health == ("better" if how == "act" else "worse")
    assert result.verdict.epoch == (2 if how == "act" else 6)
    assert equal(weights(result.model), watcher.seen[result.verdict.epoch])


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What `compare` says of statistics half-way and all the way against the source, and of all the way against
    half-way; every epoch is better."""

    def script(*said: str) -> None:
        words = iter(said)
        monkeypatch.setattr(guard, "compare", lambda *_: (next(words, "better"), "so it was told"))
        monkeypatch.setattr(guard, "collapsed", lambda *_: False)
        monkeypatch.setattr(guard, "in_doubt", lambda *_: False)

    return script


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("how", ["act", "watch"])
@pytest.mark.parametrize(
    ("said", "taken", "note"),
    [
        (("better", "better", "better"), "re-estimated", "were taken from the target: with them, so it was told"),
        (("better", "better", "unclear"), "re-estimated", "were taken from the target: with them, so it was told"),
        (("better", "better", "worse"), "half", "were taken half-way from the target: with them, so it was told; all"),
        (
            ("better", "unclear", "better"),
            "half",
            "were taken half-way from the target: with them, so it was told; all",
        ),
        (("worse", "worse"), "source", "stay the source's: half-way to the target's, so it was told"),
    ],
)
def test_statistics_go_as_far_as_they_help(
    task: str, how: str, said: tuple[str, ...], taken: str, note: str, net: Net, x: Tensor, quick: Quick, steps: Say
) -> None:
    settings = {"task": task, "method": AUTO, "guard": how}
    steps()
    always = quick(net, x, **settings, statistics=taken)
    steps(*said)
    found = quick(net, x, **settings)
    assert same(found.model, always.model)
    assert [one for one in found.notes if f"statistics of norm layers {note}" in one]
    kept = all(torch.equal(found.model.state_dict()[name], net.state_dict()[name]) for name in STATISTICS)
    assert kept == (taken == "source")


def risen(by: float, task: str) -> Signals:
    """Signals whose score is so much more than that of GOOD; read as those of the other task, so much less."""
    by = by if task == "singlelabel" else -by
    return GOOD._replace(information=0.5 + by, rank=6 * math.exp(-by))


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What is seen of the source, then at every look: scores over that of GOOD; `compare` is the real one."""

    def script(*rises: float | Signals, task: str = "singlelabel") -> None:
        looks = iter(one if isinstance(one, Signals) else risen(one, task) for one in (0.0, *rises))
        seen: dict[int, Signals] = {}
        plain = Look.at

        def at(*of: Any) -> Look:
            made = plain(*of)
            seen[id(made.p)] = next(looks)
            kept.append(made)  # or another might have its place
            return made

        kept: list[Look] = []
        monkeypatch.setattr(Look, "at", at)
        monkeypatch.setattr(guard, "read", lambda now, _: seen[id(now.p)])

    return script


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("rises", "share", "kept"),
    [
        # half-way, all the way, four epochs
        ((0.2, 0.3, 0.31, 0.34, 0.35, 0.2), 1.0, 3),  # epochs are held against all the way, not against the source
        ((0.2, 0.19, 0.23, 0.23, 0.23, 0.23), 1.0, 4),  # all the way is not clearly worse than half-way
        ((0.2, 0.1, 0.22, 0.24, 0.1, 0.1), 0.5, 2),  # all the way is better than the source, but worse than half-way
        ((0.2, 0.01, 0.21, 0.21, 0.21, 0.21), 0.5, 0),
        ((-0.11, 0.04, 0.01, 0.01, 0.01), 0.0, 1),  # statistics that do not help are not taken
        ((GOOD._replace(classes=8 * COLLAPSE - LITTLE, information=0.9, rank=9.0), 0.04, 0.01, 0.01, 0.01), 0.0, 1),
    ],
)
def test_each_step_is_held_against_the_right_one(
    rises: tuple[Any, ...], share: float, kept: int, task: str, net: Net, x: Tensor, quick: Quick, numbers: Say
) -> None:
    numbers(*rises, task=task)
    result = quick(net, x, task=task, method=AUTO, epochs=4)
    assert result.verdict.epoch == kept
    taken = {1.0: "were taken from", 0.5: "were taken half-way", 0.0: "stay the source's"}[share]
    assert [note for note in result.notes if f"statistics of norm layers {taken}" in note]
    given = rises[len(rises) - 4 :][kept - 1] if kept else {1.0: rises[1], 0.5: rises[0], 0.0: 0.0}[share]
    assert result.verdict.after["information"] == pytest.approx(risen(given, task).information)
    assert result.verdict.before["information"] == pytest.approx(GOOD.information)


@pytest.mark.parametrize("fell", [0.0, DOUBT - 0.01])
def test_in_doubt_a_run_begins_half_way(fell: float, net: Net, x: Tensor, quick: Quick, numbers: Say) -> None:
    settings = {"task": "multilabel", "method": AUTO, "epochs": 4}
    watcher = Watcher()
    quick(net, x, **settings, statistics="half", guard="watch", evaluator=watcher)
    numbers(-fell, -fell, 0.05, -fell, -fell + 0.01, task="multilabel")  # no look at statistics all the way
    doubtful = quick(net, x, **settings)
    assert [note for note in doubtful.notes if "half-way to the target's when training began, in doubt" in note]
    assert [epoch["health"] for epoch in doubtful.history].count("better") == 1
    assert (doubtful.verdict.epoch, doubtful.verdict.health) == (2, "better")
    assert equal(weights(doubtful.model), watcher.seen[2])
    assert moved(net, doubtful.model) >= {"bn.running_mean", "bn.running_var", "head.weight"}


@pytest.mark.parametrize(
    ("rises", "against"),
    [
        ((-0.09, -0.05, -0.03), "the source"),  # both epochs are better than what they began with
        ((-0.09, -0.05, -0.08), "statistics half-way to the target's, with which it began"),
    ],
)
def test_what_was_begun_in_doubt_ends_no_worse_than_the_source(
    rises: tuple[float, ...], against: str, net: Net, x: Tensor, quick: Quick, numbers: Say
) -> None:
    watcher = Watcher()
    numbers(*rises, task="multilabel")
    result = quick(net, x, task="multilabel", method=AUTO, epochs=2, evaluator=watcher)
    assert not torch.equal(watcher.seen[1]["bn.running_mean"], weights(net)["bn.running_mean"])
    assert "better" not in [epoch["health"] for epoch in result.history]
    assert same(result.model, net)
    assert (result.verdict.epoch, result.verdict.before) == (0, result.verdict.after)
    assert result.evaluation == {"number": 3.0}  # that of the source, looked at again
    assert equal(watcher.seen[3], weights(net))
    assert result.verdict.text.startswith(f"The result is the model as it was, since by epoch 2, against {against},")


@pytest.mark.parametrize(
    ("rises", "health"),
    [
        ((-0.09, -0.05, -0.01), "unclear"),  # better than what it began with, as good as the source
        ((0.015, -0.05, 0.03), "better"),  # better than the source, as good as what it began with
    ],
)
def test_what_was_begun_in_doubt_ends_with_the_better_of_both(
    rises: tuple[float, ...], health: str, net: Net, x: Tensor, quick: Quick, numbers: Say
) -> None:
    numbers(*rises, task="multilabel")
    result = quick(net, x, task="multilabel", method=AUTO, epochs=2)
    assert (result.verdict.epoch, result.verdict.health) == (2, health)
    assert [epoch["health"] for epoch in result.history] == ["worse", "better"]
    assert moved(net, result.model) >= {"bn.running_mean", "bn.running_var"}


def test_what_was_begun_in_doubt_may_fall_to_what_is_better(net: Net, x: Tensor, quick: Quick, numbers: Say) -> None:
    many = GOOD._replace(rank=5.8, classes=14.0)
    better = GOOD._replace(rank=6.3)  # of the beginning's 14 classes, its 8 would be a collapse
    numbers(many, better, better, better, many, task="multilabel")
    result = quick(net, x, task="multilabel", method=AUTO, epochs=4)
    assert [epoch["health"] for epoch in result.history] == ["better", "better", "better", "unclear"]
    assert (result.verdict.epoch, result.verdict.health) == (3, "better")
    begun = "against statistics half-way to the target's, with which it began, answers fit about as well"
    assert f"It is the result, since by epoch 4, {begun}" in result.verdict.text


@pytest.mark.parametrize(
    ("task", "how", "fell"),
    [("multilabel", "act", DOUBT + 0.01), ("multilabel", "watch", 0.05), ("singlelabel", "act", 0.01)],
)
def test_nothing_begins_in_doubt_without_a_way_back_or_where_each_item_has_one_class(
    task: str, how: str, fell: float, net: Net, x: Tensor, quick: Quick, numbers: Say
) -> None:
    numbers(-fell, 0.0, 0.0, task=task)
    watcher = Watcher()
    result = quick(net, x, task=task, method=AUTO, epochs=2, guard=how, evaluator=watcher)
    assert [note for note in result.notes if "stay the source's" in note]
    assert all(torch.equal(seen["bn.running_mean"], weights(net)["bn.running_mean"]) for seen in watcher.seen)


def test_an_epoch_that_is_left_behind_is_held_against_what_it_fell_below(
    net: Net, x: Tensor, quick: Quick, numbers: Say
) -> None:
    numbers(-0.2, -0.01, -0.05)  # statistics that were asked for by name; both epochs are better than these
    result = quick(net, x, task="singlelabel", method=replace(AUTO, statistics="half"), epochs=2)
    assert result.verdict.epoch == 1
    assert "It is the result, since by epoch 2, against the source, answers fit less well" in str(result)


def test_models_are_held_against_earlier_ones_as_those_see_them(
    net: Net, x: Tensor, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the source each model is better than the last; beside half-way statistics, all the way is worse; beside
    the model that training began with, only the second epoch is better."""
    looks: list[Tensor] = []  # in the order in which they were first seen: source, half, all the way, three epochs

    def seen(now: Look, reference: Look) -> Signals:
        for look in (reference, now):
            if not any(torch.equal(look.p, known) for known in looks):
                looks.append(look.p)
        number, before = (
            next(i for i, known in enumerate(looks) if torch.equal(one.p, known)) for one in (now, reference)
        )
        rise = 0.1 * number if before == 0 else {1: 0.0, 2: -0.1, 3: -0.1, 4: 0.1, 5: 0.0}[number]
        return GOOD._replace(information=0.5 + rise)

    monkeypatch.setattr(guard, "read", seen)
    result = quick(net, x, task="singlelabel", method=AUTO, epochs=3)
    assert [note for note in result.notes if "taken half-way" in note and "all the way, against that," in note]
    assert [epoch["signals"]["information"] for epoch in result.history] == pytest.approx([0.8, 0.9, 1.0])
    assert [epoch["since_start"]["information"] for epoch in result.history] == pytest.approx([0.4, 0.6, 0.5])
    assert [epoch["health"] for epoch in result.history] == ["worse", "better", "unclear"]
    assert result.verdict.epoch == 2
    assert result.verdict.after["information"] == pytest.approx(0.9)


def test_no_model_is_kept_that_is_worse_than_the_source(net: Net, x: Tensor, quick: Quick, numbers: Say) -> None:
    """Each step loses a few classes, none enough to be called harm by itself."""
    fewer = [GOOD._replace(information=0.7 + 0.1 * i, classes=8 * 0.8**i) for i in range(6)]
    numbers(*fewer)
    result = quick(net, x, task="singlelabel", method=AUTO, epochs=4)
    assert (result.verdict.epoch, result.verdict.health) == (1, "better")  # 0.8² is above COLLAPSE, 0.8³ is not
    assert [epoch["health"] for epoch in result.history] == ["better", "worse", "worse"]  # the last is a collapse


@pytest.mark.parametrize("statistics", ["half", "re-estimated"])
def test_a_run_that_began_with_other_statistics_says_so(
    statistics: str, net: Net, x: Tensor, quick: Quick, numbers: Say
) -> None:
    numbers(0.2, 0.1, 0.1)
    preset = replace(PRESET, statistics=statistics)
    result = quick(net, x, task="singlelabel", method=preset, epochs=2, guard="act")
    assert moved(net, result.model) == {"bn.running_mean", "bn.running_var"}
    whose = "statistics half-way to the target's" if statistics == "half" else "the target's statistics"
    assert f"signs that adaptation helped: with {whose}" in result.verdict.text
    assert result.verdict.after["information"] == pytest.approx(risen(0.2, "singlelabel").information)


def test_statistics_that_do_harm_by_themselves_are_not_recommended(
    net: Net, x: Tensor, quick: Quick, numbers: Say
) -> None:
    numbers(-0.2, -0.2, -0.2)
    preset = replace(PRESET, statistics="half")
    result = quick(net, x, task="singlelabel", method=preset, epochs=2, guard="act")
    assert result.verdict.health == "worse"
    assert result.verdict.text.endswith("Prefer the model as it was.")


def test_a_model_without_running_averages_is_the_source_until_an_epoch_is_kept(
    x: Tensor, quick: Quick, say: Say
) -> None:
    bare = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 3)).eval()
    say("worse")
    preset = replace(PRESET, statistics="half")
    result = quick(bare, x, task="singlelabel", method=preset, epochs=2, guard="act")
    assert same(result.model, bare)
    assert result.verdict.text.startswith("The result is the model as it was")


def test_a_collapse_is_held_against_the_beginning(net: Net, x: Tensor, quick: Quick, numbers: Say) -> None:
    many = GOOD._replace(information=0.9, classes=14.0)
    few = many._replace(information=1.2, classes=7.0)  # of the source's 8, that would be nothing
    numbers(many, many, few, few)
    result = quick(net, x, task="singlelabel", method=AUTO, epochs=4)
    assert len(result.history) == 1
    assert result.verdict.epoch == 0


def test_a_large_set_is_judged_by_a_sample(net: Net, quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(guard, "read", lambda now, before: seen.append(len(now.p)) or read(now, before))
    data = torch.randn(SAMPLE + 100, 8, generator=torch.Generator().manual_seed(0))
    quick(net, data, task="singlelabel", method="tent", epochs=1, batch_size=512)
    assert set(seen) == {SAMPLE}


def test_taken_statistics_stay_where_no_epoch_is_healthy(net: Net, x: Tensor, quick: Quick, say: Say) -> None:
    say("better", "worse")
    watcher = Watcher()
    result = quick(net, x, task="singlelabel", method=AUTO, epochs=2, evaluator=watcher)
    assert {name for name, t in weights(net).items() if not torch.equal(t, weights(result.model)[name])} <= STATISTICS
    assert torch.equal(weights(result.model)["bn.running_mean"], watcher.seen[1]["bn.running_mean"])
    assert not torch.equal(weights(result.model)["bn.running_mean"], weights(net)["bn.running_mean"])
    assert result.verdict.epoch == 0
    assert equal(watcher.seen[-1], weights(result.model))


def test_auto_has_nothing_to_try_without_running_averages(x: Tensor, quick: Quick) -> None:
    bare = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 3)).eval()
    result = quick(bare, x, task="singlelabel", method=AUTO)
    assert not [note for note in result.notes if "statistics" in note]


def test_a_run_that_an_older_notela_began_is_not_gone_on_with(
    net: Net, x: Tensor, quick: Quick, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        quick(net, x, task="singlelabel", method=PRESET, epochs=4, run_dir=tmp_path, evaluator=cut_in(2))
    older = Guard.judge

    def judge(self: Guard) -> dict[str, Any]:
        self._state.banks["looks"] = self._state.banks["looks"][:2, :6]
        return older(self)

    monkeypatch.setattr(Guard, "judge", judge)
    with pytest.raises(notela.NotelaError, match="begun by an older notela"):
        quick(net, x, task="singlelabel", method=PRESET, epochs=4, run_dir=tmp_path)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_items_are_judged_too(n: int, net: Net, x: Tensor, quick: Quick) -> None:
    result = quick(net, x[:n], task="singlelabel", method=PRESET, guard="act")
    assert all(map(math.isfinite, result.history[-1]["signals"].values()))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_is_judged_too(precision: str, net: Net, x: Tensor, quick: Quick) -> None:
    result = quick(net, x, task="multilabel", method=PRESET, guard="act", precision=precision)
    assert all(map(math.isfinite, result.history[-1]["signals"].values()))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("preset", [replace(PRESET, statistics="target", guard="act"), AUTO])
@pytest.mark.parametrize("cut", [2, 3, 4])
def test_a_guarded_run_goes_on_as_if_it_had_not_been_cut_off(
    task: str, preset: Preset, cut: int, net: Net, x: Tensor, quick: Quick, say: Say, tmp_path: Path
) -> None:
    """The kept epoch, the second, comes before the cut, is lost in it, or comes after."""
    say("better", "worse", "better", "worse", "worse")
    whole = quick(net, x, task=task, method=preset, epochs=4)
    with pytest.raises(KeyboardInterrupt):
        quick(net, x, task=task, method=preset, epochs=4, run_dir=tmp_path, evaluator=cut_in(cut))
    resumed = quick(net, x, task=task, method=preset, epochs=4, run_dir=tmp_path)
    assert same(whole.model, resumed.model)
    assert whole.verdict == resumed.verdict
    assert whole.verdict.epoch == 2
    assert whole.notes == resumed.notes
    for before, after in zip(whole.history, resumed.history, strict=True):
        assert all(before.get(name) == after.get(name) for name in ("signals", "since_start", "health"))
    assert ("since_start" in whole.history[0]) == (preset.statistics == "auto")


@pytest.mark.parametrize("kept", [0, 1, 2, 4])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_run_that_began_in_doubt_goes_on_as_if_it_had_not_been_cut_off(
    kept: int, cut: int, net: Net, x: Tensor, quick: Quick, say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    say(*["better" if epoch == kept and epoch else "unclear" for epoch in range(5)])
    monkeypatch.setattr(guard, "in_doubt", lambda *_: True)
    whole = quick(net, x, task="multilabel", method=AUTO, epochs=4)
    with pytest.raises(KeyboardInterrupt):
        quick(net, x, task="multilabel", method=AUTO, epochs=4, run_dir=tmp_path, evaluator=cut_in(cut))
    resumed = quick(net, x, task="multilabel", method=AUTO, epochs=4, run_dir=tmp_path)
    assert same(whole.model, resumed.model)
    assert same(whole.model, net) == (kept == 0)
    assert (whole.verdict, whole.notes) == (resumed.verdict, resumed.notes)
    assert whole.verdict.epoch == kept
    for before, after in zip(whole.history, resumed.history, strict=True):
        assert all(before[name] == after[name] for name in ("signals", "since_start", "health"))


@pytest.mark.parametrize("task", TASKS)
def test_an_automatic_run_goes_on_as_if_it_had_not_been_cut_off(
    task: str, net: Net, x: Tensor, quick: Quick, tmp_path: Path
) -> None:
    whole = quick(net, x, task=task, method="auto", epochs=4)
    with pytest.raises(KeyboardInterrupt):
        quick(net, x, task=task, method="auto", epochs=4, run_dir=tmp_path, evaluator=cut_in(2))
    resumed = quick(net, x, task=task, method="auto", epochs=4, run_dir=tmp_path)
    assert same(whole.model, resumed.model)
    assert (whole.verdict, whole.notes) == (resumed.verdict, resumed.notes)


def test_a_finished_run_has_the_same_verdict_and_evaluation(
    net: Net, x: Tensor, quick: Quick, say: Say, tmp_path: Path
) -> None:
    say("better", "worse", "better", "worse", "worse")
    labels = torch.arange(70) % CLASSES
    whole = {"task": "singlelabel", "method": AUTO, "epochs": 4}
    whole["evaluator"] = notela.Evaluator(x, labels, task="singlelabel")
    first, again = (quick(net, x, **whole, run_dir=tmp_path / "run") for _ in range(2))
    assert same(first.model, again.model)
    assert (first.verdict, first.evaluation, first.notes) == (again.verdict, again.evaluation, again.notes)
    assert str(first) == str(again)
    notela.save(first, tmp_path / "saved")
    for folder in ("run", "saved"):
        origin = notela.provenance(tmp_path / folder)
        assert origin["verdict"] == asdict(first.verdict)
        assert origin["evaluation"] == first.evaluation
        assert same(notela.load(tmp_path / folder, net), first.model)


@pytest.mark.parametrize("task", TASKS)
def test_labels_in_the_data_change_neither_verdict_nor_result(task: str, net: Net, x: Tensor, quick: Quick) -> None:
    labels = (torch.arange(70) * times % CLASSES for times in (1, 3))
    datasets = (TensorDataset(x), *(TensorDataset(x, y) for y in labels))
    results = [quick(net, data, task=task, method="auto") for data in datasets]
    for other in results[1:]:
        assert same(results[0].model, other.model)
        assert results[0].verdict == other.verdict
        assert results[0].history == other.history


@pytest.mark.parametrize("setting", [{"guard": "ward"}, {"guard": None}])
def test_an_unknown_guard_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(notela.NotelaError, match="guard"):
        Preset(TENT(), **setting)


# ---- on real digits


def on_digits(reference: str, name: str, **settings: Any) -> notela.Result:
    loaded = Loaded(find(reference))
    domain = loaded.domain(name)[0]
    return notela.adapt(
        loaded.model,
        domain.adapt,
        task="singlelabel",
        batch_size=16,
        device="cpu",
        progress=False,
        evaluator=loaded.suite.evaluator(domain),
        **settings,
    )


@pytest.mark.parametrize(
    ("reference", "name", "note"),
    [
        ("digits?mix=skewed", "noise", "stay the source's"),
        ("digits", "contrast", "were taken"),
    ],
)
def test_statistics_are_taken_where_the_mix_of_classes_stays(reference: str, name: str, note: str) -> None:
    result = on_digits(reference, name, method="auto", epochs=1)
    assert [n for n in result.notes if f"statistics of norm layers {note}" in n]


def test_entropy_minimisation_that_does_harm_is_told() -> None:
    preset = methods.preset("tent", "audio-singlelabel")
    watched = on_digits("digits", "noise", method=preset)
    assert watched.source is not None
    assert watched.evaluation is not None
    assert watched.verdict.health == "worse"
    assert watched.evaluation["accuracy"] < watched.source["accuracy"]
    guarded = on_digits("digits", "noise", method=preset, guard="act")
    assert guarded.evaluation is not None
    assert guarded.evaluation["accuracy"] > watched.evaluation["accuracy"]


def test_an_evaluator_that_comes_late_still_scores_the_result(
    net: Net, x: Tensor, quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without evaluator that is cut between its last checkpoint and its end, and resumed with one."""
    from notela.runs import RunFolder

    def cut(self: RunFolder, result: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", cut)
        with pytest.raises(KeyboardInterrupt):
            quick(net, x, task="singlelabel", method=PRESET, run_dir=tmp_path)
    result = quick(net, x, task="singlelabel", method=PRESET, run_dir=tmp_path, evaluator=lambda _: {"score": 0.5})
    assert result.evaluation == {"score": 0.5}
