"""Model files: everything in one, whole or refused in one sentence; and BirdSet's checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from notela.bioacoustics.frontend import BirdSetMel
from notela.bioacoustics.model import BirdClassifier, at_peak, load, save
from notela.bioacoustics.taxonomy import Species
from notela.errors import NotelaError
from test_bird_networks import CLASSES, TINY, tones

HEADER = "notela.birds"


def small(**settings: Any) -> BirdClassifier:
    torch.manual_seed(0)
    return BirdClassifier(CLASSES, network_settings={"width": 8}, **settings).eval()


def header_of(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return dict(json.loads(file.metadata()[HEADER]))


def with_header(path: Path, **changes: Any) -> Path:
    changed = path.with_name("changed.safetensors")
    save_file(load_file(path), changed, {HEADER: json.dumps({**header_of(path), **changes})})
    return changed


# ---- what comes back


@pytest.mark.parametrize(
    "settings",
    [
        {"network_settings": {"width": 8}},
        {
            "network_settings": {"width": 8},
            "front_end_name": "logmel",
            "window": 3.0,
            "peak": None,
            "ranks": ["family"],
        },
        {"network_name": "efficientnet", "network_settings": TINY, "dropout": 0.4},
        {"network_name": "efficientnet", "network_settings": TINY, "front_end_name": "birdset", "ranks": ()},
    ],
)
def test_a_file_is_enough(settings: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = BirdClassifier(CLASSES, **settings)
    x, labels = tones(8)
    with torch.no_grad():
        model.train().by_rank(x)  # running averages move
    save(model, tmp_path / "birds.safetensors")
    back = load(tmp_path / "birds.safetensors")
    assert not back.training
    for name in ("classes", "names", "window", "sample_rate", "peak", "network_name", "front_end_name"):
        assert getattr(back, name) == getattr(model, name)
    assert back.dropout.p == model.dropout.p
    assert back.classes[0].common == "Eurasian Blackbird"
    with torch.no_grad():
        assert torch.equal(back(x), model.eval()(x))
        assert {r: t.shape for r, t in back.by_rank(x).items()} == {r: t.shape for r, t in back.targets(labels).items()}
    assert [p.name for p in tmp_path.iterdir()] == ["birds.safetensors"]


def test_names_of_other_scripts_survive(tmp_path: Path) -> None:
    odd = Species("x", "Aves sp.", "Þröstur “ny” 鳥", "", "", "")
    save(BirdClassifier([odd], network_settings={"width": 8}), tmp_path / "m.safetensors")
    back = load(tmp_path / "m.safetensors")
    assert back.classes == (odd,)
    assert list(back.heads) == ["species"]  # no rank is known: no heads for them


# ---- ranks and gain


def test_targets_of_ranks() -> None:
    model = small()
    assert model.names == {
        "genus": ["Cuculus", "Turdus"],
        "family": ["Cuculidae", "Turdidae"],
        "order": ["Cuculiformes", "Passeriformes"],
    }
    species = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.3, 0.6, 0.0], [0.0, 0.0, 0.0]])
    targets = model.targets(species)
    assert torch.equal(targets["species"], species)
    assert torch.equal(targets["genus"], torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.6], [0.0, 0.0]]))


def test_a_species_without_family_teaches_no_family() -> None:
    model = BirdClassifier([*CLASSES, Species("frog", "Rana sp.", "frog", "", "", "")], network_settings={"width": 8})
    assert model.targets(torch.tensor([[0.0, 0.0, 0.0, 1.0]]))["genus"].tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("training", [False, True])
def test_a_call_does_not_depend_on_the_recorders_gain(training: bool) -> None:
    model = small(dropout=0.0).train(training)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    x, _ = tones(4)
    with torch.no_grad():
        torch.testing.assert_close(model(x * 3), model(x), rtol=1e-3, atol=1e-4)
        assert not torch.allclose(model.by_rank(x * 3)["species"], model.by_rank(x)["species"], rtol=1e-3, atol=1e-4)


def test_peaks() -> None:
    x = torch.tensor([[0.5, -1.0], [0.0, 0.0], [1e-12, 0.0], [0.2, 0.1]])
    out = at_peak(x)
    assert out.abs().amax(1).tolist() == pytest.approx([0.2, 0.0, 2e-7, 0.2])


def test_silence_is_answered() -> None:
    assert small()(torch.zeros(2, 16_000)).isfinite().all()


# ---- refused in one sentence


def test_cut_short(tmp_path: Path) -> None:
    save(small(), tmp_path / "m.safetensors")
    whole = (tmp_path / "m.safetensors").read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.safetensors").write_bytes(whole[:length])
        with pytest.raises(NotelaError, match=r"cut.safetensors cannot be read as a model .*copy it again"):
            load(tmp_path / "cut.safetensors")


def test_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "text.safetensors").write_text("not a model at all, but a text that is long enough")
    with pytest.raises(NotelaError, match="cannot be read as a model"):
        load(tmp_path / "text.safetensors")
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(NotelaError, match="holds weights but not what a bird classifier needs"):
        load(tmp_path / "other.safetensors")
    with pytest.raises(NotelaError, match="nothing.safetensors does not exist"):
        load(tmp_path / "nothing.safetensors")
    with pytest.raises(NotelaError, match=r"is a folder without config.json"):
        load(tmp_path)


def test_newer_and_spoilt_headers(tmp_path: Path) -> None:
    save(small(), tmp_path / "m.safetensors")
    newer = with_header(tmp_path / "m.safetensors", format=2, made_by="notela 9.0")
    with pytest.raises(NotelaError, match=r"made by notela 9.0 in format 2; this notela reads up to 1: upgrade"):
        load(newer)
    for changes, reason in (
        ({"format": "one"}, "has a header that cannot be read"),
        ({"classes": [["a", "b"]]}, "does not fit together"),
        ({"classes": header_of(tmp_path / "m.safetensors")["classes"][:2]}, "does not fit together"),
        ({"network": "resnet"}, "network='resnet' is not one of"),
        ({"network_settings": {"depth": 3}}, "does not fit together"),
        ({"sample_rate": 48_000}, "wants 48000 samples a second"),
    ):
        with pytest.raises(NotelaError, match=reason) as caught:
            load(with_header(tmp_path / "m.safetensors", **changes))
        assert "\n" not in str(caught.value)


def test_saving_fails_whole(tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match=r"m.pt must end in .safetensors"):
        save(small(), tmp_path / "m.pt")
    with pytest.raises(NotelaError, match="cannot write .*what was saved before is intact"):
        save(small(), tmp_path / "missing" / "m.safetensors")


def test_classes_are_checked() -> None:
    with pytest.raises(NotelaError, match="classes is empty"):
        BirdClassifier([])
    with pytest.raises(NotelaError, match="classes holds 'eurbla' more than once"):
        BirdClassifier([CLASSES[0], *CLASSES])
    with pytest.raises(NotelaError, match="'birdset' is for 'efficientnet'"):
        BirdClassifier(CLASSES, front_end_name="birdset")


# ---- BirdSet's checkpoints, from a folder


@pytest.fixture
def published(tmp_path: Path) -> tuple[Path, Any]:
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    torch.manual_seed(0)
    labels = {0: "ostric2", 1: "comcuc", 2: "not a bird"}
    config = EfficientNetConfig(**TINY, id2label=labels, label2id={name: i for i, name in labels.items()})
    net = EfficientNetForImageClassification(config).eval()
    for layer in net.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):  # as if trained: no number where it started
            torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
            torch.nn.init.normal_(layer.running_mean, 0, 0.1)
        elif isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            torch.nn.init.normal_(layer.weight, 0, 0.5)
    net.save_pretrained(tmp_path / "birdset")
    return tmp_path / "birdset", net


def test_birdset_folder(published: tuple[Path, Any], tmp_path: Path) -> None:
    folder, net = published
    model = load(folder)
    assert [one.code for one in model.classes] == ["ostric2", "comcuc", "not a bird"]
    assert [one.scientific for one in model.classes] == ["Struthio camelus", "Cuculus canorus", "not a bird"]
    x, _ = tones(3)
    with torch.no_grad():
        expected = net(BirdSetMel()(x)[:, None]).logits
        torch.testing.assert_close(model(x), expected)
        assert expected.std(0).min() > 0  # not the same answer to all
        save(model, tmp_path / "ours.safetensors")
        torch.testing.assert_close(load(tmp_path / "ours.safetensors")(x), expected)


def test_birdset_folders_that_are_not(published: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = published
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_channels": 3}))
    with pytest.raises(NotelaError, match="is a efficientnet with 3 input channels; only"):
        load(folder)
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if k != "classifier.bias"}, folder / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(NotelaError, match=r"lacks 'classifier.bias' \(1 such\)"):
        load(folder)
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(NotelaError, match="cannot be loaded"):
        load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(NotelaError, match="cannot be loaded"):
        load(folder)
