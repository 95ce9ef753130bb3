"""Each method's own mathematics against a slow, literal double; losses by finite differences."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import notela
from conftest import TASKS
from notela.graph import mutual_affinity
from notela.methods import TENT as Tent
from notela.methods import AdaBN, Batch, DropoutStudent, Preset, PseudoLabel
from notela.methods.notela import teacher_step
from notela.methods.nrc import nrc_loss
from notela.methods.shot import SHOT, centroid_labels
from notela.task import Task, probabilities


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max())
    return e / e.sum()


def double_teacher(z: np.ndarray, w: np.ndarray, task: str, alpha: float, lam: float, iterations: int) -> np.ndarray:
    """Eq. 3, sample by sample and class by class, with the two-way form written out for multi-label."""
    n, c = z.shape
    if task == "singlelabel":
        p = np.array([softmax(row) for row in z])
        y = p.copy()
        for _ in range(iterations):
            new = np.empty_like(y)
            for i in range(n):
                neighbours = sum((w[i, j] * y[j] for j in range(n)), np.zeros(c))
                raw = p[i] ** (1 / alpha) * np.exp(lam / alpha * neighbours)
                new[i] = raw / raw.sum()
            y = new
        return y
    p = 1 / (1 + np.exp(-z))
    two = np.stack([1 - p, p], -1)
    y = two.copy()
    for _ in range(iterations):
        new = np.empty_like(y)
        for i in range(n):
            for k in range(c):
                neighbours = sum((w[i, j] * y[j, k] for j in range(n)), np.zeros(2))
                raw = two[i, k] ** (1 / alpha) * np.exp(lam / alpha * neighbours)
                new[i, k] = raw / raw.sum()
        y = new
    return y[..., 1]


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(TASKS),
    st.integers(3, 12),
    st.integers(1, 5),
    st.sampled_from([0.1, 0.5, 1.0, 3.0]),
    st.sampled_from([0.0, 0.3, 2.0]),
    st.integers(1, 4),
    st.sampled_from(["row", "symmetric"]),
    st.integers(0, 9999),
)
def test_teacher_step_is_equation_three(
    task: Task, n: int, c: int, alpha: float, lam: float, iterations: int, normalisation: str, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, c, generator=g, dtype=torch.float64) * 3
    w = mutual_affinity(torch.randn(n, 3, generator=g, dtype=torch.float64), min(3, n - 1), normalisation)
    got = teacher_step(z, w, task, alpha, lam, iterations, tolerance=0)
    np.testing.assert_allclose(
        got, double_teacher(z.numpy(), w.to_dense().numpy(), task, alpha, lam, iterations), atol=1e-9
    )


@pytest.mark.parametrize("task", TASKS)
def test_the_unrolled_teacher_lowers_the_papers_objective(task: Task) -> None:
    """No step of the concave-convex procedure raises it (w_ii = 1 here, so that W is positive semi-definite)."""
    torch.manual_seed(0)
    z, f = torch.randn(30, 4, dtype=torch.float64), torch.randn(30, 2, dtype=torch.float64)
    w = mutual_affinity(f, 5, "symmetric").to_dense() + torch.eye(30)
    alpha, lam = 0.7, 1.5
    p = probabilities(z, task)

    def objective(y: Tensor) -> float:
        pairs = [(y, p)] if task == "singlelabel" else [(y, p), (1 - y, 1 - p)]
        total = 0.0
        for a, b in pairs:
            total += (-(a * b.log()) + alpha * torch.xlogy(a, a)).sum() - lam / 2 * (a * (w @ a)).sum()
        return float(total)

    values = [objective(p)] + [objective(teacher_step(z, w, task, alpha, lam, t, 0)) for t in range(1, 8)]
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(values))


def test_unrolling_stops_when_labels_settle() -> None:
    z, w = torch.randn(20, 3), mutual_affinity(torch.randn(20, 2), 3)
    settled = teacher_step(z, w, "singlelabel", 1.0, 0.5, iterations=500, tolerance=1e-6)
    torch.testing.assert_close(settled, teacher_step(z, w, "singlelabel", 1.0, 0.5, iterations=501, tolerance=0))


def double_centroids(f: np.ndarray, p: np.ndarray, task: str) -> np.ndarray:
    """SHOT's eq. 4–6, one problem, one sample, one centroid at a time."""

    def cluster(weights: np.ndarray) -> np.ndarray:
        first = [(weights[:, [c]] * f).sum(0) / weights[:, c].sum() for c in range(weights.shape[1])]
        nearest = [int(np.argmin([((x - m) ** 2).sum() for m in first])) for x in f]
        second = [
            f[[i for i, a in enumerate(nearest) if a == c]].mean(0) if c in nearest else first[c]
            for c in range(len(first))
        ]
        return np.array([int(np.argmin([((x - m) ** 2).sum() for m in second])) for x in f])

    if task == "singlelabel":
        return np.eye(p.shape[1])[cluster(p)]
    return np.stack([cluster(np.stack([1 - p[:, c], p[:, c]], 1)) for c in range(p.shape[1])], 1)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(TASKS), st.integers(2, 20), st.integers(1, 5), st.integers(1, 4), st.integers(0, 9999))
