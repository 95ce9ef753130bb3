"""Real birds: a classifier of twenty European species, trained on focal recordings, meets noise and soundscapes.

    python benchmarks/real_birds.py ../shared/data --work runs/real-birds          # everything; stop it at will
    python benchmarks/real_birds.py ../shared/data --work runs/real-birds --only head

The folder holds `birds/focal`, `birds/soundscapes`, `birds/annotations.csv`, `birds/manifest.csv` and `noise`. Sources:

network   the small network, end to end, on windows of 5 s, with half of the noises for augmentation; it starts from the
          network that was trained on the aviary
scratch   the same from random weights
head      a head on BirdNET's embeddings of windows of 3 s (needs `notela[birdnet]`)
birdnet   BirdNET's own last layer on the same embeddings, cut to the twenty species

Targets: a fifth of the focal recordings (by `xc_id`; no source hears them or is stopped by them), mixed with the other
half of the noises at 0 and -5 dB; and the NIPS4B soundscapes, clips held out (75 / 25), or all of them. Settings are
the published ones for sound (`WORK/SOURCE.toml`); with `--search`, those that do best on the recordings in noise, where
labels come for nothing, tested on the soundscapes (`WORK/SOURCE-searched.toml`). This starts `notela bench` on these
files, with tables in `results/real-birds-SOURCE` and `results/real-birds-SOURCE-searched`. With `--clips`, every
quarter of the soundscapes' clips is held out once (`WORK/SOURCE-clips.toml`), with methods beyond the paper and the
ceiling: tables in `results/beyond/real-birds-SOURCE`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from notela import metrics
from notela.bench.suites import aviary
from notela.bioacoustics import birdnet, head
from notela.bioacoustics import model as models
from notela.bioacoustics.about import read as read_about
from notela.bioacoustics.annotations import read as read_annotations
from notela.bioacoustics.audio import SAMPLE_RATE, find_recordings
from notela.bioacoustics.embed import embed
from notela.bioacoustics.prepare import Settings, prepare
from notela.bioacoustics.prepared import Prepared
from notela.bioacoustics.train import Settings as Training
from notela.bioacoustics.train import read_noise, train
from notela.engines.local import Local
from notela.stable import stable_share

TARGET = 0.2  # of the focal recordings
LEVELS = (0, -5)  # dB, of the bird above the noise
COLUMNS = {"recording": "path", "start": "start_s", "end": "end_s", "label": "species"}
SOURCES = ("head", "birdnet", "network", "scratch")
BEYOND = "adabn,tent,shot,pseudo_label,dust,nrc,dropout_student,notela,centred,auto,supervised"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("runs/real-birds"))
    parser.add_argument("--only", choices=SOURCES, action="append", help="some of the sources; may be repeated")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--search", action="store_true", help="search settings on the recordings in noise")
    parser.add_argument("--clips", action="store_true", help="hold every quarter of the soundscapes out once")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    halves = noises(given.data / "noise", given.work)
    for source in given.only or SOURCES:
        seconds = 3.0 if source in ("head", "birdnet") else 5.0
        sets = targets(given.data, given.work, seconds, halves["target"])
        if source in ("head", "birdnet"):
            make_head(source, given.work, sets)
        else:
            make_network(source, given.work, sets, halves["training"])
        name = f"{source}-searched" if given.search else f"{source}-clips" if given.clips else source
        folder = Path("results") / (f"beyond/real-birds-{source}" if given.clips else f"real-birds-{name}")
        command = [sys.executable, "-m", "notela", "bench", given.work / f"{name}.toml", "--to", folder]
        command += ["--trials", "none", "--methods", BEYOND] if given.clips else []
        subprocess.run([*map(str, command), "--seeds", str(given.seeds)], check=True)


def noises(folder: Path, work: Path) -> dict[str, Path]:
    """Links to two halves of the noises: what training hears, and what targets are mixed with."""
    halves = {"training": work / "noise-training", "target": work / "noise-target"}
    paths, _ = find_recordings(folder)
    for path, share in zip(paths, stable_share(path.name for path in paths), strict=True):
        link(path, halves["training" if share < 0.5 else "target"])
    return halves


def focal_parts(birds: Path, work: Path) -> dict[str, Path]:
    """Links to the focal recordings that sources are trained on, and to those that targets are made of."""
    parts = {"source": work / "focal-source", "target": work / "focal-target"}
    with open(birds / "manifest.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["domain"] == "focal"]
    for row, share in zip(rows, stable_share(f"target {row['xc_id']}" for row in rows), strict=True):
        path = birds.parent / row["path"]
        link(path, parts["target" if share < TARGET else "source"] / path.parent.name)
    return parts


def link(path: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / path.name).exists():
        (folder / path.name).symlink_to(path.resolve())


def targets(data: Path, work: Path, seconds: float, noise: Path) -> dict[str, Prepared]:
    """Windows to train on, and those of each target."""
    birds, sets = data / "birds", {}
    parts = focal_parts(birds, work)
    species = sorted(folder.name.replace("_", " ") for folder in (birds / "focal").iterdir())
    about = read_about(birds / "manifest.csv", {"recording": "path", "licence": "licence", "group": "xc_id"})
    longer = Settings(seconds=seconds if seconds == 3 else 6.0, most=5)
    sets["focal"], held_out = (
        prepare(
            folder,
            work / f"{folder.name}-{seconds:g}s",
            Local(),
            focal=True,
            settings=longer,
            about=about,
            species=species,
        ).prepared
        for folder in parts.values()
    )
    tiles = Settings(protocol=f"tiles-{seconds:g}s" + ("-every-1.5s" if seconds == 3 else ""), seconds=seconds)
    for level in LEVELS:
        mixed = mix(held_out, seconds, noise, level, work / f"mixed-{seconds:g}s-{level}dB")
        to = work / f"noise-{seconds:g}s-{level}dB"
        sets[f"noise {level} dB"] = prepare(
            mixed, to, Local(), focal=True, settings=Settings(f"tiles-{seconds:g}s", seconds), species=species
        ).prepared
    boxes = read_annotations(birds / "annotations.csv", None, COLUMNS)
    sets["soundscapes"] = prepare(
        birds / "soundscapes", work / f"scapes-{seconds:g}s", Local(), boxes=boxes, species=species, settings=tiles
    ).prepared
    for name, made in sets.items():
        parts = (
            {"all": made.rows()} if name != "soundscapes" else {"all": made.rows(), "held-out clips": made.rows("test")}
        )
        for part, rows in parts.items():
            labels = made.labels(rows)
            labels = labels[labels.any(1)]
            print(
                f"{name}, {part}: {len(rows)} windows of {seconds:g} s, {len(labels)} with a species; {chance(labels)}"
            )
    return sets


def chance(labels: npt.NDArray[np.uint8], draws: int = 20) -> str:
    """What random scores get."""
    rng = np.random.default_rng(0)
    drawn = [rng.random(labels.shape) for _ in range(draws)]
    means = [100 * np.mean([metrics.BY_NAME[name](z, labels) for z in drawn]) for name in ("map", "cmap")]
    return f"random scores: mAP {means[0]:.1f}, cmAP {means[1]:.1f}"


def mix(focal: Prepared, seconds: float, noise: Path, level: float, to: Path) -> Path:
    """Windows of focal recordings in noise: the bird's power is `level` dB above the noise's, over the window.
    Written as recordings, so that they go through the same code as others."""
    backgrounds = read_noise(noise, seconds)[0].astype(np.float32)
    length = round(seconds * SAMPLE_RATE)
    species = {one.code: one.scientific.replace(" ", "_") for one in focal.classes}
    for number, row in enumerate(focal.rows().tolist()):
        (code,) = focal.table["species"][row]
        path = to / species[code] / f"{Path(focal.table['recording'][row]).stem}-{focal.table['row'][row]}.flac"
        if path.exists():
            continue
        sound = focal.samples(row)
        start = (len(sound) - length) // 2
        bird = sound[start : start + length]
        background = backgrounds[np.random.default_rng((0, number)).integers(len(backgrounds))]
        power = [float(np.square(one).mean()) for one in (bird, background)]
        mixture = bird + background * np.sqrt(power[0] / power[1] / 10 ** (level / 10))
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".part")
        soundfile.write(aside, 0.9 * mixture / np.abs(mixture).max(), SAMPLE_RATE, format="FLAC", subtype="PCM_16")
        os.replace(aside, path)
    return to


def make_network(source: str, work: Path, sets: dict[str, Prepared], noise: Path) -> None:
    """The small network and the TOML file of its comparison."""
    weights = work / f"{source}.safetensors"
    if not weights.exists():
        settings = Training(epochs=60, patience=12)
        start = aviary.classifier() if source == "network" else None
        run = work / f"{source}.training"
        trained = train(
            sets["focal"], run, settings, noise=read_noise(noise, settings.window)[0], start=start, progress=told
        )
        models.save(trained.model, weights)
        (work / f"{source}.json").write_text(json.dumps(trained.history[trained.best - 1]))
        print(f"{source}: {trained.history[trained.best - 1]}")
    write_toml(source, work, {name: made.folder.name for name, made in sets.items() if name != "focal"})


def told(epoch: int, done: int, total: int, loss: float) -> None:
    if done == total:
        print(f"epoch {epoch}, loss {loss:.4f}", flush=True)


def make_head(source: str, work: Path, sets: dict[str, Prepared]) -> None:
    """A head on BirdNET's embeddings, trained or its own, and the TOML file of its comparison."""
    listener = birdnet.BirdNet()
    stores = {name: embed(listener, made.folder, work / f"{made.folder.name}.embedded") for name, made in sets.items()}
    if source == "birdnet":
        weights, bias = listener.last_layer()
        codes = {one.scientific: i for i, one in enumerate(listener.outputs)}
        kept = [codes[one.scientific] for one in sets["focal"].classes]
        own = head.own_head(weights[kept], bias[kept], sets["focal"].classes, listener.identity)
        head.save(own, work / "birdnet.safetensors")
    else:
        trained, history, best = head.train_head(stores["focal"].embedded)
        head.save(trained, work / "head.safetensors")
        (work / "head.json").write_text(json.dumps(history[best - 1]))
        print(f"head: {history[best - 1]}")
    write_toml(source, work, {name: one.embedded.folder.name for name, one in stores.items() if name != "focal"})


