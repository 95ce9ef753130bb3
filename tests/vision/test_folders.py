"""From image files to inputs, folders of classes, and models that come in three files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from notela.errors import NotelaError
from notela.vision.bottleneck import FILES, source_resnet
from notela.vision.folders import class_folders, class_names, imagenet_c, labelled_images, office_home
from notela.vision.preprocessing import IMAGENET_MEAN, IMAGENET_STD, read_image
from test_networks import torchvision_forward, torchvision_names


def ramp(path: Path, high: int, wide: int) -> np.ndarray:
    """A smooth picture, whose pixels tell where they come from."""
    rows, columns = np.mgrid[:high, :wide]
    pixels = np.stack([255 * rows / high, 255 * columns / wide, np.full((high, wide), 128)], -1).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


# ---- preprocessing


def test_pixels_are_scaled_and_normalised_channel_by_channel(tmp_path: Path) -> None:
    pixels = ramp(tmp_path / "a.png", 6, 9)
    x = read_image(tmp_path / "a.png", mean=IMAGENET_MEAN, std=IMAGENET_STD)
    expected = (pixels / 255 - np.array(IMAGENET_MEAN)) / np.array(IMAGENET_STD)
    np.testing.assert_allclose(x.numpy(), expected.transpose(2, 0, 1), atol=1e-6)


@pytest.mark.parametrize(
    ("high", "wide", "scaled"), [(300, 400, (256, 341)), (400, 300, (341, 256)), (256, 256, (256, 256))]
)
def test_the_shorter_side_is_scaled_and_the_middle_cut_out(
    high: int, wide: int, scaled: tuple[int, int], tmp_path: Path
) -> None:
    ramp(tmp_path / "a.png", high, wide)
    whole = read_image(tmp_path / "a.png", resize=256, mean=[0.0] * 3)
    assert whole.shape == (3, *scaled)
    x = read_image(tmp_path / "a.png", resize=256, crop=224, mean=[0.0] * 3)
    top, left = ((side - 224) // 2 for side in scaled)
    assert x.shape == (3, 224, 224)
    differences = [
        (x - whole[:, t : t + 224, left_ : left_ + 224]).abs().max().item()
        for t in (top, top + 1)
        for left_ in (left, left + 1)
    ]
    assert min(differences) == 0  # an odd rest may go to either side
    middle = x[:2, 112, 112]
    assert middle.tolist() == pytest.approx([0.5, 0.5], abs=0.01)


def test_squeezing_and_grey(tmp_path: Path) -> None:
    ramp(tmp_path / "a.png", 20, 30)
    assert read_image(tmp_path / "a.png", size=[8, 10], mean=[0.0] * 3).shape == (3, 8, 10)
    grey = read_image(tmp_path / "a.png", size=[8, 10], mean=0.5, std=0.5)
    assert grey.shape == (1, 8, 10)
    assert -1 <= grey.min() < grey.max() <= 1


def test_an_image_with_transparency_or_a_palette_is_read_as_colours(tmp_path: Path) -> None:
    ramp(tmp_path / "a.png", 10, 10)
    with Image.open(tmp_path / "a.png") as image:
        image.convert("RGBA").save(tmp_path / "b.png")
        image.convert("L").save(tmp_path / "c.png")
    same = [read_image(tmp_path / f"{name}.png", mean=[0.0] * 3) for name in "ab"]
    assert torch.equal(*same)
    assert read_image(tmp_path / "c.png", mean=[0.0] * 3).shape == (3, 10, 10)


# ---- folders


def test_classes_are_folders_and_other_things_are_left_alone(tmp_path: Path) -> None:
    for place in ("cat/1.jpg", "cat/deep/2.PNG", "dog/3.webp", "dog/notes.txt", ".git/4.jpg", "cat/.hidden.jpg"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(b"")
    (tmp_path / "list.txt").write_text("")
    assert class_names(tmp_path) == ("cat", "dog")
    names = {path.relative_to(tmp_path).as_posix(): i for path, i in labelled_images(tmp_path, ["dog", "cat"]).items()}
    assert names == {"cat/1.jpg": 1, "cat/deep/2.PNG": 1, "dog/3.webp": 0}
    assert len(class_folders(tmp_path, ["dog", "cat"])) == 4
    with pytest.raises(NotelaError, match=r"dog is no class of the model \(cat, cow\); rename or remove"):
        labelled_images(tmp_path, ["cat", "cow"])


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with pytest.raises(NotelaError, match="holds no images; expected a sub-folder for each class"):
        labelled_images(tmp_path, ["cat"])


def test_imagenet_c_lies_flat_or_by_kind(tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match=r"ImageNet-C/snow/5 does not exist: download ImageNet-C from https"):
        imagenet_c(tmp_path, "snow", 5)
    for place in ("weather/snow/5", "fog/2"):
        (tmp_path / "ImageNet-C" / place).mkdir(parents=True)
    assert imagenet_c(tmp_path, "snow", 5) == tmp_path / "ImageNet-C" / "weather" / "snow" / "5"
    assert imagenet_c(tmp_path, "fog", 2) == tmp_path / "ImageNet-C" / "fog" / "2"


@pytest.mark.parametrize("spelling", ["Real World", "Real_World", "RealWorld"])
def test_real_world_is_spelt_in_three_ways(spelling: str, tmp_path: Path) -> None:
    (tmp_path / spelling).mkdir()
    assert office_home(tmp_path, "Real World") == tmp_path / spelling


# ---- models in three files


def three_files(folder: Path, classes: int = 5) -> tuple[dict[str, Tensor], nn.Module, nn.Module]:
    """A backbone's weights, and the bottleneck and head of SHOT as torch's own layers; saved as SHOT does."""
    torch.manual_seed(0)
    backbone = {}
    for name, shape in torchvision_names(50):
        positive = name.endswith(("running_var", "bn1.weight", "bn2.weight", "bn3.weight", "downsample.1.weight"))
        scale = np.prod(shape[1:]) ** 0.5 if len(shape) > 1 else 4
        backbone[name] = torch.rand(shape) + 0.5 if positive else torch.randn(shape) / scale
    bottleneck = nn.ModuleDict({"bn": nn.BatchNorm1d(256), "bottleneck": nn.Linear(2048, 256)}).eval()
    bottleneck["bn"].running_mean.normal_()  # type: ignore[union-attr,operator]
    head = nn.ModuleDict({"fc": nn.utils.parametrizations.weight_norm(nn.Linear(256, classes))})
    with torch.no_grad():
        head["fc"].parametrizations.weight.original0.mul_(3)  # type: ignore[union-attr,index,operator]
    folder.mkdir(exist_ok=True)
    parts = {k: v for k, v in backbone.items() if not k.startswith("fc.")}, bottleneck.state_dict(), head.state_dict()
    for name, part in zip(FILES, parts, strict=True):
        torch.save(part, folder / name)
    return backbone, bottleneck, head


def test_three_files_give_the_function_of_their_parts(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    backbone, bottleneck, head = three_files(tmp_path)
    state = torch.load(tmp_path / FILES[2], weights_only=True)
    old_names = {
        "fc.bias": state["fc.bias"],
        "fc.weight_g": state["fc.parametrizations.weight.original0"],
        "fc.weight_v": state["fc.parametrizations.weight.original1"],
    }
    x = torch.randn(2, 3, 64, 64)
    whole = {**backbone, "fc.weight": torch.eye(2048), "fc.bias": torch.zeros(2048)}
    with torch.no_grad():
        features = torchvision_forward(whole, x, [3, 4, 6, 3])
        layers = bottleneck["bottleneck"], bottleneck["bn"]  # type: ignore[index]
        z = F.batch_norm(layers[0](features), layers[1].running_mean, layers[1].running_var)
        expected = head["fc"](z)  # type: ignore[index]
        ours = [source_resnet(50, 5, tmp_path)(x).logits]
        torch.save(old_names, tmp_path / FILES[2])
        ours.append(source_resnet(50, 5, tmp_path)(x).logits)
    for logits in ours:
        torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_wrong_three_files_are_named(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    three_files(tmp_path)
    with pytest.raises(
        NotelaError, match="is not of this ResNetForImageClassification: size mismatch for classifier.3"
    ):
        source_resnet(50, 7, tmp_path)
    backbone = torch.load(tmp_path / FILES[0], weights_only=True)
    for more, message in (
        ({"layer3.6.conv1.weight": torch.zeros(1)}, "holds unknown 'resnet.encoder.stages.2.layers.6.layer.0"),
        ({"criterion.weight": torch.zeros(1)}, "holds unknown 'criterion.weight'"),
    ):  # a deeper network's, a training program's
        torch.save({**backbone, **more}, tmp_path / FILES[0])
        with pytest.raises(NotelaError, match=message):
            source_resnet(50, 5, tmp_path)
    torch.save(backbone, tmp_path / FILES[0])
    for name, lacks in ((FILES[2], "classifier.3.bias"), (FILES[1], "classifier.1.bias")):
        torch.save({}, tmp_path / name)
        with pytest.raises(NotelaError, match=f"it lacks '{lacks}'"):
            source_resnet(50, 5, tmp_path)
    torch.save([1, 2], tmp_path / FILES[0])
    with pytest.raises(NotelaError, match="source_F.pt holds no weights by name"):
        source_resnet(50, 5, tmp_path)
    (tmp_path / FILES[0]).write_bytes(b"")
    with pytest.raises(NotelaError, match=r"source_F.pt cannot be read as a checkpoint \(EOFError"):
        source_resnet(50, 5, tmp_path)
    (tmp_path / FILES[0]).unlink()
    with pytest.raises(NotelaError, match="source_F.pt does not exist; expected a checkpoint there"):
        source_resnet(50, 5, tmp_path)
    with pytest.raises(NotelaError, match="nowhere does not exist: expected a ResNet-50 with 5 outputs"):
        source_resnet(50, 5, tmp_path / "nowhere")
