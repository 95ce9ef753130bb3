"""Birds' names: eBird code, scientific name, common name or four-letter code, to one species of the eBird taxonomy.

Everything comes from the tables in the package `birdnames` (eBird of several years, AviList, BirdLife, the four-letter
codes of IBP and BBL): no network. The tables are read as they are, because importing the package imports pandas.
"""

from __future__ import annotations

import csv
import functools
import importlib.util
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from notela.errors import NotelaError

CODES = {"reevir": "reevir1", "mallar": "mallar3", "rufant1": "rufant7"}
"""eBird codes that were replaced before the oldest release in `birdnames` and still occur in annotations."""

MOVED = {
    "Ammodramus": ("Centronyx", "Ammospiza"),
    "Anas": ("Spatula", "Mareca", "Sibirionetta"),
    "Apus": ("Tachymarptis",),
    "Aquila": ("Clanga", "Hieraaetus"),
    "Basileuterus": ("Myiothlypis",),
    "Bonasa": ("Tetrastes",),
    "Bubulcus": ("Ardea",),
    "Caprimulgus": ("Antrostomus",),
    "Carduelis": ("Chloris", "Linaria", "Spinus", "Acanthis"),
    "Carpodacus": ("Haemorhous",),
    "Casmerodius": ("Ardea",),
    "Catoptrophorus": ("Tringa",),
    "Chen": ("Anser",),
    "Columba": ("Patagioenas",),
    "Corvus": ("Coloeus",),
    "Dendrocopos": ("Dendrocoptes", "Dryobates", "Leiopicus", "Yungipicus"),
    "Dendroica": ("Setophaga",),
    "Grus": ("Antigone", "Leucogeranus"),
    "Heteroscelus": ("Tringa",),
    "Hippolais": ("Iduna",),
    "Hirundo": ("Ptyonoprogne", "Cecropis", "Petrochelidon"),
    "Larus": ("Chroicocephalus", "Ichthyaetus", "Hydrocoloeus", "Leucophaeus"),
    "Limicola": ("Calidris",),
    "Luscinia": ("Larvivora", "Calliope"),
    "Miliaria": ("Emberiza",),
    "Myrmotherula": ("Epinecrophylla", "Isleria"),
    "Nyctea": ("Bubo",),
    "Oporornis": ("Geothlypis",),
    "Otus": ("Megascops", "Psiloscops"),
    "Parula": ("Setophaga",),
    "Parus": ("Cyanistes", "Periparus", "Poecile", "Lophophanes", "Baeolophus", "Machlolophus", "Melaniparus"),
    "Phalacrocorax": ("Microcarbo", "Gulosus", "Nannopterum", "Urile"),
    "Philomachus": ("Calidris",),
    "Picoides": ("Dryobates", "Yungipicus"),
    "Pipilo": ("Melozone",),
    "Porzana": ("Zapornia",),
    "Puffinus": ("Ardenna",),
    "Seiurus": ("Parkesia",),
    "Serinus": ("Crithagra",),
    "Stellula": ("Selasphorus",),
    "Sterna": ("Sternula", "Onychoprion", "Thalasseus", "Hydroprogne", "Gelochelidon"),
    "Streptopelia": ("Spilopelia",),
    "Sylvia": ("Curruca",),
    "Tangara": ("Stilpnia", "Ixothraupis"),
    "Tetrao": ("Lyrurus",),
    "Thryothorus": ("Pheugopedius", "Cantorchilus"),
    "Tryngites": ("Calidris",),
    "Vermivora": ("Leiothlypis", "Oreothlypis"),
    "Wilsonia": ("Setophaga", "Cardellina"),
    "Zoothera": ("Geokichla", "Ixoreus"),
}
"""Genera that lost species to others. Within a genus an epithet occurs once, so a species that left takes it along and
can be found again by it: Sylvia undata is Curruca undata."""


class Species(NamedTuple):
    """A species as the newest eBird release that has it lists it."""

    code: str
    scientific: str
    common: str
    genus: str
    family: str
    order: str


