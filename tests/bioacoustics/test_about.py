"""What a table says about recordings finds the right ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from notela.bioacoustics.about import About, match, read
from notela.errors import NotelaError


def test_rows_are_read_by_their_columns(tmp_path: Path) -> None:
    table = tmp_path / "about.csv"
    table.write_text("\ufefffile,lic,xc_id\na.wav,CC0,7\nb/c.mp3,,8\n", encoding="utf-8")
    found = read(table, {"recording": "file", "licence": "lic", "group": "xc_id"})
    assert found == [About("a.wav", "", "CC0", "7"), About("b/c.mp3", "", "", "8")]
    with pytest.raises(NotelaError, match="has no column 'path'; it has file, lic, xc_id: name another for recording"):
        read(table)
    with pytest.raises(NotelaError, match="'colour' is not one of 'recording', 'source'"):
        read(table, {"colour": "lic"})
    with pytest.raises(NotelaError, match=r"no\.csv cannot be read"):
        read(tmp_path / "no.csv")


def test_folders_tell_recordings_of_one_name_apart() -> None:
    rows = [About("birds/x/a.wav", licence="1"), About(r"birds\y\a.flac", licence="2"), About("b", licence="3")]
    names = ["x/a.wav", "y/a.wav", "z/a.wav", "z/b.wav", "c.wav"]
    found = {name: row.licence for name, row in match(names, rows).items()}
    assert found == {"x/a.wav": "1", "y/a.wav": "2", "z/b.wav": "3"}  # z/a.wav is neither


def test_the_only_one_of_a_name_needs_no_folder() -> None:
    rows = [About("old disk/a.wav", licence="1")]
    assert match(["new disk/a.wav"], rows)["new disk/a.wav"].licence == "1"
    assert match(["x/a.wav", "y/a.wav"], rows) == {}


def test_two_rows_for_one_recording_are_refused_unless_they_agree() -> None:
    rows = [About("x/a.wav", licence="1"), About("y/a.wav", licence="2")]
    with pytest.raises(NotelaError, match=r"a\.wav could be x/a\.wav or y/a\.wav of the table"):
        match(["a.wav"], rows)
    assert match(["a.wav"], [row._replace(licence="1") for row in rows])["a.wav"].licence == "1"
