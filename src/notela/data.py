"""The door: whatever the user hands in becomes rows of inputs by index, and labels stay outside."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
)

from notela.errors import NotelaError, check_integer

_HASH_ALL_UP_TO = 2**30  # bytes


class Unlabelled:
    """Rows of inputs from a tensor, an array, a map-style dataset or a DataLoader (whose workers, collate function
    and batch size are kept; the order is ours). Items may be x, (x, label) or dicts; only x comes through."""

    def __init__(
        self,
        data: Any,
        *,
        key: str | None = None,
        batch_size: int | None = None,
        default_batch: int = 64,
    ) -> None:
        self._key = key
        self._array: Tensor | None = None
        loader = data if isinstance(data, DataLoader) else None
        if loader is not None:
            data = _rows_of(loader)
        if batch_size is None:
            batch_size = default_batch if loader is None else loader.batch_size
        check_integer("batch_size", batch_size, 1)
        self.batch_size = int(batch_size)  # type: ignore[arg-type]
        if isinstance(data, (tuple, dict, str)):
            raise NotelaError(f"data is a {type(data).__name__}; hand in the inputs alone: a tensor, array or dataset")
        if isinstance(data, np.ndarray):
            data = _from_numpy(data)
        if isinstance(data, Tensor) and loader is None:
            self._array = data.detach()
        elif isinstance(data, IterableDataset) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise NotelaError(
                f"{type(data).__name__} can only be read from front to back, and adaptation needs items by number: "
                "either give it __len__ and __getitem__ (a map-style torch Dataset), or collect it first, "
                "torch.stack(list(items))"
            )
        self._items = data
        if isinstance(data, Tensor) and data.ndim == 0:
            raise NotelaError("data is a single number; expected rows of inputs")
        if len(self) == 0:
            raise NotelaError("the data holds no items; adaptation needs unlabelled examples of the new place")
        self._order = _Order()
        self._example: Tensor | None = None
        self._loader = None if self._array is not None else self._make_loader(loader)

    def __len__(self) -> int:
        return len(self._items)

    def example(self) -> Tensor:
        """The first rows, for a dry pass."""
        if self._example is None:
            self._example = next(self.batches(torch.arange(min(2, len(self)))))[1]
        return self._example

    def steps(self) -> int:
        """Batches in one pass over all rows."""
        return len(_batch_rows(torch.arange(len(self)), self.batch_size))

    def batches(self, order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(row numbers, inputs) batch by batch, rows in the given order; a lone last row joins the batch before."""
        groups = _batch_rows(order, self.batch_size)
        if self._array is not None:
            pairs: Iterator[tuple[Tensor, Any]] = ((rows, self._array[rows]) for rows in groups)
        else:
            self._order.groups = groups
            pairs = iter(self._loader)  # type: ignore[arg-type]
        try:
            for rows, x in pairs:
                self._check(rows, x)
                yield rows, x
        except NotelaError as error:  # from a worker it comes wrapped in that process's traceback
            raise NotelaError(
                str(error).strip().splitlines()[-1].removeprefix("notela.errors.NotelaError: ")
            ) from error

    def fingerprint(self) -> str:
        """A hash of what the data is: all of an array (4,096 rows spread over it, if it is larger than a gigabyte);
        of a dataset its size and 16 items.

        Items that come out differently each time (random augmentation) count by shape only.
        """
        digest = hashlib.sha256(f"{len(self)} rows".encode())
        if self._array is not None:
            large = self._array.nbytes > _HASH_ALL_UP_TO
            feed(digest, self._array[_spread(len(self), 4096)] if large else self._array)
        else:
            rows = _spread(len(self), min(16, self.batch_size))
            first, again = (next(self.batches(rows))[1] for _ in range(2))
            digest.update(str((first.dtype, first.shape[1:])).encode())
            if torch.equal(first, again):
                feed(digest, first)
        return digest.hexdigest()[:16]

    def _make_loader(self, loader: DataLoader[Any] | None) -> DataLoader[Any]:
        collate = default_collate if loader is None else loader.collate_fn
        settings: dict[str, Any] = {}
        if loader is not None:
            settings = {
                "num_workers": loader.num_workers,
                "pin_memory": loader.pin_memory,
                "timeout": loader.timeout,
                "worker_init_fn": loader.worker_init_fn,
                "multiprocessing_context": loader.multiprocessing_context,
                "prefetch_factor": loader.prefetch_factor,
            }  # not persistent_workers: their random numbers would remember earlier epochs, and a resumed run could not
        return DataLoader(
            _Numbered(self._items),
            batch_sampler=self._order,
            collate_fn=_Collate(collate, self._key),
            **settings,
        )

    def _check(self, rows: Tensor, x: Any) -> None:
        if not isinstance(x, Tensor):
            raise NotelaError(
                f"items hold {type(x).__name__} where a tensor is needed; convert them in the dataset's __getitem__"
            )
        if len(x) != len(rows):
            raise NotelaError(f"the collate function made {len(x)} rows of {len(rows)} items; it must keep every item")
        if x.is_floating_point() and not x.isfinite().all():
            bad = rows[(~x.isfinite()).reshape(len(x), -1).any(1).cpu()].tolist()
            raise NotelaError(
                f"the input holds NaN or infinity in items {_some(bad)}; remove or repair them and run again"
            )


