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
    data: Path = Path("data/domainnet"),
    source: str = "real",
    targets: str = "",
    weights: str = "resnet101.pt",
    classes: Path = Path(),
    images: int = 0,
) -> Suite:
    """`targets`: some of the other styles; `weights`: a file or folder in `data`, or an absolute path; `classes`: the
    model's outputs in order, one a line, if that is not the sorted names of the folders; `images`: at most so many of
    each domain, 0 for all."""
    return styles(
        "domainnet",
        DOMAINNET,
        domainnet,
        data=data,
        source=source,
        targets=targets,
        weights=weights,
        depth=101,
        classes=classes,
        count=345,
        images=images,
    )
