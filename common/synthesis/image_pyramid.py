"""Images as something to optimise: a pyramid of resolutions, so that coarse shapes form first and stay smooth.

>>> import torch
>>> pyramid = ImagePyramid(2, (1, 28, 28), torch.Generator().manual_seed(0))
>>> tuple(pyramid.images().shape), len(pyramid.levels)
((2, 1, 28, 28), 3)
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

BACKGROUND = 0.4
"""The grey of an empty pyramid."""


class ImagePyramid:
    """`count` images, each the sum of upsampled levels; the coarsest starts as noise, the others empty."""

    def __init__(
        self,
        count: int,
        shape: tuple[int, int, int],
        generator: torch.Generator,
        levels: int = 3,
        device: torch.device | None = None,
    ) -> None:
        self.shape = shape
        channels, height, width = shape
        self.levels: list[Tensor] = []
        for level in range(levels):
            factor = 2 ** (levels - 1 - level)
            size = (count, channels, max(height // factor, 1), max(width // factor, 1))
            start = 0.3 * torch.randn(size, generator=generator) if level == 0 else torch.zeros(size)
            self.levels.append(start.to(device).requires_grad_(True))  # drawn on the CPU: the same on every device

    @torch.no_grad()
    def start_from(self, pictures: Tensor) -> None:
        """Start from small pictures in [0, 1] instead of noise."""
        size = self.levels[0].shape[2:]
        coarse = functional.interpolate(pictures.clamp(0.0, 1.0), size, mode="bilinear", align_corners=False)
        self.levels[0].copy_(coarse - BACKGROUND)

    @torch.no_grad()
    def start_at(self, pictures: Tensor) -> None:
        """Start from pictures in [0, 1], whole: what the coarser levels leave of them is in the finer ones."""
        for number, level in enumerate(self.levels):
            for finer in self.levels[number:]:
                finer.zero_()
            rest = pictures - self.images()
            level.copy_(functional.interpolate(rest, level.shape[2:], mode="area"))

    def images(self) -> Tensor:
        """The images, around [0, 1] but not confined to it."""
        total = torch.full((), BACKGROUND)
        for level in self.levels:
            total = total + functional.interpolate(level, self.shape[1:], mode="bilinear", align_corners=False)
        return total

    @torch.no_grad()
    def pixels(self) -> NDArray[np.uint8]:
        """The images as bytes."""
        pixels: NDArray[np.uint8] = (self.images().clamp(0.0, 1.0) * 255.0).round().to(torch.uint8).cpu().numpy()
        return pixels


def roughness(images: Tensor) -> Tensor:
    """Mean absolute difference between neighbouring pixels (total variation)."""
    return (images[:, :, 1:] - images[:, :, :-1]).abs().mean() + (images[..., 1:] - images[..., :-1]).abs().mean()


def outside(images: Tensor) -> Tensor:
    """Mean squared distance of pixels from [0, 1]."""
    return (images - images.clamp(0.0, 1.0)).square().mean()


def random_affine(images: Tensor, strength: float, flips: bool, generator: torch.Generator) -> Tensor:
    """Random flips, shifts and zooms (up to `strength` of the size), differentiable: the match must survive them."""
    count = len(images)
    zoom = 1.0 + strength * (2.0 * torch.rand(count, generator=generator) - 1.0)
    mirror = torch.ones(count)
    if flips:
        mirror = torch.where(torch.rand(count, generator=generator) < 0.5, -1.0, 1.0)
    shift = strength * (2.0 * torch.rand(count, 2, generator=generator) - 1.0)
    affine = torch.zeros(count, 2, 3)
    affine[:, 0, 0], affine[:, 1, 1] = zoom * mirror, zoom
    affine[:, :, 2] = shift
    grid = functional.affine_grid(affine.to(images), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
