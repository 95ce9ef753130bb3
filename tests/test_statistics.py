"""Statistics that are re-estimated on the target, all the way or half of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import notela
from conftest import Net, moved
from notela import methods
from notela.bench.suite import Loaded, find
from notela.methods import Preset
from notela.statistics import SHARES, Moments

Quick = Callable[..., notela.Result]


def deep() -> nn.Sequential:
    """Three norm layers: what the second measures depends on how the first normalises."""
    torch.manual_seed(3)
    net = nn.Sequential(
        *(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU()),
        *(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()),
        *(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4)),
    )
    with torch.no_grad():
        net.train()(torch.randn(200, 8))  # so that running averages are of something
    return net.eval()


def by_hand(net: nn.Sequential, x: Tensor, share: float) -> nn.Sequential:
    """Layer by layer on the whole set: measure, blend, normalise with the blend, go on."""
    net = copy.deepcopy(net)
    with torch.no_grad():
        for layer in net:
            if isinstance(layer, nn.BatchNorm1d):
                layer.running_mean += share * (x.mean(0) - layer.running_mean)
                layer.running_var += share * (x.var(0, correction=0) - layer.running_var)
            x = layer(x)
    return net


def statistics_alone(share: str, **settings: Any) -> dict[str, Any]:
    preset = Preset(methods.TENT(), trainable="norm", learning_rate=0.0, statistics=share)
    return {"task": "singlelabel", "method": preset, "epochs": 1, **settings}


@pytest.mark.parametrize("share", SHARES)
def test_each_layer_measures_behind_layers_that_are_blended_already(share: str, x: Tensor, quick: Quick) -> None:
    net = deep()
    found = quick(net, x, **statistics_alone(share, batch_size=len(x))).model
    expected = by_hand(net, x, SHARES[share])
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


def test_half_way_is_not_the_mean_of_both_ends(x: Tensor, quick: Quick) -> None:
    """In deeper layers: they measure what earlier layers make of it."""
    net = deep()
    half, whole = (quick(net, x, **statistics_alone(share)).model.state_dict() for share in SHARES)
    for layer, alike in (("1", True), ("4", False), ("7", False)):
        name = f"{layer}.running_var"
        assert torch.allclose(half[name], (net.state_dict()[name] + whole[name]) / 2, rtol=1e-3) == alike


@pytest.mark.parametrize("share", SHARES)
def test_the_first_layer_does_not_feel_the_size_of_batches(share: str, x: Tensor, quick: Quick) -> None:
    small, large = (quick(deep(), x, **statistics_alone(share, batch_size=n)).model.state_dict() for n in (7, 70))
    for name in ("1.running_mean", "1.running_var"):
        torch.testing.assert_close(small[name], large[name])


@pytest.mark.parametrize("share", SHARES)
def test_nothing_but_statistics_moves_before_the_first_epoch(share: str, net: Net, x: Tensor, quick: Quick) -> None:
    result = quick(net, x, **statistics_alone(share))
    assert moved(net, result.model) == {"bn.running_mean", "bn.running_var"}


@pytest.mark.parametrize("share", SHARES)
def test_a_last_batch_of_one_is_no_obstacle(share: str, x: Tensor, quick: Quick) -> None:
    result = quick(deep(), x[:33], **statistics_alone(share, batch_size=16))
    assert all(t.isfinite().all() for t in result.model.state_dict().values())


def test_models_in_double_precision_keep_it(x: Tensor, quick: Quick) -> None:
    result = quick(deep().double(), x.double(), **statistics_alone("half"))
    assert {t.dtype for name, t in result.model.state_dict().items() if "running" in name} == {torch.float64}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), cuts=st.lists(st.integers(1, 39), max_size=4), far=st.floats(-100, 100))
def test_moments_of_parts_add_up_to_those_of_the_whole(seed: int, cuts: list[int], far: float) -> None:
    x = torch.randn(40, 3, 5, generator=torch.Generator().manual_seed(seed)) + far
    total = Moments()
    for part in x.tensor_split(sorted(cuts)):
        total = total + Moments.of(part) if len(part) else total
    values = x.double().transpose(0, 1).flatten(1)
    assert total.number == 200
    torch.testing.assert_close(total.mean.double(), values.mean(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(total.variance.double(), values.var(1, correction=0), rtol=1e-3, atol=1e-3)


class Branches(nn.Module):
    """A norm layer that no pass reaches, one that is called by keyword, and one that is no batch norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.aside, self.norm = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
        self.instance = nn.InstanceNorm1d(4, track_running_stats=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(input=x)
        return self.head(self.instance(x.view(-1, 4, 2)).flatten(1))


@pytest.mark.parametrize("share", SHARES)
def test_only_batch_norm_that_is_reached_is_re_estimated(share: str, x: Tensor, quick: Quick) -> None:
    net = Branches().eval()
    result = quick(net, x, **statistics_alone(share))
    assert moved(net, result.model) == {"norm.running_mean", "norm.running_var"}


def test_instance_norm_alone_is_told_to_have_none(x: Tensor, quick: Quick) -> None:
    net = nn.Sequential(nn.Unflatten(1, (4, 2)), nn.InstanceNorm1d(4, affine=True, track_running_stats=True))
    net = nn.Sequential(net, nn.Flatten(), nn.Linear(8, 3)).eval()
    result = quick(net, x, **statistics_alone("re-estimated"))
    assert "statistics='re-estimated' has no effect: the model keeps no running averages" in result.notes
    assert not [note for note in quick(net, x, task="singlelabel", method="auto").notes if "statistics" in note]


def test_auto_needs_no_variance_where_there_is_nothing_to_re_estimate(x: Tensor, quick: Quick) -> None:
    bare = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 3)).eval()
    quick(bare, x[:9], task="singlelabel", method="auto", batch_size=1)
    batches = quick(deep(), x[:9], task="singlelabel", method="auto", batch_size=1)
    assert [
        note for note in batches.notes if "stay the source's: one item, or batches of one, have no variance" in note
    ]


def test_double_precision_is_used_where_the_model_has_it() -> None:
    x = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1e6
    torch.testing.assert_close(Moments.of(x).variance, x.var(0, correction=0), rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ["contrast", "blur"])
def test_on_digits_half_way_is_much_better_than_averages_taken_afterwards(name: str, quick: Quick) -> None:
    loaded = Loaded(find("digits"))
    domain = loaded.domain(name)[0]
    half, whole = (quick(loaded.model, domain.adapt, **statistics_alone(share)).model for share in SHARES)
    averaged = copy.deepcopy(whole)
    for mine, source in zip(averaged.buffers(), loaded.model.buffers(), strict=True):
        if mine.is_floating_point():
            mine.lerp_(source, 0.5)

    def right(net: nn.Module) -> float:
        with torch.no_grad():
            first = net.eval()(torch.cat([domain.adapt, domain.test])).argmax(1)
        return float((first == torch.cat([domain.adapt_labels, domain.test_labels])).float().mean())

    assert right(half) > right(averaged) + 0.05
    assert right(whole) > right(loaded.model) + 0.3
