"""What a method gets from the run: which mode each pass runs in, and what the history's numbers mean."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import notela
from conftest import TASKS, Net, weights
from notela.classifier import Classifier
from notela.data import Unlabelled
from notela.methods import TENT, Preset
from notela.state import State

Quick = Callable[..., notela.Result]


def make(net: Net, x: Tensor, **policies: object) -> State:
    preset = Preset(TENT(), **{"batch_size": 70, "noise": True, **policies})
    return State(Classifier(net, x[:2]), Unlabelled(x, batch_size=70), "singlelabel", preset)


def self_normalised(net: Net, x: Tensor) -> Tensor:
    """The clean answer when batch norm uses the batch's own statistics."""
    twin = Net().eval()
    twin.load_state_dict(net.state_dict())
    twin.bn.train()
    with torch.no_grad():
        return twin(x)


@pytest.mark.parametrize("statistics", ["source", "target"])
def test_teacher_and_clean_sweep_are_clean_and_leave_no_trace(statistics: str, net: Net, x: Tensor) -> None:
    state = make(net, x, statistics=statistics)
    before = weights(state.classifier.model)
    expected = net(x) if statistics == "source" else self_normalised(net, x)
    for output in (state.teacher(x), state.sweep()):
        torch.testing.assert_close(output.logits, expected.detach())
        assert not output.logits.requires_grad
    assert not torch.equal(state.sweep(noise=True).logits, expected), "noisy passes are noisy"
    assert all(torch.equal(before[name], now) for name, now in weights(state.classifier.model).items())


@pytest.mark.parametrize("statistics", ["source", "target"])
@pytest.mark.parametrize("noise", [True, False])
def test_student_is_noisy_and_records_statistics_as_told(noise: bool, statistics: str, net: Net, x: Tensor) -> None:
    state = make(net, x, statistics=statistics, noise=noise)
    output = state.student(x).logits
    expected = net(x) if statistics == "source" else self_normalised(net, x)
    assert torch.allclose(output, expected, atol=1e-5) is not noise
    assert output.requires_grad
    recorded = not torch.equal(state.classifier.model.bn.running_mean, net.bn.running_mean)
    assert recorded is (statistics == "target")


def test_sweep_orders_differ_between_seeds_and_epochs(net: Net, x: Tensor) -> None:
    """Batches that normalise themselves show the order in their answers."""

    def answers(seed: int, epoch: int) -> Tensor:
        state = make(net, x, statistics="target", batch_size=16)
        state.data, state.seed, state.epoch = Unlabelled(x, batch_size=16), seed, epoch
        return state.sweep().logits

    assert torch.equal(answers(0, 1), answers(0, 1))
    assert not torch.equal(answers(0, 1), answers(1, 1))
    assert not torch.equal(answers(0, 1), answers(0, 2))


@pytest.mark.parametrize("task", TASKS)
def test_changed_is_the_share_of_labels_that_differ_from_the_epoch_before(task: str, net: Net, x: Tensor) -> None:
    state = make(net, x[:4])
    state.task = state.meters.task = task  # type: ignore[assignment]
    one_hot = torch.eye(5)
    rounds = [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 4]]
    shares = []
    for state.epoch, classes in enumerate(rounds, 1):
        state.meters.clear()
        state.meters.see(torch.zeros(4, 5))
        for rows in (torch.tensor([0, 2]), torch.tensor([1, 3])):
            state.record_labels(rows, one_hot[classes][rows])
        shares.append(state.meters.summary()["changed"])
    assert shares == [None, pytest.approx(1 / 4 if task == "singlelabel" else 2 / 20), 0.0]


