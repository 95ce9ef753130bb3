"""Image data sets that are folders: which files, which class each, and what to download where one is missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from notela.errors import NotelaError, check_choice

Labelled = dict[Path, int]
"""Class numbers of files."""

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")

VISDA_CLASSES = (
    "aeroplane",
    "bicycle",
    "bus",
    "car",
    "horse",
    "knife",
    "motorcycle",
    "person",
    "plant",
    "skateboard",
    "train",
    "truck",
)
OFFICE_HOME = ("Art", "Clipart", "Product", "Real World")
DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


def class_folders(root: Path, names: Sequence[str]) -> Labelled:
    """Class numbers of the files in sub-folders that are called like classes."""
    numbers, found = {name: i for i, name in enumerate(names)}, {}
    for place in _folders(root):
        if place.name not in numbers:
            known = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise NotelaError(f"{place} is no class of the model ({known}); rename or remove the folder")
        for path in place.rglob("*"):
            if path.is_file() and not path.name.startswith("."):
                found[path] = numbers[place.name]
    return found


def class_names(root: Path) -> tuple[str, ...]:
    """The names of the sub-folders, sorted: the usual order of a classifier's outputs."""
    return tuple(place.name for place in _folders(root))


def imagenet_c(data: Path, corruption: str, severity: int) -> Path:
    """The folder of one corruption: `ImageNet-C/<corruption>/<severity>`, or below the folder of its kind, as in the
    archives (`ImageNet-C/blur/glass_blur/5`)."""
    base = data / "ImageNet-C"
    kinds = [base, *(_folders(base) if base.is_dir() else [])]
    places = [kind / corruption / str(severity) for kind in kinds]
    return _need(
        next((place for place in places if place.is_dir()), places[0]),
        "ImageNet-C",
        "https://zenodo.org/records/2235448 (blur.tar, weather.tar, digital.tar)",
        "ImageNet-C/<corruption>/<severity>/<class>/*.JPEG",
    )


def imagenet_r(data: Path) -> Path:
    """The folder of ImageNet-R: 200 of ImageNet's classes."""
    return _need(
        data / "imagenet-r", "ImageNet-R", "https://github.com/hendrycks/imagenet-r", "imagenet-r/<class>/*.jpg"
    )


def imagenet_sketch(data: Path) -> Path:
    """The folder of ImageNet-Sketch: all 1,000 classes."""
    return _need(
        data / "sketch", "ImageNet-Sketch", "https://github.com/HaohanWang/ImageNet-Sketch", "sketch/<class>/*.JPEG"
    )


def visda(data: Path, part: str = "validation") -> Labelled:
    """VisDA-C's photographs: `validation`, the target of most studies, is sorted into folders; `test` is not, and has
    its classes in a list."""
    check_choice("part", part, ("validation", "test"))
    root = _need(
        data / part,
        "VisDA-C",
        f"https://github.com/VisionLearningGroup/taskcv-2017-public ({part}.tar)",
        "test/trunk00/* and so on, with classification/data/image_list.txt of that repository as test/image_list.txt"
        if part == "test"
        else f"{part}/<class>/*",
    )
    if part == "test":
        return listed(root, root / "image_list.txt", len(VISDA_CLASSES))
    return labelled_images(root, VISDA_CLASSES)


def office_home(data: Path, domain: str) -> Path:
    """The folder of Art, Clipart, Product or Real World (which is also spelt Real_World and RealWorld)."""
    spellings = [data / name for name in (domain, domain.replace(" ", "_"), domain.replace(" ", ""))]
    found = next((place for place in spellings if place.is_dir()), spellings[0])
    where = "https://www.hemanthdv.org/officeHomeDataset.html"
    return _need(found, "Office-Home", where, f"{domain}/<class>/*.jpg")


def domainnet(data: Path, domain: str) -> Path:
    """The folder of clipart, infograph, painting, quickdraw, real or sketch."""
    return _need(data / domain, "DomainNet", "https://ai.bu.edu/M3SDA", f"{domain}/<class>/*.jpg")


def labelled_images(root: Path, names: Sequence[str]) -> Labelled:
    """The images of a folder with a sub-folder for each class; other files are left out."""
    found = {path: i for path, i in class_folders(root, names).items() if path.suffix.lower() in ENDINGS}
    if not found:
        raise NotelaError(f"{root} holds no images; expected a sub-folder for each class, with files such as *.jpg")
    return found


def listed(root: Path, table: Path, classes: int) -> Labelled:
    """Files and class numbers from lines such as `aeroplane/0001.jpg 0`."""
    found = {}
    try:
        lines = table.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NotelaError(f"{table} cannot be read ({error}); expected lines such as 'trunk00/1.jpg 0'") from error
    for number, line in enumerate(lines, 1):
        name, _, label = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not name or not label.isdigit() or int(label) >= classes:
            raise NotelaError(
                f"line {number} of {table}, {line!r}, is not a file and a class number below {classes}; a list with "
                "labels is needed"
            )
        if not (root / name).is_file():
            raise NotelaError(f"{table} lists {name}, which is not in {root}; unpack the archive again")
        found[root / name] = int(label)
    return found


def _folders(root: Path) -> list[Path]:
    return sorted(place for place in root.iterdir() if place.is_dir() and not place.name.startswith("."))


def _need(place: Path, name: str, where: str, layout: str) -> Path:
    if not place.is_dir():
        raise NotelaError(
            f"{place} does not exist: download {name} from {where} and unpack it so that there is {layout}; "
            "--data names another folder"
        )
    return place
