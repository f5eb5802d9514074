"""The ConvNet that the literature judges distilled sets with: blocks of convolution and pooling, no public weights.

>>> [depth_for((1, side, side)) for side in (28, 32, 64, 128)]
[3, 3, 4, 5]
"""

from __future__ import annotations

from torch import nn


class EvaluationConvNet(nn.Sequential):
    """Blocks of convolution, instance norm, ReLU and average pooling, and a linear classifier.

    Pooling drops a last odd row or column. With `padded`, a border of zeros first makes both sides multiples of
    2^`depth`, so that nothing is dropped: 28 x 28 becomes 32 x 32, as in the authors' code.
    """

    def __init__(
        self, shape: tuple[int, int, int], classes: int, width: int, depth: int = 3, padded: bool = False
    ) -> None:
        blocks: list[nn.Module] = []
        channels, size = shape[0], shape[1:]
        if padded and (missing := tuple(-side % 2**depth for side in size)) != (0, 0):
            down, right = missing
            blocks.append(nn.ZeroPad2d((right // 2, right - right // 2, down // 2, down - down // 2)))
            size = (size[0] + down, size[1] + right)
        for _ in range(depth):
            blocks += [
                nn.Conv2d(channels, width, 3, padding=1),
                nn.GroupNorm(width, width, affine=True),
                nn.ReLU(),
                nn.AvgPool2d(2),
            ]
            channels, size = width, (size[0] // 2, size[1] // 2)
        super().__init__(*blocks, nn.Flatten(), nn.Linear(width * size[0] * size[1], classes))


def depth_for(shape: tuple[int, int, int]) -> int:
    """How many blocks the literature takes for images of this size: 3 up to 63 pixels, one more for every doubling."""
    return max(3, min(shape[1:]).bit_length() - 3)
