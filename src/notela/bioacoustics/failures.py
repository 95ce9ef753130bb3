"""The list of recordings that could not be used."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from pathlib import Path

from notela.bioacoustics.audio import BadRecording
from notela.runs import replacing


def write_failures(path: Path, folder: Path, failures: Iterable[BadRecording]) -> None:
    """As CSV, with the reason for each; of earlier failures that are none any more, nothing stays."""
    with replacing(path) as aside, open(aside, "w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file)
        writer.writerow(["recording", "reason", "what to do"])
        for one in failures:
            writer.writerow([os.path.relpath(one.path, folder), one.reason, one.remedy])
