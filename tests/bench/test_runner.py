"""The whole comparison on a small suite of one's own: cut off anywhere, on two engines, with labels out of reach."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import Here
from notela import methods
from notela.bench import plan, report, runner, suite, trial
from notela.bench.plan import Protocol, make
from notela.bench.progress import Progress
from notela.bench.runner import bench
from notela.bench.select import select
from notela.bench.suite import Domain, Loaded, Suite
from notela.engines import Outcome
from notela.errors import NotelaError
from notela.runs import RunFolder

CLASSES = ("a", "b", "c")
METHODS = ["adabn", "tent", "notela"]
TOML = """
name = "small"
task = "{task}"
classes = ["a", "b", "c"]
model = "model.py:build"
weights = "model.safetensors"
preprocess = "model.py:prepare"
source = "home"
settings = {{epochs = 3, batch_size = 8}}
[validation]
hill = "hill"
[test]
pond = "pond"
wood = "wood"
"""
MODEL = """
import numpy, torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

def prepare(path):
    return torch.from_numpy(numpy.load(path))
"""


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TOML file with three blobs of points as classes, shifted in each domain."""
    return write_suite(tmp_path_factory.mktemp("suite"), "multilabel")


def write_suite(root: Path, task: str, rows: int = 64) -> Path:
    from safetensors.torch import save_file

    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 6)) * 2
    for place, shift in {"home": 0.0, "hill": 1.0, "pond": -1.0, "wood": 2.0}.items():
        names = []
        for i in range(rows):
            c = i % 3
            point = (centres[c] + rng.normal(size=6) + shift).astype(np.float32)
            name = f"{CLASSES[c]}/{i}.npy" if task == "singlelabel" else f"{i}.npy"
            (root / place / name).parent.mkdir(parents=True, exist_ok=True)
            np.save(root / place / name, point)
            names.append((name, CLASSES[c] + (";" + CLASSES[(c + 1) % 3] if i % 2 else "")))
        if task == "multilabel":
            (root / place / "labels.csv").write_text("file,labels\n" + "".join(f"{n},{ls}\n" for n, ls in names))
    (root / "model.py").write_text(MODEL)
    torch.manual_seed(0)
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    save_file(scope["build"]().state_dict(), root / "model.safetensors")  # untrained: what is compared is the harness
    path = root / "small.toml"
    path.write_text(TOML.format(task=task))
    return path


