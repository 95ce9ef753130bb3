"""The door: every form of data gives the same rows, labels never come through, mistakes get one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from notela import data as data_module
from notela.data import Unlabelled
from notela.errors import NotelaError

X = torch.randn(11, 3, generator=torch.Generator().manual_seed(0))


class Items(Dataset[Any]):
    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> Any:
        return self.make(i)


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(X)


def gather(data: Unlabelled, order: Tensor | None = None) -> Tensor:
    order = torch.arange(len(data)) if order is None else order
    out = torch.full_like(X[: len(data)], torch.nan)
    for rows, x in data.batches(order):
        out[rows] = x.float()
    return out


FORMS: dict[str, Any] = {
    "tensor": X,
    "array": X.numpy(),
    "float64 array": X.double().numpy(),
    "list": list(X),
    "dataset of x": Items(lambda i: X[i]),
    "dataset of (x, label)": TensorDataset(X, torch.arange(11)),
    "dataset of arrays with odd labels": Items(lambda i: (X[i].numpy(), None if i % 2 else "a" * i)),
    "dataset of one-key dicts": Items(lambda i: {"audio": X[i]}),
    "loader": DataLoader(TensorDataset(X, torch.arange(11)), batch_size=4, shuffle=True),
    "loader with workers": DataLoader(TensorDataset(X), batch_size=4, num_workers=1, persistent_workers=True),
    "loader with collate": DataLoader(
        Items(lambda i: (X[i], i)), 4, collate_fn=lambda b: (torch.stack([x for x, _ in b]), 0)
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_rows_in_any_order(form: str) -> None:
    data = Unlabelled(FORMS[form])
    assert len(data) == 11
    torch.testing.assert_close(gather(data), X)
    torch.testing.assert_close(gather(data, torch.randperm(11)), X)
    assert data.example().shape == (2, 3)


def test_batch_size_is_the_callers_then_the_loaders_then_the_default() -> None:
    loader = DataLoader(X, batch_size=4)
    assert Unlabelled(loader).batch_size == 4
    assert Unlabelled(loader, batch_size=5).batch_size == 5
    assert Unlabelled(X).batch_size == 64
    assert Unlabelled(X, default_batch=8).batch_size == 8


def test_a_lone_last_row_joins_the_batch_before() -> None:
    sizes = [len(rows) for rows, _ in Unlabelled(X, batch_size=5).batches(torch.arange(11))]
    assert sizes == [5, 6]
    assert Unlabelled(X, batch_size=5).steps() == 2
    assert [len(r) for r, _ in Unlabelled(X, batch_size=4).batches(torch.arange(11))] == [4, 4, 3]
    assert Unlabelled(X, batch_size=1).steps() == 11


def test_a_samplers_subset_is_kept() -> None:
    data = Unlabelled(DataLoader(X, batch_size=2, sampler=SubsetRandomSampler([7, 2, 5])))
    assert len(data) == 3
    torch.testing.assert_close(gather(data), X[[2, 5, 7]])
    often = WeightedRandomSampler([0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0], 40)
    assert len(Unlabelled(DataLoader(X, batch_size=2, sampler=often))) == 2, "a row drawn often is still one row"


def test_dicts_need_a_key() -> None:
    items = Items(lambda i: {"audio": X[i], "label": i})
    torch.testing.assert_close(gather(Unlabelled(items, key="audio")), X)
    with pytest.raises(NotelaError, match="keys 'audio', 'label'.*key="):
        Unlabelled(items).example()
    with pytest.raises(NotelaError, match="now 'sound'"):
        Unlabelled(items, key="sound").example()


@pytest.mark.parametrize("data", [Stream(), DataLoader(Stream(), 2), (x for x in X)])
def test_data_without_length_names_two_ways_out(data: Any) -> None:
    with pytest.raises(NotelaError, match="__len__ and __getitem__.*torch.stack"):
        Unlabelled(data)


def test_loaders_that_batch_themselves_are_refused() -> None:
    own = DataLoader(X, batch_sampler=BatchSampler(RandomSampler(range(11)), 3, drop_last=False))
    with pytest.raises(NotelaError, match="makes its own batches"):
        Unlabelled(own)


def test_empty_data_and_empty_batches_are_refused() -> None:
    with pytest.raises(NotelaError, match="no items"):
        Unlabelled(X[:0])
    with pytest.raises(NotelaError, match="batch_size=0"):
        Unlabelled(X, batch_size=0)
    with pytest.raises(NotelaError, match="single number"):
        Unlabelled(torch.tensor(3.0))


@pytest.mark.parametrize("data", [(X, torch.arange(11)), {"x": X}, "recordings/"])
def test_pairs_dicts_and_names_are_refused(data: Any) -> None:
    with pytest.raises(NotelaError, match=f"data is a {type(data).__name__}; hand in the inputs alone"):
        Unlabelled(data)


@pytest.mark.parametrize("workers", [0, 1])
def test_items_of_several_shapes_are_named_in_one_sentence(workers: int) -> None:
    loader = DataLoader(Items(lambda i: torch.zeros(i + 1)), batch_size=4, num_workers=workers)
    with pytest.raises(NotelaError, match="^items 0, 1, 2, 3 do not make a batch") as error:
        gather(Unlabelled(loader))
    assert "\n" not in str(error.value)


def test_arrays_of_any_layout(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.numpy())
    torch.testing.assert_close(gather(Unlabelled(np.load(tmp_path / "x.npy", mmap_mode="r"))), X)
    torch.testing.assert_close(gather(Unlabelled(X.numpy()[::-1])), X.flip(0))
    with pytest.raises(NotelaError, match="array of object"):
        Unlabelled(np.array([None, 1]))
    with pytest.raises(NotelaError, match="items 1;"):
        next(Unlabelled(torch.tensor([1.0, torch.nan])).batches(torch.arange(2)))


def test_random_numbers_of_workers_do_not_remember_earlier_epochs() -> None:
    """A resumed run starts fresh workers; so must every epoch of an uninterrupted one."""
    noisy = Items(lambda i: torch.rand(3))
    data = Unlabelled(DataLoader(noisy, batch_size=11, num_workers=1, persistent_workers=True))

    def epoch() -> Tensor:
        torch.manual_seed(0)
        return next(data.batches(torch.arange(11)))[1]

    assert torch.equal(epoch(), epoch())


def test_nan_names_the_items() -> None:
    bad = X.clone()
    bad[3, 1], bad[9, 0] = torch.nan, torch.inf
    with pytest.raises(NotelaError, match="items 3, 9;"):
        gather(Unlabelled(bad))
    with pytest.raises(NotelaError, match="items 3;"):
        gather(Unlabelled(TensorDataset(bad), batch_size=4))


def test_a_collate_function_that_loses_items_is_refused() -> None:
    loader = DataLoader(X, batch_size=4, collate_fn=lambda items: torch.stack(items[1:]))
    with pytest.raises(NotelaError, match="made 3 rows of 4 items"):
        gather(Unlabelled(loader))


def test_items_that_are_no_tensors_are_refused() -> None:
    with pytest.raises(NotelaError, match="hold list"):
        gather(Unlabelled(Items(lambda i: "a file name")))


def test_fingerprint_follows_content_not_labels_nor_noise() -> None:
    def mark(data: Any) -> str:
        return Unlabelled(data).fingerprint()

    other = X.clone()
    other[5, 1] += 1
    assert mark(X) == mark(X.clone())
    assert mark(X) != mark(other)
    assert mark(TensorDataset(X, torch.zeros(11))) == mark(TensorDataset(X, torch.ones(11)))
    assert mark(TensorDataset(X)) != mark(TensorDataset(other))
    noisy = Items(lambda i: X[i] + torch.rand(3))
    assert mark(noisy) == mark(noisy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_module, "_HASH_ALL_UP_TO", 8)
        large = torch.zeros(10_000, 1)
        other = large.clone()
        other[-1] = 1
        assert mark(large) != mark(other)
    assert data_module._spread(2**26 + 3, 4096)[-1] == 2**26 + 2
    assert mark(np.arange(6.0)) != mark(np.arange(6.0).reshape(2, 3))
