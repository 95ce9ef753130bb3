"""A comparison on your own model and folders, described by a short TOML file.

    name = "ponds"
    task = "singlelabel"                    # or "multilabel"
    classes = "classes.txt"                 # one a line, in the order of the model's outputs; or a list here
    model = "model.py:build"                # a function without arguments that returns the torch module
    weights = "model.safetensors"           # optional, loaded into it
    preprocess = "model.py:prepare"         # a function from a file's path to a tensor;
                                            # or, for images, {size = [32, 32], mean = [...], std = [...]} or
                                            # {resize = 256, crop = 224, mean = [...], std = [...]}
    source = "clean"                        # optional: held-out data of the source, for a figure
    settings = {epochs = 10, batch_size = 64}   # optional

    [validation]                            # labelled, to choose settings on; without it, published ones are used
    north = "data/north"

    [test]
    south = "data/south"
    east = "data/east"

Single-label folders hold a sub-folder of files for each class; multi-label ones hold files and a `labels.csv` with the
columns `file` and `labels` (joined by ";"). Paths are relative to the TOML file. Files are split 75/25 by a stable
hash of their names.

Where `model` is a bird classifier or a head on embeddings, folders are those of `notela prepare` or `notela embed`:

    task = "multilabel"
    model = "birds.safetensors"             # brings its classes and its preprocessing
    score_empty = false                     # optional: windows that hold no species are adapted on but not scored

    [test]
    site1 = "site1.windows"
    "site1, all" = {folder = "site1.windows", held_out = false}    # scored on the windows that were adapted on
    "site1, first" = {folder = "site1.windows", held_out = "1/4"}  # the first of four parts of its recordings held out
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import tomllib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from notela.bench.files import domain as domain_of_files
from notela.bench.suite import Domain, Suite
from notela.bench.suites import _recordings
from notela.bench.suites._recordings import NOTHING
from notela.errors import NotelaError, check_choice
from notela.vision.folders import class_folders, labelled_images
from notela.vision.preprocessing import read_image

_KEYS = {"name", "task", "model", "source", "settings", "validation", "test"}
_OF_FILES = {"classes", "weights", "preprocess"}
_OF_RECORDINGS = {"score_empty"}


def read(path: Path) -> Suite:
    """The suite that a TOML file describes."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotelaError(f"{path} does not exist; its form: docs/bench.md") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise NotelaError(f"{path} cannot be read as TOML: {error}") from error
    for key in sorted({"task", "model", "test"} - content.keys()):
        raise NotelaError(f"{path} has no {key!r}; its form: docs/bench.md")
    birds = isinstance(content["model"], str) and re.search(r":\w+$", content["model"]) is None
    known = _KEYS | (_OF_RECORDINGS if birds else _OF_FILES)
    for key in sorted(content.keys() - known):
        if key in _OF_FILES:
            raise NotelaError(
                f"{path} has {key!r}, and model = {content['model']!r} is no function ('file.py:name'): a bird "
                "classifier brings its own"
            )
        raise NotelaError(f"{path} has an unknown key {key!r}; known: {', '.join(sorted(known))}")
    check_choice("task", content["task"], ("singlelabel", "multilabel"))
    for key in ("validation", "test") if "validation" in content else ("test",):
        if not isinstance(content[key], dict) or not content[key]:
            raise NotelaError(f"[{key}] in {path} must name at least one folder: north = 'data/north'")
    settings = content.get("settings", {})
    if not isinstance(settings, dict):
        raise NotelaError(f"settings = {settings!r} in {path} must be a table: {{epochs = 10, batch_size = 64}}")
    for key in sorted(settings.keys() - {"epochs", "batch_size"}):
        raise NotelaError(f"settings in {path} has {key!r}; the grid searches everything but epochs and batch_size")
    root, task = path.resolve().parent, content["task"]
    places = {
        key: {name: _place(name, given, path, birds) for name, given in content.get(key, {}).items()}
        for key in ("validation", "test")
    }
    for name, (folder, _) in places["test"].items():
        for other, (same, _) in places["validation"].items():
            if (root / folder).resolve() == (root / same).resolve():
                raise NotelaError(f"{name} and {other} in {path} are the same folder, and one is for validation")
    if "source" in content:
        places["source"] = {"source": _place("source", content["source"], path, birds)}
    form = _of_recordings(content, root, places) if birds else _of_files(content, root)
    make = form.pop("place")
    domains = {
        key: {name: partial(make, root / folder, **which) for name, (folder, which) in found.items()}
        for key, found in places.items()
    }
    return Suite(
        name=content.get("name", path.stem),
        task=task,
        metrics=("accuracy",) if task == "singlelabel" else ("map", "cmap", "auroc", "top1"),
        validation=domains["validation"],
        test=domains["test"],
        source=domains.get("source", {}).get("source"),
        overrides=settings,
        **form,
    )


