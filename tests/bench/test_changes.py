"""Settings of a comparison that are changed in every run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from notela import methods
from notela.bench import plan
from notela.bench.changes import change
from notela.bench.plan import SUPERVISED
from notela.bench.suite import find
from notela.cli import app
from notela.errors import NotelaError

NOTELA = methods.preset("notela", "image")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("epochs", "100", 100),
        ("epochs", "x3", 30),
        ("learning_rate", "x10", 1e-3),
        ("learning_rate", "0.5", 0.5),
        ("statistics", "half", "half"),
        ("noise", "false", False),
        ("teacher_momentum", "slow", "slow"),
        ("teacher_momentum", "0.9", 0.9),
    ],
)
def test_a_setting_of_the_loop_is_changed(name: str, text: str, value: object) -> None:
    assert change(NOTELA, {name: text}) == replace(NOTELA, **{name: value})


def test_a_setting_of_the_method_is_changed() -> None:
    changed = change(NOTELA, {"message": "standardised", "lambda_": "x2", "k": "7"})
    assert changed == replace(NOTELA, method=replace(NOTELA.method, message="standardised", lambda_=4.0, k=7))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("lambda", "2", "notela has no setting 'lambda' to change; it has alpha, refresh, k, lambda_"),
        ("method", "tent", "no setting 'method'"),
        ("epochs", "many", "epochs='many' is not of the same kind as 10"),
        ("noise", "1", "noise='1' is not of the same kind as True"),
        ("learning_rate", "xx", "learning_rate='xx' is not"),
        ("learning_rate", "inf", "learning_rate='inf' is not"),
        ("epochs", "xinf", "epochs='xinf' is not"),
        ("statistics", "mine", "'mine' is not one of"),
        ("epochs", "0", "epochs"),
    ],
)
def test_what_cannot_be_changed_is_told(name: str, text: str, said: str) -> None:
    with pytest.raises(NotelaError, match=said):
        change(NOTELA, {name: text})


def test_every_run_but_the_ceiling_is_changed_and_keys_tell() -> None:
    suite = find("digits")
    wanted = ["tent", "centred", SUPERVISED]
    plain, changed = (
        plan.make(suite, "digits", chosen_methods=wanted, trials=0, changes=changes)
        for changes in (None, {"learning_rate": "x10"})
    )
    for method in ("tent", "centred"):
        before, after = (protocol.candidates(method)[0] for protocol in (plain, changed))
        assert after == replace(before, learning_rate=10 * before.learning_rate)
    assert plain.candidates(SUPERVISED) == changed.candidates(SUPERVISED)
    for protocol in (plain, changed):
        protocol.domains["fog"] = "same"
    keys = [protocol.job("fog", "tent", protocol.candidates("tent")[0], 0).key for protocol in (plain, changed)]
    assert keys[0] != keys[1]


def test_captions_say_what_was_changed(tmp_path: Path) -> None:
    command = ["bench", "digits", "--trials", "none", "--methods", "adabn", "--seeds", "1", "--to", str(tmp_path)]
    said = CliRunner().invoke(app, [*command, "--with", "epochs=1", "--workers", "1"])
    assert said.exit_code == 0, said.output
    assert "Changed in every run but the ceiling's: epochs=1." in (tmp_path / "README.md").read_text()
    assert plan.read(tmp_path / "protocol.json").changes == {"epochs": "1"}


def test_a_change_that_a_method_does_not_know_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match="adabn has no setting 'k'"):
        plan.make(find("digits"), "digits", chosen_methods=["notela", "adabn"], trials=0, changes={"k": "5"})
