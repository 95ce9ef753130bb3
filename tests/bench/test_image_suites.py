"""The image suites: their options, what they make of folders in the real layouts, and what they say of missing ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

import notela
from conftest import Here
from notela.bench import files, report, trial
from notela.bench.runner import bench
from notela.bench.suite import Suite, absolute, find, refer
from notela.bench.suites import _styles, cifar10c, imagenet, visda
from notela.data import Unlabelled
from notela.errors import NotelaError
from notela.evaluation import Predict
from notela.stable import stable_share
from notela.vision.cifar import CLASSES
from notela.vision.folders import OFFICE_HOME, VISDA_CLASSES
from notela.vision.preprocessing import IMAGENET_MEAN, IMAGENET_STD, as_torchvision
from notela.vision.severities import EXTRA, NAMES

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10"
needs_data = pytest.mark.skipif(not DATA.exists(), reason=f"real data not present: {DATA.name}")
WNIDS = [f"n{i:08d}" for i in range(1000)]


@pytest.fixture(autouse=True)
def _one_thread_and_no_cache() -> Iterator[None]:
    before = torch.get_num_threads()
    trial._loaded.cache_clear()
    yield
    torch.set_num_threads(before)


def paint(path: Path, shade: int = 100, size: tuple[int, int] = (12, 8)) -> None:
    """A small picture, of one colour but for some noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(zlib.crc32(path.name.encode())).integers(0, 20, (size[1], size[0], 3))
    Image.fromarray((shade + noise).astype(np.uint8)).save(path)


def small_network(classes: int) -> Callable[..., nn.Module]:
    def build(*_: object) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 4, 9, 8), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Dropout(0.1), nn.Linear(4, classes),
        ).eval()  # fmt: skip

    return build


# ---- options


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("cifar10c?image=3", "no option 'image'; it takes data, network, weights, images, severity, corruptions"),
        ("cifar10c?images=few", "images='few' of cifar10c is not a whole number"),
        ("cifar10c?images=0", "images=0 must be"),
        ("cifar10c?severity=6", "severity='6' is not one of '1', '2'"),
        ("cifar10c?severity=1,", "severity='' is not one of"),
        ("cifar10c?corruptions=mist", "corruptions='mist' is not one of 'gaussian_noise'"),
        ("cifar10c?network=vgg", "network='vgg' is not one of 'resnet20'"),
        ("digits-multi?seed=3", "the suite digits-multi has no option 'seed'; it takes strength"),
        ("visda?part=train", "part='train' is not one of 'validation', 'test'"),
        ("visda?images=-1", "images=-1 must be"),
        ("office-home?source=art", "source='art' is not one of 'Art'"),
        ("imagenet?data=nowhere", "nowhere/sketch does not exist: download ImageNet-Sketch from https://"),
        ("office-home?targets=Art", "targets='Art' is not one of 'Clipart', 'Product'"),
        ("office-home?data=nowhere", "nowhere/Art does not exist: download Office-Home from https://"),
        ("domainnet?data=nowhere", "nowhere/real does not exist: download DomainNet from https://"),
    ],
)
def test_mistakes_in_options_are_named(reference: str, message: str) -> None:
    with pytest.raises(NotelaError) as caught:
        find(reference)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("reference", "domain", "message"),
    [
        ("cifar10c?data=nowhere", "fog", "nowhere holds no CIFAR-10 test images: expected cifar-10-batches-py"),
        ("visda?data=nowhere", "VisDA-C validation", "nowhere/validation does not exist: download VisDA-C from https"),
        (
            "visda?data=nowhere&part=test",
            "VisDA-C test",
            "classification/data/image_list.txt of that repository as test/image_list.txt",
        ),
    ],
)
def test_missing_data_says_what_to_download(reference: str, domain: str, message: str) -> None:
    with pytest.raises(NotelaError) as caught:
        find(reference).test[domain]()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("cifar10c?data=nowhere", "nowhere/resnet20.pt does not exist: put the one from https://github.com/akamaster"),
        ("cifar10c?data=nowhere&network=wrn-28-10", "put RobustBench's checkpoint 'Standard'"),
        ("visda?data=nowhere", "nowhere/resnet101.pt does not exist: expected a ResNet-101 with 12 outputs"),
    ],
)
def test_missing_checkpoints_say_where_they_come_from(reference: str, message: str) -> None:
    with pytest.raises(NotelaError) as caught:
        find(reference).model()
    assert message in str(caught.value)


