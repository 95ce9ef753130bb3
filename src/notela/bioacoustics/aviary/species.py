"""Forty birds that do not exist: their names, and voices that relatives have in common.

Every property of a voice is a sum of draws for its order, family, genus and species, each smaller than the one before,
so two species of one genus sound more alike than two of one family, and these more than two of different orders.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from notela.bioacoustics.aviary.song import KINDS, Note, Pattern, Voice
from notela.bioacoustics.taxonomy import Species

TREE: dict[str, dict[str, tuple[str, ...]]] = {
    "Velquoriformes": {"Velquoridae": ("Velquora", "Velmitha"), "Tassovidae": ("Tassova", "Tassilma")},
    "Brunexiformes": {"Brunexidae": ("Brunexa", "Brundola"), "Ghimoridae": ("Ghimora", "Ghistella")},
    "Omparexiformes": {"Omparexidae": ("Omparexa", "Ompeluna"), "Zuvindidae": ("Zuvinda", "Zuvelta")},
    "Kestoviriformes": {"Kestoviridae": ("Kestovira", "Keslumia"), "Draphelidae": ("Draphela", "Drapsina")},
    "Yalminthiformes": {"Yalminthidae": ("Yalmintha", "Yalgruda"), "Fosquenidae": ("Fosquena", "Fosdarila")},
}
"""Order, family, genera: invented; no list of birds has them."""
EPITHETS = (
    (("vitrea", "Glass"), ("fumosa", "Smoke")),
    (("cuprina", "Copper"), ("nivalba", "Snow")),
    (("umbrata", "Shadow"), ("solaris", "Sun")),
    (("salina", "Salt"), ("ventosa", "Wind")),
    (("lunula", "Moon"), ("pluvia", "Rain")),
)
"""Two species a genus: the second word of the scientific name, the first of the common one; genera take turns."""

SPECIES = 40
FEW = 6
"""Species of which there are few focal recordings, as the paper's "low data" ones; spread over the tree."""

WORLD = 20230206  # whatever else is drawn anew, the birds stay the same
SYLLABLES = 4  # notes that songs are made of; one more is the call

PROPERTIES = ("pitch", "sweep", "bend", "length", "gap", "rate", "depth", "pulse", "tilt")
RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "whistle": {
        "pitch": (1200, 7600),
        "sweep": (-0.55, 0.55),
        "bend": (-0.35, 0.35),
        "length": (0.12, 0.5),
        "gap": (0.05, 0.22),
        "rate": (4, 18),
        "depth": (0.005, 0.09),
        "pulse": (0.02, 0.3),
        "tilt": (24, 45),
    },
    "trill": {
        "pitch": (1900, 7600),
        "sweep": (-0.25, 0.25),
        "bend": (-0.12, 0.12),
        "length": (0.4, 1.5),
        "gap": (0.06, 0.25),
        "rate": (8, 32),
        "depth": (0.12, 0.8),
        "pulse": (0.9, 1),
        "tilt": (24, 45),
    },
    "buzz": {
        "pitch": (2200, 7600),
        "sweep": (-0.35, 0.35),
        "bend": (-0.15, 0.15),
        "length": (0.15, 0.7),
        "gap": (0.05, 0.2),
        "rate": (55, 170),
        "depth": (0.03, 0.16),
        "pulse": (0.3, 0.95),
        "tilt": (18, 40),
    },
    "stack": {
        "pitch": (380, 1700),
        "sweep": (-0.4, 0.4),
        "bend": (-0.5, 0.5),
        "length": (0.09, 0.4),
        "gap": (0.05, 0.22),
        "rate": (6, 40),
        "depth": (0.004, 0.05),
        "pulse": (0.05, 0.6),
        "tilt": (2.5, 9),
    },
}
"""Between which values birds differ; a species' draws say where between. Multiplied evenly, but for what has a sign."""

