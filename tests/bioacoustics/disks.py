"""A small disk, to fill."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Callable[[int], None]]:
    """A disk of so many kB at a folder that is made for it; the function gives it another size. Only root can mount."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        yield lambda size: subprocess.run(["mount", "-o", f"remount,size={size}k", str(folder)], check=True) and None
    finally:
        subprocess.run(["umount", str(folder)], check=True)