@dataclass(frozen=True)
class Resolved:
    """What became of a list of names: every one of them is in exactly one of the three."""

    matched: dict[str, Species] = field(default_factory=dict)
    ambiguous: dict[str, tuple[Species, ...]] = field(default_factory=dict)
    unmatched: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    """Of matched names: what one should know, where it is more than a current name."""

    def summary(self) -> str:
        """Counts, then a line for each name that is not simply a current one."""
        total = len(self.matched) + len(self.ambiguous) + len(self.unmatched)
        lines = [f"{len(self.matched)} of {total} names matched to {len(set(self.matched.values()))} species"]
        lines += [
            f"  {name!r} -> {self.matched[name].scientific} ({self.matched[name].code}): {note}"
            for name, note in self.notes.items()
        ]
        lines += [f"  ambiguous: {name!r}, either {_either(species)}" for name, species in self.ambiguous.items()]
        lines += [f"  unmatched: {name!r}" for name in self.unmatched]
        return "\n".join(lines)


def resolve(names: Iterable[str], *, strict: bool = False) -> Resolved:
    """Find the species of names as people write them; `strict` refuses names without exactly one.

    Case, hyphens, underscores, apostrophes and accents do not matter. The order is: a name or code of the newest eBird
    release; one of an earlier release or of another list; a genus that was split or an ending that agrees with another
    gender. Of `Scientific name_Common name` the scientific name decides, and the common one if that is unknown.

    >>> resolve(["Turdus_merula", "AMRO", "reevir", "Sylvia undata", "????"]).summary().splitlines()[0]
    '4 of 5 names matched to 4 species'
    """
    result = Resolved()
    for name in dict.fromkeys(names):
        species, note = _find(name)
        if len(species) == 1:
            result.matched[name] = species[0]
            if note:
                result.notes[name] = note
        elif species:
            result.ambiguous[name] = species
        else:
            result.unmatched.append(name)
    if strict and (result.unmatched or result.ambiguous):
        missing = [repr(name) for name in result.unmatched]
        unclear = [f"{name!r} ({_either(species)})" for name, species in result.ambiguous.items()]
        raise NotelaError(
            "; ".join(
                ([f"no species of {release()} is called {', '.join(missing)}"] if missing else [])
                + ([f"more than one species is called {', '.join(unclear)}"] if unclear else [])
            )
            + "; write the scientific name or the eBird code, or do without strict"
        )
    return result


def read_species_list(path: str | Path) -> list[str]:
    """The names in a text file, one a line: `Scientific name_Common name`, either of them, or a code. Blank lines and
    lines that begin with # are left out, and a name that is there twice counts once."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise NotelaError(f"the species list {path} cannot be read ({error.strerror}); check its name") from error
    try:
        lines = text.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        lines = text.decode("cp1252", errors="replace").splitlines()
    names = [line.strip() for line in lines]
    found = list(dict.fromkeys(name for name in names if name and not name.startswith("#")))
    if not found:
        raise NotelaError(f"the species list {path} holds no names; write one a line, such as Turdus merula")
    return found


def read_classes(path: str | Path) -> list[str] | list[Species]:
    """The names of a species list; or, from a CSV with the columns code, scientific, common, genus, family and order, a
    taxonomy of one's own (of frogs, say). Only the first two must be filled in."""
    lines = read_species_list(path)
    header = [cell.strip().casefold() for cell in lines[0].split(",")]
    if not {"code", "scientific"} <= set(header):
        return lines
    unknown = [name for name in header if name not in Species._fields]
    if unknown:
        raise NotelaError(f"{path} has a column {unknown[0]!r}; a taxonomy has {', '.join(Species._fields)}")
    found = []
    for row in csv.DictReader(lines[1:], header, restval=""):
        one = Species(**{name: (row.get(name) or "").strip() for name in Species._fields})
        if not one.code or not one.scientific or None in row:
            raise NotelaError(
                f"{path}: {one.code or one.scientific!r} has no code, no scientific name or too many cells"
            )
        found.append(one)
    if not found:
        raise NotelaError(f"the taxonomy {path} holds no species; write one a line below the header")
    return found


def nameless(name: str) -> Species:
    """A class that no list knows, by its own name."""
    return Species(name, name, "", "", "", "")


def places_of(classes: Sequence[Species], names: Iterable[str]) -> tuple[list[int], list[str]]:
    """The places of a species list's names among a model's classes, and the names that it does not know."""
    found = outputs_of(classes, names)
    return sorted({i for here in found.values() for i in here}), [name for name, here in found.items() if not here]