_COMMON = (1.0, 0.55, 0.36, 0.22)  # how far orders, families, genera and species lie apart, in all notes alike
_APART = (0.3, 0.25, 0.2, 0.2)  # and in each of them
_REPEATS = {"whistle": (1, 4), "trill": (1, 2), "buzz": (1, 4), "stack": (2, 6)}

Floats = npt.NDArray[np.float64]


@functools.cache
def species() -> tuple[Species, ...]:
    """All species, relatives next to each other.

    >>> species()[1][:3], len(species())
    (('avi002', 'Velquora fumosa', 'Smoke Velquora'), 40)
    """
    genera = [(order, family, genus) for order in TREE for family in TREE[order] for genus in TREE[order][family]]
    found: list[Species] = []
    for number, (order, family, genus) in enumerate(genera):
        for epithet, adjective in EPITHETS[number % len(EPITHETS)]:
            code = f"avi{len(found) + 1:03d}"
            found.append(Species(code, f"{genus} {epithet}", f"{adjective} {genus}", genus, family, order))
    return tuple(found)


def folder_of(one: Species) -> str:
    """Where its focal recordings lie, as `notela prepare` expects it.

    >>> folder_of(species()[0])
    'Velquora_vitrea'
    """
    return one.scientific.replace(" ", "_")


def few() -> tuple[int, ...]:
    """The numbers of the species with few recordings."""
    return tuple(range(3, SPECIES, SPECIES // FEW))[:FEW]


@functools.cache
def voices() -> tuple[Voice, ...]:
    """The voices, in the order of `species`. Two notes are of a kind that the whole order has, one of the family's, one
    of the genus's, and the call again of the order's. Two songs have the same pattern in a genus, the third is the
    species' own."""
    rng = np.random.default_rng(WORLD)
    found = []
    for order, of_order in _children(rng, 0, len(TREE)):
        for family, of_family in _children(rng, 1, 2):
            for genus, of_genus in _children(rng, 2, 2):
                places = order, order, order + 1 + family, order + 2 * family + genus, order + 3
                kinds = [KINDS[place % len(KINDS)] for place in places]
                shared = [_song(kinds, count, rng) for count in (2, 3)]
                for _, of_species in _children(rng, 3, 2):
                    notes = _notes(kinds, of_order + of_family + of_genus + of_species)
                    songs = (*shared, _song(kinds, 2, rng))
                    calls = ((SYLLABLES, 1),), ((SYLLABLES, int(rng.integers(2, 5))),)
                    found.append(Voice(notes, songs, calls))
    return tuple(found)


def _children(rng: np.random.Generator, rank: int, count: int) -> list[tuple[int, Floats]]:
    """Number and draws, (notes, properties), of each child of a branch. In what all notes have in common siblings stand
    at even distances in an order of its own for each property: nobody is another's double by chance."""
    steps = np.linspace(-1, 1, count)[:, None].repeat(len(PROPERTIES), axis=1)
    common = _COMMON[rank] * rng.permuted(steps, axis=0)
    apart = _APART[rank] * rng.normal(size=(count, SYLLABLES + 1, len(PROPERTIES)))
    return list(enumerate(common[:, None] + apart))


def _notes(kinds: list[str], draws: Floats) -> tuple[Note, ...]:
    found = []
    for kind, row in zip(kinds, 1 / (1 + np.exp(-1.8 * draws)), strict=True):
        values = {}
        for name, share in zip(PROPERTIES, row.tolist(), strict=True):
            low, high = RANGES[kind][name]
            values[name] = low * (high / low) ** share if low > 0 else low + (high - low) * share
        found.append(Note(kind, **values))
    call = found[-1]
    found[-1] = Note(**{**vars(call), "length": min(0.4 * call.length, 0.2)})
    return tuple(found)


def _song(kinds: list[str], count: int, rng: np.random.Generator) -> Pattern:
    """So many notes one after another, each with its repeats."""
    chosen = rng.permutation(SYLLABLES)[:count].tolist()
    return tuple((note, int(rng.integers(*_REPEATS[kinds[note]], endpoint=True))) for note in chosen)
