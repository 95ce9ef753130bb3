"""`notela bench --with NAME=VALUE`: the same comparison with a setting of every run changed, to see what it does.

notela bench digits --methods centred --trials none --with message=votes      # an ingredient taken away
notela bench digits --trials none --with learning_rate=x10 --with epochs=100  # settings that should do harm
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from notela.errors import NotelaError
from notela.methods.base import Preset


def change(preset: Preset, changes: Mapping[str, str]) -> Preset:
    """A preset with other settings, of its method or of the loop; "x10" is ten times what it was.

    >>> from notela.methods import preset
    >>> changed = change(preset("notela", "image"), {"learning_rate": "x10", "k": "5", "statistics": "source"})
    >>> changed.learning_rate, changed.method.k, changed.statistics
    (0.001, 5, 'source')
    """
    for name, text in changes.items():
        where: Any = preset.method if _has(preset.method, name) else preset
        if name == "method" or not _has(where, name):
            known = [*dataclasses.fields(preset.method), *dataclasses.fields(preset)]
            raise NotelaError(
                f"{preset.method.name} has no setting {name!r} to change; it has "
                f"{', '.join(field.name for field in known if field.name != 'method')}"
            )
        changed = dataclasses.replace(where, **{name: _value(name, text, getattr(where, name))})
        preset = dataclasses.replace(preset, method=changed) if where is preset.method else changed
    return preset


def _has(settings: Any, name: str) -> bool:
    return name in {field.name for field in dataclasses.fields(settings)}


def _value(name: str, text: str, now: Any) -> Any:
    """Of the type that the setting has now."""
    try:
        if isinstance(now, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(now, (int, float)) and text.startswith("x"):
            return round(now * _finite(text[1:])) if isinstance(now, int) else float(f"{now * _finite(text[1:]):.12g}")
        if isinstance(now, int):
            return int(text)
        if isinstance(now, float) or name in ("teacher_momentum", "momentum"):
            return text if text == "slow" else _finite(text)
    except (ValueError, KeyError, OverflowError):
        raise NotelaError(f"{name}={text!r} is not of the same kind as {now!r}") from None
    return text


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