def test_references_are_the_same_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = refer("cifar10c", {"data": "a & b/c", "images": "8"})
    monkeypatch.chdir(tmp_path)
    there = absolute(given)
    monkeypatch.chdir("/")
    assert absolute(there) == there
    with pytest.raises(NotelaError, match="a & b/c/resnet20.pt does not exist") as caught:
        find(there).model()
    assert str(caught.value).startswith(str(tmp_path))
    assert absolute("digits") == "digits"
    assert Path(dict(parse_qsl(absolute("cifar10c").partition("?")[2]))["data"]).is_absolute()  # the default, too
    assert "classes" not in absolute("office-home")
    assert refer(given, {"network": "resnet56"}) == f"{given}&network=resnet56"


def test_a_toml_file_may_have_a_question_mark_in_its_path(tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match=r"a\?b/ponds.toml does not exist"):
        find(str(tmp_path / "a?b" / "ponds.toml"))
    with pytest.raises(NotelaError, match=r"ponds.toml takes no options \(images=3\)"):
        find("ponds.toml?images=3")


# ---- cifar10c


def test_the_paper_s_corruptions_and_more_seeds_for_four() -> None:
    suite = find("cifar10c")
    assert list(suite.test) == [name.replace("_", " ") for name in NAMES]
    assert len(suite.test) == 15
    assert (suite.seeds, suite.more_seeds) == (
        1,
        dict.fromkeys(["gaussian noise", "glass blur", "snow", "contrast"], 3),
    )
    assert suite.published.keys() == {"average"}
    assert suite.published["average"].keys() == {"source", *notela.methods.PAPER}
    assert "4,000 of the 10,000" in suite.protocol
    assert "standard error of up to 1.6 points" in suite.protocol
    assert find("cifar10c?severity=3").published == {}
    assert find("cifar10c?corruptions=fog,snow").published == {}


def test_several_severities_make_a_sweep() -> None:
    suite = find("cifar10c?corruptions=fog,spatter&severity=1,4")
    assert list(suite.test) == ["fog 1", "fog 4", "spatter 1", "spatter 4"]
    assert suite.levels == {f"{name} {level}": (name, level) for name in ("fog", "spatter") for level in (1, 4)}
    assert suite.published == {}
    assert not suite.more_seeds
    assert "spatter" in EXTRA


