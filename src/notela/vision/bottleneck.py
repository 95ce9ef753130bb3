"""ResNets with a bottleneck before their head, as SHOT and NRC train and publish their source models.

Such a model comes as three files: `source_F.pt` (torchvision's ResNet without its head), `source_B.pt` (a linear layer
and a norm layer) and `source_C.pt` (a linear layer with its weights' length kept apart, which is folded in here).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from notela.errors import NotelaError
from notela.vision.networks import from_torchvision, imagenet_resnet, load_weights

FILES = ("source_F.pt", "source_B.pt", "source_C.pt")
WIDTH = 256


def source_resnet(depth: int, classes: int, weights: Path) -> nn.Module:
    """A source model from one file (a ResNet's own, `notela.vision.networks.load_weights`) or a folder of three."""
    if not weights.exists():
        raise NotelaError(
            f"{weights} does not exist: expected a ResNet-{depth} with {classes} outputs, one file in torchvision's "
            f"names or a folder with {', '.join(FILES)} as SHOT and NRC publish them; --set weights=PATH names another"
        )
    if not weights.is_dir():
        return load_weights(imagenet_resnet(depth, classes), weights)
    net = imagenet_resnet(depth, classes)
    net.classifier = nn.Sequential(
        nn.Flatten(), nn.Linear(2048, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, classes)
    )
    state = in_one([_read(weights / name) for name in FILES])
    missing = {name for name in net.state_dict().keys() - state.keys() if not name.endswith("num_batches_tracked")}
    try:
        if missing:
            raise KeyError(sorted(missing)[0])
        net.load_state_dict(state, strict=False)
    except (KeyError, RuntimeError) as error:
        reason = f"it lacks {error}" if missing else str(error).splitlines()[1].strip()
        raise NotelaError(f"{weights} is not of a ResNet-{depth} with {classes} outputs: {reason}") from error
    return net.eval()


def in_one(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The three files' weights under the names of one network."""
    backbone, bottleneck, head = ({k.removeprefix("module."): v for k, v in part.items()} for part in parts)
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
    if lengths is None or directions is None:  # a plain linear layer
        state["classifier.3.weight"] = head["fc.weight"]
    else:
        state["classifier.3.weight"] = lengths * directions / directions.norm(dim=1, keepdim=True)
    state["classifier.3.bias"] = head["fc.bias"]
    return state


def _read(path: Path) -> dict[str, Tensor]:
    try:
        state: dict[str, Tensor] = torch.load(path, "cpu", weights_only=True)
    except FileNotFoundError:
        raise NotelaError(f"{path} does not exist; the folder must hold {', '.join(FILES)}") from None
    except Exception as error:
        raise NotelaError(f"{path} cannot be read as a checkpoint: {str(error).splitlines()[0]}") from error
    return state
