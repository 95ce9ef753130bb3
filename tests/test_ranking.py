"""`notela select`: finished runs in order, without labels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor
from typer.testing import CliRunner

import notela
from conftest import Net
from notela.cli import app
from notela.ranking import rank
from notela.signals import Signals

Quick = Callable[..., notela.Result]


def rewrite(folder: Path, health: str, epoch: int, sign: str, value: float) -> None:
    """Another ending for a finished run of two epochs."""
    run = json.loads((folder / "run.json").read_text())
    after = run["verdict"]["after"] | {"information": 1 - value, "rank": 2 - value, sign: value}
    run["verdict"] |= {"health": health, "epoch": epoch, "after": after}
    (folder / "run.json").write_text(json.dumps(run))


@pytest.mark.parametrize(("task", "sign"), [("singlelabel", "information"), ("multilabel", "rank")])
def test_runs_are_ranked_by_health_then_by_the_score_of_the_model_they_gave(
    task: str, sign: str, net: Net, x: Tensor, quick: Quick, tmp_path: Path
) -> None:
    endings = {
        "good": ("better", 2, 1.5),
        "best": ("better", 2, 1.7),
        "back": ("better", 1, 1.6),  # the guard went back to the first epoch, which was healthy
        "kept": ("unclear", 0, 1.4),  # the guard went back to the source
        "even": ("unclear", 2, 1.8),
        "harm": ("worse", 2, 1.95),
    }
    for name, ending in endings.items():
        quick(net, x, task=task, method="tent", seed=1, run_dir=tmp_path / name)
        health, epoch, value = ending
        rewrite(tmp_path / name, health, epoch, sign, value)
    ranked = rank([tmp_path / name for name in endings])
    assert [one.folder.name for one in ranked] == ["best", "back", "good", "even", "kept", "harm"]
    assert [one.health for one in ranked] == ["better"] * 3 + ["unclear"] * 2 + ["worse"]
    assert all(isinstance(one.signals, Signals) for one in ranked)
    assert [getattr(one.signals, sign) for one in ranked] == [1.7, 1.6, 1.5, 1.8, 1.4, 1.95]
    said = CliRunner().invoke(app, ["select", *(str(tmp_path / name) for name in endings)])
    assert said.exit_code == 0
    assert [said.output.index(name) for name in ("best", "back", "good")] == sorted(
        said.output.index(name) for name in ("best", "back", "good")
    )


def test_what_cannot_be_compared_is_refused_by_name(net: Net, x: Tensor, quick: Quick, tmp_path: Path) -> None:
    quick(net, x, task="singlelabel", method="tent", run_dir=tmp_path / "a")
    quick(net, x + 1, task="singlelabel", method="tent", run_dir=tmp_path / "b")
    with pytest.raises(notela.NotelaError, match="are runs with different data"):
        rank([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(notela.NotelaError, match=r"run\.json does not exist"):
        rank([tmp_path / "a", tmp_path / "none"])
    quick(net, x, task="multilabel", method="tent", run_dir=tmp_path / "c")
    with pytest.raises(notela.NotelaError, match="are runs with different task"):
        rank([tmp_path / "a", tmp_path / "c"])
    run = json.loads((tmp_path / "a" / "run.json").read_text())
    old = {**run, "verdict": {**run["verdict"], "after": {"choices": 1.0}}}
    (tmp_path / "c" / "run.json").write_text(json.dumps(old))
    with pytest.raises(notela.NotelaError, match="was made by an older notela"):
        rank([tmp_path / "c"])
    (tmp_path / "a" / "run.json").write_text(json.dumps({**run, "finished": False}))
    with pytest.raises(notela.NotelaError, match="holds no finished run with a verdict"):
        rank([tmp_path / "a"])
