"""What a model's predictions on unlabelled rows look like, beside those of an earlier model, its reference: the numbers
that the guard reads.

Nothing here sees labels. Everything is measured on the same sample of rows again and again. Who is similar to whom is
said by the reference's features, which a run cannot change, and by the model's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from notela.classifier import Output
from notela.graph import mutual_affinity
from notela.task import Task, probabilities

if TYPE_CHECKING:
    from notela.state import State

SAMPLE, K = 2_000, 15
"""Rows that are looked at after each epoch, and neighbours of each."""
SHUFFLES = 10
"""How often first choices are dealt out at random, to see what neighbours share by chance."""


class Signals(NamedTuple):
    """A model on a sample of unlabelled rows."""

    information: float
    """What a row's first choice tells about those of similar rows: nats beyond chance, mean of the two graphs."""
    smoothness: float
    """Correlation of a class's probability with that of similar rows, beyond chance (Moran's I, the model's own graph),
    mean over classes by how much they are predicted."""
    backward_smoothness: float
    """The same of the reference's probabilities, on the model's own graph: they have less to do with who is similar if
    features become worse, and also if features become better than the reference's answers were."""
    forward_smoothness: float
    """The same of the model's probabilities, on the reference's graph: who is similar is said by features that no
    training touched."""
    classes: float
    """Effective number of classes in the mean prediction."""
    mix: float
    """How far the mix of classes in the mean prediction is from the reference's: total variation, 0 to 1."""
    agreement: float
    """How often similar rows have the same first choice: kappa, 0 by chance, 1 always; mean of the two graphs."""
    positives: float
    """Sure predictions, p > ½, a row."""
    rank: float
    """Effective rank of the predictions (RankMe of the rows' probabilities): 1 where all rows are alike."""
    disagreement: float
    """How often dropout changes a row's first choice; 0 if no layer of dropout is found. Dropout called as a function
    does not count, nor what torch's fused transformer layer passes over."""


class Look(NamedTuple):
    """What is seen of a model on a sample of rows."""

    p: Tensor
    """Probabilities (N, C)."""
    similar: Tensor
    """Pairs (2, M) of rows that are alike in its features."""
    disagreement: Tensor
    """How often dropout changes a row's first choice."""

    @classmethod
    def at(cls, output: Output, noisy: Tensor, task: Task) -> Look:
        """A model's output on the rows, and its logits with dropout."""
        p, shaken = (probabilities(logits.cpu(), task) for logits in (output.logits, noisy))
        disagreement = (p.argmax(1) != shaken.argmax(1)).float().mean()
        if not all(part.isfinite().all() for part in output):
            return cls(torch.full_like(p, torch.nan), torch.empty(2, 0, dtype=torch.long), disagreement)
        return cls(p, similar(output), disagreement)


class Watch:
    """Looks at a run on the same sample of rows again and again. Made while the state's model is the source."""

    def __init__(self, state: State) -> None:
        self._state = state
        dice = torch.Generator().manual_seed(0)  # the same rows whatever the run's seed: runs are ranked by them
        self._rows = torch.randperm(len(state.data), generator=dice)[:SAMPLE].sort().values
        self.source = Look.at(*state.deployed(self._rows), state.task)

    def look(self) -> Look:
        """At the model as it is now."""
        output, noisy = self._state.deployed(self._rows)
        method, task = self._state.preset.method, self._state.task
        if method.corrects:
            noisy = method.correct(Output(output.features, noisy), task)
        return Look.at(Output(output.features, method.correct(output, task)), noisy, task)


def read(now: Look, reference: Look) -> Signals:
    """Of a model beside one that it came from, on the same rows; all 0 where its answers are not numbers, as if all
    were 0 where the reference's are not."""
    p, before = now.p, reference.p.nan_to_num()
    if not p.isfinite().all():
        return Signals(*[0.0] * len(Signals._fields))
    first, mix, graphs = p.argmax(1), _shares(p.mean(0)), (reference.similar, now.similar)
    return Signals(
        sum(information(first, pairs) for pairs in graphs) / 2,
        smoothness(p, now.similar),
        smoothness(before, now.similar),
        smoothness(p, reference.similar),
        float(torch.special.entr(mix).sum().exp()),
        float((mix - _shares(before.mean(0))).abs().sum() / 2),
        sum(agreement(first, pairs) for pairs in graphs) / 2,
        float((p > 0.5).sum(1).float().mean()),
        effective_rank(p),
        float(now.disagreement),
    )


