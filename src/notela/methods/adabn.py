"""AdaBN: the norm layers' population statistics, estimated anew on the target (Li et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from notela.errors import NotelaError
from notela.methods.base import Batch, Method, Preset
from notela.statistics import Moments

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


def _preset(noise: bool) -> Preset:
    return Preset(AdaBN(), trainable="none", learning_rate=0.0, statistics="target", noise=noise)


PRESETS = {"image": _preset(False), "audio-multilabel": _preset(True), "audio-singlelabel": _preset(True)}
GRID = (AdaBN(),)
