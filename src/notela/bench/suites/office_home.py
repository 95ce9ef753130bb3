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
    data: Path = Path("data/office-home"),
    source: str = "Art",
    targets: str = "",
    weights: str = "resnet50.pt",
    classes: Path = Path(),
    images: int = 0,
) -> Suite:
    """`targets`: some of the other styles; `weights`: a file or folder in `data`, or an absolute path; `classes`: the
    model's outputs in order, one a line, if that is not the sorted names of the folders; `images`: at most so many of
    each domain, 0 for all."""
    return styles(
        "office-home",
        OFFICE_HOME,
        office_home,
        data=data,
        source=source,
        targets=targets,
        weights=weights,
        depth=50,
        classes=classes,
        count=65,
        images=images,
    )
