"""The networks: shapes, noise, norm layers, and that the whole classifier can be adapted and learns."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import notela
from notela.bioacoustics.frontend import SAMPLE_RATE
from notela.bioacoustics.model import BirdClassifier
from notela.bioacoustics.networks import B1, EfficientNet, SmallNet, StochasticDepth, loss, network
from notela.bioacoustics.taxonomy import Species
from notela.classifier import Classifier, is_norm_layer
from notela.errors import NotelaError

TINY = {
    "num_channels": 1,
    "in_channels": [8, 8],
    "out_channels": [8, 8],
    "kernel_sizes": [3, 3],
    "strides": [1, 2],
    "num_block_repeats": [1, 3],
    "expand_ratios": [1, 2],
    "depthwise_padding": [],
    "width_coefficient": 0.05,
    "hidden_dim": 64,
}
"""Widths of 8 (the last 64): the same code in a thousandth of the time."""

CLASSES = [
    Species("eurbla", "Turdus merula", "Eurasian Blackbird", "Turdus", "Turdidae", "Passeriformes"),
    Species("sonthr1", "Turdus philomelos", "Song Thrush", "Turdus", "Turdidae", "Passeriformes"),
    Species("comcuc", "Cuculus canorus", "Common Cuckoo", "Cuculus", "Cuculidae", "Cuculiformes"),
]


def tones(n: int, seconds: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows with one, two or three of three pitches in noise, and which."""
    g = torch.Generator().manual_seed(0)
    time = torch.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    pitches = torch.stack([torch.sin(2 * math.pi * hz * time) for hz in (800.0, 2500.0, 6000.0)])
    labels = (torch.rand(n, 3, generator=g) < 0.5).float()
    return 0.1 * labels @ pitches + 0.02 * torch.randn(n, len(time), generator=g), labels


# ---- shapes and parts


@pytest.mark.parametrize("frames", [500, 300, 50, 7, 1])
def test_small_takes_any_length(frames: int) -> None:
    net = SmallNet().eval()
    assert net(torch.randn(2, 1, frames, 160)).shape == (2, net.embedding) == (2, 512)


def test_small_hears_pitch() -> None:
    """The same shape in another band is another thing: a network that averages over bands could not tell."""
    torch.manual_seed(0)
    net = SmallNet().eval()
    picture = torch.zeros(2, 1, 100, 160)
    picture[0, :, 40:60, 64:72] = 1
    picture[1, :, 40:60, 96:104] = 1  # moved by one cell of the last layer's grid
    low, high = net(picture)
    assert (low - high).abs().max() > 0.01 * low.abs().max()


def test_small_sees_all_of_the_picture() -> None:
    torch.manual_seed(0)
    net = SmallNet().eval()
    picture = torch.randn(1, 1, 500, 160, requires_grad=True)
    net(picture)[:, :256].sum().backward()  # the mean over time
    assert picture.grad is not None
    assert (picture.grad.abs().amax((0, 1)) > 0).float().mean() > 0.95


def test_small_is_plain_convolutions_in_channels_last() -> None:
    net = SmallNet()
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert all(m.groups == 1 for m in convolutions)
    assert all(m.weight.is_contiguous(memory_format=torch.channels_last) for m in convolutions)
    assert any(isinstance(m, nn.Dropout) and m.p > 0 for m in net.modules())


def test_small_refuses_odd_bands() -> None:
    with pytest.raises(NotelaError, match="bands=100 must be a multiple of 32"):
        SmallNet(bands=100)


def test_b1_is_the_papers() -> None:
    """6.5 million parameters and 69 norm layers; survival falls to 0.8 towards the end; no signal dies on the way."""
    torch.manual_seed(0)
    net = EfficientNet(**B1)
    norms = [m for m in net.modules() if is_norm_layer(m)]
    assert net.embedding == 1280
    assert len(norms) == 69
    assert 6.4e6 < sum(p.numel() for p in net.parameters()) < 6.6e6
    rates = [m.p for m in net.modules() if isinstance(m, StochasticDepth)]
    assert rates == sorted(rates)
    assert 0.18 < rates[-1] < 0.2
    assert {m.momentum for m in norms} == {0.1}
    with torch.no_grad():
        out = net.train()(torch.randn(2, 1, 64, 64))
    assert out.std() > 0.05


