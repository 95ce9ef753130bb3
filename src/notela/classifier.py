"""Any torch classifier, seen as (embedding, logits): which layer is the head, what moves, which noise is on.

`Classifier` holds a private copy of the user's model. The class subset is applied here, once, before anything else
sees the logits.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from notela.errors import NotelaError

Trainable = str | tuple[str, ...]

ADDED_DROPOUT = 0.1


class Output(NamedTuple):
    """What a pass gives: embeddings (N, d) and logits over the kept classes (N, C), in float32."""

    features: Tensor
    logits: Tensor


class Classifier:
    """A copy of `model` that answers with `Output`, and the switches that adaptation may turn."""

    def __init__(
        self,
        model: nn.Module,
        example: Tensor,
        *,
        head: str | None = None,
        classes: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise NotelaError(
                f"model is a {type(model).__name__}; expected a torch.nn.Module (an instance, not a class)"
            )
        self.device = torch.device(device)
        try:
            self.model = copy.deepcopy(model).to(self.device).eval()
        except (RuntimeError, TypeError) as error:
            raise NotelaError(
                f"{type(model).__name__} cannot be copied ({error}); detach what it caches, or hand in a fresh "
                "instance with its state_dict loaded"
            ) from error
        self.added_dropout = 0.0
        self._noise = False
        self._embedding: Tensor | None = None
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self.dtype = floating_type(self.model)
        if self.dtype in (torch.float16, torch.bfloat16):
            raise NotelaError(
                f"the model's weights are {str(self.dtype).removeprefix('torch.')}, too coarse to hold small steps; "
                "hand in model.float(), and precision='bf16' if speed matters"
            )
        self._as_given = [(p, p.requires_grad) for p in self.model.parameters()]
        self._norms = [m for m in self.model.modules() if is_norm_layer(m)]
        self._momentum = {m: m.momentum for m in self.statistics_layers()}
        self.momentum = {m: 0.1 if m.momentum is None else m.momentum for m in self.statistics_layers()}
        """How fast running averages follow during the run; a layer's cumulative average (None) would hardly move."""
        self._tracking = {m: m.track_running_stats for m in self.statistics_layers()}
        self._dropping = [m for m in self.model.modules() if _dropout_rate(m) > 0]

        calls, raw = self._dry_pass(self.prepare(example), head)
        embedding, logits = split_output(raw)
        if logits.ndim != 2:
            raise NotelaError(
                f"the model's logits have shape {tuple(logits.shape)}; expected (rows, classes), one row an item"
            )
        self.outputs = logits.shape[1]
        self.gives_probabilities = bool(
            (logits >= 0).all()
            and torch.allclose(logits.sum(1), torch.ones(len(logits), device=self.device), atol=1e-4)
        )
        self.classes = check_classes(classes, self.outputs)
        self._kept = None if self.classes is None else torch.tensor(self.classes, device=self.device)
        self._candidates = [name for name, (module, _) in calls.items() if _is_pointwise(module)]
        self._returns_embedding = embedding is not None
        self.head = self._find_head(calls, logits) if head is None else self._named_head(head, calls)
        if self.head is not None:
            module = self.model.get_submodule(self.head)
            self._handles.append(module.register_forward_pre_hook(self._at_the_head, with_kwargs=True))

    # ---- passes

    def prepare(self, x: Tensor) -> Tensor:
        """Inputs in the model's floating type, on its device."""
        return to_model(x, self.device, self.dtype)

    def __call__(self, x: Tensor) -> Output:
        embedding, logits = split_output(self.model(self.prepare(x)))
        if (embedding is not None) != self._returns_embedding:
            raise NotelaError(
                "the model returns another kind of answer in training mode than in evaluation mode; use noise=False, "
                "or wrap it so that it always returns logits"
            )
        if embedding is None:
            embedding = self._embedding if self._embedding is not None else logits.new_empty(len(logits), 0)
        self._embedding = None  # it would hold on to this pass's gradients
        if self._kept is not None:
            logits = logits.index_select(1, self._kept)
        return Output(embedding.flatten(1).float(), logits.float())

    def set_mode(self, *, noise: bool, batch_statistics: bool, update_statistics: bool = False) -> None:
        """Student noise on or off, and normalisation by running averages or by the batch's own statistics.

        Noise is everything that `train()` turns on except normalisation: Dropout of every kind, DropPath,
        StochasticDepth, dropout called as a function. With `batch_statistics` and without `update_statistics` the
        running averages stay as they are.
        """
        self._noise = noise
        self.model.train(noise)
        for norm in self._norms:
            norm.training = False
        for layer, tracks in self._tracking.items():
            layer.training = batch_statistics
            layer.track_running_stats = tracks and (update_statistics or not batch_statistics)
            layer.momentum = self.momentum[layer] if update_statistics else 0.0  # InstanceNorm heeds only this

    def set_dropout(self) -> bool:
        """As deployed, but for dropout-like layers and dropout added to the embedding; says whether there are any. They
        keep no state, as other layers may in training mode, so that a pass leaves the model as it is."""
        self.set_mode(noise=False, batch_statistics=False)
        for module in self._dropping:
            module.training = True  # and not what is inside it
        self._noise = True
        return bool(self._dropping or self.added_dropout)

    # ---- what the model is made of

    def statistics_layers(self) -> list[_NormBase]:
        """The layers that keep running averages of their input (Batch-, SyncBatch-, some InstanceNorm)."""
        return [m for m in self.model.modules() if isinstance(m, _NormBase) and m.running_mean is not None]

    def has_noise(self, example: Tensor) -> bool:
        """Whether the student's passes differ from the teacher's: a dropout-like layer with a rate above 0, or, for
        dropout called as a function, a noisy pass that answers differently."""
        if self._dropping:
            return True
        with torch.no_grad():
            self.set_mode(noise=False, batch_statistics=False)
            clean = self(example).logits
            self.set_mode(noise=True, batch_statistics=False)
            return any(not torch.equal(clean, self(example).logits) for _ in range(4))

    def require_head(self, why: str) -> str:
        """The head's name, or an error that lists the layers it could be."""
        if self.head is None:
            names = ", ".join(repr(c) for c in self._candidates) or "no linear or 1×1 convolution layer ran"
            raise NotelaError(
                f"{why} needs the classification head, but no layer's output is the logits; name it with "
                f"head=..., one of: {names}"
            )
        return self.head

    def require_features(self, why: str) -> None:
        """Refuse a model whose embedding is not known."""
        if not self._returns_embedding:
            self.require_head(why)

    def select(self, trainable: Trainable, *, freeze_head: bool = False) -> dict[str, nn.Parameter]:
        """Let only the parameters of this policy move; returns them by name.

        "norm": scale and bias of every norm layer; "norm+head"; "all"; "body": all but the head; "none"; else
        name patterns such as ("layer4.*", "fc.*"). Parameters that came with requires_grad=False move too, if they
        are named.
        """
        named = dict(self.model.named_parameters())
        if trainable == "none":
            chosen: set[str] = set()
        elif trainable == "all":
            chosen = set(named)
        elif trainable == "body":
            chosen = set(named) - self._head_parameters("trainable='body'")
        elif trainable in ("norm", "norm+head"):
            own = {id(p) for layer in self._norms for p in layer.parameters(recurse=False)}
            chosen = {name for name, p in named.items() if id(p) in own}
            if trainable == "norm+head":  # a model without norm layers moves its head alone
                chosen |= self._head_parameters("trainable='norm+head'")
            if not chosen:
                raise NotelaError(
                    "trainable='norm', but the model has no normalisation layer with scale or bias; "
                    "choose trainable='body', 'all', or name patterns such as 'layer4.*'"
                )
        else:
            patterns = (trainable,) if isinstance(trainable, str) else trainable
            chosen = set()
            for pattern in patterns:
                matches = {name for name in named if fnmatchcase(name, pattern)}
                if not matches:
                    some = ", ".join(list(named)[:6])
                    raise NotelaError(
                        f"trainable={pattern!r} matches no parameter; choose 'norm', 'body', 'all' or a pattern "
                        f"of names like {some}"
                    )
                chosen |= matches
        if freeze_head:
            chosen -= self._head_parameters("freezing the head")
            if not chosen:
                raise NotelaError(
                    f"trainable={trainable!r} moves only the head, which this method freezes; choose 'norm' or 'body'"
                )
        chosen = {name for name in chosen if named[name].is_floating_point()}
        for name, parameter in named.items():
            parameter.requires_grad_(name in chosen)
        return {name: p for name, p in named.items() if name in chosen}

    def add_dropout(self, rate: float = ADDED_DROPOUT) -> None:
        """Drop embedding units on noisy passes: for a model that has no dropout of its own."""
        self.require_head("dropout on the embedding (the model has no dropout of its own)")
        self.added_dropout = rate

    def keep_handle(self, handle: torch.utils.hooks.RemovableHandle) -> None:
        """Remember a method's hook, so that `release` takes it off the model again."""
        self._handles.append(handle)

    def release(self) -> nn.Module:
        """The adapted model as a plain module in evaluation mode, with nothing of ours left on it."""
        self.set_mode(noise=False, batch_statistics=False)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for layer, momentum in self._momentum.items():
            layer.momentum = momentum
        for parameter, requires_grad in self._as_given:
            parameter.grad = None
            parameter.requires_grad_(requires_grad)
        return self.model

    # ---- inside

    def _at_the_head(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x, *rest = (*args, *kwargs.values())
        self._embedding = pool(x, module)
        if self.added_dropout and self._noise:
            x = nn.functional.dropout(x, self.added_dropout)
        return ((x, *args[1:]), kwargs) if args else ((), dict(zip(kwargs, (x, *rest), strict=True)))

    def _dry_pass(self, example: Tensor, head: str | None) -> tuple[dict[str, tuple[nn.Module, Tensor]], Any]:
        """One clean pass; returns the outputs of all layers that might be the head, in calling order."""
        calls: dict[str, tuple[nn.Module, Tensor]] = {}
        handles = []
        for name, module in self.model.named_modules():
            if _is_pointwise(module) or name == head:

                def remember(m: nn.Module, args: Any, out: Any, name: str = name) -> None:
                    calls.pop(name, None)
                    calls[name] = (m, out)

                handles.append(module.register_forward_hook(remember))
        try:
            with torch.no_grad():
                return calls, self.model(example)
        except Exception as error:
            reason = str(error).strip().splitlines()[:1]
            raise NotelaError(
                f"the model failed on the first {len(example)} items, shape {tuple(example.shape)}, dtype "
                f"{example.dtype}: {': '.join([type(error).__name__, *reason])}"
            ) from error
        finally:
            for handle in handles:
                handle.remove()

    def _find_head(self, calls: dict[str, tuple[nn.Module, Tensor]], logits: Tensor) -> str | None:
        for name, (module, out) in reversed(calls.items()):
            if isinstance(out, Tensor) and out.ndim >= 2:
                pooled = pool(out, module)
                if pooled.shape == logits.shape and torch.allclose(pooled, logits, rtol=1e-4, atol=1e-6):
                    return name
        return None

    def _named_head(self, head: str, calls: dict[str, tuple[nn.Module, Tensor]]) -> str:
        names = ", ".join(repr(c) for c in self._candidates)
        if head not in calls or head == "":
            raise NotelaError(f"head={head!r} is not a layer that runs in the model; candidates: {names}")
        module, out = calls[head]
        if not isinstance(out, Tensor) or pool(out, module).shape[-1] != self.outputs:
            raise NotelaError(
                f"head={head!r} does not give one number for each of the {self.outputs} classes; candidates: {names}"
            )
        return head

    def _head_parameters(self, why: str) -> set[str]:
        head = self.require_head(why)
        own = {id(p) for p in self.model.get_submodule(head).parameters()}
        return {name for name, p in self.model.named_parameters() if id(p) in own}


def split_output(raw: Any) -> tuple[Tensor | None, Tensor]:
    """(embedding or None, logits) from a tensor, an object with `.logits`, or a pair (embedding, logits).

    >>> split_output((torch.zeros(1, 3), torch.ones(1, 2)))
    (tensor([[0., 0., 0.]]), tensor([[1., 1.]]))
    """
    if isinstance(raw, Tensor):
        return None, raw
    logits = raw.get("logits") if isinstance(raw, dict) else getattr(raw, "logits", None)
    if isinstance(logits, Tensor):
        return None, logits
    if isinstance(raw, (tuple, list)) and len(raw) == 2 and all(isinstance(part, Tensor) for part in raw):
        return raw[0], raw[1]
    raise NotelaError(
        f"the model returned {type(raw).__name__}; expected logits, an object with .logits, or (embedding, logits)"
    )


def floating_type(model: nn.Module) -> torch.dtype:
    """The type of the model's weights."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def to_model(x: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Inputs as a model wants them; cast before they travel, since some devices know no float64."""
    return (x.to(dtype) if x.is_floating_point() else x).to(device, non_blocking=True)


def check_classes(classes: Any, outputs: int) -> tuple[int, ...] | None:
    """The kept classes as a tuple of indices, each once and within the model's outputs.

    >>> check_classes(range(2), 5)
    (0, 1)
    """
    if classes is None:
        return None
    indices = torch.as_tensor(classes).cpu() if isinstance(classes, Tensor) else np.asarray(classes)
    kept = tuple(indices.tolist()) if indices.ndim == 1 else (None,)
    if not kept:
        raise NotelaError("classes=[] keeps no class; leave it out to keep all of them")
    if not all(isinstance(c, int) and not isinstance(c, bool) for c in kept):
        raise NotelaError(
            f"classes={classes!r} must be a list of class numbers; for a mask, pass numpy.flatnonzero(mask)"
        )
    wrong = [c for c in kept if not 0 <= c < outputs]
    if wrong:
        raise NotelaError(f"classes holds {wrong[0]}, but the model has outputs 0 to {outputs - 1}")
    if len(set(kept)) < len(kept):
        twice = next(c for c in kept if kept.count(c) > 1)
        raise NotelaError(f"classes holds {twice} more than once; each kept class counts once")
    return kept


def pool(x: Tensor, layer: nn.Module) -> Tensor:
    """Mean over positions, if a layer answers at several: (N, d, ...) of a convolution, (N, ..., d) of any other."""
    if x.ndim <= 2:
        return x
    if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return x.flatten(2).mean(2)
    return x.flatten(1, -2).mean(1)


def is_norm_layer(module: nn.Module) -> bool:
    """Batch-, SyncBatch-, Instance-, Layer-, Group- and RMSNorm, and what other libraries name so.

    >>> is_norm_layer(nn.GroupNorm(2, 4)), is_norm_layer(nn.Linear(2, 2))
    (True, False)
    """
    if isinstance(module, (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)):
        return True
    by_name = re.search(r"norm(\d?d)?$|norm2d|batchnorm|layernorm", type(module).__name__, re.IGNORECASE)
    return bool(by_name) and not list(module.children()) and all(p.ndim <= 1 for p in module.parameters())


def _dropout_rate(module: nn.Module) -> float:
    """The rate of a dropout-like layer, by torch's, timm's, torchvision's or Hugging Face's attribute; 0 for others."""
    if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
        return float(module.dropout)
    if not re.search(r"drop(out|path|block|_path)|stochastic_?depth", type(module).__name__, re.IGNORECASE):
        return 0.0
    for attribute in ("p", "drop_prob", "drop_rate", "rate"):
        rate = getattr(module, attribute, None)
        if isinstance(rate, (int, float)):
            return float(rate)
    return 0.0


def _is_pointwise(module: nn.Module) -> bool:
    """A linear layer or a 1×1 convolution: what a classification head is made of."""
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return set(module.kernel_size) == {1} and module.groups == 1
    return isinstance(module, nn.Linear)
