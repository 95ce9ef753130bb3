"""The command line: thin, and quick to answer, so heavy imports stay inside the commands."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import notela
from notela.bioacoustics import cli as recordings
from notela.errors import NotelaError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class EngineName(StrEnum):
    """Where runs run."""

    local = "local"
    ray = "ray"


def main() -> None:
    """The entry point: a user's mistake is one sentence, not a traceback."""
    try:
        app()
    except NotelaError as error:
        typer.echo(f"notela: {error}", err=True)
        raise SystemExit(2) from None


def _named(option: str) -> tuple[str, str]:
    name, separator, value = option.partition("=")
    if not separator or not name:
        raise NotelaError(f"{option!r} is not of the form NAME=VALUE")
    return name, value


def _version(wanted: bool) -> None:
    if wanted:
        print(f"notela {notela.__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Adapt a trained classifier to a new place with unlabelled data alone.

    Examples:

      notela demo            all eight methods on the soundscapes of a made-up wood, in minutes

      notela bench digits    compare them fairly: search, selection, seeds, tables, figures

      notela predict birds.safetensors recordings --to found        detections in a folder of recordings

      notela adapt birds.safetensors recordings --to adapted.safetensors
    """


@app.command()
def demo(
    seed: Annotated[int, typer.Option(min=0, help="Draws the runs' batches and noise.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer recordings and epochs.")] = False,
) -> None:
    """Adapt a bird classifier to the soundscapes of a made-up wood with all eight methods, print a table.

    Minutes on two cores; nothing is downloaded.
    """
    from notela.demo import run

    run(seed, quick)


@app.command()
def select(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs on the same data.")],
) -> None:
    """Rank finished runs without labels, by the signs that their verdicts read.

    A run is a `run_dir` of notela.adapt, what notela.save wrote, or the `adaptation` folder beside an adapted
    classifier.

    Example:

      notela select runs/tent runs/notela adapted.run/adaptation
    """
    from notela.ranking import show

    show(runs)


@app.command()
def bench(
    suite: Annotated[str, typer.Argument(help="A suite by name, or a TOML file of your own (docs/bench.md).")],
    to: Annotated[
        Path | None, typer.Option(help="Folder of records, tables and figures.", show_default="results/SUITE")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="The suite's folder of data and checkpoints.", metavar="FOLDER")
    ] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the suite; may be repeated.", metavar="NAME=VALUE")
    ] = None,
    trials: Annotated[
        str | None,
        typer.Option(
            help="Points of each method's grid to try: a number, 'all', or 'none' for the published settings.",
            metavar="NUMBER|all|none",
            show_default="24, or none where there are no validation domains",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of what was chosen, for the intervals.", show_default="the suite's")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Instead of the paper's eight: tent,notela,auto,supervised.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--with", help="Change a setting of every run; may be repeated.", metavar="NAME=VALUE|NAME=xTIMES"
        ),
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="Processes of this machine, or a Ray cluster.")] = EngineName.local,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Local: runs at a time.", show_default="one for every --cpus cores")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray: the cluster's address; 'auto' finds it.", show_default="this machine alone")
    ] = None,
    cpus: Annotated[int, typer.Option(min=1, help="Cores, and threads, of each run.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="Ray: GPUs of each run; 0.25 lets four share one.")] = 0,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run those again that failed before.")] = False,
    tables_only: Annotated[bool, typer.Option("--tables-only", help="Run nothing; make tables from records.")] = False,
) -> None:
    """Compare methods on a suite, as the paper does: search each method's grid on the validation domains, freeze
    the best settings, run them on the test domains with several seeds, write tables and figures.

    Stop it whenever you like: the same command goes on where it stopped, and never repeats a finished run.

    Examples:

      notela bench digits

      notela bench digits-multi --trials all --workers 8

      notela bench cifar10c --data data/cifar10 --set network=resnet56 --set severity=3

      notela bench ponds.toml --to results/ponds --methods adabn,tent,notela

      notela bench digits --trials none --with learning_rate=x10 --with epochs=100

      notela bench digits --engine ray --address auto --cpus 2
    """
    from notela.bench.command import run

    chosen = dict(_named(option) for option in options or ())
    if data is not None:
        chosen["data"] = data
    run(
        suite,
        to,
        options=chosen,
        trials=trials,
        seeds=seeds,
        methods=methods,
        changes=dict(_named(change) for change in changes or ()),
        engine=engine.value,
        workers=workers,
        address=address,
        cpus=cpus,
        gpus=gpus,
        retry_failed=retry_failed,
        tables_only=tables_only,
    )


app.add_typer(recordings.app)