def outputs_of(classes: Sequence[Species], names: Iterable[str]) -> dict[str, list[int]]:
    """For each name, its places among a model's classes; none if it does not know it.

    A name counts if the model writes it so (code, scientific or common name), or if both mean one species of the
    taxonomy: codes change from release to release, and a model keeps those that it was trained with.
    """
    names = list(dict.fromkeys(names))
    own: dict[str, list[int]] = {}
    for i, one in enumerate(classes):
        for name in {plain(name) for name in (one.code, one.scientific, one.common)} - {""}:
            own.setdefault(name, []).append(i)
    meaning = resolve(one.code for one in classes).matched
    by_species: dict[Species, list[int]] = {}
    for i, one in enumerate(classes):
        if one.code in meaning:
            by_species.setdefault(meaning[one.code], []).append(i)
    listed = resolve(names).matched
    found = {}
    for name in names:
        here = own.get(plain(name)) or (by_species.get(listed[name]) if name in listed else None)
        found[name] = here or [i for part in name.split("_") for i in own.get(plain(part), ())]  # Scientific_Common
    return found


def release() -> str:
    """Which list species are taken from, for records.

    >>> release()
    'eBird 2024'
    """
    return f"eBird {_year(_files('ebird')[0])}"


_Found = tuple[tuple[Species, ...], str]
"""The species that a name can mean, and what to note if there is only one."""


def _find(name: str) -> _Found:
    found = _exact(name)
    words = name.split("_")
    for place in range(1, len(words)):
        found = found if found[0] else _two_names("_".join(words[:place]), "_".join(words[place:]))
    return found if found[0] else _by_epithet(name)


def _two_names(scientific: str, common: str) -> _Found:
    (first, note), (second, _) = _exact(scientific), _exact(common)
    if not first:
        first, note = _by_epithet(scientific)
    if not first:
        return second, "by the common name"
    if len(first) == 1 and second and first[0] not in second:
        note = "; ".join(filter(None, [note, f"{common!r} is the name of {_either(second)}"]))
    return first, note


def _exact(name: str) -> _Found:
    names, key = _names(), plain(name)
    now, other = names.current.get(key, {}), names.other.get(key, {})
    if len(now) == 1:
        also = [f"{species.scientific} ({where})" for species, where in other.items()]
        return tuple(now), f"the name also stands for {', '.join(also)}" if also else ""
    found = now or other
    return tuple(found), next(iter(found.values()), "")


def _by_epithet(name: str) -> _Found:
    """A scientific name by its epithet, whatever the gender, in its genus or one that was split from it; a subspecies
    by its first two words."""
    words = name.replace("_", " ").split()
    if len(words) == 3 and all(word.isalpha() and len(word) > 1 for word in words):
        return _find(f"{words[0]} {words[1]}")[0], f"{words[2]} is a subspecies"
    if len(words) != 2:
        return (), ""
    genus, epithet = words[0].capitalize(), _stem(words[1].lower())
    for place in (genus, *MOVED.get(genus, ())):
        found = tuple(_names().epithets.get((place, epithet), ()))
        if found:
            return found, "another ending" if place == genus else f"the genus is now {place}"
    return (), ""


def _either(species: tuple[Species, ...]) -> str:
    return " or ".join(f"{s.scientific} ({s.code})" for s in species)


def _stem(epithet: str) -> str:
    """An epithet without the ending that agrees with the genus.

    >>> _stem("ignicapillus") == _stem("ignicapilla"), _stem("niger") == _stem("nigra")
    (True, True)
    """
    return re.sub("er$", "r", re.sub("(us|a|um|is|e)$", "", epithet))


_NOT_IN_KEY = re.compile("[^a-z0-9]+")


@functools.lru_cache(2**16)  # most names stay the same from release to release
def plain(name: str) -> str:
    """Letters and digits alone, so that `Wood-Pigeon`, `wood pigeon` and `Woodpigeon` are one.

    >>> plain("Rüppell’s_Wood-Pigeon")
    'ruppellswoodpigeon'
    """
    if not name.isascii():
        name = unicodedata.normalize("NFKD", name)
    return _NOT_IN_KEY.sub("", name.lower())