def _place(name: str, given: Any, path: Path, birds: bool) -> tuple[str, dict[str, tuple[int, int]]]:
    """The folder of a domain, and how it is used."""
    if isinstance(given, str):
        return given, {}
    if not birds or not isinstance(given, dict):
        raise NotelaError(f"{name} = {given!r} in {path} is not the path of a folder")
    folder, held_out = given.get("folder"), given.get("held_out")
    part = re.fullmatch(r"(\d+)/(\d+)", held_out) if isinstance(held_out, str) else None
    one, of = map(int, part.groups()) if part else NOTHING
    if (
        given.keys() != {"folder", "held_out"}
        or not isinstance(folder, str)
        or not (held_out is False or 0 < one <= of > 1)
    ):
        raise NotelaError(
            f"{name} in {path} must be a folder, or {{folder = '...', held_out = false}}, or '1/4' for it"
        )
    return folder, {"held_out": (one, of)}


def _of_files(content: dict[str, Any], root: Path) -> dict[str, Any]:
    """What is special about a suite of files and a function that makes the model."""
    for key in sorted({"classes", "preprocess"} - content.keys()):
        raise NotelaError(f"the TOML file has no {key!r}; its form: docs/bench.md")
    names = _class_names(content["classes"], root)
    prepare = _preprocessing(content["preprocess"], root)
    images = isinstance(content["preprocess"], dict)
    return {
        "place": partial(_domain, task=content["task"], names=names, prepare=prepare, images=images),
        "protocol": "files split 75 / 25 by a stable hash of their names; all outputs kept",
        "class_names": tuple(names),
        "model": partial(_model, content["model"], content.get("weights"), root),
        "identity": _hash_of_code([content["model"], content["preprocess"]], root),
    }


