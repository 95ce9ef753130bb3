"""Runs are folders: `run.json`, `history.jsonl`, a checkpoint while running, `model.safetensors` at the end.

Every file is written aside and renamed, so a reader never sees half of one. Nothing here unpickles anything.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import notela
from notela.data import Unlabelled, feed
from notela.errors import NotelaError
from notela.guard import Verdict

if TYPE_CHECKING:
    from notela.loop import Loop, Result
    from notela.methods.base import Preset

_ADAM = ("step", "exp_avg", "exp_avg_sq")


def save(result: Result, folder: str | os.PathLike[str]) -> None:
    """Write an adapted model (safetensors), its provenance (`run.json`) and its history into a folder."""
    if not hasattr(result, "description"):
        raise NotelaError(f"save takes what adapt returned, not a {type(result).__name__}: notela.save(result, folder)")
    RunFolder(folder, result.description).finish(result)


def load(folder: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """A copy of `model` (the same architecture) with the weights saved in a folder, in evaluation mode."""
    if not isinstance(model, nn.Module):
        raise NotelaError(f"load takes a folder, then a model of the same architecture, not a {type(model).__name__}")
    adapted = copy.deepcopy(model)
    _load_weights(Path(folder) / "model.safetensors", adapted)
    return adapted.eval()


def provenance(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """How a saved model was made: method, settings, versions, fingerprints, notes."""
    return _read_json(Path(folder) / "run.json")


def fingerprint(model: nn.Module) -> str:
    """A hash of a model's layers (dropout rates and the like) and weights."""
    digest = hashlib.sha256(re.sub(r" at 0x\w+", "", repr(model)).encode())
    for name, tensor in _tensors(model).items():
        digest.update(name.encode())
        feed(digest, tensor)
    return digest.hexdigest()[:16]