def test_unknown_network() -> None:
    with pytest.raises(NotelaError, match="network='resnet' is not one of"):
        network("resnet")


# ---- stochastic depth


def test_stochastic_depth_drops_whole_examples() -> None:
    torch.manual_seed(0)
    layer = StochasticDepth(0.25).train()
    out = layer(torch.ones(4000, 2, 3, 3)).flatten(1)
    dropped = (out == 0).all(1)
    assert torch.equal(out[~dropped], torch.full_like(out[~dropped], 1 / 0.75))
    assert dropped.float().mean() == pytest.approx(0.25, abs=0.03)
    assert torch.equal(layer.eval()(torch.ones(3, 2)), torch.ones(3, 2))


# ---- loss


def test_loss_by_hand() -> None:
    def cross_entropy(logit: float, target: float) -> float:
        p = 1 / (1 + math.exp(-logit))
        return -(target * math.log(p) + (1 - target) * math.log(1 - p))

    outputs = {"species": torch.tensor([[0.3, -1.2, 2.0]]), "genus": torch.tensor([[0.7, -0.1]])}
    targets = {"species": torch.tensor([[1.0, 0.0, 0.5]]), "genus": torch.tensor([[0.0, 1.0]])}
    species = sum(map(cross_entropy, [0.3, -1.2, 2.0], [1.0, 0.0, 0.5])) / 3
    genus = sum(map(cross_entropy, [0.7, -0.1], [0.0, 1.0])) / 2
    assert float(loss(outputs, targets)) == pytest.approx(species + 0.25 * genus, rel=1e-6)


# ---- the whole classifier


@pytest.fixture(params=["small", "efficientnet"])
def model(request: pytest.FixtureRequest) -> BirdClassifier:
    torch.manual_seed(0)
    settings = {"small": {"width": 8}, "efficientnet": TINY}[request.param]
    return BirdClassifier(CLASSES, network_name=request.param, network_settings=settings, window=0.5)


def test_adapts_with_norm_layers_alone(model: BirdClassifier) -> None:
    x, _ = tones(16)
    result = notela.adapt(model, x, task="multilabel", method="notela", trainable="norm", epochs=1, progress=False)
    before, after = dict(model.named_parameters()), dict(result.model.named_parameters())
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    norms = {
        f"{name}.{part}" for name, m in model.named_modules() if is_norm_layer(m) for part, _ in m.named_parameters()
    }
    assert moved
    assert moved <= norms
    assert isinstance(result.model, BirdClassifier)


def test_adapts_all_of_it(model: BirdClassifier) -> None:
    """The filters are part of the body; the head is the species' linear layer; other ranks stay as they are."""
    x, _ = tones(16)
    found = Classifier(model, x[:2])
    assert found.head == "heads.species"
    body = found.select("body")
    assert {"front_end.0.centres", "front_end.0.log_widths"} <= set(body)
    assert not any(name.startswith("heads.species") for name in body)
    assert found.has_noise(x[:2])
    settings = {"trainable": "all", "learning_rate": 1e-3, "epochs": 1, "progress": False}
    result = notela.adapt(model, x, task="multilabel", method="notela", **settings)
    before, after = dict(model.named_parameters()), dict(result.model.named_parameters())
    assert not torch.equal(before["front_end.0.centres"], after["front_end.0.centres"])
    assert torch.equal(before["heads.genus.weight"], after["heads.genus.weight"])


def test_embedding_is_what_the_head_sees(model: BirdClassifier) -> None:
    x, _ = tones(4)
    model.eval()
    with torch.no_grad():
        seen = Classifier(model, x)(x)
        torch.testing.assert_close(seen.features, model.embed(x))
        torch.testing.assert_close(seen.logits, model(x))


def test_training_learns_all_ranks() -> None:
    torch.manual_seed(0)
    model = BirdClassifier(CLASSES, network_settings={"width": 8}, window=0.25).train()
    x, labels = tones(32, 0.25)
    targets = model.targets(labels)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        now = loss(model.by_rank(x), targets)
        now.backward()
        optimizer.step()
        losses.append(now.item())
    assert losses[-1] < 0.4 * losses[0]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    with torch.no_grad():
        model.eval()
        right = {rank: ((logits > 0) == (targets[rank] > 0.5)) for rank, logits in model.by_rank(x).items()}
    assert all(hits.float().mean() > 0.9 for hits in right.values())
