"""Embeddings that others wrote: read back, labelled, adapted; and every mistake in such a file in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from typer.testing import CliRunner, Result

from notela.bioacoustics import annotations, brought, embeddings, head
from notela.cli import app
from notela.errors import NotelaError

NAMES = ["Turdus merula", "Parus major", "rain"]


def columns(rows: int = 24) -> dict[str, Any]:
    """Windows of six recordings, in which every class has a direction of its own."""
    rng = np.random.default_rng(0)
    present = rng.random((rows, 3)) < 0.4
    return {
        "embeddings": (3 * present @ np.eye(3, 5) + 0.1 * rng.normal(size=(rows, 5))).astype(np.float32),
        "recording": np.array([f"site/{i // 4}.wav" for i in range(rows)]),
        "start": np.array([3.0 * (i % 4) for i in range(rows)]),
        "end": np.array([3.0 * (i % 4) + 3 for i in range(rows)]),
        "species": np.array([";".join(np.array(NAMES)[mine]) for mine in present]),
    }


def layer() -> dict[str, Any]:
    return {"classes": np.array(NAMES), "weights": 2 * np.eye(3, 5), "bias": np.array([-3.0, -3.0, -3.0])}


def typed(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})


def test_an_npz_becomes_a_set_with_labels_and_the_model_s_own_head(tmp_path: Path) -> None:
    mine = columns()
    np.savez(tmp_path / "site.npz", **mine, **layer())
    shown = typed("embed", "perch", tmp_path / "site.npz", "--to", tmp_path / "site")
    assert shown.exit_code == 0, shown.output
    assert "24 windows of 6 recordings, 5 numbers each, with labels" in shown.output
    data = embeddings.read(tmp_path / "site")
    np.testing.assert_array_equal(data.embeddings, mine["embeddings"])
    assert [data.table[name] for name in ("recording", "start", "end")] == [
        mine[name].tolist() for name in ("recording", "start", "end")
    ]
    assert [one.code for one in data.classes] == ["eurbla", "gretit1", "rain"]
    names = {"eurbla": "Turdus merula", "gretit1": "Parus major", "rain": "rain"}
    assert [{names[code] for code in found} for found in data.table["species"]] == [
        set(one.split(";")) - {""} for one in mine["species"]
    ]
    by_recording: dict[str, set[str]] = {}
    for recording, split in zip(data.table["recording"], data.table["split"], strict=True):
        by_recording.setdefault(recording, set()).add(split)
    assert all(len(splits) == 1 for splits in by_recording.values())
    own = head.load(tmp_path / "site" / "head.safetensors")
    with torch.no_grad():
        logits = own(torch.from_numpy(mine["embeddings"])).numpy()
    expected = mine["embeddings"] @ layer()["weights"].T + layer()["bias"]
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    np.testing.assert_allclose(data.logits, expected, atol=2e-2)


def test_commands_take_it_like_any_other(tmp_path: Path) -> None:
    np.savez(tmp_path / "site.npz", **columns(80), **layer())
    assert typed("embed", "perch", tmp_path / "site.npz", "--to", tmp_path / "site").exit_code == 0
    for words in (
        ("train", tmp_path / "site", "--to", tmp_path / "head.safetensors", "--epochs", 3),
        ("adapt", tmp_path / "head.safetensors", tmp_path / "site", "--to", tmp_path / "adapted.safetensors"),
        (
            *("predict", tmp_path / "adapted.safetensors", tmp_path / "site", "--to", tmp_path / "found"),
            "--threshold",
            0,
        ),
    ):
        shown = typed(*words)
        assert shown.exit_code == 0, shown.output + repr(shown.exception)
    assert len(annotations.read(tmp_path / "found" / "detections.csv")) == 240


def test_parquet_is_read_in_pieces_and_holds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brought, "BATCH", 7)
    mine = columns()
    np.savez(tmp_path / "a.npz", **mine)
    table = {name: value.tolist() for name, value in mine.items()}
    table["species"] = [one.split(";") if one else None for one in table["species"]]
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "b.parquet")
    first, own, _ = brought.bring(tmp_path / "a.npz", tmp_path / "a", "perch")
    second, _, _ = brought.bring(tmp_path / "b.parquet", tmp_path / "b", "perch")
    assert own is None
    assert first.table == second.table
    np.testing.assert_array_equal(first.embeddings, second.embeddings)
    assert first.manifest["identity"] == second.manifest["identity"]  # one head for both


def test_embeddings_alone_are_enough(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", embeddings=columns()["embeddings"])
    data, _, _ = brought.bring(tmp_path / "a.npz", tmp_path / "a", "perch")
    assert (len(data), data.classes) == (24, ())
    assert 0 < len(data.rows("adapt")) < 24


def test_a_split_that_comes_along_is_kept(tmp_path: Path) -> None:
    parts = np.array(["adapt", "adapt", "test", "adapt"] * 6)
    np.savez(tmp_path / "a.npz", **columns(), split=parts)
    data, _, _ = brought.bring(tmp_path / "a.npz", tmp_path / "a", "perch")
    assert data.table["split"] == parts.tolist()


def test_the_same_file_again_changes_nothing_and_another_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **columns())
    first, _, _ = brought.bring(tmp_path / "a.npz", tmp_path / "store", "perch")
    again, _, _ = brought.bring(tmp_path / "a.npz", tmp_path / "store", "perch")
    assert again.manifest == first.manifest
    np.savez(tmp_path / "b.npz", **columns(12))
    with pytest.raises(NotelaError, match="holds embeddings with another windows .*choose another folder"):
        brought.bring(tmp_path / "b.npz", tmp_path / "store", "perch")
    assert len(embeddings.read(tmp_path / "store")) == 24


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": None}, "has no 'embeddings', only recording, start, end, species"),
        ({"embeddings": np.zeros((24, 5, 2))}, r"have the shape \(24, 5, 2\)"),
        ({"embeddings": np.zeros((0, 5))}, "recording in .* has 24 rows and embeddings have 0"),
        ({"embeddings": np.full((24, 5), np.nan)}, "row 0 of embeddings in .* holds NaN or infinity"),
        ({"embeddings": np.array([["a"] * 5] * 24)}, "are not rows of equally many numbers"),
        ({"start": None}, "has recording, end alone; where a window is takes recording, start and end"),
        ({"start": np.arange(3.0)}, "start in .* has 3 rows and embeddings have 24"),
        ({"start": np.array(["x"] * 24)}, "start in .* must hold numbers of seconds"),
        ({"colour": np.zeros(24)}, "has 'colour', which means nothing here; known are embeddings"),
        ({"split": np.array(["train"] * 24)}, "split in .* holds 'train'; each row is 'adapt' or 'test'"),
        ({"logits": np.zeros((24, 3))}, r"has logits and no last layer \(classes, weights, bias\)"),
        ({"classes": np.array(NAMES)}, "has 'classes' without 'weights'"),
        ({"recording": np.array("a.wav")}, r"recording in .* has the shape \(\); expected a list"),
        ({"start": np.full(24, np.nan)}, "start and end in .* must be seconds"),
        ({"end": np.full(24, -1.0)}, "the end not before the start"),
        ({"species": np.eye(24)}, r"species in .* has the shape \(24, 24\)"),
        ({"species": np.arange(24)}, "species in .* holds 0 where a name is expected"),
        ({**layer(), "classes": np.array(["a", "b", "a"])}, "classes in .* has 'a' twice"),
        ({**layer(), "bias": np.array([1, np.nan, 2])}, "row 1 of weights and bias in .* holds NaN"),
        ({**layer(), "bias": np.array(["a", "b", "c"])}, "bias in .* are not rows of equally many numbers"),
        ({**layer(), "weights": np.eye(2, 5)}, r"has weights \(2, 5\) and bias \(3,\) for 3 classes"),
        ({**layer(), "logits": np.full((24, 3), 40.0)}, "are not embeddings @ weights.T"),
    ],
)
def test_mistakes_in_a_file_are_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    content = {name: value for name, value in {**columns(), **change}.items() if value is not None}
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(NotelaError, match=message):
        brought.bring(tmp_path / "a.npz", tmp_path / "store", "perch")
    with pytest.raises(NotelaError, match="is not a set of embeddings"):
        embeddings.read(tmp_path / "store")
    np.savez(tmp_path / "a.npz", **columns())
    assert len(brought.bring(tmp_path / "a.npz", tmp_path / "store", "perch")[0]) == 24  # mended, it is taken there


def test_what_nobody_knew_is_no_species_and_bytes_are_text(tmp_path: Path) -> None:
    mine = columns(4)
    mine["species"] = np.array(["????", "Parus major;unknown", "", "Turdus merula"]).astype(np.bytes_)
    np.savez(tmp_path / "a.npz", **mine)
    data, _, _ = brought.bring(tmp_path / "a.npz", tmp_path / "a", "perch")
    assert data.table["species"] == [[], ["gretit1"], [], ["eurbla"]]


def test_nobody_s_files_are_lost(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **columns())
    (tmp_path / "mine").mkdir()
    np.save(tmp_path / "mine" / "embeddings.npy", np.ones((100, 7)))
    with pytest.raises(NotelaError, match="has embeddings.npy, which is not of `notela embed`; choose another folder"):
        brought.bring(tmp_path / "a.npz", tmp_path / "mine", "perch")
    assert np.load(tmp_path / "mine" / "embeddings.npy").shape == (100, 7)
    assert not (tmp_path / "mine" / "bringing").exists()


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    for name in ("a.npz", "a.parquet"):
        (tmp_path / name).write_bytes(b"no such thing")
        with pytest.raises(NotelaError, match=rf"{name} cannot be read as"):
            brought.bring(tmp_path / name, tmp_path / "store", "perch")
    np.savez(tmp_path / "b.npz", **columns(), objects=np.array([{}], dtype=object))
    with pytest.raises(NotelaError, match="cannot be read as .npz"):
        brought.bring(tmp_path / "b.npz", tmp_path / "store", "perch")
    np.savez(tmp_path / "c.npz", **columns())
    (tmp_path / "d.npz").write_bytes((tmp_path / "c.npz").read_bytes()[:700])  # cut short
    (tmp_path / "e.npz").write_bytes((tmp_path / "c.npz").read_bytes())
    np.save(tmp_path / "e.npz.npy", np.ones(3))
    (tmp_path / "e.npz.npy").rename(tmp_path / "e.npz")
    for name in ("d.npz", "e.npz"):
        with pytest.raises(NotelaError, match=rf"{name} cannot be read as .npz"):
            brought.bring(tmp_path / name, tmp_path / "store", "perch")
    for name, message in (
        ("no.npz", "no.npz does not exist; expected embeddings"),
        ("x.npy", "x.npy is an array alone"),
    ):
        assert message in str(typed("embed", "perch", tmp_path / name, "--to", tmp_path / "s").exception)
    refused = typed("embed", "perch", tmp_path / "c.npz", "--to", tmp_path / "s", "--step", 1)
    assert "step=1 is for recordings" in str(refused.exception)
