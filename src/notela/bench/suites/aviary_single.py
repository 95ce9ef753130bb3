"""The aviary with windows that hold exactly one species: single-label, as in the paper's second bird experiment.

notela bench aviary-single
"""

from __future__ import annotations

from pathlib import Path

from notela.bench.suite import Suite
from notela.bench.suites import aviary


def suite(data: Path = aviary.CACHE) -> Suite:
    """`data`: the folder for recordings and windows, the same as of `aviary`."""
    return aviary.make("aviary-single", "singlelabel", ("accuracy",), data)
