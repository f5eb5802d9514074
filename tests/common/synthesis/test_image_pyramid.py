"""Images as something to optimise, and the shifts and zooms that they must survive."""

from __future__ import annotations

import torch

from dpdd.common.synthesis.image_pyramid import random_affine


def test_augmentation_of_strength_zero_changes_nothing() -> None:
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        random_affine(images, 0.0, False, torch.Generator().manual_seed(1)), images, atol=1e-5, rtol=0
    )
