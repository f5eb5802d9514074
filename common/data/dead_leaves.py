"""Images that no camera took: *dead leaves*, the classical random model of natural images.

Discs of random size, place and colour hide each other. Everybody draws the same ones from a public seed, so whatever
is fitted to them (a standardisation, a whitening, a subspace) involves no dataset at all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdd.common.randomness import uniforms

_LEAVES = 100
_SMALLEST = 1.0  # radius in pixels


def dead_leaves(count: int, channels: int, height: int, width: int, seed: int) -> NDArray[np.float32]:
    """Random images (count, channels, height, width) in [0, 1]: discs on top of each other.

    Radii have density 1/r³ from a pixel to the image's larger side, which makes images look alike at all scales, as
    photographs do. How many leaves fall is drawn for each image, so that some images are a few shapes on an empty
    ground and some are full; every other ground is black, as in scans. Colours are a grey and a weaker tint.

    >>> images = dead_leaves(3, 1, 8, 8, seed=1)
    >>> images.shape, bool(images.min() >= 0 and images.max() <= 1)
    ((3, 1, 8, 8), True)
    """
    numbers = 4 + max(channels, 3)
    drawn = uniforms(seed, f"dead leaves {height} {width}", count * _LEAVES * numbers).reshape(numbers, _LEAVES, count)
    largest = float(max(height, width))
    radii = _SMALLEST / np.sqrt(1.0 - drawn[0] * (1.0 - (_SMALLEST / largest) ** 2))
    rows, columns = ((2.0 * drawn[i] - 0.5) * side for i, side in ((1, height), (2, width)))
    falling = np.arange(_LEAVES)[:, None] < _LEAVES * uniforms(seed, "dead leaves that fall", count)
    tint = drawn[4 : 4 + channels]
    colours = np.clip(drawn[3] + 0.5 * (tint - tint.mean(0)), 0.0, 1.0)
    u, v = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)
    images = np.zeros((channels, count, height, width), dtype=np.float32)
    images[:, ::2] = colours[:, 0, ::2, None, None]
    for leaf in range(1, _LEAVES):
        row, column, radius, colour = (
            values[..., leaf, :, None, None].astype(np.float32) for values in (rows, columns, radii, colours)
        )
        inside = np.clip(radius - np.sqrt((u - row) ** 2 + (v - column) ** 2) + 0.5, 0.0, 1.0)  # soft edges
        inside *= falling[leaf, :, None, None]
        images += inside * (colour - images)
    return np.ascontiguousarray(images.swapaxes(0, 1))
