"""ResNets with a bottleneck before their head, as SHOT, and NRC for VisDA-C, publish their source models.

Such a model comes as three files: `source_F.pt` (torchvision's ResNet without its head), `source_B.pt` (a linear layer
and a norm layer) and `source_C.pt` (a linear layer with its weights' length kept apart, which is folded in here).
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from notela.errors import NotelaError
from notela.vision.networks import fill, from_torchvision, imagenet_resnet, load_weights, read_state

FILES = ("source_F.pt", "source_B.pt", "source_C.pt")
WIDTH = 256


def source_resnet(depth: int, classes: int, weights: Path) -> nn.Module:
    """A source model from one file (a ResNet's own, `notela.vision.networks.load_weights`) or a folder of three."""
    if not weights.exists():
        raise NotelaError(
            f"{weights} does not exist: expected a ResNet-{depth} with {classes} outputs, one file in torchvision's "
            f"names or a folder with {', '.join(FILES)} as SHOT publishes them; --set weights=PATH names another, in "
            "the data folder or absolute"
        )
    if not weights.is_dir():
        return load_weights(imagenet_resnet(depth, classes), weights)
    net = imagenet_resnet(depth, classes)
    net.classifier = nn.Sequential(
        nn.Flatten(), nn.Linear(2048, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, classes)
    )
    return fill(net, in_one([read_state(weights / name) for name in FILES]), weights)


def in_one(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The three files' weights under the names of one network."""
    backbone, bottleneck, head = parts
    state = {from_torchvision(name): value for name, value in backbone.items() if not name.startswith("fc.")}
    places = {"bottleneck": "classifier.1", "bn": "classifier.2"}
    for name, value in bottleneck.items():
        part, _, leaf = name.partition(".")
        if part in places:
            state[f"{places[part]}.{leaf}"] = value
    lengths, directions = (
        head.get(old, head.get(new))
        for old, new in (
            ("fc.weight_g", "fc.parametrizations.weight.original0"),
            ("fc.weight_v", "fc.parametrizations.weight.original1"),
        )
    )
    if lengths is not None and directions is not None:
        state["classifier.3.weight"] = lengths * directions / directions.norm(dim=1, keepdim=True)
    state |= {f"classifier.3.{leaf}": head[f"fc.{leaf}"] for leaf in ("weight", "bias") if f"fc.{leaf}" in head}
    return state
