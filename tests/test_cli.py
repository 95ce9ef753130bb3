"""The command line as a newcomer types it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import notela
from notela.cli import app


def test_help_and_version() -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert "notela demo" in shown.output
    assert CliRunner().invoke(app, ["--version"]).output == f"notela {notela.__version__}\n"


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, notela.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names_are_there_and_unknown_ones_are_not() -> None:
    assert all(hasattr(notela, name) for name in notela.__all__)
    assert set(notela.__all__) <= set(dir(notela))
    with pytest.raises(AttributeError, match="no attribute 'adaptt'"):
        _ = notela.adaptt


def run(*words: str) -> subprocess.CompletedProcess[str]:
    start = "from notela.cli import main; main()"
    return subprocess.run([sys.executable, "-c", start, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "digit"], "there is no suite 'digit'; choose one of aviary, aviary-single, birds, cifar10c"),
        (["bench", "digits", "--trials", "few"], "trials='few' must be a whole number"),
        (["bench", "digits", "--engine", "ray", "--workers", "3"], "workers=3 is for the local engine"),
        (["bench", "digits", "--gpus", "1"], "address and gpus are for --engine ray"),
        (["bench", "digits", "--methods", "tent,tint"], "method='tint' is not one of"),
        (["bench", "digits", "--set", "images"], "'images' is not of the form NAME=VALUE"),
        (["bench", "digits-multi", "--data", "x"], "the suite digits-multi has no option 'data'; it takes strength"),
        (["bench", "cifar10c", "--trials", "3"], "cifar10c has no validation domains"),
        (["bench", "cifar10c", "--data", "nowhere"], "nowhere/resnet20.pt does not exist: put the one from"),
        (["bench", "ponds.toml", "--set", "images=3"], "ponds.toml takes no options"),
        (["bench", "digits", "--tables-only"], "protocol.json does not exist: nothing was run"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], message: str, tmp_path: Path) -> None:
    shown = run(*words, "--to", str(tmp_path / "out"))
    assert shown.returncode == 2
    assert message in shown.stderr
    assert shown.stderr.count("\n") == 1
    assert shown.stderr.startswith("notela: ")
