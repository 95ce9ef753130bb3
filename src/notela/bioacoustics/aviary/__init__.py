"""The aviary: a world of birds that do not exist, made from numbers alone, so that it needs no download.

Focal recordings (one bird in front, good signal, assorted recorders) to train a source model on, and soundscapes of
seven domains (many birds at all distances, noises, one make of recorder) to adapt it to, written as the published sets
are.
"""

from notela.bioacoustics.aviary.domains import DIFFICULTY, DOMAINS, VALIDATION, Difficulty, Domain
from notela.bioacoustics.aviary.species import SPECIES, species
from notela.bioacoustics.aviary.world import write_domain, write_focal

__all__ = [
    "DIFFICULTY",
    "DOMAINS",
    "SPECIES",
    "VALIDATION",
    "Difficulty",
    "Domain",
    "species",
    "write_domain",
    "write_focal",
]
