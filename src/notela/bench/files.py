"""A domain out of files that are prepared as they are asked for, ahead of the computation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from notela.bench.suite import Domain
from notela.errors import NotelaError
from notela.stable import stable_share

ADAPT = 0.75
BATCH = 64  # of evaluation; runs have their own
WORTH_WORKERS = 512  # files: below, starting processes for each pass takes longer than they save
MOST_WORKERS = 8


class Files(Dataset[Tensor]):
    """Files, prepared as they are asked for."""

    def __init__(self, paths: list[Path], prepare: Callable[[Path], Any]) -> None:
        self._paths, self._prepare = paths, prepare

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, row: int) -> Tensor:
        try:
            return torch.as_tensor(self._prepare(self._paths[row]), dtype=torch.float32)
        except Exception as error:
            raise NotelaError(
                f"{self._paths[row]} cannot be prepared ({type(error).__name__}: {error}); repair or remove it"
            ) from error


def domain(
    labelled: Mapping[Path, Any],
    root: Path,
    prepare: Callable[[Path], Any],
    classes: Sequence[int] | None = None,
    most: int = 0,
) -> Domain:
    """Labelled files (at most so many, if that is not 0), split 75/25 by a stable hash of their paths below `root`."""
    paths = sorted(labelled)
    found = len(paths)
    names = {path: path.relative_to(root).as_posix() for path in paths}
    share = dict(zip(paths, stable_share(names.values()), strict=True))
    if most:  # by another hash, so that the split stays as it is
        draw = dict(zip(paths, stable_share(f"drawn {name}" for name in names.values()), strict=True))
        paths = sorted(sorted(paths, key=lambda path: draw[path])[:most])
    parts = [path for path in paths if share[path] < ADAPT], [path for path in paths if share[path] >= ADAPT]
    if not all(parts):
        drawn = f", of which {len(paths)} are drawn" if len(paths) < found else ""
        raise NotelaError(f"{root} holds {found} files{drawn}: too few to split into adaptation and held-out ones")
    adapt, test = (loader(Files(part, prepare)) for part in parts)
    adapt_labels, test_labels = (torch.tensor(np.array([labelled[path] for path in part])) for part in parts)
    return Domain(
        adapt=adapt,
        test=test,
        test_labels=test_labels,
        adapt_labels=adapt_labels,
        classes=classes,
        identity=" ".join(f"{names[path]} {path.stat().st_size}" for path in paths),
    )


def loader(files: Files) -> Files | DataLoader[Tensor]:
    """Files that other processes read ahead, as many as this run has threads, where there are enough files and where
    processes can be forked (a user's function need not be importable in a new one)."""
    if len(files) < WORTH_WORKERS or sys.platform != "linux":  # elsewhere a fork is missing or may crash
        return files
    return DataLoader(
        files,
        BATCH,
        num_workers=min(torch.get_num_threads(), MOST_WORKERS),
        multiprocessing_context="fork",
        pin_memory=torch.cuda.is_available(),
    )