@pytest.mark.parametrize("task", TASKS)
def test_history_numbers_are_those_of_the_predictions(
    task: notela.task.Task, net: Net, x: Tensor, quick: Quick
) -> None:
    """With a rate of 0 nothing moves, so every number can be computed from the source model."""
    with torch.no_grad():
        net.head.weight *= 8  # confident enough that positives are neither none nor all
    policy = Preset(TENT(), learning_rate=0.0, schedule="cosine", noise=False)
    record = quick(net, x, task=task, method=policy).history[-1]
    z = net(x).detach()
    p = notela.task.probabilities(z, task)
    rows = torch.distributions.Categorical(probs=p) if task == "singlelabel" else torch.distributions.Bernoulli(probs=p)
    mean = p.mean(0)
    whole = (
        torch.distributions.Categorical(probs=mean)
        if task == "singlelabel"
        else torch.distributions.Bernoulli(probs=mean)
    )
    assert record["confidence"] == pytest.approx(p.amax(1).mean().item(), rel=1e-4)
    assert record["entropy"] == pytest.approx(rows.entropy().mean().item(), rel=1e-3)
    assert record["loss"] == pytest.approx(record["entropy"], rel=1e-4)  # weighted by rows: the last batch is short
    assert record["marginal_entropy"] == pytest.approx(whole.entropy().mean().item(), rel=1e-4)
    assert record["positives"] == pytest.approx((p > 0.5).sum(1).float().mean().item(), rel=1e-4)
    assert 0 < record["positives"] < 5


def test_recorded_rate_is_that_of_the_epochs_last_step(net: Net, x: Tensor, quick: Quick) -> None:
    policy = Preset(TENT(), learning_rate=0.2, schedule="cosine")
    rates = [record["learning_rate"] for record in quick(net, x, task="singlelabel", method=policy).history]
    last_steps = torch.tensor([4.0, 9.0])  # five batches an epoch, ten steps in all
    assert rates == pytest.approx((0.1 * (1 + torch.cos(torch.pi * last_steps / 10))).tolist())


def test_autocast_computes_in_the_lower_precision(net: Net, x: Tensor) -> None:
    state = make(net, x)
    exact = state.teacher(x).logits
    state.precision = "bf16"
    coarse = state.teacher(x).logits
    assert coarse.dtype == torch.float32
    assert not torch.equal(coarse, exact)
    torch.testing.assert_close(coarse, exact, rtol=0.1, atol=0.1)


def test_a_look_at_the_deployed_model_leaves_no_trace_and_drops_the_same_units_each_time(net: Net, x: Tensor) -> None:
    state = make(net, x, statistics="target")
    before, dice = weights(state.classifier.model), torch.get_rng_state()
    rows = torch.arange(0, len(x), 2)
    (quiet, noisy), (_, again) = state.deployed(rows), state.deployed(rows)
    torch.testing.assert_close(quiet.logits, net(x[rows]).detach())
    assert not torch.allclose(noisy, quiet.logits)
    assert torch.equal(noisy, again)
    assert torch.equal(torch.get_rng_state(), dice)
    assert all(torch.equal(before[name], now) for name, now in weights(state.classifier.model).items())


class Counting(nn.Module):
    """Not dropout, but not idle in training mode either: it remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        return self.head(x)


def test_a_look_with_dropout_turns_on_dropout_alone(x: Tensor) -> None:
    model = nn.Sequential(Counting()).eval()
    state = make(model, x)  # type: ignore[arg-type]
    quiet, noisy = state.deployed(torch.arange(20))
    assert torch.equal(quiet.logits, noisy), "it has no dropout"
    state.classifier.add_dropout(0.5)
    quiet, noisy = state.deployed(torch.arange(20))
    assert not torch.allclose(quiet.logits, noisy)
    assert state.classifier.model[0].passes == 0
    torch.testing.assert_close(state.teacher(x[:20]).logits, quiet.logits)


class DropPathBlock(nn.Module):
    """Like dropout by its name and rate, with a norm layer inside."""

    def __init__(self) -> None:
        super().__init__()
        self.drop_prob = 0.5
        self.bn = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(x) * (torch.rand(len(x), 1) > self.drop_prob if self.training else 1)


def test_a_look_with_dropout_leaves_norm_layers_inside_it_alone(x: Tensor) -> None:
    state = make(nn.Sequential(DropPathBlock(), nn.Linear(8, 3)).eval(), x)  # type: ignore[arg-type]
    before = weights(state.classifier.model)
    quiet, noisy = state.deployed(torch.arange(20))
    assert not torch.allclose(quiet.logits, noisy)
    assert all(torch.equal(before[name], now) for name, now in weights(state.classifier.model).items())
    torch.testing.assert_close(state.classifier(x[:20]).logits, quiet.logits)  # dropout is off again
