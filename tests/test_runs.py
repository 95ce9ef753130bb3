"""Run folders: resuming after a kill, refusing other settings, saving and loading without pickles."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import notela
from conftest import Net, same, weights
from notela import runs

Quick = Callable[..., notela.Result]


def test_a_run_leaves_its_files_and_is_not_repeated(net: Net, x: Tensor, quick: Quick, tmp_path: Path) -> None:
    first = quick(net, x, task="singlelabel", run_dir=tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["history.jsonl", "model.safetensors", "run.json"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert lines == first.history

    def fail(*_: object) -> None:
        raise AssertionError("a finished run must not compute")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notela.methods.NOTELA, "loss", fail)
        again = quick(net, x, task="singlelabel", run_dir=tmp_path / "run")
    assert same(first.model, again.model)
    assert (again.history, again.notes, again.source) == (first.history, first.notes, first.source)
    late = quick(net, x, task="singlelabel", run_dir=tmp_path / "run", evaluator=lambda _: {"score": 1.0})
    assert "finished before, without an evaluator" in late.notes[-1]


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"learning_rate": 0.5}, "settings.learning_rate: 0.0001 there, 0.5 here"),
        ({"seed": 8}, "seed: 0 there, 8 here"),
        ({"method": "tent"}, "settings.method: 'notela' there, 'tent' here"),
        ({"classes": [0, 1]}, r"classes: None there, \[0, 1\] here"),
        ({"epochs": 3}, "settings.epochs: 2 there, 3 here"),
    ],
)
def test_other_settings_in_a_folder_are_refused_by_name(
    change: dict[str, object], difference: str, net: Net, x: Tensor, quick: Quick, tmp_path: Path
) -> None:
    quick(net, x, task="singlelabel", run_dir=tmp_path)
    with pytest.raises(notela.NotelaError, match=difference):
        quick(net, x, **{"task": "singlelabel", "run_dir": tmp_path, **change})


def test_other_data_and_other_models_are_refused(net: Net, x: Tensor, quick: Quick, tmp_path: Path) -> None:
    quick(net, x, task="singlelabel", run_dir=tmp_path)
    with pytest.raises(notela.NotelaError, match=r"data.fingerprint: '\w+' there"):
        quick(net, x + 1, task="singlelabel", run_dir=tmp_path)
    net.drop.p = 0.7
    with pytest.raises(notela.NotelaError, match=r"model.fingerprint: '\w+' there"):
        quick(net, x, task="singlelabel", run_dir=tmp_path)
    net.drop.p = 0.3
    with torch.no_grad():
        net.conv.bias += 1
    with pytest.raises(notela.NotelaError, match=r"model.fingerprint: '\w+' there"):
        quick(net, x, task="singlelabel", run_dir=tmp_path)


SCRIPT = """
    import sys, time, torch, notela
    sys.path.insert(0, {tests!r})
    from conftest import Net
    torch.manual_seed(1)
    model = Net().eval()
    x = torch.randn(70, 8, generator=torch.Generator().manual_seed(2))
    slow = float(sys.argv[2])

    class Items(torch.utils.data.Dataset):
        def __len__(self): return 70
        def __getitem__(self, i):
            time.sleep(slow)
            return x[i]

    method = notela.methods.NOTELA(k=4, refresh="iteration")
    notela.adapt(model, Items(), task="singlelabel", method=method, epochs=12, batch_size=16, run_dir=sys.argv[1],
                 statistics="target", device="cpu")
