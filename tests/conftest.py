"""Small networks, data and an engine that the tests share."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import notela
from notela.engines import here
from notela.signals import Signals

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a script's background, where no Ctrl-C would be heard
    signal.signal(signal.SIGINT, signal.default_int_handler)

TASKS = ("singlelabel", "multilabel")
CLASSES = 5
GOOD = Signals(0.5, 0.6, 0.6, 0.6, classes=8.0, mix=0.0, agreement=0.7, positives=1.0, rank=6.0, disagreement=0.1)


class Net(nn.Module):
    """Convolution, batch norm, dropout, layer norm, head: one of each kind of layer a policy distinguishes."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 6, 3, padding=1)
        self.bn = nn.BatchNorm1d(6)
        self.hidden = nn.Linear(6 * 8, 12)
        self.ln = nn.LayerNorm(12)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.conv(x[:, None]))).flatten(1)
        return self.head(self.drop(torch.relu(self.ln(self.hidden(x)))))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(1)
    return Net().eval()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(70, 8, generator=torch.Generator().manual_seed(2)) * 2 + 1


@pytest.fixture
def quick() -> Callable[..., notela.Result]:
    """`notela.adapt` with two epochs of small batches, on the CPU."""

    def run(model: nn.Module, data: object, **settings: object) -> notela.Result:
        return notela.adapt(
            model, data, **{"epochs": 2, "batch_size": 16, "device": "cpu", "progress": False, **settings}
        )

    return run


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, copied."""
    return {name: t.detach().clone() for name, t in model.state_dict().items()}


def same(a: nn.Module, b: nn.Module) -> bool:
    """Bit for bit."""
    left, right = weights(a), weights(b)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def moved(a: nn.Module, b: nn.Module) -> set[str]:
    """The names whose values differ."""
    left, right = weights(a), weights(b)
    return {name for name in left if not torch.equal(left[name], right[name])}


class Here(here.Here):
    """An engine that works in this process, with one thread as the workers of the others."""

    def __init__(self) -> None:
        super().__init__(1)
