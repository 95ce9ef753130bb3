"""Draws that are the same on every machine and do not depend on what else is drawn: for splits and seeds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


def stable_share(names: Iterable[str]) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each name, the same on every machine and whatever other names there are.

    >>> stable_share(["a", "b"]).round(3).tolist()
    [0.791, 0.243]
    """
    hashes = (hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8] for name in names)
    return np.array([int.from_bytes(h, "big") / 2**64 for h in hashes], dtype=np.float64)


def number_from(*parts: int) -> int:
    """A 63-bit number that follows from others."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))
