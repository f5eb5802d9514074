"""Augmentation by a public seed: the same for all images of a draw, at every silo, and differentiable.

Matching under many such views (Zhao and Bilen's siamese augmentation) makes a synthetic set that survives augmentation
when somebody trains on it. One kind is drawn per view: a rotation, a scaling, a shift, a change of light, a square cut
out; and, where asked for, a mirror image on top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dpdd.common.randomness import uniforms

ROTATION, SCALE, SHIFT, LIGHT, CUT = 15.0, 1.2, 0.125, 0.5, 0.25
"""The most: degrees; a factor; a share of the image; of contrast and brightness; the side of a square, a share too."""


@dataclass(frozen=True)
class SiameseAugmentation:
    """One view: an affine map of coordinates, a line from old to new brightness, and a square that is blanked."""

    affine: tuple[float, float, float, float, float, float] = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    contrast: float = 1.0
    brightness: float = 0.0
    cut: tuple[float, float] | None = None

    @classmethod
    def draw(cls, seed: int, number: int, flips: bool) -> SiameseAugmentation:
        """View `number` of a run."""
        kind, first, second, mirror = uniforms(seed, f"view {number}", 4).tolist()
        one, two = 2.0 * first - 1.0, 2.0 * second - 1.0
        sign = -1.0 if flips and mirror < 0.5 else 1.0
        affine, contrast, brightness, cut = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0), 1.0, 0.0, None
        match int(5.0 * kind):
            case 0:
                angle = math.radians(ROTATION * one)
                affine = (math.cos(angle), -math.sin(angle), 0.0, math.sin(angle), math.cos(angle), 0.0)
            case 1:
                affine = (SCALE**one, 0.0, 0.0, 0.0, SCALE**two, 0.0)
            case 2:
                affine = (1.0, 0.0, 2.0 * SHIFT * one, 0.0, 1.0, 2.0 * SHIFT * two)
            case 3:
                contrast, brightness = 1.0 + LIGHT * one, LIGHT * two
            case _:
                cut = (first, second)
        a, b, c, d, e, f = affine
        return cls((sign * a, sign * b, sign * c, d, e, f), contrast, brightness, cut)

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """Which of its three parts change anything."""
        return (
            self.affine != SiameseAugmentation.affine,
            (self.contrast, self.brightness) != (1.0, 0.0),
            self.cut is not None,
        )

    def __call__(self, images: Tensor) -> Tensor:
        """The view of each image."""
        moved, relit, _ = self.kind
        if moved:
            affine = torch.tensor(self.affine, dtype=images.dtype, device=images.device).view(1, 2, 3)
            grid = functional.affine_grid(affine, [1, *images.shape[1:]], align_corners=False)
            grid = grid.expand(len(images), -1, -1, -1)
            images = functional.grid_sample(images, grid, padding_mode="zeros", align_corners=False)
        if relit:
            middle = images.mean(dim=(1, 2, 3), keepdim=True)
            images = (images - middle) * self.contrast + middle + self.brightness
        if self.cut is not None:
            images = images * self._kept(images)
        return images

    def _kept(self, images: Tensor) -> Tensor:
        """0 in the blanked square, 1 elsewhere."""
        assert self.cut is not None
        inside = []
        for centre, size in zip(self.cut, images.shape[2:], strict=True):
            place = (torch.arange(size, device=images.device) + 0.5) / size
            inside.append(((place - centre).abs() < CUT / 2.0).to(images))
        return 1.0 - inside[0][:, None] * inside[1][None, :]
