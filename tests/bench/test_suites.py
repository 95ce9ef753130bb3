"""The suites that come along, the ceiling, and what is kept under results/."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import notela
from notela.bench import plan, report
from notela.bench.suite import Domain, Loaded, find
from notela.bench.suites import digits, digits_multi
from notela.bench.supervised import GRID, Supervised, with_labels
from notela.evaluation import Predict
from notela.methods.base import Preset
from notela.stable import stable_share

RESULTS = Path(__file__).parents[2] / "results"
CIFAR = RESULTS.parents[1] / "shared" / "data" / "cifar10"


def test_the_digits_have_three_validation_and_six_test_domains() -> None:
    for name in ("digits", "digits-multi"):
        suite = find(name)
        assert suite.name == name
        assert not suite.validation.keys() & suite.test.keys()
        assert (len(suite.validation), len(suite.test)) == (3, 6)


def test_stable_shares_do_not_depend_on_the_other_names() -> None:
    shares = stable_share(map(str, range(2000)))
    assert stable_share(["7"])[0] == shares[7]
    assert np.histogram(shares, bins=10, range=(0, 1))[0].min() > 150  # 200 each on average


@pytest.mark.parametrize("name", ["digits", "digits-multi"])
def test_the_source_is_good_at_home_and_worse_away(name: str) -> None:
    suite = find(name)
    assert suite.source is not None

    def score(domain: Domain) -> float:
        return suite.evaluator(domain)(Predict(suite.model()))[suite.metrics[0]]

    home = score(suite.source())
    away = [score(place()) for place in (*suite.validation.values(), *suite.test.values())]
    assert home > 0.85
    assert all(0.2 < score < home - 0.03 for score in away)


def test_the_weights_that_come_along_are_what_training_gives() -> None:
    """Not bit for bit: that depends on the machine."""
    clean = find("digits").source
    assert clean is not None
    again = find("digits").evaluator(clean())(Predict(digits.train_source()))["accuracy"]
    assert again == pytest.approx(find("digits").evaluator(clean())(Predict(digits.model()))["accuracy"], abs=0.04)


def test_no_digit_is_in_two_parts() -> None:
    parts = {name: {image.tobytes() for image in digits.pool(name)[0]} for name in digits.PARTS}
    sizes = [len(digits.pool(name)[0]) for name in digits.PARTS]
    assert sum(sizes) == 1797
    assert len(set.union(*parts.values())) == sum(map(len, parts.values()))


def test_a_domain_is_the_same_every_time_and_no_two_are_alike() -> None:
    for suite in (find("digits"), find("digits-multi")):
        loaded = [Loaded(suite), Loaded(suite)]
        prints = [[each.domain(name)[1] for name in (*suite.validation, *suite.test)] for each in loaded]
        assert prints[0] == prints[1]
        assert len(set(prints[0])) == 9


def test_fingerprints_see_inputs_labels_and_classes() -> None:
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    domain = Domain(x[:6], x[6:], test_labels=y[6:], adapt_labels=y[:6])
    others = [
        Domain(x[:6] + 1, x[6:], test_labels=y[6:], adapt_labels=y[:6]),
        Domain(x[:6], x[6:] + 1, test_labels=y[6:], adapt_labels=y[:6]),
        Domain(x[:6], x[6:], test_labels=1 - y[6:], adapt_labels=y[:6]),
        Domain(x[:6], x[6:], test_labels=y[6:], adapt_labels=1 - y[:6]),
        Domain(x[:6], x[6:], test_labels=y[6:], adapt_labels=y[:6], classes=[0, 1]),
        Domain(x[:6], x[6:], test_labels=y[6:], adapt_labels=y[:6], identity="b"),
    ]
    assert len({domain.fingerprint(), *(other.fingerprint() for other in others)}) == 7


def test_canvases_hold_what_their_labels_say() -> None:
    """One constant image a class: the brightness on the canvas tells who is there."""
    shades = np.arange(1, 11) / 10
    images = np.ones((10, 8, 8)) * shades[:, None, None]
    x, y = digits_multi.canvases(images, np.arange(10), 200, np.ones(10), "a seed")
    assert set(y.sum(1).tolist()) == {2.0, 3.0}
    for canvas, labels in zip(x, y, strict=True):
        seen = {round(v, 1) for v in np.unique(canvas)} - {0.0}
        there = {round(shades[c], 1) for c in labels.nonzero().flatten().tolist()}
        assert seen <= there  # a brighter digit may cover a darker one
        assert max(seen) == max(there)


def test_classes_are_skewed_at_the_targets_and_even_at_home() -> None:
    home, away = find("digits-multi").source, find("digits-multi").test["fog"]
    assert home is not None
    counts = [np.sort(domain().adapt_labels.sum(0).numpy()) for domain in (home, away)]
    assert counts[0][-1] / counts[0][0] < 1.5
    assert counts[1][-1] / counts[1][0] > 4


def test_three_digits_dominate_where_the_mix_is_skewed() -> None:
    even, skewed = find("digits"), find("digits?mix=skewed")
    assert skewed.name == "digits-skewed"
    dominant = []
    for part in ("validation", "test"):
        for name, place in getattr(skewed, part).items():
            domain, whole = place(), getattr(even, part)[name]()
            counts, before = (
                np.bincount(np.concatenate([d.adapt_labels, d.test_labels]), minlength=10) for d in (domain, whole)
            )
            kept = np.flatnonzero(counts == before)
            assert len(kept) == 3, name
            assert counts[kept].min() > 2 * np.delete(counts, kept).max()
            dominant.append(tuple(kept))
            adapt, test = ({image.numpy().tobytes() for image in x} for x in (domain.adapt, domain.test))
            assert not adapt & test, name
    assert len(set(dominant)) > 5


def test_a_mix_that_there_is_not_is_refused() -> None:
    with pytest.raises(notela.NotelaError, match="mix='odd' is not one of 'balanced', 'skewed'"):
        find("digits?mix=odd")


@pytest.mark.parametrize("name", ["digits", "digits-multi"])
def test_a_weaker_corruption_is_part_of_the_way(name: str) -> None:
    """Corruptions are laid over the clean image, so half of one is half-way."""
    whole, half, least = (find(f"{name}?strength={share}") for share in (100, 50, 1))
    assert (whole.name, half.name) == (name, f"{name}-50")
    assert "at 50 % of their strength" in half.protocol
    assert whole.protocol == find(name).protocol
    for place in ("blur", "contrast"):
        full, plain, there, clean = (one.validation[place]() for one in (whole, find(name), half, least))
        assert full.fingerprint() == plain.fingerprint() != there.fingerprint()
        assert torch.equal(there.test_labels, full.test_labels)
        torch.testing.assert_close(there.adapt, (full.adapt + clean.adapt) / 2, rtol=0, atol=3 / 255)


@pytest.mark.parametrize("name", ["digits", "digits-multi"])
@pytest.mark.parametrize("strength", [0, 101])
def test_a_strength_beyond_the_corruption_is_refused(name: str, strength: int) -> None:
    with pytest.raises(notela.NotelaError, match=f"strength={strength} "):
        find(f"{name}?strength={strength}")


# ---- the ceiling


def test_the_ceiling_is_plain_cross_entropy_with_the_labels() -> None:
    """One epoch of one batch equals a step of Adam written out."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 5))
    x = torch.randn(12, 4)
    kept = [0, 2, 3]
    for task, labels in (
        ("singlelabel", torch.tensor(kept)[torch.arange(12) % 3]),
        ("multilabel", (torch.rand(12, 5) > 0.5).float()),
    ):
        preset = with_labels(Preset(Supervised(), "all", 1e-2, epochs=1, batch_size=12, noise=False), labels)
        result = notela.adapt(net, x, task=task, method=preset, classes=kept, device="cpu")
        twin = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 5))
        twin.load_state_dict(net.state_dict())
        optimizer = torch.optim.Adam(twin.parameters(), lr=1e-2)
        z = twin(x)[:, kept]
        if task == "singlelabel":
            loss = F.cross_entropy(z, torch.tensor([kept.index(int(c)) for c in labels]))
        else:
            loss = F.binary_cross_entropy_with_logits(z, labels[:, kept])
        loss.backward()
        optimizer.step()
        for ours, theirs in zip(result.model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_labels_are_no_setting() -> None:
    labels = torch.arange(3)
    assert with_labels(GRID[0], labels).settings() == GRID[0].settings()
    assert "supervised" not in notela.methods.names()
    assert len(GRID) == 48


# ---- results/


@pytest.mark.parametrize("name", sorted(path.parent.name for path in RESULTS.glob("*/protocol.json")))
def test_tables_under_results_are_what_their_records_give(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(RESULTS / name, tmp_path / name)
    shutil.rmtree(folder / "tables")
    report.write(folder)
    kept = {path.name: path.read_text() for path in (RESULTS / name / "tables").iterdir()}
    assert {path.name: path.read_text() for path in (folder / "tables").iterdir()} == kept
    assert (folder / "README.md").read_text() == (RESULTS / name / "README.md").read_text()


@pytest.mark.parametrize("name", ["digits", "digits-multi"])
def test_results_are_of_the_data_and_model_that_come_along(name: str) -> None:
    protocol = plan.read(RESULTS / name / "protocol.json")
    loaded = Loaded(find(protocol.suite))
    assert loaded.model_fingerprint == protocol.model
    assert {domain: loaded.domain(domain)[1] for domain in protocol.domains} == protocol.domains


@pytest.mark.parametrize("name", ["cifar10c", "cifar10c-resnet56", "cifar10c-severity"])
def test_results_on_images_are_of_the_checkpoint_and_the_images(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One corruption stands for all: they take minutes, and filters may differ in a bit from processor to processor."""
    if not CIFAR.exists():
        pytest.skip(f"real data not present: {CIFAR.name}")
    protocol = plan.read(RESULTS / name / "protocol.json")
    monkeypatch.chdir(RESULTS.parent)  # its reference is relative
    loaded = Loaded(find(protocol.suite))
    assert loaded.model_fingerprint == protocol.model
    contrast = next(domain for domain in reversed(protocol.test) if domain.startswith("contrast"))
    assert loaded.domain(contrast)[1] == protocol.domains[contrast]
