"""AdaBN: the norm layers' population statistics, estimated anew on the target (Li et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from notela.errors import NotelaError
from notela.methods.base import Batch, Method, Preset

if TYPE_CHECKING:
    from notela.state import State


@dataclass(frozen=True)
class AdaBN(Method):
    """Forward passes only.

    As published: an exponential average that starts from the source's statistics, with each layer's own `momentum`
    (torch's sense) or one for all. `exact`: mean and variance of each layer's input pooled over the whole set, epoch
    by epoch, while the layers before it normalise with batch statistics.
    """

    name = "adabn"
    momentum: float | None = None
    exact: bool = False

    def __post_init__(self) -> None:
        if self.momentum is not None and not 0 < self.momentum <= 1:
            raise NotelaError(f"momentum={self.momentum} must be above 0 and at most 1")
        if self.exact and self.momentum is not None:
            raise NotelaError(f"exact=True pools the whole set and has no momentum; leave out momentum={self.momentum}")

    def before_run(self, state: State) -> None:
        layers = state.classifier.statistics_layers()
        if not layers or state.preset.statistics != "target":
            raise NotelaError(
                "adabn changes nothing but running averages of norm layers, and "
                + (
                    f"statistics={state.preset.statistics!r} freezes them"
                    if layers
                    else "this model has none (no BatchNorm)"
                )
                + "; choose another method such as 'notela'"
            )
        for layer in layers:
            if self.momentum is not None:
                state.classifier.momentum[layer] = self.momentum
            if self.exact and isinstance(layer, _BatchNorm):
                state.classifier.keep_handle(layer.register_forward_hook(Pooled(state)))

    def loss(self, batch: Batch, state: State) -> None:
        state.student(batch.x)


class Moments(NamedTuple):
    """How many values each channel of a layer's input had, their mean and their (biased) variance."""

    number: int = 0
    mean: Tensor = torch.zeros(())
    variance: Tensor = torch.zeros(())

    @classmethod
    def of(cls, x: Tensor) -> Moments:
        """Of inputs (N, channels, ...)."""
        values = x.detach().float().transpose(0, 1).flatten(1)
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


class Pooled:
    """A forward hook: sets a layer's running averages to the moments of all its inputs of the current epoch."""

    def __init__(self, state: State) -> None:
        self.state, self.epoch, self.moments = state, 0, Moments()

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        if not isinstance(layer, _BatchNorm) or not (layer.training and layer.track_running_stats):
            return
        assert layer.running_mean is not None
        assert layer.running_var is not None
        if self.epoch != self.state.epoch:
            self.epoch, self.moments = self.state.epoch, Moments()
        self.moments = self.moments + Moments.of(args[0])
        layer.running_mean.copy_(self.moments.mean)
        layer.running_var.copy_(self.moments.variance)


SHARES = {"half": 0.5, "re-estimated": 1.0}
"""Of the target in the statistics that are taken once before the first epoch."""


def reestimate(state: State, share: float = 1.0) -> None:
    """Running averages part of the way (`share`) from the source's to those of the whole set, in one pass.

    Each layer already normalises as it will in the end, by its batch's moments as far as `share` goes: moments that are
    measured behind layers with the target's statistics and then averaged with the source's would fit neither.
    """
    layers = [layer for layer in state.classifier.statistics_layers() if isinstance(layer, _BatchNorm)]
    blends = [Blended(layer, share) for layer in layers]
    handles = [layer.register_forward_pre_hook(blend) for layer, blend in zip(layers, blends, strict=True)]
    state.classifier.set_mode(noise=False, batch_statistics=False)
    done = 0
    with torch.no_grad():
        for rows, x in state.data.batches(torch.randperm(len(state.data))):
            state.classifier(x)
            done += len(rows)
            if state.progress is not None:
                state.progress.sweep(done)
    for handle, blend in zip(handles, blends, strict=True):
        handle.remove()
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

    def __call__(self, layer: nn.Module, args: tuple[Any, ...]) -> None:
        batch = Moments.of(args[0])
        self.moments = self.moments + batch
        self.set(batch)

    def set(self, moments: Moments) -> None:
        """The layer's running averages, blended from these and the source's."""
        self.mean.copy_(torch.lerp(self.source[0], moments.mean, self.share))
        self.variance.copy_(torch.lerp(self.source[1], moments.variance, self.share))


def _preset(noise: bool) -> Preset:
    return Preset(AdaBN(), trainable="none", learning_rate=0.0, statistics="target", noise=noise)


PRESETS = {"image": _preset(False), "audio-multilabel": _preset(True), "audio-singlelabel": _preset(True)}
GRID = (AdaBN(),)
