"""scikit-learn's real 8×8 digits; a small network that knows them clean meets nine corruptions.

    notela bench digits                                              # all classes about as frequent as at the source
    notela bench digits --set mix=skewed --to results/digits-skewed  # three classes dominate, other ones in each domain
    notela bench digits --set strength=50 --to results/digits-50     # corruptions half as strong

Every digit belongs to one of source, validation and test, by a stable hash of its number. Made with
`python -m notela.bench.suites.digits`: the source network's weights, `digits.safetensors`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from scipy import ndimage
from sklearn.datasets import load_digits
from torch import Tensor, nn

from notela.bench.suite import Domain, Suite
from notela.errors import NotelaError, check_choice, check_integer
from notela.stable import stable_share

Images = npt.NDArray[np.float64]
WEIGHTS = Path(__file__).with_name("digits.safetensors")
PARTS = {"source": (0.0, 0.3), "validation": (0.3, 0.55), "test": (0.55, 1.0)}
ADAPT = 0.75
DOMINANT, RARE = 3, 0.1  # classes that stay whole where the mix is skewed; the share that stays of each other class


def suite(mix: str = "balanced", strength: int = 100) -> Suite:
    """Nine corruptions of digits that the source network has not seen; `mix`: "balanced" or "skewed"; `strength`: per
    cent of each corruption."""
    check_choice("mix", mix, ("balanced", "skewed"))
    check_strength(strength)
    skewed = mix == "skewed"
    place = partial(partial, _domain, skewed=skewed, strength=strength / 100)
    return Suite(
        name=("digits-skewed" if skewed else "digits") + ("" if strength == 100 else f"-{strength}"),
        task="singlelabel",
        metrics=("accuracy",),
        protocol="8×8 images; no digit is in two of source, validation and test; split 75 / 25 by a stable hash of "
        "the digit's number; all 10 outputs kept"
        + (f"; in each domain {DOMINANT} classes dominate, {RARE:.0%} is left of the others" if skewed else "")
        + milder(strength),
        class_names=tuple("0123456789"),
        model=model,
        validation={name: place("validation", name) for name in ("noise", "contrast", "blur")},
        test={name: place("test", name) for name in ("impulse", "fog", "thick", "tilt", "shadow", "stripes")},
        source=partial(_domain, "source", "clean"),
        overrides={"batch_size": 16},  # the paper's 64 would leave these small sets 100 steps
    )


def check_strength(strength: int) -> None:
    """Refuse what is no share of a corruption."""
    check_integer("strength", strength, 1)
    if strength > 100:
        raise NotelaError(f"strength={strength} is more than the whole of a corruption; give 1 to 100 per cent")


def milder(strength: int) -> str:
    """What a caption says of it."""
    return "" if strength == 100 else f"; corruptions at {strength} % of their strength"


# Each takes images (N, H, W) in [0, 1] and a generator. Strengths were set by the source networks' scores alone.
CORRUPTIONS: dict[str, Callable[[Images, np.random.Generator], Images]] = {
    "clean": lambda x, _: x,
    "noise": lambda x, rng: x + rng.normal(scale=0.35, size=x.shape),
    "contrast": lambda x, rng: 0.5 + 0.4 * (x - 0.5) + rng.normal(scale=0.05, size=x.shape),
    "blur": lambda x, _: ndimage.gaussian_filter(x, (0, 1, 1)),
    "impulse": lambda x, rng: np.where(rng.random(x.shape) < 0.2, rng.integers(0, 2, x.shape), x),
    "fog": lambda x, rng: 0.45 * x + 0.9 * ndimage.gaussian_filter(rng.random(x.shape), (0, 1.5, 1.5)),
    "thick": lambda x, _: ndimage.grey_dilation(x, (1, 2, 2)),
    "tilt": lambda x, rng: np.stack([_tilted(image, rng.normal(30, 10)) for image in x]),
    "shadow": lambda x, _: x * np.linspace(1, 0.1, x.shape[2]) + np.linspace(0, 0.5, x.shape[1])[:, None],
    "stripes": lambda x, rng: x + (np.arange(x.shape[1]) % 2)[:, None] * rng.choice((0.4, 0.8), (len(x), 1, 1)),
}


def _tilted(image: Images, angle: float) -> Images:
    turned: Images = ndimage.rotate(image, angle, reshape=False, order=1)
    return turned


def pool(part: str) -> tuple[Images, npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The digits of a part: images (N, 8, 8) in [0, 1], classes, and a number in [0, 1) that splits them further."""
    data = load_digits()
    share = stable_share(f"digit {i}" for i in range(len(data.target)))
    low, high = PARTS[part]
    mine = (share >= low) & (share < high)
    return data.images[mine] / 16, data.target[mine], (share[mine] - low) / (high - low)


def corrupt(x: Images, name: str, seed: str, strength: float = 1.0) -> Tensor:
    """Corrupted images (N, 1, H, W), as an 8-bit camera would store them: the same on every machine.

    A strength below 1 leaves them part of the way from clean to corrupted.
    """
    rng = np.random.default_rng(list(f"{name} {seed}".encode()))
    corrupted = x + strength * (CORRUPTIONS[name](x, rng) - x)
    stored = (corrupted.clip(0, 1) * 255).round().astype(np.uint8)
    return torch.from_numpy(stored).float()[:, None] / 255


def _domain(part: str, corruption: str, skewed: bool = False, strength: float = 1.0) -> Domain:
    images, classes, share = pool(part)
    if skewed:
        dominant = np.random.default_rng(list(f"mix {corruption}".encode())).permutation(10)[:DOMINANT]
        stays = stable_share(f"mix {corruption} {i}" for i in range(len(classes))) < RARE
        stays |= np.isin(classes, dominant)
        images, classes, share = images[stays], classes[stays], share[stays]
    x, y, adapt = (
        corrupt(images, corruption, part, strength),
        torch.from_numpy(classes),
        torch.from_numpy(share < ADAPT),
    )
    return Domain(adapt=x[adapt], test=x[~adapt], test_labels=y[~adapt], adapt_labels=y[adapt])


def network(pooling: nn.Module) -> nn.Sequential:
    """A small convolutional network with norm and dropout layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        pooling,
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(64, 10),
    )


def model() -> nn.Module:
    """The source network, trained."""
    net = network(nn.AdaptiveAvgPool2d(1))
    net.load_state_dict(load_file(WEIGHTS))
    return net.eval()


def train(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
    epochs: int = 40,
) -> nn.Module:
    """Ordinary supervised training on clean data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for layer in net.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear, nn.BatchNorm2d)):
                layer.reset_parameters()
        net.train()
        steps = epochs * len(torch.arange(len(x)).split(32))
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(32):
                optimizer.zero_grad()
                loss(net(x[rows]), y[rows]).backward()
                optimizer.step()
                schedule.step()
    return net.eval()


def train_source() -> nn.Module:
    """Trained on the source's clean digits; takes seconds."""
    domain = _domain("source", "clean")
    return train(network(nn.AdaptiveAvgPool2d(1)), domain.adapt, domain.adapt_labels)


if __name__ == "__main__":
    save_file(train_source().state_dict(), WEIGHTS)
