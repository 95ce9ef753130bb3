"""Teachers that follow slowly, weights on an anchor, statistics of the whole target: policies of the loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import notela
from conftest import TASKS, Net, moved, same, weights
from notela import methods
from notela.methods import NOTELA, Batch, DropoutStudent, Method, Preset

Quick = Callable[..., notela.Result]
HEAD = {"head.weight", "head.bias"}
NORM = {"bn.weight", "bn.bias", "ln.weight", "ln.bias"}


@dataclass(frozen=True)
class Spy(Method):
    """Entropy minimisation that remembers each step's student, and what the teacher said of one fixed input."""

    name = "spy"
    probe: ClassVar[Tensor]
    students: ClassVar[list[dict[str, Tensor]]]
    said: ClassVar[list[Tensor]]

    def loss(self, batch: Batch, state: Any) -> Tensor:
        self.students.append(weights(state.classifier.model))
        self.said.append(state.teacher(self.probe).logits)
        assert same_weights(weights(state.classifier.model), self.students[-1]), "the student's weights are back"
        return notela.task.entropy(state.student(batch.x).logits, state.task).mean()


def same_weights(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def policy(method: Method, **policies: Any) -> Preset:
    return Preset(method, learning_rate=1e-2, epochs=2, batch_size=16, **policies)


def answers(net: nn.Module, state: dict[str, Tensor], x: Tensor) -> Tensor:
    copied = copy.deepcopy(net)
    copied.load_state_dict(state)
    with torch.no_grad():
        return copied.eval()(x)


@pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
def test_the_teacher_is_an_exponential_average_of_the_students(
    momentum: float, net: Net, x: Tensor, quick: Quick
) -> None:
    Spy.probe, Spy.students, Spy.said = x[:7], [], []
    quick(net, x, task="singlelabel", method=policy(Spy(), trainable="all", teacher_momentum=momentum))
    mean = Spy.students[0]
    for student, said in zip(Spy.students, Spy.said, strict=True):
        mean = {
            name: momentum * mean[name] + (1 - momentum) * now if now.is_floating_point() else now
            for name, now in student.items()
        }
        torch.testing.assert_close(said, answers(net, mean, x[:7]), rtol=1e-4, atol=1e-5)
    assert torch.allclose(Spy.said[0], Spy.said[-1]) == (momentum == 1)


def test_slow_is_one_step_in_all_steps_of_the_run(net: Net, x: Tensor, quick: Quick) -> None:
    steps = 2 * 5  # 70 rows in batches of 16, the last two of 6 alone
    by_name, by_number = (
        quick(net, x, task="multilabel", method=policy(DropoutStudent(0.3), teacher_momentum=momentum))
        for momentum in ("slow", 1 - 1 / steps)
    )
    assert same(by_name.model, by_number.model)
    current = quick(net, x, task="multilabel", method=policy(DropoutStudent(0.3)))
    assert not same(by_name.model, current.model)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_an_anchor_pulls_every_step_back_to_the_source(share: float, net: Net, x: Tensor, quick: Quick) -> None:
    one_step = {"task": "singlelabel", "epochs": 1, "batch_size": 70}
    free, held = (
        weights(quick(net, x, method=policy(methods.TENT(), noise=False, anchor=anchor), **one_step).model)
        for anchor in (0.0, share)
    )
    for name, start in net.named_parameters():
        torch.testing.assert_close(held[name], start + (1 - share) * (free[name] - start))
    held_long = quick(net, x, task="singlelabel", method=policy(methods.TENT(), anchor=1.0), epochs=5)
    assert same(held_long.model, net)


def test_norm_and_head_move_and_nothing_else(net: Net, x: Tensor, quick: Quick) -> None:
    result = quick(net, x, task="singlelabel", method=policy(methods.TENT(), trainable="norm+head"))
    assert moved(net, result.model) == NORM | HEAD
    bare = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    result = quick(bare, x, task="singlelabel", method=policy(methods.TENT(), trainable="norm+head"))
    assert moved(bare, result.model) == {"2.weight", "2.bias"}


def test_statistics_are_taken_once_over_the_whole_target_and_frozen(x: Tensor, quick: Quick) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 3)).eval()
    hidden = model[0](x).detach()
    for epochs in (1, 3):
        result = quick(
            model, x, task="singlelabel", method=policy(methods.TENT(), statistics="re-estimated"), epochs=epochs
        )
        torch.testing.assert_close(result.model[1].running_mean, hidden.mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(result.model[1].running_var, hidden.var(0, correction=0), rtol=1e-4, atol=1e-5)


def test_statistics_that_there_are_none_of_are_told(x: Tensor, quick: Quick) -> None:
    bare = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 3)).eval()
    result = quick(bare, x, task="singlelabel", method=policy(methods.TENT(), statistics="re-estimated"))
    assert "statistics='re-estimated' has no effect: the model keeps no running averages" in result.notes


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("refresh", ["epoch", "iteration"])
def test_resume_equals_uninterrupted_with_teacher_anchor_and_statistics(
    task: str, refresh: str, net: Net, x: Tensor, quick: Quick, tmp_path: Path
) -> None:
    preset = replace(
        methods.preset("notela", "centred"),
        method=NOTELA(1.0, refresh, k=5, lambda_=2.0, metric="cosine", message="standardised"),
        anchor=0.05,
        epochs=4,
    )
    whole = quick(net, x, task=task, method=preset, epochs=4)

    def cut(predict: object, calls: list[int] = []) -> dict[str, float]:  # noqa: B006
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return {}

    with pytest.raises(KeyboardInterrupt):
        quick(net, x, task=task, method=preset, epochs=4, run_dir=tmp_path, evaluator=cut)
    resumed = quick(net, x, task=task, method=preset, epochs=4, run_dir=tmp_path)
    assert same(whole.model, resumed.model)
    assert [r["loss"] for r in whole.history] == [r["loss"] for r in resumed.history]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"teacher_momentum": 1.1}, "teacher_momentum=1.1 must be a number from 0 to 1"),
        ({"teacher_momentum": "fast"}, "teacher_momentum='fast' must be"),
        ({"anchor": -0.1}, "anchor=-0.1 must be a number from 0 to 1"),
        ({"statistics": "exact"}, "'exact' is not one of 'source', 'target', 're-estimated'"),
        ({"statistics": "re-estimated", "batch_size": 1}, "a batch of one has no variance"),
    ],
)
def test_impossible_policies_are_refused_by_name(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(notela.NotelaError, match=sentence):
        Preset(methods.TENT(), **setting)
