"""Speed and memory, each against a plain double in the same run: `make bench`.

    python benchmarks/run.py                # all six
    python benchmarks/run.py graph refresh epoch harness trial images

graph    neighbours + mutual graph + teacher step, N = 20,000, d = 1,280, C = 100, against dense N × N torch
refresh  one per-iteration refresh of NOTELA (batch 64, N = 10,000) against rebuilding the dense graph
epoch    one NOTELA epoch against one inference pass plus one training pass of the same network
harness  runs of `notela bench digits` by one worker process, with records, against the same runs in a bare loop (wall
         time, turn by turn; the worker's start is given apart)
trial    CPU-seconds for each example of one NOTELA epoch: CIFAR's ResNet-20, and EfficientNet-B1 on 5-s spectrograms
images   ResNet-20 in channels-last layout against the plain one; reading ahead in another process against reading in
         turn (600 JPEGs of 500×375 pixels, one thread of computing); wall time, turn by turn

Times are CPU-seconds of all threads; memory is the peak of the resident set above what the inputs take. Every case runs
in a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import notela
from notela.bench import files, plan, runner
from notela.bench.progress import Progress
from notela.bench.suite import Loaded, find
from notela.classifier import Output
from notela.engines.local import Local
from notela.evaluation import Predict
from notela.graph import mutual_affinity, neighbours
from notela.methods import NOTELA, Preset
from notela.methods.notela import teacher_step
from notela.task import cross_entropy, probabilities, votes
from notela.vision.networks import CifarResNet
from notela.vision.preprocessing import IMAGENET_MEAN, IMAGENET_STD, read_image

AUTHORS = {"graph": {"cpu_s": 16.7, "peak_gb": 3.1}, "refresh": {"cpu_s": 2.8}}  # measured on their released code


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_kb(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def measure(work: Callable[[], Any]) -> dict[str, float]:
    """CPU-seconds and peak memory above the present, in GB."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before, start = resident_kb("VmRSS"), cpu_seconds()
    work()
    return {"cpu_s": cpu_seconds() - start, "peak_gb": (resident_kb("VmHWM") - before) / 1e6}


def embeddings(n: int, d: int, structured: bool = True) -> Tensor:
    """Rectified features of 100 overlapping classes with a decaying spectrum; or, as the worst case, pure noise."""
    g = torch.Generator().manual_seed(0)
    if not structured:
        return torch.randn(n, d, generator=g)
    spectrum = torch.arange(1, 201) ** -0.5
    centres = torch.randn(100, 200, generator=g) * spectrum * 1.5
    latent = centres[torch.randint(0, 100, (n,), generator=g)] + torch.randn(n, 200, generator=g) * spectrum
    features = latent @ torch.randn(200, d, generator=g) / 14
    return torch.relu(features.add_(torch.randn(n, d, generator=g), alpha=0.05))


# ---- graph


def ours_graph(features: Tensor, logits: Tensor, k: int = 15) -> Tensor:
    return teacher_step(logits, mutual_affinity(features, k), "multilabel", alpha=1.0, lambda_=1.0)


def dense_graph(features: Tensor, logits: Tensor, k: int = 15) -> Tensor:
    distance = torch.cdist(features, features).fill_diagonal_(torch.inf)
    listed = torch.zeros_like(distance).scatter_(1, distance.topk(k, largest=False).indices, 1.0)
    affinity = listed * listed.T
    affinity /= affinity.sum(1, keepdim=True).clamp(min=1)
    return (logits + affinity @ votes(probabilities(logits, "multilabel"), "multilabel")).sigmoid()


def graph(variant: str) -> dict[str, Any]:
    structured = not variant.endswith("noise")
    features, logits = embeddings(20_000, 1_280, structured), torch.randn(20_000, 100) - 2
    work = dense_graph if variant.startswith("dense") else ours_graph
    work(features[:500], logits[:500])  # thread pools and libraries
    result: dict[str, Any] = measure(lambda: work(features, logits))
    if variant == "ours":
        rows = torch.arange(0, 20_000, 20)
        exact = torch.cdist(features[rows], features)
        exact[torch.arange(len(rows)), rows] = torch.inf
        exact = exact.topk(15, largest=False).indices
        found = neighbours(features, 15)[rows]
        result["recall"] = float((exact[:, :, None] == found[:, None, :]).any(2).float().mean())
    return result


# ---- refresh


class Banks:
    """The parts of the loop's state that a refresh touches."""

    def __init__(self, features: Tensor, logits: Tensor) -> None:
        self.task, self.features, self.logits = "multilabel", features, logits
        self.banks: dict[str, Tensor] = {}

    def sweep(self) -> Any:
        return Output(self.features.clone(), self.logits)

    def at_most_neighbours(self, k: int) -> int:
        return k

    def record(self, **_: Tensor) -> None:
        pass


