"""Office-Home: from one style of pictures to the three others, with your own ResNet-50 of the first.

    notela bench office-home --data data/OfficeHome --set source=Art --set weights=resnet50-art.pt

The folder holds `Art`, `Clipart`, `Product` and `Real World`.
"""

from __future__ import annotations

from pathlib import Path

from notela.bench.suite import Suite
from notela.bench.suites._styles import styles
from notela.vision.folders import OFFICE_HOME, office_home


def suite(
    data: Path = Path("data/office-home"), source: str = "Art", weights: str = "resnet50.pt", images: int = 0
) -> Suite:
    """`weights` is a file or folder in `data`, or a path; `images`: at most so many of each domain, 0 for all."""
    return styles("office-home", OFFICE_HOME, office_home, data, source, 50, weights, images)
