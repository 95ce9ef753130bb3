"""DomainNet: from one style of pictures to the five others, with your own ResNet-101 of the first.

    notela bench domainnet --data data/domainnet --set source=real --set weights=resnet101-real.pt

The folder holds `clipart`, `infograph`, `painting`, `quickdraw`, `real` and `sketch`.
"""

from __future__ import annotations

from pathlib import Path

from notela.bench.suite import Suite
from notela.bench.suites._styles import styles
from notela.vision.folders import DOMAINNET, domainnet


def suite(
    data: Path = Path("data/domainnet"), source: str = "real", weights: str = "resnet101.pt", images: int = 0
) -> Suite:
    """`weights` is a file or folder in `data`, or a path; `images`: at most so many of each domain, 0 for all."""
    return styles("domainnet", DOMAINNET, domainnet, data, source, 101, weights, images)