"""


def test_kill_minus_nine_loses_at_most_the_current_epoch(tmp_path: Path) -> None:
    script = tmp_path / "adapt.py"
    script.write_text(textwrap.dedent(SCRIPT).format(tests=str(Path(__file__).parent)))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([sys.executable, str(script), str(whole), "0"], check=True)
    process = subprocess.Popen([sys.executable, str(script), str(killed), "0.001"])
    history, deadline = killed / "history.jsonl", time.monotonic() + 120
    while not (history.exists() and len(history.read_text().splitlines()) >= 3) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (killed / "model.safetensors").exists(), "killed before it was done"
    reached = len(history.read_text().splitlines())
    assert runs.RunFolder(killed, notela.provenance(killed)).checkpoint().epoch in (reached, reached + 1)  # type: ignore[union-attr]
    subprocess.run([sys.executable, str(script), str(killed), "0"], check=True)
    assert (killed / "history.jsonl").read_text() == (whole / "history.jsonl").read_text()
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_failed_write_keeps_what_was_there(
    net: Net, x: Tensor, quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = quick(net, x, task="singlelabel", epochs=3)
    calls = 0

    def full(tensors: object, path: Path, metadata: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        original(tensors, path, metadata)

    original = runs.save_file
    monkeypatch.setattr(runs, "save_file", full)
    with pytest.raises(notela.NotelaError, match="No space left on device.*saved before is intact"):
        quick(net, x, task="singlelabel", epochs=3, run_dir=tmp_path)
    monkeypatch.setattr(runs, "save_file", original)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.safetensors", "history.jsonl", "run.json"]
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 1
    assert same(whole.model, quick(net, x, task="singlelabel", epochs=3, run_dir=tmp_path).model)


def test_nan_keeps_the_last_good_checkpoint(net: Net, x: Tensor, quick: Quick, tmp_path: Path) -> None:
    class Turning(torch.utils.data.Dataset[Tensor]):
        reads = 0

        def __len__(self) -> int:
            return 70

        def __getitem__(self, i: int) -> Tensor:
            Turning.reads += 1
            return x[i] * (
                torch.nan if Turning.reads > 70 * 4 + 40 else 1
            )  # a look at all rows before the first and after each epoch

    with pytest.raises(notela.NotelaError, match="NaN or infinity in items"):
        quick(net, Turning(), task="singlelabel", method="tent", epochs=5, run_dir=tmp_path)
    saved = runs.RunFolder(tmp_path, notela.provenance(tmp_path)).checkpoint()
    assert saved is not None
    assert saved.epoch >= 1
    assert all(t.isfinite().all() for t in saved.tensors.values())


def cut_after(epochs: int) -> Callable[[object], dict[str, float]]:
    """An evaluator that pulls the plug in the epoch after."""
    left = epochs + 2  # it is called for the source model too

    def evaluate(predict: object) -> dict[str, float]:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return {}

    return evaluate


def test_notes_and_loss_scale_survive(net: Net, x: Tensor, quick: Quick, tmp_path: Path) -> None:
    method = notela.methods.NOTELA(k=30, refresh="iteration")
    settings = {"task": "singlelabel", "method": method, "epochs": 4, "precision": "fp16", "learning_rate": 1e-2}
    whole = quick(net, x[:20], **settings)
    with pytest.raises(KeyboardInterrupt):
        quick(net, x[:20], **settings, run_dir=tmp_path, evaluator=cut_after(2))
    saved = runs.RunFolder(tmp_path, notela.provenance(tmp_path)).checkpoint()
    assert saved is not None
    scaler = torch.amp.GradScaler("cpu", init_scale=3.0)
    saved.restore(Net(), {}, None, scaler)
    assert scaler.get_scale() == 2.0**16
    resumed = quick(net, x[:20], **settings, run_dir=tmp_path)
    assert same(whole.model, resumed.model)
    assert any("k=30 neighbours asked" in note for note in resumed.notes)


def test_other_versions_may_go_on_and_the_first_ones_are_kept(
    net: Net, x: Tensor, quick: Quick, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        quick(net, x, task="singlelabel", run_dir=tmp_path, evaluator=cut_after(1))
    begun = notela.provenance(tmp_path)
    begun["versions"]["torch"] = "1.0"
    (tmp_path / "run.json").write_text(json.dumps(begun))
    result = quick(net, x, task="singlelabel", run_dir=tmp_path)
    assert result.description["versions"]["torch"] == "1.0"
    assert notela.provenance(tmp_path)["versions"]["torch"] == "1.0"


def test_unreadable_files_are_named(net: Net, x: Tensor, quick: Quick, tmp_path: Path) -> None:
    quick(net, x, task="singlelabel", run_dir=tmp_path)
    (tmp_path / "history.jsonl").unlink()
    with pytest.raises(notela.NotelaError, match="history.jsonl cannot be read"):
        quick(net, x, task="singlelabel", run_dir=tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(notela.NotelaError, match="run.json cannot be read"):
        quick(net, x, task="singlelabel", run_dir=tmp_path)
    with pytest.raises(notela.NotelaError, match="run.json does not exist"):
        notela.provenance(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(notela.NotelaError, match="cannot make the folder"):
        quick(net, x, task="singlelabel", run_dir=tmp_path / "file")


def test_a_broken_checkpoint_is_named(net: Net, x: Tensor, quick: Quick, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        quick(net, x, task="singlelabel", run_dir=tmp_path, evaluator=cut_after(1))
    (tmp_path / "checkpoint.safetensors").write_bytes(b"not tensors")
    with pytest.raises(notela.NotelaError, match="remove it to start this run anew"):
        quick(net, x, task="singlelabel", run_dir=tmp_path)


def test_save_and_load_round_trip_with_tied_weights(x: Tensor, quick: Quick, tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.second = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
            self.second.weight = self.first.weight
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.second(torch.relu(self.norm(self.first(x)))))

    model = Tied()
    result = quick(model, x, task="singlelabel", method="tent", trainable="all", run_dir=tmp_path / "run")
    notela.save(result, tmp_path / "saved")
    for folder in ("saved", "run"):
        loaded = notela.load(tmp_path / folder, Tied())
        assert same(loaded, result.model)
        assert loaded.second.weight is loaded.first.weight
        torch.testing.assert_close(loaded(x), result.model(x))
    origin = notela.provenance(tmp_path / "saved")
    assert origin["settings"]["method"] == "tent"
    assert origin["versions"]["torch"] == torch.__version__
    assert origin["data"]["rows"] == 70
    assert "pickle" not in (tmp_path / "saved" / "model.safetensors").read_bytes()[:2000].decode("latin1")


def test_loading_into_another_architecture_names_the_difference(
    net: Net, x: Tensor, quick: Quick, tmp_path: Path
) -> None:
    notela.save(quick(net, x, task="singlelabel", method="tent"), tmp_path)
    before = weights(net)
    net.head = nn.Linear(12, 9)
    with pytest.raises(notela.NotelaError, match="another shape for 'head.bias'"):
        notela.load(tmp_path, net)
    with pytest.raises(notela.NotelaError, match="lacks '0.bias'"):
        notela.load(tmp_path, nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(notela.NotelaError, match="does not exist"):
        notela.load(tmp_path / "nowhere", net)
    assert torch.equal(before["conv.weight"], net.conv.weight)


def test_swapped_arguments_get_a_sentence(net: Net, x: Tensor, quick: Quick, tmp_path: Path) -> None:
    with pytest.raises(notela.NotelaError, match="save takes what adapt returned, not a Net"):
        notela.save(net, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(notela.NotelaError, match="load takes a folder, then a model"):
        notela.load(net, tmp_path)  # type: ignore[arg-type]


def test_saving_over_another_run_is_refused(net: Net, x: Tensor, quick: Quick, tmp_path: Path) -> None:
    notela.save(quick(net, x, task="singlelabel", method="tent"), tmp_path)
    with pytest.raises(notela.NotelaError, match="holds another run"):
        notela.save(quick(net, x, task="singlelabel", method="shot"), tmp_path)
