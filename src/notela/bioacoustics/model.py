"""The classifier of birds, and its file: one `.safetensors` with everything that prediction needs.

model = load("birds.safetensors")       # or a folder or hub id of a BirdSet EfficientNet
scores = model(windows).sigmoid()       # (N, samples) at 32 kHz -> (N, species)
model.classes[0].common
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import notela
from notela.bioacoustics.frontend import SAMPLE_RATE, front_end
from notela.bioacoustics.networks import RANKS, network
from notela.bioacoustics.taxonomy import Species, resolve
from notela.errors import NotelaError
from notela.runs import replacing

PEAK = 0.2
FORMAT = 1
_HEADER = "notela.birds"
_FILES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".onnx", ".tflite", ".h5")  # no hub id ends like that
_QUIETEST = 1e-6  # a window whose peak is below that is silence: scaling it up would show the rounding
_NOT_SETTINGS = ("id2label", "label2id", "num_labels", "architectures", "transformers_version", "dtype", "problem_type")


class BirdClassifier(nn.Module):
    """Front end, network and heads. Called with windows, it gives the species' logits.

    A call scales each window to the peak amplitude `peak` first, in evaluation and in training mode alike, so that
    adaptation's teacher and student hear the same; `peak=None` leaves windows as they are. `by_rank` is for training:
    it takes windows as they are (their gain was drawn at random) and gives the logits of all ranks.
    """

    def __init__(
        self,
        classes: Sequence[Species],
        *,
        network_name: str = "small",
        network_settings: dict[str, Any] | None = None,
        front_end_name: str = "gabor",
        ranks: Sequence[str] = RANKS,
        window: float = 5.0,
        peak: float | None = PEAK,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.classes = tuple(Species(*one) for one in classes)
        _check_classes(self.classes)
        if network_name == "small" and front_end_name == "birdset":
            raise NotelaError(
                "front_end_name='birdset' is for 'efficientnet'; give the small network 'gabor' or 'logmel'"
            )
        self.network_name, self.front_end_name = network_name, front_end_name
        self.window, self.sample_rate, self.peak = window, SAMPLE_RATE, peak
        self.front_end = front_end(front_end_name)
        self.network = network(network_name, network_settings)
        self.dropout = nn.Dropout(dropout)
        self.names = {rank: sorted({getattr(one, rank) for one in self.classes} - {""}) for rank in ranks}
        """Genera, families and orders, each in the order of its head's outputs."""
        widths = {"species": len(self.classes), **{rank: len(names) for rank, names in self.names.items() if names}}
        self.heads = nn.ModuleDict({rank: nn.Linear(self.network.embedding, width) for rank, width in widths.items()})

    def forward(self, sound: Tensor) -> Tensor:
        logits: Tensor = self.heads["species"](self.dropout(self.embed(sound)))
        return logits

    def embed(self, sound: Tensor) -> Tensor:
        """Embeddings (N, d) of windows, which are scaled to `peak` first."""
        return self._embed(sound if self.peak is None else at_peak(sound, self.peak))

    def by_rank(self, sound: Tensor) -> dict[str, Tensor]:
        """Logits of species, genus, family and order, of windows as they are."""
        embedding = self.dropout(self._embed(sound))
        return {rank: head(embedding) for rank, head in self.heads.items()}

    def targets(self, species: Tensor) -> dict[str, Tensor]:
        """What `by_rank` should say: a genus is there as much as its most certain species (N, species)."""
        found = {"species": species}
        for rank, names in self.names.items():
            if names:
                place = {name: i for i, name in enumerate(names)}
                known = [i for i, one in enumerate(self.classes) if getattr(one, rank)]
                column = torch.tensor([place[getattr(self.classes[i], rank)] for i in known], device=species.device)
                empty = species.new_zeros(len(species), len(names))
                found[rank] = empty.scatter_reduce(1, column.expand(len(species), -1), species[:, known], "amax")
        return found

    def _embed(self, sound: Tensor) -> Tensor:
        embedding: Tensor = self.network(self.front_end(sound)[:, None])
        return embedding


class OnPictures(nn.Module):
    """What is left of a classifier behind its front end: pictures (N, frames, bands) in, the species' logits out."""

    def __init__(self, classifier: BirdClassifier) -> None:
        super().__init__()
        self.network, self.dropout, self.head = classifier.network, classifier.dropout, classifier.heads["species"]

    def forward(self, pictures: Tensor) -> Tensor:
        logits: Tensor = self.head(self.dropout(self.network(pictures[:, None])))
        return logits


def at_peak(sound: Tensor, peak: float = PEAK) -> Tensor:
    """Windows scaled to a peak amplitude; silence stays silence.

    >>> at_peak(torch.tensor([[0.5, -1.0], [0.0, 0.0]]))
    tensor([[ 0.1000, -0.2000],
            [ 0.0000,  0.0000]])
    """
    loudest = sound.abs().amax(1, keepdim=True)
    return sound * (peak / loudest.clamp(min=_QUIETEST))


# ---- the file


