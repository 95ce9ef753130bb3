"""What Office-Home and DomainNet share: the same classes in several styles, and a source model of one of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from notela.bench.files import domain
from notela.bench.suite import Domain, Suite
from notela.errors import NotelaError, check_choice, check_integer
from notela.vision.bottleneck import source_resnet
from notela.vision.folders import class_names, labelled_images
from notela.vision.preprocessing import squeezed


def styles(
    name: str,
    all_styles: tuple[str, ...],
    find: Callable[[Path, str], Path],
    *,
    data: Path,
    source: str,
    targets: str,
    weights: str,
    depth: int,
    classes: Path,
    count: int,
    images: int,
) -> Suite:
    """From `source` to `targets` (all other styles, if none are named), with the published settings for images."""
    wanted = targets.split(",") if targets else [style for style in all_styles if style != source]
    check_choice("source", source, all_styles)
    for target in wanted:
        check_choice("targets", target, tuple(style for style in all_styles if style != source))
    check_integer("images", images, 0)
    folders = {style: find(data, style) for style in (source, *wanted)}
    names = _classes(classes, folders[source], count)
    drawn = f"at most {images:,} images of each domain, " if images else ""
    return Suite(
        name=name,
        task="singlelabel",
        metrics=("accuracy", "per_class"),
        protocol=f"{drawn}files split 75 / 25 by a stable hash of their names, squeezed to 256×256 pixels and cropped "
        f"to 224; source {source}; ResNet-{depth}; all {count} outputs kept",
        class_names=names,
        model=partial(source_resnet, depth, count, data / weights),
        validation={},
        test={style: partial(_domain, folders[style], names, images) for style in wanted},
        source=partial(_domain, folders[source], names, images),
    )


def _classes(given: Path, folder: Path, count: int) -> tuple[str, ...]:
    """The model's outputs in their order: a file with one a line, or the names of the folders, sorted."""
    if given == Path():
        names = class_names(folder)
    else:
        try:
            lines = given.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise NotelaError(f"the class list {given} cannot be read ({error})") from error
        names = tuple(line.strip() for line in lines if line.strip())
    if len(set(names)) != count:
        place = folder if given == Path() else given
        raise NotelaError(f"{place} names {len(set(names))} classes, and there are {count}: remove or add some")
    return names


def _domain(root: Path, names: tuple[str, ...], most: int) -> Domain:
    return domain(labelled_images(root, names), root, squeezed, most=most)
