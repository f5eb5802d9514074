"""Area resampling: large images made small inside a network, antialiased, exact and differentiable.

A pixel of the small image is the mean of the area that it covers in the large one, with pixels at the border counted by
the part that is covered. It is one small matrix per axis, and one product per image and axis, so that an image's
neighbours in a batch leave no trace in it.

>>> area_matrix(3, 2)
array([[0.66666667, 0.33333333, 0.        ],
       [0.        , 0.33333333, 0.66666667]])
>>> smaller(300, 200, longest=64), smaller(28, 28, longest=64), smaller(4096, 10, longest=64, shortest=8)
((64, 43), (28, 28), (64, 8))
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def smaller(height: int, width: int, longest: int, shortest: int = 1) -> tuple[int, int]:
    """The size with the same proportions whose longer side is `longest`; small images keep their size.

    No side becomes less than `shortest` (or than it was): very long images change their proportions instead.
    """
    most = max(height, width)
    if most <= longest:
        return height, width
    sides = [max((2 * side * longest + most) // (2 * most), min(side, shortest)) for side in (height, width)]
    return sides[0], sides[1]


def area_matrix(before: int, after: int) -> NDArray[np.float64]:
    """The matrix (after, before) from a row of pixels to the means over `after` equal intervals of it."""
    edges = np.arange(after + 1) * (before / after)
    pixels = np.arange(before)
    covered = np.minimum(edges[1:, None], pixels + 1.0) - np.maximum(edges[:-1, None], pixels)
    covered = np.maximum(covered, 0.0)
    matrix: NDArray[np.float64] = covered / covered.sum(1, keepdims=True)
    return matrix


def area_resample(images: Tensor, height: int, width: int) -> Tensor:
    """Images (N, C, H, W) at a size that is not larger; as they are where that is their size."""
    if images.shape[2:] == (height, width):
        return images
    flat = images.flatten(0, 1)
    rows = _matrix(images.shape[2], height).to(flat).expand(len(flat), -1, -1)
    columns = _matrix(images.shape[3], width).to(flat).T.expand(len(flat), -1, -1)
    return torch.bmm(torch.bmm(rows, flat), columns).unflatten(0, images.shape[:2])


@lru_cache(maxsize=64)
def _matrix(before: int, after: int) -> Tensor:
    with torch.inference_mode(False):  # kept for later calls, which may want gradients
        return torch.from_numpy(area_matrix(before, after))
