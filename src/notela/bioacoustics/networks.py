"""The networks between front end and heads: a picture (N, 1, frames, bands) becomes an embedding (N, `embedding`).

`network("efficientnet")` is the paper's; `network("small")` is for CPUs. Both come in channels-last layout, and both
have norm layers and noise (stochastic depth or dropout), which adaptation needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from notela.bioacoustics.frontend import BANDS
from notela.errors import NotelaError

RANKS = ("genus", "family", "order")
RANK_WEIGHT = 0.25

B1 = {"num_channels": 1, "width_coefficient": 1.0, "depth_coefficient": 1.1, "hidden_dim": 1280}
_MOMENTUM = 0.1


def network(name: str, settings: Mapping[str, Any] | None = None) -> SmallNet | EfficientNet:
    """A network by the name and settings that a model file carries; without settings, EfficientNet is B1."""
    if name == "small":
        return SmallNet(**(settings or {}))
    if name == "efficientnet":
        return EfficientNet(**(settings or B1))
    raise NotelaError(f"network={name!r} is not one of 'small', 'efficientnet'")


class SmallNet(nn.Module):
    """Five plain convolutions for CPUs; the embedding is the mean and the maximum over time, 512-d.

    Patches of 4 × 4 become channels, three 3×3 convolutions of stride 2 see 0.6 s at a time, and the last convolution
    has its own weights for each stretch of frequencies: a bird's pitch is part of its name.
    """

    def __init__(self, width: int = 32, bands: int = BANDS, dropout: float = 0.1) -> None:
        super().__init__()
        if bands % 32:
            raise NotelaError(f"bands={bands} must be a multiple of 32")
        self.settings = {"width": width, "bands": bands, "dropout": dropout}
        self.embedding = 16 * width
        self.body = nn.Sequential(
            *_layer(16, width, 3, stride=2, padding=1),
            *_layer(width, 2 * width, 3, stride=2, padding=1),
            *_layer(2 * width, 4 * width, 3, stride=2, padding=1),
            nn.Dropout(dropout),
            *_layer(4 * width, 8 * width, (3, bands // 32), padding=(1, 0)),
        )
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, picture: Tensor) -> Tensor:
        n, _, frames, bands = picture.shape
        rest = -frames % 4
        if rest:
            picture = F.pad(picture, (0, 0, 0, rest))
        patches = picture.reshape(n, (frames + rest) // 4, 4, bands // 4, 4).transpose(2, 3).flatten(3)
        x = self.body(patches.permute(0, 3, 1, 2)).flatten(2)
        return torch.cat([x.mean(2), x.amax(2)], 1)


def _layer(inputs: int, outputs: int, size: int | tuple[int, int], **where: Any) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, size, bias=False, **where), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)


class EfficientNet(nn.Module):
    """EfficientNet from `transformers`; settings are those of its `EfficientNetConfig`.

    Three things are put right, none of which touches the names of parameters: what is called drop-connect there drops
    single numbers, here whole branches of an example (stochastic depth, survival 1 - drop_connect_rate at the end); its
    norm layers follow each batch with 0.99 (another framework's 0.01), here with 0.1; and scales of norm layers start
    at 1 instead of near 0.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        try:
            transformers: Any = importlib.import_module("transformers")
        except ImportError as error:
            raise NotelaError("EfficientNet comes from transformers: pip install transformers") from error
        self.settings = dict(settings)
        config = transformers.EfficientNetConfig(**settings)
        self.embedding = int(config.hidden_dim)
        self.body = transformers.EfficientNetModel(config)
        for block in self.body.encoder.blocks:
            block.projection.dropout = StochasticDepth(block.projection.dropout.p)
        for module in self.body.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = _MOMENTUM
                nn.init.ones_(module.weight)
            elif isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, picture: Tensor) -> Tensor:
        pooled: Tensor = self.body(picture).pooler_output
        return pooled


class StochasticDepth(nn.Module):
    """In training, a residual branch is left out for each example with probability p, and scaled up otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return branch
        kept = torch.rand(len(branch), *(1,) * (branch.ndim - 1), device=branch.device) >= self.p
        return branch * (kept.to(branch.dtype) / (1 - self.p))

    def extra_repr(self) -> str:
        return f"p={self.p}"


def loss(outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Tensor:
    """Binary cross-entropy, mean over examples and classes: the species' plus a quarter of each other rank's.

    >>> sure = {"species": torch.tensor([[20.0, -20.0]]), "genus": torch.tensor([[0.0]])}
    >>> float(loss(sure, {"species": torch.tensor([[1.0, 0.0]]), "genus": torch.tensor([[1.0]])}))  # a quarter of ln 2
    0.17328...
    """
    parts = (
        (1.0 if rank == "species" else RANK_WEIGHT) * F.binary_cross_entropy_with_logits(logits, targets[rank])
        for rank, logits in outputs.items()
    )
    return torch.stack(list(parts)).sum()
