"""The algebra of the two tasks against closed forms, SciPy and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import entr, expit, softmax
from scipy.stats import entropy as scipy_entropy

from conftest import TASKS
from notela import task
from notela.errors import NotelaError

finite = st.floats(-1e4, 1e4, width=32)
logits_2d = st.tuples(st.integers(1, 6), st.integers(1, 7)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=finite)
)


def binary_entropy(p: np.ndarray) -> np.ndarray:
    return entr(p) + entr(1 - p)


def test_probabilities_and_entropy_agree_with_scipy() -> None:
    z = np.random.default_rng(0).normal(size=(7, 5)) * 3
    t = torch.tensor(z)
    np.testing.assert_allclose(task.probabilities(t, "singlelabel"), softmax(z, 1))
    np.testing.assert_allclose(task.probabilities(t, "multilabel"), expit(z))
    np.testing.assert_allclose(task.entropy(t, "singlelabel"), scipy_entropy(softmax(z, 1), axis=1))
    np.testing.assert_allclose(task.entropy(t, "multilabel"), binary_entropy(expit(z)).mean(1))


def test_marginal_entropy_is_the_entropy_of_the_mean_prediction() -> None:
    z = np.random.default_rng(1).normal(size=(9, 4)) * 3
    t = torch.tensor(z)
    assert task.marginal_entropy(t, "singlelabel").item() == pytest.approx(scipy_entropy(softmax(z, 1).mean(0)))
    p = task.probabilities(t, "singlelabel").mean(0)
    torch.testing.assert_close(task.entropy_of(p, "singlelabel"), task.marginal_entropy(t, "singlelabel"))
    p = task.probabilities(t, "multilabel").mean(0)
    torch.testing.assert_close(task.entropy_of(p, "multilabel"), task.marginal_entropy(t, "multilabel"))
    assert task.marginal_entropy(t, "multilabel").item() == pytest.approx(binary_entropy(expit(z).mean(0)).mean())


@pytest.mark.parametrize("kind", TASKS)
def test_divergence_is_kullback_leibler(kind: task.Task) -> None:
    rng = np.random.default_rng(2)
    z, r = rng.normal(size=(2, 6, 4)) * 2
    got = task.divergence(torch.tensor(z), torch.tensor(r), kind).numpy()
    if kind == "singlelabel":
        want = scipy_entropy(softmax(z, 1), softmax(r, 1), axis=1)
    else:
        p, q = expit(z), expit(r)
        want = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    np.testing.assert_allclose(got, want, rtol=1e-9)
    assert (task.divergence(torch.tensor(z), torch.tensor(z), kind) == 0).all()


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 9999), st.floats(0, 1))
def test_cross_entropy_mask_is_a_mean_over_what_is_kept(n: int, c: int, seed: int, kept: float) -> None:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, c, dtype=torch.float64, generator=g)
    y = torch.rand(n, c, dtype=torch.float64, generator=g)
    mask = torch.rand(n, c, generator=g) < kept
    p = z.sigmoid().numpy()
    entries = -(y.numpy() * np.log(p) + (1 - y.numpy()) * np.log(1 - p))
    want = [entries[i][mask[i].numpy()].mean() if mask[i].any() else 0.0 for i in range(n)]
    np.testing.assert_allclose(task.cross_entropy(z, y, "multilabel", mask), want)
    rows = mask.any(1)
    single = task.cross_entropy(z, y, "singlelabel")
    assert torch.equal(task.cross_entropy(z, y, "singlelabel", rows), torch.where(rows, single, 0.0))


@settings(deadline=None)
@given(logits_2d, st.sampled_from(TASKS), st.sampled_from([0.0, 0.01, 0.1, 1.0, 7.0]))
def test_labels_are_probabilities_at_any_logits(z: np.ndarray, kind: task.Task, alpha: float) -> None:
    y = task.sharpen(torch.from_numpy(z), kind, alpha)
    assert y.isfinite().all()
    assert ((y >= 0) & (y <= 1)).all()
    if kind == "singlelabel":
        torch.testing.assert_close(y.sum(1), torch.ones(len(z)))


@settings(deadline=None)
@given(logits_2d, st.sampled_from(TASKS))
def test_every_quantity_stays_finite_and_has_a_finite_gradient(z: np.ndarray, kind: task.Task) -> None:
    t = torch.from_numpy(z).requires_grad_()
    total = (
        task.entropy(t, kind).sum()
        + task.marginal_entropy(t, kind)
        + task.divergence(t, torch.zeros_like(t), kind).sum()
        + task.cross_entropy(t, task.sharpen(t.detach(), kind, 0.5), kind).sum()
    )
    total.backward()
    assert total.isfinite()
    assert t.grad is not None
    assert t.grad.isfinite().all()


def test_a_thousand_classes_at_alpha_one_hundredth_sum_to_one() -> None:
    y = task.sharpen(torch.randn(20, 1000) * 30, "singlelabel", alpha=0.01)
    torch.testing.assert_close(y.sum(1), torch.ones(20))


@settings(deadline=None)
@given(logits_2d)
def test_alpha_zero_is_the_arg_max_with_ties_shared(z: np.ndarray) -> None:
    best = z == z.max(1, keepdims=True)
    np.testing.assert_allclose(task.sharpen(torch.from_numpy(z), "singlelabel", 0), best / best.sum(1, keepdims=True))
    np.testing.assert_array_equal(task.sharpen(torch.from_numpy(z), "multilabel", 0), np.heaviside(z, 0.5))


@pytest.mark.parametrize("kind", TASKS)
def test_alpha_one_without_neighbours_gives_p(kind: task.Task) -> None:
    z = torch.randn(6, 4)
    torch.testing.assert_close(task.sharpen(z, kind, 1.0), task.probabilities(z, kind))


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
def test_two_classes_single_label_is_one_class_multi_label(alpha: float) -> None:
    """z = (0, s) against s: the same problem in both tasks."""
    s = torch.randn(8, 1, dtype=torch.float64)
    neighbour = torch.randn(8, 1, dtype=torch.float64)
    z, n = (torch.cat([torch.zeros_like(t), t], 1) for t in (s, neighbour))
    message_single = 1.7 * task.votes(task.probabilities(n, "singlelabel"), "singlelabel")
    message_multi = 1.7 * task.votes(task.probabilities(neighbour, "multilabel"), "multilabel")
    single = task.sharpen(z, "singlelabel", alpha, message_single)
    multi = task.sharpen(s, "multilabel", alpha, message_multi)
    torch.testing.assert_close(single[:, 1:], multi)
    torch.testing.assert_close(task.entropy(z, "singlelabel"), task.entropy(s, "multilabel"))
    torch.testing.assert_close(task.cross_entropy(z, single, "singlelabel"), task.cross_entropy(s, multi, "multilabel"))
    torch.testing.assert_close(task.marginal_entropy(z, "singlelabel"), task.marginal_entropy(s, "multilabel"))


@pytest.mark.parametrize("kind", TASKS)
def test_gradients_by_finite_differences(kind: task.Task) -> None:
    z = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    y = torch.rand(4, 3, dtype=torch.float64)
    reference = torch.randn(4, 3, dtype=torch.float64)
    for function in (
        lambda t: task.entropy(t, kind),
        lambda t: task.marginal_entropy(t, kind),
        lambda t: task.cross_entropy(t, y, kind),
        lambda t: task.divergence(t, reference, kind),
    ):
        assert torch.autograd.gradcheck(function, (z,))


def test_entropy_bounds() -> None:
    assert task.entropy(torch.zeros(1, 6), "singlelabel").item() == pytest.approx(math.log(6))
    assert task.entropy(torch.zeros(1, 6), "multilabel").item() == pytest.approx(math.log(2))


def test_half_is_not_a_positive() -> None:
    assert task.hard(torch.tensor([[0.5, 0.51]]), "multilabel").tolist() == [[False, True]]


def test_unknown_task_is_refused_by_name() -> None:
    with pytest.raises(NotelaError, match="multi-label.*singlelabel"):
        task.probabilities(torch.zeros(1, 2), "multi-label")  # type: ignore[arg-type]
