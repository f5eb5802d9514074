"""Differentiable siamese augmentation (DSA; Zhao and Bilen 2021) as the literature judges distilled sets with it.

Every batch gets **one** kind of change, drawn anew: `color`, `crop`, `cutout`, `flip`, `scale` or `rotate`. How far an
image is changed is its own draw: the authors share it within a batch while they match, not while they evaluate.

>>> images = torch.rand(4, 3, 8, 8)
>>> generator = torch.Generator().manual_seed(0)
>>> augment(images, ("crop", "flip"), generator).shape
torch.Size([4, 3, 8, 8])
>>> augment(images, (), generator) is images
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dpdd.server.evaluation.learner_settings import AugmentationKind


@dataclass(frozen=True)
class Strengths:
    """The most that images are changed by; as published, for images of mean 0 and standard deviation 1.

    Parameters
    ----------
    brightness, saturation, contrast
        What is added, and the most that the distance from an image's grey version, and from its mean, changes by, as
        a share.
    crop
        A shift along either side, as a share of it; what comes in is 0, the mean.
    cutout
        Sides of the rectangle that becomes 0, as a share; its centre is anywhere, so part of it may be outside.
    flip
        How likely a mirror image is.
    scale
        A factor, for either side by itself; its inverse is the least.
    rotate
        Degrees.
    """

    brightness: float = 0.5
    saturation: float = 1.0
    contrast: float = 0.5
    crop: float = 0.125
    cutout: float = 0.5
    flip: float = 0.5
    scale: float = 1.2
    rotate: float = 15.0


PUBLISHED = Strengths()


def augment(
    images: Tensor, kinds: Sequence[AugmentationKind], generator: torch.Generator, strengths: Strengths = PUBLISHED
) -> Tensor:
    """A batch (N, C, H, W) of mean 0, changed in one way out of `kinds`; without kinds, as it is."""
    if not kinds:
        return images
    kind = kinds[int(torch.randint(len(kinds), (), generator=generator))]
    return CHANGES[kind](images, strengths, generator)


def _either_way(images: Tensor, generator: torch.Generator) -> Tensor:
    """A number from -1 to 1 for every image."""
    return torch.rand(len(images), generator=generator) * 2.0 - 1.0


def _color(images: Tensor, strengths: Strengths, generator: torch.Generator) -> Tensor:
    """Brightness, saturation (nothing, for grey images), contrast, in this order."""
    added, saturation, contrast = (_either_way(images, generator).view(-1, 1, 1, 1) for _ in range(3))
    images = images + strengths.brightness * added
    grey = images.mean(dim=1, keepdim=True)
    images = grey + (images - grey) * (1.0 + strengths.saturation * saturation)
    middle = images.mean(dim=(1, 2, 3), keepdim=True)
    return middle + (images - middle) * (1.0 + strengths.contrast * contrast)


def _crop(images: Tensor, strengths: Strengths, generator: torch.Generator) -> Tensor:
    """A window of the image with a margin of zeros: a shift by whole pixels."""
    most = [math.floor(strengths.crop * side + 0.5) for side in images.shape[2:]]
    padded = functional.pad(images, (most[1], most[1], most[0], most[0]))
    rows, columns = (
        torch.randint(0, 2 * reach + 1, (len(images), 1), generator=generator) + torch.arange(side)
        for reach, side in zip(most, images.shape[2:], strict=True)
    )
    each = torch.arange(len(images))[:, None, None]
    channels_last = padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]]
    return channels_last.permute(0, 3, 1, 2).contiguous()


def _cutout(images: Tensor, strengths: Strengths, generator: torch.Generator) -> Tensor:
    inside = []
    for side in images.shape[2:]:
        size = math.floor(strengths.cutout * side + 0.5)
        centre = torch.randint(0, side + 1 - size % 2, (len(images), 1), generator=generator)
        place = torch.arange(side) - (centre - size // 2)
        inside.append((place >= 0) & (place < size))
    gone = inside[0][:, :, None] & inside[1][:, None, :]
    return images.masked_fill(gone[:, None], 0.0)


def _flip(images: Tensor, strengths: Strengths, generator: torch.Generator) -> Tensor:
    mirrored = torch.rand(len(images), 1, 1, 1, generator=generator) < strengths.flip
    return torch.where(mirrored, images.flip(3), images)


def _scale(images: Tensor, strengths: Strengths, generator: torch.Generator) -> Tensor:
    least = 1.0 / strengths.scale
    wide, tall = (least + (strengths.scale - least) * torch.rand(len(images), generator=generator) for _ in range(2))
    affine = torch.zeros(len(images), 2, 3)
    affine[:, 0, 0], affine[:, 1, 1] = wide, tall
    return _mapped(images, affine)


def _rotate(images: Tensor, strengths: Strengths, generator: torch.Generator) -> Tensor:
    angle = math.radians(strengths.rotate) * _either_way(images, generator)
    height, width = images.shape[2:]
    affine = torch.zeros(len(images), 2, 3)
    affine[:, 0, 0], affine[:, 0, 1] = torch.cos(angle), -torch.sin(angle) * height / width
    affine[:, 1, 0], affine[:, 1, 1] = torch.sin(angle) * width / height, torch.cos(angle)
    return _mapped(images, affine)


def _mapped(images: Tensor, affine: Tensor) -> Tensor:
    grid = functional.affine_grid(affine, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


CHANGES: Mapping[AugmentationKind, Callable[[Tensor, Strengths, torch.Generator], Tensor]] = {
    "color": _color,
    "crop": _crop,
    "cutout": _cutout,
    "flip": _flip,
    "scale": _scale,
    "rotate": _rotate,
}
"""What each kind does to a batch."""
