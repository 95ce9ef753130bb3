"""Random numbers that do not depend on how a set of images is split into batches."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from notela.vision.corruptions.arrays import Array
from notela.vision.severities import EXTRA, NAMES


class Draws:
    """Random numbers for a block of images: row i of an array comes from a generator of image i's own."""

    def __init__(self, seed: int, name: str, severity: int, image_numbers: range) -> None:
        self._key = (seed, (NAMES + EXTRA).index(name), severity)
        self._image_numbers = image_numbers

    @cached_property
    def _generators(self) -> list[np.random.Generator]:
        return [np.random.default_rng((*self._key, number)) for number in self._image_numbers]

    def __len__(self) -> int:
        return len(self._image_numbers)

    def normal(self, *shape: int) -> Array:
        out = np.empty((len(self), *shape))
        for generator, row in zip(self._generators, out, strict=True):
            generator.standard_normal(out=row)
        return out

    def uniform(self, *shape: int) -> Array:
        """In [0, 1)."""
        out = np.empty((len(self), *shape))
        for generator, row in zip(self._generators, out, strict=True):
            generator.random(out=row)
        return out

    def steps(self, reach: int, *shape: int) -> Array:
        """Whole numbers from -reach to reach - 1."""
        out = np.empty((len(self), *shape), np.int8)
        for generator, row in zip(self._generators, out, strict=True):
            row[...] = generator.integers(-reach, reach, shape, np.int8)
        return out

    def poisson(self, expected: Array) -> Array:
        out = np.empty_like(expected)
        for generator, row, mean in zip(self._generators, out, expected, strict=True):
            row[...] = generator.poisson(mean)
        return out
