"""How strong each corruption is at severities 1 to 5: the constants of CIFAR-10-C and of ImageNet-C, side by side."""

from __future__ import annotations

NAMES = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")

# What each corruption's function takes besides images and random numbers, for severities 1 to 5. Lengths are pixels of
# the benchmark's own images: 32×32 for "cifar", 224×224 for "imagenet".
CONSTANTS: dict[str, dict[str, tuple[tuple[float, ...], ...]]] = {
    "gaussian_noise": {  # standard deviation
        "cifar": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
        "imagenet": ((0.08,), (0.12,), (0.18,), (0.26,), (0.38,)),
    },
    "shot_noise": {  # photons of a white pixel
        "cifar": ((500,), (250,), (100,), (75,), (50,)),
        "imagenet": ((60,), (25,), (12,), (5,), (3,)),
    },
    "impulse_noise": {  # share of values
        "cifar": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
        "imagenet": ((0.03,), (0.06,), (0.09,), (0.17,), (0.27,)),
    },
    "defocus_blur": {  # radius of the disk, blur of its rim
        "cifar": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        "imagenet": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    },
    "glass_blur": {  # blur before and after, farthest pixel, times
        "cifar": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        "imagenet": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    },
    "motion_blur": {  # radius, sigma
        "cifar": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "imagenet": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    },
    "zoom_blur": {  # largest zoom, step
        "cifar": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        "imagenet": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    },
    "snow": {  # mean, spread, zoom and threshold of the flakes, radius and sigma of their motion, share of the image
        "cifar": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        "imagenet": (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    },
    "frost": {  # share of the image, share of the frost, every which pixel of the frost image
        "cifar": ((1, 0.2, 5), (1, 0.3, 5), (0.9, 0.4, 5), (0.85, 0.4, 5), (0.75, 0.45, 5)),
        "imagenet": ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
    },
    "fog": {  # thickness, decay of roughness from scale to scale
        "cifar": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        "imagenet": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    },
    "brightness": {  # added to the value of HSV
        "cifar": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
        "imagenet": ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
    },
    "contrast": {  # share kept of the distance from the mean
        "cifar": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
        "imagenet": ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
    },
    "elastic_transform": {  # displacement, its smoothness, shift of the three points of the affine map
        "cifar": (
            (32 * 0, 32 * 0, 32 * 0.08),
            (32 * 0.05, 32 * 0.2, 32 * 0.07),
            (32 * 0.08, 32 * 0.06, 32 * 0.06),
            (32 * 0.1, 32 * 0.04, 32 * 0.05),
            (32 * 0.1, 32 * 0.03, 32 * 0.03),
        ),
        "imagenet": (  # 244 as in the benchmark, where 224 was meant
            (244 * 2, 244 * 0.7, 244 * 0.1),
            (244 * 2, 244 * 0.08, 244 * 0.2),
            (244 * 0.05, 244 * 0.01, 244 * 0.02),
            (244 * 0.07, 244 * 0.01, 244 * 0.02),
            (244 * 0.12, 244 * 0.01, 244 * 0.02),
        ),
    },
    "pixelate": {  # share of the side kept
        "cifar": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
        "imagenet": ((0.6,), (0.5,), (0.4,), (0.3,), (0.25,)),
    },
    "jpeg_compression": {  # quality
        "cifar": ((80,), (65,), (58,), (50,), (40,)),
        "imagenet": ((25,), (18,), (15,), (10,), (7,)),
    },
    "speckle_noise": {  # standard deviation as a share of the value
        "cifar": ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),
        "imagenet": ((0.15,), (0.2,), (0.35,), (0.45,), (0.6,)),
    },
    "gaussian_blur": {  # sigma
        "cifar": ((0.4,), (0.6,), (0.7,), (0.8,), (1,)),
        "imagenet": ((1,), (2,), (3,), (4,), (6,)),
    },
    "spatter": {  # mean, spread and smoothness of the liquid, threshold, strength (water) or sigma (mud), mud
        "cifar": (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        "imagenet": (
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
    },
    "saturate": {  # factor and summand of the saturation of HSV
        "cifar": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        "imagenet": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    },
}