def describe(model: nn.Module, data: Unlabelled, preset: Preset, **rest: Any) -> dict[str, Any]:
    """Everything that determines a run, as plain JSON values, and the versions it was made with."""
    description = {
        "settings": preset.settings(),
        **rest,
        "data": {"rows": len(data), "fingerprint": data.fingerprint()},
        "model": {"type": type(model).__name__, "fingerprint": fingerprint(model)},
        "versions": {
            "notela": notela.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    plain: dict[str, Any] = json.loads(json.dumps(description, default=lambda number: number.item()))  # NumPy's
    return plain


@dataclass
class Checkpoint:
    """A run as it stood after an epoch."""

    tensors: dict[str, Tensor]
    epoch: int
    step: int
    history: list[dict[str, Any]]
    source: dict[str, Any] | None
    notes: list[str]
    scaler: dict[str, Any]

    @property
    def banks(self) -> dict[str, Tensor]:
        return {name.removeprefix("bank/"): t for name, t in self.tensors.items() if name.startswith("bank/")}

    def restore(
        self,
        model: nn.Module,
        parameters: dict[str, nn.Parameter],
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler,
    ) -> None:
        """Put model, optimiser and loss scale back."""
        with torch.no_grad():
            for name, tensor in _tensors(model).items():
                tensor.copy_(self.tensors[f"model/{name}"])
        if optimizer is not None:
            for name, parameter in parameters.items():
                if f"adam/{name}/step" in self.tensors:
                    moments = {part: self.tensors[f"adam/{name}/{part}"] for part in _ADAM}
                    optimizer.state[parameter] = {
                        part: t if part == "step" else t.to(parameter.device) for part, t in moments.items()
                    }
        scaler.load_state_dict(self.scaler)


class RunFolder:
    """One run's folder; refuses a folder that holds another run."""

    def __init__(
        self, path: str | os.PathLike[str], description: dict[str, Any], checkpoint_seconds: float = 0.0
    ) -> None:
        self.path = Path(path)
        self._every, self._last = checkpoint_seconds, time.monotonic()
        self.description = description
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NotelaError(f"cannot make the folder {self.path}: {error.strerror}") from error
        if (self.path / "run.json").exists():
            there = _read_json(self.path / "run.json")
            different = _differences(there, description)
            if different:
                raise NotelaError(
                    f"{self.path} holds another run ({'; '.join(different)}); choose another folder, "
                    "or use its settings"
                )
            self.description = {**description, "versions": there.get("versions")}  # those it was begun with
        else:
            _write_json(self.path / "run.json", description)

    def finished(self) -> dict[str, Any] | None:
        """Notes, source evaluation and history of a run that is done."""
        run = _read_json(self.path / "run.json")
        if not run.get("finished"):
            return None
        path = self.path / "history.jsonl"
        try:
            history = [json.loads(line) for line in path.read_text().splitlines()]
        except (OSError, ValueError) as error:
            raise NotelaError(f"{path} cannot be read ({error}); restore it, or choose another folder") from error
        verdict = Verdict(**run["verdict"])
        return {
            "history": history,
            "verdict": verdict,
            **{name: run[name] for name in ("notes", "source", "evaluation")},
        }

    def load_model(self, model: nn.Module) -> None:
        """The finished run's weights, into `model`."""
        _load_weights(self.path / "model.safetensors", model)

    def checkpoint(self) -> Checkpoint | None:
        """The last finished epoch, if there is one."""
        path = self.path / "checkpoint.safetensors"
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                position = json.loads(file.metadata()["position"])
            return Checkpoint(load_file(path), **position)
        except (SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise NotelaError(f"{path} cannot be read ({error}); remove it to start this run anew") from error

    def write_checkpoint(self, loop: Loop) -> None:
        """Model, optimiser, banks and position, if it is time; the random numbers follow from the position."""
        if time.monotonic() - self._last < self._every:
            return
        state = loop.state
        tensors = {f"model/{name}": t for name, t in _tensors(state.classifier.model).items()}
        tensors |= {f"bank/{name}": t for name, t in state.banks.items()}
        if loop.optimizer is not None:
            for name, parameter in loop.parameters.items():
                for part, value in loop.optimizer.state.get(parameter, {}).items():
                    tensors[f"adam/{name}/{part}"] = value
        position = {
            "epoch": state.epoch,
            "step": state.step,
            "history": loop.history,
            "source": loop.source,
            "notes": state.notes,
            "scaler": loop.scaler.state_dict(),
        }
        _write_tensors(self.path / "checkpoint.safetensors", tensors, {"position": json.dumps(position)})
        self._write_history(loop.history)
        self._last = time.monotonic()

    def finish(self, result: Result) -> None:
        """The adapted model and the final records; the checkpoint goes."""
        _write_tensors(self.path / "model.safetensors", _state(result.model), {"format": "pt"})
        self._write_history(result.history)
        ending = {name: getattr(result, name) for name in ("notes", "source", "evaluation")}
        verdict = dataclasses.asdict(result.verdict)
        _write_json(self.path / "run.json", {**self.description, "finished": True, **ending, "verdict": verdict})
        (self.path / "checkpoint.safetensors").unlink(missing_ok=True)

    def _write_history(self, history: list[dict[str, Any]]) -> None:
        with replacing(self.path / "history.jsonl") as aside:
            aside.write_text("".join(json.dumps(record) + "\n" for record in history))


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, each once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def _load_weights(path: Path, model: nn.Module) -> None:
    if not path.exists():
        raise NotelaError(f"{path} does not exist; a saved model is a folder with model.safetensors in it")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise NotelaError(f"{path} cannot be read: {error}") from error
    mine = _state(model)
    wrong = [name for name in mine.keys() & tensors.keys() if mine[name].shape != tensors[name].shape]
    for what, names in (
        ("lacks", mine.keys() - tensors.keys()),
        ("holds unknown", tensors.keys() - mine.keys()),
        ("has another shape for", wrong),
    ):
        if names:
            raise NotelaError(
                f"{path} is not of this {type(model).__name__}: it {what} {sorted(names)[0]!r} "
                f"({len(names)} such); build the model as it was when adapted"
            )
    model.load_state_dict(tensors, strict=False)


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Where two descriptions disagree, versions aside: "learning_rate 0.001 there, 0.0001 here"."""
    found = []
    for name, value in here.items():
        other = there.get(name)
        if name == "versions" or other == value:
            continue
        if isinstance(value, dict) and isinstance(other, dict):
            parts = {k: (other.get(k), value.get(k)) for k in sorted(value.keys() | other.keys())}
            found += [f"{name}.{k}: {a!r} there, {b!r} here" for k, (a, b) in parts.items() if a != b]
        else:
            found.append(f"{name}: {other!r} there, {value!r} here")
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise NotelaError(f"{path} does not exist; a run is a folder with run.json in it") from None
    except (OSError, ValueError) as error:
        raise NotelaError(f"{path} cannot be read ({error}); restore it, or choose another folder") from error
    if not isinstance(content, dict):
        raise NotelaError(f"{path} is not a run's description; choose another folder")
    return content


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as aside:
        aside.write_text(json.dumps(content, indent=2) + "\n")


def _write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    with replacing(path) as aside:
        # Copies: safetensors refuses tensors that share memory (tied weights).
        save_file({name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}, aside, metadata)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place to write aside; renamed to `path` once it is whole and on disk."""
    aside = path.with_name(f".{path.name}.aside")
    try:
        yield aside
        with open(aside, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    except (OSError, SafetensorError) as error:
        aside.unlink(missing_ok=True)
        raise NotelaError(f"cannot write {path} ({error}); what was saved before is intact") from error