class _Names(NamedTuple):
    """By key, what a name can mean and what to note about it."""

    current: dict[str, dict[Species, str]]
    """Names and codes of the newest release, and four-letter codes."""
    other: dict[str, dict[Species, str]]
    """What earlier releases and other lists add."""
    epithets: dict[tuple[str, str], dict[Species, None]]

    def one(self, name: str) -> Species | None:
        """The species of a name, if there is exactly one."""
        key = plain(name)
        found = self.current.get(key) or self.other.get(key) or {}
        return next(iter(found)) if len(found) == 1 else None

    def add(self, name: str, species: Species, note: str) -> None:
        """A name of another list, unless it is a current one anyway."""
        key = plain(name)
        if species not in self.current.get(key, {}):
            self.other.setdefault(key, {}).setdefault(species, note)


@functools.cache
def _names() -> _Names:
    names = _Names({}, {}, {})
    codes: dict[str, Species] = {}
    newest = _year(_files("ebird")[0])
    for year, row in _rows("ebird"):  # the newest first
        code, scientific, common = row["ebird_ebird_code"], row["scientific_name"], row["ebird_common_name"]
        genus, epithet = scientific.split()
        # A species keeps its code when it is renamed, and its scientific name when it gets another code.
        species = codes.get(code)
        if species is None and year != newest:
            species = names.one(scientific) or names.one(common)
        note = f"so called in eBird {year}"
        if species is None:
            species = Species(code, scientific, common, genus, row["ebird_family"], row["ebird_order"])
            note = f"a species in eBird {year}, no longer in {newest}"
        codes.setdefault(code, species)
        names.epithets.setdefault((genus, _stem(epithet)), {}).setdefault(species)
        for name in (code, scientific, common):
            if year == newest:
                names.current.setdefault(plain(name), {})[species] = ""
            else:
                names.add(name, species, note)
    for old, new in CODES.items():
        names.add(old, codes[new], "the code was replaced")
    for where, scientific, common in _other_lists():
        known = names.one(scientific) or names.one(common)
        if known is not None:
            names.add(scientific, known, f"so called in {where}")
            names.add(common, known, f"so called in {where}")
    for alpha, species in _alpha_codes(names):
        names.current.setdefault(plain(alpha), {})[species] = ""
    return names


def _alpha_codes(names: _Names) -> Iterator[tuple[str, Species]]:
    """Four-letter codes of species and subspecies, not those of hybrids, pairs and groups, nor one that a list gives to
    a group and another list to a species."""
    meanings: dict[str, set[Species | None]] = {}
    for stem in ("ibp", "bbl"):
        for _, row in _rows(stem):
            words = [word for word in re.split(r"[\s\u200b]+", row["scientific_name"]) if word]
            plain = len(words) <= 3 and "/" not in words[-1]
            species = (names.one(" ".join(words[:2])) if plain else None) or names.one(row[f"{stem}_common_name"])
            meanings.setdefault(row[f"{stem}_alpha"], set()).add(species)
    for code, found in meanings.items():
        for species in sorted(s for s in found if s is not None) if None not in found else ():
            yield code, species


def _other_lists() -> Iterator[tuple[str, str, str]]:
    """(list, scientific name, common name) of species; AviList is close to the IOC list that Xeno-Canto uses."""
    for year, row in _rows("avilist"):
        if row["avilist_taxon_rank"] == "species":
            yield f"AviList {year}", row["scientific_name"], row["avilist_common_name"]
    for year, row in _rows("birdlife"):
        yield f"BirdLife {year}", row["scientific_name"], row["birdlife_common_name"]


def _rows(stem: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(year, row) of a list in `birdnames`, the newest release first."""
    for file in _files(stem):
        with open(file, encoding="utf-8", newline="") as text:
            for row in csv.DictReader(text):
                yield _year(file), row


def _files(stem: str) -> list[Path]:
    spec = importlib.util.find_spec("birdnames")
    if spec is None or not spec.submodule_search_locations:
        raise NotelaError("names are looked up in the package birdnames, which is missing: pip install birdnames")
    folder = Path(spec.submodule_search_locations[0], "data", "processed")
    files = sorted(folder.glob(f"{stem}_*_taxonomy.csv"), reverse=True)
    if not files:
        raise NotelaError(f"the package birdnames has no table of {stem}: pip install birdnames==0.1.3")
    return files


def _year(file: Path) -> str:
    return file.name.split("_")[1]
