"""Images that the tests of the corruptions share."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10"
needs_data = pytest.mark.skipif(not DATA.exists(), reason=f"real data not present: {DATA.name}")


def pictures(n: int, side: int, width: int | None = None) -> np.ndarray:
    """Smooth coloured shapes with some grain, some values at 0 and 255."""
    rng = np.random.default_rng(n + side)
    x = ndimage.gaussian_filter(rng.normal(size=(n, side, width or side, 3)), (0, side / 12, side / 12, 0.4))
    x = 0.5 + 0.3 * x / x.std() + rng.normal(scale=0.03, size=x.shape)
    return (x.clip(0, 1) * 255).astype(np.uint8)


@lru_cache
def small() -> np.ndarray:
    return pictures(12, 32)


@lru_cache
def large() -> np.ndarray:
    return pictures(1, 224)


@lru_cache
def ice() -> list[np.ndarray]:
    return list(pictures(3, 220))


@lru_cache
def cifar() -> np.ndarray:
    with np.load(DATA / "cifar10_test.npz") as file:
        return np.asarray(file["images"][:1000])


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(float) - b).mean())
