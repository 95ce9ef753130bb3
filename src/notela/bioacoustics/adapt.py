"""Adaptation of a bird classifier to a folder of recordings that nobody has labelled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from notela.bioacoustics.model import BirdClassifier
from notela.bioacoustics.prepare import Report, Settings, prepare
from notela.bioacoustics.prepared import Windows
from notela.engines import Engine
from notela.errors import NotelaError
from notela.evaluation import pick_device, predict
from notela.lock import only_one
from notela.loop import Result, adapt
from notela.methods import resolve


@dataclass(frozen=True)
class Adapted:
    """The adapted classifier, what happened, and the scores (windows, kept classes) before and after."""

    result: Result
    report: Report
    before: Tensor
    after: Tensor

    @property
    def model(self) -> BirdClassifier:
        """An adapted copy; the original is untouched."""
        assert isinstance(self.result.model, BirdClassifier)
        return self.result.model


def adapt_to_recordings(
    model: BirdClassifier,
    folder: Path,
    run_dir: Path,
    engine: Engine,
    *,
    method: Any = "auto",
    classes: Sequence[int] | None = None,
    most: int = 200,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> Adapted:
    """Windows around the strongest peaks of each recording (paper, appendix C), then `notela.adapt` on all of them.

    `run_dir` keeps the windows and the run: the same call again goes on where an earlier one stopped.
    """
    check_method(method)  # better known before the windows are cut
    pick_device(settings.get("device"))  # likewise
    cutting = Settings(seconds=model.window, most=most)
    with only_one(run_dir):
        report = prepare(folder, run_dir / "windows", engine, settings=cutting, progress=progress)
        natural = model.peak is None  # as `predict` gives them to such a model
        windows = DataLoader(Windows(report.prepared, report.prepared.rows(), natural), batch_size=64)
        kept = None if classes is None else list(classes)
        result = adapt(
            model, windows, task="multilabel", method=method, classes=kept, run_dir=run_dir / "adaptation", **settings
        )
        scores = [
            predict(one, windows, task="multilabel", classes=kept, device=settings.get("device"))
            for one in (model, result.model)
        ]
    return Adapted(result, report, *scores)


def check_method(method: Any) -> None:
    """Refuse a method that there is not, and one that leaves the classifier as it is."""
    chosen = resolve(method, "multilabel").method
    if chosen.corrects:
        raise NotelaError(
            f"method={chosen.name!r} corrects predictions and leaves the classifier as it is, so there would be "
            "nothing to save; choose another such as 'notela', or use "
            f"notela.predict(..., method={chosen.name!r}) in Python"
        )