def save(model: BirdClassifier, path: str | os.PathLike[str], made_by: dict[str, Any] | None = None) -> None:
    """Write a model and everything that prediction needs into one file, whole or not at all. `made_by`: of an adapted
    one, the run that made it (`result.description`); the file keeps it."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise NotelaError(f"{path} must end in .safetensors, such as {path.stem or 'birds'}.safetensors")
    header = {
        "format": FORMAT,
        "made_by": f"notela {notela.__version__}",
        "run": made_by,
        "network": model.network_name,
        "network_settings": model.network.settings,
        "front_end": model.front_end_name,
        "ranks": list(model.names),
        "window": model.window,
        "sample_rate": model.sample_rate,
        "peak": model.peak,
        "dropout": model.dropout.p,
        "columns": list(Species._fields),
        "classes": [list(one) for one in model.classes],
    }
    tensors = {name: t.detach().cpu().clone().contiguous() for name, t in model.state_dict().items()}
    with replacing(path) as aside:
        save_file(tensors, aside, {_HEADER: json.dumps(header, ensure_ascii=False)})


def load(path: str | os.PathLike[str]) -> BirdClassifier:
    """A classifier in evaluation mode: from a file that `save` wrote, or a BirdSet EfficientNet from a folder with
    config.json and model.safetensors, or by its hub id ("DBD-research-group/EfficientNet-B1-BirdSet-XCL")."""
    place = Path(path)
    if place.is_file():
        return _from_file(place)
    if place.is_dir():
        if not (place / "config.json").exists():
            raise NotelaError(
                f"{place} is a folder without config.json; expected a model file (.safetensors), or a folder with "
                "config.json and model.safetensors"
            )
        return _from_transformers(str(place))
    if place.suffix not in _FILES and not place.parent.is_dir() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)):
        return _from_transformers(str(path))
    raise NotelaError(f"{place} does not exist; expected a model file (.safetensors), a model folder or a hub id")


def _from_file(path: Path) -> BirdClassifier:
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_HEADER)
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise NotelaError(
            f"{path} cannot be read as a model ({error}); it is cut short or no .safetensors file: copy it again"
        ) from error
    if text is None:
        raise NotelaError(
            f"{path} holds weights but not what a bird classifier needs (classes, front end); use a file that "
            "notela's save or train wrote, or the folder with its config.json"
        )
    try:
        header = json.loads(text)
        version = int(header["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise NotelaError(f"{path} has a header that cannot be read ({error}); copy the file again") from error
    if version > FORMAT:
        raise NotelaError(
            f"{path} was made by {header.get('made_by', 'a newer notela')} in format {version}; this notela reads up "
            f"to {FORMAT}: upgrade with pip install -U notela"
        )
    try:
        if header["sample_rate"] != SAMPLE_RATE:
            raise NotelaError(f"{path} wants {header['sample_rate']} samples a second; this notela knows {SAMPLE_RATE}")
        model = BirdClassifier(
            [Species(**dict(zip(header["columns"], one, strict=True))) for one in header["classes"]],
            network_name=header["network"],
            network_settings=header["network_settings"],
            front_end_name=header["front_end"],
            ranks=header["ranks"],
            window=header["window"],
            peak=header["peak"],
            dropout=header["dropout"],
        )
        model.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, NotelaError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise NotelaError(f"{path} does not fit together ({reason}); copy the file again") from error
    return model.eval()


def _from_transformers(source: str) -> BirdClassifier:
    """A published checkpoint with its own labels and its own preprocessing."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise NotelaError(f"{source} needs transformers: pip install transformers") from error
    try:
        config = transformers.AutoConfig.from_pretrained(source)
        if config.model_type != "efficientnet" or config.num_channels != 1:
            raise NotelaError(
                f"{source} is a {config.model_type} with {getattr(config, 'num_channels', 'unknown')} input channels; "
                "only EfficientNets on one channel (BirdSet's) can be read"
            )
        published, info = transformers.EfficientNetForImageClassification.from_pretrained(
            source, output_loading_info=True
        )
    except NotelaError:
        raise
    except Exception as error:  # transformers raises OSError, ValueError, its own and its hub's
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise NotelaError(
            f"{source} cannot be loaded ({reason}); expected a folder with config.json and model.safetensors, or a hub "
            "id that can be reached from here"
        ) from error
    if info["missing_keys"] or info["mismatched_keys"]:
        missing = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
        raise NotelaError(
            f"{source} lacks {missing[0]!r} ({len(missing)} such); it is no whole EfficientNet classifier"
        )
    settings = {name: value for name, value in config.to_diff_dict().items() if name not in _NOT_SETTINGS}
    model = BirdClassifier(
        _named([config.id2label[i] for i in range(config.num_labels)]),
        network_name="efficientnet",
        network_settings=settings,
        front_end_name="birdset",
        ranks=(),
        peak=None,
        dropout=config.dropout_rate,
    )
    model.network.body.load_state_dict(published.efficientnet.state_dict())
    model.heads["species"].load_state_dict(published.classifier.state_dict())
    return model.eval()


def _named(labels: list[str]) -> list[Species]:
    """Labels as classes: codes as they stand, names from the taxonomy where it knows them."""
    matched = resolve(labels).matched
    return [matched[one]._replace(code=one) if one in matched else Species(one, one, one, "", "", "") for one in labels]


def _check_classes(classes: tuple[Species, ...]) -> None:
    if not classes:
        raise NotelaError("classes is empty; a classifier needs at least one species")
    code, times = Counter(one.code for one in classes).most_common(1)[0]
    if times > 1:
        raise NotelaError(f"classes holds {code!r} more than once; each species counts once")
