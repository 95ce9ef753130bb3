"""`notela demo`: a small network that knows forty made-up birds from focal recordings meets a wood full of them (one
place of the suite `aviary`), and eight methods adapt it without labels."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from notela import methods
from notela.bench.suites import aviary
from notela.bioacoustics.aviary import DOMAINS
from notela.bioacoustics.terminal import stoppable
from notela.engines.local import Local
from notela.evaluation import Evaluator
from notela.loop import adapt

PLACE = "OAK"
# The presets were made for sets ten times as large; so few steps at their rates would hardly move anything.
RATE = 1e-3
RECORDINGS, EPOCHS = 60, 10
QUICK_RECORDINGS, QUICK_EPOCHS = 30, 5


def run(seed: int = 0, quick: bool = False, data: Path = aviary.CACHE / "demo") -> None:
    """Source model → eight methods and auto on unlabelled soundscapes → table of mAP and cmAP on held-out ones."""
    console, start = Console(), time.perf_counter()
    recordings, epochs = (QUICK_RECORDINGS, QUICK_EPOCHS) if quick else (RECORDINGS, EPOCHS)
    title = DOMAINS[PLACE].title
    folder = data / f"{recordings} recordings"
    with stoppable():
        with console.status(f"making {recordings} soundscapes of {title}, a minute each"):
            windows = aviary.soundscapes(folder, PLACE, recordings, engine=Local())
        with console.status(f"spectrograms of {len(windows)} windows of 5 s"):
            place = aviary.on_pictures(windows, folder, "multilabel")
        evaluator = Evaluator(place.test, place.test_labels, task="multilabel")
        table = Table(
            title=f"{title}: {len(place.test)} held-out windows, %",
            caption=f"no labels used; last of {epochs} epochs; multi-label presets, but rate {RATE} and batches of "
            f"{aviary.BATCH}; on so few windows some points are chance",
        )
        for column in ("method", "mAP", "change", "cmAP", "change", "seconds"):
            table.add_column(column, justify="left" if column == "method" else "right")
        for name in (*methods.PAPER, "auto"):
            began = time.perf_counter()
            with console.status(f"adapting with {name} to {len(place.adapt)} unlabelled windows"):
                result = adapt(
                    aviary.network(),
                    place.adapt,
                    task="multilabel",
                    method=name,
                    classes=place.classes,
                    learning_rate=None if name in ("adabn", "auto") else RATE,
                    batch_size=aviary.BATCH,
                    epochs=epochs,
                    seed=seed,
                    evaluator=evaluator,
                    progress=False,
                )
            assert result.source is not None
            assert result.evaluation is not None
            before, after = result.source, result.evaluation
            if not table.row_count:
                table.add_row("source", f"{100 * before['map']:.1f}", "", f"{100 * before['cmap']:.1f}", "", "")
            cells = [
                text
                for metric in ("map", "cmap")
                for text in (f"{100 * after[metric]:.1f}", f"{100 * (after[metric] - before[metric]):+.1f}")
            ]
            table.add_row(name, *cells, f"{time.perf_counter() - began:.1f}")
    console.print(table)
    told = " ".join(f"{note}." for note in result.notes)
    console.print(f"auto: {told} {result.verdict}", highlight=False, markup=False)
    console.print(f"{time.perf_counter() - start:.0f} s. The soundscapes are in {folder / PLACE}: listen to some.")
    console.print("Your own recordings: notela adapt MODEL FOLDER --to adapted.safetensors (docs/recordings.md)")
    console.print("To compare methods fairly, with their settings searched: notela bench aviary")
