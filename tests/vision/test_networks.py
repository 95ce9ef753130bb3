"""The networks against their formulas written out, and against public checkpoints' names and scores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import notela
from notela.errors import NotelaError
from notela.vision.networks import CifarResNet, WideResNet, from_torchvision, imagenet_resnet, load_weights

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10"
real = pytest.mark.skipif(not DATA.exists(), reason=f"real data not present: {DATA.name}")


def shaken(net: nn.Module) -> nn.Module:
    """Weights and statistics at random, so that no layer is the identity."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, t in net.state_dict().items():
            if t.is_floating_point():
                t.copy_(torch.rand_like(t) + 0.5 if "var" in name else torch.randn_like(t) * 0.2)
    return net.eval()


# ---- CIFAR's ResNets


@real
@pytest.mark.parametrize(("depth", "images", "published"), [(20, 10_000, 0.9173), (56, 1_000, 0.9339)])
def test_public_checkpoints_score_what_is_published(depth: int, images: int, published: float) -> None:
    net = load_weights(CifarResNet(depth), DATA / f"resnet{depth}.pt")
    with np.load(DATA / "cifar10_test.npz") as file:
        x, labels = file["images"][:images].astype(np.float32) / 255, file["labels"][:images]
    x = (x - np.array([0.485, 0.456, 0.406], np.float32)) / np.array([0.229, 0.224, 0.225], np.float32)
    p = notela.predict(net, torch.from_numpy(x.transpose(0, 3, 1, 2).copy()), task="singlelabel", batch_size=250)
    score = notela.metrics.accuracy(p, labels)
    assert score == pytest.approx(published, abs=1e-9 if images == 10_000 else 0.02)


@pytest.mark.parametrize(("depth", "convolutions"), [(20, 19), (32, 31), (44, 43), (56, 55)])
def test_the_depth_counts_layers_with_weights(depth: int, convolutions: int) -> None:
    net = CifarResNet(depth)
    assert sum(isinstance(m, nn.Conv2d) for m in net.modules()) == convolutions
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


# ---- Wide ResNets


def wide_forward(w: dict[str, Tensor], x: Tensor, blocks: int) -> Tensor:
    """Zagoruyko & Komodakis, from the names in a RobustBench checkpoint."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.batch_norm(
            x, w[f"{name}.running_mean"], w[f"{name}.running_var"], w[f"{name}.weight"], w[f"{name}.bias"]
        )

    x = F.conv2d(x, w["conv1.weight"], padding=1)
    for stage in (1, 2, 3):
        for block in range(blocks):
            at = f"block{stage}.layer.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            active = F.relu(norm(x, f"{at}.bn1"))
            out = F.conv2d(active, w[f"{at}.conv1.weight"], stride=stride, padding=1)
            out = F.conv2d(F.relu(norm(out, f"{at}.bn2")), w[f"{at}.conv2.weight"], padding=1)
            if f"{at}.convShortcut.weight" in w:
                x = F.conv2d(active, w[f"{at}.convShortcut.weight"], stride=stride)
            x = x + out
    x = F.relu(norm(x, "bn1"))
    return F.linear(F.avg_pool2d(x, 8).flatten(1), w["fc.weight"], w["fc.bias"])


def test_wide_resnet_is_its_formula() -> None:
    net = shaken(WideResNet(depth=16, width=2))
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(net(x), wide_forward(net.state_dict(), x, blocks=2), rtol=1e-4, atol=1e-3)


def test_wide_resnet_28_10_has_the_published_size() -> None:
    with torch.device("meta"):
        net = WideResNet()
    assert sum(p.numel() for p in net.parameters()) == 36_479_194


def test_robustbench_names_load(tmp_path: Path) -> None:
    """A checkpoint of theirs: under "state_dict", "module." before each name, and a sub_block1 that nothing uses."""
    source, net = shaken(WideResNet(10, 1)), WideResNet(10, 1)
    state = {f"module.{name}": t for name, t in source.state_dict().items()}
    state |= {name.replace("module.block1", "module.sub_block1"): t for name, t in state.items() if "block1" in name}
    torch.save({"state_dict": state}, tmp_path / "wrn.pt")
    load_weights(net, tmp_path / "wrn.pt")
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(net(x), source(x))


# ---- ImageNet's ResNets


def torchvision_names(depth: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a torchvision ResNet's parameters and statistics."""

    def norm(name: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield from ((f"{name}.{leaf}", (width,)) for leaf in ("weight", "bias", "running_mean", "running_var"))

    yield "conv1.weight", (64, 3, 7, 7)
    yield from norm("bn1", 64)
    inputs = 64
    for stage, blocks in enumerate({50: [3, 4, 6, 3], 101: [3, 4, 23, 3]}[depth], 1):
        inner = 32 * 2**stage
        for block in range(blocks):
            at = f"layer{stage}.{block}"
            for i, shape in enumerate([(inner, inputs, 1, 1), (inner, inner, 3, 3), (4 * inner, inner, 1, 1)], 1):
                yield f"{at}.conv{i}.weight", shape
                yield from norm(f"{at}.bn{i}", shape[0])
            if block == 0:
                yield f"{at}.downsample.0.weight", (4 * inner, inputs, 1, 1)
                yield from norm(f"{at}.downsample.1", 4 * inner)
            inputs = 4 * inner
    yield "fc.weight", (1000, 2048)
    yield "fc.bias", (1000,)


def torchvision_forward(w: dict[str, Tensor], x: Tensor, blocks: list[int]) -> Tensor:
    def norm(x: Tensor, name: str) -> Tensor:
        return F.batch_norm(
            x, w[f"{name}.running_mean"], w[f"{name}.running_var"], w[f"{name}.weight"], w[f"{name}.bias"]
        )

    x = F.max_pool2d(F.relu(norm(F.conv2d(x, w["conv1.weight"], stride=2, padding=3), "bn1")), 3, 2, 1)
    for stage, count in enumerate(blocks, 1):
        for block in range(count):
            at, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            out = F.relu(norm(F.conv2d(x, w[f"{at}.conv1.weight"]), f"{at}.bn1"))
            out = F.relu(norm(F.conv2d(out, w[f"{at}.conv2.weight"], stride=stride, padding=1), f"{at}.bn2"))
            out = norm(F.conv2d(out, w[f"{at}.conv3.weight"]), f"{at}.bn3")
            if block == 0:
                x = norm(F.conv2d(x, w[f"{at}.downsample.0.weight"], stride=stride), f"{at}.downsample.1")
            x = F.relu(x + out)
    return F.linear(x.mean((2, 3)), w["fc.weight"], w["fc.bias"])


def test_torchvision_weights_give_torchvision_s_function(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    state = {}
    for name, shape in torchvision_names(50):
        if name.endswith(("running_var", "bn1.weight", "bn2.weight", "bn3.weight", "downsample.1.weight")):
            state[name] = torch.rand(shape) + 0.5
        else:
            state[name] = torch.randn(shape) / (np.prod(shape[1:]) ** 0.5 if len(shape) > 1 else 4)
    save_file(state, tmp_path / "resnet50.safetensors")
    net = load_weights(imagenet_resnet(50), tmp_path / "resnet50.safetensors")
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        ours, theirs = net(x).logits, torchvision_forward(state, x, [3, 4, 6, 3])
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()))


