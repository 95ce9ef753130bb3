"""The methods that are not the paper's against slow, literal doubles; LAME also where its predictions are seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_doubles import Probe, double_teacher, softmax
from torch import Tensor, nn

import notela
from conftest import TASKS, Net, same
from notela import methods
from notela.classifier import Classifier, Output
from notela.evaluation import Predict
from notela.graph import symmetric_affinity
from notela.methods import ETA, LAME, RPL, AaD, Batch
from notela.methods import eta as eta_module
from notela.methods.aad import aad_loss
from notela.methods.eta import row_weights
from notela.methods.notela import teacher_step
from notela.methods.rpl import generalised_cross_entropy
from notela.task import Task, cross_entropy, entropy, hard, probabilities, votes

Quick = Callable[..., notela.Result]


def probe(method: methods.Method, task: Task, x: Tensor, weight: Tensor, step: int = 0) -> Probe:
    """A probe in a run of 3 epochs of 4 steps."""
    state = Probe(method, task, x, weight)
    state.preset.epochs = 3
    state.data = SimpleNamespace(steps=lambda: 4)  # type: ignore[attr-defined]
    state.step = step  # type: ignore[attr-defined]
    return state


def double_probabilities(z: np.ndarray, task: str) -> np.ndarray:
    return np.array([softmax(row) for row in z]) if task == "singlelabel" else 1 / (1 + np.exp(-z))


def dot(a: np.ndarray, b: np.ndarray, task: str) -> float:
    """⟨a,b⟩, in the multi-label task class by class of [1 - a, a] and [1 - b, b]."""
    if task == "singlelabel":
        return sum(float(s * t) for s, t in zip(a, b, strict=True))
    return sum(float(s * t + (1 - s) * (1 - t)) for s, t in zip(a, b, strict=True)) / len(a)


# ---- RPL


@pytest.mark.parametrize("q", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("task", TASKS)
def test_rpl_is_the_generalised_cross_entropy_of_the_teachers_label(task: Task, q: float) -> None:
    torch.manual_seed(0)
    x, weight, teacher = torch.randn(12, 5).double(), torch.randn(5, 4).double(), torch.randn(5, 4).double()
    state = probe(RPL(q), task, x, weight)
    state.teacher = probe(RPL(q), task, x, teacher).teacher  # type: ignore[method-assign]
    got = RPL(q).loss(Batch(torch.arange(12), x), state)  # type: ignore[arg-type]
    p, taught = (double_probabilities((x @ w).numpy(), task) for w in (weight, teacher))
    costs = []
    for i in range(12):
        if task == "singlelabel":
            chosen = [p[i, int(np.argmax(taught[i]))]]
        else:
            chosen = [p[i, c] if taught[i, c] > 0.5 else 1 - p[i, c] for c in range(4)]
        costs.append(np.mean([-np.log(one) if q == 0 else (1 - one**q) / q for one in chosen]))
    assert got.item() == pytest.approx(np.mean(costs))


@pytest.mark.parametrize("task", TASKS)
def test_rpl_lies_between_cross_entropy_and_absolute_error(task: Task) -> None:
    torch.manual_seed(1)
    z = torch.randn(9, 4, dtype=torch.float64)
    labels = hard(probabilities(torch.randn(9, 4), task), task)
    as_numbers = nn.functional.one_hot(labels, 4) if task == "singlelabel" else labels
    limit = cross_entropy(z, as_numbers.double(), task).mean()
    torch.testing.assert_close(generalised_cross_entropy(z, labels, task, 0), limit)
    torch.testing.assert_close(generalised_cross_entropy(z, labels, task, 1e-9), limit, rtol=1e-6, atol=0)
    p = probabilities(z, task)
    wrong = 1 - p.gather(1, labels[:, None]) if task == "singlelabel" else (p - labels.double()).abs()
    torch.testing.assert_close(generalised_cross_entropy(z, labels, task, 1.0), wrong.mean())


@pytest.mark.parametrize("task", TASKS)
def test_rpl_is_finite_at_any_logit(task: Task) -> None:
    z = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 3.0]], requires_grad=True)
    labels = torch.tensor([1, 1]) if task == "singlelabel" else torch.tensor([[False, True, True]] * 2)
    for q in (0.0, 1e-6, 0.8, 1.0):
        loss = generalised_cross_entropy(z, labels, task, q)
        (gradient,) = torch.autograd.grad(loss, z)
        assert loss.isfinite()
        assert gradient.isfinite().all()


# ---- AaD


@pytest.mark.parametrize("step", [0, 7])
@pytest.mark.parametrize("task", TASKS)
def test_aad_against_brute_force(task: Task, step: int) -> None:
    torch.manual_seed(2)
    x, weight = torch.randn(20, 4, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    method = AaD(k=4, beta=2.0)
    state = probe(method, task, x, weight, step)
    method.before_run(state)  # type: ignore[arg-type]
    moved = x.clone()
    moved[:6] += 0.5  # the batch has moved since the banks were made: its rows are refreshed before the search
    got = method.loss(Batch(torch.arange(6), moved[:6]), state)  # type: ignore[arg-type]

    f, p = moved.numpy(), double_probabilities((moved @ weight).numpy(), task)
    falling = (1 + 10 * step / 12) ** -2.0
    total = 0.0
    for i in range(6):
        cosine = [
            -np.inf if j == i else f[i] @ f[j] / np.linalg.norm(f[i]) / np.linalg.norm(f[j]) for j in range(len(f))
        ]
        total -= sum(dot(p[i], p[j], task) for j in np.argsort(cosine)[::-1][:4])
        total += falling * sum(dot(p[i], p[j], task) for j in range(6) if j != i)
    assert got.item() == pytest.approx(total / 6)
    torch.testing.assert_close(state.banks["features"], nn.functional.normalize(moved))
    torch.testing.assert_close(state.banks["probabilities"], probabilities(moved @ weight, task))


def test_aad_stops_dispersing_as_beta_says() -> None:
    torch.manual_seed(3)
    x, weight = torch.randn(10, 4), torch.randn(4, 3)
    batch = Batch(torch.arange(5), x[:5])

    def loss(beta: float, step: int) -> float:
        method = AaD(k=2, beta=beta)
        state = probe(method, "singlelabel", x, weight, step)
        method.before_run(state)  # type: ignore[arg-type]
        return float(method.loss(batch, state))  # type: ignore[arg-type]

    assert loss(0.0, 0) == loss(0.0, 11) == loss(5.0, 0)
    assert loss(5.0, 11) < loss(5.0, 5) < loss(5.0, 0)


@pytest.mark.parametrize("task", TASKS)
def test_aad_has_no_others_in_a_batch_of_one(task: Task) -> None:
    z, near = torch.randn(1, 3), probabilities(torch.randn(1, 2, 3), task)
    assert aad_loss(z, near, 1.0, task) == aad_loss(z, near, 0.0, task)


# ---- ETA


@pytest.mark.parametrize("task", TASKS)
def test_eta_over_several_batches_against_a_double(task: Task) -> None:
    torch.manual_seed(4)
    x, weight = torch.randn(60, 5, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    method = ETA(margin=0.6, redundancy=0.7)
    state = probe(method, task, x, weight)
    limit = 0.6 * math.log(4 if task == "singlelabel" else 2)
    mean, shares = None, []
    for rows in torch.arange(60).split(15):
        got = method.loss(Batch(rows, x[rows]), state)  # type: ignore[arg-type]
        kept, costs = [], []
        for p in double_probabilities((x[rows] @ weight).numpy(), task):
            if task == "singlelabel":
                h = -sum(c * math.log(c) for c in p)
            else:
                h = -sum(c * math.log(c) + (1 - c) * math.log(1 - c) for c in p) / len(p)
            seen = mean is not None and abs(p @ mean) / np.linalg.norm(p) / np.linalg.norm(mean) >= 0.7
            if h < limit and not seen:
                kept.append(p)
                costs.append(math.exp(limit - h) * h)
        assert got.item() == pytest.approx(np.mean(costs))
        assert state.seen["kept"].sum() == len(kept)
        shares.append(len(kept) / len(rows))
        now = np.mean(kept, 0)
        mean = now if mean is None else 0.9 * mean + 0.1 * now
        np.testing.assert_allclose(state.banks["mean"], mean)
    assert 0 < min(shares) < max(shares) < 1
    for filters in (ETA(margin=0.6, redundancy=9.0), ETA(margin=9.0, redundancy=0.7)):  # each has its part in it
        more = row_weights(x @ weight, state.banks["mean"], task, filters.margin, filters.redundancy) > 0
        both = row_weights(x @ weight, state.banks["mean"], task, 0.6, 0.7) > 0
        assert both.sum() < more.sum()
        assert not (both & ~more).any()


@pytest.mark.parametrize("task", TASKS)
def test_eta_on_a_batch_of_which_nothing_is_kept(task: Task) -> None:
    x, weight = torch.randn(6, 5), torch.zeros(5, 3, requires_grad=True)
    state = probe(ETA(), task, x, weight)
    loss = ETA().loss(Batch(torch.arange(6), x), state)  # type: ignore[arg-type]
    assert loss == 0
    (gradient,) = torch.autograd.grad(loss, weight)
    assert (gradient == 0).all()
    assert "mean" not in state.banks
    assert state.seen["kept"].sum() == 0


@pytest.mark.parametrize("task", TASKS)
def test_eta_with_even_weights_is_tent(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(8, 5), torch.randn(5, 3)
    monkeypatch.setattr(eta_module, "row_weights", lambda logits, *_: torch.ones(len(logits)))
    state = probe(ETA(), task, x, weight)
    loss = ETA().loss(Batch(torch.arange(8), x), state)  # type: ignore[arg-type]
    torch.testing.assert_close(loss, entropy(x @ weight, task).mean())


# ---- gradients


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", [RPL(0.8), RPL(0.0), RPL(1.0), AaD(k=3), ETA(margin=0.9, redundancy=0.9)])
def test_losses_by_finite_differences(method: methods.Method, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels, banks and weights are constants of the step, so they are made once, at the point of differentiation."""
    torch.manual_seed(0)
    x, weight = torch.randn(12, 5, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    start = weight.detach().clone()  # gradcheck moves `weight` in place
    state = probe(method, task, x, start, step=2)
    state.teacher = probe(method, task, x, start.clone()).teacher  # type: ignore[method-assign]
    if isinstance(method, ETA):
        constant = row_weights(x[:8] @ start, None, task, method.margin, method.redundancy)
        assert (constant > 0).any()
        monkeypatch.setattr(eta_module, "row_weights", lambda *_: constant)
    method.before_run(state)  # type: ignore[arg-type]
    batch = Batch(torch.arange(8), x[:8])

    def loss(w: Tensor) -> Tensor:
        state.weight = w
        value = method.loss(batch, state)  # type: ignore[arg-type]
        assert value is not None
        return value

    assert torch.autograd.gradcheck(loss, (weight,))


# ---- LAME


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("task", TASKS)
def test_lame_is_the_unrolled_teacher_step_with_its_own_graph(task: Task, iterations: int) -> None:
    torch.manual_seed(5)
    z, f = torch.randn(25, 4, dtype=torch.float64), torch.randn(25, 3, dtype=torch.float64)
    got = probabilities(LAME(k=3, lambda_=0.7, iterations=iterations, tolerance=0.0).correct(Output(f, z), task), task)
    w = symmetric_affinity(f, 3, "cosine")
    torch.testing.assert_close(got, teacher_step(z, w, task, 1.0, 0.7, iterations, 0.0))
    np.testing.assert_allclose(got, double_teacher(z.numpy(), w.to_dense().numpy(), task, 1.0, 0.7, iterations))


@pytest.mark.parametrize("task", TASKS)
def test_lame_ends_where_another_step_changes_nothing(task: Task) -> None:
    torch.manual_seed(6)
    z, f = torch.randn(40, 4, dtype=torch.float64), torch.randn(40, 3, dtype=torch.float64)
    y = probabilities(LAME(k=3, lambda_=0.3, tolerance=1e-12).correct(Output(f, z), task), task)
    w = symmetric_affinity(f, 3, "cosine")
    torch.testing.assert_close(probabilities(z + 0.3 * (w @ votes(y, task)), task), y, rtol=0, atol=1e-10)
    assert (y - probabilities(z, task)).abs().max() > 0.05


@pytest.mark.parametrize("task", TASKS)
def test_lame_makes_doubtful_rows_follow_their_neighbours(task: Task) -> None:
    f = torch.eye(2).repeat_interleave(6, 0) + 0.01 * torch.randn(12, 2, generator=torch.Generator().manual_seed(7))
    z = torch.tensor([[3.0, -3.0]] * 6 + [[-3.0, 3.0]] * 6)
    z[0], z[6] = torch.tensor([-0.1, 0.1]), torch.tensor([0.1, -0.1])
    corrected = LAME(k=3).correct(Output(f, z), task)
    assert corrected.argmax(1).tolist() == [0] * 6 + [1] * 6


def test_lame_without_neighbours_or_without_weight_changes_nothing() -> None:
    z = torch.randn(5, 3)
    assert torch.equal(LAME().correct(Output(torch.randn(1, 4), z[:1]), "singlelabel"), z[:1])
    assert torch.equal(LAME(k=2, lambda_=0.0).correct(Output(torch.randn(5, 4), z), "multilabel"), z)
    few = LAME(k=50).correct(Output(torch.randn(5, 4), z), "singlelabel")  # as many neighbours as there are
    torch.testing.assert_close(few.softmax(1), teacher_step(z, 1 - torch.eye(5), "singlelabel", 1.0, 1.0, 100))


@pytest.mark.parametrize("task", TASKS)
def test_what_the_evaluator_sees_is_corrected_and_the_source_is_not(
    task: Task, net: Net, x: Tensor, quick: Quick
) -> None:
    seen = []

    def evaluator(predict: Predict) -> dict[str, float]:
        seen.append(predict(x[:40]))
        return {"score": 0.0}

    method, classes = LAME(k=4), [0, 2, 3]
    result = quick(net, x, task=task, method=method, epochs=1, classes=classes, evaluator=evaluator)
    classifier = Classifier(net, x[:2], classes=classes)
    with torch.no_grad():
        plain = classifier(x[:40])
    torch.testing.assert_close(seen[0], plain.logits)
    want = method.correct(plain, task)
    torch.testing.assert_close(seen[1], want)
    assert not torch.allclose(seen[0], seen[1], atol=0.1)
    assert same(net, result.model)
    assert result.history[0]["loss"] is None
    assert any("the model is unchanged" in note and "notela.predict" in note for note in result.notes)
    for named in (method, methods.preset("lame", "image").method):
        got = notela.predict(net, x[:40], task=task, classes=classes, method=named, device="cpu", batch_size=7)
        torch.testing.assert_close(got, probabilities(named.correct(plain, task), task))
    by_name = notela.predict(net, x[:40], task=task, classes=classes, method="lame", device="cpu")
    torch.testing.assert_close(by_name, probabilities(LAME(k=5).correct(plain, task), task))


def test_a_users_own_correction_is_used(net: Net, x: Tensor) -> None:
    class Flip(methods.Method):
        name = "flip"

        def correct(self, output: Output, task: Task) -> Tensor:
            return -output.logits

    assert Flip().corrects
    assert not methods.TENT().corrects
    plain = notela.predict(net, x, task="multilabel", device="cpu")
    torch.testing.assert_close(notela.predict(net, x, task="multilabel", method=Flip(), device="cpu"), 1 - plain)


class Hidden(nn.Module):
    """A model whose logits are no layer's output."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * 2


def test_what_lame_cannot_do_is_said(net: Net, x: Tensor, quick: Quick) -> None:
    for statistics in ("target", "re-estimated"):
        with pytest.raises(notela.NotelaError, match=f"lame changes predictions .*statistics='{statistics}' would"):
            quick(net, x, task="singlelabel", method="lame", statistics=statistics)
    with pytest.raises(notela.NotelaError, match="method='tent' changes a model, not its predictions"):
        notela.predict(net, x, task="singlelabel", method="tent")
    with pytest.raises(
        notela.NotelaError, match="correcting predictions needs the classification head.*head=.*'net.head'"
    ):
        notela.predict(Hidden(net), x, task="singlelabel", method="lame", device="cpu")
    named = notela.predict(Hidden(net), x, task="singlelabel", method="lame", head="net.head", device="cpu")
    assert named.shape == (70, 5)


# ---- the registry


def test_the_papers_methods_come_first_and_grids_are_small() -> None:
    assert methods.names() == (*methods.PAPER, "rpl", "aad", "eta", "lame")
    assert len(methods.PAPER) == 8
    own = {name: {point.method for point in methods.grid(name)} for name in ("rpl", "aad", "eta", "lame")}
    assert {name: len(settings) for name, settings in own.items()} == {"rpl": 3, "aad": 6, "eta": 3, "lame": 3}
    assert len(methods.grid("lame")) == 3, "no policy makes a difference where nothing moves"
    for name, settings in own.items():
        assert methods.preset(name, "image").method in settings


def test_lame_is_as_steady_as_a_model_without_dropout(x: Tensor, quick: Quick) -> None:
    """Both passes are corrected, the one with dropout too."""
    bare = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    result = quick(bare, x, task="singlelabel", method=LAME(k=4, lambda_=5.0), epochs=1)
    plain, corrected = (notela.predict(bare, x, task="singlelabel", method=m) for m in (None, LAME(k=4, lambda_=5.0)))
    assert (plain.argmax(1) != corrected.argmax(1)).any()
    assert result.history[-1]["signals"]["disagreement"] == 0
