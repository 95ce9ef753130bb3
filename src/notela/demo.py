"""`notela demo`: a small network trained on scikit-learn's real 8×8 digits meets a corrupted copy of them."""

from __future__ import annotations

import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from notela import methods
from notela.evaluation import Evaluator, Predict
from notela.loop import adapt

# The presets were made for sets a hundred times as large; 100 steps at their rates would hardly move anything.
RATE, BATCH = 1e-3, 16


def run(seed: int = 0) -> None:
    """Source model → eight methods on unlabelled corrupted digits → table of accuracy on held-out ones."""
    console = Console()
    x, y = digits()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, target = order[:900], order[900:]
    shifted = corrupt(x[target], seed)
    unlabelled, held_out = shifted[: len(target) * 3 // 4], slice(len(target) * 3 // 4, None)
    evaluator = Evaluator(shifted[held_out], y[target][held_out], task="singlelabel")
    clean = Evaluator(x[target][held_out], y[target][held_out], task="singlelabel")

    with console.status("training the source network on 900 clean digits"):
        model = train_source(x[train], y[train], seed)
    table = Table(
        title="Accuracy on held-out corrupted digits, %",
        caption=f"no labels used; last epoch; image presets, but rate {RATE} and batches of {BATCH}; "
        f"on {len(y[target][held_out])} digits a few points are chance",
    )
    for column in ("method", "before", "after", "change", "seconds"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name in methods.names():
        start = time.perf_counter()
        preset = methods.preset(name, "image")
        with console.status(f"adapting with {name} to {len(unlabelled)} unlabelled corrupted digits"):
            result = adapt(
                model,
                unlabelled,
                task="singlelabel",
                method=preset,
                learning_rate=None if name == "adabn" else RATE,
                batch_size=BATCH,
                seed=seed,
                evaluator=evaluator,
                progress=False,
            )
        assert result.source is not None
        before, after = 100 * result.source["accuracy"], 100 * result.history[-1]["evaluation"]["accuracy"]
        seconds = time.perf_counter() - start
        table.add_row(name, f"{before:.1f}", f"{after:.1f}", f"{after - before:+.1f}", f"{seconds:.1f}")
    console.print(f"The network scores {100 * score(model, clean):.1f} % on clean held-out digits.")
    console.print(table)
    console.print("In your own code: notela.adapt(model, data, task='singlelabel').model")


def digits() -> tuple[Tensor, Tensor]:
    """1,797 real handwritten digits, (N, 1, 8, 8) in [0, 1], and their classes."""
    data = load_digits()
    return torch.tensor(data.images / 16, dtype=torch.float32)[:, None], torch.tensor(data.target)


def corrupt(x: Tensor, seed: int) -> Tensor:
    """Another camera: low contrast, a bright background and sensor noise."""
    noise = torch.from_numpy(np.random.default_rng(seed).normal(scale=0.15, size=x.shape)).float()
    return (0.4 * x + 0.5 + noise).clamp(0, 1)


def network() -> nn.Module:
    """A small convolutional network with norm and dropout layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(64, 10),
    )


def train_source(x: Tensor, y: Tensor, seed: int, epochs: int = 30) -> nn.Module:
    """An ordinary supervised network, which then never sees its training data again."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(64):
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return model.eval()


def score(model: nn.Module, evaluator: Evaluator) -> float:
    """Accuracy of a model as it is."""
    return evaluator(Predict(model))["accuracy"]
