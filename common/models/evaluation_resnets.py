"""ResNet-18 and DenseNet-121 for images of about 32 x 32, the other networks that the literature judges sets with.

Both begin with one convolution of 3 x 3 instead of the strided 7 x 7 and the pooling that they have for photographs, as
is usual for CIFAR. Sides below 32 pixels get a border of zeros up to 32, as the ConvNet's do.

>>> import torch
>>> resnet = evaluation_resnet((1, 28, 28), classes=3, width=4, normalisation="instance")
>>> densenet = evaluation_densenet((3, 32, 32), classes=3, growth=4, normalisation="batch")
>>> resnet(torch.rand(2, 1, 28, 28)).shape, densenet(torch.rand(2, 3, 32, 32)).shape
(torch.Size([2, 3]), torch.Size([2, 3]))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

NormalisationKind = Literal["instance", "batch"]
"""Each image by itself, or a batch together (and by running statistics in the end)."""
Norm: TypeAlias = Callable[[int], nn.Module]

LEAST_SIDE = 32
RESNET_18 = (2, 2, 2, 2)
"""Blocks of two convolutions, with 1, 2, 4 and 8 times the width."""
DENSENET_121 = (6, 12, 24, 16)
"""Layers of each block."""


def evaluation_resnet(
    shape: tuple[int, int, int], classes: int, width: int, normalisation: NormalisationKind
) -> nn.Sequential:
    """ResNet-18 (He et al. 2016) with a CIFAR stem; `width` is 64 as published."""
    norm = _norm(normalisation)
    layers = [*_border(shape), _convolution(shape[0], width, 3), norm(width), nn.ReLU()]
    channels = width
    for stage, blocks in enumerate(RESNET_18):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(_ResidualBlock(channels, width * 2**stage, stride, norm))
            channels = width * 2**stage
    return nn.Sequential(*layers, *_head(channels, classes))


def evaluation_densenet(
    shape: tuple[int, int, int], classes: int, growth: int, normalisation: NormalisationKind
) -> nn.Sequential:
    """DenseNet-121 (Huang et al. 2017) with a CIFAR stem; `growth`, channels that a layer adds, is 32 as published."""
    norm = _norm(normalisation)
    channels = 2 * growth
    layers = [*_border(shape), _convolution(shape[0], channels, 3)]
    for number, count in enumerate(DENSENET_121):
        for _ in range(count):
            layers.append(_DenseLayer(channels, growth, norm))
            channels += growth
        if number < len(DENSENET_121) - 1:
            layers += [norm(channels), nn.ReLU(), _convolution(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, norm(channels), nn.ReLU(), *_head(channels, classes))


class _ResidualBlock(nn.Module):
    """Two convolutions, added to the input (projected where the shape changes)."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(before, after, 3, stride), norm(after), nn.ReLU(), _convolution(after, after, 3), norm(after)
        )
        same = before == after and stride == 1
        projection = nn.Sequential() if same else nn.Sequential(_convolution(before, after, 1, stride), norm(after))
        self.shortcut = projection

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.shortcut(x) + self.residual(x))


class _DenseLayer(nn.Module):
    """`growth` channels more, from all that there are, through a bottleneck of four times as many."""

    def __init__(self, before: int, growth: int, norm: Norm) -> None:
        super().__init__()
        self.added = nn.Sequential(
            norm(before),
            nn.ReLU(),
            _convolution(before, 4 * growth, 1),
            norm(4 * growth),
            nn.ReLU(),
            _convolution(4 * growth, growth, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.added(x)), dim=1)


def _convolution(before: int, after: int, side: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, side, stride=stride, padding=side // 2, bias=False)


def _norm(kind: NormalisationKind) -> Norm:
    return nn.BatchNorm2d if kind == "batch" else lambda channels: nn.GroupNorm(channels, channels)


def _border(shape: tuple[int, int, int]) -> list[nn.Module]:
    down, right = (max(LEAST_SIDE - side, 0) for side in shape[1:])
    if not (down or right):
        return []
    return [nn.ZeroPad2d((right // 2, right - right // 2, down // 2, down - down // 2))]


def _head(channels: int, classes: int) -> list[nn.Module]:
    """The mean over the image, and a linear classifier."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