class _Numbered(Dataset[tuple[int, Any]]):
    """A dataset whose items carry their number."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> tuple[int, Any]:
        return row, self.items[row]


class _Order:
    """A batch sampler whose next pass is set from outside, so that one loader and its workers serve every pass."""

    groups: Sequence[Tensor] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return (rows.tolist() for rows in self.groups)

    def __len__(self) -> int:
        return len(self.groups)


class _Collate:
    """The user's collate function between "number the items" and "cut the labels off"."""

    def __init__(self, collate: Any, key: str | None) -> None:
        self.collate, self.key = collate, key

    def __call__(self, numbered: list[tuple[int, Any]]) -> tuple[Tensor, Any]:
        rows, items = zip(*numbered, strict=True)
        if self.collate is default_collate:  # labels may be anything, so they go before the batch is made
            try:
                x = default_collate([_as_tensor(inputs(item, self.key)) for item in items])
            except (RuntimeError, TypeError) as error:
                reason = str(error).splitlines()[0]
                raise NotelaError(
                    f"items {_some(list(rows))} do not make a batch ({reason}); give all of them one shape and type, "
                    "or pass a DataLoader with a collate_fn that does"
                ) from error
        else:
            x = inputs(self.collate(list(items)), self.key)
        return torch.tensor(rows), x


def inputs(item: Any, key: str | None) -> Any:
    """x out of x, (x, label, ...) or a dict.

    >>> inputs((1.5, "a label"), None), inputs({"audio": 2.5, "label": 3}, "audio")
    (1.5, 2.5)
    """
    if isinstance(item, dict) or (hasattr(item, "keys") and hasattr(item, "__getitem__")):
        keys = list(item.keys())
        if key is None and len(keys) == 1:
            key = keys[0]
        if key not in keys:
            raise NotelaError(
                f"items are dicts with the keys {', '.join(map(repr, keys))}; "
                f"say which one holds the input with key=... (now {key!r})"
            )
        return item[key]
    if isinstance(item, (tuple, list)):
        if not item:
            raise NotelaError("the data holds empty tuples; items may be x, (x, label) or dicts")
        return item[0]
    return item


def _rows_of(loader: DataLoader[Any]) -> Any:
    """The items that a loader reads: its dataset, or the part of it that its sampler names."""
    if isinstance(loader.dataset, IterableDataset):
        return loader.dataset
    if loader.batch_size is None:
        raise NotelaError(
            "this DataLoader makes its own batches (batch_sampler=, or batch_size=None), and adaptation draws other "
            "ones each epoch; hand in its dataset, or DataLoader(dataset, batch_size=...)"
        )
    if type(loader.sampler) in (SequentialSampler, RandomSampler):
        return loader.dataset
    return Subset(loader.dataset, sorted({int(row) for row in loader.sampler}))


def _batch_rows(order: Tensor, size: int) -> list[Tensor]:
    groups = list(order.split(size))
    if size > 1 and len(groups) > 1 and len(groups[-1]) == 1:  # a lone row has no batch statistics
        groups[-2:] = [torch.cat(groups[-2:])]
    return groups


def _spread(n: int, count: int) -> Tensor:
    rows: Tensor = torch.linspace(0, n - 1, min(n, count), dtype=torch.float64).long().unique()
    return rows


def _as_tensor(x: Any) -> Any:
    return _from_numpy(x) if isinstance(x, np.ndarray) else x


def _from_numpy(x: np.ndarray[Any, Any]) -> Tensor:
    if x.dtype == object or x.dtype.kind in "US":
        raise NotelaError(f"the data is an array of {x.dtype}; expected numbers of one shape")
    with warnings.catch_warnings():  # torch warns of read-only memory (np.memmap); nothing here writes to it
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(np.ascontiguousarray(x))


def feed(digest: hashlib._Hash, x: Tensor) -> None:
    """Add a tensor's type, shape and bytes to a hash."""
    digest.update(f"{x.dtype}{tuple(x.shape)}".encode())
    digest.update(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def _some(rows: list[int]) -> str:
    return ", ".join(map(str, rows[:8])) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