def test_a_larger_draw_holds_a_smaller_one_part_by_part() -> None:
    labels = np.zeros(1000, np.int64)
    adapt, test = (set(rows.tolist()) for rows in cifar10c.split(labels, 1000))
    assert (len(adapt), len(test)) == (750, 250)
    assert adapt | test == set(range(1000))
    for images in (8, 400):
        fewer_adapt, fewer_test = (set(rows.tolist()) for rows in cifar10c.split(labels, images))
        assert (len(fewer_adapt), len(fewer_test)) == (images * 3 // 4, images // 4)
        assert fewer_adapt <= adapt
        assert fewer_test <= test
    with pytest.raises(NotelaError, match="images=1001, but there are only 1000"):
        cifar10c.split(labels, 1001)


@needs_data
@pytest.mark.parametrize(("corruption", "source", "batch"), [("gaussian_noise", 23.6, 58.9), ("contrast", 27.6, 78.8)])
def test_source_and_batch_statistics_agree_with_what_is_known(corruption: str, source: float, batch: float) -> None:
    """2,000 images: the standard error of a difference of two such samples is at most 1.6 points."""
    pixels, labels = cifar10c.corrupted(DATA, corruption, 5)
    x, y = cifar10c.prepare(pixels[:2000], "resnet20"), labels[:2000]
    net = cifar10c.model("resnet20", DATA / "resnet20.pt")
    evaluator = notela.Evaluator(x, y, task="singlelabel")
    adapted = notela.adapt(net, x, task="singlelabel", method="adabn", epochs=1, evaluator=evaluator, progress=False)
    assert adapted.source is not None
    assert 100 * adapted.source["accuracy"] == pytest.approx(source, abs=3.2)
    assert 100 * adapted.history[-1]["evaluation"]["accuracy"] == pytest.approx(batch, abs=3.2)


@needs_data
def test_the_suite_s_domains_are_the_corrupted_images() -> None:
    suite = find(refer("cifar10c", {"data": str(DATA), "images": "80"}))
    home, away = suite.source, suite.test["contrast"]()
    assert home is not None
    clean = home()
    assert (clean.adapt.shape, clean.test.shape) == ((60, 3, 32, 32), (20, 3, 32, 32))
    assert torch.equal(clean.test_labels, away.test_labels)
    pixels = [cifar10c.prepare(np.full((1, 32, 32, 3), v, np.uint8), "resnet20") for v in (0, 255)]
    assert (clean.adapt >= pixels[0]).all()
    assert (clean.adapt <= pixels[1]).all()
    contrast = [float(domain.adapt.std((2, 3)).mean()) for domain in (clean, away)]
    assert contrast[1] == pytest.approx(0.15 * contrast[0], rel=0.05)
    assert cifar10c.prepare(np.full((1, 32, 32, 3), 51, np.uint8), "wrn-28-10").unique().tolist() == [
        pytest.approx(0.2)
    ]


def test_bench_on_the_published_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10-C's own layout, small; through the command's own path to tables."""
    rng = np.random.default_rng(0)
    (tmp_path / "CIFAR-10-C").mkdir()
    labels = np.tile(np.arange(10), 4)
    blocks = [np.clip(labels[:, None, None, None] * 20 + rng.integers(0, 60, (40, 32, 32, 3)), 0, 255)] * 5
    np.save(tmp_path / "CIFAR-10-C" / "fog.npy", np.concatenate(blocks).astype(np.uint8))
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", np.tile(labels, 5).astype(np.uint8))
    np.savez(tmp_path / "cifar10_test.npz", images=blocks[0].astype(np.uint8), labels=labels)
    monkeypatch.setattr(cifar10c, "model", small_network(len(CLASSES)))
    reference = refer("cifar10c", {"data": str(tmp_path), "images": "40", "corruptions": "fog", "severity": "2,3"})
    assert "CIFAR-10-C's own files" in find(reference).protocol
    assert bench(reference, tmp_path / "out", Here(), methods=["adabn", "notela"]) == []
    made = {table.name: table for table in report.write(tmp_path / "out")}
    assert [label for label, _ in made["per_domain"].rows] == ["fog 2", "fog 3", "average"]
    assert (tmp_path / "out" / "figures" / "levels.svg").exists()


# ---- folders of images


def test_files_are_split_by_their_names_and_drawn_without_moving_the_split(tmp_path: Path) -> None:
    for i in range(60):
        paint(tmp_path / "ab"[i % 2] / f"{i}.png")
    labelled = {path: "ab".index(path.parent.name) for path in tmp_path.rglob("*.png")}
    whole = files.domain(labelled, tmp_path, lambda path: torch.tensor([float(path.stem)]))
    held_out = {float(p.stem) for p in labelled if stable_share([p.relative_to(tmp_path).as_posix()])[0] >= 0.75}
    assert {float(x) for x in whole.test} == held_out
    assert len(whole.adapt) + len(whole.test) == 60
    numbers = [int(x) for x in whole.adapt]
    assert whole.adapt_labels.tolist() == [i % 2 for i in numbers]
    fewer = files.domain(labelled, tmp_path, lambda path: torch.tensor([float(path.stem)]), most=30)
    assert len(fewer.adapt) + len(fewer.test) == 30
    assert {float(x) for x in fewer.test} <= held_out
    assert whole.fingerprint() != fewer.fingerprint()
    changed = next(path for path in labelled if path.stem not in {str(n) for n in held_out})
    before = whole.fingerprint()
    changed.write_bytes(changed.read_bytes() + b"more")
    assert files.domain(labelled, tmp_path, lambda path: torch.tensor([float(path.stem)])).fingerprint() != before
    with pytest.raises(NotelaError, match="holds 60 files, of which 1 are drawn: too few to split"):
        files.domain(labelled, tmp_path, lambda path: torch.zeros(1), most=1)


def test_reading_ahead_in_other_processes_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(40):
        paint(tmp_path / "ab"[i % 2] / f"{i}.png", shade=40 + 100 * (i % 2))
    labelled = {path: "ab".index(path.parent.name) for path in tmp_path.rglob("*.png")}
    prepare, results, net = as_torchvision, [], small_network(2)()
    for enough in (1000, 1):
        monkeypatch.setattr(files, "WORTH_WORKERS", enough)
        domain = files.domain(labelled, tmp_path, prepare)
        assert isinstance(domain.adapt, DataLoader) == (enough == 1)
        assert len(Unlabelled(domain.adapt)) + len(Unlabelled(domain.test)) == 40
        settings = {"task": "singlelabel", "method": "notela", "epochs": 2, "batch_size": 8, "progress": False}
        evaluator = notela.Evaluator(domain.test, domain.test_labels, task="singlelabel")
        results.append((domain, notela.adapt(net, domain.adapt, evaluator=evaluator, **settings)))
    (first, one), (second, other) = results
    assert first.fingerprint() == second.fingerprint()
    assert [epoch["evaluation"] for epoch in one.history] == [epoch["evaluation"] for epoch in other.history]
    for a, b in zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_damaged_image_is_named_even_from_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(12):
        paint(tmp_path / "a" / f"{i}.png")
    (tmp_path / "a" / "3.png").write_bytes(b"not a picture")
    monkeypatch.setattr(files, "WORTH_WORKERS", 1)
    domain = files.domain(dict.fromkeys((tmp_path / "a").iterdir(), 0), tmp_path, as_torchvision)
    mine = domain.adapt if stable_share(["a/3.png"])[0] < 0.75 else domain.test
    with pytest.raises(NotelaError, match=r"a/3.png cannot be prepared \(UnidentifiedImageError: .*repair or remove"):
        Predict(small_network(2)())(mine)


@pytest.fixture(scope="module")
def imagenet_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layouts of ImageNet-C (one corruption below its kind's folder), ImageNet-R and ImageNet-Sketch."""
    root = tmp_path_factory.mktemp("imagenet")
    for wnid in WNIDS:
        (root / "sketch" / wnid).mkdir(parents=True)
    kept = WNIDS[::5]
    for i, wnid in enumerate(kept):
        paint(root / "imagenet-r" / wnid / f"art_{i}.jpg")
    (root / "imagenet-r" / "README.txt").write_text("about")
    for i, wnid in enumerate(WNIDS[:40]):
        paint(root / "sketch" / wnid / f"sketch_{i}.JPEG")
        for place in ("digital/contrast", "glass_blur", "weather/snow"):
            paint(root / "ImageNet-C" / place / "5" / wnid / f"ILSVRC2012_val_{i:08d}.JPEG", size=(224, 224))
    return root


def image_suite(name: str, root: Path, **options: str) -> Suite:
    return find(refer(name, {"data": str(root), **options}))


def test_imagenet_s_variants_in_their_layouts(imagenet_folder: Path) -> None:
    suite = image_suite("imagenet", imagenet_folder)
    assert list(suite.validation) == ["contrast", "glass blur", "snow"]
    assert list(suite.test) == [imagenet.RENDITIONS_MASKED, imagenet.RENDITIONS_ALL, imagenet.SKETCH]
    assert set(suite.published) <= set(suite.test)
    assert suite.class_names == tuple(WNIDS)
    places = {**suite.validation, **suite.test}
    sizes = {name: len(domain().adapt) + len(domain().test) for name, domain in places.items()}
    assert list(sizes.values()) == [40, 40, 40, 200, 200, 40]
    masked, all_outputs = (suite.test[name]() for name in list(suite.test)[:2])
    assert masked.classes == list(range(0, 1000, 5))
    assert all_outputs.classes is None
    assert torch.equal(masked.test_labels, all_outputs.test_labels)
    assert set(masked.adapt_labels.tolist()) | set(masked.test_labels.tolist()) == set(masked.classes)
    assert masked.fingerprint() != all_outputs.fingerprint()
    assert masked.adapt[0].shape == suite.validation["snow"]().adapt[0].shape == (3, 224, 224)
    assert suite.published.keys() == {imagenet.RENDITIONS_ALL, imagenet.SKETCH}
    few = image_suite("imagenet", imagenet_folder, images="24")
    assert len(few.test[imagenet.SKETCH]().adapt) + len(few.test[imagenet.SKETCH]().test) == 24
    assert "at most 24 images of each domain" in few.protocol


def test_imagenet_scores_with_and_without_the_mask(imagenet_folder: Path) -> None:
    """A model that always prefers a class outside of ImageNet-R is right under the mask alone."""
    suite = image_suite("imagenet", imagenet_folder)

    class Shades(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = torch.zeros(len(x), 1000)
            z[:, 1], z[:, 995] = 2.0, 1.0
            return z

    domains = [suite.test[name]() for name in (imagenet.RENDITIONS_MASKED, imagenet.RENDITIONS_ALL)]
    scores = [suite.evaluator(domain)(Predict(Shades(), domain.classes))["accuracy"] for domain in domains]
    share = (domains[0].test_labels == 995).float().mean().item()
    assert scores == [pytest.approx(share), 0.0]


def test_each_domain_is_prepared_as_its_model_expects(imagenet_folder: Path, tmp_path: Path) -> None:
    """ImageNet-C as it is, the others scaled by their shorter side; VisDA squeezed. All normalised."""

    def pixels(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor(IMAGENET_STD).reshape(3, 1, 1) + torch.tensor(IMAGENET_MEAN).reshape(3, 1, 1)

    suite = image_suite("imagenet", imagenet_folder)
    labelled = sorted((imagenet_folder / "ImageNet-C" / "glass_blur" / "5").rglob("*.JPEG"))
    with Image.open(next(p for p in labelled if stable_share([f"{p.parent.name}/{p.name}"])[0] < 0.75)) as image:
        expected = np.asarray(image.convert("RGB")) / 255
    first = pixels(suite.validation["glass blur"]().adapt[0]).numpy().transpose(1, 2, 0)
    np.testing.assert_allclose(first, expected, atol=1e-5)
    # a picture whose left half is black: squeezed, the half stays a half; scaled and cropped, it does too, but the
    # white stripe at its right end is cut off
    stripes = np.zeros((100, 400, 3), np.uint8)
    stripes[:, 360:] = 255
    for i in range(12):
        place = tmp_path / "validation" / VISDA_CLASSES[i] / "a.png"
        place.parent.mkdir(parents=True)
        Image.fromarray(stripes).save(place)
    x = pixels(image_suite("visda", tmp_path).test["VisDA-C validation"]().adapt[0])
    assert x[:, :, -4:].mean() > 0.99
    assert x[:, :, :190].max() < 0.05
    assert pixels(as_torchvision(place)).max() < 0.05


def test_a_part_of_imagenet_r_is_refused(imagenet_folder: Path, tmp_path: Path) -> None:
    for wnid in WNIDS:
        (tmp_path / "sketch" / wnid).mkdir(parents=True)
    for i in range(40):
        paint(tmp_path / "imagenet-r" / WNIDS[i] / f"{i}.jpg")
    with pytest.raises(NotelaError, match="holds images of 40 classes; ImageNet-R has 200"):
        image_suite("imagenet", tmp_path).test[imagenet.RENDITIONS_MASKED]()
    paint(tmp_path / "imagenet-r" / "notes" / "a.jpg")
    with pytest.raises(NotelaError, match="notes is no class of the model"):
        image_suite("imagenet", tmp_path).test[imagenet.RENDITIONS_MASKED]()


def test_an_incomplete_sketch_folder_is_refused(tmp_path: Path) -> None:
    paint(tmp_path / "sketch" / "n00000001" / "a.JPEG")
    with pytest.raises(NotelaError, match="holds 1 classes; ImageNet-Sketch has all 1,000"):
        image_suite("imagenet", tmp_path)


def test_bench_on_visda_s_layout_gives_both_accuracies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(72):
        paint(tmp_path / "validation" / VISDA_CLASSES[i % 12] / f"{i}.jpg", shade=10 * (i % 12))
    (tmp_path / "validation" / "image_list.txt").write_text("")
    monkeypatch.setattr(visda, "source_resnet", small_network(12))
    reference = refer("visda", {"data": str(tmp_path)})
    assert bench(reference, tmp_path / "out", Here(), methods=["adabn", "tent"], seeds=1) == []
    made = {table.name: table for table in report.write(tmp_path / "out")}
    columns = [("VisDA-C validation", "accuracy"), ("VisDA-C validation", "mean per-class accuracy")]
    assert made["test"].columns[:2] == columns
    assert [label for label, _ in made["per_domain"].rows][1] == "VisDA-C validation in the paper"


def test_visda_s_test_part_has_a_list(tmp_path: Path) -> None:
    lines = []
    for i in range(24):
        paint(tmp_path / "test" / "trunk01" / f"{i}.jpg")
        lines.append(f"trunk01/{i}.jpg {i % 12}\n")
    (tmp_path / "test" / "image_list.txt").write_text("".join(lines) + "\n")
    domain = image_suite("visda", tmp_path, part="test").test["VisDA-C test"]()
    assert image_suite("visda", tmp_path, part="test").published == {}
    assert sorted([*domain.adapt_labels.tolist(), *domain.test_labels.tolist()]) == sorted([*range(12)] * 2)
    for wrong, message in (
        ("trunk01/0.jpg 12", "line 1 of"),
        ("trunk01/99.jpg 1", "lists trunk01/99.jpg, which is not"),
    ):
        (tmp_path / "test" / "image_list.txt").write_text(wrong)
        with pytest.raises(NotelaError, match=message):
            image_suite("visda", tmp_path, part="test").test["VisDA-C test"]()


def style_folders(root: Path, styles: Sequence[str], classes: int) -> list[str]:
    """Pictures of the first two classes; folders for all."""
    names = [f"class_{i:03d}" for i in range(classes)]
    for style in styles:
        for name in names:
            (root / style / name).mkdir(parents=True)
        for i in range(24):
            paint(root / style / names[i % 2] / f"{style}_{i:05d}.jpg")
    return names


def test_office_home_in_its_layout(tmp_path: Path) -> None:
    names = style_folders(tmp_path, [style.replace(" ", "_") for style in OFFICE_HOME], 65)
    suite = image_suite("office-home", tmp_path, source="Product")
    assert list(suite.test) == ["Art", "Clipart", "Real World"]
    assert suite.class_names == tuple(names)
    assert len(suite.test["Real World"]().adapt) + len(suite.test["Real World"]().test) == 24
    assert suite.source is not None
    assert suite.source().identity.startswith("class_000/Product_")
    assert len(image_suite("office-home", tmp_path, images="8").test["Clipart"]().adapt) < 9
    assert list(image_suite("office-home", tmp_path, targets="Clipart").test) == ["Clipart"]
    turned = tmp_path / "classes.txt"
    turned.write_text("\n".join(reversed(names)))
    labels = image_suite("office-home", tmp_path, classes=str(turned)).test["Clipart"]().test_labels
    assert set(labels.tolist()) <= {63, 64}
    turned.write_text("\n".join(names[1:]))
    with pytest.raises(NotelaError, match="classes.txt names 64 classes, and there are 65"):
        image_suite("office-home", tmp_path, classes=str(turned))
    (tmp_path / "Art" / "__MACOSX").mkdir()
    with pytest.raises(NotelaError, match="Art names 66 classes, and there are 65"):
        image_suite("office-home", tmp_path)


def test_domainnet_in_its_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    styles = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    style_folders(tmp_path, styles, 345)
    (tmp_path / "clipart_train.txt").write_text("")
    monkeypatch.setattr(_styles, "source_resnet", small_network(345))
    suite = image_suite("domainnet", tmp_path)
    assert list(suite.test) == [style for style in styles if style != "real"]
    domain = suite.test["sketch"]()
    assert suite.evaluator(domain)(Predict(suite.model())).keys() == {"accuracy", "per_class"}
