"""The adaptation methods: one file each, with its settings, its presets and its search grid."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from notela.errors import NotelaError, check_choice
from notela.methods import aad, adabn, dropout_student, dust, eta, lame, notela, nrc, pseudo_label, rpl, shot, tent
from notela.methods.aad import AaD
from notela.methods.adabn import AdaBN
from notela.methods.base import Batch, Method, Preset
from notela.methods.dropout_student import DropoutStudent
from notela.methods.dust import DUST
from notela.methods.eta import ETA
from notela.methods.lame import LAME
from notela.methods.notela import NOTELA
from notela.methods.nrc import NRC
from notela.methods.pseudo_label import PseudoLabel
from notela.methods.rpl import RPL
from notela.methods.shot import SHOT
from notela.methods.tent import TENT
from notela.task import Task

__all__ = [
    "DUST",
    "ETA",
    "LAME",
    "NICKNAMES",
    "NOTELA",
    "NRC",
    "PAPER",
    "PRESET_NAMES",
    "RPL",
    "SHOT",
    "TENT",
    "AaD",
    "AdaBN",
    "Batch",
    "DropoutStudent",
    "Method",
    "Preset",
    "PseudoLabel",
    "grid",
    "names",
    "preset",
    "resolve",
]

_FILES: dict[str, Any] = {
    "adabn": adabn,
    "tent": tent,
    "shot": shot,
    "pseudo_label": pseudo_label,
    "dust": dust,
    "nrc": nrc,
    "dropout_student": dropout_student,
    "notela": notela,
    "rpl": rpl,
    "aad": aad,
    "eta": eta,
    "lame": lame,
}
PAPER = ("adabn", "tent", "shot", "pseudo_label", "dust", "nrc", "dropout_student", "notela")
"""The methods that the paper compares, in its order."""
NICKNAMES = ("centred", "auto")
"""Presets of NOTELA that are known by a name of their own wherever a method's name is asked for."""
PRESET_NAMES = ("image", "audio-multilabel", "audio-singlelabel")

# The rows "All" of the paper's grid (appendix E).
COMMON_GRID: dict[str, tuple[Any, ...]] = {
    "learning_rate": (1e-5, 1e-4, 1e-3),
    "trainable": ("norm", "all"),
    "noise": (True, False),
    "statistics": ("source", "target"),
    "schedule": ("cosine", "constant"),
}


def names() -> tuple[str, ...]:
    """The methods by name: the paper's, in its order, then others.

    >>> names()[len(PAPER) :]
    ('rpl', 'aad', 'eta', 'lame')
    """
    return tuple(_FILES)


def preset(method: str, name: str) -> Preset:
    """What the published numbers were run with, for "image", "audio-multilabel" or "audio-singlelabel"; of a method
    that is not the paper's, TENT's policies there.

    >>> preset("notela", "image").method.k, preset("notela", "image").statistics
    (15, 'target')
    """
    check_choice("method", method, names())
    check_choice("preset", name, tuple(_FILES[method].PRESETS))
    chosen: Preset = _FILES[method].PRESETS[name]
    return chosen


def grid(method: str) -> tuple[Preset, ...]:
    """Every point of the paper's search grid for a method: its own settings times the common ones. A method that is not
    the paper's has a grid of the same kind.

    >>> len(grid("notela")), len(grid("adabn"))
    (576, 2)
    """
    check_choice("method", method, names())
    start = preset(method, "image")
    common = COMMON_GRID
    if start.trainable == "none":  # forward passes only: nothing but dropout can differ, if they leave a trace at all
        common = {"noise": COMMON_GRID["noise"]} if start.statistics == "target" else {}
    return tuple(
        replace(start, method=settings, **dict(zip(common, values, strict=True)))
        for settings in _FILES[method].GRID
        for values in itertools.product(*common.values())
    )


def resolve(method: str | Method | Preset, task: Task) -> Preset:
    """The preset meant by a name, an instance or a preset.

    "auto" and "centred" are presets of NOTELA. Another name stands for its image preset (single-label) or its audio
    preset (multi-label); an instance takes the policies of that preset and keeps its own settings.
    """
    if isinstance(method, Preset):
        return method
    if not isinstance(method, (str, Method)):
        raise NotelaError(f"method={method!r} is not a name, a preset or a method such as one of {', '.join(names())}")
    default = "image" if task == "singlelabel" else "audio-multilabel"
    if isinstance(method, str):
        check_choice("method", method, (*NICKNAMES, *names()))
        if method in NICKNAMES:
            return preset("notela", f"auto-{task}" if method == "auto" else method)
        return preset(method, default)
    return replace(preset(method.name, default), method=method) if method.name in _FILES else Preset(method)
