"""Signals of unlabelled rows, against plain doubles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax
from scipy.stats import entropy
from sklearn.metrics import cohen_kappa_score, mutual_info_score

from conftest import TASKS
from notela import signals
from notela.classifier import Output
from notela.signals import Look, Signals


def rows(seed: int, n: int, c: int = 4, width: int = 6) -> Output:
    """Embeddings with some clusters, and logits that know a little of them."""
    dice = torch.Generator().manual_seed(seed)
    kind = torch.randint(c, (n,), generator=dice)
    features = torch.randn(n, width, generator=dice) + 2 * torch.randn(c, width, generator=dice)[kind]
    return Output(features, 2 * torch.eye(c)[kind] + torch.randn(n, c, generator=dice))


def look(output: Output, task: Any, source: Output | None = None, noisy: torch.Tensor | None = None) -> Signals:
    """At rows that the source saw as `source`, or in the same way; without dropout, if nothing is said of it."""
    now = Look.at(output, output.logits if noisy is None else noisy, task)
    return signals.read(now, now if source is None else Look.at(source, source.logits, task))


def pairs_of(features: torch.Tensor) -> list[tuple[int, int]]:
    """Mutual neighbours by cosine, row by row."""
    x = features.double().numpy()
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    alike = unit @ unit.T
    near = []
    for i in range(len(x)):
        others = sorted((j for j in range(len(x)) if j != i), key=lambda j: -alike[i, j])
        near.append(set(others[: signals.K]))
    return [(i, j) for i in range(len(x)) for j in range(len(x)) if j in near[i] and i in near[j]]


def moran(p: np.ndarray, pairs: list[tuple[int, int]]) -> float:
    """Moran's I of each class, as a textbook has it: (N / S0) Σ w_ij x_i x_j / Σ x_i²."""
    total = 0.0
    for k in range(p.shape[1]):
        x = p[:, k] - p[:, k].mean()
        each = len(p) / len(pairs) * sum(x[i] * x[j] for i, j in pairs) / (x**2).sum()
        total += (each + 1 / (len(p) - 1)) * p[:, k].mean() / p.mean(0).sum()  # -1/(N - 1) is its mean by chance
    return total


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("n", [12, 40, 90])
def test_signals_are_what_a_double_loop_over_pairs_gives(task: Any, n: int) -> None:
    for seed in range(3):
        source, now = rows(seed, n), rows(seed + 10, n)
        p, before = (
            softmax(z, 1) if task == "singlelabel" else expit(z)
            for z in (now.logits.double().numpy(), source.logits.double().numpy())
        )
        first = p.argmax(1)
        graphs = [pairs_of(one.features) for one in (source, now)]
        found = look(now, task, source)
        by_chance = sum((first == k).mean() ** 2 for k in range(4))
        observed = [np.mean([first[i] == first[j] for i, j in pairs]) for pairs in graphs]
        assert found.agreement == pytest.approx(
            np.mean([(o - by_chance) / (1 - by_chance) for o in observed]), abs=1e-6
        )
        assert found.smoothness == pytest.approx(moran(p, graphs[1]), rel=1e-4)
        assert found.backward_smoothness == pytest.approx(moran(before, graphs[1]), rel=1e-4)
        assert found.forward_smoothness == pytest.approx(moran(p, graphs[0]), rel=1e-4)
        shares, was = p.mean(0) / p.mean(0).sum(), before.mean(0) / before.mean(0).sum()
        assert found.classes == pytest.approx(np.exp(entropy(shares)), rel=1e-5)
        assert found.mix == pytest.approx(np.abs(shares - was).sum() / 2, abs=1e-6)
        assert found.positives == pytest.approx((p > 0.5).sum(1).mean(), abs=1e-6)
        values = np.linalg.svd(p, compute_uv=False)
        assert found.rank == pytest.approx(np.exp(entropy(values)), rel=1e-4)
        assert found.disagreement == 0
        noisy = look(now, task, source, noisy=source.logits)
        assert noisy.disagreement == pytest.approx((before.argmax(1) != first).mean(), abs=1e-6) != 0
        assert noisy[:-1] == found[:-1]


def test_information_is_scikit_learns_beyond_what_shuffled_choices_share() -> None:
    output = rows(0, 30, c=12)
    first, pairs = output.logits.argmax(1), signals.similar(output)
    plain = mutual_info_score(first[pairs[0]], first[pairs[1]])
    assert signals._shared(first, pairs) == pytest.approx(plain, abs=1e-9)
    dice = np.random.default_rng(0)
    dealt = [dice.permutation(first.numpy()) for _ in range(400)]
    by_chance = np.mean([mutual_info_score(one[pairs[0]], one[pairs[1]]) for one in dealt])
    assert by_chance > 0.1
    assert signals.information(first, pairs) == pytest.approx(plain - by_chance, abs=0.04)