@pytest.fixture(autouse=True)
def _one_thread_and_no_cache() -> Iterator[None]:
    before = torch.get_num_threads()
    trial._loaded.cache_clear()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def undisturbed(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed comparison."""
    folder = tmp_path_factory.mktemp("undisturbed")
    threads = torch.get_num_threads()
    assert bench(str(small), folder, Here(), methods=METHODS, trials=2, seeds=2) == []
    torch.set_num_threads(threads)
    report.write(folder)
    return folder


def records(folder: Path) -> list[dict[str, Any]]:
    """All records, sorted, without what the clock said."""
    found = []
    for name in ("validation", "test"):
        found += [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return sorted(({k: v for k, v in r.items() if k != "seconds"} for r in found), key=lambda r: r["key"])


def tables(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((folder / "tables").iterdir())}


def same(folder: Path, other: Path) -> None:
    """The same records, and the same tables from them."""
    assert records(folder) == records(other)
    report.write(folder)
    assert tables(folder) == tables(other)


# ---- what is run


def test_records_hold_every_run_once_and_nothing_is_left_behind(undisturbed: Path) -> None:
    found = records(undisturbed)
    assert len({r["key"] for r in found}) == len(found)
    of_test = [r for r in found if r["domain"] in ("pond", "wood")]
    for method in (*METHODS, "supervised"):
        full = [r for r in of_test if r["settings"]["method"] == method]
        assert {(r["domain"], r["seed"]) for r in full} == {(d, s) for d in ("pond", "wood") for s in (0, 1)}
    assert all(len(r["evaluation"]["auroc"]) == 3 for r in of_test if r["settings"]["method"] != "source")
    assert not (undisturbed / "unfinished").exists()
    assert {p.suffix for p in (undisturbed / "figures").iterdir()} == {".svg", ".png"}
    assert "## Ablation" in (undisturbed / "README.md").read_text()


def test_a_record_is_what_adapt_gives(small: Path, undisturbed: Path) -> None:
    """Against a plain call, outside the harness."""
    import notela

    found = suite.find(str(small))
    domain, model = found.test["pond"](), found.model()
    record = next(r for r in records(undisturbed) if r["domain"] == "pond" and r["settings"]["method"] == "tent")
    preset = next(p for p in methods.grid("tent") if {**p.settings(), **found.overrides} == record["settings"])
    torch.set_num_threads(1)
    result = notela.adapt(
        model,
        domain.adapt,
        task="multilabel",
        method=preset,
        epochs=3,
        batch_size=8,
        seed=record["seed"],
        evaluator=notela.Evaluator(domain.test, domain.test_labels, task="multilabel"),
        progress=False,
    )
    for name in ("map", "cmap", "auroc", "top1"):
        assert record["evaluation"][name] == [round(epoch["evaluation"][name], 6) for epoch in result.history]


def test_the_list_of_candidates_shows_why_each_was_chosen(undisturbed: Path) -> None:
    with open(undisturbed / "tables" / "search.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for method in (*METHODS, "supervised"):
        scores = [float(row["validation_map"]) for row in rows if row["method"] == method]
        chosen = [row for row in rows if row["method"] == method and row["chosen"] == "1"]
        assert len(scores) == 2
        assert [float(row["validation_map"]) for row in chosen] == [max(scores)]
        assert ("learning_rate" in chosen[0]["settings"]) == (method != "adabn")


def test_a_second_command_repeats_nothing(small: Path, undisturbed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(undisturbed, tmp_path / "copy")
    before = (folder / "test.jsonl").read_bytes(), (folder / "validation.jsonl").read_bytes()

    class Refuses(Here):
        def map(self, work: Callable[[Any], Any], items: Any) -> Iterator[Outcome]:
            assert list(items) == []
            return iter(())

    assert bench(str(small), folder, Refuses(), methods=METHODS, trials=2, seeds=2) == []
    assert ((folder / "test.jsonl").read_bytes(), (folder / "validation.jsonl").read_bytes()) == before


def test_more_trials_and_seeds_only_add(small: Path, undisturbed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(undisturbed, tmp_path / "copy")
    assert bench(str(small), folder, Here(), methods=METHODS, trials=3, seeds=3) == []
    before, after = ({r["key"] for r in records(f)} for f in (undisturbed, folder))
    assert before < after
    searched = [r for r in records(folder) if r["domain"] == "hill" and r["settings"]["method"] == "tent"]
    assert len({json.dumps(r["settings"]) for r in searched}) == 3


def test_single_label_too(tmp_path: Path, undisturbed: Path) -> None:
    path = write_suite(tmp_path, "singlelabel")
    assert bench(str(path), tmp_path / "out", Here(), methods=["notela"], trials=1, seeds=2) == []
    assert report.write(tmp_path / "out")[0].columns[:2] == [("pond", "accuracy"), ("wood", "accuracy")]
    assert report.write(undisturbed)[0].columns[:2] == [("pond", "mAP"), ("pond", "cmAP")]


# ---- labels out of reach


def locked(small: Path) -> Suite:
    """The small suite, whose test domains cannot even be opened."""

    def forbidden() -> Domain:
        raise AssertionError("a test domain was opened before the choice was made")

    found = suite.find(str(small))
    return replace(found, test=dict.fromkeys(found.test, forbidden))


def test_search_and_selection_never_open_a_test_domain(
    small: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "find", lambda _: locked(small))
    monkeypatch.setattr(trial, "find", lambda _: locked(small))
    chosen = []
    monkeypatch.setattr(runner, "select", lambda *given: chosen.append(select(*given)) or chosen[0])
    with pytest.raises(AssertionError, match="before the choice was made"):
        bench(str(small), tmp_path, Here(), methods=METHODS, trials=2, seeds=2)
    assert not (tmp_path / "test.jsonl").exists()
    assert chosen == [_choose(undisturbed)]  # it came as far as choosing, and chose the same


def _choose(folder: Path) -> Any:
    protocol = plan.read(folder / "protocol.json")
    return select(protocol, runner.validation_records(folder, protocol))


def test_other_test_labels_change_no_choice(small: Path, undisturbed: Path, tmp_path: Path) -> None:
    """All labels of the test domains are turned round: other scores, the same settings."""
    root = shutil.copytree(small.parent, tmp_path / "suite")
    for place in ("pond", "wood"):
        table = root / place / "labels.csv"
        table.write_text(
            re.sub(r"\b[abc]\b", lambda label: {"a": "b", "b": "c", "c": "a"}[label[0]], table.read_text())
        )
    folder = tmp_path / "out"
    bench(str(root / small.name), folder, Here(), methods=METHODS, trials=2, seeds=2)
    assert _choose(folder) == _choose(undisturbed)
    assert (folder / "test.jsonl").read_text() != (undisturbed / "test.jsonl").read_text()


def test_selection_is_blind_to_test_records_in_its_own_file(undisturbed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(undisturbed, tmp_path / "copy")
    foreign = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    with open(folder / "validation.jsonl", "a") as file:
        file.writelines(json.dumps(record) + "\n" for record in foreign)
    protocol = plan.read(folder / "protocol.json")
    validation = runner.validation_records(folder, protocol)
    assert all(validation.get(record["key"]) is None for record in foreign)
    with pytest.raises(NotelaError, match="keeps to its own domains"):
        validation.append(foreign[0])


def test_validation_and_test_may_not_share_data_under_two_names(small: Path, tmp_path: Path) -> None:
    root = shutil.copytree(small.parent, tmp_path / "suite")
    path = root / small.name
    path.write_text(path.read_text().replace('pond = "pond"', 'lake = "hill"'))
    with pytest.raises(NotelaError, match="lake and hill in .* are the same folder"):
        bench(str(path), tmp_path / "out", Here(), methods=["tent"], trials=1, seeds=1)
    shutil.copytree(root / "hill", root / "copy")
    path.write_text(path.read_text().replace('lake = "hill"', 'lake = "copy"'))
    with pytest.raises(NotelaError, match="lake and hill hold the same data"):
        bench(str(path), tmp_path / "out", Here(), methods=["tent"], trials=1, seeds=1)
    path.write_text(path.read_text().replace('hill = "hill"', 'source = "hill"'))
    with pytest.raises(NotelaError, match="a domain of small is called 'source'"):
        bench(str(path), tmp_path / "out", Here(), methods=["tent"], trials=1, seeds=1)


# ---- failures


def test_failed_runs_are_listed_kept_and_retried_on_request(
    small: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = trial.adapt
    monkeypatch.setattr(trial, "adapt", _breaking(lambda s: s["seed"] == 1 and s["method"].method.name == "tent"))
    failures = bench(str(small), tmp_path, Here(), methods=METHODS, trials=2, seeds=2)
    expected = [(f"tent on {d}, seed 1", "the loss became nan", False) for d in ("hill", "pond", "wood")]
    assert sorted(failures) == expected
    report.write(tmp_path)
    row = next(line for line in tables(tmp_path)["test.md"].splitlines() if line.startswith("| TENT"))
    assert row.count("†") == 6  # pond, wood, average, each in two metrics
    again = bench(str(small), tmp_path, Here(), methods=METHODS, trials=2, seeds=2)
    assert sorted(again) == sorted(failures)  # listed, not run
    monkeypatch.setattr(trial, "adapt", real)
    assert bench(str(small), tmp_path, Here(), methods=METHODS, trials=2, seeds=2, retry_failed=True) == []
    lines = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    assert sum("error" in line for line in lines) == 2  # what happened stays on record
    latest = {line["key"]: line for line in lines}
    assert not any("error" in line for line in latest.values())


def _breaking(when: Callable[[dict[str, Any]], bool], cause: Exception | None = None) -> Callable[..., Any]:
    real = trial.adapt

    def adapt(*args: Any, **settings: Any) -> Any:
        if when(settings):
            raise NotelaError("the loss became nan") from cause
        return real(*args, **settings)

    return adapt


def test_a_candidate_that_diverges_is_not_chosen(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = make(suite.find(str(small)), str(small), chosen_methods=["tent"], trials=2, seeds=1)
    first, second = protocol.candidates("tent")
    monkeypatch.setattr(trial, "adapt", _breaking(lambda s: s["method"] == first))
    assert len(bench(str(small), tmp_path, Here(), methods=["tent"], trials=2, seeds=1)) == 1
    choice = _choose(tmp_path)["tent"]
    assert (choice.preset, choice.tried, choice.failed) == (second, 2, 1)
    assert "TENT: 1 of 2 candidates failed" in report.write(tmp_path)[0].notes[-1]


def test_a_disk_that_fails_does_not_choose(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = trial.adapt
    monkeypatch.setattr(trial, "adapt", _breaking(lambda s: s["method"].noise, cause=OSError("disk full")))
    with pytest.raises(NotelaError, match=r"runs of the search failed for reasons that are not .* --retry-failed"):
        bench(str(small), tmp_path, Here(), methods=METHODS, trials=2, seeds=1)
    assert not (tmp_path / "test.jsonl").exists()
    monkeypatch.setattr(trial, "adapt", real)
    assert bench(str(small), tmp_path, Here(), methods=METHODS, trials=2, seeds=1, retry_failed=True) == []


def test_nothing_survives(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "adapt", _breaking(lambda _: True))
    with pytest.raises(NotelaError, match="no candidate of any method survived"):
        bench(str(small), tmp_path, Here(), methods=["tent"], trials=1, seeds=1)


def test_a_run_that_was_cut_off_resumes(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after its second checkpoint, a run goes on from there and gives the same record."""
    protocol = _looked_at(small)
    job = protocol.job("hill", "tent", protocol.candidates("tent")[0], 0)
    expected = trial.run(trial.Trial(str(small), job, "/nonexistent"))
    monkeypatch.setattr(trial, "CHECKPOINT_SECONDS", 0.0)
    seen = []

    class Cut(BaseException):
        pass

    real = RunFolder.write_checkpoint

    def cut(folder: RunFolder, loop: Any) -> None:
        real(folder, loop)
        seen.append(loop.state.epoch)
        if seen == [1, 2]:
            raise Cut

    monkeypatch.setattr(RunFolder, "write_checkpoint", cut)
    with pytest.raises(Cut):
        trial.run(trial.Trial(str(small), job, str(tmp_path)))
    assert trial.run(trial.Trial(str(small), job, str(tmp_path))) == expected
    assert seen == [1, 2, 3]
    assert (tmp_path / job.key / "run.json").exists()  # until its record is written
    trial.forget(tmp_path, job)
    assert list(tmp_path.iterdir()) == []


def _looked_at(small: Path) -> Protocol:
    found = suite.find(str(small))
    protocol = make(found, str(small), chosen_methods=["tent"], trials=1, seeds=1)
    loaded = Loaded(found)
    protocol.model = loaded.model_fingerprint
    runner.look_at(protocol, loaded, ["hill"], Progress(0, Here()))
    return protocol


def test_a_node_with_other_data_or_code_is_refused(small: Path) -> None:
    protocol = _looked_at(small)
    good = protocol.job("hill", "tent", protocol.candidates("tent")[0], 0)
    assert trial.run(trial.Trial(str(small), good, "/nonexistent"))["evaluation"]
    for part, word in (("model", "model"), ("data", "data"), ("code", "code")):
        job = replace(good, fingerprints={**good.fingerprints, part: "0" * 16})
        with pytest.raises(NotelaError, match=f"the {word} of hill with tent is not the same here"):
            trial.run(trial.Trial(str(small), job, "/nonexistent"))


# ---- cut off


def command(small: Path, folder: Path, *more: str) -> list[str]:
    start = "from notela.cli import main; main()"
    options = ["--methods", ",".join(METHODS), "--trials", "2", "--seeds", "2", "--workers", "2", *more]
    return [sys.executable, "-c", start, "bench", str(small), "--to", str(folder), *options]


def lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*.jsonl"))


def test_killed_at_three_random_moments_it_ends_with_the_same_tables(
    small: Path, undisturbed: Path, tmp_path: Path
) -> None:
    total, dice = lines(undisturbed), random.Random()
    for _ in range(3):
        wanted = lines(tmp_path) + dice.randrange(1, total // 4)
        run = subprocess.Popen(command(small, tmp_path), stderr=subprocess.PIPE)
        while lines(tmp_path) < wanted and run.poll() is None:
            time.sleep(0.01)
        time.sleep(dice.random() * 0.2)
        run.send_signal(signal.SIGKILL)
        run.communicate()
        assert run.returncode == -signal.SIGKILL, "it was done before it could be killed"
    done = subprocess.run(command(small, tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "loading hill" in done.stderr
    assert "failed" in done.stderr  # the log counts done, running, failed, left
    assert tables(tmp_path) == tables(undisturbed)
    same(tmp_path, undisturbed)


def test_ctrl_c_stops_cleanly_and_the_next_command_goes_on(small: Path, undisturbed: Path, tmp_path: Path) -> None:
    run = subprocess.Popen(command(small, tmp_path), stderr=subprocess.PIPE, text=True, start_new_session=True)
    while lines(tmp_path) < 3:
        time.sleep(0.01)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to parent and workers
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "Finished runs are kept" in said
    assert "Traceback" not in said
    before = lines(tmp_path)
    assert bench(str(small), tmp_path, Here(), methods=METHODS, trials=2, seeds=2) == []
    assert before >= 3
    same(tmp_path, undisturbed)


def test_two_processes_on_one_folder(small: Path, undisturbed: Path, tmp_path: Path) -> None:
    both = [subprocess.Popen(command(small, tmp_path), stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=300)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sum("another notela is at work" in text for text in said) == 1
    same(tmp_path, undisturbed)


def test_a_ray_cluster_that_loses_a_node_gives_the_same_bits(small: Path, undisturbed: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    from notela.engines.ray import Ray

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    doomed = cluster.add_node(num_cpus=1)
    done_by_then = []

    def kill() -> None:
        while lines(tmp_path) < 8:
            time.sleep(0.02)
        done_by_then.append(lines(tmp_path))
        cluster.remove_node(doomed, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    try:
        killer.start()
        assert bench(str(small), tmp_path, Ray(cluster.address), methods=METHODS, trials=2, seeds=2) == []
        killer.join(timeout=60)
        assert not killer.is_alive()
        assert done_by_then[0] < lines(undisturbed) / 2  # in the middle
    finally:
        cluster.shutdown()
    same(tmp_path, undisturbed)


# ---- a user's mistakes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("task", "tusk"), "has no 'task'"),
        (("multilabel", "both"), "task='both' is not one of"),
        (('source = "home"', 'sauce = "home"'), "unknown key 'sauce'"),
        (('["a", "b", "c"]', '["a", "b"]'), "is no class of the model (a, b)"),
        (('["a", "b", "c"]', '["a", "a", "c"]'), "classes must be a list of different names"),
        (('["a", "b", "c"]', '"classes.txt"'), "cannot be read: No such file"),
        (("model.py:build", "model.py:bild"), "'model.py:bild' cannot be loaded"),
        (("model.py:build", "model.py:prepare"), "must be a function without arguments"),
        (('["a", "b", "c"]', '["a", "b", "c", "d"]'), "the model has 3 outputs and the class list 4 names"),
        (('hill = "hill"', "hill = 3"), "hill = 3 in"),
        (("{epochs = 3, batch_size = 8}", "3"), "settings = 3 in"),
        (('preprocess = "model.py:prepare"', "preprocess = {sizes = 3}"), "must be a table (size, or resize and crop;"),
        (("model.safetensors", "nothing.safetensors"), "nothing.safetensors cannot be loaded"),
        (('hill = "hill"', 'hill = "hole"'), "hole is not a folder"),
        (('hill = "hill"', ""), "[validation] in"),
        (('hill = "hill"', 'pond = "hill"'), "'pond' is a validation domain and a test domain"),
        (("epochs = 3", "seed = 3"), "settings in"),
        (("[test]", "[test"), "cannot be read as TOML"),
    ],
)
def test_mistakes_in_the_file_are_one_sentence(
    small: Path, tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    root = shutil.copytree(small.parent, tmp_path / "suite")
    path = root / small.name
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(NotelaError) as caught:
        bench(str(path), tmp_path / "out", Here(), methods=METHODS, trials=1, seeds=1)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broken_file_is_named(small: Path, tmp_path: Path) -> None:
    root = shutil.copytree(small.parent, tmp_path / "suite")
    (root / "hill" / "0.npy").write_bytes(b"not an array")
    with pytest.raises(NotelaError, match=r"hill/0.npy cannot be prepared \(ValueError.*repair or remove it"):
        bench(str(root / small.name), tmp_path / "out", Here(), methods=["tent"], trials=1, seeds=1)


def test_a_model_s_code_is_part_of_its_fingerprint_and_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    code = (
        "from torch import nn\nfrom beside import WIDTH\n"
        "class Net(nn.Linear):\n    def forward(self, x): return super().forward(x){}\n"
        "def build():\n    net = Net(6, WIDTH, bias=False)\n    nn.init.ones_(net.weight)\n    return net\n"
        "def prepare(path):\n    import numpy\n    return numpy.load(path)\n"
    )
    prints = []
    for number, ending in enumerate(("", "", " * 2")):
        root = tmp_path / str(number)
        root.mkdir()
        path = write_suite(root, "multilabel")
        (root / "beside.py").write_text("WIDTH = 3\n")
        (root / "model.py").write_text(code.format(ending))
        path.write_text(path.read_text().replace('weights = "model.safetensors"\n', ""))
        prints.append(Loaded(suite.find(str(path))).model_fingerprint)
    assert prints[0] == prints[1] != prints[2]


def test_runs_that_a_worker_lost_are_counted_on_the_page(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = _breaking(lambda s: s["seed"] == 1 and s["method"].method.name == "tent", cause=OSError("disk full"))
    monkeypatch.setattr(trial, "adapt", fails)
    failures = bench(str(small), tmp_path, Here(), methods=METHODS, trials=2, seeds=2)
    assert [failure.unexpected for failure in failures] == [True] * 3
    assert "3 runs failed for reasons that are not their method's doing" in report.write(tmp_path)[0].notes[-1]
    assert (tmp_path / "unfinished").is_dir()


def test_too_few_examples_for_a_metric_are_known_before_the_search(small: Path, tmp_path: Path) -> None:
    path = write_suite(tmp_path, "multilabel", rows=16)
    with pytest.raises(NotelaError, match="held-out labels of hill do not define cmap"):
        bench(str(path), tmp_path / "out", Here(), methods=["tent"], trials=1, seeds=1)


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match="no suite 'digit'; choose one of aviary, aviary-single, birds, cifar10c"):
        bench("digit", tmp_path, Here())
    with pytest.raises(NotelaError, match="method='tint' is not one of"):
        bench("digits", tmp_path, Here(), methods=["tint"])
    with pytest.raises(NotelaError, match="does not exist"):
        bench(str(tmp_path / "no.toml"), tmp_path, Here())


def test_protocols_name_their_sizes(undisturbed: Path) -> None:
    protocol = Protocol(**json.loads((undisturbed / "protocol.json").read_text()))
    assert all(sum(protocol.sizes[d]) == 64 for d in ("hill", "pond", "wood"))
    said = tables(undisturbed)["test.md"]
    assert all(f"{adapt} / {test}" in said for adapt, test in protocol.sizes.values())
