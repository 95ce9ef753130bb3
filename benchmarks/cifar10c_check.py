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
from torch import Tensor, nn

import notela
from notela.vision.corruptions import corrupt
from notela.vision.networks import CifarResNet, load_weights

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar10"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def resnet20(data: Path = DATA) -> nn.Module:
    """The public checkpoint: 91.73 % on the clean test set."""
    return load_weights(CifarResNet(20), data / "resnet20.pt")


def images(corruption: str, data: Path = DATA, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The CIFAR-10 test set under a severity-5 corruption, normalised for the network, and its labels."""
    with np.load(data / "cifar10_test.npz") as file:
        x, labels = file["images"], file["labels"].astype(np.int64)
    if corruption != "none":
        x = corrupt(x, corruption, severity=5, seed=seed)
    scaled = (x.astype(np.float32) / 255 - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return torch.from_numpy(scaled.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels)


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
