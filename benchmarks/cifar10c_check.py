"""Real check: a public CIFAR-10 ResNet-20 adapted to gaussian noise and contrast, severity 5.

    make check-cifar                                   # AdaBN, TENT, NOTELA with the image presets, all 10,000 images
    python benchmarks/cifar10c_check.py --methods shot nrc --corruptions contrast

Needs ../shared/data/cifar10 (or --data). Prints a Markdown table of accuracy on the held-out quarter.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import notela

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar10"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Block(nn.Module):
    """Two 3x3 convolutions; a shortcut that drops pixels and pads channels with zeros (option A)."""

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


class CifarResNet(nn.Module):
    """ResNet-20 (three blocks a stage) for 32x32 images."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(Block(16, 16, 1) for _ in range(blocks)))
        self.layer2 = nn.Sequential(Block(16, 32, 2), *(Block(32, 32, 1) for _ in range(blocks - 1)))
        self.layer3 = nn.Sequential(Block(32, 64, 2), *(Block(64, 64, 1) for _ in range(blocks - 1)))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def resnet20(data: Path = DATA) -> CifarResNet:
    """The public checkpoint: 91.73 % on the clean test set."""
    model = CifarResNet()
    state = torch.load(data / "resnet20.pt", weights_only=True)
    model.load_state_dict({name.removeprefix("module."): tensor for name, tensor in state.items()})
    return model.eval()


def images(corruption: str, data: Path = DATA, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The CIFAR-10 test set under a severity-5 corruption, normalised for the network, and its labels."""
    with np.load(data / "cifar10_test.npz") as file:
        x, labels = file["images"].astype(np.float32) / 255, file["labels"].astype(np.int64)
    if corruption == "gaussian_noise":
        x = x + np.random.default_rng(seed).normal(scale=0.10, size=x.shape).astype(np.float32)
    elif corruption == "contrast":
        mean = x.mean((1, 2), keepdims=True)
        x = (x - mean) * 0.15 + mean
    elif corruption != "none":
        raise SystemExit(f"corruption {corruption!r} is not one of gaussian_noise, contrast, none")
    x = np.round(x.clip(0, 1) * 255) / 255  # the benchmark stores bytes
    x = (x - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return torch.from_numpy(x.astype(np.float32).transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["adabn", "tent", "notela"])
    parser.add_argument("--corruptions", nargs="+", default=["gaussian_noise", "contrast"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    if not options.data.exists():
        sys.exit(f"{options.data} does not exist; pass --data with resnet20.pt and cifar10_test.npz in it")
    model = resnet20(options.data)
    clean, labels = images("none", options.data)
    score = notela.metrics.accuracy(notela.predict(model, clean, task="singlelabel"), labels)
    print(f"clean test set: {100 * score:.2f} % (published: 91.73 %)\n")
    print("| corruption | method | held-out accuracy, % | seconds |\n|---|---|---|---|")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(options.seed))
    adapt_rows, test_rows = order[: len(order) * 3 // 4], order[len(order) * 3 // 4 :]
    for corruption in options.corruptions:
        x, _ = images(corruption, options.data, options.seed)
        evaluator = notela.Evaluator(x[test_rows], labels[test_rows], task="singlelabel")
        for i, method in enumerate(options.methods):
            start = time.perf_counter()
            preset = notela.methods.preset(method, "image")
            result = notela.adapt(
                model, x[adapt_rows], task="singlelabel", method=preset, seed=options.seed, evaluator=evaluator
            )
            if i == 0:
                print(f"| {corruption} | source | {100 * result.source['accuracy']:.2f} | |")
            score = result.history[-1]["evaluation"]["accuracy"]
            seconds = time.perf_counter() - start
            print(f"| {corruption} | {method} | {100 * score:.2f} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
