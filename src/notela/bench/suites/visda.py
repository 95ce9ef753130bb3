"""VisDA-C: from renderings to photographs, with a ResNet-101 and the settings that the paper published.

    notela bench visda --data data/visda --engine ray --address auto --gpus 1

The folder holds `validation` (or `test`: `--set part=test`) and the source model: `resnet101.pt` in torchvision's
names with 12 outputs, or with `--set weights=FOLDER` SHOT's or NRC's three files.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from notela.bench.files import domain
from notela.bench.suite import Domain, Suite
from notela.errors import check_choice, check_integer
from notela.vision.bottleneck import source_resnet
from notela.vision.folders import VISDA_CLASSES, visda
from notela.vision.preprocessing import squeezed

PAPER = {
    "source": 51.8,
    "adabn": 65.63,
    "tent": 71.03,
    "shot": 76.06,
    "pseudo_label": 50.16,
    "dust": 65.29,
    "nrc": 69.13,
    "dropout_student": 69.9,
    "notela": 72.08,
}


def suite(
    data: Path = Path("data/visda"), weights: str = "resnet101.pt", part: str = "validation", images: int = 0
) -> Suite:
    """`weights` is a file or folder in `data`, or an absolute path; `images`: at most so many, 0 for all."""
    check_choice("part", part, ("validation", "test"))
    check_integer("images", images, 0)
    name = f"VisDA-C {part}"
    drawn = f"at most {images:,} images, " if images else ""
    return Suite(
        name="visda",
        task="singlelabel",
        metrics=("accuracy", "per_class"),
        protocol=f"{drawn}files split 75 / 25 by a stable hash of their names, squeezed to 256×256 pixels and "
        "cropped to 224; ResNet-101; all 12 outputs kept",
        class_names=VISDA_CLASSES,
        model=partial(source_resnet, 101, len(VISDA_CLASSES), data / weights),
        validation={},
        test={name: partial(_domain, data, part, images)},
        published={name: PAPER} if part == "validation" else {},
        published_by="in the paper",
    )


def _domain(data: Path, part: str, most: int) -> Domain:
    return domain(visda(data, part), data / part, squeezed, most=most)
