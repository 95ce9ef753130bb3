"""Selection, on the validation domains alone: the records handed over here can hold nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from notela.bench.plan import SEARCH_SEED, Protocol
from notela.bench.records import Records
from notela.errors import NotelaError
from notela.methods.base import Preset


@dataclass(frozen=True)
class Choice:
    """The candidate with the best mean of the first metric over the validation domains, at the last epoch."""

    preset: Preset
    score: float
    tried: int
    failed: int


def select(protocol: Protocol, validation: Records) -> dict[str, Choice]:
    """The best candidate of each method. Of equals the first; one that failed on a domain cannot be chosen, and a
    method whose candidates all failed is left out (all of them cannot be). Without a search, the published settings."""
    if not protocol.searched:
        return {method: Choice(protocol.candidates(method)[0], math.nan, 0, 0) for method in protocol.rows}
    chosen = {}
    for method in protocol.rows:
        candidates = protocol.candidates(method)
        means = [_score(protocol, validation, method, candidate) for candidate in candidates]
        alive = [mean for mean in means if mean is not None]
        if alive:
            best = max(alive)
            chosen[method] = Choice(candidates[means.index(best)], best, len(means), len(means) - len(alive))
    if not chosen:
        raise NotelaError(f"no candidate of any method survived the search; the errors are in {validation.path}")
    return chosen


def _score(protocol: Protocol, validation: Records, method: str, candidate: Preset) -> float | None:
    values = []
    for domain in protocol.validation:
        record = validation.get(protocol.job(domain, method, candidate, SEARCH_SEED).key)
        if record is None:
            raise NotelaError(
                f"the search is not complete: {method} was not run on {domain} yet; run the same command again"
            )
        if "error" in record:
            return None
        values.append(record["evaluation"][protocol.metrics[0]][-1])
    return float(np.mean(values))
