"""`notela demo`: a small network that knows clean digits meets corrupted ones (one domain of the suite `digits`)."""

from __future__ import annotations

import time

from rich.console import Console
from rich.table import Table

from notela import methods
from notela.bench.suite import find
from notela.evaluation import Predict
from notela.loop import adapt

DOMAIN = "stripes"
# The presets were made for sets a hundred times as large; 100 steps at their rates would hardly move anything.
RATE, BATCH = 1e-3, 16


def run(seed: int = 0) -> None:
    """Source model → eight methods on unlabelled corrupted digits → table of accuracy on held-out ones."""
    console = Console()
    suite = find("digits")
    assert suite.source is not None
    model, clean, domain = suite.model(), suite.source(), suite.test[DOMAIN]()
    evaluator = suite.evaluator(domain)
    table = Table(
        title=f"Accuracy on held-out digits under {DOMAIN}, %",
        caption=f"no labels used; last epoch; image presets, but rate {RATE} and batches of {BATCH}; "
        f"on {len(domain.test)} digits a few points are chance",
    )
    for column in ("method", "before", "after", "change", "seconds"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name in methods.names():
        start = time.perf_counter()
        preset = methods.preset(name, "image")
        with console.status(f"adapting with {name} to {len(domain.adapt)} unlabelled digits under {DOMAIN}"):
            result = adapt(
                model,
                domain.adapt,
                task="singlelabel",
                method=preset,
                learning_rate=None if name == "adabn" else RATE,
                batch_size=BATCH,
                seed=seed,
                evaluator=evaluator,
                progress=False,
            )
        assert result.source is not None
        before, after = 100 * result.source["accuracy"], 100 * result.history[-1]["evaluation"]["accuracy"]
        seconds = time.perf_counter() - start
        table.add_row(name, f"{before:.1f}", f"{after:.1f}", f"{after - before:+.1f}", f"{seconds:.1f}")
    at_home = 100 * suite.evaluator(clean)(Predict(model))["accuracy"]
    console.print(f"The network scores {at_home:.1f} % on clean held-out digits.")
    console.print(table)
    console.print("In your own code: notela.adapt(model, data, task='singlelabel').model")
    console.print("To compare methods fairly, with their settings searched: notela bench digits")