def _of_recordings(content: dict[str, Any], root: Path, places: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What is special about a suite of recordings and a bird classifier, or a head on embeddings."""
    score_empty = content.get("score_empty", True)
    if not isinstance(score_empty, bool):
        raise NotelaError(f"score_empty = {score_empty!r} must be true or false")
    given, task = content["model"], content["task"]
    model = str(root / given) if (root / given).exists() or given.endswith(".safetensors") else given  # a hub's, then
    every = {name: place for found in places.values() for name, place in found.items()}
    phrase = _recordings.describe(
        model, {name: root / folder for name, (folder, _) in every.items()}, task, score_empty
    )
    same = [name for name, (_, which) in every.items() if which.get("held_out") == NOTHING]
    parts = [f"{name}: part {one} of {of}" for name, (_, which) in every.items() for one, of in which.values() if of]
    return {
        "place": partial(_recordings.place, model, task=task, score_empty=score_empty),
        "protocol": phrase
        + (f"; {', '.join(same)}: scored on the windows that were adapted on" if same else "")
        + (
            f"; instead of that split, recordings held out by a stable hash of their names, {', '.join(parts)}"
            if parts
            else ""
        ),
        "class_names": tuple(one.scientific for one in _recordings.source(model).classes),
        "model": partial(_recordings.network, model),
        "preset": f"audio-{task}",
    }


def _domain(folder: Path, task: str, names: list[str], prepare: Callable[[Path], Any], images: bool) -> Domain:
    if not folder.is_dir():
        raise NotelaError(f"{folder} is not a folder; check the paths in the TOML file")
    by_folder = labelled_images if images else class_folders
    found = by_folder(folder, names) if task == "singlelabel" else _by_table(folder, names)
    if not found:
        raise NotelaError(f"{folder} holds no files; expected {_expected(task)}")
    return domain_of_files(found, folder, prepare)


def _by_table(folder: Path, names: list[str]) -> dict[Path, list[int]]:
    """0/1 for each class, from labels.csv."""
    table = folder / "labels.csv"
    if not table.exists():
        raise NotelaError(f"{table} does not exist; expected {_expected('multilabel')}")
    found = {}
    with open(table, newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            if row.get("file") is None or row.get("labels") is None:
                raise NotelaError(f"{table} needs the columns 'file' and 'labels'; it has {', '.join(row)}")
            present = [label.strip() for label in row["labels"].split(";") if label.strip()]
            for label in present:
                if label not in names:
                    raise NotelaError(f"{table}: {label!r} of {row['file']} is no class of the model ({_some(names)})")
            if not (folder / row["file"]).is_file():
                raise NotelaError(f"{table} lists {row['file']}, which is not in {folder}")
            found[folder / row["file"]] = [int(name in present) for name in names]
    return found


def _expected(task: str) -> str:
    if task == "singlelabel":
        return "a sub-folder of files for each class"
    return "files and a labels.csv with the columns 'file' and 'labels' (joined by ';')"


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _class_names(given: Any, root: Path) -> list[str]:
    if isinstance(given, str):
        try:
            given = [
                line.strip() for line in (root / given).read_text(encoding="utf-8-sig").splitlines() if line.strip()
            ]
        except OSError as error:
            raise NotelaError(f"the class list {root / given} cannot be read: {error.strerror}") from error
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given) or len(set(given)) < len(given):
        raise NotelaError("classes must be a list of different names, or a file with one a line")
    return given


def _preprocessing(given: Any, root: Path) -> Callable[[Path], Any]:
    if isinstance(given, dict):
        _check_image_table(given)
        return partial(read_image, **given)
    return _function(given, root)


def _check_image_table(given: dict[str, Any]) -> None:
    if given.keys() - {"size", "resize", "crop", "mean", "std"} or not given.keys() & {"size", "crop"}:
        raise NotelaError(
            f"preprocess = {given!r} must be a table (size, or resize and crop; mean and std) or 'file.py:name'"
        )

    def is_number(value: Any, kind: type | tuple[type, ...] = (int, float)) -> bool:
        return isinstance(value, kind) and not isinstance(value, bool)

    for key in {"resize", "crop"} & given.keys():
        if not is_number(given[key], int) or given[key] < 1:
            raise NotelaError(f"preprocess: {key} = {given[key]!r} must be a number of pixels")
    size = given.get("size", [1, 1])
    if not isinstance(size, list) or len(size) != 2 or not all(is_number(side, int) and side > 0 for side in size):
        raise NotelaError(f"preprocess: size = {size!r} must be height and width, such as [32, 32]")
    for key in {"mean", "std"} & given.keys():
        value = given[key] if isinstance(given[key], list) else [given[key]]
        if len(value) not in (1, 3) or not all(map(is_number, value)):
            raise NotelaError(
                f"preprocess: {key} = {given[key]!r} must be one number (grey) or three (red, green, blue)"
            )


def _model(given: str, weights: str | None, root: Path) -> nn.Module:
    build = _function(given, root)
    try:
        inspect.signature(build).bind()
    except TypeError as error:
        raise NotelaError(f"model = {given!r} must be a function without arguments ({error})") from error
    net = build()
    if not isinstance(net, nn.Module):
        raise NotelaError(f"model = {given!r} returned a {type(net).__name__}; expected a torch.nn.Module")
    if weights is not None:
        path = root / weights
        try:
            tensors = load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
            net.load_state_dict(tensors)
        except Exception as error:
            raise NotelaError(f"weights {path} cannot be loaded: {str(error).splitlines()[0]}") from error
    return net


def _hash_of_code(given: list[Any], root: Path) -> str:
    """So that records made before a change to the user's code are not taken for those after it."""
    digest = hashlib.sha256(repr(given).encode())
    for place in sorted({str(one).partition(":")[0] for one in given}):
        if place.endswith(".py") and (root / place).is_file():
            digest.update((root / place).read_bytes())
    return digest.hexdigest()[:8]


def _function(given: Any, root: Path) -> Callable[..., Any]:
    """A function from "file.py:name" (beside the TOML file) or "package.module:name"."""
    place, _, name = str(given).partition(":")
    try:
        module = _module(root / place) if place.endswith(".py") else importlib.import_module(place)
        function: Callable[..., Any] = getattr(module, name)
    except (ImportError, OSError, AttributeError, ValueError, SyntaxError) as error:
        raise NotelaError(f"{given!r} cannot be loaded ({error}); expected 'file.py:function'") from error
    return function


@cache
def _module(path: Path) -> ModuleType:
    """A user's file as a module, run once; it may import files beside it."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"notela_custom_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module
