"""Nearest neighbours and the mutual-neighbour affinity W of the Laplacian term (paper, section 4, "Complexity").

Exact search runs block by block over the upper triangle of the distance matrix (distances are symmetric: half the
work, and memory of one block instead of N²). Beyond `EXACT_UP_TO` rows a shortlist is made in few dimensions and ranked
by true distances; a sample of rows is checked against exact search, which takes over where the shortlist misses too
much. The same features give the same bits on one machine.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import torch
from torch import Tensor

from notela.errors import NotelaError, check_choice

Metric = Literal["euclidean", "cosine"]
Normalisation = Literal["row", "symmetric"]

EXACT_UP_TO = 10_000
LEAST_RECALL = 0.99
_BLOCK = 2_000
_SHORT_DIMENSIONS = 128
_FLAT_UP_TO = 50_000


def neighbours(features: Tensor, k: int, metric: Metric = "euclidean", exact_up_to: int = EXACT_UP_TO) -> Tensor:
    """The `k` nearest other rows of each row, nearest first: indices (N, k). A row is never its own neighbour.

    >>> neighbours(torch.tensor([[0.0], [1.0], [3.0]]), k=1)
    tensor([[1],
            [0],
            [1]])
    """
    if not 1 <= k < len(features):
        raise NotelaError(
            f"k={k} neighbours asked of {len(features)} rows: k must be between 1 and {len(features) - 1}"
        )
    points = _points(features, metric)
    if len(points) > exact_up_to and points.device.type == "cpu":
        lists = _shortlist(points, k)
        if lists is not None:
            return lists
    return _upper_triangle(points, k)


def search(queries: Tensor, bank: Tensor, k: int, own_rows: Tensor, metric: Metric = "euclidean") -> Tensor:
    """The `k` rows of `bank` nearest to each query, nearest first (Q, k), leaving out the query's own row.

    Far from the origin float32 loses the differences: subtract the same `offset` from both beforehand.

    >>> search(torch.tensor([[0.9]]), torch.tensor([[0.0], [1.0], [3.0]]), k=2, own_rows=torch.tensor([1]))
    tensor([[0, 2]])
    """
    check_choice("metric", metric, ("euclidean", "cosine"))
    if metric == "cosine":
        queries, bank = _unit(queries), _unit(bank)
    # Half the squared distance up to the query's own norm, which does not change the order within its row.
    distance = torch.addmm(_half_square(bank), queries, bank.T, alpha=-1)
    distance.scatter_(1, own_rows[:, None], torch.inf)
    return distance.topk(k, largest=False).indices


def offset(features: Tensor, metric: Metric) -> Tensor:
    """What may be subtracted from all features without changing neighbours: their mean, or nothing for cosine.

    >>> offset(torch.tensor([[1000.0], [1002.0]]), "euclidean")
    tensor([1001.])
    """
    check_choice("metric", metric, ("euclidean", "cosine"))
    return features.mean(0) if metric == "euclidean" else torch.zeros_like(features[0])


def mutual_affinity(
    features: Tensor, k: int, normalisation: Normalisation = "row", metric: Metric = "euclidean"
) -> Tensor:
    """The affinity matrix W of the mutual k-nearest-neighbour graph: sparse CSR (N, N), zero diagonal.

    i ~ j only if each is among the other's k nearest. "row" divides each row by its own degree; "symmetric" is
    D^-½ A D^-½ (paper, appendix). A row without mutual neighbours is empty.

    >>> mutual_affinity(torch.tensor([[0.0], [1.0], [3.0]]), k=1).to_dense()
    tensor([[0., 1., 0.],
            [1., 0., 0.],
            [0., 0., 0.]])
    """
    check_choice("normalisation", normalisation, ("row", "symmetric"))
    if features.device.type == "mps":  # no sparse tensors there
        features = features.cpu()
    n = len(features)
    lists = neighbours(features, k, metric)
    own = torch.arange(n, device=lists.device)[:, None]
    mutual = is_mutual(own[:, 0], lists, lists)
    degree = mutual.sum(1)
    weights = edge_weights(degree, degree[lists], normalisation)
    lists, order = lists.sort(1)  # CSR wants ascending columns
    mutual, weights = mutual.gather(1, order), weights.gather(1, order)
    starts = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
    return _csr(starts, lists[mutual], weights[mutual].to(features.dtype), n)


def symmetric_affinity(features: Tensor, k: int, metric: Metric = "euclidean") -> Tensor:
    """W = (A + Aᵀ)/2 of the k-nearest-neighbour graph A (a_ij = 1 if j is among the k nearest of i): sparse CSR (N, N),
    zero diagonal. Mutual neighbours weigh 1, others ½.

    >>> symmetric_affinity(torch.tensor([[0.0], [1.0], [3.0]]), k=1).to_dense()
    tensor([[0.0000, 1.0000, 0.0000],
            [1.0000, 0.0000, 0.5000],
            [0.0000, 0.5000, 0.0000]])
    """
    if features.device.type == "mps":  # no sparse tensors there
        features = features.cpu()
    n = len(features)
    lists = neighbours(features, k, metric).flatten()
    own = torch.arange(n, device=lists.device).repeat_interleave(k)
    # One number a pair sorts them as CSR wants: by row, then by column. A pair met twice is a mutual one.
    pairs, met = torch.cat([own * n + lists, lists * n + own]).unique(return_counts=True)
    starts = torch.searchsorted(pairs, torch.arange(n + 1, device=pairs.device) * n)
    return _csr(starts, pairs % n, (met / 2).to(features.dtype), n)


def is_mutual(rows: Tensor, lists: Tensor, all_lists: Tensor) -> Tensor:
    """Which neighbours `lists` (B, k) of `rows` (B,) name the row back in `all_lists` (N, k): mask (B, k).

    >>> is_mutual(torch.tensor([2]), torch.tensor([[1]]), torch.tensor([[1], [0], [1]]))
    tensor([[False]])
    """
    named_back = torch.zeros_like(lists, dtype=torch.bool)
    for rank in range(all_lists.shape[1]):  # k comparisons of (B, k) keep memory at B·k instead of B·k²
        named_back |= all_lists[:, rank][lists] == rows[:, None]
    return named_back


def edge_weights(degree: Tensor, neighbour_degree: Tensor, normalisation: Normalisation) -> Tensor:
    """Weight of each edge from the degrees of its row (B,) and of its neighbours (B, k).

    >>> edge_weights(torch.tensor([4]), torch.tensor([[1, 4]]), "symmetric")
    tensor([[0.5000, 0.2500]])
    """
    own = degree[:, None].clamp(min=1)
    if normalisation == "row":
        return (1 / own).expand(neighbour_degree.shape)
    return (own * neighbour_degree.clamp(min=1)).rsqrt()


def _unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=1)


def _points(features: Tensor, metric: Metric) -> Tensor:
    """Points whose Euclidean distances rank as `metric` does, centred so that float32 loses less to cancellation."""
    check_choice("metric", metric, ("euclidean", "cosine"))
    features = features.detach() if features.is_floating_point() else features.float()
    if not features.sum().isfinite() and not features.isfinite().all():  # the sum alone costs a thirtieth
        bad = (~features.isfinite()).flatten(1).any(1).nonzero().flatten()
        raise NotelaError(f"the features of rows {bad[:8].tolist()} hold NaN or infinity: no neighbours exist")
    points = _unit(features) if metric == "cosine" else features
    return points - offset(points, "euclidean")


def _upper_triangle(points: Tensor, k: int) -> Tensor:
    """Exact neighbours; every pair of blocks is multiplied once and read in both directions."""
    n = len(points)
    half_square = _half_square(points)
    best = points.new_full((n, k), torch.inf)
    index = torch.zeros(n, k, dtype=torch.long, device=points.device)
    room = points.new_empty(min(_BLOCK, n) ** 2)  # reused: fresh blocks would cost a page fault every 4 kB

    def offer(rows: slice, distance: Tensor, first_column: int) -> None:
        found, where = distance.topk(min(k, distance.shape[1]), largest=False, sorted=False)
        candidates = torch.cat([best[rows], found], 1)
        best[rows], keep = candidates.topk(k, largest=False, sorted=False)
        index[rows] = torch.cat([index[rows], where + first_column], 1).gather(1, keep)

    for top in range(0, n, _BLOCK):
        rows = slice(top, min(top + _BLOCK, n))
        for left in range(top, n, _BLOCK):
            columns = slice(left, min(left + _BLOCK, n))
            height, width = rows.stop - top, columns.stop - left
            distance = room[: height * width].view(height, width)
            torch.addmm(half_square[columns], points[rows], points[columns].T, alpha=-1, out=distance)
            distance += half_square[rows, None]
            if left == top:
                distance.fill_diagonal_(torch.inf)
            offer(rows, distance, left)
            if left > top:
                offer(columns, distance.T, top)
    nearest_first: Tensor = best.argsort(dim=1, stable=True)
    return index.gather(1, nearest_first)


def _half_square(x: Tensor) -> Tensor:
    """|x|²/2 of each row, without a temporary of x's size."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=1)
    return norm.square() / 2


