"""`notela select`: finished runs in order, without labels."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from typer.testing import CliRunner

import notela
from conftest import GOOD, TASKS, Net
from notela.cli import app
from notela.guard import BACKWARD, FALL
from notela.ranking import rank

Quick = Callable[..., notela.Result]


def rewrite(folder: Path, epoch: int, **signs: float) -> None:
    """Another ending for a finished run of two epochs: what was seen of its result, beside a source like GOOD."""
    run = json.loads((folder / "run.json").read_text())
    run["verdict"] |= {"health": "as it was said", "epoch": epoch, "before": GOOD._asdict()}
    run["verdict"]["after"] = GOOD._replace(**signs)._asdict()
    (folder / "run.json").write_text(json.dumps(run))


@pytest.mark.parametrize("task", TASKS)
def test_runs_are_ranked_by_health_then_by_how_much_the_score_rose(
    task: Any, net: Net, x: Tensor, quick: Quick, tmp_path: Path
) -> None:
    def risen(by: float) -> dict[str, float]:
        """So much by this task's signs, and less by the other's."""
        one, several = (by, -by) if task == "singlelabel" else (-by, by)
        return {"information": GOOD.information + one, "rank": GOOD.rank * math.exp(several)}

    endings: dict[str, tuple[int, dict[str, float]]] = {
        "good": (2, risen(0.1)),
        "best": (2, risen(0.3)),
        "back": (1, risen(0.2)),  # the guard went back to the first epoch, which was healthy
        "kept": (0, risen(0.0)),  # the guard went back to the source
        "even": (2, risen(0.01)),
        "harm": (2, risen(-0.1)),
        "fell": (2, risen(0.4) | {"classes": 1.0}),
    }
    for name, (epoch, signs) in endings.items():
        quick(net, x, task=task, method="tent", seed=1, run_dir=tmp_path / name)
        rewrite(tmp_path / name, epoch, **signs)
    ranked = rank([tmp_path / name for name in endings])
    assert [one.folder.name for one in ranked] == ["best", "back", "good", "even", "kept", "fell", "harm"]
    assert [one.health for one in ranked] == ["better"] * 3 + ["unclear"] * 2 + ["worse"] * 2
    assert [one.rise for one in ranked] == pytest.approx([0.3, 0.2, 0.1, 0.01, 0.0, 0.4, -0.1])
    assert [one.epoch for one in ranked] == [endings[one.folder.name][0] for one in ranked]
    said = CliRunner().invoke(app, ["select", *(str(tmp_path / name) for name in endings)])
    assert said.exit_code == 0
    places = [said.output.index(name) for name in ("best", "back", "good", "even")]
    assert places == sorted(places)
    assert "+0.300" in said.output
    assert "-0.100" in said.output


def test_a_large_fall_of_backward_smoothness_does_not_outweigh_the_rest(
    net: Net, x: Tensor, quick: Quick, tmp_path: Path
) -> None:
    for name, signs in {
        "strange": {"information": 0.8, "backward_smoothness": 0.0},
        "usual": {"information": 0.6},
    }.items():
        quick(net, x, task="singlelabel", method="tent", run_dir=tmp_path / name)
        rewrite(tmp_path / name, 2, **signs)
    first, second = rank([tmp_path / "usual", tmp_path / "strange"])
    assert (first.folder.name, first.rise) == ("strange", pytest.approx(0.3 - BACKWARD * FALL))
    assert (second.folder.name, second.rise) == ("usual", pytest.approx(0.1))


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
    for which in ("before", "after"):
        old = {**run, "verdict": {**run["verdict"], which: {"choices": 1.0}}}
        (tmp_path / "c" / "run.json").write_text(json.dumps(old))
        with pytest.raises(notela.NotelaError, match="was made by an older notela"):
            rank([tmp_path / "c"])
    (tmp_path / "a" / "run.json").write_text(json.dumps({**run, "finished": False}))
    with pytest.raises(notela.NotelaError, match="holds no finished run with a verdict"):
        rank([tmp_path / "a"])