def test_centroid_labels(task: Task, n: int, c: int, d: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    f = torch.randn(n, d, generator=g, dtype=torch.float64) + 3
    p = probabilities(torch.randn(n, c, generator=g, dtype=torch.float64) * 2, task)
    np.testing.assert_array_equal(centroid_labels(f, p, task), double_centroids(f.numpy(), p.numpy(), task))


def test_a_class_without_probability_attracts_nobody() -> None:
    p = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert centroid_labels(torch.randn(2, 3), p, "singlelabel").tolist() == [[1, 0], [1, 0]]
    assert centroid_labels(torch.randn(2, 3), p, "multilabel").tolist() == [[1, 0], [1, 0]]


def double_nrc(z: np.ndarray, near: np.ndarray, w: np.ndarray, far: np.ndarray, base: float, task: str) -> float:
    def dot(a: np.ndarray, b: np.ndarray) -> float:
        return float((a * b).sum() if task == "singlelabel" else (a * b + (1 - a) * (1 - b)).mean())

    p = np.array([softmax(r) for r in z]) if task == "singlelabel" else 1 / (1 + np.exp(-z))
    total = 0.0
    for i in range(len(p)):
        total -= sum(w[i, j] * dot(p[i], near[i, j]) for j in range(near.shape[1]))
        total -= base * sum(dot(p[i], far[i, m]) for m in range(far.shape[1]))
    mean = p.mean(0)
    if task == "singlelabel":
        diversity = -(mean * np.log(mean)).sum()
    else:
        diversity = -(mean * np.log(mean) + (1 - mean) * np.log(1 - mean)).mean()
    return total / len(p) - float(diversity)


@pytest.mark.parametrize("task", TASKS)
def test_nrc_loss(task: Task) -> None:
    torch.manual_seed(0)
    z = torch.randn(6, 4, dtype=torch.float64)
    near, far = (probabilities(torch.randn(6, m, 4, dtype=torch.float64), task) for m in (3, 8))
    w = torch.rand(6, 3, dtype=torch.float64)
    got = nrc_loss(z, near, w, far, 0.2, task).item()
    assert got == pytest.approx(double_nrc(z.numpy(), near.numpy(), w.numpy(), far.numpy(), 0.2, task))


class Probe:
    """A stand-in for the loop's state over a linear model: enough to evaluate a method's loss on one batch."""

    def __init__(self, method: object, task: Task, x: Tensor, weight: Tensor) -> None:
        self.task, self.x, self.weight = task, x, weight
        self.banks: dict[str, Tensor] = {}
        self.preset = SimpleNamespace(method=method, statistics="source", noise=False)
        self.epoch = 1
        self.seen: dict[str, Tensor] = {}
        self._labels: Tensor | None = None
        self._kept: Tensor | None = None

    def student(self, x: Tensor) -> object:
        return SimpleNamespace(features=x, logits=x @ self.weight)

    def teacher(self, x: Tensor) -> object:
        return SimpleNamespace(features=x, logits=(x @ self.weight).detach())

    def sweep(self, noise: bool = False) -> object:
        out = self.teacher(self.x)
        shaken = out.logits + (0.3 * torch.sin(7 * out.logits) if noise else 0)
        return SimpleNamespace(features=out.features.clone(), logits=shaken)

    def set_labels(self, labels: Tensor, kept: Tensor | None = None) -> None:
        self._labels, self._kept = labels, kept

    def labels_of(self, rows: Tensor) -> Tensor:
        return self._labels[rows]

    def kept_of(self, rows: Tensor) -> Tensor:
        return self._kept[rows]

    def record(self, **values: Tensor) -> None:
        self.seen.update(values)

    def record_labels(self, rows: Tensor, labels: Tensor) -> None:
        self.seen["labels"] = labels

    def at_most_neighbours(self, k: int) -> int:
        return k


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "method",
    [
        Tent(),
        SHOT(0.4),
        SHOT(0.0),
        notela.methods.NRC(k=3, extended_k=2),
        notela.methods.DUST(passes=2, threshold=0.2),
        DropoutStudent(0.5, "epoch"),
        notela.methods.NOTELA(0.5, "epoch", k=3),
        DropoutStudent(0.5, "iteration"),
        notela.methods.NOTELA(0.5, "iteration", k=3),
        PseudoLabel(0.4),
    ],
)
def test_every_loss_by_finite_differences(method: notela.methods.Method, task: Task) -> None:
    """Targets are constants of the step, so they are made once, at the point of differentiation."""
    torch.manual_seed(0)
    x, weight = torch.randn(12, 5, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    state = Probe(method, task, x, weight.detach().clone())  # gradcheck moves `weight` in place
    state.teacher = Probe(method, task, x, weight.detach().clone()).teacher  # type: ignore[method-assign]
    method.before_run(state)  # type: ignore[arg-type]
    method.before_epoch(state)  # type: ignore[arg-type]
    batch = Batch(torch.arange(8), x[:8])

    def loss(w: Tensor) -> Tensor:
        state.weight = w
        value = method.loss(batch, state)  # type: ignore[arg-type]
        assert value is not None
        return value

    assert torch.autograd.gradcheck(loss, (weight,))


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6])
def test_pseudo_labels_and_what_enters_the_loss(threshold: float) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(12, 5), torch.randn(5, 3, requires_grad=True)
    batch = Batch(torch.arange(12), x)
    z = (x @ weight).detach()

    state = Probe(None, "singlelabel", x, weight)
    loss = PseudoLabel(threshold).loss(batch, state)  # type: ignore[arg-type]
    p = z.softmax(1)
    want = [-float(row.max().log()) if row.max() > threshold else 0.0 for row in p]
    assert loss.item() == pytest.approx(np.mean(want), rel=1e-5)

    state = Probe(None, "multilabel", x, weight)
    loss = PseudoLabel(threshold).loss(batch, state)  # type: ignore[arg-type]
    p = z.sigmoid()
    want = [float(-row[row > threshold].log().mean()) if (row > threshold).any() else 0.0 for row in p]
    assert loss.item() == pytest.approx(np.mean(want), rel=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_dust_keeps_what_noise_does_not_change(task: Task) -> None:
    torch.manual_seed(2)
    x, weight = torch.randn(40, 5), torch.randn(5, 3)
    state = Probe(None, task, x, weight)
    method = notela.methods.DUST(passes=3, threshold=0.01)
    method.before_epoch(state)  # type: ignore[arg-type]
    ref = x @ weight
    noisy = ref + 0.3 * torch.sin(7 * ref)
    if task == "singlelabel":
        p, q = noisy.softmax(1), ref.softmax(1)
        kl = (p * (p / q).log()).sum(1)
    else:
        p, q = noisy.sigmoid(), ref.sigmoid()
        kl = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    kept = state.kept_of(torch.arange(40))
    assert torch.equal(kept, kl < 0.01)
    assert 0 < kept.float().mean() < 1
    torch.testing.assert_close(state.labels_of(torch.arange(40)), probabilities(ref, task))


def test_dust_remembers_the_worst_pass_and_leaves_out_what_is_not_kept() -> None:
    torch.manual_seed(2)
    x, weight = torch.randn(12, 5), torch.randn(5, 3)
    state = Probe(None, "singlelabel", x, weight)
    strengths = iter([0.0, 2.0, 0.0])  # a noisy pass in the middle
    clean = state.teacher(x)

    def sweep(noise: bool = False) -> object:
        return SimpleNamespace(logits=clean.logits * (1 + next(strengths)) if noise else clean.logits)

    state.sweep = sweep  # type: ignore[method-assign]
    method = notela.methods.DUST(passes=3, threshold=0.01)
    method.before_epoch(state)  # type: ignore[arg-type]
    kept = state.kept_of(torch.arange(12))
    assert not kept.all()
    p = clean.logits.softmax(1)
    want = torch.where(kept, -(p * p.log()).sum(1), 0.0).mean()
    torch.testing.assert_close(method.loss(Batch(torch.arange(12), x), state), want)  # type: ignore[arg-type]


def test_nrc_with_frozen_banks_never_writes_them() -> None:
    x, weight = torch.randn(20, 4), torch.randn(4, 3)
    state = Probe(None, "singlelabel", x, weight)
    method = notela.methods.NRC(k=4, extended_k=3, frozen_banks=True)
    method.before_run(state)  # type: ignore[arg-type]
    before = {name: t.clone() for name, t in state.banks.items()}
    method.loss(Batch(torch.arange(6), x[:6] + 0.5), state)  # type: ignore[arg-type]
    assert all(torch.equal(before[name], t) for name, t in state.banks.items())


@pytest.mark.parametrize("task", TASKS)
def test_notela_per_epoch_uses_all_its_settings(task: Task) -> None:
    torch.manual_seed(6)
    x, weight = torch.randn(30, 3), torch.randn(3, 4) * 2
    state = Probe(None, task, x, weight)
    clean = state.teacher(x)
    method = notela.methods.NOTELA(0.5, "epoch", 4, 2.0, "symmetric", "cosine", iterations=4, tolerance=0.0)
    got = method.teach(clean, state)  # type: ignore[arg-type]
    affinity = mutual_affinity(x, 4, "symmetric", "cosine")
    torch.testing.assert_close(got, teacher_step(clean.logits, affinity, task, 0.5, 2.0, 4, 0.0))
    plain = teacher_step(clean.logits, mutual_affinity(x, 4), task, 0.5, 2.0)
    assert not torch.allclose(got, plain, atol=1e-3)


@pytest.mark.parametrize("form", ["votes", "centred", "standardised"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("normalisation", ["row", "symmetric"])
def test_messages_row_by_row_and_class_by_class(task: Task, form: str, normalisation: str) -> None:
    """m_i = λ (Σ_j w_ij p_j - d_i p̄)/s, entry by entry; isolated rows hear nothing."""
    torch.manual_seed(8)
    n, c, lam, alpha = 30, 4, 2.0, 0.7
    z, x = torch.randn(n, c, dtype=torch.float64) * 3, torch.randn(n, 3, dtype=torch.float64)
    affinity = mutual_affinity(x, 2, normalisation)  # type: ignore[arg-type]
    w = affinity.to_dense().numpy()
    assert (w.sum(1) == 0).any(), "some rows have no mutual neighbour"
    p = probabilities(z, task).numpy()
    got = teacher_step(z, affinity, task, alpha, lam, message=form).numpy()  # type: ignore[arg-type]
    for i in range(n):
        m = np.zeros(c)
        for k in range(c):
            mean = p[:, k].sum() / n
            for j in range(n):
                vote = p[j, k] if task == "singlelabel" else 2 * p[j, k] - 1
                m[k] += w[i, j] * (vote if form == "votes" else p[j, k] - mean)
            if form == "standardised":
                m[k] /= np.sqrt(mean * (1 - mean))
        if task == "singlelabel":
            want = softmax((np.log(p[i]) + lam * m) / alpha)
        else:
            want = 1 / (1 + np.exp(-(z[i].numpy() + lam * m) / alpha))
        np.testing.assert_allclose(got[i], want)


@pytest.mark.parametrize("form", ["centred", "standardised"])
@pytest.mark.parametrize("task", TASKS)
def test_a_set_that_is_all_alike_hears_nothing(task: Task, form: str) -> None:
    """The published message moves such a set towards "no bird at all"; a centred one leaves it as it is."""
    torch.manual_seed(9)
    x, z = torch.randn(20, 3), torch.tensor([[-3.0, -4.0, -2.0]]).expand(20, 3)
    affinity = mutual_affinity(x, 5)
    p = probabilities(z, task)
    got = teacher_step(z, affinity, task, 1.0, 2.0, message=form)  # type: ignore[arg-type]
    torch.testing.assert_close(got, p, rtol=1e-4, atol=1e-5)
    if task == "multilabel":
        assert (teacher_step(z, affinity, task, 1.0, 2.0)[affinity.to_dense().sum(1) > 0] < 0.5 * p[0]).all()


def test_a_class_that_nobody_has_is_not_made_loud() -> None:
    """s is at least that of a class with one row in N: noise of 1e-9 in a silent class must not become a message."""
    x = torch.randn(16, 3)
    z = torch.full((16, 2), -20.0)
    z[0] = -16.0
    got = teacher_step(z, mutual_affinity(x, 5), "multilabel", 1.0, 2.0, message="standardised")
    torch.testing.assert_close(got, z.sigmoid(), rtol=1e-3, atol=1e-9)


def test_a_probability_at_the_threshold_is_not_sure_enough() -> None:
    state = Probe(None, "multilabel", torch.zeros(4, 5), torch.zeros(5, 3, requires_grad=True))
    PseudoLabel(0.5).loss(Batch(torch.arange(4), torch.zeros(4, 5)), state)  # type: ignore[arg-type]
    assert state.seen["kept"].sum() == 0


@pytest.mark.parametrize("task", TASKS)
def test_shot_adds_beta_times_the_cross_entropy(task: Task) -> None:
    torch.manual_seed(7)
    x, weight = torch.randn(15, 4), torch.randn(4, 3)
    batch = Batch(torch.arange(15), x)
    losses = {}
    for beta in (0.0, 0.7):
        state = Probe(None, task, x, weight)
        SHOT(beta).before_epoch(state)  # type: ignore[arg-type]
        losses[beta] = SHOT(beta).loss(batch, state)  # type: ignore[arg-type]
    labels = centroid_labels(x, probabilities(x @ weight, task), task)
    extra = notela.task.cross_entropy(x @ weight, labels, task).mean()
    torch.testing.assert_close(losses[0.7] - losses[0.0], 0.7 * extra)


def test_nrc_weights_and_lists_against_brute_force() -> None:
    torch.manual_seed(3)
    x, weight = torch.randn(20, 4, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    state = Probe(None, "singlelabel", x, weight)
    method = notela.methods.NRC(k=4, extended_k=3, base=0.1)
    method.before_run(state)  # type: ignore[arg-type]
    moved = x.clone()
    moved[:6] += 0.5  # the batch has moved since the banks were made: its rows are refreshed before the search
    rows = torch.arange(6)
    got = method.loss(Batch(rows, moved[:6]), state)  # type: ignore[arg-type]
    unit = moved / moved.norm(dim=1, keepdim=True)
    similarity = (unit @ unit.T).fill_diagonal_(-9).numpy()
    lists = np.argsort(-similarity, 1)
    p = (moved @ weight).softmax(1).numpy()
    near = p[lists[:6, :4]]
    w = np.array([[1.0 if i in lists[j, :3] else 0.1 for j in lists[i, :4]] for i in range(6)])
    far = np.array([[p[m] for j in lists[i, :4] for m in lists[j, :3]] for i in range(6)])
    assert got.item() == pytest.approx(double_nrc((moved @ weight).numpy()[:6], near, w, far, 0.1, "singlelabel"))
    torch.testing.assert_close(state.banks["features"] + state.banks["offset"], moved)


@pytest.mark.parametrize("form", ["votes", "standardised"])
@pytest.mark.parametrize("normalisation", ["row", "symmetric"])
@pytest.mark.parametrize("task", TASKS)
def test_notela_per_iteration_against_the_banks(task: Task, normalisation: str, form: str) -> None:
    """New rows are searched in the old bank, mutuality is asked of the old lists, then the rows are replaced."""
    torch.manual_seed(4)
    n, k, lam, alpha = 25, 4, 1.3, 0.6
    x, weight = torch.randn(n, 3, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    state = Probe(None, task, x, weight)
    method = notela.methods.NOTELA(alpha, "iteration", k, lam, normalisation, message=form)
    method.before_run(state)  # type: ignore[arg-type]
    offset = state.banks["offset"]
    old_f, old_p = state.banks["features"] + offset, state.banks["probabilities"].clone()
    old_lists, old_degree = state.banks["lists"].clone(), state.banks["degree"].clone()
    rows = torch.tensor([3, 8, 11, 20])
    clean = state.teacher(x[rows] + 0.4)
    got = method.teach_rows(rows, clean, state)  # type: ignore[arg-type]

    for b, i in enumerate(rows.tolist()):
        distance = ((old_f - clean.features[b]) ** 2).sum(1)
        distance[i] = torch.inf
        listed = distance.argsort()[:k].tolist()
        mutual = [j for j in listed if i in old_lists[j].tolist()]
        message = torch.zeros(4, dtype=torch.float64)
        mean = old_p.mean(0)
        for j in mutual:
            w = 1 / len(mutual) if normalisation == "row" else (len(mutual) * max(int(old_degree[j]), 1)) ** -0.5
            if form == "standardised":
                message += w * (old_p[j] - mean) / (mean * (1 - mean)).sqrt()
            else:
                message += w * (old_p[j] if task == "singlelabel" else 2 * old_p[j] - 1)
        z = clean.logits[b]
        if task == "singlelabel":
            want = ((z.log_softmax(0) + lam * message) / alpha).softmax(0)
        else:
            want = ((z + lam * message) / alpha).sigmoid()
        torch.testing.assert_close(got[b], want)
        assert state.banks["lists"][i].tolist() == listed
        assert state.banks["degree"][i] == len(mutual)
    torch.testing.assert_close(state.banks["features"][rows] + offset, clean.features)
    others = [i for i in range(n) if i not in rows.tolist()]
    torch.testing.assert_close(state.banks["features"][others] + offset, old_f[others])


def test_adabn_exact_is_the_moments_of_the_whole_set(x: Tensor) -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).eval()
    policy = Preset(AdaBN(exact=True), trainable="none", statistics="target", noise=False, epochs=2, batch_size=16)
    result = notela.adapt(model, x, task="singlelabel", method=policy, progress=False)
    hidden = model[0](x)
    torch.testing.assert_close(result.model[1].running_mean, hidden.mean(0).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result.model[1].running_var, hidden.var(0, correction=0).detach(), rtol=1e-4, atol=1e-5)
    assert result.model[1].momentum == 0.1


def test_adabn_momentum_is_an_exponential_average_from_the_source(x: Tensor) -> None:
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3)).eval()
    policy = Preset(AdaBN(momentum=0.25), trainable="none", statistics="target", noise=False, epochs=3, batch_size=70)
    result = notela.adapt(model, x, task="singlelabel", method=policy, progress=False)
    expected = x.mean(0) * (1 - 0.75**3)
    torch.testing.assert_close(result.model[0].running_mean, expected, rtol=1e-4, atol=1e-5)
    assert result.model[0].momentum == 0.1, "the layer's own momentum is given back"


def test_shot_without_beta_is_information_maximisation() -> None:
    torch.manual_seed(5)
    x, weight = torch.randn(9, 4, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    state = Probe(None, "singlelabel", x, weight)
    got = SHOT(0.0).loss(Batch(torch.arange(9), x), state).item()  # type: ignore[arg-type]
    p = (x @ weight).softmax(1).numpy()
    mutual_information = -(p.mean(0) * np.log(p.mean(0))).sum() + (p * np.log(p)).sum(1).mean()
    assert got == pytest.approx(-mutual_information)
