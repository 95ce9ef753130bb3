"""Suites of recordings: a user's prepared sets and embeddings by a TOML file, and the published sets by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from conftest import Here
from notela.bench import plan
from notela.bench.runner import bench
from notela.bench.suite import Loaded, find
from notela.bench.suites import _recordings, birds
from notela.bioacoustics import embeddings, head, model, prepared
from notela.bioacoustics.annotations import Box
from notela.bioacoustics.embed import OfClassifier, embed
from notela.bioacoustics.model import BirdClassifier
from notela.bioacoustics.prepare import Settings, prepare
from notela.bioacoustics.taxonomy import resolve
from notela.cli import app
from notela.errors import NotelaError

sys.path.append(str(Path(__file__).parents[1] / "bioacoustics"))
from sounds import PITCH, focal, sing

SPECIES = ["Turdus merula", "Parus major", "Corvus corone"]
TOML = {
    "sound": 'task = "multilabel"\nmodel = "birds.safetensors"\ntest.s = "scapes.windows"\n',
    "single": 'task = "singlelabel"\nmodel = "birds.safetensors"\ntest.s = "scapes.windows"\n',
    "embedded": 'task = "multilabel"\nmodel = "head.safetensors"\ntest.s = "scapes.embedded"\n',
    "choices": """
        task = "multilabel"
        model = "head.safetensors"
        score_empty = false
        [test]
        s = "scapes.embedded"
        "s, all" = {folder = "scapes.embedded", held_out = false}
    """,
    "parts": 'task = "multilabel"\nmodel = "head.safetensors"\n[test]\ns = "scapes.embedded"\n'
    + "".join(f'"s {i}" = {{folder = "scapes.embedded", held_out = "{i}/4"}}\n' for i in (1, 2, 3, 4)),
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of four species, a prepared set of three of them with empty windows, and its embeddings."""
    here = tmp_path_factory.mktemp("birds")
    torch.manual_seed(0)
    classes = list(resolve(["Strix aluco", *SPECIES]).matched.values())
    model.save(BirdClassifier(classes, front_end_name="logmel", window=3.0), here / "birds.safetensors")
    boxes = []
    pitches = list(PITCH.values())
    for i in range(40):
        calls = [(1.0, pitches[i % 3]), (4.0, pitches[(i + i // 3) % 3])]
        sing(here / "scapes" / f"{i}.wav", 9, calls, seed=i)
        boxes += [Box(f"{i}.wav", at, at + 0.5, SPECIES[pitches.index(pitch)]) for at, pitch in calls]
    settings = Settings("tiles-3s", 3.0)
    prepare(here / "scapes", here / "scapes.windows", Here(), boxes=boxes, species=SPECIES, settings=settings)
    classifier = model.load(here / "birds.safetensors")
    listener = OfClassifier(classifier, "cpu")
    embed(listener, here / "scapes.windows", here / "scapes.embedded")
    last = classifier.heads["species"]
    own = head.own_head(last.weight.detach().numpy(), last.bias.detach().numpy(), classes, listener.identity)
    head.save(own, here / "head.safetensors")
    for name, text in TOML.items():
        (here / f"{name}.toml").write_text(text)
    return here


def test_a_prepared_set_is_a_domain(here: Path) -> None:
    suite = find(str(here / "sound.toml"))
    data = prepared.read(here / "scapes.windows")
    assert suite.class_names == ("Strix aluco", *SPECIES)
    assert "windows of 3 s, protocol tiles-3s, split 75 / 25 by-recording; outputs cut" in suite.protocol
    place = suite.test["s"]()
    assert place.classes == [1, 2, 3]  # no owls there
    assert (len(place.adapt), len(place.test)) == (len(data.rows("adapt")), len(data.rows("test")))
    codes = [one.code for one in model.load(here / "birds.safetensors").classes]
    for rows, labels in ((data.rows("adapt"), place.adapt_labels), (data.rows("test"), place.test_labels)):
        for row, line in zip(rows, labels, strict=True):
            assert {codes[c] for c in line.nonzero().flatten().tolist()} == set(data.table["species"][row])
    assert plan.make(suite, "sound.toml").candidates("notela")[0].method.k == 5  # type: ignore[attr-defined]  # audio's
    with torch.no_grad():
        sound = torch.from_numpy(np.stack([data.samples(int(row)) for row in data.rows("test")]))
        expected = model.load(here / "birds.safetensors")(sound)
        np.testing.assert_allclose(suite.model().eval()(place.test.float()), expected, atol=0.02)


def test_embeddings_are_a_domain_of_the_head_on_them(here: Path) -> None:
    suite = find(str(here / "embedded.toml"))
    place, sound = suite.test["s"](), find(str(here / "sound.toml")).test["s"]()
    assert torch.equal(place.test_labels, sound.test_labels)
    with torch.no_grad():
        logits = suite.model().eval()(place.test)
        heard = find(str(here / "sound.toml")).model().eval()(sound.test.float())
    np.testing.assert_allclose(logits, heard, atol=0.02)
    assert "as embeddings of small" in suite.protocol


def test_empty_windows_and_held_out_ones_are_a_choice(here: Path) -> None:
    suite = find(str(here / "choices.toml"))
    part, whole = suite.test["s"](), suite.test["s, all"]()
    data = prepared.read(here / "scapes.windows")
    holds = data.labels().any(1)
    assert 0 < (~holds).sum() < len(data)
    assert len(part.adapt) == len(data.rows("adapt"))
    assert len(part.test) == int(holds[data.rows("test")].sum())
    assert (len(whole.adapt), len(whole.test)) == (len(data), int(holds.sum()))
    assert "s, all: scored on the windows that were adapted on" in suite.protocol
    assert part.fingerprint() != whole.fingerprint()


def test_every_recording_is_held_out_once(here: Path) -> None:
    suite = find(str(here / "parts.toml"))
    data = prepared.read(here / "scapes.windows")
    parts = [suite.test[f"s {i}"]() for i in (1, 2, 3, 4)]
    assert all(len(one.adapt) + len(one.test) == len(data) for one in parts)
    together = torch.cat([one.test for one in parts])
    assert sorted(map(tuple, together.tolist())) == sorted(
        map(tuple, embeddings.read(here / "scapes.embedded").embeddings.tolist())
    )
    assert torch.equal(parts[3].test, suite.test["s"]().test)  # a set's own split holds the last quarter out
    assert len({one.fingerprint() for one in parts}) == 4
    assert (
        "instead of that split, recordings held out by a stable hash of their names, s 1: part 1 of 4, s 2: part 2"
        in suite.protocol
    )


@pytest.mark.parametrize("given", ["true", '"4"', '"0/4"', '"5/4"', '"1/1"', "0.25"])
def test_a_part_that_is_none_is_refused(here: Path, given: str) -> None:
    (here / "odd.toml").write_text(TOML["embedded"] + f'test.t = {{folder = "scapes.embedded", held_out = {given}}}\n')
    with pytest.raises(NotelaError, match="must be a folder, or {folder = '...', held_out = false}, or '1/4'"):
        find(str(here / "odd.toml"))


def test_single_label_keeps_windows_of_one_species(here: Path) -> None:
    place = find(str(here / "single.toml")).test["s"]()
    data = prepared.read(here / "scapes.windows")
    one = data.labels().sum(1) == 1
    assert len(place.adapt) == int(one[data.rows("adapt")].sum())
    assert place.adapt_labels.ndim == 1


def test_inputs_too_large_for_memory_are_read_from_the_disk(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near = find(str(here / "sound.toml")).test["s"]()
    monkeypatch.setattr(_recordings, "_IN_MEMORY", 0)
    far = find(str(here / "sound.toml")).test["s"]()
    assert len(far.test) == len(near.test)
    assert all(torch.equal(far.test[i], near.test[i]) for i in range(len(near.test)))
    before = far.fingerprint()
    for path in (here / "scapes.windows.pictures").glob("*.npy"):
        changed = np.load(path, mmap_mode="r+")
        changed[5, 0, 0] += 1
        changed.flush()
    assert find(str(here / "sound.toml")).test["s"]().fingerprint() != before
    for path in (here / "scapes.windows.pictures").glob("*.npy"):
        path.unlink()


def test_both_kinds_run_through_the_bench(here: Path, tmp_path: Path) -> None:
    for name in ("sound", "choices"):
        failures = bench(str(here / f"{name}.toml"), tmp_path / name, Here(), methods=["tent", "notela"], seeds=1)
        assert failures == []
        records = [json.loads(line) for line in (tmp_path / name / "test.jsonl").read_text().splitlines()]
        assert {(r["domain"], r["settings"]["method"]) for r in records} >= {("s", "source"), ("s", "notela")}


def test_a_method_that_the_model_gives_nothing_to_do_is_told_once(here: Path, tmp_path: Path) -> None:
    words = ["bench", str(here / "choices.toml"), "--to", str(tmp_path), "--methods", "adabn", "--seeds", "1"]
    shown = CliRunner().invoke(app, [*words, "--workers", "1"], env={"COLUMNS": "300"})
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("adabn changes nothing but running averages of norm layers") == 1
    assert "failed: adabn on s, seed 0 and 1 more:" in shown.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('model = "no.safetensors"\ntest.s = "scapes.windows"', "no.safetensors does not exist"),
        ('model = "birds.safetensors"\ntest.s = "scapes"', "is not a prepared data set: manifest.json is missing"),
        (
            'model = "birds.safetensors"\ntest.s = "scapes.embedded"',
            "holds a set of embeddings, not a prepared data set",
        ),
        ('model = "head.safetensors"\ntest.s = "scapes.windows"', "holds a prepared data set, not a set of embeddings"),
        ('model = "birds.safetensors"\nclasses = ["a"]\ntest.s = "x"', "a bird classifier brings its own"),
        ('model = "birds.safetensors"\nscore_empty = 1\ntest.s = "x"', "score_empty = 1 must be true or false"),
        ('model = "birds.safetensors"\ntest.s = {folder = "x"}', r"must be a folder, or \{folder"),
        ('model = "birds.safetensors"\nsource = 3\ntest.s = "scapes.windows"', "source = 3 in .* is not the path"),
        ('model = "birds.safetensors"\ncolour = 1\ntest.s = "x"', "unknown key 'colour'; known: .*score_empty"),
    ],
)
def test_mistakes_are_named(here: Path, text: str, message: str) -> None:
    (here / "wrong.toml").write_text(f'task = "multilabel"\n{text}\n')
    with pytest.raises(NotelaError, match=message):
        find(str(here / "wrong.toml"))


def test_sets_that_do_not_fit_the_model_are_refused_before_anything_runs(here: Path, tmp_path: Path) -> None:
    short = prepare(focal(tmp_path / "f", each=2), tmp_path / "w", Here(), focal=True, settings=Settings(seconds=3.0))
    prepare(tmp_path / "f", tmp_path / "bare", Here(), settings=Settings(seconds=3.0))
    one = list(resolve(["Parus major"]).matched.values())
    model.save(BirdClassifier(one, front_end_name="logmel", window=3.0), tmp_path / "one.safetensors")
    for window in (2.0, 3.0, 5.0):
        classifier = BirdClassifier(short.prepared.classes, front_end_name="logmel", window=window)
        model.save(classifier, tmp_path / f"{window:g}s.safetensors")
    for name, folder, message in (
        ("one", "w", "has the species '.*', which the model does not know; leave it out"),
        ("5s", "w", "has windows of 3 s and the model listens to 5 s; prepare it with --seconds 5"),
        ("2s", "w", "has windows of 3 s and the model listens to 2 s"),  # labels may be of what would be cut off
        ("3s", "bare", "has no labels to score with"),
    ):
        text = f'task = "multilabel"\nmodel = "{name}.safetensors"\n[test]\ngood = "w"\nother = "{folder}"\n'
        (tmp_path / "x.toml").write_text(text)
        with pytest.raises(NotelaError, match=message):
            find(str(tmp_path / "x.toml"))


def test_captions_tell_folders_apart(here: Path, tmp_path: Path) -> None:
    settings = Settings("tiles-3s-every-1.5s", 3.0)
    boxes = [Box(f"{i}.wav", 1, 2, SPECIES[i % 3]) for i in range(40)]
    prepare(here / "scapes", tmp_path / "closer", Here(), boxes=boxes, settings=settings, split_by="by-window")
    text = (
        f'task = "multilabel"\nmodel = "{here}/birds.safetensors"\n[test]\na = "{here}/scapes.windows"\nb = "closer"\n'
    )
    (tmp_path / "x.toml").write_text(text)
    told = find(str(tmp_path / "x.toml")).protocol
    assert "a: windows of 3 s, protocol tiles-3s, split 75 / 25 by-recording" in told
    assert "b: windows of 3 s, protocol tiles-3s-every-1.5s, split 75 / 25 by-window" in told


def test_a_model_trained_anew_is_another_one(here: Path, tmp_path: Path) -> None:
    classes = model.load(here / "birds.safetensors").classes
    prints = []
    for seed in range(2):
        torch.manual_seed(seed)
        model.save(BirdClassifier(classes, front_end_name="logmel", window=3.0), tmp_path / "birds.safetensors")
        text = f'task = "multilabel"\nmodel = "birds.safetensors"\ntest.s = "{here}/scapes.windows"\n'
        (tmp_path / "x.toml").write_text(text)
        prints.append(Loaded(find(str(tmp_path / "x.toml"))).model_fingerprint)
    assert prints[0] != prints[1]


# ---- the published sets


@pytest.fixture(scope="module")
def published(here: Path) -> Path:
    for name in ("SNE", "POW", "HSN"):
        (here / f"{name}.windows").symlink_to(here / "scapes.windows")
    (here / "SNE.embedded").symlink_to(here / "scapes.embedded")
    return here


def test_published_sets_are_found_by_name(published: Path) -> None:
    suite = find(f"birds?data={published}&sets=SNE,pow")
    assert (suite.name, list(suite.validation), list(suite.test)) == ("birds", ["HSN"], ["SNE", "POW"])
    assert suite.published["SNE"]["notela"] == 66.0
    assert suite.published["POW"]["source"] == 50.9
    assert len(suite.test["SNE"]().test)
    single = find(f"birds?data={published}&sets=SNE&task=singlelabel")
    assert (single.task, single.preset, single.published["SNE"]["pseudo_label"]) == (
        "singlelabel",
        "audio-singlelabel",
        60.2,
    )
    assert (
        find(f"birds?data={published}&sets=SNE&validation=&model=head.safetensors").test["SNE"]().test.shape[1] == 512
    )
    absolute = find(f"birds?data={published}&sets=SNE&model={published / 'birds.safetensors'}")
    assert Loaded(absolute).model_fingerprint == Loaded(suite).model_fingerprint


def test_the_paper_s_numbers_have_every_method(published: Path) -> None:
    for table in birds.PAPER.values():
        for row in table.values():
            assert set(row) == {"source", *plan.methods.PAPER}


def test_what_is_missing_is_said_with_the_command_that_makes_it(published: Path) -> None:
    with pytest.raises(NotelaError, match=r"UHH.windows does not exist; make it with `notela prepare .*--target UHH"):
        find(f"birds?data={published}&sets=UHH")
    with pytest.raises(NotelaError, match=r"UHH.windows does not exist"):  # not only the first is looked at
        find(f"birds?data={published}&sets=SNE,UHH")
    with pytest.raises(NotelaError, match=r"Caples.windows does not exist; .*recordings: from their authors"):
        find(f"birds?data={published}&sets=Caples")
    with pytest.raises(NotelaError, match=r"POW.embedded does not exist; make it with `notela embed MODEL"):
        find(f"birds?data={published}&sets=POW&validation=&model=head.safetensors")
    with pytest.raises(NotelaError, match="'XYZ' is not a target set; known are SSW"):
        find(f"birds?data={published}&sets=XYZ")
    with pytest.raises(NotelaError, match="sets='' names no target set"):
        find(f"birds?data={published}&sets=")
    with pytest.raises(NotelaError, match="no.safetensors does not exist"):
        find(f"birds?data={published}&model=no.safetensors")
