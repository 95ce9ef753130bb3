"""Statistics of norm layers, re-estimated on the target before a run: all the way, or part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from notela.stable import number_from

if TYPE_CHECKING:
    from notela.classifier import Classifier
    from notela.state import State

SHARES = {"half": 0.5, "re-estimated": 1.0}
"""Of the target in the statistics that are taken once before the first epoch."""


def layers_of(classifier: Classifier) -> list[_BatchNorm]:
    """The layers whose statistics can be re-estimated: every kind of batch norm with running averages."""
    return [layer for layer in classifier.statistics_layers() if isinstance(layer, _BatchNorm)]


def reestimate(state: State, share: float = 1.0) -> None:
    """Running averages part of the way (`share`) from the source's to those of the whole set, in one pass.

    Each layer already normalises as it will in the end, by its batch's moments as far as `share` goes: moments that are
    measured behind layers with the target's statistics and then averaged with the source's would fit neither.
    """
    layers = layers_of(state.classifier)
    blends = [Blended(layer, share) for layer in layers]
    handles = [
        layer.register_forward_pre_hook(blend, with_kwargs=True) for layer, blend in zip(layers, blends, strict=True)
    ]
    state.classifier.set_mode(noise=False, batch_statistics=False)
    order = torch.randperm(len(state.data), generator=torch.Generator().manual_seed(number_from(state.seed, 0, 3)))
    done = 0
    with torch.no_grad():
        for rows, x in state.data.batches(order):
            state.classifier(x)
            done += len(rows)
            if state.progress is not None:
                state.progress.sweep(done)
    for handle, blend in zip(handles, blends, strict=True):
        handle.remove()
        if blend.moments.number:  # a layer that no pass reaches stays as it was
            blend.set(blend.moments)


class Blended:
    """A hook before a layer in evaluation mode: it pools the moments of all inputs, and has each batch normalised by
    its own, blended with the source's."""

    def __init__(self, layer: _BatchNorm, share: float) -> None:
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self.mean, self.variance, self.share = layer.running_mean, layer.running_var, share
        self.source = layer.running_mean.clone(), layer.running_var.clone()
        self.moments = Moments()

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        batch = Moments.of(args[0] if args else named["input"])
        self.moments = self.moments + batch
        self.set(batch)

    def set(self, moments: Moments) -> None:
        """The layer's running averages, blended from these and the source's."""
        pairs = zip((self.mean, self.variance), self.source, (moments.mean, moments.variance), strict=True)
        for average, source, target in pairs:
            average.copy_(torch.lerp(source, target.to(source), self.share))


class Moments(NamedTuple):
    """How many values each channel of a layer's input had, their mean and their (biased) variance."""

    number: int = 0
    mean: Tensor = torch.zeros(())
    variance: Tensor = torch.zeros(())

    @classmethod
    def of(cls, x: Tensor) -> Moments:
        """Of inputs (N, channels, ...)."""
        x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        values = x.transpose(0, 1).flatten(1)
        variance, mean = torch.var_mean(values, 1, correction=0)
        return cls(values.shape[1], mean, variance)

    def __add__(self, other: Moments) -> Moments:  # type: ignore[override]  # a tuple's sum is of no use here
        """Of two groups together: Chan, Golub & LeVeque (1983)."""
        if not self.number:
            return other
        m, n, total = self.number, other.number, self.number + other.number
        step = other.mean - self.mean
        variance = (m * self.variance + n * other.variance + step.square() * m * n / total) / total
        return Moments(total, self.mean + step * n / total, variance)