def refresh(variant: str) -> dict[str, Any]:
    features, logits = embeddings(10_000, 1_280), torch.randn(10_000, 100) - 2
    state: Any = Banks(features, logits)
    method = NOTELA(1.0, "iteration", k=15, lambda_=1.0)
    method.before_run(state)
    batches = torch.randperm(10_000).split(64)[:40]

    def one(rows: Tensor) -> None:
        if variant == "dense":
            dense_graph(features, logits)
        else:
            method.teach_rows(rows, Output(features[rows] + 0.01, logits[rows]), state)

    if variant == "dense":
        batches = batches[:2]
    one(batches[0])
    start = cpu_seconds()
    for rows in batches[1:]:
        one(rows)
    return {"cpu_s": (cpu_seconds() - start) / (len(batches) - 1)}


# ---- epoch


def epoch(variant: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model, x = CifarResNet().eval(), torch.randn(1_920, 3, 32, 32)
    policy = Preset(NOTELA(1.0, variant, k=15, lambda_=1.0), "norm", 1e-4, "constant", "source", noise=True)  # type: ignore[arg-type]

    def ours() -> float:
        """The second epoch of two, by the clock that the evaluator reads: set-up is left out."""
        clock: list[float] = []
        notela.adapt(
            model,
            x,
            task="singlelabel",
            method=policy,
            epochs=2,
            progress=False,
            device="cpu",
            evaluator=lambda _: clock.append(cpu_seconds()) or {},  # type: ignore[func-returns-value]
        )
        return clock[2] - clock[1]

    student = CifarResNet().eval()
    for parameter in student.parameters():
        parameter.requires_grad_(False)
    for layer in student.modules():
        if isinstance(layer, (nn.BatchNorm2d, nn.Dropout)):
            layer.train(isinstance(layer, nn.Dropout))
            for parameter in layer.parameters():
                parameter.requires_grad_(True)
    optimizer = torch.optim.Adam([p for p in student.parameters() if p.requires_grad], lr=1e-4)
    labels = torch.randn(len(x), 10).softmax(1)

    def plain() -> float:
        start = cpu_seconds()
        order = torch.randperm(len(x))
        with torch.no_grad():
            for rows in order.split(64):
                student(x[rows])
        for rows in order.split(64):
            loss = cross_entropy(student(x[rows]), labels[rows], "singlelabel").mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return cpu_seconds() - start

    plain()
    pairs = []
    before = plain()
    for _ in range(9):  # interleaved, since the machine's speed drifts
        one = ours()
        after = plain()
        pairs.append((one, (before + after) / 2))
        before = after
    return {
        "cpu_s": statistics.median(a for a, _ in pairs),
        "plain_cpu_s": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs),
    }


def harness(variant: str) -> dict[str, Any]:
    """The runner's own code, chunk by chunk, and `notela.adapt` in a loop with the same settings between the chunks."""
    torch.set_num_threads(1)
    suite = find("digits")
    protocol = plan.make(suite, "digits", chosen_methods=["tent", "notela"], trials=10, seeds=1)
    loaded = Loaded(suite)
    protocol.model = loaded.model_fingerprint
    runner.look_at(protocol, loaded, protocol.validation)
    jobs = [job for job in protocol.search() if job.method in protocol.methods]

    def bare(chunk: list[plan.Job]) -> float:
        start = time.perf_counter()
        for job in chunk:
            domain, _ = loaded.domain(job.domain)
            notela.adapt(
                loaded.model,
                domain.adapt,
                task=suite.task,
                method=job.preset,
                batch_size=job.preset.batch_size,
                seed=job.seed,
                evaluator=suite.evaluator(domain),
            )
        return time.perf_counter() - start

    with tempfile.TemporaryDirectory() as folder, Local(1) as engine:
        unfinished = Path(folder) / "unfinished"
        unfinished.mkdir()
        records = runner.validation_records(Path(folder), protocol)
        ours = runner._Runner("digits", unfinished, engine, Progress(len(jobs), engine), retry_failed=False)

        def harnessed(chunk: list[plan.Job]) -> float:
            start = time.perf_counter()
            with contextlib.redirect_stderr(None):
                ours.run("search", chunk, records)
            return time.perf_counter() - start

        startup = harnessed(jobs[:1]) - bare(jobs[:1])
        chunks = [jobs[i : i + 5] for i in range(1, len(jobs), 5)]
        times = [(harnessed(chunk), bare(chunk)) for chunk in chunks]
        assert len(records) == len(jobs)
    with_, without = (sum(column) for column in zip(*times, strict=True))
    return {
        "runs": len(jobs) - 1,
        "wall_s": with_,
        "bare_wall_s": without,
        "ratio": with_ / without,
        "median_ratio": statistics.median(a / b for a, b in times),
        "startup_s": startup,
    }


