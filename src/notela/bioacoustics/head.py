"""A small classifier on embeddings: norm layer, dropout, linear layer. What `notela.adapt` moves in seconds where the
model itself cannot be trained.

Trained on labelled embeddings (`train_head`), or the model's own last layer (`own_head`). Its file is one
`.safetensors` with its classes and the name of the model whose embeddings it knows.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import notela
from notela import metrics
from notela.bioacoustics.embeddings import Embedded
from notela.bioacoustics.taxonomy import Species
from notela.bioacoustics.train import better
from notela.errors import NotelaError
from notela.runs import replacing

FORMAT = 1
DROPOUT = 0.3

_HEADER = "notela.head"


class FixedNorm(nn.Module):
    """Scale and shift without statistics: the norm layer of a model whose own statistics nobody knows. It begins as
    nothing at all, and is no place for AdaBN."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dimensions)), nn.Parameter(torch.zeros(dimensions))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias


class Head(nn.Module):
    """From embeddings (N, dimensions) to logits (N, classes)."""

    def __init__(
        self, classes: Sequence[Species], dimensions: int, of: str, norm: bool = True, dropout: float = DROPOUT
    ) -> None:
        super().__init__()
        self.classes, self.dimensions, self.of = tuple(Species(*one) for one in classes), dimensions, of
        self.norm = nn.BatchNorm1d(dimensions) if norm else FixedNorm(dimensions)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(dimensions, len(self.classes))

    def forward(self, embeddings: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.dropout(self.norm(embeddings)))
        return logits

    def check(self, data: Embedded) -> None:
        """Refuse embeddings of another model."""
        if data.manifest["identity"] != self.of:
            raise NotelaError(
                f"{data.folder} holds embeddings of {data.manifest['model']} ({data.manifest['identity']}), and this "
                f"head was made for those of {self.of}; embed the recordings with the same model"
            )


def own_head(
    weights: npt.NDArray[np.float32], bias: npt.NDArray[np.float32], outputs: Sequence[Species], of: str
) -> Head:
    """A model's last layer, logits = embeddings @ weights.T + bias, as a head that can be adapted."""
    head = Head(outputs, weights.shape[1], of, norm=False)
    with torch.no_grad():
        head.linear.weight.copy_(torch.from_numpy(weights))
        head.linear.bias.copy_(torch.from_numpy(bias))
    return head.eval()


def train_head(
    data: Embedded,
    *,
    epochs: int = 60,
    patience: int = 10,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-2,
    seed: int = 0,
) -> tuple[Head, list[dict[str, float]], int]:
    """Train on the split "adapt", stop by the split "test"; the best epoch's head, what happened, and which epoch that
    was. Seconds, so nothing is kept of a training that is stopped."""
    if not data.classes:
        raise NotelaError(
            f"{data.folder} has no labels to train on; embed a set prepared with --focal or --annotations"
        )
    rows, held_out = data.rows("adapt"), data.rows("test")
    if len(rows) < 2 or not len(held_out):
        raise NotelaError(
            f"{data.folder} has {len(rows)} windows to train on and {len(held_out)} to stop by; embed more recordings"
        )
    x, y = (torch.from_numpy(np.array(part[rows])) for part in (data.embeddings, data.labels()))
    tests = [torch.from_numpy(np.array(part[held_out])) for part in (data.embeddings, data.labels())]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Head(data.classes, data.manifest["dimensions"], data.manifest["identity"])
        optimizer = torch.optim.AdamW(head.parameters(), learning_rate, weight_decay=weight_decay)
        history: list[dict[str, float]] = []
        best, best_state = 0, head.state_dict()
        for epoch in range(1, epochs + 1):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * 0.5 * (1 + math.cos(math.pi * (epoch - 1) / epochs))
            head.train()
            total = 0.0
            groups = list(torch.randperm(len(x)).split(batch_size))
            if len(groups) > 1 and len(groups[-1]) == 1:  # a lone window has no batch statistics
                groups[-2:] = [torch.cat(groups[-2:])]
            for chosen in groups:
                optimizer.zero_grad()
                loss = F.binary_cross_entropy_with_logits(head(x[chosen]), y[chosen].float())
                loss.backward()
                optimizer.step()
                total += float(loss.detach()) * len(chosen)
            with torch.no_grad():
                z = head.eval()(tests[0])
            labels = tests[1].float()
            scores = {name: metrics.BY_NAME[name](z, labels) for name in metrics.defined(labels)}
            scores["held-out loss"] = float(F.binary_cross_entropy_with_logits(z, labels))
            history.append({"epoch": epoch, "loss": total / len(x), **scores})
            if best == 0 or better(history[-1], history[best - 1], len(head.classes)):
                best, best_state = epoch, {name: value.clone() for name, value in head.state_dict().items()}
            if epoch - best >= patience:
                break
    head.load_state_dict(best_state)
    return head.eval(), history, best


# ---- the file


def save(head: Head, path: str | os.PathLike[str], made_by: dict[str, Any] | None = None) -> None:
    """One file, whole or not at all; `made_by`: of an adapted head, the run that made it (`result.description`)."""
    header = {
        "format": FORMAT,
        "made_by": f"notela {notela.__version__}",
        "run": made_by,
        "of": head.of,
        "dimensions": head.dimensions,
        "norm": isinstance(head.norm, nn.BatchNorm1d),
        "dropout": head.dropout.p,
        "classes": [list(one) for one in head.classes],
    }
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in head.state_dict().items()}
    with replacing(Path(path)) as aside:
        save_file(tensors, aside, {_HEADER: json.dumps(header, ensure_ascii=False)})


def is_head(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one that `save` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            return _HEADER in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def load(path: str | os.PathLike[str]) -> Head:
    """A head in evaluation mode."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
        if int(header["format"]) > FORMAT:
            raise NotelaError(f"{path} was made by a newer notela ({header['made_by']}); update this one")
        head = Head(header["classes"], header["dimensions"], header["of"], header["norm"], header["dropout"])
        head.load_state_dict(load_file(path))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, NotelaError):
            raise
        raise NotelaError(f"{path} cannot be read as a head on embeddings ({error}); copy it again") from error
    return head.eval()