def _shortlist(points: Tensor, k: int) -> Tensor | None:
    """Neighbours by true distance among the 4k nearest in the leading principal directions; None if a sample of rows
    shows that too many are missed.

    Few directions hold most of the spread of real embeddings, and a search among 128 numbers costs a tenth of one among
    1,280. Beyond `_FLAT_UP_TO` rows only the nearest cells of a k-means partition are searched: less than N² time.
    """
    import faiss

    n, d = points.shape
    short = points.float()
    if d > 2 * _SHORT_DIMENSIONS:
        some = points[torch.linspace(0, n - 1, min(n, 2_000), dtype=torch.float64).long()].float()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            short = short @ torch.pca_lowrank(some, q=_SHORT_DIMENSIONS, center=False, niter=1)[2]
    x = short.contiguous().numpy()
    index: Any = faiss.IndexFlatL2(x.shape[1])
    if n > _FLAT_UP_TO:
        cells = int(4 * n**0.5)
        index = faiss.IndexIVFFlat(index, x.shape[1], cells)
        index.cp.min_points_per_centroid = 1
        index.train(x)
        index.nprobe = max(8, cells // 16)
    index.add(x)

    def listed(rows: Tensor) -> Tensor:
        return torch.from_numpy(index.search(x[rows.numpy()], min(4 * k + 1, n))[1])

    sample = torch.linspace(0, n - 1, 256, dtype=torch.float64).long().unique()
    exact = search(points[sample], points, k, sample)
    if (exact[:, :, None] == listed(sample)[:, None, :]).any(2).float().mean() < LEAST_RECALL:
        return None
    own = torch.arange(n)[:, None]
    candidates = listed(own[:, 0])
    candidates = torch.where(candidates < 0, own, candidates).sort(1).values  # -1: the cells held too few
    distance = _half_square(points)[candidates] - _products(points, candidates)
    best = distance.masked_fill_(candidates == own, torch.inf).topk(k, largest=False)
    lists = candidates.gather(1, best.indices)
    for rows in best.values[:, -1].isinf().nonzero().flatten().split(_BLOCK):
        lists[rows] = search(points[rows], points, k, rows)
    return lists


def _products(points: Tensor, candidates: Tensor) -> Tensor:
    """⟨x_i, x_j⟩ of each row with its candidates (N, m), without gathering N·m rows."""
    n, m = candidates.shape
    pattern = _csr(torch.arange(0, n * m + 1, m), candidates.flatten(), points.new_zeros(n * m), n)
    products: Tensor = torch.sparse.sampled_addmm(pattern, points, points.T)
    return products.values().view(n, m)


def _csr(starts: Tensor, columns: Tensor, values: Tensor, n: int) -> Tensor:
    with warnings.catch_warnings():  # torch calls CSR "beta"; nothing a user could act on
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(starts, columns, values, (n, n), check_invariants=False)
