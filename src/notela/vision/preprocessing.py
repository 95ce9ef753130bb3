"""From an image file to a network's input."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read_image(
    path: Path,
    size: Sequence[int] | None = None,
    resize: int | None = None,
    crop: int | None = None,
    mean: Sequence[float] | float = (0.0, 0.0, 0.0),
    std: Sequence[float] | float = 1.0,
) -> Tensor:
    """An image as (channels, height, width): (pixels / 255 - mean) / std. One number for the mean gives one grey
    channel, three give colours.

    `size` squeezes it to (height, width). `resize` scales its shorter side and keeps its shape, `crop` cuts a square
    out of the middle: together, what torchvision's checkpoints expect.
    """
    grey = isinstance(mean, (int, float)) or len(mean) == 1
    with Image.open(path) as image:
        picture = image.convert("L" if grey else "RGB")
    if size is not None:
        picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    if resize is not None:
        wide, high = picture.size
        new = (resize, resize * high // wide) if wide <= high else (resize * wide // high, resize)
        picture = picture.resize(new, Image.Resampling.BILINEAR)
    if crop is not None:
        left, top = (round((side - crop) / 2) for side in picture.size)
        picture = picture.crop((left, top, left + crop, top + crop))
    pixels = np.asarray(picture, dtype=np.float32) / 255
    x = torch.from_numpy(pixels[None] if grey else pixels.transpose(2, 0, 1).copy())
    return (x - torch.tensor(mean).reshape(-1, 1, 1)) / torch.tensor(std).reshape(-1, 1, 1)


as_torchvision = partial(read_image, resize=256, crop=224, mean=IMAGENET_MEAN, std=IMAGENET_STD)
"""As torchvision's checkpoints expect images."""
squeezed = partial(read_image, size=(256, 256), crop=224, mean=IMAGENET_MEAN, std=IMAGENET_STD)
"""As SHOT, NRC and the paper do it for VisDA-C, Office-Home and DomainNet."""
only_cropped = partial(read_image, crop=224, mean=IMAGENET_MEAN, std=IMAGENET_STD)
"""For ImageNet-C, whose files are scaled and cropped already."""