def test_every_torchvision_name_of_resnet_101_has_its_place() -> None:
    pytest.importorskip("transformers")
    with torch.device("meta"):
        shapes = {name: tuple(t.shape) for name, t in imagenet_resnet(101).state_dict().items() if t.ndim}
    assert {from_torchvision(name): shape for name, shape in torchvision_names(101)} == shapes


# ---- all of them


@pytest.mark.parametrize("make", [CifarResNet, lambda: WideResNet(10, 1)])
def test_dropout_waits_until_noise_is_asked_for(make: type[nn.Module]) -> None:
    net = shaken(make())
    x = torch.randn(4, 3, 32, 32)
    assert torch.equal(net(x), net(x))
    result = notela.adapt(net, x, task="singlelabel", method="notela", epochs=1, statistics="source", device="cpu")
    assert not any("dropout" in note for note in result.notes)  # the network's own is used, none is added
    net.dropout.train()
    assert not torch.equal(net(x), net(x))


def test_convolutions_are_channels_last_and_stay_so_through_adaptation() -> None:
    net = CifarResNet()
    result = notela.adapt(net, torch.randn(8, 3, 32, 32), task="singlelabel", method="tent", epochs=1, device="cpu")
    for model in (net, result.model):
        assert model.layer2[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)


def test_wrong_files_and_depths_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match="depth=21 must be 6n"):
        CifarResNet(21)
    with pytest.raises(NotelaError, match="depth=30 must be 6n"):
        WideResNet(30)
    with pytest.raises(NotelaError, match="depth=18 is not one of 50, 101"):
        imagenet_resnet(18)
    with pytest.raises(NotelaError, match="does not exist"):
        load_weights(CifarResNet(), tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("not a checkpoint")
    with pytest.raises(NotelaError, match="cannot be read as a checkpoint"):
        load_weights(CifarResNet(), tmp_path / "text.pt")
    torch.save(CifarResNet(20).state_dict(), tmp_path / "r20.pt")
    with pytest.raises(NotelaError, match="it lacks 'layer1.3"):
        load_weights(CifarResNet(32), tmp_path / "r20.pt")
    with pytest.raises(NotelaError, match="size mismatch for linear.weight"):
        load_weights(CifarResNet(20, classes=100), tmp_path / "r20.pt")
