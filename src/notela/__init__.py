"""notela: adapt a trained classifier to a new place with unlabelled data alone.

result = notela.adapt(model, data, task="multilabel", method="notela")

Names load on first use, so that importing the package (and `notela --help`) does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from notela import graph, methods, metrics, task
    from notela.errors import NotelaError
    from notela.evaluation import Evaluator, predict
    from notela.loop import Result, adapt
    from notela.runs import load, provenance, save

_HOME = {
    "Evaluator": "notela.evaluation",
    "NotelaError": "notela.errors",
    "Result": "notela.loop",
    "adapt": "notela.loop",
    "load": "notela.runs",
    "predict": "notela.evaluation",
    "provenance": "notela.runs",
    "save": "notela.runs",
}
_MODULES = ("graph", "methods", "metrics", "task")

__all__ = [
    "Evaluator",
    "NotelaError",
    "Result",
    "adapt",
    "graph",
    "load",
    "methods",
    "metrics",
    "predict",
    "provenance",
    "save",
    "task",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"notela.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'notela' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
