"""The paper's image networks, so that public checkpoints load into them by name.

All have dropout on the last feature map before pooling, as published: it does nothing until a method asks for noise.
They come in channels-last layout, which makes small convolutions faster on CPUs.
"""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from notela.errors import NotelaError

DROPOUT = 0.1


class CifarResNet(nn.Module):
    """ResNet-20, 32, 44 or 56 for 32×32 images (He et al., 2016, section 4.2), shortcuts without parameters."""

    def __init__(self, depth: int = 20, classes: int = 10, dropout: float = DROPOUT) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise NotelaError(f"depth={depth} must be 6n + 2, such as 20, 32, 44 or 56")
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(_CifarBlock(16, 16, 1) for _ in range(blocks)))
        self.layer2 = nn.Sequential(_CifarBlock(16, 32, 2), *(_CifarBlock(32, 32, 1) for _ in range(blocks - 1)))
        self.layer3 = nn.Sequential(_CifarBlock(32, 64, 2), *(_CifarBlock(64, 64, 1) for _ in range(blocks - 1)))
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(64, classes)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.dropout(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


class _CifarBlock(nn.Module):
    """Two 3×3 convolutions; a shortcut that drops pixels and pads channels with zeros (option A)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.padding = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return F.relu(out + F.pad(shortcut, (0, 0, 0, 0, self.padding, self.padding)))


class WideResNet(nn.Module):
    """Wide ResNet (Zagoruyko & Komodakis, 2016), 28-10 in the paper; parameters are named as in the public RobustBench
    checkpoints."""

    def __init__(self, depth: int = 28, width: int = 10, classes: int = 10, dropout: float = DROPOUT) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise NotelaError(f"depth={depth} must be 6n + 4, such as 16, 22 or 28")
        blocks = (depth - 4) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.block1 = _WideStage(blocks, 16, 16 * width, 1)
        self.block2 = _WideStage(blocks, 16 * width, 32 * width, 2)
        self.block3 = _WideStage(blocks, 32 * width, 64 * width, 2)
        self.bn1 = nn.BatchNorm2d(64 * width)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(64 * width, classes)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        x = self.dropout(F.relu(self.bn1(x)))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class _WideStage(nn.Module):
    def __init__(self, blocks: int, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        rest = (_WideBlock(outputs, outputs, 1) for _ in range(blocks - 1))
        self.layer = nn.Sequential(_WideBlock(inputs, outputs, stride), *rest)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class _WideBlock(nn.Module):
    """Norm and activation before each convolution; where the width changes, the shortcut starts after the first."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.convShortcut = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        out = self.conv2(F.relu(self.bn2(self.conv1(active))))
        added: Tensor = (x if self.convShortcut is None else self.convShortcut(active)) + out
        return added


def imagenet_resnet(depth: int = 50, classes: int = 1000, dropout: float = DROPOUT) -> nn.Module:
    """ResNet-50 or ResNet-101 from `transformers`, the stride in the 3×3 convolutions."""
    blocks = {50: [3, 4, 6, 3], 101: [3, 4, 23, 3]}
    if depth not in blocks:
        raise NotelaError(f"depth={depth} is not one of 50, 101")
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise NotelaError(f"ResNet-{depth} comes from transformers: pip install transformers") from error

    config = transformers.ResNetConfig(depths=blocks[depth], num_labels=classes)
    net: nn.Module = transformers.ResNetForImageClassification(config)
    net.resnet.pooler = nn.Sequential(nn.Dropout(dropout), net.resnet.pooler)  # type: ignore[union-attr,arg-type]
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def load_weights(net: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Read a checkpoint (.safetensors, or .pt/.pth without running code in it) into a network, in evaluation mode.

    Understood: a state dict, or one under "state_dict"; names with "module." or "model." before them; RobustBench's
    Wide ResNets, whose unused `sub_block1` is left out; torchvision's names for ResNet-50 and ResNet-101.
    """
    path = Path(path)
    state = {name.removeprefix("model."): tensor for name, tensor in read_state(path).items()}
    state = {name: tensor for name, tensor in state.items() if not name.startswith("sub_block1.")}
    if "layer1.0.conv1.weight" in state and "fc.weight" in state and hasattr(net, "resnet"):
        state = {from_torchvision(name): tensor for name, tensor in state.items()}
    return fill(net, state, path)


def read_state(path: Path) -> dict[str, Tensor]:
    """The weights in a file by name, without "module." before them."""
    try:
        state = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except FileNotFoundError:
        raise NotelaError(f"{path} does not exist; expected a checkpoint there") from None
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise NotelaError(f"{path} cannot be read as a checkpoint ({type(error).__name__}: {reason})") from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise NotelaError(f"{path} holds no weights by name; expected a state dict, as `model.state_dict()` gives it")
    return {str(name).removeprefix("module."): tensor for name, tensor in state.items()}


def fill(net: nn.Module, state: dict[str, Tensor], path: Path) -> nn.Module:
    """A network with weights that must be its own, all of them and no others; `path` is where they come from."""
    mine = net.state_dict()
    for what, names in (("lacks", mine.keys() - state.keys()), ("holds unknown", state.keys() - mine.keys())):
        names = {name for name in names if not name.endswith("num_batches_tracked")}
        if names:
            raise NotelaError(
                f"{path} is not of this {type(net).__name__}: it {what} {sorted(names)[0]!r} ({len(names)} such)"
            )
    try:
        net.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise NotelaError(
            f"{path} is not of this {type(net).__name__}: {str(error).splitlines()[1].strip()}"
        ) from error
    return net.eval()


def from_torchvision(name: str) -> str:
    """A parameter's name in torchvision's ResNet → its name in transformers'.

    >>> from_torchvision("layer2.0.downsample.1.bias")
    'resnet.encoder.stages.1.layers.0.shortcut.normalization.bias'
    >>> from_torchvision("layer4.2.conv3.weight")
    'resnet.encoder.stages.3.layers.2.layer.2.convolution.weight'
    """
    kinds = {"conv": "convolution", "bn": "normalization", "0": "convolution", "1": "normalization"}
    first, _, leaf = name.partition(".")
    if first == "fc":
        return f"classifier.1.{leaf}"
    if first in ("conv1", "bn1"):
        return f"resnet.embedder.embedder.{kinds[first[:-1]]}.{leaf}"
    found = re.fullmatch(r"layer(\d)\.(\d+)\.(?:(conv|bn)(\d)|downsample\.([01]))\.(\w+)", name)
    if found is None:
        return name  # none of a ResNet's: whoever loads it will say so
    stage, block, kind, number, shortcut, leaf = found.groups()
    place = f"shortcut.{kinds[shortcut]}" if shortcut else f"layer.{int(number) - 1}.{kinds[kind]}"
    return f"resnet.encoder.stages.{int(stage) - 1}.layers.{block}.{place}.{leaf}"
