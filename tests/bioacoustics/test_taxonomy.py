"""Names as people write them, to species; nothing is lost or guessed in silence."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notela.bioacoustics import taxonomy
from notela.bioacoustics.taxonomy import Species, read_classes, read_species_list, release, resolve
from notela.errors import NotelaError

BIRDS = Path(__file__).resolve().parents[3] / "shared" / "data" / "birds"
BLACKBIRD = Species("eurbla", "Turdus merula", "Eurasian Blackbird", "Turdus", "Turdidae", "Passeriformes")


def ebird(year: int) -> list[dict[str, str]]:
    """A release, read here without the module under test."""
    spec = importlib.util.find_spec("birdnames")
    assert spec is not None
    assert spec.submodule_search_locations
    file = Path(spec.submodule_search_locations[0], "data", "processed", f"ebird_{year}_taxonomy.csv")
    with open(file, encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def code(name: str) -> str:
    return resolve([name], strict=True).matched[name].code


@pytest.mark.parametrize(
    "name",
    [
        "eurbla",
        "EURBLA",
        "Turdus merula",
        "Turdus_merula",
        "turdus-merula",
        "  TURDUS   merula ",
        "Eurasian Blackbird",
        "Eurasian_Blackbird",
        "eurasian black-bird",
        "Turdus merula_Eurasian Blackbird",
        "Turdus merula_Amsel",
        "Turdus_merula_Eurasian Blackbird",
        "Turdus_merula_Eurasian_Blackbird",
        "Common Blackbird",
        "Turdus merula merula",
    ],
)
def test_every_way_to_write_a_blackbird(name: str) -> None:
    assert resolve([name]).matched == {name: BLACKBIRD}


@pytest.mark.parametrize("year", [2021, 2022, 2023, 2024])
def test_every_code_and_name_of_every_release_finds_a_species(year: int) -> None:
    rows = ebird(year)
    columns = ("ebird_ebird_code", "scientific_name", "ebird_common_name")
    result = resolve(row[column] for row in rows for column in columns)
    assert not result.unmatched
    now = {row["ebird_ebird_code"]: row for row in ebird(2024)}
    for row in rows:
        own = row["ebird_ebird_code"]
        if own in now:  # a code means the same species for ever
            found = result.matched[own]
            assert (found.code, found.scientific) == (own, now[own]["scientific_name"])
            assert (found.family, found.order) == (now[own]["ebird_family"], now[own]["ebird_order"])
    # Names that two releases gave to two species, none of which has it today: all the rest is clear.
    assert len(result.ambiguous) <= 10
    if year == 2024:
        assert not result.ambiguous
        assert all(result.matched[row[column]].code == row["ebird_ebird_code"] for row in rows for column in columns)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("reevir", "reevir1"),  # before 2021, from the module's own table
        ("mallar", "mallar3"),
        ("rufant1", "rufant7"),
        ("rinphe", "rinphe1"),  # between releases, the scientific name the same
        ("whbcou1", "whbcou2"),
        ("moctyr1", "y01204"),  # both changed
    ],
)
def test_codes_that_were_replaced(old: str, new: str) -> None:
    result = resolve([old, new])
    assert result.matched[old] == result.matched[new]
    assert result.matched[new].code == new
    assert old in result.notes
    assert new not in result.notes


def test_a_species_that_became_part_of_another_stays_what_it_was() -> None:
    result = resolve(["hoared", "Hoary Redpoll", "Acanthis hornemanni"])
    assert {species.code for species in result.matched.values()} == {"hoared"}
    assert result.notes["hoared"] == "a species in eBird 2023, no longer in 2024"


@pytest.mark.parametrize(
    ("name", "scientific"),
    [
        ("Sylvia undata", "Curruca undata"),
        ("Sylvia_melanocephala", "Curruca melanocephala"),
        ("Parus ater", "Periparus ater"),
        ("Parus caeruleus", "Cyanistes caeruleus"),
        ("Carduelis cannabina", "Linaria cannabina"),
        ("Carduelis chloris", "Chloris chloris"),
        ("Dendroica petechia", "Setophaga petechia"),
        ("Oporornis formosus", "Geothlypis formosa"),  # with another ending
        ("Nyctea scandiaca", "Bubo scandiacus"),
        ("Larus ridibundus", "Chroicocephalus ridibundus"),
        ("Regulus ignicapillus", "Regulus ignicapilla"),
        ("Delichon urbica", "Delichon urbicum"),
        ("Motacilla alba yarrellii", "Motacilla alba"),
    ],
)
def test_other_scientific_names(name: str, scientific: str) -> None:
    result = resolve([name])
    assert result.matched[name].scientific == scientific
    assert result.notes[name]


def test_genera_in_the_table_exist_and_are_not_the_old_ones() -> None:
    genera = {row["scientific_name"].split()[0] for row in ebird(2024)}
    for old, new in taxonomy.MOVED.items():
        assert set(new) <= genera
        assert old not in new


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        ("EATO", "eastow"),
        ("NOCA", "norcar"),
        ("woth", "woothr"),
        ("SORA", "sora"),
        ("RUFF", "ruff"),
        ("MYWA", "yerwar"),  # a subspecies with a code of its own
        ("BRBO", "brnboo"),  # with zero-width spaces in the list
    ],
)
def test_four_letter_codes(alpha: str, expected: str) -> None:
    assert code(alpha) == expected


def test_a_code_of_two_species_is_reported() -> None:
    result = resolve(["BARG", "EATO"])
    assert {species.scientific for species in result.ambiguous["BARG"]} == {"Branta leucopsis", "Limosa lapponica"}
    assert list(result.matched) == ["EATO"]
    assert "ambiguous: 'BARG', either Branta leucopsis (bargoo) or Limosa lapponica (batgod)" in result.summary()
    with pytest.raises(NotelaError, match=r"more than one species is called 'BARG' \(Branta leucopsis .* or Limosa"):
        resolve(["BARG"], strict=True)


def test_a_code_that_one_list_gives_to_a_group_is_no_species() -> None:
    assert resolve(["UNFL"]).unmatched == ["UNFL"]


def test_a_name_that_meant_another_species_is_noted() -> None:
    result = resolve(["Tyto alba", "Troglodytes troglodytes_Winter Wren"])
    assert result.notes["Tyto alba"] == "the name also stands for Tyto furcata (so called in eBird 2023)"
    wren = "Troglodytes troglodytes_Winter Wren"
    assert result.matched[wren].code == "winwre4"
    assert result.notes[wren] == "'Winter Wren' is the name of Troglodytes hiemalis (winwre3)"


def test_the_common_name_decides_where_the_scientific_one_is_unknown() -> None:
    result = resolve(["Merula vulgaris_Eurasian Blackbird"])
    assert list(result.matched.values()) == [BLACKBIRD]
    assert list(result.notes.values()) == ["by the common name"]


def test_summary_and_strict_name_what_was_not_found() -> None:
    names = ["Cicada orni", "eurbla", "????", "eurbla", "reevir"]
    result = resolve(names)
    assert result.summary().splitlines() == [
        "2 of 4 names matched to 2 species",
        "  'reevir' -> Vireo olivaceus (reevir1): the code was replaced",
        "  unmatched: 'Cicada orni'",
        "  unmatched: '????'",
    ]
    with pytest.raises(NotelaError, match=r"no species of eBird 2024 is called 'Cicada orni', '\?\?\?\?'; write the"):
        resolve(names, strict=True)


@given(st.lists(st.text(max_size=12) | st.sampled_from(["eurbla", "BARG", "Sylvia_undata", "_", "__a_"])))
def test_every_name_is_in_exactly_one_place(names: list[str]) -> None:
    result = resolve(names)
    places = [*result.matched, *result.ambiguous, *result.unmatched]
    assert sorted(places) == sorted(set(names))
    assert result.notes.keys() <= result.matched.keys()
    assert all(len(species) > 1 for species in result.ambiguous.values())


def test_species_lists(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_bytes("\ufeff# Hessen\r\nTurdus merula_Amsel\r\n\r\n eurjay1 \r\nTurdus merula_Amsel\r\n".encode())
    assert read_species_list(file) == ["Turdus merula_Amsel", "eurjay1"]
    file.write_bytes("Rüppellseeschwalbe\n".encode("latin-1"))
    assert read_species_list(file) == ["Rüppellseeschwalbe"]
    file.write_text("\n# nothing\n")
    with pytest.raises(NotelaError, match=r"list\.txt holds no names; write one a line"):
        read_species_list(file)
    with pytest.raises(NotelaError, match=r"nowhere\.txt cannot be read \(No such file"):
        read_species_list(tmp_path / "nowhere.txt")


def test_without_birdnames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotelaError, match="pip install birdnames"):
        release()


@pytest.mark.skipif(not BIRDS.exists(), reason="the real recordings are not here")
def test_the_species_of_the_real_recordings() -> None:
    with open(BIRDS / "species.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    result = resolve(row["species"] for row in rows)
    birds = {row["species"] for row in rows if row["taxon"] == "bird"}
    assert set(result.matched) == birds
    assert set(result.unmatched) == {row["species"] for row in rows} - birds
    assert len(set(result.matched.values())) == len(birds) == 51
    folders = [folder.name for folder in (BIRDS / "focal").iterdir()]
    focal = resolve(folders, strict=True)
    assert len(set(focal.matched.values())) == len(folders) == 20
    assert not focal.notes


def test_classes_are_names_or_a_taxonomy(tmp_path: Path) -> None:
    path = tmp_path / "classes.csv"
    path.write_text("Turdus merula\nParus major\n")
    assert read_classes(path) == ["Turdus merula", "Parus major"]
    path.write_text('scientific,code,common,family\nHyla arborea,frog1,"Frog, tree",Hylidae\nCicada orni,cic,,\n')
    assert read_classes(path) == [
        Species("frog1", "Hyla arborea", "Frog, tree", "", "Hylidae", ""),
        Species("cic", "Cicada orni", "", "", "", ""),
    ]
    for text, message in (
        ("code,scientific,colour\na,b,c\n", "has a column 'colour'; a taxonomy has code, scientific, common"),
        ("code,scientific\na\n", "'a' has no code, no scientific name or too many cells"),
        ("code,scientific\na,b,c\n", "too many cells"),
        ("code,scientific\n", "holds no species"),
    ):
        path.write_text(text)
        with pytest.raises(NotelaError, match=message):
            read_classes(path)
