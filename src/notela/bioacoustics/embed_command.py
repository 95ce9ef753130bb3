"""`notela embed`, and `train`, `adapt`, `predict` on what it wrote: a head on embeddings instead of a whole model."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from notela.bioacoustics import brought, detections, embeddings, head, model
from notela.bioacoustics.adapt import check_method
from notela.bioacoustics.annotations import Box
from notela.bioacoustics.birdnet import LICENCE, NAME, BirdNet
from notela.bioacoustics.embed import Embedder, OfClassifier
from notela.bioacoustics.embed import embed as embed_all
from notela.bioacoustics.terminal import (
    LISTEN,
    bar,
    check_new_model,
    classes_of,
    show_counts,
    show_history,
    stoppable,
    tell_failures,
    tell_verdict,
)
from notela.bioacoustics.train import Settings
from notela.errors import NotelaError
from notela.evaluation import predict as scores_of
from notela.lock import only_one
from notela.loop import adapt as adapt_model


def embed(source: str, folder: Path, to: Path, *, step: float | None, device: str | None) -> None:
    """Recordings, or a prepared set → embeddings and logits; or those of another program → the same form."""
    console, start = Console(), time.monotonic()
    if folder.suffix.lower() == ".npy":
        raise NotelaError(
            f"{folder} is an array alone; write np.savez('{folder.stem}.npz', embeddings=...), with its places"
        )
    if folder.suffix.lower() in brought.ENDINGS and not folder.is_dir():
        _bring(console, source, folder, to, step)
        return
    embedder: Embedder
    if source == NAME:
        console.print(LICENCE, highlight=False)
        embedder = birdnet = BirdNet()
        own = head.own_head(*birdnet.last_layer(), birdnet.outputs, birdnet.identity)
    else:
        classifier = model.load(source)
        embedder = OfClassifier(classifier, device)
        last = classifier.heads["species"]
        assert isinstance(last, torch.nn.Linear)
        weights, bias = last.weight.detach().cpu().numpy(), last.bias.detach().cpu().numpy()
        own = head.own_head(weights, bias, classifier.classes, embedder.identity)
    with stoppable(), bar("recordings") as show:

        def told(done: int, total: int, windows: int) -> None:
            show(done, total, f"recordings ({windows:,} windows)")

        report = embed_all(embedder, folder, to, step=step, progress=told)
    head.save(own, to / "head.safetensors")
    tell_failures(console, report.failures, to / "failures.csv")
    console.print(
        f"{len(report.embedded):,} windows of {report.recordings:,} recordings ({report.done_before:,} were done "
        f"before), {embedder.dimensions:,} numbers and {len(embedder.outputs):,} logits each, are in {to}; its "
        f"head.safetensors is the model's own last layer, for predict and adapt ({time.monotonic() - start:.0f} s)",
        highlight=False,
    )


def _bring(console: Console, model: str, file: Path, to: Path, step: float | None) -> None:
    if step is not None:
        raise NotelaError(f"step={step:g} is for recordings; the windows of {file} are cut already")
    with console.status(f"reading {file}"):
        data, own, names = brought.bring(file, to, model)
        if own is not None:
            head.save(own, to / "head.safetensors")
    if data.classes:
        console.print(names.summary(), highlight=False, markup=False)
    has = "; its head.safetensors is the model's own last layer, for predict and adapt" if own is not None else ""
    console.print(
        f"{len(data):,} windows of {len(set(data.table['recording'])):,} recordings, {data.manifest['dimensions']:,} "
        f"numbers each, {'with' if data.classes else 'without'} labels, are in {to} as embeddings of {model}{has}",
        highlight=False,
    )


def is_embedded(folder: Path) -> bool:
    """Whether a folder is one that `notela embed` wrote."""
    return (folder / "embeddings.npy").exists() and (folder / "manifest.json").exists()


def train(data: Path, to: Path, settings: Settings) -> None:
    """Labelled embeddings → a head."""
    console, start = Console(), time.monotonic()
    check_new_model(to, "head.safetensors")
    names = ("epochs", "patience", "batch_size", "learning_rate", "weight_decay", "seed")
    trained, history, best = head.train_head(embeddings.read(data), **{name: getattr(settings, name) for name in names})
    head.save(trained, to)
    show_history(console, to, history, best)
    console.print(
        f"{len(trained.classes)} species; epoch {best} was best and is in {to} ({time.monotonic() - start:.0f} s)",
        highlight=False,
    )


def predict(
    source: str, folder: Path, to: Path, *, format: str, threshold: float, species: Path | None, strict: bool
) -> None:
    """A head and embeddings → detections."""
    console = Console()
    classifier, data = head.load(source), embeddings.read(folder)
    classifier.check(data)
    classes = classes_of(console, classifier.classes, species, strict)
    kept = list(range(len(classifier.classes))) if classes is None else classes
    x = torch.from_numpy(np.array(data.embeddings))
    scores = scores_of(classifier, x, task="multilabel", classes=kept, batch_size=1024).numpy()
    codes = [classifier.classes[c].code for c in kept]
    named = {one.code: one for one in classifier.classes}
    with only_one(to):
        recordings, root = dict.fromkeys(data.table["recording"]), data.manifest.get("root")
        ends = dict(zip(data.table["recording"], data.table["end"], strict=True))  # of several the last
        if format in detections.COMBINED:
            boxes = data.boxes(scores, codes, threshold)
            detections.write(boxes, to / detections.COMBINED[format], format, species=named, durations=ends, root=root)
        own = detections.tables_for(recordings, format)
        by_recording: dict[str, list[Box]] = {name: [] for name in recordings}
        counts: Counter[str] = Counter()
        for box in data.boxes(scores, codes, threshold):
            by_recording[box.recording].append(box)
            counts[box.label] += 1
        for name, mine in by_recording.items():
            detections.write(mine, to / "recordings" / own[name], format, species=named, root=root)
    show_counts(console, threshold, len(data), [(named[code], n) for code, n in counts.most_common()])
    console.print(
        f"{counts.total():,} detections of {len(counts)} species in {len(data):,} windows of {len(recordings):,} "
        f"recordings: {to}\nScores are not probabilities, and a threshold does not travel from one place to another.",
        highlight=False,
    )


def adapt(
    source: str,
    folder: Path,
    to: Path,
    *,
    method: str,
    species: Path | None,
    epochs: int | None,
    seed: int,
    threshold: float,
    strict: bool,
    device: str | None,
) -> None:
    """A head and embeddings without labels → an adapted head."""
    console, start = Console(), time.monotonic()
    check_new_model(to, "adapted.safetensors", Path(source))
    check_method(method)
    classifier, data = head.load(source), embeddings.read(folder)
    classifier.check(data)
    classes = classes_of(console, classifier.classes, species, strict)
    x = torch.from_numpy(np.array(data.embeddings))
    run_dir = to.with_suffix(".run")
    with stoppable(), only_one(run_dir):
        result = adapt_model(
            classifier,
            x,
            task="multilabel",
            method=method,
            classes=classes,
            epochs=epochs,
            seed=seed,
            device=device,
            run_dir=run_dir / "adaptation",
        )
    assert isinstance(result.model, head.Head)
    head.save(result.model, to, made_by=result.description)
    kept = list(range(len(classifier.classes))) if classes is None else classes
    before, after = (
        (scores_of(one, x, task="multilabel", classes=kept, batch_size=1024) >= threshold).sum(0).tolist()
        for one in (classifier, result.model)
    )
    rows = [(classifier.classes[c], *pair) for c, *pair in zip(kept, before, after, strict=True)]
    show_counts(console, threshold, len(data), sorted(rows, key=lambda row: -max(row[1:])), ("before", "after"))
    tell_verdict(console, result)
    console.print(f"The adapted head is {to} ({time.monotonic() - start:.0f} s). {LISTEN}", highlight=False)


def check_pair(source: str, folder: Path) -> bool:
    """Whether a command is about a head and embeddings; one of them without the other is a mistake."""
    on_head, on_store = Path(source).is_file() and head.is_head(source), is_embedded(folder)
    if on_head and not on_store:
        raise NotelaError(
            f"{source} is a head on embeddings, and {folder} holds none; write them with `notela embed MODEL {folder}`"
        )
    if on_store and not on_head:
        raise NotelaError(
            f"{folder} holds embeddings, and {source} is no head on them; take {folder / 'head.safetensors'}, or train "
            "one"
        )
    return on_head
