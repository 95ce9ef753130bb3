"""Real images, a real checkpoint (../shared/data/cifar10): the network is read right, and AdaBN finds what is known.

The full check, with TENT and NOTELA on all 10,000 images, is `make check-cifar`.
"""

from __future__ import annotations

import pytest
import torch

import notela
from cifar10c_check import DATA, images, resnet20

pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"real data not present: {DATA.name}")


def test_adapting_a_real_network_to_contrast() -> None:
    model = resnet20()
    x, labels = images("contrast")
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1600]
    adapt_rows, test_rows = rows[:1000], rows[1000:]
    evaluator = notela.Evaluator(x[test_rows], labels[test_rows], task="singlelabel")
    settings = {"task": "singlelabel", "evaluator": evaluator, "epochs": 2, "progress": False}
    adabn = notela.adapt(model, x[adapt_rows], method="adabn", **settings)
    student = notela.adapt(model, x[adapt_rows], method="notela", **settings)
    assert adabn.source is not None
    source = adabn.source["accuracy"]
    assert 0.20 < source < 0.36  # 27.6 % on 2,000 images elsewhere
    assert adabn.history[-1]["evaluation"]["accuracy"] > 0.70  # 78.8 % with batch statistics
    assert student.history[-1]["evaluation"]["accuracy"] > 0.70
    assert not any("no dropout" in note for note in student.notes)  # the network has the published one
