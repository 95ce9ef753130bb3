"""The command line: thin, and quick to answer, so heavy imports stay inside the commands."""

from __future__ import annotations

from typing import Annotated

import typer

import notela

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"notela {notela.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Adapt a trained classifier to a new place with unlabelled data alone.

    Examples:

      notela demo            all eight methods on corrupted digits, in under a minute

      notela demo --seed 3   the same with another seed
    """


@app.command()
def demo(seed: Annotated[int, typer.Option(min=0, help="Draws the noise, the split and the runs.")] = 0) -> None:
    """Train a small network on real digits, corrupt them, adapt with all eight methods, print a table."""
    from notela.demo import run

    run(seed)
