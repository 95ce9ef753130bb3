"""CIFAR-10's test images under the corruptions of CIFAR-10-C, with the settings that the paper published.

    notela bench cifar10c --data data/cifar10
    notela bench cifar10c --data data/cifar10 --set network=wrn-28-10 --set images=10000 --seeds 5      # as the paper
    notela bench cifar10c --data data/cifar10 --set corruptions=fog,snow --set severity=1,2,3,4,5       # a figure

The folder holds the images (see `notela.vision.cifar`) and the checkpoint, `resnet20.pt`; CIFAR-10-C's own files are
used if it has a sub-folder `CIFAR-10-C`, otherwise the images are corrupted here, frost with the pictures in `frost`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from notela.bench.suite import Domain, Suite
from notela.errors import NotelaError, check_choice, check_integer
from notela.stable import stable_share
from notela.vision.cifar import CLASSES, Labels, corrupted, test_set
from notela.vision.corruptions import Images
from notela.vision.networks import CifarResNet, WideResNet, load_weights
from notela.vision.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from notela.vision.severities import EXTRA, NAMES

NETWORKS = ("resnet20", "resnet32", "resnet44", "resnet56", "wrn-28-10")
THREE_SEEDS = ("gaussian_noise", "glass_blur", "snow", "contrast")
"""The paper's three validation corruptions and a noise."""
PAPER = {
    "source": 56.66,
    "adabn": 80.10,
    "tent": 82.69,
    "shot": 82.63,
    "pseudo_label": 83.85,
    "dust": 80.07,
    "nrc": 80.58,
    "dropout_student": 82.18,
    "notela": 82.21,
}


def suite(
    data: Path = Path("data/cifar10"),
    network: str = "resnet20",
    weights: str = "",
    images: int = 4000,
    severity: str = "5",
    corruptions: str = ",".join(NAMES),
) -> Suite:
    """`images` of the 10,000, three quarters to adapt on; `weights` is a file in `data`, or an absolute path;
    `severity` and `corruptions` may list several."""
    check_choice("network", network, NETWORKS)
    check_integer("images", images, 8)
    chosen = corruptions.split(",")
    for name in chosen:
        check_choice("corruptions", name, NAMES + EXTRA)
    severities = severity.split(",")
    for level in severities:
        check_choice("severity", level, tuple("12345"))
    several = len(severities) > 1
    names = {
        f"{name} {level}".replace("_", " ") if several else name.replace("_", " "): (name, int(level))
        for name in chosen
        for level in severities
    }
    complete = set(chosen) == set(NAMES) and severities == ["5"]
    made = "CIFAR-10-C's own files" if (data / "CIFAR-10-C").is_dir() else "made by notela.vision.corruptions, seed 0"
    error = 50 / (images / 4) ** 0.5
    return Suite(
        name="cifar10c",
        task="singlelabel",
        metrics=("accuracy",),
        protocol=f"{images:,} of the 10,000 test images of CIFAR-10, the same ones for every corruption, three "
        f"quarters to adapt on; severity {severity} ({made}); {network}; all 10 outputs kept; a number from "
        f"{images // 4:,} held-out images has a standard error of up to {error:.1f} points",
        class_names=CLASSES,
        model=partial(model, network, data / (weights or f"{network}.pt")),
        validation={},
        test={domain: partial(_domain, data, network, images, *which) for domain, which in names.items()},
        source=partial(_domain, data, network, images, None, 0),
        seeds=1,
        more_seeds={domain: 3 for domain, (name, _) in names.items() if name in THREE_SEEDS and not several},
        levels={domain: (name.replace("_", " "), level) for domain, (name, level) in names.items() if several},
        published={"average": PAPER} if complete else {},
        published_by="in the paper, with WRN-28-10",
    )


def model(network: str, weights: Path) -> nn.Module:
    """The source network, as it was published."""
    net = WideResNet(28, 10) if network == "wrn-28-10" else CifarResNet(int(network.removeprefix("resnet")))
    if not weights.exists():
        where = (
            "RobustBench's checkpoint 'Standard' (https://github.com/RobustBench/robustbench)"
            if network == "wrn-28-10"
            else "the one from https://github.com/akamaster/pytorch_resnet_cifar10 (pretrained_models)"
        )
        raise NotelaError(f"{weights} does not exist: put {where} there, or name another file with --set weights=FILE")
    return load_weights(net, weights)


def prepare(images: Images, network: str) -> Tensor:
    """Inputs (N, 3, 32, 32) as the checkpoint was trained on them: the Wide ResNet takes plain shares of 255."""
    mean, std = ((0.0,) * 3, (1.0,) * 3) if network == "wrn-28-10" else (IMAGENET_MEAN, IMAGENET_STD)
    x = (images.astype(np.float32) / 255 - np.array(mean, np.float32)) / np.array(std, np.float32)
    return torch.from_numpy(x.transpose(0, 3, 1, 2).copy())


def _domain(data: Path, network: str, images: int, corruption: str | None, severity: int) -> Domain:
    pixels, labels = test_set(data) if corruption is None else corrupted(data, corruption, severity)
    adapt, test = split(labels, images)
    x, y = prepare(pixels, network), torch.from_numpy(labels)
    return Domain(adapt=x[adapt], test=x[test], test_labels=y[test], adapt_labels=y[adapt])


def split(labels: Labels, images: int) -> tuple[Tensor, Tensor]:
    """Rows to adapt on and rows held out. Images are drawn in the order of a hash of their numbers, and every fourth is
    held out: a larger draw holds a smaller one, part by part."""
    if images > len(labels):
        raise NotelaError(f"images={images}, but there are only {len(labels)}")
    order = torch.from_numpy(np.argsort(stable_share(f"cifar-10 test image {i}" for i in range(len(labels)))))[:images]
    held_out = torch.arange(images) % 4 == 3
    return order[~held_out], order[held_out]
