"""Single-label and multi-label classification, written as one algebra.

How the two differ is written here; methods branch only where they are defined differently for each. `logits` are (N, C)
over the kept classes; a multi-label problem is C separate two-way problems [1 - p, p] (paper, section 3.1). Everything
is computed from logits in log space, so that logits of ±1e4 stay finite.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from notela.errors import check_choice

Task = Literal["singlelabel", "multilabel"]


def check_task(task: str) -> None:
    """Refuse anything but the two tasks."""
    check_choice("task", task, get_args(Task))


def probabilities(logits: Tensor, task: Task) -> Tensor:
    """softmax(z), or σ(z) for each class on its own.

    >>> probabilities(torch.tensor([[0.0, 0.0]]), "singlelabel")
    tensor([[0.5000, 0.5000]])
    >>> probabilities(torch.tensor([[0.0, 1e4]]), "multilabel")
    tensor([[0.5000, 1.0000]])
    """
    check_task(task)
    return logits.softmax(-1) if task == "singlelabel" else logits.sigmoid()


def entropy(logits: Tensor, task: Task) -> Tensor:
    """Entropy of each row's prediction, in nats; multi-label: mean over classes of the binary entropy.

    >>> entropy(torch.zeros(1, 4), "singlelabel").exp()
    tensor([4.])
    >>> entropy(torch.zeros(1, 4), "multilabel").exp()
    tensor([2.])
    """
    return cross_entropy(logits, probabilities(logits, task), task)


def marginal_entropy(logits: Tensor, task: Task) -> Tensor:
    """Entropy of the mean prediction over the rows: a scalar (SHOT's and NRC's diversity term).

    >>> certain = torch.tensor([[9e3, 0.0], [0.0, 9e3]])  # each row sure of another class
    >>> marginal_entropy(certain, "singlelabel").exp()
    tensor(2.)
    """
    check_task(task)
    n = math.log(len(logits))
    if task == "singlelabel":
        log_p = logits.log_softmax(-1).logsumexp(0) - n
        return -(log_p.exp() * log_p).sum()
    log_p = F.logsigmoid(logits).logsumexp(0) - n
    log_q = F.logsigmoid(-logits).logsumexp(0) - n
    return -(log_p.exp() * log_p + log_q.exp() * log_q).mean()


def entropy_of(p: Tensor, task: Task) -> Tensor:
    """Entropy of probabilities (..., C) that are known as such, for reports; losses use the forms from logits.

    >>> entropy_of(torch.tensor([0.5, 0.5]), "singlelabel").exp()
    tensor(2.)
    """
    check_task(task)
    yes, no = torch.special.entr(p), torch.special.entr(1 - p)
    result: Tensor = yes.sum(-1) if task == "singlelabel" else (yes + no).mean(-1)
    return result


def cross_entropy(logits: Tensor, labels: Tensor, task: Task, mask: Tensor | None = None) -> Tensor:
    """Cross-entropy of each row against (soft) labels of the logits' shape.

    Multi-label: the mean over classes of the binary cross-entropy. `mask` says what counts: rows (N,) in the
    single-label task, entries (N, C) in the multi-label one, where the mean is then over the row's kept entries.
    A row with nothing kept costs 0.

    >>> z = torch.tensor([[2.0, 0.0]])
    >>> cross_entropy(z, torch.tensor([[1.0, 0.0]]), "singlelabel")
    tensor([0.1269])
    >>> cross_entropy(z, torch.tensor([[1.0, 0.0]]), "multilabel", mask=torch.tensor([[True, False]]))
    tensor([0.1269])
    """
    check_task(task)
    if task == "singlelabel":
        each_row = -(labels * logits.log_softmax(-1)).sum(-1)
        return each_row if mask is None else each_row * mask
    each_entry = -(labels * F.logsigmoid(logits) + (1 - labels) * F.logsigmoid(-logits))
    if mask is None:
        return each_entry.mean(-1)
    return (each_entry * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def divergence(logits: Tensor, reference: Tensor, task: Task) -> Tensor:
    """KL(p ‖ reference) from logits: one number a row (N,), or one for each entry (N, C) if multi-label.

    >>> divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[2.0, 0.0]]), "singlelabel")
    tensor([0.4338])
    """
    check_task(task)
    if task == "singlelabel":
        log_p = logits.log_softmax(-1)
        return (log_p.exp() * (log_p - reference.log_softmax(-1))).sum(-1)
    positive = logits.sigmoid() * (F.logsigmoid(logits) - F.logsigmoid(reference))
    negative = (-logits).sigmoid() * (F.logsigmoid(-logits) - F.logsigmoid(-reference))
    return positive + negative


def sharpen(logits: Tensor, task: Task, alpha: float = 1.0, message: Tensor | None = None) -> Tensor:
    """Pseudo-labels y ∝ p^(1/α) ⊙ exp(m/α): the paper's eq. 3, with m the neighbours' `message`.

    Multi-label: σ((z + m)/α), the two-way formula written in logit space (see `votes`). α = 0 is the limit: the
    arg-max shared equally among ties, or a step function with ½ at a tie. Without a message, α = 1 gives p.

    >>> sharpen(torch.tensor([[2.0, 1.0, 2.0]]), "singlelabel", alpha=0)
    tensor([[0.5000, 0.0000, 0.5000]])
    >>> sharpen(torch.tensor([[1.0, 0.0, -3.0]]), "multilabel", alpha=0)
    tensor([[1.0000, 0.5000, 0.0000]])
    """
    check_task(task)
    if message is not None:
        logits = logits + message
    if task == "multilabel":
        return (logits.sign() + 1) / 2 if alpha == 0 else (logits / alpha).sigmoid()
    gap = logits - logits.amax(-1, keepdim=True)  # softmax does not feel a shift; ≤ 0, so dividing cannot overflow
    if alpha == 0:
        best = (gap == 0).to(logits.dtype)
        return best / best.sum(-1, keepdim=True)
    return (gap / alpha).softmax(-1)


def votes(labels: Tensor, task: Task, mass: Tensor | float = 1.0) -> Tensor:
    """What a neighbour with these (soft) labels says of each class, in the units of a logit; or what several say whose
    labels were summed with weights of this total `mass`.

    The label itself; multi-label: y - (1 - y) = 2y - 1, since adding λWy to log p and λW(1-y) to log(1-p) adds
    the difference to the logit.

    >>> votes(torch.tensor([[0.0, 0.5, 1.0]]), "multilabel")
    tensor([[-1.,  0.,  1.]])
    """
    check_task(task)
    return labels if task == "singlelabel" else 2 * labels - mass


def hard(labels: Tensor, task: Task) -> Tensor:
    """The classes that soft labels stand for: arg-max (N,), or y > ½ (N, C).

    >>> hard(torch.tensor([[0.2, 0.8]]), "singlelabel"), hard(torch.tensor([[0.2, 0.8]]), "multilabel")
    (tensor([1]), tensor([[False,  True]]))
    """
    check_task(task)
    return labels.argmax(-1) if task == "singlelabel" else labels > 0.5