def write_toml(source: str, work: Path, folders: dict[str, str]) -> None:
    """With published settings on all targets; and with settings that are searched where labels come for nothing, on
    focal recordings in noise, and tested on the soundscapes."""
    start = ['task = "multilabel"', f'model = "{source}.safetensors"', "score_empty = false", ""]
    noisy = {name: folder for name, folder in folders.items() if name != "soundscapes"}
    lines = [f'name = "real-birds-{source}"', *start, "[test]"]
    lines += [f'"{name}" = {{folder = "{folder}", held_out = false}}' for name, folder in noisy.items()]
    lines += [f'soundscapes = "{folders["soundscapes"]}"']
    lines += [f'"all soundscapes" = {{folder = "{folders["soundscapes"]}", held_out = false}}']
    (work / f"{source}.toml").write_text("\n".join(lines) + "\n")
    lines = [f'name = "real-birds-{source}-searched"', *start, "[validation]"]
    lines += [f'"{name}" = "{folder}"' for name, folder in noisy.items()]
    lines += ["", "[test]", f'soundscapes = "{folders["soundscapes"]}"']
    (work / f"{source}-searched.toml").write_text("\n".join(lines) + "\n")
    lines = [f'name = "real-birds-{source}-clips"', *start, "[test]"]
    lines += [f'"{name}" = {{folder = "{folder}", held_out = false}}' for name, folder in noisy.items()]
    lines += [f'"clips {i}" = {{folder = "{folders["soundscapes"]}", held_out = "{i}/4"}}' for i in (1, 2, 3, 4)]
    (work / f"{source}-clips.toml").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
