"""The ConvNet that the literature judges distilled sets with: three blocks, no public weights."""

from __future__ import annotations

from torch import nn


class EvaluationConvNet(nn.Sequential):
    """Three blocks of convolution, instance norm, ReLU and average pooling, and a linear classifier."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int) -> None:
        blocks: list[nn.Module] = []
        channels, size = shape[0], shape[1:]
        for _ in range(3):
            blocks += [
                nn.Conv2d(channels, width, 3, padding=1),
                nn.GroupNorm(width, width, affine=True),
                nn.ReLU(),
                nn.AvgPool2d(2),
            ]
            channels, size = width, (size[0] // 2, size[1] // 2)
        super().__init__(*blocks, nn.Flatten(), nn.Linear(width * size[0] * size[1], classes))
