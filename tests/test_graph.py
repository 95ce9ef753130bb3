"""Neighbours and affinity against brute force over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from notela import graph
from notela.errors import NotelaError


def brute_lists(features: torch.Tensor, k: int, metric: str = "euclidean") -> np.ndarray:
    f = features.double().numpy()
    found = NearestNeighbors(n_neighbors=k, algorithm="brute", metric=metric).fit(f).kneighbors(return_distance=False)
    return np.asarray(found)


def brute_affinity(lists: np.ndarray, normalisation: str) -> np.ndarray:
    n = len(lists)
    a = np.zeros((n, n))
    for i in range(n):
        for j in lists[i]:
            if i in lists[j]:
                a[i, j] = 1
    degree = a.sum(1)
    for i in range(n):
        for j in range(n):
            if a[i, j]:
                a[i, j] = 1 / degree[i] if normalisation == "row" else 1 / np.sqrt(degree[i] * degree[j])
    return a


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("block", [7, 50, 2000])
def test_neighbours_agree_with_scikit_learn(metric: graph.Metric, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "_BLOCK", block)
    f = torch.randn(123, 10) + 5
    np.testing.assert_array_equal(graph.neighbours(f, 6, metric), brute_lists(f, 6, metric))


@settings(deadline=None, max_examples=40)
@given(
    st.integers(2, 25),
    st.integers(1, 4),
    st.integers(1, 24),
    st.integers(0, 10_000),
    st.sampled_from(["row", "symmetric"]),
)
def test_affinity_agrees_with_double_loop(
    n: int, d: int, k: int, seed: int, normalisation: graph.Normalisation
) -> None:
    k = min(k, n - 1)
    f = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    got = graph.mutual_affinity(f, k, normalisation)
    assert got.layout == torch.sparse_csr
    np.testing.assert_allclose(got.to_dense(), brute_affinity(brute_lists(f, k), normalisation), rtol=1e-6)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@settings(deadline=None, max_examples=20)
@given(st.integers(2, 25), st.integers(1, 24), st.integers(0, 10_000))
def test_symmetric_affinity_agrees_with_double_loop(metric: graph.Metric, n: int, k: int, seed: int) -> None:
    k = min(k, n - 1)
    f = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    lists, want = brute_lists(f, k, metric), np.zeros((n, n))
    for i in range(n):
        for j in lists[i]:
            want[i, j] += 0.5
            want[j, i] += 0.5
    got = graph.symmetric_affinity(f, k, metric)
    assert (got.layout, got.dtype) == (torch.sparse_csr, torch.float64)
    np.testing.assert_array_equal(got.to_dense(), want)
    assert torch.equal(got.to_dense(), got.to_dense().T)
    torch.sparse_csr_tensor(got.crow_indices(), got.col_indices(), got.values(), (n, n), check_invariants=True)


def test_duplicate_rows_are_neighbours_of_each_other_and_never_of_themselves() -> None:
    f = torch.ones(10, 3).repeat_interleave(2, 0)
    lists = graph.neighbours(f, 5)
    assert (lists != torch.arange(20)[:, None]).all()
    assert all(len(set(row)) == 5 for row in lists.tolist())


def test_symmetric_weights_are_symmetric_and_rows_sum_to_one_or_zero() -> None:
    f = torch.randn(60, 4)
    symmetric = graph.mutual_affinity(f, 5, "symmetric").to_dense()
    torch.testing.assert_close(symmetric, symmetric.T)
    sums = graph.mutual_affinity(f, 5, "row").to_dense().sum(1)
    assert ((sums - 1).abs().lt(1e-6) | (sums == 0)).all()
    assert (symmetric.diagonal() == 0).all()


def test_a_row_that_nobody_names_back_is_empty() -> None:
    f = torch.tensor([[0.0], [0.1], [0.2], [100.0]])
    w = graph.mutual_affinity(f, 2).to_dense()
    assert (w[3] == 0).all()
    assert (w[:, 3] == 0).all()


def test_neighbours_survive_a_large_common_offset() -> None:
    """Raw embeddings are far from the origin; float32 must not lose the differences."""
    f = torch.randn(200, 8, dtype=torch.float64)
    far = (f + 1000).float()
    np.testing.assert_array_equal(graph.neighbours(far, 4), brute_lists(far, 4))


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_search_leaves_out_the_own_row(metric: graph.Metric) -> None:
    bank = torch.randn(40, 6)
    rows = torch.tensor([3, 17, 39])
    np.testing.assert_array_equal(graph.search(bank[rows], bank, 5, rows, metric), brute_lists(bank, 5, metric)[rows])


def clustered(n: int, d: int) -> torch.Tensor:
    """Rows around 60 centres with a decaying spectrum, as embeddings have."""
    g = torch.Generator().manual_seed(0)
    spectrum = torch.arange(1, d + 1) ** -1.0
    centres = torch.randn(60, d, generator=g) * spectrum * 2
    return centres[torch.randint(0, 60, (n,), generator=g)] + torch.randn(n, d, generator=g) * spectrum


def share_found(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((want[:, :, None] == got[:, None, :]).any(2).float().mean())


@pytest.mark.parametrize("flat_up_to", [50_000, 1_000])
@pytest.mark.parametrize("d", [16, 300])
def test_shortlist_finds_nearly_all_and_never_the_row_itself(
    d: int, flat_up_to: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "_FLAT_UP_TO", flat_up_to)
    monkeypatch.setattr(graph, "_SHORT_DIMENSIONS", 32)
    f = clustered(3000, d)
    want = graph.neighbours(f, 10)
    monkeypatch.setattr(graph, "_upper_triangle", lambda *_: pytest.fail("the shortlist should do"))
    got = graph.neighbours(f, 10, exact_up_to=1000)
    assert (got != torch.arange(3000)[:, None]).all()
    assert (got >= 0).all()
    assert share_found(got, want) > 0.99
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    graph.neighbours(f, 10, exact_up_to=1000)
    assert torch.equal(torch.rand(2), expected), "the caller's random numbers are left alone"
    assert torch.equal(got, graph.neighbours(f, 10, exact_up_to=1000)), "the same features give the same bits"


def test_a_shortlist_that_misses_too_much_gives_way_to_exact_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "_SHORT_DIMENSIONS", 8)
    f = torch.randn(1500, 200)  # no direction matters more than another
    assert graph._shortlist(f - f.mean(0), 10) is None
    assert torch.equal(graph.neighbours(f, 10, exact_up_to=1000), graph.neighbours(f, 10))


def test_tiny_cells_still_give_k_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "_FLAT_UP_TO", 10)
    monkeypatch.setattr(graph, "LEAST_RECALL", 0.0)
    f = torch.cat([torch.randn(55, 3), torch.randn(5, 3) + 1000])
    lists = graph.neighbours(f, 20, exact_up_to=10)
    assert lists.shape == (60, 20)
    assert all(len(set(row)) == 20 and i not in row for i, row in enumerate(lists.tolist()))


def test_whole_numbers_and_gradients_are_welcome() -> None:
    f = torch.randint(0, 100, (20, 3))
    assert torch.equal(graph.neighbours(f, 3), graph.neighbours(f.float().requires_grad_(), 3))


@pytest.mark.parametrize("k", [0, 5, 9])
def test_impossible_k_is_refused_in_one_sentence(k: int) -> None:
    with pytest.raises(NotelaError, match=f"k={k} .*5 rows.*between 1 and 4"):
        graph.neighbours(torch.randn(5, 2), k)


def test_nan_features_are_named() -> None:
    f = torch.randn(6, 2)
    f[4, 0] = torch.nan
    with pytest.raises(NotelaError, match=r"rows \[4\] hold NaN"):
        graph.neighbours(f, 2)
