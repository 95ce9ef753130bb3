"""The commands on recordings: thin, as `notela.cli`, so heavy imports stay inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from notela.errors import NotelaError

app = typer.Typer()


@app.command()
def prepare(
    folder: Annotated[Path, typer.Argument(help="Recordings; sub-folders too.")],
    to: Annotated[Path, typer.Option(help="Folder of the prepared data set.")],
    focal: Annotated[
        bool, typer.Option("--focal", help="Folders name the species: Turdus_merula/XC123.mp3; 6-s windows, at most 5.")
    ] = False,
    annotations: Annotated[
        Path | None, typer.Option(help="Boxes: a table, or a folder of them (Raven, Audacity, CSV, Parquet).")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="The annotations' format.", show_default="found from its content")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Columns of a CSV: recording=path,start=start_s,end=end_s,label=species", metavar="MAP"),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="FOLDER is a target set: SSW, SNE, UHH, POW, HSN, NES, PER, Caples.", metavar="NAME"),
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="peaks (the paper's), tiles-5s (BirdSet's) or such as tiles-3s-every-1.5s.")
    ] = "peaks",
    seconds: Annotated[
        float | None, typer.Option(help="Length of windows around peaks.", show_default="5, focal 6")
    ] = None,
    most: Annotated[
        int | None, typer.Option(min=1, help="Windows of a recording.", show_default="200, focal 5")
    ] = None,
    storage: Annotated[str, typer.Option(help="float16 (quick) or flac (small).")] = "float16",
    single_label: Annotated[
        bool, typer.Option("--single-label", help="Windows with exactly one species only.")
    ] = False,
    split: Annotated[str, typer.Option(help="by-recording, or by-window as published.")] = "by-recording",
    species: Annotated[
        Path | None, typer.Option(help="Species list, one a line, or a CSV taxonomy of your own: the classes.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse names that match no species.")] = False,
    about: Annotated[Path | None, typer.Option(help="CSV about the recordings: source, licence, group.")] = None,
    about_columns: Annotated[
        str | None, typer.Option(help="Its columns: recording=path,licence=licence,group=xc_id", metavar="MAP")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="one a core")] = None,
) -> None:
    """Recordings to windows: a data set to train on, adapt to or test with.

    A file that cannot be used is listed with its reason, and the rest goes on. Running again does what is missing.

    Examples:

      notela prepare xeno-canto --to focal --focal

      notela prepare SSW --to ssw --target SSW

      notela prepare site1 --to windows --annotations boxes.csv --columns recording=file,start=t0,end=t1,label=species
    """
    from notela.bioacoustics import command

    command.prepare(
        folder,
        to,
        focal=focal,
        table=annotations,
        table_format=format,
        columns=_map("--columns", columns),
        target=target,
        protocol=protocol,
        seconds=seconds,
        most=most,
        storage=storage,
        single_label=single_label,
        split=split,
        species=species,
        strict=strict,
        about=about,
        about_columns=_map("--about-columns", about_columns),
        workers=workers,
    )


@app.command()
def train(
    data: Annotated[Path, typer.Argument(help="A prepared data set with labels.")],
    to: Annotated[Path, typer.Option(help="The classifier's file, such as birds.safetensors.")],
    network: Annotated[str, typer.Option(help="small (for CPUs) or efficientnet.")] = "small",
    front_end: Annotated[str, typer.Option(help="gabor (learnable, PCEN) or logmel.")] = "gabor",
    noise: Annotated[Path | None, typer.Option(help="Folder of background sounds to mix in.")] = None,
    start: Annotated[
        str | None, typer.Option(help="A classifier of other birds to start from; its species are forgotten.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="At most.")] = 40,
    patience: Annotated[int, typer.Option(min=1, help="Epochs without a better score before it ends.")] = 8,
    learning_rate: Annotated[float, typer.Option(min=0, help="Of AdamW, falling along a cosine.")] = 1e-3,
    batch_size: Annotated[int, typer.Option(min=2, help="Windows a step.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Draws weights, order, crops and mixtures.")] = 0,
    device: Annotated[
        str | None, typer.Option(help="cuda, mps or cpu.", show_default="the best there is", metavar="NAME")
    ] = None,
) -> None:
    """Train a source classifier on prepared recordings; held-out recordings say when to stop.

    Stop it whenever you like: the same command goes on where it stopped.

    Example:

      notela train focal --to birds.safetensors --noise backgrounds
    """
    from notela.bioacoustics import command, embed_command
    from notela.bioacoustics.train import Settings

    settings = Settings(
        network=network,
        front_end=front_end,
        epochs=epochs,
        patience=patience,
        learning_rate=learning_rate,
        batch_size=batch_size,
        seed=seed,
    )
    if embed_command.is_embedded(data):
        for option, given in (("--noise", noise), ("--start", start)):
            if given is not None:
                raise NotelaError(f"{option} is for windows of sound, and {data} holds embeddings; leave it out")
        embed_command.train(data, to, settings)
    else:
        command.train(data, to, settings, noise=noise, start=start, device=device)


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help="A classifier's file, or a folder or hub id of a BirdSet EfficientNet.")],
    folder: Annotated[Path, typer.Argument(help="Recordings; sub-folders too.")],
    to: Annotated[Path, typer.Option(help="Folder of the tables.")],
    format: Annotated[str, typer.Option(help="csv, raven, audacity, kaleidoscope or parquet.")] = "csv",
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Least score of a detection.")] = 0.5,
    species: Annotated[Path | None, typer.Option(help="Species that can occur, one a line.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse names in the list that the model lacks.")] = False,
    device: Annotated[
        str | None, typer.Option(help="cuda, mps or cpu.", show_default="the best there is", metavar="NAME")
    ] = None,
) -> None:
    """Detections in a folder of recordings, in the tables that your tools open.

    Stop it whenever you like: the same command goes on where it stopped.

    Example:

      notela predict birds.safetensors recordings --to found --format raven --species list.txt
    """
    from notela.bioacoustics import command, embed_command

    if embed_command.check_pair(model, folder):
        embed_command.predict(model, folder, to, format=format, threshold=threshold, species=species, strict=strict)
    else:
        command.predict(
            model, folder, to, format=format, threshold=threshold, species=species, strict=strict, device=device
        )


@app.command()
def adapt(
    model: Annotated[str, typer.Argument(help="A classifier's file, or a folder or hub id of a BirdSet EfficientNet.")],
    folder: Annotated[Path, typer.Argument(help="Recordings of the new place, without labels.")],
    to: Annotated[Path, typer.Option(help="The adapted classifier's file, such as adapted.safetensors.")],
    method: Annotated[
        str,
        typer.Option(
            help="auto decides from the recordings what to keep, if anything, and says why; or notela, tent, ..."
        ),
    ] = "auto",
    species: Annotated[Path | None, typer.Option(help="Species that can occur there, one a line.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse names in the list that the model lacks.")] = False,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the windows.", show_default="10")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws batches and noise.")] = 0,
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Of the counts before and after.")] = 0.5,
    device: Annotated[
        str | None, typer.Option(help="cuda, mps or cpu.", show_default="the best there is", metavar="NAME")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that read.", show_default="one a core")] = None,
) -> None:
    """Adapt a bird classifier to recordings of a new place that nobody has labelled.

    Stop it whenever you like: the same command goes on where it stopped.

    Example:

      notela adapt birds.safetensors recordings --to adapted.safetensors --species list.txt
    """
    from notela.bioacoustics import command, embed_command

    rest = {"method": method, "species": species, "epochs": epochs, "seed": seed, "threshold": threshold}
    if embed_command.check_pair(model, folder):
        embed_command.adapt(model, folder, to, strict=strict, device=device, **rest)  # type: ignore[arg-type]
    else:
        command.adapt(model, folder, to, strict=strict, device=device, workers=workers, **rest)  # type: ignore[arg-type]


@app.command()
def embed(
    model: Annotated[str, typer.Argument(help="birdnet, a classifier's file, or a BirdSet EfficientNet.")],
    folder: Annotated[
        Path, typer.Argument(help="Recordings, a prepared data set, or embeddings of another model (.npz, .parquet).")
    ],
    to: Annotated[Path, typer.Option(help="Folder of the embeddings.")],
    step: Annotated[
        float | None, typer.Option(help="Seconds between windows.", show_default="the model's window")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cuda, mps or cpu.", show_default="the best there is", metavar="NAME")
    ] = None,
) -> None:
    """Embeddings and logits of a model that cannot be trained, or is too large to be; train, adapt and predict then
    work on a head on top of them, in seconds.

    Stop it whenever you like: the same command goes on where it stopped.

    Examples:

      notela embed birdnet recordings --to site1

      notela adapt site1/head.safetensors site1 --to adapted.safetensors --species list.txt

      notela embed perch site2.npz --to site2
    """
    from notela.bioacoustics import embed_command

    embed_command.embed(model, folder, to, step=step, device=device)


data_app = typer.Typer(no_args_is_help=True, help="Recordings that others published.")
app.add_typer(data_app, name="data")


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="SSW, SNE, UHH, POW, HSN, NES or PER.")],
    to: Annotated[Path, typer.Option(help="A folder NAME is made in it, or completed.")],
) -> None:
    """Download a target set from its public record, checked and resumable, or complete and verify what is there.

    Example:

      notela data fetch HSN --to data
    """
    from notela.bioacoustics import data_command

    data_command.fetch(name, to)


@data_app.command()
def verify(
    name: Annotated[str, typer.Argument(help="SSW, SNE, UHH, POW, HSN, NES, PER or Caples.")],
    folder: Annotated[Path, typer.Argument(help="A folder that you already have.")],
) -> None:
    """Compare a folder with what was published: files, checksums, numbers of recordings, boxes and species.

    The exit code is 1 where they differ.
    """
    from notela.bioacoustics import data_command

    data_command.verify(name, folder)


@data_app.command()
def xeno_canto(
    to: Annotated[Path, typer.Option(help="Folder of the recordings: Turdus_merula/XC123.mp3, ... and manifest.csv.")],
    names: Annotated[
        list[str] | None, typer.Argument(help="Species: scientific or common names, eBird codes.", show_default=False)
    ] = None,
    species: Annotated[Path | None, typer.Option(help="Species list, one a line.", metavar="LIST")] = None,
    most: Annotated[
        int | None, typer.Option(min=1, help="Recordings of a species.", show_default="all that there are")
    ] = None,
    quality: Annotated[
        str | None, typer.Option(help="A (best) to E; those named first are taken first.", metavar="A,B")
    ] = None,
    length: Annotated[str | None, typer.Option(help="Seconds: 5-60, <60 or >5.", metavar="RANGE")] = None,
    country: Annotated[str | None, typer.Option(help="Where they were recorded, in English.")] = None,
    licence: Annotated[
        str | None, typer.Option(help="Conditions of Creative Commons, such as BY-NC-SA; or CC0.", metavar="CODES")
    ] = None,
) -> None:
    """Focal recordings of species from Xeno-canto, with the licence of each; your key comes from XENO_CANTO_KEY.

    Stop it whenever you like: the same command fetches what is missing.

    Examples:

      notela data xeno-canto "Turdus merula" "Parus major" --to recordings --most 30 --quality A,B --length 5-60

      notela data xeno-canto --species list.txt --to recordings --most 100 --country Spain
    """
    from notela.bioacoustics import data_command

    data_command.fetch_focal(
        names or (),
        to,
        species=species,
        most=most,
        quality=quality,
        length=length,
        country=country,
        licence=licence,
    )


def _map(option: str, given: str | None) -> dict[str, str]:
    """ "a=b,c=d" as a dictionary."""
    pairs = [part.partition("=") for part in given.split(",")] if given else []
    for name, separator, value in pairs:
        if not (name and separator and value):
            raise NotelaError(f"{option} {given} is not of the form recording=path,start=start_s")
    return {name.strip(): value.strip() for name, _, value in pairs}
