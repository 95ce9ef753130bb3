"""The suites of the aviary, small: what a domain is made of, and that nothing leaks between its parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import notela
from notela import demo
from notela.bench import plan
from notela.bench.runner import bench
from notela.bench.suite import find
from notela.bench.suites import _recordings, aviary
from notela.bioacoustics.aviary import DOMAINS, VALIDATION, species
from notela.bioacoustics.model import BirdClassifier
from notela.bioacoustics.prepared import Prepared
from notela.cli import app
from notela.engines.here import Here
from notela.evaluation import Predict


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("aviary")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aviary, "RECORDINGS", 10)
    monkeypatch.setattr(aviary, "HELD_OUT", 1)
    monkeypatch.setattr(aviary.soundscapes, "__defaults__", (10, 0.5, None))


@pytest.fixture
def windows(data: Path) -> Prepared:
    return aviary.soundscapes(data, "DELL")


def test_one_place_validates_and_six_test() -> None:
    for name, task in (("aviary", "multilabel"), ("aviary-single", "singlelabel")):
        suite = find(name)
        assert (suite.name, suite.task) == (name, task)
        assert list(suite.validation) == [VALIDATION]
        assert len(suite.test) == 6
        assert set(suite.test) | set(suite.validation) == set(DOMAINS)
        assert suite.class_names == tuple(one.scientific for one in species())


def test_published_settings_are_those_for_sound() -> None:
    for name, preset in (("aviary", "audio-multilabel"), ("aviary-single", "audio-singlelabel")):
        protocol = plan.make(find(name), name, trials=0)
        for method in notela.methods.names():
            published = notela.methods.preset(method, preset)
            assert protocol.candidates(method) == [replace(published, batch_size=aviary.BATCH)]


def test_the_source_is_one_small_file_that_knows_all_species() -> None:
    assert aviary.WEIGHTS.stat().st_size < 3_000_000
    classifier = aviary.classifier()
    assert isinstance(classifier, BirdClassifier)
    assert classifier.classes == species()
    assert set(classifier.names) == {"genus", "family", "order"}


def test_pictures_are_the_front_end_s_and_the_network_is_the_classifier(windows: Prepared, data: Path) -> None:
    classifier = aviary.classifier()
    x = _recordings.pictures(windows, classifier, data / "pictures")
    sound = torch.from_numpy(np.stack([windows.samples(row) for row in range(4)]))
    with torch.no_grad():
        logits = classifier(sound)
        np.testing.assert_allclose(aviary.network().eval()(x[:4].float()), logits, atol=0.02)
    again = _recordings.pictures(windows, classifier, data / "pictures")
    assert torch.equal(x, again)
    assert len(list((data / "pictures").glob("*.npy"))) == 1


def test_a_domain_has_its_species_its_labels_and_its_recordings(windows: Prepared, data: Path) -> None:
    place = find(f"aviary?data={data}").test["DELL"]()
    codes = [one.code for one in species()]
    assert place.classes == sorted(DOMAINS["DELL"].birds())
    rows = {split: windows.rows(split) for split in ("adapt", "test")}
    for split, labels in (("adapt", place.adapt_labels), ("test", place.test_labels)):
        for row, line in zip(rows[split], labels, strict=True):
            assert {codes[c] for c in line.nonzero().flatten().tolist()} == set(windows.table["species"][row])
    recordings = {split: {windows.table["recording"][row] for row in mine} for split, mine in rows.items()}
    assert not recordings["adapt"] & recordings["test"]
    assert len(place.adapt) + len(place.test) == len(windows)


def test_single_label_windows_hold_one_species(data: Path) -> None:
    windows = aviary.soundscapes(data, "OAK")  # in DELL, no window has so few
    place = find(f"aviary-single?data={data}").test["OAK"]()
    alone = [row for row in windows.rows("adapt") if len(windows.table["species"][row]) == 1]
    assert len(place.adapt) == len(alone) < len(windows.rows("adapt"))
    codes = [one.code for one in species()]
    assert [codes[c] for c in place.adapt_labels.tolist()] == [windows.table["species"][row][0] for row in alone]


def test_the_source_hears_birds_and_held_out_focal_ones_best(data: Path) -> None:
    suite = find(f"aviary?data={data}")
    assert suite.source is not None
    model = suite.model().eval()
    scores = {}
    for name, place in (("focal", suite.source()), ("DELL", suite.test["DELL"]())):
        scores[name] = suite.evaluator(place)(Predict(model, place.classes))["map"]
    assert 0.2 < scores["DELL"] < scores["focal"]
    assert scores["focal"] > 0.6  # species of which there is little data count as much as the others here


def test_it_runs_through_the_bench(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aviary.aviary, "DOMAINS", {name: DOMAINS[name] for name in ("SHADE", "BURN")})
    monkeypatch.setattr(aviary.aviary, "VALIDATION", "SHADE")
    monkeypatch.setattr(aviary, "RECORDINGS", 24)
    monkeypatch.setattr(aviary.soundscapes, "__defaults__", (24, 0.5, None))
    failures = bench(f"aviary-single?data={data}", tmp_path / "out", Here(1), methods=["adabn"], trials=1, seeds=1)
    assert failures == []
    records = [json.loads(line) for line in (tmp_path / "out" / "test.jsonl").read_text().splitlines()]
    assert {(r["domain"], r["settings"]["method"]) for r in records} >= {("BURN", "source"), ("BURN", "adabn")}


def test_the_demo_prints_a_row_for_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "QUICK_RECORDINGS", 8)
    monkeypatch.setattr(demo, "QUICK_EPOCHS", 1)
    monkeypatch.setattr(demo.run, "__defaults__", (0, False, tmp_path))
    shown = CliRunner().invoke(app, ["demo", "--quick"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    for name in ("source", *notela.methods.PAPER):
        assert name in shown.output
    assert "no labels used" in shown.output
