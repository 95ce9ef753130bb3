"""Two or three real digits on one canvas: which ones are there? Clean at the source, corrupted at the targets.

    notela bench digits-multi
    notela bench digits-multi --set strength=50 --to results/digits-multi-50  # corruptions half as strong

At the source every class is as frequent as any other; each target has its own common and rare classes. Adaptation and
held-out canvases are pasted from different digits. Made with `python -m notela.bench.suites.digits_multi`: the source
network's weights, `digits_multi.safetensors`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from notela.bench.suite import Domain, Suite
from notela.bench.suites.digits import ADAPT, Images, check_strength, corrupt, milder, network, pool, train

WEIGHTS = Path(__file__).with_name("digits_multi.safetensors")
SIDE, STRENGTH = 18, 0.6
ADAPT_CANVASES, TEST_CANVASES, SOURCE_CANVASES = 600, 400, 3000


def suite(strength: int = 100) -> Suite:
    """Nine corruptions of canvases of digits that the source network has not seen, with skewed classes; `strength`: per
    cent of what each corruption is in this suite."""
    check_strength(strength)
    places = partial(partial, _domain, strength=STRENGTH * strength / 100)
    return Suite(
        name="digits-multi" + ("" if strength == 100 else f"-{strength}"),
        task="multilabel",
        metrics=("map", "cmap", "auroc", "top1"),
        protocol=f"two or three digits on a {SIDE}×{SIDE} canvas, class frequencies ∝ 1/rank in each target's own "
        "order; no digit is in two of source, validation and test, nor in adaptation and held-out canvases; all 10 "
        "outputs kept; cmAP over classes with at least 5 positives" + milder(strength),
        class_names=tuple("0123456789"),
        model=model,
        validation={name: places("validation", name) for name in ("noise", "contrast", "blur")},
        test={name: places("test", name) for name in ("impulse", "fog", "thick", "tilt", "shadow", "stripes")},
        source=places("source", "clean"),
        overrides={"batch_size": 16},  # the paper's 64 would leave these small sets 100 steps
    )


def canvases(images: Images, classes: np.ndarray, count: int, weights: np.ndarray, seed: str) -> tuple[Images, Tensor]:
    """`count` canvases with two or three digits each, drawn by class weight, and their labels (count, 10)."""
    rng = np.random.default_rng(list(seed.encode()))
    x, y = np.zeros((count, SIDE, SIDE)), torch.zeros(count, 10)
    for canvas, labels in zip(x, y, strict=True):
        for c in rng.choice(10, rng.integers(2, 4), replace=False, p=weights / weights.sum()):
            digit = images[rng.choice(np.flatnonzero(classes == c))]
            top, left = rng.integers(0, SIDE - 7, 2)
            window = canvas[top : top + 8, left : left + 8]
            np.maximum(window, digit, out=window)
            labels[c] = 1
    return x, y


def _domain(part: str, corruption: str, strength: float = STRENGTH) -> Domain:
    images, classes, share = pool(part)
    adapt = share < ADAPT
    order = np.random.default_rng(list(f"classes {corruption}".encode())).permutation(10)
    weights = np.ones(10) if part == "source" else 1 / (1 + order)
    count = SOURCE_CANVASES if part == "source" else ADAPT_CANVASES
    made = []
    for role, mine, number in (("adapt", adapt, count), ("test", ~adapt, TEST_CANVASES)):
        seed = f"{part} {corruption} {role}"
        x, y = canvases(images[mine], classes[mine], number, weights, seed)
        made.append((corrupt(x, corruption, seed, strength), y))
    return Domain(adapt=made[0][0], test=made[1][0], test_labels=made[1][1], adapt_labels=made[0][1])


def model() -> nn.Module:
    """The source network, trained."""
    net = network(nn.AdaptiveMaxPool2d(1))
    net.load_state_dict(load_file(WEIGHTS))
    return net.eval()


def train_source() -> nn.Module:
    """Trained on clean canvases of the source's digits; takes seconds."""
    domain = _domain("source", "clean")
    return train(
        network(nn.AdaptiveMaxPool2d(1)),
        domain.adapt,
        domain.adapt_labels,
        nn.functional.binary_cross_entropy_with_logits,
    )


if __name__ == "__main__":
    save_file(train_source().state_dict(), WEIGHTS)