def test_agreement_is_scikit_learns_kappa_where_both_ends_have_the_same_choices() -> None:
    first = torch.arange(60) % 3
    pairs = torch.stack([torch.arange(60), torch.arange(60).roll(6) // 2 * 2])
    pairs = torch.cat([pairs, pairs.flip(0)], 1)[:, torch.randperm(120, generator=torch.Generator().manual_seed(0))]
    assert first[pairs[0]].bincount().tolist() == [40, 40, 40]
    expected = cohen_kappa_score(first[pairs[0]], first[pairs[1]])
    assert abs(expected) > 0.05
    assert signals.agreement(first, pairs) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("choices", [2, 30])
def test_random_choices_tell_nothing_however_many_classes_there_are(choices: int) -> None:
    """Plain mutual information of few pairs and many classes is large by chance alone."""
    dice = torch.Generator().manual_seed(0)
    pairs = signals.similar(rows(0, 60))
    found = [signals.information(torch.randint(choices, (60,), generator=dice), pairs) for _ in range(40)]
    assert abs(np.mean(found)) < 0.02


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), n=st.integers(4, 60), c=st.integers(2, 7))
def test_the_order_of_classes_does_not_count(task: Any, seed: int, n: int, c: int) -> None:
    output = rows(seed, n, c)
    by_class = torch.randperm(c, generator=torch.Generator().manual_seed(seed + 1))
    other = look(Output(output.features, output.logits[:, by_class]), task)
    assert other == pytest.approx(look(output, task), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 40), sure=st.floats(0, 80))
def test_one_class_everywhere_tells_nothing(task: Any, seed: int, n: int, sure: float) -> None:
    output = rows(seed, n)
    constant = torch.tensor([[sure + 0.1, -sure, -sure, -sure]]).repeat(n, 1)
    found = look(Output(output.features, constant), task, output)
    assert (found.agreement, found.information, found.smoothness) == pytest.approx((0, 0, 0), abs=1e-6)
    assert all(map(math.isfinite, found))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_few_rows_have_finite_signals(task: Any, n: int) -> None:
    assert all(map(math.isfinite, look(rows(0, n), task)))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("value", [0.0, -200.0, 200.0])
@pytest.mark.parametrize("n", [1, 2, 3, 50])
def test_constant_predictions_and_embeddings_have_finite_signals(task: Any, value: float, n: int) -> None:
    found = look(Output(torch.zeros(n, 6), torch.full((n, 4), value)), task)
    assert all(map(math.isfinite, found))
    assert (found.agreement, found.information, found.smoothness) == pytest.approx((0, 0, 0), abs=1e-6)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("n", [1, 2, 3, 50])
def test_logits_serve_where_there_is_no_embedding(task: Any, n: int) -> None:
    z = rows(3, n).logits
    found = look(Output(torch.empty(n, 0), z), task)
    assert all(map(math.isfinite, found))
    assert found == look(Output(z, z), task)


def test_two_clusters_that_are_told_apart_share_the_entropy_of_their_sizes() -> None:
    """Neighbours are of one's own cluster: H(¼, ¾) nats, less the little that shuffled choices share."""
    z = torch.eye(2)[torch.arange(200) % 4 // 3] * 9
    features = 20 * z + torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    found = look(Output(features, z), "singlelabel")
    assert found.information == pytest.approx(float(entropy([0.25, 0.75])), abs=0.05)
    assert (found.agreement, found.smoothness) == pytest.approx((1, 1), abs=0.05)
    assert found.classes == pytest.approx(np.exp(entropy([0.25, 0.75])), rel=1e-2)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("n", [4, 8, 16, 25])
def test_a_model_that_knows_nothing_is_not_smoother_than_chance(task: Any, n: int) -> None:
    """Where everybody is everybody's neighbour, plain Moran's I of anything is -1/(n - 1), and a constant's is none."""
    source = rows(0, n)
    found = look(Output(source.features, torch.zeros_like(source.logits)), task, source)
    assert found.smoothness == 0
    if n <= signals.K + 1:
        assert look(source, task).smoothness == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("n", "c"), [(3, 40), (40, 3), (1, 1)])
def test_rank_is_that_of_a_singular_value_decomposition_whichever_side_is_longer(n: int, c: int) -> None:
    p = torch.rand(n, c, generator=torch.Generator().manual_seed(0))
    expected = np.exp(entropy(np.linalg.svd(p.double().numpy(), compute_uv=False)))
    assert signals.effective_rank(p) == pytest.approx(expected, rel=1e-6)


def test_first_choices_under_saturated_scores_do_not_disagree_with_themselves() -> None:
    """Both are 1 in float32, and logits alone would say which is larger."""
    z = torch.tensor([[200.0, 201.0], [201.0, 200.0]])
    assert look(Output(z, z), "multilabel").disagreement == 0


@pytest.mark.parametrize("task", TASKS)
def test_answers_that_are_not_numbers_are_all_zeros_and_do_no_harm_as_a_reference(task: Any) -> None:
    good = rows(0, 40)
    broken = Output(good.features, good.logits.index_fill(0, torch.tensor([3]), math.nan))
    assert look(broken, task, good) == Signals(*[0] * len(Signals._fields))
    found = look(good, task, broken)
    assert all(map(math.isfinite, found))
    assert found.backward_smoothness == 0
    assert found.smoothness == look(good, task).smoothness != 0