def trial(variant: str) -> dict[str, Any]:
    """What docs/cluster.md multiplies."""
    torch.manual_seed(0)
    if variant == "ResNet-20":
        net, x = CifarResNet(), torch.randn(1024, 3, 32, 32)
    else:
        from transformers import EfficientNetConfig, EfficientNetForImageClassification

        config = EfficientNetConfig(
            num_channels=1, width_coefficient=1.0, depth_coefficient=1.1, hidden_dim=1280, num_labels=100
        )
        net, x = EfficientNetForImageClassification(config), torch.randn(64, 1, 500, 160)
    preset = Preset(NOTELA(), epochs=1, batch_size=min(64, len(x)))
    settings = {"task": "multilabel", "method": preset, "progress": False}
    notela.adapt(net, x[:32], **settings)
    start, clock = cpu_seconds(), time.perf_counter()
    notela.adapt(net, x, **settings)
    return {
        "cpu_s_each": (cpu_seconds() - start) / len(x),
        "wall_s_each": (time.perf_counter() - clock) / len(x),
        "threads": torch.get_num_threads(),
    }


# ---- images


def turn_by_turn(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median wall seconds of each, and the ratio of the first to the last; what the machine does else falls on all."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if turn:  # the first warms up
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(all_of) for name, all_of in seconds.items()}
    first, *_, last = medians.values()
    return {**medians, "ratio": first / last}


def images(variant: str) -> dict[str, Any]:
    if variant == "decoding":
        return decoding()
    nets = {"channels_last": CifarResNet(), "plain": CifarResNet().to(memory_format=torch.contiguous_format)}
    x, y = torch.randn(256, 3, 32, 32), torch.arange(256) % 10

    def step(net: nn.Module) -> None:
        if variant == "inference":
            with torch.no_grad():
                net.eval()(x)
        else:
            for part, labels in zip(x.split(64), y.split(64), strict=True):
                nn.functional.cross_entropy(net.train()(part), labels).backward()

    return turn_by_turn({name: partial(step, net) for name, net in nets.items()}, 9)


def decoding() -> dict[str, Any]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        paths = [Path(folder) / f"{i}.jpg" for i in range(600)]
        for path in paths:
            small = Image.fromarray(rng.integers(0, 256, (38, 50, 3)).astype(np.uint8))
            small.resize((500, 375)).save(path, quality=90)
        prepare = partial(read_image, resize=256, crop=224, mean=IMAGENET_MEAN, std=IMAGENET_STD)
        in_turn = files.Files(paths, prepare)
        ahead = files.loader(in_turn)
        net = nn.Sequential(
            nn.Conv2d(3, 32, 7, 4), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        run = Predict(net)
        return turn_by_turn({"ahead": lambda: run(ahead), "in turn": lambda: run(in_turn)}, 3)


SUITES = {
    "graph": (graph, ["ours", "dense", "ours on noise", "dense on noise"]),
    "refresh": (refresh, ["ours", "dense"]),
    "epoch": (epoch, ["epoch", "iteration"]),
    "harness": (harness, ["one worker"]),
    "trial": (trial, ["ResNet-20", "EfficientNet-B1"]),
    "images": (images, ["inference", "training", "decoding"]),
}


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(SUITES[sys.argv[2]][0](sys.argv[3])))
        return
    wanted = sys.argv[1:] or list(SUITES)
    unknown = [name for name in wanted if name not in SUITES]
    if unknown:
        sys.exit(f"{unknown[0]!r} is not one of {', '.join(SUITES)}\n{__doc__}")
    for name in wanted:
        print(f"## {name}")
        for variant in SUITES[name][1]:
            command = [sys.executable, __file__, "--one", name, variant]
            threads = {"OMP_NUM_THREADS": "1"} if name == "harness" else {}  # as a worker has
            env = {**os.environ, **threads}
            out = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
            result = json.loads(out.splitlines()[-1])
            numbers = "  ".join(f"{key} {value:.4g}" for key, value in result.items())
            for key, theirs in AUTHORS.get(name, {}).items():
                if variant.startswith("ours"):
                    numbers += f"  ({key}: {result[key] / theirs:.3f} of the authors' {theirs})"
            print(f"{variant:<16}{numbers}", flush=True)
        print()


if __name__ == "__main__":
    main()