def similar(output: Output) -> Tensor:
    """Pairs (2, M) of mutual neighbours in feature space, in both directions; logits serve where the embedding is not
    known."""
    features = (output.features if output.features.shape[1] else output.logits).cpu()
    if len(features) < 3:
        return torch.empty(2, 0, dtype=torch.long)
    affinity = mutual_affinity(features, min(K, len(features) - 1), metric="cosine")
    degree = affinity.crow_indices().diff()
    return torch.stack([torch.arange(len(degree)).repeat_interleave(degree), affinity.col_indices()])


def information(first: Tensor, pairs: Tensor) -> float:
    """Mutual information of the first choices (N,) at both ends of a pair, in nats, minus what it is on average where
    the same choices are dealt out at random: with few pairs and many classes, much is shared by chance.

    >>> first = torch.tensor([0, 1]).repeat_interleave(100)
    >>> pairs = torch.stack([torch.arange(200), torch.arange(200).roll(1)])  # each row is like the one before it
    >>> 0.6 < information(first, pairs) < 0.69, information(torch.zeros(200, dtype=torch.long), pairs)
    (True, 0.0)
    """
    dice = torch.Generator().manual_seed(0)
    dealt = [first[torch.randperm(len(first), generator=dice)] for _ in range(SHUFFLES)]
    return _shared(first, pairs) - sum(_shared(one, pairs) for one in dealt) / SHUFFLES


def _shared(first: Tensor, pairs: Tensor) -> float:
    """Plain mutual information. A table of all pairs of classes would be mostly empty: only its cells are counted."""
    if not pairs.shape[1]:
        return 0.0
    one, other = first[pairs]
    c = int(first.max()) + 1
    cells, counts = torch.unique(one * c + other, return_counts=True)
    ends = [end.bincount(minlength=c) for end in (one, other)]
    joint, left, right = (number.double() / len(one) for number in (counts, *ends))
    return float(torch.special.xlogy(joint, joint / (left[cells // c] * right[cells % c])).sum())


def smoothness(p: Tensor, pairs: Tensor) -> float:
    """Of probabilities (N, C): about 1 where similar rows have the same, 0 where they have nothing to do with each
    other, for which Moran's I has the mean -1/(N - 1). A class without variance has none.

    >>> p, pairs = torch.tensor([[0.9], [0.9], [0.1], [0.1]]), torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    >>> round(smoothness(p, pairs), 4)  # I = 1, and 1/3
    1.3333
    """
    if not pairs.shape[1]:
        return 0.0
    mean = p.mean(0)
    aside = (p - mean).double()
    variance = aside.square().mean(0)
    ones = torch.ones(pairs.shape[1], dtype=torch.double)
    graph = torch.sparse_coo_tensor(pairs, ones, (len(p), len(p)), check_invariants=False)
    moran = (aside * (graph @ aside)).mean(0) * len(p) / pairs.shape[1] / variance.clamp(min=1e-12)
    each = torch.where(variance > 1e-12, moran + 1 / (len(p) - 1), 0.0)
    return float((each * _shares(mean)).sum())


def agreement(first: Tensor, pairs: Tensor) -> float:
    """Kappa of first choices (N,) at both ends of a pair: 0 where it is what their frequencies explain, 1 always.

    >>> agreement(torch.tensor([0, 0, 1, 1]), torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]))
    1.0
    """
    by_chance = float((first.bincount() / len(first)).square().sum())
    if not pairs.shape[1] or by_chance == 1:
        return 0.0
    return (float((first[pairs[0]] == first[pairs[1]]).float().mean()) - by_chance) / (1 - by_chance)


def effective_rank(p: Tensor) -> float:
    """RankMe (Garrido et al., 2023) of rows (N, C): the exponential of the entropy of their singular values' shares.

    >>> round(effective_rank(torch.eye(3)), 4), round(effective_rank(torch.ones(5, 3)), 4)
    (3.0, 1.0)
    """
    small = (p if p.shape[0] >= p.shape[1] else p.T).double()
    values = torch.linalg.eigvalsh(small.T @ small).clamp(min=0).sqrt()  # cheaper than all of a decomposition
    shares = values / values.sum().clamp(min=1e-12)
    return float(torch.special.entr(shares).sum().exp())


def _shares(mean: Tensor) -> Tensor:
    """A mean prediction as a distribution over classes."""
    return mean / mean.sum().clamp(min=1e-12)
