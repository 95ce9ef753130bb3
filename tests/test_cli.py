"""The command line as a newcomer types it."""

from __future__ import annotations

import subprocess
import sys

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


def test_demo_prints_a_row_for_every_method() -> None:
    shown = CliRunner().invoke(app, ["demo", "--seed", "1"])
    assert shown.exit_code == 0, shown.output
    for name in notela.methods.names():
        assert name in shown.output
