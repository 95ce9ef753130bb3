"""Real images, a real checkpoint (../shared/data/cifar10): adaptation finds what is known.

The full check, all corruptions and methods, is `notela bench cifar10c`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import notela
from notela.bench.suite import find, refer

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar10"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"real data not present: {DATA.name}")


def test_adapting_a_real_network_to_contrast() -> None:
    suite = find(refer("cifar10c", {"data": str(DATA), "images": "1600"}))
    model, domain = suite.model(), suite.test["contrast"]()
    settings = {"task": "singlelabel", "evaluator": suite.evaluator(domain), "epochs": 2, "progress": False}
    adabn = notela.adapt(model, domain.adapt, method="adabn", **settings)
    student = notela.adapt(model, domain.adapt, method="notela", **settings)
    assert adabn.source is not None
    source = adabn.source["accuracy"]
    assert 0.20 < source < 0.36  # 27.6 % on 2,000 images elsewhere
    assert adabn.history[-1]["evaluation"]["accuracy"] > 0.70  # 78.8 % with batch statistics
    assert student.history[-1]["evaluation"]["accuracy"] > 0.70
    assert not any("no dropout" in note for note in student.notes)  # the network has the published one
