"""What Office-Home and DomainNet share: the same classes in several styles, and a source model of one of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from notela.bench.files import domain
from notela.bench.suite import Domain, Suite
from notela.errors import check_choice, check_integer
from notela.vision.bottleneck import source_resnet
from notela.vision.folders import class_names, labelled_images
from notela.vision.preprocessing import IMAGENET_MEAN, IMAGENET_STD, read_image

prepare = partial(read_image, resize=256, crop=224, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def styles(
    name: str,
    all_styles: tuple[str, ...],
    find: Callable[[Path, str], Path],
    data: Path,
    source: str,
    depth: int,
    weights: str,
    images: int,
) -> Suite:
    """From `source` to the other styles, with the published settings for images."""
    check_choice("source", source, all_styles)
    check_integer("images", images, 0)
    folders = {style: find(data, style) for style in all_styles}
    names = tuple(sorted(set().union(*(class_names(folder) for folder in folders.values()))))
    drawn = f"at most {images:,} images of each domain, " if images else ""
    return Suite(
        name=name,
        task="singlelabel",
        metrics=("accuracy", "per_class"),
        protocol=f"{drawn}files split 75 / 25 by a stable hash of their names; source {source}; ResNet-{depth}; all "
        f"{len(names)} outputs kept",
        class_names=names,
        model=partial(source_resnet, depth, len(names), data / weights),
        validation={},
        test={style: partial(_domain, folders[style], names, images) for style in all_styles if style != source},
        source=partial(_domain, folders[source], names, images),
    )


def _domain(root: Path, names: tuple[str, ...], most: int) -> Domain:
    return domain(labelled_images(root, names), root, prepare, most=most)
